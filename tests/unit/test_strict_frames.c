/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Frames on the strict device: the header that goes out with each kind, and headers that come in
 * with everything in them that means nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/strict_case.h"
#include "tests/device/strict_frames.h"

/* Each number of pieces, header in front or apart, checksum here or there, both ring forms. */
static void every_form(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 16; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered &= form & 1 ? ~strict_bit(F_INDIRECT_DESC) : ~0ull;
        opt.offered &= form & 2 ? ~strict_bit(F_CSUM) : ~0ull;
        opt.offered &= form & 4 ? ~strict_bit(F_HOST_TSO4) : ~0ull;
        opt.offered &= form & 8 ? ~strict_bit(F_MRG_RXBUF) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        const struct virtio_net_info *info = virtio_net_info(host.net);
        for (uint16_t n = 1; n <= info->tx_max_segs; n++) {
            for (unsigned k = 0; k < 4; k++) {
                assert_int_equal(host_send(&host, 700 + n, n, k & 1, info->can_csum && k & 2),
                                 VIRTIO_NET_OK);
                if (info->can_tso) {
                    assert_int_equal(host_send_tso(&host, 2000u * n + 100, n, 1448), VIRTIO_NET_OK);
                }
                assert_true(host_settle(&host, 1000));
            }
        }
        case_balanced();
        case_end();
    }
}

/* A frame in one piece, with room in front of it for the header, is one descriptor. */
static void one_descriptor_a_frame(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 2; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered &= form == 1 ? ~strict_bit(F_INDIRECT_DESC) : ~0ull;
        opt.max_chain_descs = 1;
        case_init(&opt);
        case_open(NULL);
        for (unsigned i = 0; i < 100; i++) {
            assert_int_equal(host_send(&host, 100 + i, 1, true, false), VIRTIO_NET_OK);
            virtio_net_tx_flush(host.net, 0);
        }
        assert_true(host_settle(&host, 1000));
        assert_int_equal(host.dev.descs, 100);
        case_end();
    }
}

/* A frame that cannot be sent is refused before anything is written. */
static void malformed_frames(void **state)
{
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.offered &= ~(strict_bit(F_HOST_TSO4) | strict_bit(F_CSUM));
    case_init(&opt);
    case_open(NULL);
    const enum virtio_net_result above_mtu = host_send(&host, 1473, 1, true, false);
    assert_true(host_settle(&host, 1000)); /* were it taken, the device would have its say */
    assert_int_equal(above_mtu, VIRTIO_NET_FATAL);
    assert_int_equal(host_send(&host, 100, 1, true, true), VIRTIO_NET_FATAL); /* no CSUM */
    assert_int_equal(host_send_tso(&host, 5000, 3, 1448), VIRTIO_NET_FATAL);  /* no TSO */
    assert_int_equal(host_send(&host, 1472, 1, true, false), VIRTIO_NET_OK);
    assert_true(host_settle(&host, 1000));
    struct virtio_net_tx_stats tx;
    virtio_net_tx_stats(host.net, 0, &tx);
    assert_int_equal(tx.drops[VIRTIO_NET_TX_DROP_MALFORMED], 3);
    assert_int_equal(host.tx_seen, 1);
    case_end();
    strict_options_default(&opt);
    opt.offered &= ~strict_bit(F_HOST_TSO4);
    case_init(&opt);
    case_open(NULL);
    assert_int_equal(host_send_tso(&host, 5000, 3, 1448), VIRTIO_NET_FATAL);
    assert_int_equal(host_send_tso(&host, 1200, 3, 1448), VIRTIO_NET_FATAL);
    case_end();
}

static void receive_with(const struct strict_net_hdr *hdr, uint32_t payload_bytes)
{
    static uint8_t frame[4096];
    static const uint8_t mac[6] = {2, 0, 0, 0, 0, 9};
    const uint32_t len = frames_udp(frame, mac, payload_bytes, host.rx_sent, false);
    host.rx_sent++;
    strict_device_send(&host.dev, hdr, frame, len);
    assert_true(host_settle(&host, 1000));
}

/* Unknown flag bits, checksum positions without their flag, header lengths: all without effect. */
static void meaningless_header_fields(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered &= form & 1 ? ~(strict_bit(F_GUEST_CSUM) | strict_bit(F_GUEST_TSO4)) : ~0ull;
        opt.offered &= form & 2 ? ~(strict_bit(F_MRG_RXBUF) | strict_bit(F_GUEST_TSO4)) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        for (unsigned bit = 2; bit < 8; bit++) {
            receive_with(&(struct strict_net_hdr){.flags = (uint8_t)(1u << bit)}, 200);
        }
        receive_with(&(struct strict_net_hdr){.csum_start = 0xffff, .csum_offset = 0xffff}, 200);
        receive_with(&(struct strict_net_hdr){.csum_start = 0xfff0, .csum_offset = 3}, 200);
        receive_with(&(struct strict_net_hdr){.hdr_len = 0xffff}, 200);
        receive_with(&(struct strict_net_hdr){.hdr_len = 1, .gso_size = 9}, 200);
        /* One cloud sets this uninvited. */
        receive_with(&(struct strict_net_hdr){.flags = STRICT_HDR_F_DATA_VALID}, 200);
        assert_int_equal(host.rx_got, host.rx_sent);
        const bool negotiated = !(form & 1);
        assert_int_equal(host.rx_valid, negotiated ? 1 : 0);
        assert_int_equal(host.rx_partial, 0);
        assert_int_equal(case_fault(VIRTIO_NET_FAULT_UNNEGOTIATED_FLAG), negotiated ? 0 : 1);
        case_end();
    }
}

