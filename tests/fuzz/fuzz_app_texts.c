/* SPDX-License-Identifier: BSD-2-Clause
 *
 * All text that comes from outside the guest: configuration words, a server's control connection in
 * pieces of any size, a server's results.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "apps/config.h"
#include "apps/iperf3_wire.h"
#include "boot/panic.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct iperf3_wire wire;
static struct iperf3_results results;

static void on_state(void *arg, int state)
{
    (void)arg;
    if (state == IPERF3_EXCHANGE_RESULTS) {
        iperf3_wire_expect_json(&wire);
    }
}

static void on_error(void *arg, uint32_t number, uint32_t os_number)
{
    (void)arg;
    (void)number;
    (void)os_number;
}

static void parse(const char *text, size_t len, unsigned n_streams)
{
    const char *why;
    if (!iperf3_results_parse(text, len, n_streams, &results, &why)) {
        invariant(why != NULL);
        return;
    }
    invariant(results.n_streams == n_streams);
    for (unsigned i = 0; i < n_streams; i++) {
        invariant(results.streams[i].id >= 1 && results.streams[i].id <= n_streams + 1);
        invariant(results.streams[i].jitter_s >= 0 && results.streams[i].retransmits >= -1);
    }
}

static void on_json(void *arg, const char *text, size_t len)
{
    (void)arg;
    parse(text, len, 2);
}

static void on_malformed(void *arg, const char *why)
{
    (void)arg;
    invariant(why != NULL);
}

static const struct iperf3_wire_ops ops = {
    .state = on_state,
    .server_error = on_error,
    .json = on_json,
    .malformed = on_malformed,
};

static void feed(const uint8_t *data, size_t size, size_t piece)
{
    iperf3_wire_init(&wire, &ops, NULL);
    for (size_t at = 0; at < size; at += piece) {
        size_t part = piece < size - at ? piece : size - at;
        uint8_t *copy = malloc(part);
        memcpy(copy, data + at, part);
        iperf3_wire_feed(&wire, copy, part);
        free(copy);
    }
    iperf3_wire_free(&wire);
}

static void configure(const uint8_t *data, size_t size)
{
    struct config config;
    char error[CONFIG_ERROR_BYTES] = "";
    char *words = malloc(size + 1);
    memcpy(words, data, size);
    words[size] = '\0';
    if (config_parse(words, &config, error)) {
        invariant(config.parallel >= 1 && config.parallel <= IPERF3_MAX_STREAMS);
        invariant(config.size_bytes <= 1u << 20 && config.interval_ns != 0);
    } else {
        invariant(error[0] != '\0' && memchr(error, '\0', sizeof error) != NULL);
    }
    free(words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    switch (data[0] % 3) {
    case 0:
        configure(data + 1, size - 1);
        break;
    case 1:
        feed(data + 1, size - 1, 1 + data[0] / 3u);
        break;
    default:
        parse((const char *)data + 1, size - 1, 1 + data[0] / 3u);
    }
    return 0;
}
