/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A device that breaks its side: each act is counted under its name, the ring is made anew, traffic
 * goes on; lost interrupts and kicks cost the safety timer's period and no more; and a device that
 * is beyond mending is given up, with everything returned.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "boot/clock.h"
#include "tests/device/rig.h"
#include "tests/device/seams.h"

#define PAIR      0u
#define PERIOD_NS 100000000ull
#define LATE_NS   5000000ull

static const struct virtio_net_hdr plain = {0};
static uint8_t frame[60];

static bool poll_now(struct rig *rig)
{
    return virtio_net_poll(rig->dev, clock_now_ns());
}

/* Frames both ways, as after a fresh start. */
static void expect_traffic(struct rig *rig)
{
    uint64_t done = rig->done;
    uint64_t packets = rig->rx_packets;

    for (unsigned i = 0; i < 200; i++) {
        if (virtio_net_tx_stopped(rig->dev, PAIR)) {
            fail_msg("stopped");
        }
        assert_int_equal(rig_send(rig, 2, true), VIRTIO_NET_OK);
        virtio_net_tx_flush(rig->dev, PAIR);
        model_serve(&rig->device);
        virtio_net_tx_reclaim(rig->dev, PAIR, 64);
        assert_true(model_receive(&rig->device, plain, frame, sizeof(frame)));
        assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
    }
    assert_int_equal(rig->done, done + 200);
    assert_int_equal(rig->rx_packets, packets + 200);
    assert_true(rig_at_rest(rig));
}

/* Fills the queue to its stop, lets the device answer nonsense on the queue, and mends. */
static void ring_fault(unsigned queue, uint32_t id, unsigned entries,
                       enum virtio_net_device_fault fault)
{
    struct rig *rig = rig_new();

    assert_true(rig_open(rig));
    while (!virtio_net_tx_stopped(rig->dev, PAIR)) {
        assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
    }
    uint64_t sent = rig_tx(rig).submitted;
    for (unsigned i = 0; i < entries; i++) {
        model_use_raw(&rig->device, queue, id, 0);
    }
    model_publish(&rig->device, queue);
    virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
    virtio_net_rx_poll(rig->dev, PAIR, 1000);
    assert_int_equal(rig_fault(rig, fault), 1);
    assert_false(virtio_net_arm(rig->dev, true)); /* no sleep before it is mended */
    uint64_t resets = rig->device.resets;
    assert_true(poll_now(rig));
    assert_true(rig->device.resets > resets);
    assert_int_equal(rig_tx(rig).aborted + rig_tx(rig).completed, sent);
    assert_int_equal(rig->wakes, 1);
    assert_int_equal(rig_fault(rig, fault), 1);
    expect_traffic(rig);
    rig_free(rig);
}

/* Field case 17: ids that are none or not in flight, on either queue: counted, reset, and on. */
static void test_ring_faults(void **state)
{
    (void)state;
    for (unsigned queue = 0; queue < 2; queue++) {
        ring_fault(queue, 64, 1, VIRTIO_NET_FAULT_USED_ID_RANGE);
        ring_fault(queue, 0xffffffff, 1, VIRTIO_NET_FAULT_USED_ID_RANGE);
        ring_fault(queue, 3, 2, VIRTIO_NET_FAULT_USED_ID_NOT_IN_FLIGHT);
        ring_fault(queue, 3, 65, VIRTIO_NET_FAULT_USED_IDX_JUMP);
        ring_fault(queue, 3, 60000, VIRTIO_NET_FAULT_USED_IDX_JUMP);
    }
}

