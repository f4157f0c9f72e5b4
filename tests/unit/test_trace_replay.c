/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Runs recorded in the guest under QEMU, judged by the rules of the protocol and replayed against
 * the driver as it is now. With files as arguments: judges and replays those.
 *
 *     tests/unit/data/NAME.trace -> trace_read -> trace_check, trace_replay
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/device/rig.h"
#include "tests/device/seams.h"
#include "tests/device/trace.h"

#define DATA "tests/unit/data/"

static const char usage[] =
    "usage: test_trace_replay [FILE...]\n"
    "FILE: what a run with trace=ring printed; it is judged and replayed, and exit code 0 says "
    "that\n"
    "it holds. Without a FILE: the tests themselves, from the root of the checkout.\n";

static char *file_text(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;

    if (file != NULL) {
        if (getdelim(&text, &capacity, '\0', file) < 0) {
            free(text);
            text = NULL;
        }
        (void)fclose(file);
    }
    return text;
}

static unsigned count(const struct trace *trace, enum ring_event_kind kind)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < trace->n; i++) {
        n += trace->events[i].kind == kind;
    }
    return n;
}

static bool holds(struct trace *trace, const char *path)
{
    char *text = file_text(path);
    bool ok = text != NULL && trace_read(trace, text) && trace_check(trace) && trace_replay(trace);

    free(text);
    printf("%s: %s\n", path, ok ? "holds and replays" : text == NULL ? "not read" : trace->error);
    return ok;
}

/* What the driver decided under QEMU it decides again. */
static void test_recorded_runs(void **state)
{
    static const char *const names[] = {"udp", "udp-bare", "tcp"};
    (void)state;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct trace trace = {0};
        char path[64];
        snprintf(path, sizeof(path), DATA "%s.trace", names[i]);
        assert_true(holds(&trace, path));
        assert_int_equal(trace.lost, 0);
        assert_true(count(&trace, RING_ARM) > 10);
        if (i < 2) {
            assert_true(count(&trace, RING_STOP) > 3);
        }
        trace_free(&trace);
    }
}

/* ---- traces that cannot be ---- */

static void load(struct trace *trace, const char *name)
{
    char *text = file_text(name);
    assert_non_null(text);
    assert_true(trace_read(trace, text));
    free(text);
}

/* Takes one event out, or changes its first number. Where a device might have said so, or a driver
 * done so, only the replay can tell; else the rules do. */
static void corrupt(struct trace *trace, uint32_t at, bool drop)
{
    struct ring_event kept = trace->events[at];
    size_t behind = (trace->n - at - 1) * sizeof(kept);
    bool by_rule = strchr(drop ? "RAPSW" : "RAPSWED", kept.kind) != NULL;

    if (drop) {
        memmove(&trace->events[at], &trace->events[at + 1], behind);
        trace->n--;
    } else {
        trace->events[at].a ^= 1;
    }
    bool judged = trace_check(trace);
    if (judged ? by_rule || trace_replay(trace) : false) {
        fail_msg("event %u, %c%u: %s and nobody saw it", at, kept.kind, kept.a,
                 drop ? "taken out" : "changed");
    }
    if (drop) {
        memmove(&trace->events[at + 1], &trace->events[at], behind);
        trace->n++;
    }
    trace->events[at] = kept;
}

static void test_corrupted(void **state)
{
    /* The calls whose loss shows only in what follows are left to the replay of whole runs. */
    static const char kinds[] = "URAPKEDSW";
    struct trace trace;

    (void)state;
    load(&trace, DATA "udp.trace");
    for (const char *kind = kinds; *kind != '\0'; kind++) {
        unsigned left = 12, seen = 0,
                 each = count(&trace, (enum ring_event_kind) * kind) / left + 1;
        for (uint32_t i = 0; i < trace.n; i++) {
            if (trace.events[i].kind == (uint8_t)*kind && trace.events[i].queue == 1 &&
                seen++ % each == 0 && seen != 1) {
                corrupt(&trace, i, false);
                corrupt(&trace, i, true);
            }
        }
        assert_true(seen > 2);
    }
    trace_free(&trace);
}

static void test_text(void **state)
{
    static const char head[] =
        "trace: version=1 events=2 lost=0 features=0x300000000 mtu=1500 datagram=1024 "
        "policy=threshold tx.size=256 tx.stop=17 tx.wake=136 rx.size=256\n";
    static const char *const bad[] = {"",
                                      "trace: i256\n",
                                      "trace: i256 +3 d0 a1\n",
                                      "trace: i256 q1\n",
                                      "trace: i256 +x d0\n",
                                      "trace: i256 d70000\n",
                                      "trace: i256 d1,2,3,4\n",
                                      "trace: i256 d\n"};
    struct trace trace;
    char text[512];

    (void)state;
    assert_false(trace_read(&trace, "no trace at all\n"));
    assert_false(trace_read(&trace, "trace: i256 d0\n"));
    trace_free(&trace);
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), "%s%s", head, bad[i]);
        assert_false(trace_read(&trace, text));
        trace_free(&trace);
    }
    snprintf(text, sizeof(text), "  %s other words\n  trace: i256 +100007 d0,5,9\r\n", head);
    assert_true(trace_read(&trace, text));
    assert_int_equal(trace.events[1].at_us, 100007);
    assert_int_equal(trace.events[1].b, 9);
    trace_free(&trace);
}

/* ---- what QEMU does not do ---- */

