/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The judge itself: each check that no mutant of this driver can trip, because the feature is not
 * there to be broken, is shown to fail when it should.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/strict_frames.h"
#include "tests/device/strict_net.h"
#include "tests/device/strict_ring.h"

static struct strict_report report;
static struct strict_net net;
static const uint8_t mac[6] = {0x52, 0x54, 0, 1, 2, 3};

static void fresh(uint64_t accepted)
{
    memset(&report, 0, sizeof(report));
    net = (struct strict_net){.report = &report,
                              .offered = accepted | strict_bit(F_VERSION_1),
                              .accepted = accepted | strict_bit(F_VERSION_1),
                              .mtu_bytes = 1500};
    memcpy(net.mac, mac, 6);
}

static void expect(enum strict_clause clause)
{
    if (report.violated[clause] == 0) {
        fail_msg("%s was not reported", strict_clause_id[clause]);
    }
}

/* ---- features ---- */

static void every_dependency(void **state)
{
    static const struct {
        enum strict_clause clause;
        enum strict_feature bit;
    } alone[] = {
        {NET_DRV_DEP_01, F_GUEST_TSO4},
        {NET_DRV_DEP_02, F_GUEST_TSO6},
        {NET_DRV_DEP_03, F_GUEST_ECN},
        {NET_DRV_DEP_04, F_GUEST_UFO},
        {NET_DRV_DEP_05, F_GUEST_USO4},
        {NET_DRV_DEP_06, F_GUEST_USO6},
        {NET_DRV_DEP_07, F_GUEST_UDP_TUNNEL_GSO},
        {NET_DRV_DEP_08, F_GUEST_UDP_TUNNEL_GSO_CSUM},
        {NET_DRV_DEP_09, F_HOST_TSO4},
        {NET_DRV_DEP_10, F_HOST_TSO6},
        {NET_DRV_DEP_11, F_HOST_ECN},
        {NET_DRV_DEP_12, F_HOST_UFO},
        {NET_DRV_DEP_13, F_HOST_USO},
        {NET_DRV_DEP_14, F_HOST_UDP_TUNNEL_GSO},
        {NET_DRV_DEP_15, F_HOST_UDP_TUNNEL_GSO_CSUM},
        {NET_DRV_DEP_16, F_CTRL_RX},
        {NET_DRV_DEP_17, F_CTRL_VLAN},
        {NET_DRV_DEP_18, F_GUEST_ANNOUNCE},
        {NET_DRV_DEP_19, F_MQ},
        {NET_DRV_DEP_20, F_CTRL_MAC_ADDR},
        {NET_DRV_DEP_21, F_NOTF_COAL},
        {NET_DRV_DEP_22, F_RSC_EXT},
        {NET_DRV_DEP_23, F_RSS},
        {NET_DRV_DEP_24, F_VQ_NOTF_COAL},
        {NET_DRV_DEP_25, F_HASH_TUNNEL},
        {NET_DRV_CFG_14, F_HASH_REPORT},
        {NET_DRV_CFG_15, F_CTRL_RX_EXTRA},
    };
    (void)state;
    for (unsigned i = 0; i < sizeof(alone) / sizeof(alone[0]); i++) {
        fresh(strict_bit(alone[i].bit));
        strict_net_check_features(&net);
        expect(alone[i].clause);
        expect(CORE_DRV_FEAT_02);
        expect(CORE_DRV_FEAT_03);
    }
    fresh(strict_bit(F_CSUM) | strict_bit(F_GUEST_CSUM) | strict_bit(F_HOST_TSO4) |
          strict_bit(F_GUEST_TSO4));
    strict_net_check_features(&net);
    assert_int_equal(report.violations, 0);
}

static void every_command(void **state)
{
    static const struct {
        enum strict_clause clause;
        uint8_t class, command;
    } commands[] = {
        {NET_DRV_RXF_01, 0, 0},  {NET_DRV_RXF_02, 0, 1},  {NET_DRV_RXF_03, 0, 2},
        {NET_DRV_RXF_04, 0, 3},  {NET_DRV_RXF_05, 0, 4},  {NET_DRV_RXF_06, 0, 5},
        {NET_DRV_MAC_01, 1, 0},  {NET_DRV_MAC_01, 1, 1},  {NET_DRV_RSS_01, 4, 1},
        {NET_DRV_COAL_02, 6, 0}, {NET_DRV_COAL_02, 6, 1}, {NET_DRV_COAL_03, 6, 2},
        {NET_DRV_COAL_03, 6, 3}, {NET_DRV_IHH_01, 7, 0},  {NET_DRV_RCX_01, 9, 0},
    };
    (void)state;
    for (unsigned i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        fresh(strict_bit(F_CTRL_VQ));
        strict_net_check_command(&net, commands[i].class, commands[i].command);
        expect(commands[i].clause);
    }
    fresh(strict_bit(F_CTRL_VQ) | strict_bit(F_CTRL_RX));
    strict_net_check_command(&net, 0, 0);
    strict_net_check_command(&net, 1, 1);
    assert_int_equal(report.violations, 0);
}

