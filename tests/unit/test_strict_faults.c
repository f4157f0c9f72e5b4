/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Hostile and broken devices: for each act the driver counts it under its own name, touches no
 * memory that is not its own (the sanitizers watch), and recovers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/device/seams.h"
#include "tests/device/strict_case.h"

#define SAFETY_PERIOD_NS 100000000ull

static void open_small(void)
{
    struct strict_options opt;
    strict_options_default(&opt);
    opt.queue_max_descs[0] = opt.queue_max_descs[1] = 32;
    case_init(&opt);
    host.check_rx_order = false;
    case_open(NULL);
}

/* Traffic of which some may be lost: what was sent comes back one way or the other, the device
 * is clean afterwards, and traffic flows once the acts end. */
static void survive(uint32_t n_tx, uint32_t n_rx)
{
    (void)host_traffic(&host, n_tx, n_rx);
    assert_true(host.dev.faults_done > 0);
    host.dev.fault = (struct strict_faults){0};
    assert_true(host_settle(&host, 100000));
    assert_int_equal(host.tx_sequence, host.tx_done + host.tx_aborted);
    assert_int_equal(host.rx_wrong, 0);
    const uint32_t before_rx = host.rx_got, before_tx = host.tx_done;
    const uint32_t sent_rx = host.rx_sent;
    assert_true(host_traffic(&host, 300, 300));
    assert_int_equal(host.rx_got - before_rx, host.rx_sent - sent_rx);
    assert_int_equal(host.tx_done - before_tx, 300);
}

static void used_id_out_of_range(void **state)
{
    (void)state;
    open_small();
    host.dev.fault.used_id_range = 400;
    survive(2000, 2000);
    assert_true(case_fault(VIRTIO_NET_FAULT_USED_ID_RANGE) > 0);
    assert_true(host.tx_aborted > 0);
    case_end();
}

static void used_id_not_in_flight(void **state)
{
    (void)state;
    open_small();
    host.dev.fault.used_id_idle = 400;
    host.dev.opt.per_step = 4; /* so that some are idle */
    survive(2000, 2000);
    assert_true(case_fault(VIRTIO_NET_FAULT_USED_ID_NOT_IN_FLIGHT) > 0);
    case_end();
}

static void used_twice(void **state)
{
    (void)state;
    open_small();
    host.dev.fault.used_twice = 400;
    survive(2000, 2000);
    assert_true(case_fault(VIRTIO_NET_FAULT_USED_ID_NOT_IN_FLIGHT) +
                    case_fault(VIRTIO_NET_FAULT_USED_IDX_JUMP) >
                0);
    case_end();
}

static void used_index_jumps(void **state)
{
    (void)state;
    open_small();
    host.dev.fault.idx_jump = 400;
    survive(2000, 2000);
    assert_true(case_fault(VIRTIO_NET_FAULT_USED_IDX_JUMP) > 0);
    case_end();
}

/* A ring that is broken each time is given up after a bounded number of resets, and says so. */
static void hopeless_device(void **state)
{
    (void)state;
    open_small();
    host.dev.fault.used_id_range = 1;
    (void)host_traffic(&host, 40, 40);
    for (unsigned i = 0; i < 1000; i++) {
        host_turn(&host);
    }
    assert_true(host.dev.resets < 100);
    assert_int_equal(host.tx_sequence, host.tx_done + host.tx_aborted);
    case_end();
}

static void receive_lengths(void **state)
{
    struct virtio_net_rx_stats rx;
    (void)state;
    open_small();
    host.dev.fault.rx_len_short = 7;
    host.dev.fault.rx_len_long = 11;
    survive(200, 2000);
    virtio_net_rx_stats(host.net, 0, &rx);
    assert_true(rx.drops[VIRTIO_NET_RX_DROP_SHORT] > 0);
    assert_true(rx.drops[VIRTIO_NET_RX_DROP_LONG] > 0);
    assert_true(case_fault(VIRTIO_NET_FAULT_USED_LEN) > 0);
    assert_int_equal(host.rx_sent, host.rx_got + rx.drops[VIRTIO_NET_RX_DROP_SHORT] +
                                       rx.drops[VIRTIO_NET_RX_DROP_LONG]);
    case_end();
}

static void impossible_num_buffers(void **state)
{
    static const uint16_t values[] = {0, 33, 65, 1000, 65535};
    (void)state;
    for (unsigned i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct virtio_net_rx_stats rx;
        open_small();
        host.dev.fault.num_buffers = 9;
        host.dev.fault.num_buffers_value = values[i];
        survive(100, 1000);
        virtio_net_rx_stats(host.net, 0, &rx);
        assert_true(rx.drops[VIRTIO_NET_RX_DROP_NUM_BUFFERS] > 50);
        assert_int_equal(case_fault(VIRTIO_NET_FAULT_NUM_BUFFERS),
                         rx.drops[VIRTIO_NET_RX_DROP_NUM_BUFFERS]);
        assert_int_equal(host.rx_sent, host.rx_got + rx.drops[VIRTIO_NET_RX_DROP_NUM_BUFFERS]);
        case_end();
    }
}

