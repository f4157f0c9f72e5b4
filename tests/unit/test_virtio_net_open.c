/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Start-up: its order, which features are taken and why others are not, configuration, a device or
 * a memory that refuses, closing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/device/rig.h"
#include "tests/device/seams.h"

static const char *reason_for(struct rig *rig, const char *name)
{
    const struct virtio_net_info *info = virtio_net_info(rig->dev);
    for (unsigned i = 0; i < info->n_refused; i++) {
        if (strcmp(info->refused[i].name, name) == 0) {
            return info->refused[i].reason;
        }
    }
    return NULL;
}

static bool took(struct rig *rig, unsigned bit)
{
    return (rig->device.accepted & FEATURE(bit)) != 0;
}

/* ---- order ---- */

static uint8_t status_log[32];
static unsigned n_status;
static uint8_t shown_too, hidden; /* bits of the status as it is read */
static struct virtio_transport_ops logged;
static const struct virtio_transport_ops *real;

static void log_status(struct virtio_transport *t, uint8_t status)
{
    if (n_status < sizeof(status_log)) {
        status_log[n_status++] = status;
    }
    real->set_status(t, status);
}

static uint8_t show_status(struct virtio_transport *t)
{
    const uint8_t bits = real->status(t);
    return bits == 0 ? 0 : (uint8_t)((bits | shown_too) & ~hidden);
}

/* Opens a device whose status is logged as it is written, and not read as it is. */
static void open_logged(struct rig *rig, uint8_t show, uint8_t hide)
{
    model_init(&rig->device, &rig->opt);
    real = rig->device.base.ops;
    logged = *real;
    logged.set_status = log_status;
    logged.status = show_status;
    rig->device.base.ops = &logged;
    shown_too = show;
    hidden = hide;
    n_status = 0;
    rig->dev = virtio_net_open_transport(&rig->device.base, &rig->config, &rig->why);
}

/* 3.1.1: reset, ACKNOWLEDGE, DRIVER, FEATURES_OK, DRIVER_OK, each its own write; RX kicked after.
 */
static void test_order(void **state)
{
    struct rig *rig = rig_new();
    static const uint8_t expected[] = {0, 1, 3, 11, 15};

    (void)state;
    open_logged(rig, 0, 0);
    assert_non_null(rig->dev);
    assert_int_equal(n_status, sizeof(expected));
    assert_memory_equal(status_log, expected, sizeof(expected));
    assert_int_equal(rig->device.q[MODEL_RX].kicks, 1);
    assert_int_equal(rig->device.q[MODEL_TX].kicks, 0);
    assert_int_equal(rig->device.violations, 0);
    assert_int_equal(rig_rx(rig).posted, 64);
    rig_free(rig);
}

/* Whatever bits of the driver's the register shows: none goes back that the driver did not set, so
 * no device is live before its queues are there. */
static void test_shown_bits_are_not_written(void **state)
{
    static const uint8_t expected[] = {0, 1, 3, 11, 15};

    (void)state;
    for (unsigned shown = 0; shown < 0x100; shown++) {
        if ((shown & VIRTIO_STATUS_NEEDS_RESET) != 0) {
            continue;
        }
        struct rig *rig = rig_new();
        open_logged(rig, (uint8_t)shown, 0);
        assert_non_null(rig->dev);
        assert_int_equal(n_status, sizeof(expected));
        assert_memory_equal(status_log, expected, sizeof(expected));
        assert_int_equal(rig->device.violations, 0);
        rig_free(rig);
    }
}

/* The one bit that is the device's own stays as it is (2.1.1), and ends the start. */
static void test_early_needs_reset(void **state)
{
    struct rig *rig = rig_new();
    static const uint8_t expected[] = {0, 1, 0x43, 0x4b, 0x4f, 0xcf, 0};

    (void)state;
    open_logged(rig, VIRTIO_STATUS_NEEDS_RESET, 0);
    assert_null(rig->dev);
    assert_non_null(strstr(rig->why, "asked for a reset"));
    assert_int_equal(n_status, sizeof(expected));
    assert_memory_equal(status_log, expected, sizeof(expected));
    rig_free(rig);
}

