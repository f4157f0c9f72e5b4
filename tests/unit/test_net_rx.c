/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Reception: what the device vouches for, what is summed here, fragments, coalesced packets, and
 * buffers that the stack sits on.
 */
#include "tests/unit/lab_app.h"

#include "lwip/stats.h"

#include "boot/clock.h"
#include "net/netmem.h"

static uint8_t got[70000];
static size_t got_bytes, got_total;
static unsigned got_datagrams;

static void on_received(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                        size_t total, uint32_t from_ip, uint16_t from_port)
{
    (void)sock;
    (void)arg;
    (void)from_ip;
    (void)from_port;
    memcpy(got + offset, data, len);
    got_bytes = offset + len;
    got_total = total;
    got_datagrams += offset + len == total;
}

static const struct sock_ops ops = {.received = on_received};
static struct sock *sock;
static uint8_t frame[70000], payload[66000];

static void open_lab(uint64_t without)
{
    struct model_options opt = lab_options();
    opt.features &= ~without;
    lab_open(&opt, NULL);
    fill_pattern(payload, sizeof(payload), 14);
    got_bytes = got_total = 0;
    got_datagrams = 0;
    sock = sock_udp_open(&ops, NULL, 65536);
    assert_int_equal(sock_udp_bind(sock, 9), SOCK_OK);
}

static void close_lab(void)
{
    struct virtio_net_rx_stats rx;
    sock_close(sock, false);
    lab_serve();
    virtio_net_rx_stats(net_device(), 0, &rx);
    assert_int_equal(rx.pool_free + rx.posted, rx.pool_bufs); /* all back */
    lab_close();
}

static uint64_t csum_bad(void)
{
    struct net_stats stats;
    net_stats(&stats);
    return stats.csum_bad;
}

/* No flag: the checksum decides. DATA_VALID, NEEDS_CSUM: the device's word. */
static void test_checksum(void **state)
{
    static const uint8_t flags[] = {0, VIRTIO_NET_HDR_F_DATA_VALID, VIRTIO_NET_HDR_F_NEEDS_CSUM};
    (void)state;
    open_lab(0);
    for (unsigned odd = 0; odd < 2; odd++) {
        uint32_t len = lab_udp(frame, 5000, 9, payload, 100 + odd);
        for (unsigned i = 0; i < 3; i++) {
            struct virtio_net_hdr hdr = {.flags = flags[i], .csum_start = 34, .csum_offset = 6};
            uint64_t bad = csum_bad();
            unsigned before = got_datagrams;
            lab_inject_hdr(hdr, frame, len);
            lab_serve();
            assert_int_equal(got_datagrams, before + 1);
            assert_int_equal(csum_bad(), bad);
            frame[60] ^= 4;
            lab_inject_hdr(hdr, frame, len);
            lab_serve();
            frame[60] ^= 4;
            assert_int_equal(got_datagrams, before + (i == 0 ? 1 : 2));
            assert_int_equal(csum_bad(), bad + (i == 0 ? 1 : 0));
        }
    }
    close_lab();
}

/* GUEST_CSUM refused: everything is summed here, with and without merged buffers. */
static void test_checksum_without_offload(void **state)
{
    (void)state;
    open_lab(FEATURE(VIRTIO_NET_F_GUEST_CSUM) | FEATURE(VIRTIO_NET_F_GUEST_TSO4) |
             FEATURE(VIRTIO_NET_F_MRG_RXBUF));
    for (uint32_t n = 1; n < 1473; n += 37) {
        uint32_t len = lab_udp(frame, 5000, 9, payload, n);
        unsigned before = got_datagrams;
        uint64_t bad = csum_bad();
        lab_inject(frame, len);
        frame[len - 1] ^= 0x10;
        lab_inject(frame, len);
        lab_serve();
        assert_int_equal(got_datagrams, before + 1);
        assert_int_equal(csum_bad(), bad + 1);
    }
    close_lab();
}

