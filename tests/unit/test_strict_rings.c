/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver's rings on the strict device: every size, order, batch and pace, and enough laps that
 * each index wraps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/seams.h"
#include "tests/device/strict_case.h"

static void sizes(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 32768; size *= 2) {
        for (unsigned form = 0; form < 2; form++) {
            struct strict_options opt;
            strict_options_default(&opt);
            opt.queue_max_descs[0] = opt.queue_max_descs[1] = (uint16_t)size;
            if (form == 1 && size < 4) {
                continue; /* without indirect descriptors that is too small */
            }
            if (form == 1) {
                opt.offered &= ~(strict_bit(F_INDIRECT_DESC) | strict_bit(F_EVENT_IDX));
            }
            case_run(&opt, NULL, 400, 400);
        }
    }
}

/* A ring that cannot hold one frame and the reserve is refused, in words. */
static void too_small(void **state)
{
    (void)state;
    for (uint16_t size = 1; size <= 2; size++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered &= ~strict_bit(F_INDIRECT_DESC);
        opt.queue_max_descs[1] = size;
        case_init(&opt);
        assert_false(host_open(&host, NULL));
        assert_non_null(host.why);
        strict_device_expect_failed(&host.dev);
        case_end();
    }
}

static void orders_and_batches(void **state)
{
    (void)state;
    static const uint32_t batches[] = {1, 2, 7, 64, 0};
    for (unsigned order = STRICT_IN_ORDER; order <= STRICT_RANDOM; order++) {
        for (unsigned i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
            for (unsigned form = 0; form < 4; form++) {
                struct strict_options opt;
                strict_options_default(&opt);
                opt.order = (enum strict_order)order;
                opt.batch = batches[i];
                opt.queue_max_descs[0] = opt.queue_max_descs[1] = 64;
                opt.offered &= form & 1 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
                opt.offered &= form & 2 ? ~strict_bit(F_INDIRECT_DESC) : ~0ull;
                case_init(&opt);
                host.check_rx_order = order == STRICT_IN_ORDER;
                case_open(NULL);
                case_traffic(600, 600);
                case_end();
            }
        }
    }
}

static void paces(void **state)
{
    (void)state;
    for (unsigned pace = STRICT_IMMEDIATE; pace <= STRICT_ONLY_KICKED; pace++) {
        for (unsigned form = 0; form < 8; form++) {
            struct strict_options opt;
            strict_options_default(&opt);
            opt.pace = (enum strict_pace)pace;
            opt.queue_max_descs[0] = opt.queue_max_descs[1] = 32;
            opt.per_step = form & 1 ? 3 : 0;
            opt.slow = form & 2 ? 5 : 0;
            opt.offered &= form & 4 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
            case_run(&opt, NULL, 800, 800);
        }
    }
}

/* A device that polls asks for no kicks, and gets none but the first. */
static void polling_device(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 2; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.polls = true;
        opt.pace = STRICT_LAZY;
        opt.offered &= form == 1 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        case_traffic(2000, 2000);
        /* With the event index one comes with each lap of it. */
        for (unsigned queue = 0; queue < 2; queue++) {
            const struct strict_queue *q = &host.dev.queue[queue];
            assert_in_range(q->kicks - q->kicks_after_silence, 0, 2);
        }
        case_end();
    }
}

/* More than two laps of the 16-bit indices on rings that do and do not divide a batch. */
static void index_laps(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.queue_max_descs[0] = opt.queue_max_descs[1] = form & 1 ? 8 : 256;
        opt.offered &= form & 2 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        opt.mtu_bytes = 128;
        opt.offered &= ~(strict_bit(F_HOST_TSO4));
        opt.pace = form & 1 ? STRICT_IMMEDIATE : STRICT_LAZY;
        opt.order = STRICT_RANDOM;
        case_init(&opt);
        host.check_rx_order = false;
        case_open(NULL);
        case_traffic(140000, 70000);
        case_end();
    }
}