/* A bit that was set and does not read back: the device did not take it, and is not driven. */
static void test_status_not_kept(void **state)
{
    static const uint8_t bits[] = {VIRTIO_STATUS_ACKNOWLEDGE, VIRTIO_STATUS_DRIVER,
                                   VIRTIO_STATUS_DRIVER_OK, VIRTIO_STATUS_FEATURES_OK};

    (void)state;
    for (unsigned i = 0; i < sizeof(bits); i++) {
        struct rig *rig = rig_new();
        open_logged(rig, 0, bits[i]);
        assert_null(rig->dev);
        assert_non_null(strstr(rig->why, bits[i] == VIRTIO_STATUS_FEATURES_OK
                                             ? "refuses the features"
                                             : "does not keep what is written"));
        assert_true(n_status >= 2);
        assert_true((status_log[n_status - 2] & VIRTIO_STATUS_FAILED) != 0);
        assert_int_equal(status_log[n_status - 1], 0);
        rig_free(rig);
    }
}

/* ---- features ---- */

/* Field case 68: for every subset of what the driver knows and of what the user may refuse: only
 * offered bits, no feature without what it needs, and traffic both ways. */
static void test_feature_subsets(void **state)
{
    static const uint8_t bits[] = {0, 1, 7, 11, 15, 16, 28, 29};
    struct virtio_net_hdr plain = {0};
    uint8_t frame[60] = {0};

    (void)state;
    for (unsigned subset = 0; subset < 256; subset++) {
        struct rig *rig = rig_new();
        rig->opt.features = FEATURE(VIRTIO_F_VERSION_1);
        for (unsigned i = 0; i < 8; i++) {
            if ((subset >> i & 1) != 0) {
                rig->opt.features |= FEATURE(bits[i]);
            }
        }
        assert_true(rig_open(rig));
        assert_int_equal(rig->device.accepted & ~rig->opt.features, 0);
        assert_true(took(rig, VIRTIO_F_VERSION_1));
        assert_true(!took(rig, VIRTIO_NET_F_HOST_TSO4) || took(rig, VIRTIO_NET_F_CSUM));
        assert_true(!took(rig, VIRTIO_NET_F_GUEST_TSO4) ||
                    (took(rig, VIRTIO_NET_F_GUEST_CSUM) && took(rig, VIRTIO_NET_F_MRG_RXBUF)));
        for (unsigned i = 0; i < 100; i++) {
            assert_true(model_receive(&rig->device, plain, frame, sizeof(frame)));
            assert_int_equal(virtio_net_rx_poll(rig->dev, 0, 64), 1);
            assert_int_equal(rig_send(rig, (uint16_t)(1 + i % 3), i % 2 != 0), VIRTIO_NET_OK);
            virtio_net_tx_flush(rig->dev, 0);
            model_serve(&rig->device);
            virtio_net_tx_reclaim(rig->dev, 0, 64);
        }
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* Field case 34: of a device that offers all 64 bits, none is taken that is not known; those that
 * are left have a reason. */
static void test_refusals_have_reasons(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    rig->opt.features = UINT64_MAX;
    rig->opt.mtu_bytes = 40;
    rig->config.refuse.csum = true;
    rig->config.refuse.guest_csum = true;
    assert_true(rig_open(rig));
    assert_string_equal(reason_for(rig, "CSUM"), "switched off by configuration");
    assert_string_equal(reason_for(rig, "HOST_TSO4"), "needs CSUM");
    assert_string_equal(reason_for(rig, "GUEST_TSO4"), "needs GUEST_CSUM");
    assert_non_null(reason_for(rig, "MTU"));
    assert_non_null(reason_for(rig, "RING_PACKED"));
    assert_null(reason_for(rig, "INDIRECT_DESC"));
    assert_false(took(rig, VIRTIO_NET_F_MTU));
    assert_int_equal(virtio_net_info(rig->dev)->mtu_bytes, 1500);
    /* No bit that nobody here knows. */
    static const uint8_t known[] = {0, 1, 3, 5, 7, 11, 15, 16, 28, 29, 32, 33, 36, 59};
    uint64_t unknown = UINT64_MAX;
    for (unsigned i = 0; i < sizeof(known); i++) {
        unknown &= ~FEATURE(known[i]);
    }
    assert_int_equal(rig->device.accepted & unknown, 0);
    rig_free(rig);
    rig = rig_new();
    rig->config.refuse.mrg_rxbuf = true;
    assert_true(rig_open(rig));
    assert_non_null(reason_for(rig, "GUEST_TSO4"));
    rig_free(rig);
}

/* ---- configuration ---- */

static void test_mac(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    assert_true(rig_open(rig));
    assert_memory_equal(virtio_net_info(rig->dev)->mac, rig->opt.mac, 6);
    assert_true(virtio_net_info(rig->dev)->mac_from_device);
    rig_free(rig);
    rig = rig_new();
    rig->opt.features &= ~FEATURE(VIRTIO_NET_F_MAC);
    assert_true(rig_open(rig));
    assert_false(virtio_net_info(rig->dev)->mac_from_device);
    assert_int_equal(virtio_net_info(rig->dev)->mac[0] & 3, 2); /* local, not a group */
    rig_free(rig);
}

static void test_mtu(void **state)
{
    static const struct {
        bool offered;
        uint16_t device, wanted, expected;
    } cases[] = {
        {false, 9000, 0, 1500},   {false, 9000, 9000, 9000}, {true, 9000, 0, 9000},
        {true, 1400, 9000, 1400}, {true, 9000, 1400, 1400},  {true, 68, 0, 68},
        {true, 67, 0, 1500},      {true, 0, 0, 1500},        {true, 65535, 0, 65535},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (unsigned mrg = 0; mrg < 2; mrg++) {
            struct rig *rig = rig_new();
            rig->opt.mtu_bytes = cases[i].device;
            rig->opt.features |= cases[i].offered ? FEATURE(VIRTIO_NET_F_MTU) : 0;
            rig->config.mtu_bytes = cases[i].wanted;
            rig->config.refuse.mrg_rxbuf = mrg == 0;
            assert_true(rig_open(rig));
            assert_int_equal(virtio_net_info(rig->dev)->mtu_bytes, cases[i].expected);
            /* 5.1.4.2: a frame of the device's MTU can be received, with and without merging. */
            static uint8_t frame[65535 + 14];
            uint32_t len = cases[i].expected + 14u;
            if (took(rig, VIRTIO_NET_F_MTU)) {
                len = cases[i].device + 14u;
            }
            assert_true(model_receive(&rig->device, (struct virtio_net_hdr){0}, frame, len));
            assert_int_equal(virtio_net_rx_poll(rig->dev, 0, 4), 1);
            assert_int_equal(rig->rx_last.len_bytes, len);
            rig_free(rig);
        }
    }
}

/* Reads that span a change are repeated; one that never settles is a fault, with a bound. Field
 * case 37: the generation is looked at before and after. */
static void test_config_generation(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    rig->opt.config_changes = 20;
    assert_true(rig_open(rig));
    assert_memory_equal(virtio_net_info(rig->dev)->mac, rig->opt.mac, 6);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_CONFIG_UNSTABLE), 0);
    assert_true(rig->device.config_reads > 20);
    rig_free(rig);
    rig = rig_new();
    rig->opt.config_changes = UINT32_MAX;
    assert_false(rig_open(rig));
    assert_non_null(rig->why);
    rig_free(rig);
    /* Too short for what it says to have. */
    rig = rig_new();
    rig->opt.config_bytes = 7;
    assert_false(rig_open(rig));
    rig_free(rig);
}

