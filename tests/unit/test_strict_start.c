/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Start-up on the strict device: every set of offered features, every capability list, every number
 * of vectors, and each way in which the device can refuse.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/seams.h"
#include "tests/device/strict_case.h"

/* What the driver takes when it is offered. */
static const enum strict_feature known[] = {
    F_CSUM,      F_GUEST_CSUM, F_MTU,           F_MAC,       F_GUEST_TSO4,      F_HOST_TSO4,
    F_MRG_RXBUF, F_STATUS,     F_INDIRECT_DESC, F_EVENT_IDX, F_ACCESS_PLATFORM, F_ORDER_PLATFORM,
};

#define N_KNOWN (sizeof(known) / sizeof(known[0]))

/* All 4096 subsets of what is known start and pass traffic: each missing one has a mode without. */
static void every_subset(void **state)
{
    (void)state;
    for (unsigned set = 0; set < 1u << N_KNOWN; set++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered = strict_bit(F_VERSION_1);
        for (unsigned i = 0; i < N_KNOWN; i++) {
            opt.offered |= set >> i & 1 ? strict_bit(known[i]) : 0;
        }
        opt.queue_max_descs[0] = opt.queue_max_descs[1] = 32;
        case_run(&opt, NULL, 12, 12);
    }
}

/* Every bit that a device can offer, one at a time on top, then all: none is echoed that is not
 * known, and none keeps the driver from starting. */
static void every_bit(void **state)
{
    (void)state;
    uint64_t mine = strict_bit(F_VERSION_1) | strict_bit(F_GUEST_HDRLEN);
    for (unsigned i = 0; i < N_KNOWN; i++) {
        mine |= strict_bit(known[i]);
    }
    for (unsigned bit = 0; bit <= 64; bit++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered |= bit == 64 ? ~0ull : 1ull << bit;
        case_init(&opt);
        case_open(NULL);
        case_traffic(40, 40);
        assert_int_equal(virtio_net_info(host.net)->features_accepted & ~mine, 0);
        case_end();
    }
}

/* Each bit offered alone: those that need another are left. All are tried before any is judged. */
static void children_without_parents(void **state)
{
    uint64_t violations = 0;
    (void)state;
    for (unsigned bit = 0; bit < 64; bit++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered = strict_bit(F_VERSION_1) | 1ull << bit;
        case_init(&opt);
        if (!host_open(&host, NULL)) {
            fail_msg("bit %u: %s", bit, host.why);
        }
        host_close(&host);
        violations += host.dev.report.violations;
        host_fini(&host);
    }
    assert_int_equal(violations, 0);
}

/* Bits that the driver is asked to take and does not are named with a reason in its report. */
static void declared_deviations(void **state)
{
    static const char *const names[] = {"RING_PACKED", "NOTIF_CONFIG_DATA", "STANDBY"};
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.offered |=
        strict_bit(F_RING_PACKED) | strict_bit(F_NOTIF_CONFIG_DATA) | strict_bit(F_STANDBY);
    case_init(&opt);
    case_open(NULL);
    const struct virtio_net_info *info = virtio_net_info(host.net);
    for (unsigned i = 0; i < 3; i++) {
        bool named = false;
        for (unsigned k = 0; k < info->n_refused; k++) {
            named |=
                strcmp(info->refused[k].name, names[i]) == 0 && strlen(info->refused[k].reason) > 0;
        }
        if (!named) {
            fail_msg("%s is refused without a word", names[i]);
        }
    }
    case_end();
}

/* Optional bits whose taking costs nothing are taken. */
static void taken_when_offered(void **state)
{
    static const enum strict_feature bits[] = {F_ORDER_PLATFORM, F_ACCESS_PLATFORM, F_GUEST_HDRLEN};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered |= strict_bit(bits[i]);
        case_init(&opt);
        case_open(NULL);
        assert_true(strict_has(virtio_net_info(host.net)->features_accepted, bits[i]));
        case_traffic(200, 200);
        case_end();
    }
}