/* Cuts the datagram in `frame` and injects the parts, in order or backwards. Returns how many. */
static unsigned inject_fragments(uint32_t l4_len, uint32_t part, bool backwards, uint8_t flags)
{
    static uint8_t piece[2048];
    unsigned n = (l4_len + part - 1) / part;
    for (unsigned i = 0; i < n; i++) {
        unsigned at = backwards ? n - 1 - i : i;
        uint32_t from = at * part, len = l4_len - from < part ? l4_len - from : part;
        struct virtio_net_hdr hdr = {.flags = flags};
        memcpy(piece + L4_AT, frame + L4_AT + from, len);
        uint32_t total = lab_ip(piece, 17, len);
        put16(piece + 18, 77);
        put16(piece + 20, (from / 8) | (at + 1 < n ? 0x2000u : 0));
        wire_ip_sum(piece + IP_AT);
        lab_inject_hdr(hdr, piece, total);
        net_poll();
    }
    return n;
}

/* Reassembly up to 64 KiB; the sum of the whole is checked here, whatever is said of the parts. */
static void test_fragments(void **state)
{
    static const uint32_t sizes[] = {1473, 9000, 32768, 65507};
    (void)state;
    open_lab(0);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (unsigned backwards = 0; backwards < 2; backwards++) {
            unsigned before = got_datagrams;
            lab_udp(frame, 5000, 9, payload, sizes[i]);
            inject_fragments(8 + sizes[i], 1480, backwards != 0, 0);
            assert_int_equal(got_datagrams, before + 1);
            assert_int_equal(got_total, sizes[i]);
            assert_memory_equal(got, payload, sizes[i]);
            uint64_t bad = csum_bad();
            frame[1000] ^= 1;
            inject_fragments(8 + sizes[i], 1480, backwards != 0, VIRTIO_NET_HDR_F_DATA_VALID);
            assert_int_equal(got_datagrams, before + 1);
            assert_int_equal(csum_bad(), bad + 1);
        }
    }
    close_lab();
}

/* A datagram whose rest never comes gives its buffers back. */
static void test_incomplete_datagram(void **state)
{
    (void)state;
    open_lab(0);
    lab_udp(frame, 5000, 9, payload, 9000);
    inject_fragments(8 + 9000 - 100, 1480, false, 0); /* with MF missing too, but too short */
    inject_fragments(8 + 3000, 1480, true, 0);
    lab_elapse(8000, true);
    close_lab();
}

/* Fragments pin buffers; beyond half of the pool packets are copied and the ring stays full. Field
 * case 24: the stack can keep what it likes, the ring does not run dry. */
static void test_pinned(void **state)
{
    struct virtio_net_rx_stats rx;
    uint8_t piece[256];
    (void)state;
    open_lab(0);
    for (unsigned i = 0; i < 400; i++) {
        memset(piece, 0, sizeof(piece));
        uint32_t len = lab_ip(piece, 17, 64);
        put16(piece + 18, i); /* each the first part of another datagram */
        put16(piece + 20, 0x2000);
        wire_ip_sum(piece + IP_AT);
        lab_inject(piece, len);
        net_poll();
        virtio_net_rx_stats(net_device(), 0, &rx);
        assert_true(rx.posted >= rx.size_descs - 1u);
    }
    lab_udp(frame, 5000, 9, payload, 100);
    uint32_t len = lab_udp(frame, 5000, 9, payload, 100);
    lab_inject(frame, len);
    lab_serve();
    assert_int_equal(got_datagrams, 1);
    lab_elapse(8000, true);
    close_lab();
}

