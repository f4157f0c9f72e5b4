/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Faults that others reported of devices that were driven before, are replaced, removed or sparing
 * with what they offer, as tests of the driver (tests/field_cases.tsv).
 */
#include "tests/unit/rig_steps.h"

#include "tests/device/strict_case.h"

#define SLOW_NS 50000000ull

/* ---- a device with other answers than the model's, over the same transport ---- */

static struct {
    const struct virtio_transport_ops *model;
    struct virtio_transport_ops ops;
    uint64_t reset_at_ns; /* of the last reset asked for, 0: none is under way */
    unsigned early;       /* accesses to anything but the status while a reset was under way */
    unsigned enabled[3];  /* queues */
    uint8_t nobody;       /* what is read where no device is */
} other;

static void override(struct rig *rig)
{
    memset(&other, 0, sizeof(other));
    other.model = rig->device.base.ops;
    other.ops = *other.model;
    rig->device.base.ops = &other.ops;
}

/* ---- addresses ---- */

/* Field case 38: a device without MAC gets an address that is local and no group, and two instances
 * get two of them; one that has a MAC is known by it and nothing is made up. */
static void test_no_address_offered(void **state)
{
    uint8_t macs[8][6];
    struct strict_options opt;

    (void)state;
    strict_options_default(&opt);
    opt.offered &= ~strict_bit(F_MAC);
    case_init(&opt);
    for (unsigned i = 0; i < 8; i++) {
        case_open(NULL);
        assert_false(virtio_net_info(host.net)->mac_from_device);
        memcpy(macs[i], virtio_net_info(host.net)->mac, 6);
        assert_int_equal(macs[i][0] & 3, 2);
        for (unsigned k = 0; k < i; k++) {
            assert_memory_not_equal(macs[i], macs[k], 6);
        }
        host_close(&host);
    }
    case_open(NULL);
    case_traffic(50, 50);
    case_end();
    opt.offered |= strict_bit(F_MAC);
    case_init(&opt);
    case_open(NULL);
    assert_true(virtio_net_info(host.net)->mac_from_device);
    assert_memory_equal(virtio_net_info(host.net)->mac, opt.mac, 6);
    case_end();
}

/* ---- a device that somebody drove before ---- */

static bool resetting(void)
{
    return other.reset_at_ns != 0 && seam_now_ns() < other.reset_at_ns + SLOW_NS;
}

static uint8_t slow_status(struct virtio_transport *t)
{
    return resetting() ? 0x0f : other.model->status(t);
}

static void slow_set_status(struct virtio_transport *t, uint8_t status)
{
    other.early += resetting();
    other.reset_at_ns = status == 0 ? seam_now_ns() : 0;
    other.model->set_status(t, status);
}

static uint64_t watched_features(struct virtio_transport *t)
{
    other.early += resetting();
    return other.model->device_features(t);
}

static bool watched_enable(struct virtio_transport *t, uint16_t queue,
                           const struct virtio_queue_setup *setup, struct vq_doorbell *doorbell)
{
    other.early += resetting();
    other.enabled[queue]++;
    return other.model->queue_enable(t, queue, setup, doorbell);
}

static uint64_t sum_of(const struct virtio_net *dev)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < dev->rx.n_bufs; i++) {
        for (uint32_t k = 0; k < dev->rx.buf_bytes; k++) {
            sum = sum * 31 + dev->rx.bufs[i].addr[k];
        }
    }
    for (unsigned i = 0; i < dev->rx.vq.size; i++) {
        sum = sum * 31 + dev->rx.vq.used->ring[i].id + dev->rx.vq.used->ring[i].len;
    }
    return sum * 31 + dev->rx.vq.used->idx;
}

/*
 * Field case 40: firmware left the device running, with buffers posted and a frame sent, and it
 * takes 50 ms to end a reset. Nothing but the status is touched meanwhile, the features of this
 * start hold, and not one byte of the firmware's buffers and rings changes afterwards.
 */
