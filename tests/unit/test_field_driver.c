/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Faults that others reported of drivers of this kind, tried on this one: what needs a device that
 * misbehaves, a ring that is full for long, or every size. Numbers are those of
 * docs/field-cases.md.
 *
 *     net/ + lwIP -> [driver] -> rings -> model device, or the strict one behind PCI registers
 */
#include "tests/unit/net_lab.h"

#include "net/netmem.h"
#include "tests/device/strict_case.h"
#include "tests/unit/rig_steps.h"

static uint8_t bytes[70000];

static void fill_bytes(uint32_t len, unsigned seed)
{
    for (uint32_t i = 0; i < len; i++) {
        bytes[i] = (uint8_t)(i * 13 + i / 251 + seed);
    }
}

/* ---- a ring that is full for long ---- */

#define REFUSED_SENDS 1000000u
#define REFUSED_PINGS 20000u

static unsigned writable;

static void on_writable(struct sock *sock, void *arg)
{
    (void)sock;
    (void)arg;
    writable++;
}

static const struct sock_ops sock_ops = {.writable = on_writable};

static enum sock_result send_datagram(struct sock *sock)
{
    uint8_t *payload;
    bool fresh;
    enum sock_result result = sock_udp_reserve(sock, 1000, &payload, &fresh);
    return result == SOCK_OK ? sock_udp_commit(sock) : result;
}

static void fill_ring(struct sock *sock)
{
    lab_serve();
    writable = 0;
    while (send_datagram(sock) == SOCK_OK) {
    }
    assert_true(virtio_net_tx_stopped(net_device(), PAIR));
}

static void ping_guest(unsigned number)
{
    uint8_t *icmp = bytes + L4_AT;
    memset(icmp, 0, 64);
    icmp[0] = 8;
    put16(icmp + 6, number);
    put16(icmp + 2, 0xffffu & ~wire_sum(icmp, 64, 0));
    lab_inject(bytes, lab_ip(bytes, 1, 64));
    lab_pass();
}

/* What the network holds when nothing is under way. */
struct held {
    uint64_t memory_bytes, rx_bufs, rx_free;
    unsigned in_flight;
};

static struct held held(void)
{
    struct virtio_net_rx_stats rx;
    virtio_net_rx_stats(net_device(), PAIR, &rx);
    return (struct held){netmem_used_bytes(), rx.pool_bufs, rx.pool_free + rx.posted,
                         virtio_net_tx_in_flight(net_device(), PAIR)};
}

/*
 * Field case 28: a million sends that a full ring refuses, and pings whose answers find the reserve
 * empty after they were built, keep nothing: memory, buffers and credit are what they were before.
 */
static void test_refused_sends_keep_nothing(void **state)
{
    struct model_options opt = lab_options();
    struct virtio_net_tx_stats tx;
    (void)state;
    lab_open(&opt, NULL);
    struct sock *sock = sock_udp_open(&sock_ops, NULL, 1 << 24);
    assert_int_equal(sock_udp_connect(sock, LAB_PEER_IP, 5000), SOCK_OK);
    ping_guest(0);
    assert_int_equal(send_datagram(sock), SOCK_OK); /* learns the address */
    fill_ring(sock); /* once before: a socket keeps the blocks that it has had */
    lab_serve();
    const struct held before = held();
    fill_ring(sock);
    const uint64_t full = netmem_used_bytes();
    for (unsigned i = 0; i < REFUSED_SENDS; i++) {
        if (send_datagram(sock) != SOCK_AGAIN) {
            fail_msg("send %u was not refused", i);
        }
    }
    assert_int_equal(netmem_used_bytes(), full);
    for (unsigned i = 0; i < REFUSED_PINGS; i++) {
        ping_guest(i);
    }
    virtio_net_tx_stats(net_device(), PAIR, &tx);
    assert_true(tx.drops[VIRTIO_NET_TX_DROP_RESERVE_EXHAUSTED] > REFUSED_PINGS - 64);
    assert_int_equal(tx.unexpected_full, 0);
    assert_int_equal(tx.stops, 2);
    assert_int_equal(writable, 0);
    lab_serve();
    lab_serve();
    const struct held after = held();
    assert_memory_equal(&before, &after, sizeof(before));
    assert_int_equal(writable, 1);
    assert_int_equal(send_datagram(sock), SOCK_OK);
    lab_serve();
    lab_assert_ledger();
    sock_close(sock, false);
    lab_close();
}

/* ---- too few receive buffers ---- */

static void drain_ring(struct rig *rig)
{
    rig->rx_keep = true;
    while (model_receive(&rig->device, plain, bytes, 60)) {
        virtio_net_rx_poll(rig->dev, PAIR, 64);
    }
    assert_int_equal(rig_rx(rig).posted, 0);
    assert_true(rig_rx(rig).refill_fail > 0);
}