static void refused(bool must_have_failed)
{
    assert_false(host_open(&host, NULL));
    assert_non_null(host.why);
    assert_true(strlen(host.why) > 10);
    if (must_have_failed) {
        strict_device_expect_failed(&host.dev);
    }
    assert_false(host.dev.was_live);
    assert_int_equal(host.dev.queue[0].kicks + host.dev.queue[1].kicks, 0);
    case_end();
}

/* A legacy device: no modern structure, or no VERSION_1. */
static void legacy_device(void **state)
{
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.offered &= ~strict_bit(F_VERSION_1);
    case_init(&opt);
    refused(true);
    strict_options_default(&opt);
    opt.decoys = STRICT_CAPS_NONE;
    opt.pci_device_id = 0x1000;
    case_init(&opt);
    assert_false(host_open(&host, NULL));
    assert_non_null(strstr(host.why, "modern"));
    assert_int_equal(host.dev.resets, 0); /* not one register was touched */
    case_end();
}

static void device_refuses(void **state)
{
    (void)state;
    case_default();
    host.dev.fault.refuse_features = true;
    refused(true);
    case_default();
    host.dev.fault.reset_never = true;
    refused(false);
    for (uint32_t nth = 1; nth <= 3; nth++) {
        case_default();
        host.dev.fault.refuse_vector = nth;
        refused(true);
    }
    case_default();
    host.dev.fault.refuse_queue_enable = true;
    refused(true);
    struct strict_options opt;
    strict_options_default(&opt);
    opt.queue_max_descs[0] = 0;
    case_init(&opt);
    refused(true);
    strict_options_default(&opt);
    opt.queue_max_descs[1] = 0;
    case_init(&opt);
    refused(true);
}

/* Each allocation fails once: FAILED where the device was touched, nothing left behind. */
static void out_of_memory(void **state)
{
    (void)state;
    case_default();
    case_open(NULL);
    const unsigned n = seam_allocs();
    case_end();
    assert_true(n > 3);
    for (unsigned nth = 1; nth <= n; nth++) {
        case_default();
        seam_fail_alloc(nth);
        assert_false(host_open(&host, NULL));
        assert_non_null(host.why);
        assert_false(host.dev.was_live);
        if (host.dev.resets > 1) {
            strict_device_expect_failed(&host.dev);
        }
        case_end();
    }
}

static void capability_lists(void **state)
{
    static const unsigned lists[] = {
        STRICT_CAPS_RESERVED_TYPES, STRICT_CAPS_RESERVED_BARS, STRICT_CAPS_TWICE,
        STRICT_CAPS_LONGER,         STRICT_CAPS_HUGE,          STRICT_CAPS_VENDOR,
        STRICT_CAPS_LOOP,           STRICT_CAPS_WRAP,
    };
    (void)state;
    for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.decoys = lists[i];
        case_run(&opt, NULL, 100, 100);
    }
}

/* A list in which nothing usable is: refused, not followed. */
static void unusable_capabilities(void **state)
{
    static const unsigned lists[] = {STRICT_CAPS_SHORT, STRICT_CAPS_GIANT,
                                     STRICT_CAPS_NONE | STRICT_CAPS_LOOP};
    (void)state;
    for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.decoys = lists[i];
        case_init(&opt);
        refused(false);
    }
}

static void identity(void **state)
{
    (void)state;
    for (unsigned revision = 0; revision < 256; revision += 5) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.revision = (uint8_t)revision;
        opt.pci_device_id = revision % 2 ? 0x1041 : 0x1000;
        case_run(&opt, NULL, 8, 8);
    }
    struct strict_options opt;
    strict_options_default(&opt);
    opt.pci_device_id = 0x1042; /* a block device */
    case_init(&opt);
    refused(false);
}