static void test_left_running_by_firmware(void **state)
{
    struct rig *firmware = rig_opened(true);
    struct rig *rig = rig_new();

    (void)state;
    expect_frames(firmware, 10);
    rig_send(firmware, 1, true);
    virtio_net_tx_flush(firmware->dev, PAIR);
    const uint64_t sum = sum_of(firmware->dev);

    override(firmware);
    other.ops.status = slow_status;
    other.ops.set_status = slow_set_status;
    other.ops.device_features = watched_features;
    other.ops.queue_enable = watched_enable;
    const uint64_t resets = firmware->device.resets, started_ns = seam_now_ns();
    rig->config.refuse.event_idx = true;
    struct virtio_net *dev =
        virtio_net_open_transport(&firmware->device.base, &rig->config, &rig->why);
    assert_non_null(dev);
    assert_int_equal(firmware->device.resets, resets + 1);
    assert_int_equal(other.early, 0);
    assert_true(seam_now_ns() - started_ns >= SLOW_NS);
    assert_int_equal(firmware->device.accepted & FEATURE(VIRTIO_F_EVENT_IDX), 0);

    static const uint8_t broadcast[RIG_SHORT_BYTES] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    rig->dev = dev;
    for (unsigned i = 0; i < 500; i++) {
        assert_true(model_receive(&firmware->device, plain, broadcast, sizeof(broadcast)));
        assert_int_equal(virtio_net_rx_poll(dev, PAIR, 64), 1);
    }
    assert_int_equal(rig->rx_packets, 500);
    assert_int_equal(firmware->device.violations, 0);
    assert_true(sum_of(firmware->dev) == sum);
    rig_free(rig);
    rig_free(firmware);
}

/* ---- a device that asks for its reset ---- */

/*
 * Field case 41: the device gives up in mid-blast. With its interrupt it is reset at once; when
 * that is lost, the look at a stalled ring finds it, and in a guest that only receives the look at
 * the status register. Within a second it works again, each time counted.
 */
static void test_needs_reset_is_found(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 3; form++) {
        struct rig *rig = rig_opened(true);
        for (unsigned round = 1; round <= 5; round++) {
            for (unsigned i = 0; form < 2 && i < 5; i++) {
                assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
            }
            virtio_net_tx_flush(rig->dev, PAIR);
            rig->device.drop_interrupts = form > 0;
            model_needs_reset(&rig->device);
            const uint64_t began_ns = clock_now_ns();
            while (rig_fault(rig, VIRTIO_NET_FAULT_NEEDS_RESET) < round) {
                (void)poll_now(rig);
                seam_advance_ns(1000000);
                assert_true(clock_now_ns() - began_ns <= 1100000000ull);
            }
            rig->device.drop_interrupts = false;
            assert_true(form > 0 || clock_now_ns() - began_ns < 10000000ull);
            assert_int_equal(rig_tx(rig).aborted, form < 2 ? 5 * round : 0);
            expect_frames(rig, 100);
        }
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_NEEDS_RESET), 5);
        assert_null(virtio_net_info(rig->dev)->lost);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* ---- the order of the start ---- */

/* Field case 42: the device looks at its receive queue only after a kick, and the guest sends
 * nothing: the first frame arrives, with and without an MTU of the device. */
static void test_first_frame_before_any_was_sent(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.pace = STRICT_ONLY_KICKED;
        opt.offered &= form & 1 ? ~strict_bit(F_MTU) : ~0ull;
        opt.offered &= form & 2 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        assert_int_equal(host.dev.queue[0].kicks, 1);
        host_receive(&host, 64);
        for (unsigned i = 0; i < 3; i++) {
            (void)host_turn(&host);
        }
        assert_int_equal(host.rx_got, 1);
        assert_int_equal(host.dev.queue[1].kicks, 0);
        assert_int_equal(host.tx_sequence, 0);
        case_end();
    }
}

/* ---- the control queue ---- */

/*
 * Field cases 48 and 49: what depends on a control queue is left, whether the queue is offered or
 * not, and the queue itself is never enabled, so that no command can time out, be refused or be
 * answered late into memory of somebody else.
 */
static void test_control_queue_is_left_alone(void **state)
{
    static const enum strict_feature dependents[] = {F_CTRL_RX, F_CTRL_VLAN, F_GUEST_ANNOUNCE, F_MQ,
                                                     F_CTRL_MAC_ADDR};
    (void)state;
    for (unsigned form = 0; form < 2; form++) {
        struct strict_options opt;
        uint64_t all = strict_bit(F_CTRL_VQ);
        strict_options_default(&opt);
        for (unsigned i = 0; i < sizeof(dependents) / sizeof(dependents[0]); i++) {
            all |= strict_bit(dependents[i]);
        }
        opt.offered |= form == 0 ? all : all & ~strict_bit(F_CTRL_VQ);
        case_init(&opt);
        case_open(NULL);
        assert_int_equal(host.dev.driver_features & all, 0);
        assert_false(host.dev.regs[2].enabled);
        assert_false(host.dev.queue[2].enabled);
        unsigned named = 0;
        for (unsigned i = 0; i < virtio_net_info(host.net)->n_refused; i++) {
            const char *name = virtio_net_info(host.net)->refused[i].name;
            named += strcmp(name, "CTRL_RX") == 0 || strcmp(name, "MQ") == 0 ||
                     strcmp(name, "GUEST_ANNOUNCE") == 0;
        }
        assert_int_equal(named, 3);
        case_traffic(300, 300);
        assert_int_equal(host.dev.queue[2].kicks, 0);
        case_end();
    }
}