/* ---- refusals ---- */

static void expect_refused(struct rig *rig)
{
    assert_false(rig_open(rig));
    assert_non_null(rig->why);
    assert_null(strchr(rig->why, '\n'));
    assert_int_equal(rig->device.violations, 0);
    assert_int_equal(rig->device.q[MODEL_RX].kicks, 0);
    if (!rig->opt.reset_never) {
        assert_int_equal(rig->device.status, 0);
    }
    rig_free(rig);
}

/* Field case 47, among others: FEATURES_OK is read back, and a device that drops it, as one behind
 * an IOMMU does, is refused with one line; no queue of it is ever used. */
static void test_device_refuses(void **state)
{
    struct rig *rig;

    (void)state;
    rig = rig_new();
    rig->opt.features &= ~FEATURE(VIRTIO_F_VERSION_1);
    expect_refused(rig);
    rig = rig_new();
    rig->opt.refuse_features = true;
    expect_refused(rig);
    rig = rig_new();
    rig->opt.reset_never = true;
    expect_refused(rig);
    rig = rig_new();
    rig->opt.refuse_vector = true;
    expect_refused(rig);
    rig = rig_new();
    rig->opt.refuse_queue = true;
    expect_refused(rig);
    rig = rig_new();
    rig->opt.size_descs[MODEL_TX] = 0;
    expect_refused(rig);
    rig = rig_new();
    rig->opt.size_descs[MODEL_RX] = 48; /* no power of two */
    expect_refused(rig);
    rig = rig_new();
    rig->config.tx_size_descs = 128; /* above the device's 64 */
    expect_refused(rig);
    rig = rig_new();
    rig->config.tx_size_descs = 24;
    expect_refused(rig);
    rig = rig_new();
    rig->config.mtu_bytes = 67;
    expect_refused(rig);
}

