/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a server says on its control connection: states, errors, JSON texts. In pieces of any size
 * it is the same as in one, and results that are taken are in their bounds and survive being said
 * again.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/iperf3_wire.h"
#include "tests/fuzz/input.h"

#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))

static struct iperf3_wire wire;
static uint64_t heard; /* a digest of all that came up */

static _Noreturn void fail(int line, const char *what)
{
    fprintf(stderr, "fuzz_json.c:%d: does not hold: %s\n", line, what);
    abort();
}

/* ---- the control connection ---- */

static void note(const void *what, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        heard = (heard ^ ((const uint8_t *)what)[i]) * 1099511628211u;
    }
}

static void on_state(void *arg, int state)
{
    (void)arg;
    CHECK(strlen(iperf3_state_name(state)) != 0);
    note(&state, sizeof(state));
    if (state == IPERF3_EXCHANGE_RESULTS) {
        iperf3_wire_expect_json(&wire);
    }
}

static void on_error(void *arg, uint32_t number, uint32_t os_number)
{
    (void)arg;
    note(&number, sizeof(number));
    note(&os_number, sizeof(os_number));
}

static void on_json(void *arg, const char *text, size_t len)
{
    (void)arg;
    CHECK(len != 0 && len <= IPERF3_MAX_JSON_BYTES);
    note(text, len);
}

static void on_malformed(void *arg, const char *why)
{
    (void)arg;
    note(why, strlen(why));
}

static const struct iperf3_wire_ops ops = {
    .state = on_state, .server_error = on_error, .json = on_json, .malformed = on_malformed};

/* Each piece in memory of its own, so that nothing reads beyond it. */
static uint64_t feed(const uint8_t *data, size_t size, const uint8_t *cuts, size_t n_cuts)
{
    heard = 1469598103934665603u;
    iperf3_wire_init(&wire, &ops, NULL);
    for (size_t at = 0, i = 0; at < size; i++) {
        size_t part = n_cuts != 0 ? 1u + cuts[i % n_cuts] : size;
        part = part < size - at ? part : size - at;
        uint8_t *piece = malloc(part);
        CHECK(piece != NULL);
        memcpy(piece, data + at, part);
        iperf3_wire_feed(&wire, piece, part);
        free(piece);
        at += part;
    }
    iperf3_wire_free(&wire);
    return heard;
}

/* ---- results ---- */

static void check_results(const struct iperf3_results *results, unsigned n_streams)
{
    CHECK(results->n_streams == n_streams);
    for (unsigned i = 0; i < n_streams; i++) {
        const struct iperf3_stream_result *stream = &results->streams[i];
        CHECK(stream->id >= 1 && stream->id <= iperf3_stream_id(n_streams - 1) && stream->id != 2);
        CHECK(stream->jitter_s >= 0 && stream->retransmits >= -1);
        CHECK(isfinite(stream->start_s) && stream->end_s >= stream->start_s);
        for (unsigned k = 0; k < i; k++) {
            CHECK(results->streams[k].id != stream->id);
        }
    }
}

static void parse(const char *text, size_t len, unsigned n_streams)
{
    static struct iperf3_results once, again;
    const char *why = NULL;

    if (!iperf3_results_parse(text, len, n_streams, &once, &why)) {
        CHECK(why != NULL && why[0] != '\0');
        return;
    }
    check_results(&once, n_streams);
    char *said = iperf3_results_text(&once);
    CHECK(said != NULL);
    CHECK(iperf3_results_parse(said, strlen(said), n_streams, &again, &why));
    for (unsigned i = 0; i < n_streams; i++) {
        CHECK(once.streams[i].bytes == again.streams[i].bytes);
        CHECK(once.streams[i].packets == again.streams[i].packets);
        CHECK(once.streams[i].retransmits == again.streams[i].retransmits);
    }
    free(said);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    uint8_t form = in8(&in);

    if ((form & 1u) == 0) {
        char *text = malloc(in.left + 1);
        CHECK(text != NULL);
        memcpy(text, in.at, in.left);
        parse(text, in.left, 1u + (form >> 1) % 4u);
        free(text);
        return 0;
    }
    size_t n_cuts = (form >> 1) % 16u + 1u;
    n_cuts = n_cuts < in.left ? n_cuts : in.left;
    uint64_t whole = feed(in.at + n_cuts, in.left - n_cuts, NULL, 0);
    CHECK(feed(in.at + n_cuts, in.left - n_cuts, in.at, n_cuts) == whole);
    return 0;
}