/* Frames that are not ours or make no sense are dropped, and their buffers come back. */
static void test_strays(void **state)
{
    (void)state;
    open_lab(0);
    uint32_t len = lab_udp(frame, 5000, 9, payload, 100);
    frame[5] ^= 1; /* another station */
    lab_inject(frame, len);
    frame[5] ^= 1;
    put16(frame + 12, 0x86dd);
    lab_inject(frame, len);
    put16(frame + 12, 0x0800);
    frame[14] = 0x4f; /* header longer than the packet has */
    lab_inject(frame, 50);
    frame[14] = 0x45;
    put16(frame + 16, 2000); /* IP length beyond the frame */
    lab_inject(frame, len);
    lab_serve();
    assert_int_equal(got_datagrams, 0);
    (void)lab_udp(frame, 5000, 9, payload, 3);
    lab_inject(frame, 60); /* padding of a short frame */
    lab_serve();
    assert_int_equal(got_datagrams, 1);
    assert_int_equal(got_total, 3);
    close_lab();
}

/* No memory for the pbufs: counted, nothing leaks, the next one arrives. */
static void test_no_memory(void **state)
{
    struct net_stats stats;
    (void)state;
    open_lab(0);
    for (unsigned nth = 1; nth < 4; nth++) {
        uint32_t len = lab_udp(frame, 5000, 9, payload, 1000);
        unsigned before = got_datagrams;
        netmem_model_fail_in = nth;
        for (unsigned i = 0; i < 4; i++) {
            lab_inject(frame, len);
            lab_serve();
        }
        netmem_model_fail_in = 0;
        assert_true(got_datagrams >= before + 3);
    }
    net_stats(&stats);
    assert_true(stats.rx_no_pbuf > 0);
    close_lab();
}

/* ---- TCP, coalesced by the device ---- */

static struct lab_tcp tcp;
static struct app stream;
static const struct sock_ops tcp_ops = {.connected = app_connected, .received = app_received};

static uint32_t segment(uint32_t seq, const uint8_t *data, uint32_t len)
{
    return lab_tcp_segment(&tcp, frame, seq, data, len, LAB_TCP_BYTES + len);
}

static void connect_stream(uint32_t window_bytes)
{
    memset(&stream, 0, sizeof(stream));
    app_connect(&stream, &tcp_ops, &tcp, window_bytes);
}

static void close_stream(void)
{
    sock_close(stream.sock, true);
    lab_tcp_free(&tcp);
    close_lab();
}

/* Up to an IP packet of 65,535 bytes in many pieces, one call of the stack. */
static void test_coalesced(void **state)
{
    struct net_stats stats;
    static const uint32_t sizes[] = {1, 1460, 4000, 20000, 65495};
    (void)state;
    open_lab(0);
    connect_stream(0);
    size_t sent = 0;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (unsigned vouched = 0; vouched < 2; vouched++) {
            struct virtio_net_hdr hdr = {.flags = vouched ? VIRTIO_NET_HDR_F_DATA_VALID : 0};
            uint32_t len = segment(tcp.snd_nxt, payload, sizes[i]);
            if (sizes[i] > 1460) {
                hdr.gso_type = VIRTIO_NET_HDR_GSO_TCPV4;
                hdr.gso_size = 1460;
                hdr.hdr_len = 54;
            }
            lab_inject_hdr(hdr, frame, len);
            lab_serve();
            tcp.snd_nxt += sizes[i];
            sent += sizes[i];
            assert_int_equal(stream.n_received, sent);
            assert_memory_equal(stream.received + sent - sizes[i], payload, sizes[i]);
        }
    }
    lab_tcp_look(&tcp);
    assert_int_equal(tcp.last_ack, tcp.snd_nxt);
    net_stats(&stats);
    assert_int_equal(stats.lro_frames, 6);
    close_stream();
}

/* Segments out of order beyond what the pool can lend: the hole is filled at last, everything
 * arrives. */
static void test_out_of_order(void **state)
{
    struct virtio_net_rx_stats rx;
    (void)state;
    open_lab(0);
    connect_stream(0);
    for (unsigned i = 1; i < 200; i++) {
        uint32_t len = segment(tcp.snd_nxt + i * 300, payload + i * 300, 300);
        lab_inject(frame, len);
        lab_serve();
        virtio_net_rx_stats(net_device(), 0, &rx);
        assert_true(rx.posted >= rx.size_descs - 1u);
    }
    assert_int_equal(stream.n_received, 0);
    lab_inject(frame, segment(tcp.snd_nxt, payload, 300));
    lab_serve();
    assert_int_equal(stream.n_received, 200 * 300);
    assert_memory_equal(stream.received, payload, 200 * 300);
    close_stream();
}

