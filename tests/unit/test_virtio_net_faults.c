/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A device that breaks its side: each act is counted under its name, the ring is made anew, traffic
 * goes on; and a device that is beyond mending is given up, with everything returned.
 */
#include "tests/unit/rig_steps.h"

/* Fills the queue to its stop, lets the device answer nonsense on the queue, and mends. */
static void ring_fault(unsigned queue, uint32_t id, unsigned entries,
                       enum virtio_net_device_fault fault)
{
    struct rig *rig = rig_opened(true);

    (void)fill(rig);
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
    struct rig *rig = rig_opened(true);

    (void)state;
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
    struct rig *rig = rig_opened(true);
    unsigned n = 0;

    (void)state;
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
        struct rig *rig = rig_opened(true);
        (void)fill(rig);
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
    struct rig *rig = rig_opened(true);

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_faults),     cmocka_unit_test(test_reset_returns_the_held_frame),
        cmocka_unit_test(test_needs_reset),     cmocka_unit_test(test_fruitless_resets_end),
        cmocka_unit_test(test_restart_refused), cmocka_unit_test(test_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
