/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Datagrams on the wire: whole and in fragments, sums, addresses that do not come, answers, and
 * errors of the network.
 */
#include "tests/unit/lab_udp.h"

/* A datagram leaves whole, with the checksum left to the device. */
static void test_one_datagram(void **state)
{
    struct app app;
    (void)state;
    open_with(&app, 65536);
    assert_int_equal(send_filled(&app, 1024, 0xa5), SOCK_OK);
    lab_serve();
    assert_int_equal(lab.n_frames, 1);
    struct lab_frame *frame = &lab.frames[0];
    assert_int_equal(frame->len, 14 + 20 + 8 + 1024);
    assert_int_equal(frame->hdr.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
    assert_int_equal(frame->hdr.csum_start, 34);
    assert_int_equal(frame->hdr.csum_offset, 6);
    assert_int_equal(wire_sum(frame->bytes + 14, 20, 0), 0xffff);
    /* The device sums from csum_start on, the field included, and puts the complement there. */
    uint32_t sum = wire_sum(frame->bytes + 34, 8 + 1024, 0);
    put16(frame->bytes + 40, 0xffffu & ~sum);
    assert_int_equal(wire_l4_sum(frame->bytes, 8 + 1024), 0xffff);
    for (unsigned i = 0; i < 1024; i++) {
        assert_int_equal(frame->bytes[42 + i], 0xa5);
    }
    struct sock_udp_stats stats;
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.queued, 1);
    assert_int_equal(stats.consumed, 1);
    assert_int_equal(stats.send_errors, 0);
    lab_assert_ledger();
    sock_close(app.sock, false);
    lab_close();
}

/* Without CSUM the stack sums itself. */
static void test_checksum_in_software(void **state)
{
    struct model_options opt = lab_options();
    struct app app;
    (void)state;
    opt.features &= ~(FEATURE(VIRTIO_NET_F_CSUM) | FEATURE(VIRTIO_NET_F_HOST_TSO4));
    lab_open(&opt, NULL);
    resolve();
    app_open(&app, 65536);
    for (size_t len = 1; len < 40; len++) {
        assert_int_equal(send_filled(&app, len, (uint8_t)(len * 7)), SOCK_OK);
        lab_serve();
        assert_int_equal(lab.frames[0].hdr.flags, 0);
        assert_int_equal(wire_l4_sum(lab.frames[0].bytes, 8 + len), 0xffff);
        lab_forget_frames();
    }
    sock_close(app.sock, false);
    lab_close();
}

/* A larger datagram is cut; all its fragments fit or none is built; its checksum is done here. */
static void test_fragments(void **state)
{
    struct model_options opt = lab_options();
    static uint8_t whole[66000];
    struct app app;
    (void)state;
    opt.size_descs[MODEL_TX] = 256;
    lab_open(&opt, NULL);
    resolve();
    app_open(&app, 1 << 24);
    unsigned sent = 0;
    uint8_t *payload;
    bool fresh;
    while (sock_udp_reserve(app.sock, 65507, &payload, &fresh) == SOCK_OK) {
        for (unsigned i = 0; i < 65507; i++) {
            payload[i] = (uint8_t)(i * 31 + sent);
        }
        assert_int_equal(sock_udp_commit(app.sock), SOCK_OK);
        sent++;
    }
    assert_int_equal(sent, 5); /* of 45 fragments each, in 256 less the reserve */
    lab_serve();
    assert_int_equal(lab.n_frames, sent * 45u);
    for (unsigned n = 0; n < sent; n++) {
        uint32_t total = 0;
        memcpy(whole, lab.frames[n * 45].bytes, L4_AT);
        for (unsigned i = 0; i < 45; i++) {
            struct lab_frame *frame = &lab.frames[n * 45 + i];
            assert_int_equal(frame->hdr.flags, 0);
            assert_int_equal(wire_sum(frame->bytes + 14, 20, 0), 0xffff);
            uint32_t offset = (get16(frame->bytes + 20) & 0x1fffu) * 8;
            assert_int_equal(offset, total);
            memcpy(whole + L4_AT + offset, frame->bytes + 34, frame->len - 34);
            total += frame->len - 34;
        }
        assert_int_equal(total, 65507 + 8);
        assert_int_equal(wire_l4_sum(whole, total), 0xffff);
        assert_int_equal(whole[42 + 1000], (uint8_t)(1000 * 31 + n));
    }
    struct sock_udp_stats stats;
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.queued, sent); /* one datagram, however many fragments */
    assert_int_equal(stats.consumed, sent);
    assert_int_equal(sock_udp_reserve(app.sock, 65508, &payload, &fresh), SOCK_FATAL);
    close_at_rest(app.sock);
}