/* A count that swallows the packets after it: they are lost with it, and nothing else is. */
static void wrong_num_buffers(void **state)
{
    struct virtio_net_rx_stats rx;
    (void)state;
    open_small();
    host.dev.fault.num_buffers = 50;
    host.dev.fault.num_buffers_value = 3;
    (void)host_traffic(&host, 100, 1000);
    host.dev.fault = (struct strict_faults){0};
    for (unsigned i = 0; i < 4; i++) {
        host_receive(&host, 100);
    }
    assert_true(host_settle(&host, 10000));
    virtio_net_rx_stats(host.net, 0, &rx);
    assert_true(host.rx_got > 800);
    assert_int_equal(rx.pool_bufs, rx.pool_free + rx.posted);
    host.rx_wrong = 0; /* what was glued together is not what was sent */
    case_end();
}

/* Each word that the driver reads once is another when it reads again. */
static void words_change_between_reads(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.seed = seed;
        opt.offered &= seed % 2 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        opt.queue_max_descs[0] = opt.queue_max_descs[1] = 32;
        case_init(&opt);
        case_open(NULL);
        host.dev.fault.reread = true;
        case_traffic(1000, 1000);
        assert_true(host.dev.faults_done > 1000);
        for (unsigned i = 0; i < VIRTIO_NET_FAULT_LOST_INTERRUPT; i++) {
            assert_int_equal(virtio_net_device_faults(host.net)[i], 0);
        }
        host.dev.fault.reread = false;
        case_end();
    }
}

static void needs_reset(void **state)
{
    (void)state;
    open_small();
    for (unsigned i = 0; i < 5; i++) {
        assert_true(host_traffic(&host, 50, 50));
        /* With requests in flight that will never be completed. */
        for (unsigned k = 0; k < 5; k++) {
            (void)host_send(&host, 100, 1, true, false);
        }
        host.dev.fault.needs_reset = true;
        virtio_net_tx_flush(host.net, 0);
        assert_true(host_settle(&host, 10000));
    }
    assert_int_equal(case_fault(VIRTIO_NET_FAULT_NEEDS_RESET), 5);
    assert_int_equal(host.tx_sequence, host.tx_done + host.tx_aborted);
    assert_in_range(host.dev.resets, 6, 11);
    assert_true(host_traffic(&host, 50, 50));
    case_end();
}

/* The reset that mends never ends: given up, everything given back, one line to the user. */
static void reset_never_ends(void **state)
{
    (void)state;
    open_small();
    assert_true(host_traffic(&host, 50, 50));
    (void)host_send(&host, 100, 1, true, false);
    virtio_net_tx_flush(host.net, 0);
    host.dev.fault.reset_never = true;
    host.dev.fault.needs_reset = true;
    host.dev.report.loud = false;
    for (unsigned i = 0; i < 50; i++) {
        host_turn(&host);
    }
    assert_int_equal(host.tx_sequence, host.tx_done + host.tx_aborted);
    assert_false(host.link_up);
    assert_int_equal(host_send(&host, 100, 1, true, false), VIRTIO_NET_FATAL);
    /* There was no reset to wait for, so what is withdrawn is still known to the device. */
    host.dev.report.violations -= host.dev.report.violated[CORE_DRV_CLN_02];
    case_end();
}

static void long_reset(void **state)
{
    (void)state;
    open_small();
    host.dev.fault.reset_reads = 300;
    host.dev.fault.used_id_range = 500;
    survive(2000, 100);
    case_end();
}

/* 1 in so many interrupts is lost: nothing stalls for longer than the safety timer's period. Each
 * that only the timer made up for is counted, also when a stop asks for the next one at once. */
static void interrupts_lost(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 2; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.queue_max_descs[0] = opt.queue_max_descs[1] = 16;
        opt.slow = 3;
        opt.pace = STRICT_ONLY_KICKED;
        opt.offered &= form == 1 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        host.dev.fault.lose_interrupts = 20;
        case_traffic(20000, 0);
        assert_true(host_settle(&host, 1000)); /* or the last of them may still be late */
        assert_true(host.interrupts_mended > 30);
        assert_int_equal(case_fault(VIRTIO_NET_FAULT_LOST_INTERRUPT), host.interrupts_mended);
        assert_true(host.longest_stop_ns <= SAFETY_PERIOD_NS / 2 + 2000000u);
        assert_int_equal(case_fault(VIRTIO_NET_FAULT_LOST_KICK), 0);
        case_end();
    }
}

