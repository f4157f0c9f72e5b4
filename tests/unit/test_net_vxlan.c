/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The guest as the end of a tunnel: what is wrapped, what is asked of the device, what is let in.
 *
 *     socket 10.0.0.2 -> [outer 10.1.0.2 -> 10.1.0.1 | UDP 4789 | VNI][inner frame] ->
 * peer 10.0.0.1
 *
 * Each frame of the guest is checked and unwrapped by the lab (lab_peel).
 */
#include "tests/unit/lab_app.h"

#define STREAM_BYTES 200000u
#define INNER_MTU    1450u

static uint8_t pattern[STREAM_BYTES];
static struct app app;

static const struct sock_ops ops = {.connected = app_connected, .received = app_received};

static void open_lab(bool outer_csum, bool device_csum, uint16_t tx_descs)
{
    struct model_options opt = lab_options();
    struct net_config config = lab_tunnel();
    config.vxlan.csum = outer_csum;
    opt.size_descs[MODEL_TX] = tx_descs;
    if (!device_csum) {
        opt.features &= ~(FEATURE(VIRTIO_NET_F_CSUM) | FEATURE(VIRTIO_NET_F_HOST_TSO4));
    }
    fill_pattern(pattern, sizeof(pattern), 10);
    memset(&app, 0, sizeof(app));
    lab_open(&opt, &config);
    assert_int_equal(net_ip(), LAB_GUEST_IP);
    assert_int_equal(net_mtu(), INNER_MTU);
}

static struct net_stats stats_now(void)
{
    struct net_stats stats;
    net_stats(&stats);
    return stats;
}

/* The inner transport checksum is right, or the device was asked for exactly that. */
static void check_inner_sum(struct lab_frame *frame, uint16_t field, bool by_device)
{
    if (by_device) {
        assert_int_equal(frame->hdr.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
        assert_int_equal(frame->hdr.csum_start, L4_AT);
        assert_int_equal(frame->hdr.csum_offset, field);
        uint32_t sum = wire_sum(frame->bytes + L4_AT, frame->len - L4_AT, 0);
        put16(frame->bytes + L4_AT + field, 0xffffu & ~sum);
    } else {
        assert_int_equal(frame->hdr.flags, 0);
    }
    assert_int_equal(wire_l4_sum(frame->bytes, frame->len - L4_AT), 0xffff);
}

static struct sock *open_udp(void)
{
    struct sock *sock = app_open_udp(&app, &ops, 5000);
    app_send(sock, "", 1); /* learns the inner address */
    lab_serve();
    assert_int_equal(lab.n_frames, 1);
    lab_forget_frames();
    return sock;
}

/* Each combination of outer checksum and device. One frame of the device each, no copy, no more
 * descriptors. */
static void test_datagrams(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        bool outer = (form & 1) != 0, device = (form & 2) != 0;
        open_lab(outer, device, 64);
        struct sock *sock = open_udp();
        for (unsigned n = 0; n < 5; n++) {
            app_send(sock, pattern, 1000 + n);
        }
        lab_serve();
        assert_int_equal(lab.n_frames, 5);
        for (unsigned n = 0; n < 5; n++) {
            assert_int_equal(lab.frames[n].len, 42 + 1000 + n);
            check_inner_sum(&lab.frames[n], 6, device && !outer);
            assert_memory_equal(lab.frames[n].bytes + 42, pattern, 1000 + n);
            assert_int_equal(lab.frames[n].outer_port, lab.frames[0].outer_port);
        }
        struct sock_udp_stats stats;
        sock_udp_stats(sock, &stats);
        assert_int_equal(stats.consumed, 6);
        assert_int_equal(stats.send_errors, 0);
        close_at_rest(sock);
    }
}

/* Another flow, another source port (nearly always). */
static void test_source_ports(void **state)
{
    uint16_t first = 0;
    unsigned others = 0;
    (void)state;
    open_lab(false, true, 64);
    for (unsigned i = 0; i < 8; i++) {
        struct sock *sock = open_udp();
        app_send(sock, pattern, 100);
        lab_serve();
        first = i == 0 ? lab.frames[0].outer_port : first;
        others += lab.frames[0].outer_port != first;
        sock_close(sock, false);
        lab_forget_frames();
    }
    assert_true(others >= 6);
    lab_close();
}

/* Fragments within the tunnel: none larger than its MTU, all together right, and the gate admits
 * them whole. */
static void test_fragments(void **state)
{
    static uint8_t whole[70000];
    uint8_t *payload;
    bool fresh;
    (void)state;
    open_lab(false, true, 256);
    struct sock *sock = open_udp();
    app_send(sock, pattern, 60000);
    lab_serve();
    uint32_t total = 0;
    for (unsigned i = 0; i < lab.n_frames; i++) {
        assert_true(lab.frames[i].len <= INNER_MTU + 14);
        assert_int_equal(lab.frames[i].hdr.flags, 0);
        memcpy(whole, lab.frames[i].bytes, total == 0 ? L4_AT : 0);
        memcpy(whole + L4_AT + total, lab.frames[i].bytes + L4_AT, lab.frames[i].len - L4_AT);
        total += lab.frames[i].len - L4_AT;
    }
    assert_int_equal(total, 60008);
    assert_int_equal(wire_l4_sum(whole, total), 0xffff);
    assert_int_equal(sock_udp_reserve(sock, 65507, &payload, &fresh), SOCK_FATAL);
    /* Until the gate closes nothing breaks its promise (lab_close looks at unexpected_full). */
    while (sock_udp_reserve(sock, 60000, &payload, &fresh) == SOCK_OK) {
        assert_int_equal(sock_udp_commit(sock), SOCK_OK);
    }
    lab_serve();
    close_at_rest(sock);
}