/*
 * Field case 24: the reader kept every buffer, the ring is empty and no interrupt can come. The
 * first buffer that is freed goes out by itself, with one kick; what is freed later goes out with
 * the next look, even if no packet came. That there was a shortage is counted.
 */
static void test_empty_ring_is_refilled(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        struct rig *rig = rig_new();
        rig->opt.size_descs[MODEL_RX] = 16;
        rig->config.refuse.mrg_rxbuf = (form & 1) != 0;
        rig->config.refuse.event_idx = (form & 2) != 0;
        assert_true(rig_open(rig));
        struct model_queue *q = &rig->device.q[MODEL_RX];
        for (unsigned round = 0; round < 3; round++) {
            drain_ring(rig);
            assert_true(virtio_net_arm(rig->dev, false));
            virtio_net_disarm(rig->dev);
            uint64_t kicks = q->kicks;
            virtio_net_rx_return(rig->dev, rig->rx_kept[--rig->n_rx_kept]);
            assert_int_equal(rig_rx(rig).posted, 1);
            assert_int_equal(q->kicks, kicks + 1);
            model_take(&rig->device, MODEL_RX);
            model_notify(&rig->device, MODEL_RX, true);
            virtio_net_rx_return(rig->dev, rig->rx_kept[--rig->n_rx_kept]);
            assert_int_equal(rig_rx(rig).posted, 1); /* not one by one */
            assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 0);
            assert_int_equal(rig_rx(rig).posted, 2);
            assert_int_equal(q->kicks, kicks + 2);
            rig->rx_keep = false;
            const uint64_t packets = rig->rx_packets;
            for (unsigned i = 0; i < 40; i++) {
                assert_true(model_receive(&rig->device, plain, bytes, 60));
                assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
            }
            assert_int_equal(rig->rx_packets, packets + 40);
            rig_return_kept(rig);
            virtio_net_rx_poll(rig->dev, PAIR, 64);
            assert_int_equal(rig_rx(rig).posted, 16);
        }
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* ---- sizes ---- */

static void receive_whole(struct rig *rig, uint32_t len, bool tagged)
{
    fill_bytes(len, len);
    if (tagged) {
        put32(bytes + 12, 0x81000064u); /* 802.1Q, VLAN 100 */
    }
    const uint64_t packets = rig->rx_packets;
    if (!model_receive(&rig->device, plain, bytes, len)) {
        fail_msg("%u bytes do not fit", len);
    }
    assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
    assert_int_equal(rig->rx_packets, packets + 1);
    assert_int_equal(rig->rx_last.len_bytes, len);
    assert_memory_equal(rig->rx_copy, bytes, len);
}

/*
 * Field case 26: every frame of 60 to 1518 bytes, and of 8950 to 9018 with an MTU of 9000, tagged
 * or not, arrives with its first and its last byte, in each form of buffer.
 */
static void test_every_frame_size(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 6; form++) {
        struct rig *rig = rig_new();
        const bool jumbo = form >= 3;
        rig->config.refuse.guest_tso = form % 3 < 2;
        rig->config.refuse.mrg_rxbuf = form % 3 < 1;
        rig->opt.features |= FEATURE(VIRTIO_NET_F_MTU);
        rig->opt.mtu_bytes = jumbo ? 9000 : 1500;
        assert_true(rig_open(rig));
        for (uint32_t len = jumbo ? 8950 : 60; len <= (jumbo ? 9018u : 1518u); len++) {
            receive_whole(rig, len, true);
            receive_whole(rig, len - 4, false);
        }
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* ---- packets in many buffers ---- */

/*
 * Field case 36: a count of buffers that cannot be is dropped and counted, one that can is
 * followed, and a last piece that is said to be longer than its buffer spoils its packet alone.
 * After each of them the next packet is read from its beginning.
 */
static void test_counts_of_merged_buffers(void **state)
{
    static const struct {
        uint16_t count;
        bool possible;
    } cases[] = {{0, false},  {1, true},    {2, true},    {17, true},   {64, true},
                 {65, false}, {300, false}, {257, false}, {256, false}, {65535, false}};
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (unsigned lie = 0; lie < 2; lie++) {
            struct rig *rig = rig_new();
            struct virtio_net_hdr hdr = {.num_buffers = cases[i].count};
            const uint16_t n = cases[i].possible ? cases[i].count : 1;
            rig->opt.size_descs[MODEL_RX] = 256;
            assert_true(rig_open(rig));
            for (uint16_t k = 0; k < n; k++) {
                bool last_lies = lie != 0 && k + 1 == n;
                use_first(rig, k == 0 ? &hdr : NULL, last_lies ? 0x10000 : 100);
                virtio_net_rx_poll(rig->dev, PAIR, 64);
            }
            const bool arrives = cases[i].possible && lie == 0;
            const struct virtio_net_rx_stats rx = rig_rx(rig);
            assert_int_equal(rig->rx_packets, arrives ? 1 : 0);
            assert_int_equal(rx.drops[VIRTIO_NET_RX_DROP_NUM_BUFFERS],
                             cases[i].possible || lie != 0 ? 0 : 1);
            assert_int_equal(rx.drops[VIRTIO_NET_RX_DROP_LONG], lie);
            if (arrives) {
                assert_int_equal(rig->rx_last.n_pieces, n);
                assert_int_equal(rig->rx_last.len_bytes, 100u * n - sizeof(hdr));
            }
            receive_whole(rig, 1000, false);
            receive_whole(rig, 60000, false);
            assert_true(rig_at_rest(rig));
            rig_free(rig);
        }
    }
}