static void test_smaller_tx_ring(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    rig->config.tx_size_descs = 32;
    assert_true(rig_open(rig));
    assert_int_equal(rig_tx(rig).size_descs, 32);
    assert_int_equal(rig->device.q[MODEL_TX].size, 32);
    rig_free(rig);
}

/* Each allocation in turn fails: one line, a device that was reset, nothing kicked. */
static void test_every_allocation_fails(void **state)
{
    struct rig *rig = rig_new();
    unsigned n;

    (void)state;
    assert_true(rig_open(rig));
    n = seam_allocs();
    rig_free(rig);
    assert_true(n >= 8);
    for (unsigned fail = 1; fail <= n; fail++) {
        rig = rig_new();
        model_init(&rig->device, &rig->opt);
        seam_fail_alloc(fail);
        assert_null(virtio_net_open_transport(&rig->device.base, &rig->config, &rig->why));
        assert_non_null(rig->why);
        assert_non_null(strstr(rig->why, "memory"));
        if (fail > 1) { /* the first is the driver's own: the device was never touched */
            assert_int_equal(rig->device.status, 0);
        }
        assert_int_equal(rig->device.violations, 0);
        rig_free(rig);
    }
}

/* ---- closing ---- */

/* The device is reset before anything is taken back; what was in flight comes back aborted. */
static struct rig *closing;
static void (*real_done)(void *, unsigned, void *, bool);

static void done_after_reset(void *ctx, unsigned pair, void *cookie, bool aborted)
{
    assert_int_equal(closing->device.status, 0);
    assert_true(aborted);
    real_done(ctx, pair, cookie, aborted);
}

static void test_close(void **state)
{
    struct rig *rig = rig_new();
    struct virtio_net_ops ops = *rig->config.ops;

    (void)state;
    closing = rig;
    real_done = ops.tx_done;
    ops.tx_done = done_after_reset;
    rig->config.ops = &ops;
    assert_true(rig_open(rig));
    for (unsigned i = 0; i < 20; i++) {
        rig_send(rig, 3, true);
    }
    virtio_net_tx_flush(rig->dev, 0);
    rig_send(rig, 1, true); /* not even published */
    virtio_net_close(rig->dev);
    assert_int_equal(rig->aborted, 21);
    assert_int_equal(rig_tx(rig).aborted, 21);
    assert_int_equal(rig_rx(rig).pool_free, rig_rx(rig).pool_bufs);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_shown_bits_are_not_written),
        cmocka_unit_test(test_early_needs_reset),
        cmocka_unit_test(test_status_not_kept),
        cmocka_unit_test(test_feature_subsets),
        cmocka_unit_test(test_refusals_have_reasons),
        cmocka_unit_test(test_mac),
        cmocka_unit_test(test_mtu),
        cmocka_unit_test(test_config_generation),
        cmocka_unit_test(test_device_refuses),
        cmocka_unit_test(test_smaller_tx_ring),
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
