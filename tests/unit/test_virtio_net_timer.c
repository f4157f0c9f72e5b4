/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The safety timer: lost interrupts and kicks cost its period and no more, each is counted once,
 * and what is late, silent, slow or polled is not taken for lost.
 */
#include "tests/unit/rig_steps.h"

#define PERIOD_NS 100000000ull
#define LATE_NS   5000000ull

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
        struct rig *rig = rig_opened(event_idx != 0);
        send_unheard(rig);
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
        receive_short(rig);
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
    struct rig *rig = rig_opened(true);

    (void)state;
    send_unheard(rig);
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
    struct rig *rig = rig_opened(true);

    (void)state;
    for (unsigned round = 1; round <= 20; round++) {
        send_unheard(rig);
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
    struct rig *rig = rig_opened(true);

    (void)state;
    send_unheard(rig);
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
        send_unkicked(rig);
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
    send_unkicked(rig);
    uint64_t end_ns = seam_now_ns() + 3 * PERIOD_NS;
    while (rig->done == 0 && seam_now_ns() < end_ns) {
        (void)virtio_net_arm(rig->dev, true);
        seam_advance_ns(PERIOD_NS / 50);
        receive_short(rig);
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
        struct rig *rig = rig_opened((form & 1) != 0);
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
        receive_short(rig);
        virtio_net_rx_poll(rig->dev, PAIR, 64);
        assert_int_equal(rig->rx_packets, received + 1);
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_KICK), 0);
        rig_free(rig);
    }
}

/* A frame that was sent just before the timer looks has not been waiting for a period. */
static void test_fresh_frame_is_not_stalled(void **state)
{
    struct rig *rig = rig_opened(true);

    (void)state;
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
        struct rig *rig = rig_opened(event_idx != 0);
        (void)fill(rig);
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