/* As a guest does it, against a device that completes in any order, some now and some later. */
static void busy_run(struct rig *rig)
{
    unsigned random = 1;

    for (unsigned pass = 0; pass < 2000; pass++) {
        random = random * 1664525u + 1013904223u;
        for (unsigned i = 0; i < (random >> 28) && !virtio_net_tx_stopped(rig->dev, 0); i++) {
            (void)rig_send(rig, (uint16_t)(1 + ((random >> i) & 1)), (random & 0x100) != 0);
        }
        virtio_net_tx_flush(rig->dev, 0);
        model_take(&rig->device, MODEL_TX);
        model_complete(&rig->device, random >> 16 & 15);
        if ((random & 0x600) == 0 && virtio_net_arm(rig->dev, (random & 0x800) != 0)) {
            model_complete(&rig->device, random >> 12 & 7);
            virtio_net_disarm(rig->dev);
        }
        (void)model_receive(&rig->device, (struct virtio_net_hdr){0}, rig->rx_copy,
                            60 + (random >> 8 & 4095));
        virtio_net_rx_poll(rig->dev, 0, 64);
        virtio_net_tx_reclaim(rig->dev, 0, 1 + (random & 31));
    }
    virtio_net_tx_flush(rig->dev, 0);
    model_serve(&rig->device);
    virtio_net_tx_reclaim(rig->dev, 0, 1000);
}

/* The trace as the guest prints it. The caller frees. */
static char *printed(const struct rig *rig)
{
    const struct virtio_net_info *info = virtio_net_info(rig->dev);
    const struct ring_trace *trace = rig->config.trace;
    struct virtio_net_tx_stats tx = rig_tx(rig);
    char line[RING_TRACE_LINE_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    uint32_t cursor = 0;
    FILE *out = open_memstream(&text, &bytes);

    assert_non_null(out);
    fprintf(out,
            "trace: version=1 events=%u lost=0 features=0x%llx mtu=%u datagram=%u "
            "policy=threshold tx.size=%u tx.stop=%u tx.wake=%u rx.size=%u\n",
            trace->n, (unsigned long long)info->features_accepted, info->mtu_bytes,
            info->max_datagram_bytes, tx.size_descs, tx.stop_descs, tx.wake_descs,
            rig_rx(rig).size_descs);
    while (ring_trace_line(trace, &cursor, line)) {
        fprintf(out, "trace:%s\n", line);
    }
    assert_int_equal(fclose(out), 0);
    return text;
}

/* Formats that the recordings have not, and completion out of order: recorded here. */
static void test_own_runs(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 8; bits++) {
        struct rig *rig = rig_new();
        struct trace trace;
        rig->config.refuse.event_idx = (bits & 1) != 0;
        rig->config.refuse.indirect = (bits & 2) != 0;
        rig->config.refuse.mrg_rxbuf = rig->config.refuse.guest_tso = (bits & 4) != 0;
        rig->opt.order = MODEL_RANDOM;
        model_init(&rig->device, &rig->opt);
        rig->config.trace = ring_trace_new(1u << 17);
        rig->dev = virtio_net_open_transport(&rig->device.base, &rig->config, &rig->why);
        assert_non_null(rig->dev);
        busy_run(rig);
        assert_true(rig_at_rest(rig));
        assert_int_equal(rig->config.trace->lost, 0);
        char *text = printed(rig);
        /* What is read is what happened, to the microsecond. */
        assert_true(trace_read(&trace, text));
        assert_int_equal(trace.n, rig->config.trace->n);
        assert_memory_equal(trace.events, rig->config.trace->events,
                            trace.n * sizeof(struct ring_event));
        rig_free(rig);
        if (!trace_check(&trace) || !trace_replay(&trace)) {
            fail_msg("variant %u: %s", bits, trace.error);
        }
        assert_true(count(&trace, RING_STOP) > 10);
        trace_free(&trace);
        free(text);
    }
}

/* Once full, always full: an idle call that takes the place of another makes no room again. */
static void test_full(void **state)
{
    struct ring_trace *trace = ring_trace_new(4);

    (void)state;
    for (unsigned i = 1; i <= 3; i++) {
        ring_trace_add(trace, RING_PUBLISH, 1, i, 0, 0);
    }
    ring_trace_add(trace, RING_CALL_POLL, 1, 64, 0, 0);
    ring_trace_add(trace, RING_CALL_ARM, 1, 1, 0, 0);
    assert_int_equal(trace->n, 4);
    assert_int_equal(trace->events[3].kind, RING_CALL_ARM);
    assert_int_equal(trace->lost, 0);
    for (unsigned i = 4; i <= 9; i++) {
        ring_trace_add(trace, i % 2 == 0 ? RING_PUBLISH : RING_CALL_POLL, 1, i, 0, 0);
    }
    assert_int_equal(trace->n, 4);
    assert_int_equal(trace->events[3].kind, RING_CALL_ARM);
    assert_int_equal(trace->lost, 6);
    seam_reset();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_runs), cmocka_unit_test(test_corrupted),
        cmocka_unit_test(test_text),          cmocka_unit_test(test_own_runs),
        cmocka_unit_test(test_full),
    };
    int code = 0;

    if (argc > 1 && argv[1][0] == '-') {
        bool asked = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
        (void)fprintf(asked ? stdout : stderr, "%s", usage);
        return asked ? 0 : 2;
    }
    for (int i = 1; i < argc; i++) {
        struct trace trace = {0};
        code |= !holds(&trace, argv[i]);
        trace_free(&trace);
    }
    return argc > 1 ? code : cmocka_run_group_tests(tests, NULL, NULL);
}