/* Streams both ways, also across a stopped queue. */
static void test_stream(void **state)
{
    struct lab_tcp tcp;
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        bool outer = (form & 1) != 0, device = (form & 2) != 0;
        open_lab(outer, device, 64);
        app_connect(&app, &ops, &tcp, 0);
        assert_int_equal(sock_tcp_mss(app.sock), INNER_MTU - 40);
        unsigned from = lab.n_frames;
        size_t done = 0;
        for (unsigned round = 0; tcp.stream_len < STREAM_BYTES; round++) {
            assert_true(round < 2000);
            if (done < STREAM_BYTES) {
                done +=
                    (size_t)sock_tcp_write(app.sock, pattern + done, STREAM_BYTES - done, false);
            }
            lab_tcp_run(&tcp, 1);
        }
        assert_memory_equal(tcp.stream, pattern, STREAM_BYTES);
        assert_int_equal(tcp.repeated, 0);
        for (unsigned i = from; i < lab.n_frames; i++) {
            check_inner_sum(&lab.frames[i], 16, device && !outer);
        }
        for (unsigned at = 0; at < 50000; at += 1000) {
            lab_tcp_send(&tcp, LAB_ACK | LAB_PSH, pattern + at, 1000);
            lab_serve();
        }
        assert_int_equal(app.n_received, 50000);
        assert_memory_equal(app.received, pattern, 50000);
        assert_true(stats_now().tx_refused > 0); /* the ring is small: it stopped */
        sock_close(app.sock, true);
        lab_tcp_free(&tcp);
        close_balanced();
    }
}

/* Foreign tunnels and nonsense are counted and dropped; wrong inner sums too, whatever is said of
 * the outer one. */
static void test_let_in(void **state)
{
    uint8_t frame[256];
    (void)state;
    open_lab(false, true, 64);
    struct sock *sock = open_udp();
    uint16_t port = sock_local_port(sock);
    uint32_t len = lab_udp(frame, 5000, port, "inside", 6);
    lab_inject(frame, len);
    lab_serve();
    assert_int_equal(app.n_datagrams, 1);
    assert_memory_equal(app.received, "inside", 6);

    lab.vni = LAB_VNI + 1;
    lab_inject(frame, len);
    lab.vni = LAB_VNI;
    lab_inject(frame, 10); /* not even an Ethernet header */
    lab_serve();
    assert_int_equal(app.n_datagrams, 1);
    assert_int_equal(stats_now().vxlan_unknown_vni, 1);
    assert_int_equal(stats_now().vxlan_malformed, 1);

    uint64_t bad = stats_now().csum_bad;
    struct virtio_net_hdr valid = {.flags = VIRTIO_NET_HDR_F_DATA_VALID};
    struct virtio_net_hdr partial = {
        .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .csum_start = L4_AT, .csum_offset = 6};
    frame[44] ^= 1;
    lab_inject_hdr(valid, frame, len);
    lab_serve();
    assert_int_equal(app.n_datagrams, 1);
    assert_int_equal(stats_now().csum_bad, bad + 1);
    lab_inject_hdr(partial, frame, len); /* the inner sum is still open: never on a wire */
    lab_serve();
    assert_int_equal(app.n_datagrams, 2);
    frame[0] ^= 4; /* another station of the inner network */
    lab_inject_hdr(partial, frame, len);
    lab_serve();
    assert_int_equal(app.n_datagrams, 2);
    sock_close(sock, false);
    lab_close();
}

/* The far end's outer address expired: nothing is built or lost until it is known again. */
static void test_outer_address_expires(void **state)
{
    uint8_t *payload;
    bool fresh;
    (void)state;
    open_lab(false, true, 64);
    struct sock *sock = open_udp();
    lab_elapse(310000, true);
    lab_forget_frames();
    lab.mute = true;
    assert_int_equal(sock_udp_reserve(sock, 100, &payload, &fresh), SOCK_AGAIN);
    lab_elapse(1000, true);
    assert_int_equal(lab.n_frames, 0);
    lab.mute = false;
    lab_elapse(2500, true);
    app_send(sock, pattern, 100);
    lab_elapse(2500, true);
    assert_true(lab.n_frames >= 1);
    check_inner_sum(&lab.frames[lab.n_frames - 1], 6, true);
    sock_close(sock, false);
    close_balanced();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_datagrams), cmocka_unit_test(test_source_ports),
        cmocka_unit_test(test_fragments), cmocka_unit_test(test_stream),
        cmocka_unit_test(test_let_in),    cmocka_unit_test(test_outer_address_expires),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
