/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a reset in the middle of traffic must not lose: the state of the link that the user was
 * told, the receive buffers that come back meanwhile, and, when the device refuses to start again,
 * each buffer that it had been given.
 */
#include "tests/unit/rig_steps.h"

#include "tests/device/strict_case.h"

/* 5.1.4.2: the link changes, and before the driver has looked, the device asks for a reset. The
 * restart reads the state of the link; the user is told of the change all the same. */
static void test_link_changes_at_a_reset(void **state)
{
    (void)state;
    for (unsigned up = 0; up < 2; up++) {
        struct rig *rig = rig_new();
        rig->opt.link_up = up == 0;
        assert_true(rig_open(rig));
        assert_int_equal(virtio_net_info(rig->dev)->link_up, up == 0);
        model_set_link(&rig->device, up != 0);
        model_needs_reset(&rig->device);
        assert_true(poll_now(rig));
        assert_int_equal(virtio_net_info(rig->dev)->link_up, up != 0);
        assert_int_equal(rig->links, 1);
        assert_int_equal(rig->link_up, up != 0);
        /* Told once: the same state again is no news, nor is a reset without a change. */
        model_needs_reset(&rig->device);
        assert_true(poll_now(rig));
        assert_int_equal(rig->links, 1);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* ---- a restart that is refused ---- */

static const struct virtio_transport_ops *model_ops;
static bool broken_when_live;
static uint8_t last_written;

static void note_status(struct virtio_transport *transport, uint8_t status)
{
    last_written = status;
    model_ops->set_status(transport, status);
}

static uint8_t broken_status(struct virtio_transport *transport)
{
    uint8_t status = model_ops->status(transport);
    bool live = (status & VIRTIO_STATUS_DRIVER_OK) != 0;
    return broken_when_live && live ? status | VIRTIO_STATUS_NEEDS_RESET : status;
}

enum refusal { NEVER_RESETS, OFFERS_LESS, NO_FEATURES, NO_VECTOR, NO_QUEUE, BROKEN, REFUSALS };

static void refuse(struct rig *rig, enum refusal how)
{
    struct model_options *opt = &rig->device.opt;

    opt->reset_never = how == NEVER_RESETS;
    opt->features &= how == OFFERS_LESS ? FEATURE(VIRTIO_F_VERSION_1) : UINT64_MAX;
    opt->refuse_features = how == NO_FEATURES;
    opt->refuse_vector = how == NO_VECTOR;
    opt->refuse_queue = how == NO_QUEUE;
    broken_when_live = how == BROKEN;
}

/* 3.1.1, 3.3.1: a device that nobody drives any more knows no buffer of ours. It was reset, or
 * where it does not end that, taken off the bus. */
static void test_refused_restart_leaves_nothing(void **state)
{
    (void)state;
    for (enum refusal how = 0; how < REFUSALS; how++) {
        struct rig *rig = rig_opened(true);
        struct virtio_transport_ops ops = *rig->device.base.ops;
        model_ops = rig->device.base.ops;
        ops.set_status = note_status;
        ops.status = broken_status;
        rig->device.base.ops = &ops;
        assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
        virtio_net_tx_flush(rig->dev, PAIR);
        model_needs_reset(&rig->device);
        refuse(rig, how);
        poll_now(rig);
        assert_true(rig->dev->dead);
        assert_non_null(virtio_net_info(rig->dev)->lost);
        assert_int_equal(last_written, 0);
        assert_true(rig->device.off_bus || model_ops->status(&rig->device.base) == 0);
        assert_int_equal(rig_rx(rig).posted, 0);
        assert_int_equal(rig_rx(rig).pool_free, rig_rx(rig).pool_bufs);
        assert_false(!rig->device.off_bus &&
                     model_receive(&rig->device, plain, short_frame, sizeof(short_frame)));
        assert_int_equal(rig->links, 1);
        assert_false(rig->link_up);
        broken_when_live = false;
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* ---- buffers that come back meanwhile ---- */

static void (*host_tx_done)(void *ctx, unsigned pair, void *cookie, bool aborted);

/* A frame that lies in a receive buffer, as an echo reply may: both come back together. */
static void return_with_the_frame(void *ctx, unsigned pair, void *cookie, bool aborted)
{
    struct strict_host *h = ctx;

    host_tx_done(ctx, pair, cookie, aborted);
    while (aborted && h->n_held != 0) {
        virtio_net_rx_return(h->net, h->held[--h->n_held]);
    }
}

/* 3.1.1 (INIT-14), 4.1.5.2 (PCI NTY-03): nothing is posted and nobody is kicked while the device is
 * being reset, whatever the callees of the reset give back. */
static void test_return_during_a_reset(void **state)
{
    struct strict_options opt;
    struct virtio_net_config config;

    (void)state;
    strict_options_default(&opt);
    opt.queue_max_descs[0] = 16;
    case_init(&opt);
    host_config_default(&host, &config);
    struct virtio_net_ops ops = *config.ops;
    host_tx_done = ops.tx_done;
    ops.tx_done = return_with_the_frame;
    config.ops = &ops;
    case_open(&config);
    host.hold_rx = true;
    for (unsigned i = 0; i < 30; i++) {
        host_receive(&host, 100);
    }
    for (unsigned i = 0; i < 60; i++) {
        host_turn(&host);
    }
    assert_true(host.n_held > opt.queue_max_descs[0]);
    host.dev.opt.pace = STRICT_ONLY_KICKED;
    host.dev.fault.lose_kicks = 1;
    (void)host_send(&host, 100, 1, true, false);
    virtio_net_tx_flush(host.net, PAIR);
    host.dev.fault.lose_kicks = 0;
    host.dev.fault.needs_reset = true;
    for (unsigned i = 0; i < 20; i++) {
        host_turn(&host);
    }
    assert_int_equal(case_fault(VIRTIO_NET_FAULT_NEEDS_RESET), 1);
    assert_int_equal(host.n_held, 0);
    host.hold_rx = false;
    case_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_changes_at_a_reset),
        cmocka_unit_test(test_refused_restart_leaves_nothing),
        cmocka_unit_test(test_return_during_a_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