/* An early segment that reaches beyond the window, and the hole before it filled: dropped, no harm
 * done. */
static void test_beyond_window(void **state)
{
    (void)state;
    open_lab(0);
    connect_stream(4096);
    lab_inject(frame, segment(tcp.snd_nxt + 4000, payload + 4000, 1000));
    lab_serve();
    struct virtio_net_hdr hdr = {
        .gso_type = VIRTIO_NET_HDR_GSO_TCPV4, .gso_size = 1460, .hdr_len = 54};
    lab_inject_hdr(hdr, frame, segment(tcp.snd_nxt, payload, 4000));
    lab_serve();
    assert_int_equal(stream.n_received, 4000);
    lab_inject(frame, segment(tcp.snd_nxt + 4000, payload + 4000, 1000));
    lab_serve();
    assert_int_equal(stream.n_received, 5000);
    assert_memory_equal(stream.received, payload, 5000);
    close_stream();
}

/* Echo, also in fragments, and the answers to our own. */
static bool pinged, ping_ok;

static void on_ping(void *arg, bool ok)
{
    (void)arg;
    pinged = true;
    ping_ok = ok;
}

static void test_ping(void **state)
{
    (void)state;
    open_lab(0);
    uint8_t *icmp = frame + L4_AT;
    memset(icmp, 0, 64);
    icmp[0] = 8;
    put16(icmp + 4, 0x1234);
    uint32_t len = lab_ip(frame, 1, 64);
    put16(icmp + 2, 0xffffu & ~wire_sum(icmp, 64, 0));
    lab_inject(frame, len);
    lab_serve();
    assert_int_equal(lab.n_frames, 1);
    assert_int_equal(lab.frames[0].bytes[34], 0);
    assert_int_equal(wire_sum(lab.frames[0].bytes + 34, 64, 0), 0xffff);
    lab_forget_frames();

    pinged = false;
    net_ping(LAB_PEER_IP, 1000 * LAB_MS, on_ping, NULL);
    lab_serve();
    assert_int_equal(lab.frames[0].bytes[34], 8);
    memcpy(frame, lab.frames[0].bytes, lab.frames[0].len);
    icmp[0] = 0;
    len = lab_ip(frame, 1, lab.frames[0].len - 34);
    put16(icmp + 2, 0);
    put16(icmp + 2, 0xffffu & ~wire_sum(icmp, len - 34, 0));
    lab_inject(frame, len);
    lab_serve();
    assert_true(pinged && ping_ok);

    pinged = false;
    net_ping(LAB_PEER_IP, 1000 * LAB_MS, on_ping, NULL);
    lab_elapse(1100, true);
    assert_true(pinged && !ping_ok);
    close_lab();
}

static void test_resolve(void **state)
{
    (void)state;
    open_lab(0);
    pinged = false;
    net_resolve(LAB_PEER_IP, 1000 * LAB_MS, on_ping, NULL);
    lab_serve();
    assert_true(pinged && ping_ok);
    pinged = false;
    net_resolve(0x0a000063u, 1000 * LAB_MS, on_ping, NULL);
    lab_elapse(900, true);
    assert_false(pinged);
    lab_elapse(200, true);
    assert_true(pinged && !ping_ok);
    pinged = false;
    net_resolve(0x08080808u, 1000 * LAB_MS, on_ping, NULL); /* no gateway */
    lab_serve();
    assert_true(pinged && !ping_ok);
    close_lab();
}

static void count(void *arg)
{
    ++*(unsigned *)arg;
}

/*
 * Field case 55: the host gives the guest no processor time for 15 s. Whoever waits for an answer
 * waits on as long as before, since nobody could have given one; what goes by the clock is due.
 */