/* A fault policy's held frame comes back too. */
static void test_reset_returns_the_held_frame(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    rig->config.policy = VIRTIO_NET_POLICY_WAKE_ON_ONE;
    rig->config.refuse.indirect = true;
    assert_true(rig_open(rig));
    while (rig_tx(rig).held == 0) {
        rig_send_tso(rig, VIRTIO_NET_TX_MAX_PIECES);
        if (virtio_net_tx_stopped(rig->dev, PAIR) && rig_tx(rig).held == 0) {
            virtio_net_tx_flush(rig->dev, PAIR);
            model_take(&rig->device, MODEL_TX);
            rig->dev->tx.stopped = false; /* as if one small frame had come back */
            rig->dev->tx.stats.wakes++;
            rig->wakes++;
        }
    }
    model_needs_reset(&rig->device);
    assert_true(poll_now(rig));
    assert_int_equal(rig_tx(rig).held, 0);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* 2.1.2: the device says that it is broken; what it had comes back, it starts again. */
static void test_needs_reset(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    assert_true(rig_open(rig));
    for (unsigned round = 1; round <= 30; round++) {
        for (unsigned i = 0; i < 5; i++) {
            rig_send(rig, 1, true);
        }
        virtio_net_tx_flush(rig->dev, PAIR);
        model_needs_reset(&rig->device);
        assert_false(virtio_net_arm(rig->dev, true));
        assert_true(poll_now(rig));
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_NEEDS_RESET), round);
        assert_int_equal(rig_tx(rig).aborted, 5 * round);
        expect_traffic(rig);
    }
    rig_free(rig);
}

static void expect_dead(struct rig *rig)
{
    assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_FATAL);
    assert_int_equal(rig->links, 1);
    assert_false(rig->link_up);
    assert_false(virtio_net_tx_stopped(rig->dev, PAIR)); /* nobody waits for it */
    assert_int_equal(virtio_net_next_deadline_ns(rig->dev, clock_now_ns()), UINT64_MAX);
    assert_true(virtio_net_arm(rig->dev, true));
    assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 10), 0);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* Broken again each time without one completion between: given up after a bound. */
static void test_fruitless_resets_end(void **state)
{
    struct rig *rig = rig_new();
    unsigned n = 0;

    (void)state;
    assert_true(rig_open(rig));
    while (!rig->dev->dead) {
        rig_send(rig, 1, true);
        virtio_net_tx_flush(rig->dev, PAIR);
        model_needs_reset(&rig->device);
        poll_now(rig);
        assert_true(n++ < 100);
    }
    expect_dead(rig);
}

/* A reset that never ends, and one after which the device offers less. */
static void test_restart_refused(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct rig *rig = rig_new();
        assert_true(rig_open(rig));
        while (!virtio_net_tx_stopped(rig->dev, PAIR)) {
            rig_send(rig, 1, true);
        }
        model_needs_reset(&rig->device);
        rig->device.opt.reset_never = i == 0;
        rig->device.opt.features &= i == 1 ? FEATURE(VIRTIO_F_VERSION_1) : UINT64_MAX;
        rig->device.opt.refuse_queue = i == 2;
        poll_now(rig);
        assert_true(rig->dev->dead);
        assert_true(rig->aborted > 0);
        assert_int_equal(rig->taken_alive, 0);
        assert_int_equal(rig->wakes, 1);
        expect_dead(rig);
    }
}

/* ---- link and configuration ---- */

static void test_link(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    assert_true(rig_open(rig));
    assert_true(virtio_net_info(rig->dev)->link_up);
    assert_false(poll_now(rig));
    model_set_link(&rig->device, false);
    assert_true(virtio_net_irq_pending(rig->dev));
    assert_true(poll_now(rig));
    assert_int_equal(rig->links, 1);
    assert_false(rig->link_up);
    model_set_link(&rig->device, true);
    assert_false(virtio_net_arm(rig->dev, false)); /* not over a change that nobody read */
    assert_true(poll_now(rig));
    assert_true(rig->link_up);
    assert_true(virtio_net_info(rig->dev)->link_up);
    rig->device.lines[0].count++; /* an announcement of nothing */
    poll_now(rig);
    assert_int_equal(rig->links, 2);
    expect_traffic(rig);
    rig_free(rig);
    rig = rig_new();
    rig->opt.link_up = false;
    assert_true(rig_open(rig));
    assert_false(virtio_net_info(rig->dev)->link_up);
    rig_free(rig);
}

/* ---- the safety timer ---- */