/* What the device says of the checksum reaches the stack, and only that. */
static void checksum_verdicts(void **state)
{
    (void)state;
    case_default();
    case_open(NULL);
    receive_with(&(struct strict_net_hdr){0}, 200);
    assert_int_equal(host.rx_valid + host.rx_partial, 0);
    receive_with(&(struct strict_net_hdr){.flags = 1, .csum_start = 34, .csum_offset = 6}, 200);
    assert_int_equal(host.rx_partial, 1);
    assert_int_equal(host.rx_valid, 0);
    receive_with(&(struct strict_net_hdr){.flags = 2}, 200);
    assert_int_equal(host.rx_valid, 1);
    assert_int_equal(host.rx_got, 3);
    /* Positions beyond the packet: dropped, counted, nothing read there. */
    receive_with(&(struct strict_net_hdr){.flags = 1, .csum_start = 240, .csum_offset = 6}, 200);
    receive_with(&(struct strict_net_hdr){.flags = 1, .csum_start = 0xffff, .csum_offset = 0xffff},
                 200);
    assert_int_equal(host.rx_got, 3);
    assert_int_equal(case_fault(VIRTIO_NET_FAULT_HEADER), 2);
    case_end();
}

/* Segmentation types that were not negotiated, tunnel bits, both of them: dropped and counted. */
static void unnegotiated_segmentation(void **state)
{
    static const uint8_t types[] = {3, 4, 5, 0x20, 0x21, 0x41, 0x61, 0x60, 2, 31};
    (void)state;
    for (unsigned form = 0; form < 2; form++) {
        struct strict_options opt;
        strict_options_default(&opt);
        opt.offered &= form ? ~strict_bit(F_GUEST_TSO4) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        for (unsigned i = 0; i < sizeof(types); i++) {
            receive_with(&(struct strict_net_hdr){.flags = 1,
                                                  .gso_type = types[i],
                                                  .gso_size = 100,
                                                  .csum_start = 34,
                                                  .csum_offset = 6},
                         400);
        }
        assert_int_equal(host.rx_got, 0);
        assert_int_equal(case_fault(VIRTIO_NET_FAULT_UNNEGOTIATED_FLAG), sizeof(types));
        host.rx_sent = 0;
        case_traffic(50, 50);
        case_end();
    }
}

/* A packet of joined segments arrives in one piece, in as many buffers as it takes. */
static void joined_segments(void **state)
{
    static uint8_t frame[STRICT_NET_FRAME_BYTES];
    static const uint8_t mac[6] = {2, 0, 0, 0, 0, 9};
    const struct strict_net_hdr hdr = {
        .flags = 1, .gso_type = 1, .gso_size = 1448, .csum_start = 34, .csum_offset = 6};
    (void)state;
    case_default();
    case_open(NULL);
    for (uint32_t n = 1500; n < 65000; n += 3007) {
        /* As UDP, for the pattern's sake: the driver does not look beyond the header. */
        const uint32_t len = frames_udp(frame, mac, n, host.rx_sent, true);
        host.rx_sent++;
        strict_device_send(&host.dev, &hdr, frame, len);
        host_receive(&host, 64);
        assert_true(host_settle(&host, 1000));
    }
    assert_int_equal(host.rx_got, host.rx_sent);
    assert_int_equal(host.rx_gso, host.rx_sent / 2);
    case_end();
}

/* Bytes behind the used length stay in the buffer. */
static void short_but_possible_lengths(void **state)
{
    struct virtio_net_rx_stats rx;
    (void)state;
    case_default();
    case_open(NULL);
    for (uint32_t n = 4; n < 1400; n += 13) {
        host_receive(&host, n);
        assert_true(host_settle(&host, 1000));
    }
    assert_int_equal(host.rx_got, host.rx_sent);
    virtio_net_rx_stats(host.net, 0, &rx);
    assert_int_equal(rx.bytes, host.dev.rx_bytes);
    case_end();
}

/* Many small buffers for one packet: only the first begins with a header. */
static void merged_buffers(void **state)
{
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    opt.mtu_bytes = 9000;
    opt.offered &= ~strict_bit(F_GUEST_TSO4);
    case_init(&opt);
    case_open(NULL);
    case_traffic(500, 500);
    assert_true(host.dev.rx_buffers > host.dev.rx_packets);
    case_end();
}

/* The sum word by word, as RFC 1071 has it, at any address, of any length, with any start. */
static void sum_by_definition(void **state)
{
    static uint8_t bytes[300];
    uint32_t random = 1;
    (void)state;
    for (unsigned i = 0; i < sizeof(bytes); i++) {
        random = random * 1664525u + 1013904223u;
        bytes[i] = i < 40 ? 0xff : (uint8_t)(random >> 24);
    }
    for (uint32_t at = 0; at < 8; at++) {
        for (uint32_t n = 0; n < sizeof(bytes) - at; n++) {
            uint64_t sum = n * 997 % 70000;
            for (uint32_t i = 0; i < n; i++) {
                sum += (uint32_t)bytes[at + i] << (i % 2 == 0 ? 8 : 0);
            }
            while (sum >> 16 != 0) {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            assert_int_equal(strict_sum(bytes + at, n, n * 997 % 70000), sum);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form),        cmocka_unit_test(one_descriptor_a_frame),
        cmocka_unit_test(malformed_frames),  cmocka_unit_test(meaningless_header_fields),
        cmocka_unit_test(checksum_verdicts), cmocka_unit_test(unnegotiated_segmentation),
        cmocka_unit_test(joined_segments),   cmocka_unit_test(short_but_possible_lengths),
        cmocka_unit_test(merged_buffers),    cmocka_unit_test(sum_by_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