/* ---- a device that is removed ---- */

static uint8_t nobody_status(struct virtio_transport *t)
{
    (void)t;
    return other.nobody;
}

static void nobody_listens(struct virtio_transport *t, uint8_t status)
{
    (void)t;
    (void)status;
}

static uint64_t nobody_features(struct virtio_transport *t)
{
    (void)t;
    return other.nobody == 0 ? 0 : UINT64_MAX;
}

static uint32_t nobody_config(struct virtio_transport *t, uint32_t offset, unsigned bytes)
{
    (void)t;
    (void)offset;
    return other.nobody == 0 ? 0 : UINT32_MAX >> (32 - 8 * bytes);
}

static void remove_device(struct rig *rig, uint8_t reads)
{
    override(rig);
    other.nobody = reads;
    other.ops.status = nobody_status;
    other.ops.set_status = nobody_listens;
    other.ops.device_features = nobody_features;
    other.ops.config_read = nobody_config;
    rig->device.drop_kicks = true;
    rig->device.q[MODEL_RX].enabled = rig->device.q[MODEL_TX].enabled = false;
}

/*
 * Field case 51: the device is removed in mid-blast, or from under a guest that only waits. All
 * ones or all zeroes are read where it was. It is noticed within two seconds, what was in flight
 * comes back, the user is told once, and late interrupts, sends and a close find nothing to do.
 */
static void test_removed(void **state)
{
    static const uint8_t reads[] = {0x00, 0xff};

    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        const unsigned sent = form < 2 ? 20 : 0;
        struct rig *rig = rig_opened(true);
        for (unsigned i = 0; i < sent; i++) {
            assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
        }
        virtio_net_tx_flush(rig->dev, PAIR);
        remove_device(rig, reads[form % 2]);
        const uint64_t began_ns = clock_now_ns();
        while (virtio_net_info(rig->dev)->lost == NULL) {
            (void)poll_now(rig);
            seam_advance_ns(1000000);
            assert_true(clock_now_ns() - began_ns <= 2200000000ull);
        }
        assert_non_null(strstr(virtio_net_info(rig->dev)->lost, "removed"));
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_STATUS_LOST), 1);
        assert_int_equal(rig->links, 1);
        assert_false(rig->link_up);
        assert_int_equal(rig_tx(rig).aborted, sent);
        rig->device.lines[0].count++;
        rig->device.lines[1].count++;
        for (unsigned i = 0; i < 100; i++) {
            (void)poll_now(rig);
            assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 0);
            assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_FATAL);
            assert_true(virtio_net_arm(rig->dev, true));
            virtio_net_disarm(rig->dev);
            seam_advance_ns(100000000);
        }
        assert_int_equal(rig->links, 1);
        assert_int_equal(virtio_net_next_deadline_ns(rig->dev, clock_now_ns()), UINT64_MAX);
        virtio_net_close(rig->dev);
        assert_int_equal(rig_rx(rig).pool_free, rig_rx(rig).pool_bufs);
        rig_free(rig);
    }
}

/* Field case 51: a device that somebody reset behind the driver's back and that is still there is
 * started again, and nobody is told that it is gone. */
static void test_reset_by_somebody_else(void **state)
{
    struct rig *rig = rig_opened(true);

    (void)state;
    for (unsigned round = 1; round <= 3; round++) {
        assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
        virtio_net_tx_flush(rig->dev, PAIR);
        rig->device.base.ops->set_status(&rig->device.base, 0);
        for (unsigned i = 0; i < 300; i++) {
            (void)poll_now(rig);
            seam_advance_ns(1000000);
        }
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_STATUS_LOST), round);
        assert_null(virtio_net_info(rig->dev)->lost);
        assert_int_equal(rig->links, 0);
        rig->device.violations = 0; /* kicks of a driver that did not know yet */
        expect_frames(rig, 100);
    }
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_address_offered),
        cmocka_unit_test(test_left_running_by_firmware),
        cmocka_unit_test(test_needs_reset_is_found),
        cmocka_unit_test(test_first_frame_before_any_was_sent),
        cmocka_unit_test(test_control_queue_is_left_alone),
        cmocka_unit_test(test_removed),
        cmocka_unit_test(test_reset_by_somebody_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