/* ---- headers ---- */

static uint8_t buffer[STRICT_NET_HDR_BYTES + STRICT_NET_FRAME_BYTES];

static void judge_udp(uint64_t accepted, struct strict_net_hdr hdr, bool partial)
{
    fresh(accepted);
    const uint32_t len = frames_udp(buffer + STRICT_NET_HDR_BYTES, mac, 400, 1, partial);
    memcpy(buffer, &hdr, sizeof(hdr));
    assert_true(strict_net_check_tx(&net, buffer, STRICT_NET_HDR_BYTES + len));
}

static void judge_tcp(uint64_t accepted, struct strict_net_hdr hdr, uint8_t tcp_flags)
{
    fresh(accepted);
    const uint32_t len = frames_tcp(buffer + STRICT_NET_HDR_BYTES, mac, 4000, 1);
    buffer[STRICT_NET_HDR_BYTES + FRAMES_L4_AT + 13] |= tcp_flags;
    memcpy(buffer, &hdr, sizeof(hdr));
    assert_true(strict_net_check_tx(&net, buffer, STRICT_NET_HDR_BYTES + len));
}

static const struct strict_net_hdr good_csum = {.flags = 1, .csum_start = 34, .csum_offset = 6};
static const struct strict_net_hdr good_tso = {.flags = 1,
                                               .gso_type = 1,
                                               .hdr_len = 54,
                                               .gso_size = 1448,
                                               .csum_start = 34,
                                               .csum_offset = 16};

static void good_frames(void **state)
{
    const uint64_t all = strict_bit(F_CSUM) | strict_bit(F_HOST_TSO4) | strict_bit(F_GUEST_HDRLEN);
    (void)state;
    judge_udp(0, (struct strict_net_hdr){0}, false);
    assert_int_equal(report.violations, 0);
    judge_udp(all, good_csum, true);
    assert_int_equal(report.violations, 0);
    judge_tcp(all, good_tso, 0);
    assert_int_equal(report.violations, 0);
}

static void bad_flags(void **state)
{
    const uint64_t csum = strict_bit(F_CSUM);
    struct strict_net_hdr hdr;
    (void)state;
    judge_udp(csum, (struct strict_net_hdr){.num_buffers = 1}, false);
    expect(NET_DRV_TX_02);
    judge_udp(0, good_csum, true);
    expect(NET_DRV_TX_03);
    judge_udp(0, (struct strict_net_hdr){0}, true);
    expect(NET_DRV_TX_04);
    judge_udp(csum, (struct strict_net_hdr){.flags = 2}, false);
    expect(NET_DRV_TX_45);
    judge_udp(csum, (struct strict_net_hdr){.flags = 2, .gso_type = 0x21}, false);
    expect(NET_DRV_TX_47);
    judge_udp(csum, (struct strict_net_hdr){.flags = 4}, false);
    expect(NET_DRV_TX_46);
    judge_udp(csum, (struct strict_net_hdr){.flags = 8}, false);
    expect(NET_DRV_TX_20);
    expect(NET_DRV_TX_22);
    judge_udp(csum, (struct strict_net_hdr){.csum_start = 34}, false);
    expect(NET_DRV_TX_50);
    hdr = good_csum;
    hdr.csum_start = 2000;
    judge_udp(csum, hdr, true);
    expect(NET_DRV_TX_30);
    hdr.csum_start = 30;
    judge_udp(csum, hdr, true);
    expect(NET_DRV_TX_30);
    judge_udp(csum, good_csum, false);
    expect(NET_DRV_TX_29);
}