static void vectors(void **state)
{
    static const uint16_t sizes[] = {0, 1, 2, 3, 4, 64, 2048};
    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (unsigned pace = STRICT_IMMEDIATE; pace <= STRICT_LAZY; pace++) {
            struct strict_options opt;
            strict_options_default(&opt);
            opt.vectors = sizes[i];
            opt.pace = (enum strict_pace)pace;
            opt.slow = 3;
            case_init(&opt);
            case_open(NULL);
            case_traffic(1500, 1500);
            assert_int_equal(case_fault(VIRTIO_NET_FAULT_LOST_INTERRUPT), 0);
            case_end();
        }
    }
}

/* Doorbells wherever the device puts them. */
static void doorbells(void **state)
{
    static const uint32_t multipliers[] = {0, 2, 4, 4096};
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.notify_multiplier = multipliers[i];
        opt.notify_off[0] = 5;
        opt.notify_off[1] = 3;
        case_run(&opt, NULL, 200, 200);
    }
    struct strict_options opt;
    strict_options_default(&opt);
    opt.notify_multiplier = 0x80000000u; /* far outside the structure */
    case_init(&opt);
    refused(true);
}

static void slow_reset(void **state)
{
    (void)state;
    case_default();
    host.dev.fault.reset_reads = 500;
    case_open(NULL);
    case_traffic(50, 50);
    case_end();
}

/* What cannot be read cannot be kept: neither MTU nor address is accepted then. */
static void excuse_unreadable(void)
{
    struct strict_report *r = &host.dev.report;
    r->violations -= r->violated[NET_DRV_CFG_07] + r->violated[NET_DRV_CFG_02];
}

/* The address changes while it is read: what is adopted was whole at one time. */
static void unstable_config(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 12; n++) {
        struct strict_options opt;
        strict_options_default(&opt);
        case_init(&opt);
        host.dev.fault.config_unstable = n;
        case_open(NULL);
        const uint8_t *mac = virtio_net_info(host.net)->mac;
        for (unsigned i = 1; i < 6; i++) {
            assert_int_equal(mac[i] ^ opt.mac[i], mac[1] ^ opt.mac[1]);
        }
        assert_true(host.dev.faults_done > 0);
        case_end();
    }
    case_default();
    host.dev.fault.config_never_stable = true;
    host.dev.report.loud = false;
    assert_false(host_open(&host, NULL)); /* bounded, and told: STATUS is taken and unreadable */
    excuse_unreadable();
    case_end();
}

/* An address that cannot be read whole is not accepted: who accepts it must use it, and traffic
 * shows whose it is. Unreadable: beyond the space, never of one generation, or not for long. */
static void unreadable_address(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 3; how++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered &= how == 2 ? ~0ull : ~(strict_bit(F_STATUS) | strict_bit(F_MTU));
        opt.config_bytes = how == 0 ? 4 : opt.config_bytes;
        case_init(&opt);
        host.dev.report.loud = false;
        host.dev.fault.config_never_stable = how == 1;
        host.dev.fault.config_unstable = how == 2 ? 16 + 96 : 0;
        case_open(NULL);
        const struct virtio_net_info *info = virtio_net_info(host.net);
        assert_false(info->mac_from_device);
        assert_false(strict_has(info->features_accepted, F_MAC));
        assert_int_equal(info->mac[0] & 3, 2);
        case_traffic(20, 20);
        excuse_unreadable();
        case_end();
    }
}

static void config_space(void **state)
{
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.config_bytes = 4096;
    case_run(&opt, NULL, 30, 30);
    strict_options_default(&opt);
    opt.config_bytes = 8; /* address and status, and no MTU */
    opt.offered &= ~strict_bit(F_MTU);
    case_run(&opt, NULL, 30, 30);
    for (uint16_t bytes = 1; bytes < 12; bytes++) {
        strict_options_default(&opt);
        opt.config_bytes = bytes;
        opt.offered &= bytes < 12 ? ~strict_bit(F_MTU) : ~0ull;
        case_init(&opt);
        host.dev.report.loud = false;
        if (host_open(&host, NULL)) { /* never a read beyond the end: CFG-06 */
            case_traffic(10, 10);
        }
        excuse_unreadable();
        case_end();
    }
}