static void test_standstill(void **state)
{
    struct net_timer patient = {0}, plain = {0};
    struct net_stats stats;
    unsigned patient_fired = 0, plain_fired = 0;
    (void)state;
    open_lab(0);
    pinged = false;
    net_resolve(0x0a000063u, 3000 * LAB_MS, on_ping, NULL);
    lab_elapse(100, true);
    net_timer_set_patient(&patient, clock_now_ns() + 2900 * LAB_MS, count, &patient_fired);
    net_timer_set(&plain, clock_now_ns() + 2900 * LAB_MS, count, &plain_fired);
    lab_elapse(900, true);
    seam_advance_ns(15000 * LAB_MS);
    lab_elapse(1900, true);
    assert_false(pinged);
    assert_int_equal(patient_fired, 0);
    assert_int_equal(plain_fired, 1);
    net_stats(&stats);
    assert_in_range(stats.stood_still_ns, 14900 * LAB_MS, 15100 * LAB_MS);
    lab_elapse(300, true);
    assert_true(pinged && !ping_ok);
    assert_int_equal(patient_fired, 1);
    /* Passes that are only slow are none. */
    for (unsigned i = 0; i < 10; i++) {
        seam_advance_ns(400 * LAB_MS);
        lab_elapse(10, true);
    }
    const uint64_t before_ns = stats.stood_still_ns;
    net_stats(&stats);
    assert_true(stats.stood_still_ns == before_ns);
    close_lab();
}

static uint64_t frames_out(void)
{
    struct virtio_net_tx_stats tx;
    virtio_net_tx_stats(net_device(), 0, &tx);
    return tx.submitted;
}

/* An ARP packet that ends early is none, also where an earlier one left the rest in the buffer. */
static void test_short_arp(void **state)
{
    static const uint8_t head[] = {8, 6, 0, 1, 8, 0, 6, 4, 0, 1};
    uint8_t request[42] = {0};

    (void)state;
    open_lab(0);
    memset(request, 0xff, 6);
    memcpy(request + 6, lab_peer_mac, 6);
    memcpy(request + 12, head, sizeof(head));
    memcpy(request + 22, lab_peer_mac, 6);
    put32(request + 28, LAB_PEER_IP);
    put32(request + 38, LAB_GUEST_IP);
    uint64_t before = frames_out();
    for (unsigned i = 0; i < 200; i++) { /* more than there are buffers */
        lab_inject(request, sizeof(request));
        lab_serve();
    }
    assert_int_equal(frames_out(), before + 200);
    for (uint32_t len = 15; len < sizeof(request); len++) {
        lab_inject(request, len);
        lab_serve();
    }
    assert_int_equal(frames_out(), before + 200);
    close_lab();
}

/* An IP header that ends early is none: counted, and its buffer comes back. */
static void test_short_ip(void **state)
{
    uint8_t packet[34] = {0};

    (void)state;
    open_lab(0);
    memcpy(packet, net_mac(), 6);
    memcpy(packet + 6, lab_peer_mac, 6);
    packet[12] = 8;
    packet[14] = 0x45;
    packet[17] = 20;
    const uint32_t before = lwip_stats.ip.lenerr;
    for (uint32_t len = 15; len < sizeof(packet); len++) {
        lab_inject(packet, len);
        lab_serve();
    }
    assert_int_equal(lwip_stats.ip.lenerr, before + 19);
    close_lab();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksum),     cmocka_unit_test(test_checksum_without_offload),
        cmocka_unit_test(test_fragments),    cmocka_unit_test(test_incomplete_datagram),
        cmocka_unit_test(test_pinned),       cmocka_unit_test(test_strays),
        cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_coalesced),
        cmocka_unit_test(test_out_of_order), cmocka_unit_test(test_beyond_window),
        cmocka_unit_test(test_ping),         cmocka_unit_test(test_resolve),
        cmocka_unit_test(test_standstill),   cmocka_unit_test(test_short_arp),
        cmocka_unit_test(test_short_ip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