/* The device runs between any two accesses of the driver. */
static void device_between_accesses(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.seed = seed;
        opt.pace = seed % 2 ? STRICT_LAZY : STRICT_ONLY_KICKED;
        opt.per_step = 1 + seed % 4;
        opt.queue_max_descs[0] = opt.queue_max_descs[1] = seed % 3 ? 16 : 64;
        opt.offered &= seed & 4 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        opt.offered &= seed & 8 ? ~strict_bit(F_INDIRECT_DESC) : ~0ull;
        case_init(&opt);
        host.watch.eager = 1 + (uint32_t)(seed % 5);
        case_open(NULL);
        case_traffic(2000, 2000);
        case_end();
    }
}

/* A ring that fills stops, and wakes: no stop lasts longer than the device's own time. */
static void stop_and_wake(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.queue_max_descs[1] = 16;
        opt.per_step = 2;
        opt.pace = form & 1 ? STRICT_ONLY_KICKED : STRICT_LAZY;
        opt.offered &= form & 2 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        for (unsigned i = 0; i < 10; i++) {
            case_traffic(2000, 10);
        }
        assert_true(host.tx_wakes > 100);
        assert_true(host.longest_stop_ns < 100000000u);
        assert_int_equal(host.tx_again, 0);
        struct virtio_net_tx_stats tx;
        virtio_net_tx_stats(host.net, 0, &tx);
        assert_int_equal(tx.stops, tx.wakes);
        /* What a stop asked for is not missed in a later wait, when all has long come back. */
        assert_int_equal(tx.timer_reaps, 0);
        assert_int_equal(case_fault(VIRTIO_NET_FAULT_LOST_INTERRUPT), 0);
        case_end();
    }
}

/*
 * A stopped queue sleeps until the wake threshold is free and no longer: with chains of one length
 * the interrupt comes with the completion that frees it. And it does sleep: nothing spins.
 */
static void stopped_sleeps_until_wake(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 2; form++) {
        struct strict_options opt;
        struct virtio_net_tx_stats tx;
        strict_options_default(&opt);
        opt.queue_max_descs[1] = 1024;
        opt.offered &= ~(strict_bit(F_INDIRECT_DESC) | strict_bit(F_HOST_TSO4));
        opt.offered &= form == 1 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        opt.pace = STRICT_LAZY;
        opt.per_step = 1;
        case_init(&opt);
        case_open(NULL);
        while (!virtio_net_tx_stopped(host.net, 0)) {
            assert_int_equal(host_send(&host, 600, 2, false, false), VIRTIO_NET_OK);
        }
        virtio_net_tx_stats(host.net, 0, &tx);
        const uint32_t room = 1024 - 3 * host.tx_sequence;
        const uint32_t needed = (tx.wake_descs - room + 2) / 3;
        uint32_t done = 0, sleeps = 0;
        while (host.tx_wakes == 0 && done <= needed) {
            assert_true(virtio_net_arm(host.net, true));
            sleeps++;
            while (!virtio_net_irq_pending(host.net) && done <= needed) {
                strict_device_step(&host.dev, seam_now_ns());
                done++;
            }
            virtio_net_disarm(host.net);
            (void)virtio_net_tx_reclaim(host.net, 0, 1024);
        }
        assert_int_equal(host.tx_wakes, 1);
        assert_int_equal(done, needed);
        assert_true(form == 1 || sleeps <= 3);
        assert_true(host_settle(&host, 10000));
        case_end();
    }
}

/* A device slower than the driver by 10^6: a frame takes it 50 ms, a look at the clock 50 ns, and a
 * send has at most one. */
static void slow_device(void **state)
{
    const uint64_t frame_ns = 50000000, frames = 300;
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.queue_max_descs[1] = 16;
    opt.per_step = 1;
    opt.slow = 2500;
    opt.pace = STRICT_LAZY;
    case_init(&opt);
    case_open(NULL);
    const uint64_t start_ns = seam_now_ns();
    case_traffic(frames, 20);
    assert_true(seam_now_ns() - start_ns >= (frames - 1) * frame_ns);
    case_faultless();
    case_end();
}

/* The stack keeps every buffer: the ring runs dry, and refills when they come back. */
static void receive_ring_runs_dry(void **state)
{
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.queue_max_descs[0] = 16;
    case_init(&opt);
    case_open(NULL);
    host.hold_rx = true;
    for (unsigned i = 0; i < 200; i++) {
        host_receive(&host, 100);
    }
    for (unsigned i = 0; i < 400; i++) {
        host_turn(&host);
    }
    assert_true(host.rx_got < 200);
    host.hold_rx = false;
    while (host.n_held > 0) {
        virtio_net_rx_return(host.net, host.held[--host.n_held]);
    }
    assert_true(host_settle(&host, 10000));
    assert_int_equal(host.rx_got, 200);
    case_end();
}