static void bad_segmentation(void **state)
{
    static const struct {
        enum strict_clause clause;
        uint8_t type;
    } types[] = {
        {NET_DRV_TX_07, 1},    {NET_DRV_TX_09, 4},    {NET_DRV_TX_11, 3},
        {NET_DRV_TX_13, 5},    {NET_DRV_TX_17, 0x21}, {NET_DRV_TX_23, 0x41},
        {NET_DRV_TX_42, 0x21}, {NET_DRV_TX_43, 0x21}, {NET_DRV_TX_31, 1},
    };
    const uint64_t tso = strict_bit(F_CSUM) | strict_bit(F_HOST_TSO4);
    struct strict_net_hdr hdr = good_tso;
    (void)state;
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        hdr.gso_type = types[i].type;
        judge_tcp(strict_bit(F_CSUM), hdr, 0);
        expect(types[i].clause);
    }
    hdr = good_tso;
    hdr.flags = 0;
    judge_tcp(tso, hdr, 0);
    expect(NET_DRV_TX_32);
    hdr = good_tso;
    hdr.gso_size = 0;
    judge_tcp(tso, hdr, 0);
    expect(NET_DRV_TX_33);
    hdr = good_tso;
    hdr.hdr_len = 53;
    judge_tcp(tso, hdr, 0);
    expect(NET_DRV_TX_36);
    hdr.hdr_len = 60;
    judge_tcp(tso | strict_bit(F_GUEST_HDRLEN), hdr, 0);
    expect(NET_DRV_TX_34);
    judge_tcp(tso, good_tso, 0x80);
    expect(NET_DRV_TX_14);
}

static void bad_frames(void **state)
{
    (void)state;
    judge_udp(strict_bit(F_CSUM), (struct strict_net_hdr){0}, false);
    net.check_source_mac = true;
    net.accepted |= strict_bit(F_MAC) | strict_bit(F_MTU);
    net.mac[5]++;
    net.mtu_bytes = 100;
    assert_true(strict_net_check_tx(&net, buffer, 12 + 42 + 400));
    expect(NET_DRV_CFG_03);
    expect(NET_DRV_CFG_09);
    fresh(0);
    net.check_source_mac = true;
    frames_udp(buffer + 12, (const uint8_t[]){0, 1, 2, 3, 4, 5}, 400, 1, false);
    memset(buffer, 0, 12);
    assert_true(strict_net_check_tx(&net, buffer, 12 + 42 + 400));
    expect(NET_DRV_CFG_04);
    assert_false(strict_net_check_tx(&net, buffer, 20));
    expect(NET_DRV_RXB_09);
    /* The header two bytes short: the frame is found at the wrong place. */
    fresh(0);
    memmove(buffer + 10, buffer + 12, 442);
    strict_net_check_tx(&net, buffer, 452);
    expect(NET_DRV_TX_01);
    /* The IPv4 header's own checksum. */
    judge_udp(strict_bit(F_CSUM), good_csum, true);
    frames_udp(buffer + 12, mac, 400, 1, true);
    memcpy(buffer, &good_csum, 12);
    buffer[12 + FRAMES_IP_AT + 10]++;
    strict_net_check_tx(&net, buffer, 454);
    expect(NET_DRV_TX_28);
}

static void bad_receive_buffers(void **state)
{
    struct strict_chain chain = {.writable_bytes = 11};
    (void)state;
    fresh(strict_bit(F_MRG_RXBUF) | strict_bit(F_MTU));
    strict_net_check_rx_buffer(&net, &chain);
    expect(NET_DRV_RXB_05);
    strict_net_check_rx_stock(&net, 1525);
    expect(NET_DRV_CFG_08);
    chain.writable_bytes = 1525;
    fresh(0);
    strict_net_check_rx_buffer(&net, &chain);
    expect(NET_DRV_RXB_04);
    fresh(strict_bit(F_GUEST_TSO4));
    chain.writable_bytes = 65600;
    strict_net_check_rx_buffer(&net, &chain);
    expect(NET_DRV_RXB_02);
}

/* ---- rings ---- */

static _Alignas(4096) uint8_t ram[65536];

static uint8_t *at(void *ctx, uint64_t addr, uint64_t len)
{
    (void)ctx;
    return addr < sizeof(ram) && len <= sizeof(ram) - addr ? ram + addr : NULL;
}

static void ring(struct strict_queue *q, bool event_idx, bool indirect)
{
    memset(&report, 0, sizeof(report));
    memset(ram, 0, sizeof(ram));
    *q = (struct strict_queue){.report = &report,
                               .memory = {.at = at},
                               .index = 1,
                               .direction = STRICT_DEVICE_READS,
                               .size_descs = 8,
                               .desc_addr = 0,
                               .avail_addr = 1024,
                               .used_addr = 2048,
                               .event_idx = event_idx,
                               .indirect = indirect,
                               .exact = true,
                               .max_chain_descs = 4};
    assert_true(strict_queue_enable(q, 0));
}