static void kicks_lost(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 2; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.queue_max_descs[0] = opt.queue_max_descs[1] = 16;
        opt.pace = STRICT_ONLY_KICKED;
        opt.offered &= form == 1 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        host.dev.fault.lose_kicks = 50;
        case_traffic(20000, 20000);
        assert_true(host.kicks_mended[1] > 5);
        /* A receive queue without an event does not say that it sleeps. */
        assert_int_equal(case_fault(VIRTIO_NET_FAULT_LOST_KICK),
                         host.kicks_mended[1] + (form == 0 ? host.kicks_mended[0] : 0));
        assert_true(host.longest_stop_ns <= SAFETY_PERIOD_NS + 2000000u);
        assert_int_equal(case_fault(VIRTIO_NET_FAULT_LOST_INTERRUPT), 0);
        case_end();
    }
}

/*
 * One lost kick while frames wake the driver more often than its safety timer runs, and while it
 * wakes by itself for want of a vector: neither puts the mending off.
 */
static void lost_kick_beside_wakes(unsigned vectors, uint64_t rx_period_ns)
{
    struct strict_options opt;
    strict_options_default(&opt);
    opt.pace = STRICT_ONLY_KICKED;
    opt.vectors = (uint16_t)vectors;
    case_init(&opt);
    case_open(NULL);
    case_traffic(100, 100);
    /* The timer has just run, so its next look is a whole period away. */
    seam_advance_ns(SAFETY_PERIOD_NS);
    (void)virtio_net_poll(host.net, seam_now_ns());
    host.dev.fault.lose_kicks = 1;
    (void)host_send(&host, 100, 1, true, false);
    virtio_net_tx_flush(host.net, 0);
    host.dev.fault.lose_kicks = 0;
    host.rx_period_ns = rx_period_ns;
    const uint64_t start = seam_now_ns();
    while (virtio_net_tx_in_flight(host.net, 0) > 0 &&
           seam_now_ns() - start < 10 * SAFETY_PERIOD_NS) {
        host_turn(&host);
    }
    assert_int_equal(virtio_net_tx_in_flight(host.net, 0), 0);
    assert_true(seam_now_ns() - start < SAFETY_PERIOD_NS + 2000000u);
    host.rx_period_ns = 0;
    assert_true(host_settle(&host, 1000));
    case_end();
}

static void lost_kick_beside_traffic(void **state)
{
    (void)state;
    lost_kick_beside_wakes(3, 20000000);
}

static void lost_kick_without_vectors(void **state)
{
    (void)state;
    lost_kick_beside_wakes(0, 0);
}

static void interrupts_of_all_kinds(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 16; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.queue_max_descs[0] = opt.queue_max_descs[1] = 32;
        opt.pace = form & 8 ? STRICT_LAZY : STRICT_IMMEDIATE;
        opt.offered &= form & 4 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        host.dev.fault.spurious_interrupts = form & 1 ? 2 : 0;
        host.dev.fault.double_interrupts = form & 2 ? 2 : 0;
        host.dev.fault.late_steps = form & 1 ? 0 : 5;
        host.dev.fault.early_interrupts = form & 2 ? 0 : 3;
        case_traffic(1500, 1500);
        assert_true(host.dev.faults_done > 0);
        case_end();
    }
}

/* Spurious interrupts with empty rings do no work and do not end the sleep for good. */
static void interrupt_storm(void **state)
{
    struct virtio_net_rx_stats rx;
    (void)state;
    case_default();
    case_open(NULL);
    assert_true(host_settle(&host, 1000));
    for (unsigned i = 0; i < 1000; i++) {
        assert_true(virtio_net_arm(host.net, false));
        strict_device_raise_spurious(&host.dev, i % 2);
        assert_true(virtio_net_irq_pending(host.net));
        virtio_net_disarm(host.net);
        (void)virtio_net_poll(host.net, seam_now_ns());
        assert_int_equal(virtio_net_rx_poll(host.net, 0, 64), 0);
        assert_int_equal(virtio_net_tx_reclaim(host.net, 0, 64), 0);
    }
    virtio_net_rx_stats(host.net, 0, &rx);
    assert_true(rx.spurious_interrupts >= 400);
    case_traffic(100, 100);
    case_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(used_id_out_of_range),
        cmocka_unit_test(used_id_not_in_flight),
        cmocka_unit_test(used_twice),
        cmocka_unit_test(used_index_jumps),
        cmocka_unit_test(hopeless_device),
        cmocka_unit_test(receive_lengths),
        cmocka_unit_test(impossible_num_buffers),
        cmocka_unit_test(wrong_num_buffers),
        cmocka_unit_test(words_change_between_reads),
        cmocka_unit_test(needs_reset),
        cmocka_unit_test(reset_never_ends),
        cmocka_unit_test(long_reset),
        cmocka_unit_test(interrupts_lost),
        cmocka_unit_test(kicks_lost),
        cmocka_unit_test(lost_kick_beside_traffic),
        cmocka_unit_test(lost_kick_without_vectors),
        cmocka_unit_test(interrupts_of_all_kinds),
        cmocka_unit_test(interrupt_storm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
