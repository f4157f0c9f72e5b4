/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a restart must not carry over, what it must not believe of before, and what a driver that
 * was given up must leave alone.
 *
 *     test -> driver -> [rings] -> model device        and once over the PCI transport
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "boot/clock.h"
#include "tests/device/rig.h"
#include "tests/device/seams.h"
#include "tests/device/strict_case.h"

#define PAIR 0u

static void look(struct rig *rig, unsigned times)
{
    while (times-- > 0) {
        seam_advance_ns(SAFETY_LOOK_NS);
        (void)virtio_net_poll(rig->dev, clock_now_ns());
    }
}

static void restart(struct rig *rig)
{
    const uint64_t resets = rig->device.resets;

    model_needs_reset(&rig->device);
    (void)virtio_net_poll(rig->dev, clock_now_ns());
    assert_true(rig->device.resets > resets);
    assert_false(rig->dev->dead);
}

/* The receive queue is kicked again three times at most; a restarted one has its own three. */
static void test_rx_kicks_again_after_restart(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    assert_true(rig_open(rig)); /* a device that sleeps through the first kick */
    uint64_t kicks = rig_rx(rig).kicks;
    look(rig, 20);
    assert_int_equal(rig_rx(rig).kicks - kicks, RX_REKICKS_MAX);
    restart(rig);
    kicks = rig_rx(rig).kicks;
    look(rig, 20);
    assert_int_equal(rig_rx(rig).kicks - kicks, RX_REKICKS_MAX);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* Sends a frame whose kick gets lost; the safety timer gives it again, and the device has it. */
static void lose_a_kick(struct rig *rig)
{
    rig->device.drop_kicks = true;
    assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
    virtio_net_tx_flush(rig->dev, PAIR);
    uint64_t kicks = rig_tx(rig).kicks;
    look(rig, 1);
    assert_int_equal(rig_tx(rig).kicks, kicks); /* in flight for the first look */
    look(rig, 1);
    assert_int_equal(rig_tx(rig).kicks, kicks + 1);
}

/* What stalled before a restart is over with it: the next lost kick is found by the second look,
 * not by the first, and counted. */
static void test_tx_lost_kick_after_restart(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    assert_true(rig_open(rig));
    lose_a_kick(rig);
    restart(rig);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_KICK), 0);
    lose_a_kick(rig);
    model_serve(&rig->device);
    assert_int_equal(virtio_net_tx_reclaim(rig->dev, PAIR, 64), 1);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_KICK), 1);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* The stack keeps buffers for longer than the driver drives the device: what it gives back is kept,
 * and no dead device hears of it. */
static void test_return_to_a_dead_driver(void **state)
{
    static const struct virtio_net_hdr plain = {0};
    static const uint8_t frame[60];
    struct rig *rig = rig_new();

    (void)state;
    rig->opt.size_descs[MODEL_RX] = 16;
    rig->rx_keep = true;
    assert_true(rig_open(rig));
    for (unsigned i = 0; i < 12; i++) {
        assert_true(model_receive(&rig->device, plain, frame, sizeof(frame)));
    }
    assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 12);
    rig->device.opt.reset_never = true;
    model_needs_reset(&rig->device);
    (void)virtio_net_poll(rig->dev, clock_now_ns());
    assert_true(rig->dev->dead);
    const struct virtio_net_rx_stats before = rig_rx(rig);
    rig_return_kept(rig);
    const struct virtio_net_rx_stats after = rig_rx(rig);
    assert_int_equal(after.posted, before.posted);
    assert_int_equal(after.kicks + after.kicks_suppressed, before.kicks + before.kicks_suppressed);
    assert_int_equal(after.pool_free, before.pool_free + 12);
    assert_int_equal(rig->device.q[MODEL_RX].avail->idx, 0); /* nothing is on offer in the ring */
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* A queue that is smaller after a reset than its ring is: the driver does not make it larger by
 * writing to it, and gives the device up with one line. */
static void test_queue_shrinks(void **state)
{
    (void)state;
    for (unsigned queue = 0; queue < 2; queue++) {
        case_default();
        case_open(NULL);
        case_traffic(50, 50);
        assert_int_equal(host_send(&host, 100, 1, true, false), VIRTIO_NET_OK);
        host.dev.was_live = false; /* and is not to be once more */
        host.dev.opt.queue_max_descs[queue] /= 2;
        host.dev.fault.needs_reset = true;
        for (unsigned i = 0; i < 50 && virtio_net_info(host.net)->lost == NULL; i++) {
            host_turn(&host);
        }
        assert_non_null(virtio_net_info(host.net)->lost);
        assert_int_equal(host.link_changes, 1);
        assert_false(host.link_up);
        assert_int_equal(host.tx_sequence, host.tx_done + host.tx_aborted);
        strict_device_expect_failed(&host.dev);
        case_end();
    }
}

/* A queue that does not come on again: told by NEEDS_RESET only when all is done, and given up. */
static void test_queue_refused(void **state)
{
    (void)state;
    case_default();
    case_open(NULL);
    case_traffic(50, 50);
    host.dev.was_live = false;
    host.dev.fault.refuse_queue_enable = true;
    host.dev.fault.needs_reset = true;
    for (unsigned i = 0; i < 50 && virtio_net_info(host.net)->lost == NULL; i++) {
        host_turn(&host);
    }
    assert_non_null(virtio_net_info(host.net)->lost);
    assert_int_equal(host.link_changes, 1);
    strict_device_expect_failed(&host.dev);
    case_end();
}

/* And the other way round: a larger one is used as it was. */
static void test_queue_grows(void **state)
{
    struct strict_options opt;

    (void)state;
    strict_options_default(&opt);
    opt.queue_max_descs[0] = opt.queue_max_descs[1] = 64;
    case_init(&opt);
    case_open(NULL);
    case_traffic(50, 50);
    host.dev.opt.queue_max_descs[0] = host.dev.opt.queue_max_descs[1] = 128;
    host.dev.fault.needs_reset = true;
    for (unsigned i = 0; i < 50; i++) {
        host_turn(&host);
    }
    assert_int_equal(case_fault(VIRTIO_NET_FAULT_NEEDS_RESET), 1);
    assert_int_equal(host.dev.queue[0].size_descs, 64);
    assert_int_equal(host.dev.queue[1].size_descs, 64);
    case_traffic(200, 200);
    case_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rx_kicks_again_after_restart),
        cmocka_unit_test(test_tx_lost_kick_after_restart),
        cmocka_unit_test(test_return_to_a_dead_driver),
        cmocka_unit_test(test_queue_shrinks),
        cmocka_unit_test(test_queue_refused),
        cmocka_unit_test(test_queue_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