/* Sleeps as the poll loop does, to the deadline. */
static void sleep_to_deadline(struct rig *rig)
{
    uint64_t deadline = virtio_net_next_deadline_ns(rig->dev, clock_now_ns());
    assert_in_range(deadline, seam_now_ns(), seam_now_ns() + PERIOD_NS);
    seam_advance_ns(deadline - seam_now_ns());
    virtio_net_disarm(rig->dev);
    virtio_net_rx_poll(rig->dev, PAIR, 64);
    virtio_net_tx_reclaim(rig->dev, PAIR, 64);
    poll_now(rig);
}

static void test_lost_interrupt(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        struct rig *rig = rig_new();
        rig->config.refuse.event_idx = event_idx == 0;
        assert_true(rig_open(rig));
        rig_send(rig, 1, true);
        assert_true(virtio_net_arm(rig->dev, true));
        rig->device.drop_interrupts = true;
        model_serve(&rig->device);
        rig->device.drop_interrupts = false;
        assert_false(virtio_net_irq_pending(rig->dev));
        sleep_to_deadline(rig);
        assert_int_equal(rig->done, 1);
        assert_true(virtio_net_arm(rig->dev, false));
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_INTERRUPT), 0); /* it may be late */
        seam_advance_ns(LATE_NS);
        assert_true(virtio_net_arm(rig->dev, false));
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_INTERRUPT), 1);
        assert_int_equal(rig_tx(rig).timer_reaps, 1);
        /* The same for a packet received. */
        rig->device.drop_interrupts = true;
        assert_true(model_receive(&rig->device, plain, frame, sizeof(frame)));
        rig->device.drop_interrupts = false;
        sleep_to_deadline(rig);
        assert_int_equal(rig->rx_packets, 1);
        seam_advance_ns(LATE_NS);
        assert_true(virtio_net_arm(rig->dev, false));
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_INTERRUPT), 2);
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_KICK), 0);
        virtio_net_disarm(rig->dev);
        expect_traffic(rig);
        rig_free(rig);
    }
}

/* An interrupt that arrives just after the timer looked was late, not lost. */
static void test_late_interrupt_is_not_lost(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    assert_true(rig_open(rig));
    rig_send(rig, 1, true);
    assert_true(virtio_net_arm(rig->dev, true));
    rig->device.drop_interrupts = true;
    model_serve(&rig->device);
    rig->device.drop_interrupts = false;
    sleep_to_deadline(rig);
    assert_true(virtio_net_arm(rig->dev, false));
    rig->device.lines[2].count++;
    seam_advance_ns(LATE_NS);
    assert_true(virtio_net_arm(rig->dev, false));
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_INTERRUPT), 0);
    assert_int_equal(rig_tx(rig).timer_reaps, 0);
    rig_free(rig);
}

/* Traffic goes on at once after the lost one: the next interrupt, which has its own completion to
 * show, does not stand for the missing one. */
static void test_lost_interrupt_amid_traffic(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    assert_true(rig_open(rig));
    for (unsigned round = 1; round <= 20; round++) {
        rig_send(rig, 1, true);
        assert_true(virtio_net_arm(rig->dev, true));
        rig->device.drop_interrupts = true;
        model_serve(&rig->device);
        rig->device.drop_interrupts = false;
        sleep_to_deadline(rig);
        for (unsigned i = 0; i < 5; i++) {
            rig_send(rig, 1, true);
            assert_true(virtio_net_arm(rig->dev, true));
            model_serve(&rig->device);
            assert_true(virtio_net_irq_pending(rig->dev));
            virtio_net_disarm(rig->dev);
            virtio_net_tx_reclaim(rig->dev, PAIR, 64);
        }
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_INTERRUPT), round);
        assert_int_equal(rig_tx(rig).timer_reaps, round);
    }
    rig_free(rig);
}

/* Whoever wakes early for another reason and finds something done has lost nothing: the interrupt
 * may be on its way. */
static void test_early_wake_suspects_nobody(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    assert_true(rig_open(rig));
    rig_send(rig, 1, true);
    assert_true(virtio_net_arm(rig->dev, true));
    rig->device.drop_interrupts = true;
    model_serve(&rig->device);
    rig->device.drop_interrupts = false;
    seam_advance_ns(PERIOD_NS / 2);
    virtio_net_disarm(rig->dev);
    virtio_net_tx_reclaim(rig->dev, PAIR, 64);
    assert_true(virtio_net_arm(rig->dev, false));
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_INTERRUPT), 0);
    rig_free(rig);
}