/*
 * Field case 36: packets of 64 KiB in 17 buffers, or in 33, on rings whose size is no multiple of
 * it: they cross the end of the ring in every place, and each byte is where it was.
 */
static void test_merged_packets_cross_the_wrap(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        struct rig *rig = rig_new();
        rig->config.refuse.guest_tso = (form & 1) != 0;
        rig->opt.size_descs[MODEL_RX] = (form & 2) != 0 ? 256 : 64;
        rig->opt.features |= FEATURE(VIRTIO_NET_F_MTU);
        rig->opt.mtu_bytes = 65535;
        assert_true(rig_open(rig));
        for (unsigned i = 0; i < 300; i++) {
            receive_whole(rig, 65535 - i * 7, false);
            assert_int_equal(rig->rx_last.n_pieces > 30, (form & 1) != 0);
            receive_whole(rig, 60 + i, false);
        }
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* ---- start-up ---- */

/*
 * Field cases 33, 35: with and without merging, and whatever else is offered (packed rings, hash
 * reports, features above bit 63), the header has 12 bytes, as the strict device reads it in frames
 * both ways. Of the features two words are read and written, and no more.
 */
static void test_header_and_feature_words(void **state)
{
    static const uint64_t more[] = {0, 1ull << 34, 1ull << 57 | 1ull << 17,
                                    1ull << 60 | 1ull << 22 | 1ull << 17, ~0ull};
    (void)state;
    for (unsigned i = 0; i < 2 * sizeof(more) / sizeof(more[0]); i++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered |= more[i / 2];
        opt.offered &= i % 2 ? ~(strict_bit(F_MRG_RXBUF) | strict_bit(F_GUEST_TSO4)) : ~0ull;
        opt.offered_beyond = 0xffffffffu;
        case_init(&opt);
        case_open(NULL);
        assert_int_equal(virtio_net_info(host.net)->hdr_bytes, 12);
        assert_int_equal(host.dev.feature_words_read, 3);
        assert_int_equal(host.dev.driver_features_high, 0);
        assert_int_equal(host.dev.driver_features & (1ull << 34 | 1ull << 57 | 1ull << 60), 0);
        case_traffic(300, 300);
        case_end();
    }
}

/*
 * Field case 37: an address whose bytes all differ and an MTU whose halves do are what the driver
 * adopts, in accesses as wide as the field (the strict device checks each), from a device with
 * either id; while the address changes under the reader it adopts one of the two, whole.
 */
static void test_configuration_is_read_whole(void **state)
{
    static const uint8_t mac[6] = {0x02, 0xfe, 0x01, 0x80, 0x7f, 0xff};
    (void)state;
    for (uint32_t changes = 0; changes <= 12; changes++) {
        struct strict_options opt;
        strict_options_default(&opt);
        memcpy(opt.mac, mac, sizeof(mac));
        opt.mtu_bytes = 1400;
        opt.pci_device_id = changes % 2 != 0 ? 0x1000 : 0x1041;
        case_init(&opt);
        host.dev.fault.config_unstable = changes;
        case_open(NULL);
        const struct virtio_net_info *info = virtio_net_info(host.net);
        const uint8_t flip = info->mac[1] ^ mac[1];
        assert_true(flip == 0 || flip == 0xff);
        assert_int_equal(info->mac[0], mac[0]);
        for (unsigned i = 1; i < 6; i++) {
            assert_int_equal(info->mac[i] ^ mac[i], flip);
        }
        assert_memory_equal(info->mac, host.dev.config, 6); /* the one that it has now */
        assert_int_equal(info->mtu_bytes, 1400);
        assert_true(info->link_up);
        assert_int_equal(host.dev.report.violated[PCI_DRV_LAY_01], 0);
        assert_int_equal(host.dev.report.violated[PCI_DRV_LAY_02], 0);
        case_end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_sends_keep_nothing),
        cmocka_unit_test(test_empty_ring_is_refilled),
        cmocka_unit_test(test_every_frame_size),
        cmocka_unit_test(test_counts_of_merged_buffers),
        cmocka_unit_test(test_merged_packets_cross_the_wrap),
        cmocka_unit_test(test_header_and_feature_words),
        cmocka_unit_test(test_configuration_is_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