/* Suppression words of the form that was not negotiated say nothing (2.7.10.1). */
static void unused_event_words(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 2; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered &= form == 0 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        case_init(&opt);
        host.dev.fault.scribble_unused_event = true;
        case_open(NULL);
        case_traffic(3000, 3000);
        assert_true(host.dev.faults_done > 0);
        case_end();
    }
}

/* At rest the pool is whole: every buffer posted, free, or in a packet handed up. */
static void pool_at_rest(void **state)
{
    struct virtio_net_rx_stats rx;
    (void)state;
    case_default();
    case_open(NULL);
    case_traffic(1000, 1000);
    virtio_net_rx_stats(host.net, 0, &rx);
    assert_int_equal(rx.pool_bufs, rx.pool_free + rx.posted);
    assert_int_equal(rx.posted, rx.size_descs);
    case_end();
}

/* What a run leaves behind: where time, the device's steps and its dice stand, and what moved. */
struct trail {
    uint64_t now_ns, steps, random, interrupts, kicks[2], tx_frames, rx_packets, checked;
};

static struct trail sleepy_run(unsigned form, bool every_step)
{
    struct strict_options opt;
    strict_options_default(&opt);
    opt.queue_max_descs[0] = opt.queue_max_descs[1] = 16;
    opt.offered &= form & 1 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
    opt.pace = form & 2 ? STRICT_ONLY_KICKED : STRICT_LAZY;
    opt.slow = form & 4 ? 3 : 0;
    opt.per_step = form & 8 ? 2 : 0;
    opt.order = form & 16 ? STRICT_RANDOM : STRICT_IN_ORDER;
    opt.polls = (form & 66) == 64;
    case_init(&opt);
    host.check_rx_order = (form & 16) == 0;
    host.every_step = every_step;
    case_open(NULL);
    host.dev.fault.lose_kicks = form & 32 ? 20 : 0;
    host.dev.fault.lose_interrupts = form & 64 ? 20 : 0;
    host.dev.fault.late_steps = form & 128 ? 7 : 0;
    case_traffic(100, form & 32 ? 0 : 100);
    host.rx_period_ns = form & 32 ? 0 : 7000000;
    for (unsigned i = 0; i < 20; i++) {
        host_turn(&host);
    }
    const struct trail trail = {
        .now_ns = seam_now_ns(),
        .steps = host.dev.steps,
        .random = host.dev.random,
        .interrupts = host.dev.interrupts,
        .kicks = {host.dev.queue[0].kicks, host.dev.queue[1].kicks},
        .tx_frames = host.dev.tx_frames,
        .rx_packets = host.dev.rx_packets,
        .checked = strict_report_checked(&host.dev.report),
    };
    host.rx_period_ns = 0;
    case_end();
    return trail;
}

/* A device that has nothing to do is not stepped while the driver sleeps. Nobody can tell. */
static void sleep_without_steps(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 256; form++) {
        const struct trail stepped = sleepy_run(form, true);
        const struct trail slept = sleepy_run(form, false);
        if (memcmp(&stepped, &slept, sizeof(stepped)) != 0) {
            fail_msg("form %#x: at %llu ns after %llu steps, or %llu ns after %llu", form,
                     (unsigned long long)stepped.now_ns, (unsigned long long)stepped.steps,
                     (unsigned long long)slept.now_ns, (unsigned long long)slept.steps);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(too_small),
        cmocka_unit_test(orders_and_batches),
        cmocka_unit_test(paces),
        cmocka_unit_test(polling_device),
        cmocka_unit_test(index_laps),
        cmocka_unit_test(device_between_accesses),
        cmocka_unit_test(stop_and_wake),
        cmocka_unit_test(stopped_sleeps_until_wake),
        cmocka_unit_test(slow_device),
        cmocka_unit_test(receive_ring_runs_dry),
        cmocka_unit_test(unused_event_words),
        cmocka_unit_test(pool_at_rest),
        cmocka_unit_test(sleep_without_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