/* The device sleeps until it is kicked, and the kick got lost: given again, counted, once. Field
 * case 8: that is also how a kick looks that the device's own missing barrier lost. */
static void test_lost_kick(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        struct rig *rig = rig_new();
        rig->config.refuse.event_idx = event_idx == 0;
        rig->opt.serve = true;
        assert_true(rig_open(rig));
        rig->device.drop_kicks = true;
        rig_send(rig, 1, true);
        virtio_net_tx_flush(rig->dev, PAIR);
        rig->device.drop_kicks = false;
        for (unsigned i = 0; i < 4 && rig->done == 0; i++) {
            assert_true(virtio_net_arm(rig->dev, true));
            sleep_to_deadline(rig);
            virtio_net_tx_reclaim(rig->dev, PAIR, 64);
        }
        assert_int_equal(rig->done, 1);
        assert_true(seam_now_ns() < 3 * PERIOD_NS);
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_KICK), 1);
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_INTERRUPT), 0);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* The same while the driver is woken far more often than the timer runs: by received frames, by
 * other timers. Waking puts nothing off. */
static void test_lost_kick_beside_traffic(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    rig->opt.serve = true;
    assert_true(rig_open(rig));
    rig->device.drop_kicks = true;
    rig_send(rig, 1, true);
    virtio_net_tx_flush(rig->dev, PAIR);
    rig->device.drop_kicks = false;
    uint64_t end_ns = seam_now_ns() + 3 * PERIOD_NS;
    while (rig->done == 0 && seam_now_ns() < end_ns) {
        (void)virtio_net_arm(rig->dev, true);
        seam_advance_ns(PERIOD_NS / 50);
        assert_true(model_receive(&rig->device, plain, frame, sizeof(frame)));
        virtio_net_disarm(rig->dev);
        virtio_net_rx_poll(rig->dev, PAIR, 64);
        virtio_net_tx_reclaim(rig->dev, PAIR, 64);
        poll_now(rig);
    }
    assert_int_equal(rig->done, 1);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_KICK), 1);
    rig_free(rig);
}

/* A receive queue that nobody sends to is kicked again, and the first frame comes just then.
 * Nothing was lost: not at the start, nor on a ring that has been in use. */
static void test_silence_is_no_lost_kick(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        struct rig *rig = rig_new();
        rig->config.refuse.event_idx = (form & 1) == 0;
        assert_true(rig_open(rig));
        if (form & 2) {
            expect_traffic(rig);
        }
        const uint64_t kicks = rig->device.q[MODEL_RX].kicks;
        const uint64_t received = rig->rx_packets;
        for (unsigned i = 0; i < 4 && rig->device.q[MODEL_RX].kicks == kicks; i++) {
            assert_true(virtio_net_arm(rig->dev, false));
            sleep_to_deadline(rig);
        }
        assert_true(form == 3 || rig->device.q[MODEL_RX].kicks == kicks + 1);
        assert_true(model_receive(&rig->device, plain, frame, sizeof(frame)));
        virtio_net_rx_poll(rig->dev, PAIR, 64);
        assert_int_equal(rig->rx_packets, received + 1);
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_KICK), 0);
        rig_free(rig);
    }
}

/* A frame that was sent just before the timer looks has not been waiting for a period. */
static void test_fresh_frame_is_not_stalled(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    assert_true(rig_open(rig));
    seam_advance_ns(PERIOD_NS);
    poll_now(rig);
    seam_advance_ns(PERIOD_NS);
    rig_send(rig, 1, true);
    virtio_net_tx_flush(rig->dev, PAIR);
    uint64_t kicks = rig->device.q[MODEL_TX].kicks;
    poll_now(rig);
    assert_int_equal(rig->device.q[MODEL_TX].kicks, kicks);
    model_serve(&rig->device);
    virtio_net_tx_reclaim(rig->dev, PAIR, 64);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_KICK), 0);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* A backend that takes its time (a full link) is no lost kick: no kick that it did not ask for, no
 * fault, however long it takes. */