/* A datagram for an address that nobody tells. */
static void send_unresolved(struct app *app)
{
    struct model_options opt = lab_options();
    lab_open(&opt, NULL);
    lab.mute = true;
    app_open(app, 1 << 24);
    assert_int_equal(send_filled(app, 100, 1), SOCK_OK);
}

/* An unknown address: the datagram waits, the socket too, and both go on with the answer. */
static void test_address_pending(void **state)
{
    struct app app;
    (void)state;
    send_unresolved(&app);
    assert_int_equal(send_filled(&app, 100, 2), SOCK_AGAIN);
    lab_serve();
    assert_int_equal(app.writable, 0);
    assert_int_equal(lab.n_frames, 0);
    lab.mute = false;
    lab_elapse(1500, true); /* the stack asks again */
    assert_int_equal(lab.n_frames, 1);
    assert_int_equal(app.writable, 1);
    struct sock_udp_stats stats;
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.queued, 1);
    assert_int_equal(stats.consumed, 1);
    close_at_rest(app.sock);
}

/* An address that never comes: the datagram is counted as dropped, its credit comes back, the owner
 * is told. */
static void test_address_missing(void **state)
{
    struct net_stats stats;
    struct app app;
    (void)state;
    send_unresolved(&app);
    lab_elapse(8000, true);
    assert_int_equal(app.errors, 1);
    assert_int_equal(app.error, SOCK_ERR_ROUTE);
    net_stats(&stats);
    assert_int_equal(stats.arp_queue_drop, 1);
    close_at_rest(app.sock);
}

/* A server answers whoever asked. */
static void test_receive_and_answer(void **state)
{
    struct app app = {0};
    uint8_t frame[256], *payload;
    bool fresh;
    (void)state;
    open_default();
    app.sock = sock_udp_open(&udp_ops, &app, 65536);
    assert_int_equal(sock_udp_bind(app.sock, 7), SOCK_OK);
    uint32_t len = lab_udp(frame, 5000, 7, "question", 8);
    lab_inject(frame, len);
    lab_serve();
    assert_int_equal(app.n_received, 8);
    assert_memory_equal(app.received, "question", 8);
    assert_int_equal(sock_udp_reserve(app.sock, 6, &payload, &fresh), SOCK_OK);
    memcpy(payload, "answer", 6);
    assert_int_equal(sock_udp_commit_to(app.sock, LAB_PEER_IP, 5000), SOCK_OK);
    lab_serve();
    assert_int_equal(lab.n_frames, 1);
    assert_memory_equal(lab.frames[0].bytes + 42, "answer", 6);
    assert_int_equal(get16(lab.frames[0].bytes + 34), 7);
    assert_int_equal(get16(lab.frames[0].bytes + 36), 5000);
    struct app twice = {0};
    twice.sock = sock_udp_open(&udp_ops, &twice, 65536);
    assert_int_equal(sock_udp_bind(twice.sock, 7), SOCK_FATAL);
    sock_close(twice.sock, false);
    sock_close(app.sock, false);
    lab_close();
}

/* Port unreachable comes back to the socket that asked for it, and only to that. */
static void test_icmp_error(void **state)
{
    struct app app, other;
    uint8_t frame[256] = {0};
    (void)state;
    open_with(&app, 65536);
    app_open(&other, 65536);
    assert_int_equal(send_filled(&app, 20, 1), SOCK_OK);
    lab_serve();
    uint8_t *icmp = frame + L4_AT;
    icmp[0] = 3;
    icmp[1] = 3;
    memcpy(icmp + 8, lab.frames[0].bytes + 14, 28);
    uint32_t len = lab_ip(frame, 1, 8 + 28);
    put16(icmp + 2, 0xffffu & ~wire_sum(icmp, 36, 0));
    icmp[3] ^= 1;
    lab_inject(frame, len); /* with a wrong checksum: nobody's */
    lab_serve();
    assert_int_equal(app.errors, 0);
    icmp[3] ^= 1;
    lab_inject(frame, len);
    lab_serve();
    assert_int_equal(app.errors, 1);
    assert_int_equal(app.error, SOCK_ERR_REFUSED);
    assert_int_equal(other.errors, 0);
    sock_close(app.sock, false);
    sock_close(other.sock, false);
    lab_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_datagram),    cmocka_unit_test(test_checksum_in_software),
        cmocka_unit_test(test_fragments),       cmocka_unit_test(test_address_pending),
        cmocka_unit_test(test_address_missing), cmocka_unit_test(test_receive_and_answer),
        cmocka_unit_test(test_icmp_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