static void mtu(void **state)
{
    static const uint16_t sizes[] = {67, 68, 576, 1280, 1500, 9000, 65535};
    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (unsigned form = 0; form < 2; form++) {
            struct strict_options opt;
            strict_options_default(&opt);
            opt.mtu_bytes = sizes[i];
            opt.offered &=
                form == 1 ? ~(strict_bit(F_MRG_RXBUF) | strict_bit(F_GUEST_TSO4)) : ~0ull;
            case_init(&opt);
            if (sizes[i] < 68) {
                /* Not usable: the bit is left out, and told. */
                host.dev.report.loud = false;
                case_open(NULL);
                assert_false(strict_has(virtio_net_info(host.net)->features_accepted, F_MTU));
                host.dev.report.violations = host.dev.report.violated[NET_DRV_CFG_07] = 0;
            } else {
                case_open(NULL);
                assert_int_equal(virtio_net_info(host.net)->mtu_bytes, sizes[i]);
                case_traffic(60, 60);
            }
            case_end();
        }
    }
}

/* Without MAC: an address of its own, local, not a group, and another for each device. */
static void own_address(void **state)
{
    uint8_t first[6];
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.offered &= ~strict_bit(F_MAC);
    case_init(&opt);
    case_open(NULL);
    memcpy(first, virtio_net_info(host.net)->mac, 6);
    assert_int_equal(first[0] & 3, 2);
    assert_false(virtio_net_info(host.net)->mac_from_device);
    case_traffic(20, 20);
    case_end();
}

static void link_state(void **state)
{
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.link_up = false;
    case_init(&opt);
    case_open(NULL);
    assert_false(virtio_net_info(host.net)->link_up);
    strict_device_set_link(&host.dev, true);
    assert_true(host_settle(&host, 1000));
    assert_true(host.link_up);
    assert_int_equal(host.link_changes, 1);
    strict_device_set_link(&host.dev, false);
    assert_true(host_settle(&host, 1000));
    assert_false(virtio_net_info(host.net)->link_up);
    case_end();
    opt.offered &= ~strict_bit(F_STATUS);
    case_init(&opt);
    case_open(NULL);
    assert_true(virtio_net_info(host.net)->link_up);
    case_traffic(20, 20);
    case_end();
}

/* One vector for all: a change of configuration and used buffers announced by one interrupt. */
static void one_interrupt_for_both(void **state)
{
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.vectors = 1;
    case_init(&opt);
    case_open(NULL);
    assert_true(host_settle(&host, 1000));
    host_receive(&host, 64);
    host.dev.opt.link_up = false;
    host.dev.generation++;
    strict_config_fill(&host.dev);
    assert_true(virtio_net_arm(host.net, false));
    strict_device_step(&host.dev, seam_now_ns()); /* one message, for the used buffer */
    virtio_net_disarm(host.net);
    assert_true(host_settle(&host, 1000));
    assert_int_equal(host.rx_got, 1);
    assert_int_equal(host.link_changes, 1);
    case_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_subset),
        cmocka_unit_test(every_bit),
        cmocka_unit_test(children_without_parents),
        cmocka_unit_test(declared_deviations),
        cmocka_unit_test(taken_when_offered),
        cmocka_unit_test(legacy_device),
        cmocka_unit_test(device_refuses),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(capability_lists),
        cmocka_unit_test(unusable_capabilities),
        cmocka_unit_test(identity),
        cmocka_unit_test(vectors),
        cmocka_unit_test(doorbells),
        cmocka_unit_test(slow_reset),
        cmocka_unit_test(unstable_config),
        cmocka_unit_test(unreadable_address),
        cmocka_unit_test(config_space),
        cmocka_unit_test(mtu),
        cmocka_unit_test(own_address),
        cmocka_unit_test(link_state),
        cmocka_unit_test(one_interrupt_for_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