static void test_slow_device_is_no_fault(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        struct rig *rig = rig_new();
        rig->config.refuse.event_idx = event_idx == 0;
        assert_true(rig_open(rig));
        while (!virtio_net_tx_stopped(rig->dev, PAIR)) {
            rig_send(rig, 1, true);
        }
        model_take(&rig->device, MODEL_TX);
        model_notify(&rig->device, MODEL_TX, false);
        uint64_t kicks = rig->device.q[MODEL_TX].kicks;
        for (unsigned i = 0; i < 100; i++) {
            assert_true(virtio_net_arm(rig->dev, true));
            sleep_to_deadline(rig);
        }
        assert_int_equal(rig->device.q[MODEL_TX].kicks, kicks);
        assert_true(virtio_net_arm(rig->dev, true));
        model_complete(&rig->device, 1000);
        assert_true(virtio_net_irq_pending(rig->dev));
        virtio_net_disarm(rig->dev);
        virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
        for (unsigned f = 0; f < VIRTIO_NET_FAULTS; f++) {
            assert_int_equal(rig_fault(rig, (enum virtio_net_device_fault)f), 0);
        }
        expect_traffic(rig);
        rig_free(rig);
    }
}

/* Without MSI-X the device is looked at each millisecond; configuration too. */
static void test_polled(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    rig->opt.no_msix = true;
    assert_true(rig_open(rig));
    rig_send(rig, 1, true);
    assert_true(virtio_net_arm(rig->dev, true));
    assert_in_range(virtio_net_next_deadline_ns(rig->dev, seam_now_ns()), seam_now_ns(),
                    seam_now_ns() + 1000000);
    model_serve(&rig->device);
    assert_false(virtio_net_arm(rig->dev, true));
    sleep_to_deadline(rig);
    assert_int_equal(rig->done, 1);
    assert_int_equal(rig->device.q[MODEL_TX].interrupts, 0);
    model_set_link(&rig->device, false);
    seam_advance_ns(PERIOD_NS);
    poll_now(rig);
    assert_false(rig->link_up);
    assert_int_equal(rig->links, 1);
    expect_traffic(rig);
    rig_free(rig);
}

/* One vector for everything: each cause is looked at, nothing is called spurious. */
static void test_shared_vector(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    rig->opt.one_vector = true;
    assert_true(rig_open(rig));
    rig_send(rig, 1, true);
    assert_true(virtio_net_arm(rig->dev, true));
    model_serve(&rig->device);
    assert_true(virtio_net_irq_pending(rig->dev));
    virtio_net_disarm(rig->dev);
    virtio_net_rx_poll(rig->dev, PAIR, 64);
    virtio_net_tx_reclaim(rig->dev, PAIR, 64);
    assert_int_equal(rig_tx(rig).spurious_interrupts + rig_rx(rig).spurious_interrupts, 0);
    model_set_link(&rig->device, false);
    poll_now(rig);
    assert_int_equal(rig->links, 1);
    expect_traffic(rig);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_faults),
        cmocka_unit_test(test_reset_returns_the_held_frame),
        cmocka_unit_test(test_needs_reset),
        cmocka_unit_test(test_fruitless_resets_end),
        cmocka_unit_test(test_restart_refused),
        cmocka_unit_test(test_link),
        cmocka_unit_test(test_lost_interrupt),
        cmocka_unit_test(test_late_interrupt_is_not_lost),
        cmocka_unit_test(test_lost_interrupt_amid_traffic),
        cmocka_unit_test(test_early_wake_suspects_nobody),
        cmocka_unit_test(test_lost_kick),
        cmocka_unit_test(test_lost_kick_beside_traffic),
        cmocka_unit_test(test_silence_is_no_lost_kick),
        cmocka_unit_test(test_fresh_frame_is_not_stalled),
        cmocka_unit_test(test_slow_device_is_no_fault),
        cmocka_unit_test(test_polled),
        cmocka_unit_test(test_shared_vector),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