static void describe(unsigned i, uint64_t addr, uint32_t len, uint16_t flags, uint16_t next)
{
    const struct strict_desc d = {addr, len, flags, next};
    memcpy(ram + 16 * i, &d, sizeof(d));
}

static void expose(struct strict_queue *q, uint16_t head)
{
    const uint16_t idx = *strict_avail_idx(q);
    q->avail[2 + idx % 8] = head;
    *strict_avail_idx(q) = (uint16_t)(idx + 1);
}

static void bad_chains(void **state)
{
    struct strict_queue q;
    static const struct {
        enum strict_clause clause;
        struct strict_desc first, second;
        bool indirect;
    } cases[] = {
        {SPL_DRV_FRM_01, {4096, 10, 3, 1}, {4096, 10, 0, 0}, false},
        {NET_DRV_TX_50, {4096, 10, 2, 0}, {0, 0, 0, 0}, false},
        {SPL_DRV_DSC_02, {4096, 10, 1, 1}, {4096, 10, 1, 0}, false},
        {SPL_DRV_GEN_02, {4096, 10, 1, 99}, {0, 0, 0, 0}, false},
        {CORE_DRV_RFB_05, {1ull << 40, 10, 0, 0}, {0, 0, 0, 0}, false},
        {SPL_DRV_IND_01, {4096, 16, 4, 0}, {0, 0, 0, 0}, false},
        {SPL_DRV_IND_04, {4096, 16, 5, 1}, {4096, 10, 0, 0}, true},
        {SPL_DRV_IND_03, {4096, 16 * 9, 4, 0}, {0, 0, 0, 0}, true},
    };
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ring(&q, false, cases[i].indirect);
        q.direction = cases[i].clause == NET_DRV_TX_50 ? STRICT_DEVICE_READS : STRICT_DEVICE_BOTH;
        memcpy(ram, &cases[i].first, 16);
        memcpy(ram + 16, &cases[i].second, 16);
        expose(&q, 0);
        strict_queue_look(&q, 0);
        expect(cases[i].clause);
        assert_true(q.chains[0].malformed);
        strict_queue_disable(&q);
    }
}

static uint8_t *anywhere(void *ctx, uint64_t addr, uint64_t len)
{
    (void)ctx;
    (void)len;
    return ram + addr % 4096;
}

/* Lengths that only a chain through all of memory could have. */
static void too_many_bytes(void **state)
{
    struct strict_queue q;
    (void)state;
    ring(&q, false, false);
    q.memory.at = anywhere;
    for (uint16_t i = 0; i < 5; i++) {
        describe(i, 0, 0xffffffff, i < 4 ? 1 : 0, (uint16_t)(i + 1));
    }
    expose(&q, 0);
    strict_queue_look(&q, 0);
    expect(SPL_DRV_DSC_01);
    expect(SPL_DRV_FRM_02);
    strict_queue_disable(&q);
}

static void bad_indirect_tables(void **state)
{
    struct strict_queue q;
    (void)state;
    ring(&q, false, true);
    describe(0, 4096, 32, 4, 0);
    const struct strict_desc nested = {8192, 16, 4, 0};
    memcpy(ram + 4096, &nested, 16);
    expose(&q, 0);
    strict_queue_look(&q, 0);
    expect(SPL_DRV_IND_02);
    strict_queue_disable(&q);
    ring(&q, false, true);
    describe(0, 4096, 32, 4, 0);
    const struct strict_desc loop = {8192, 16, 1, 0};
    memcpy(ram + 4096, &loop, 16);
    expose(&q, 0);
    strict_queue_look(&q, 0);
    expect(SPL_DRV_DSC_02);
    strict_queue_disable(&q);
}

static void bad_indices(void **state)
{
    struct strict_queue q;
    (void)state;
    ring(&q, false, false);
    describe(0, 4096, 10, 0, 0);
    expose(&q, 0);
    expose(&q, 0); /* in flight already */
    strict_queue_look(&q, 0);
    expect(SPL_DRV_GEN_02);
    *strict_avail_idx(&q) = 1; /* taken back */
    strict_queue_look(&q, 0);
    expect(SPL_DRV_AVL_01);
    *strict_avail_idx(&q) = 60;
    strict_queue_look(&q, 0);
    expect(SPL_DRV_AVL_01);
    *strict_avail_flags(&q) = 2;
    strict_queue_look(&q, 0);
    expect(SPL_DRV_UNS_01);
    strict_queue_disable(&q);
    ring(&q, true, false);
    *strict_avail_flags(&q) = 1;
    strict_queue_look(&q, 0);
    expect(SPL_DRV_UNS_03);
    strict_queue_disable(&q);
}

static void changed_in_flight(void **state)
{
    struct strict_queue q;
    (void)state;
    ring(&q, false, false);
    describe(0, 4096, 10, 0, 0);
    expose(&q, 0);
    assert_int_equal(strict_queue_look(&q, 0), 1);
    describe(0, 4096, 11, 0, 0);
    strict_queue_use(&q, strict_queue_take(&q, 0), 0);
    expect(CORE_DRV_CLN_01);
    strict_queue_disable(&q);
}

static void kicks_judged(void **state)
{
    struct strict_queue q;
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        ring(&q, event_idx != 0, false);
        describe(0, 4096, 10, 0, 0);
        expose(&q, 0);
        strict_queue_look(&q, 0);
        strict_queue_kick_overdue(&q, "in this test");
        expect(event_idx ? SPL_DRV_ANS_06 : SPL_DRV_ANS_04);
        strict_queue_kicked(&q);
        strict_queue_use(&q, strict_queue_take(&q, 0), 0);
        strict_queue_notify_off(&q);
        memset(&report, 0, sizeof(report));
        strict_queue_publish(&q);
        strict_queue_kicked(&q);
        strict_queue_kicked(&q);
        expect(event_idx ? SPL_DRV_ANS_07 : SPL_DRV_ANS_03);
        strict_queue_disable(&q);
    }
}

static void bad_rings(void **state)
{
    struct strict_queue q;
    (void)state;
    ring(&q, false, false);
    strict_queue_disable(&q);
    q.desc_addr = 8;
    q.avail_addr = 1025;
    q.used_addr = 2050;
    assert_false(strict_queue_enable(&q, 0));
    expect(SPL_DRV_ALN_01);
    expect(SPL_DRV_ALN_02);
    expect(SPL_DRV_ALN_03);
    q.desc_addr = 0;
    q.avail_addr = 1024;
    q.used_addr = 2048;
    ram[2048] = 1;
    ram[2060] = 1;
    assert_true(strict_queue_enable(&q, 0));
    expect(SPL_DRV_ANS_01);
    expect(PCI_DRV_GEN_03);
    strict_queue_disable(&q);
    q.used_addr = 1 << 20;
    assert_false(strict_queue_enable(&q, 0));
    expect(CORE_DRV_RFB_05);
}

/* Whichever is taken, the others keep their order; also across the end of the table. */
static void takes_in_any_order(void **state)
{
    (void)state;
    for (uint32_t before = 0; before < 8; before++) {
        for (uint32_t nth = 0; nth < 8; nth++) {
            struct strict_queue q;
            ring(&q, false, false);
            for (uint32_t i = 0; i < before + 8; i++) {
                describe(i % 8, 4096, 10, 0, 0);
                expose(&q, (uint16_t)(i % 8));
                strict_queue_look(&q, 0);
                if (i < before) {
                    strict_queue_use(&q, strict_queue_take(&q, 0), 0);
                }
            }
            assert_int_equal(strict_queue_take(&q, nth)->head, (before + nth) % 8);
            for (uint32_t i = 0; i < 8; i++) {
                if (i != nth) {
                    assert_int_equal(strict_queue_take(&q, 0)->head, (before + i) % 8);
                }
            }
            assert_int_equal(q.n_pending, 0);
            strict_queue_disable(&q);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dependency),    cmocka_unit_test(every_command),
        cmocka_unit_test(good_frames),         cmocka_unit_test(bad_flags),
        cmocka_unit_test(bad_segmentation),    cmocka_unit_test(bad_frames),
        cmocka_unit_test(bad_receive_buffers), cmocka_unit_test(bad_chains),
        cmocka_unit_test(too_many_bytes),      cmocka_unit_test(bad_indirect_tables),
        cmocka_unit_test(bad_indices),         cmocka_unit_test(changed_in_flight),
        cmocka_unit_test(kicks_judged),        cmocka_unit_test(bad_rings),
        cmocka_unit_test(takes_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
