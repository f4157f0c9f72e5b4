/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Datagrams: the gate before anything is built, credit in true bytes with the last reference, AGAIN
 * that is followed by a call, waiters in order, fragments that fit or are not begun, and addresses
 * that do not come.
 */
#include "tests/unit/lab_app.h"

#include "net/netmem.h"

static void on_received(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                        size_t total, uint32_t from_ip, uint16_t from_port)
{
    assert_int_equal(from_ip, LAB_PEER_IP);
    assert_int_equal(from_port, 5000);
    assert_true(offset + len <= total);
    app_received(sock, arg, data, len, offset, total, from_ip, from_port);
}

static const struct sock_ops ops = {
    .writable = app_writable,
    .received = on_received,
    .error = app_error,
};

static void app_open(struct app *app, uint32_t sndbuf)
{
    memset(app, 0, sizeof(*app));
    app->sock = sock_udp_open(&ops, app, sndbuf);
    assert_non_null(app->sock);
    assert_int_equal(sock_udp_connect(app->sock, LAB_PEER_IP, 5000), SOCK_OK);
}

static enum sock_result send_filled(struct app *app, size_t len, uint8_t fill)
{
    uint8_t *payload;
    bool fresh;
    enum sock_result result = sock_udp_reserve(app->sock, len, &payload, &fresh);
    if (result != SOCK_OK) {
        return result;
    }
    memset(payload, fill, len);
    return sock_udp_commit(app->sock);
}

/* Learns the peer's address, so that the first datagram is not one that waits for it. */
static void resolve(void)
{
    struct app app;
    app_open(&app, 65536);
    assert_int_equal(send_filled(&app, 1, 0), SOCK_OK);
    lab_serve();
    sock_close(app.sock, false);
    lab_serve();
    lab_forget_frames();
}

static void open_default(void)
{
    struct model_options opt = lab_options();
    lab_open(&opt, NULL);
    resolve();
}

/* A datagram leaves whole, with the checksum left to the device. */
static void test_one_datagram(void **state)
{
    struct app app;
    (void)state;
    open_default();
    app_open(&app, 65536);
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

/* Credit: charged at commit, back with the completion and not before, in true bytes. */
static void test_credit(void **state)
{
    struct app app;
    struct sock_udp_stats stats;
    (void)state;
    open_default();
    app_open(&app, 4000);
    assert_int_equal(send_filled(&app, 1000, 1), SOCK_OK);
    unsigned sent = 1;
    while (send_filled(&app, 1000, 1) == SOCK_OK) {
        sent++;
    }
    sock_udp_stats(app.sock, &stats);
    uint64_t each = stats.charged_bytes / sent;
    assert_true(each > 1000 + 42 + 12);
    assert_int_equal(sent, (4000 + each - 1) / each); /* the last may begin below the limit */
    assert_int_equal(stats.again, 1);
    assert_false(virtio_net_tx_stopped(net_device(), 0));
    lab_pass();
    model_take(&lab.dev, MODEL_TX);
    lab_pass();
    assert_int_equal(app.writable, 0); /* submitted is not consumed */
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.credited_bytes, 0);
    /* A wait counts while it lasts, so that no row of a report is blocked for longer than it is. */
    const uint64_t before_ns = stats.blocked_ns;
    seam_advance_ns(1000 * LAB_MS);
    sock_udp_stats(app.sock, &stats);
    assert_in_range(stats.blocked_ns - before_ns, 1000 * LAB_MS, 1001 * LAB_MS);
    model_complete(&lab.dev, 1);
    lab_pass();
    assert_int_equal(app.writable, 1);
    sock_udp_stats(app.sock, &stats);
    assert_in_range(stats.blocked_ns - before_ns, 1000 * LAB_MS, 1002 * LAB_MS);
    assert_int_equal(stats.credited_bytes, each);
    assert_int_equal(stats.writable, 1);
    assert_true(stats.blocked_ns > 0);
    lab_pass();
    assert_int_equal(app.writable, 1); /* once for each AGAIN */
    lab_serve();
    close_at_rest(app.sock);
}

/* The ring is the limit: AGAIN before anything is built, nothing lost, a call at the wake. Field
 * case 21: a full ring is would-block at the socket, one stop and one wake. */
static void test_ring_stops(void **state)
{
    struct app app;
    struct virtio_net_tx_stats tx;
    struct sock_udp_stats stats;
    (void)state;
    open_default();
    app_open(&app, 1 << 24);
    assert_int_equal(send_filled(&app, 100, 1), SOCK_OK);
    unsigned sent = 1;
    while (send_filled(&app, 100, 1) == SOCK_OK) {
        sent++;
        assert_true(sent < 64);
    }
    assert_true(virtio_net_tx_stopped(net_device(), 0));
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.queued, sent);
    assert_int_equal(stats.charged_bytes % sent, 0); /* the refused one was not charged */
    lab_pass();
    assert_int_equal(app.writable, 0);
    lab_serve();
    assert_int_equal(app.writable, 1);
    assert_int_equal(lab.n_frames, sent);
    virtio_net_tx_stats(net_device(), 0, &tx);
    assert_int_equal(tx.stops, 1);
    assert_int_equal(tx.wakes, 1);
    close_at_rest(app.sock);
}

/* Those who wait are called in the order in which they began to. */
static void test_waiters_in_order(void **state)
{
    static const unsigned order[] = {2, 0, 3, 1};
    struct app app[4];
    (void)state;
    open_default();
    for (unsigned i = 0; i < 4; i++) {
        app_open(&app[i], 1 << 24);
    }
    while (send_filled(&app[order[0]], 100, 1) == SOCK_OK) {
    }
    for (unsigned i = 1; i < 4; i++) {
        assert_int_equal(send_filled(&app[order[i]], 100, 1), SOCK_AGAIN);
    }
    app_next_order = 0;
    lab_serve();
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(app[order[i]].writable, 1);
        assert_int_equal(app[order[i]].order, i + 1);
        sock_close(app[order[i]].sock, false);
    }
    lab_close();
}

/* A socket that is closed by another's callback is not called any more. */
static struct app *to_close;

static void close_other(struct sock *sock, void *arg)
{
    (void)sock;
    ((struct app *)arg)->writable++;
    if (to_close != NULL) {
        sock_close(to_close->sock, false);
        to_close = NULL;
    }
}

static void test_closed_while_waiting(void **state)
{
    static const struct sock_ops closing = {.writable = close_other};
    struct app first = {0}, second;
    (void)state;
    open_default();
    first.sock = sock_udp_open(&closing, &first, 1 << 24);
    sock_udp_connect(first.sock, LAB_PEER_IP, 5000);
    app_open(&second, 1 << 24);
    while (send_filled(&first, 100, 1) == SOCK_OK) {
    }
    assert_int_equal(send_filled(&second, 100, 1), SOCK_AGAIN);
    to_close = &second;
    lab_serve();
    assert_int_equal(first.writable, 1);
    assert_int_equal(second.writable, 0);
    sock_close(first.sock, false);
    lab_serve();
    lab_assert_ledger();
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

/* What a socket wrote before is still there, and it is told so. */
static void test_fresh(void **state)
{
    struct app app;
    uint8_t *payload;
    bool fresh;
    (void)state;
    open_default();
    app_open(&app, 65536);
    assert_int_equal(sock_udp_reserve(app.sock, 600, &payload, &fresh), SOCK_OK);
    assert_true(fresh);
    memset(payload, 0x77, 600);
    assert_int_equal(sock_udp_commit(app.sock), SOCK_OK);
    lab_serve();
    assert_int_equal(sock_udp_reserve(app.sock, 600, &payload, &fresh), SOCK_OK);
    assert_false(fresh);
    assert_int_equal(payload[0], 0x77);
    assert_int_equal(payload[599], 0x77);
    sock_udp_cancel(app.sock);
    assert_int_equal(sock_udp_reserve(app.sock, 600, &payload, &fresh), SOCK_OK);
    assert_true(fresh); /* cancelled half written */
    assert_int_equal(sock_udp_commit(app.sock), SOCK_OK);
    lab_serve();
    assert_int_equal(sock_udp_reserve(app.sock, 601, &payload, &fresh), SOCK_OK);
    assert_true(fresh);
    sock_udp_cancel(app.sock);
    close_at_rest(app.sock);
}

/* The queue stopped between reserve and commit: nothing was built, nothing is lost, AGAIN keeps its
 * promise. */
static void test_stop_before_commit(void **state)
{
    struct app app, other;
    uint8_t *payload;
    bool fresh;
    (void)state;
    open_default();
    app_open(&app, 65536);
    app_open(&other, 1 << 24);
    assert_int_equal(sock_udp_reserve(app.sock, 600, &payload, &fresh), SOCK_OK);
    while (send_filled(&other, 100, 1) == SOCK_OK) {
    }
    assert_int_equal(sock_udp_commit(app.sock), SOCK_AGAIN);
    lab_serve();
    assert_int_equal(app.writable, 1);
    assert_int_equal(send_filled(&app, 600, 1), SOCK_OK);
    lab_serve();
    sock_close(app.sock, false);
    close_at_rest(other.sock);
}

/* The pool is empty: AGAIN, and a call when something came back. Each allocation fails once. */
static void test_pool_exhausted(void **state)
{
    (void)state;
    for (unsigned nth = 1; nth < 8; nth++) {
        struct app app;
        open_default();
        app_open(&app, 65536);
        netmem_model_fail_in = nth;
        unsigned again = 0, sent = 0;
        while (sent < 5) {
            enum sock_result result = send_filled(&app, 2000, 1); /* two fragments */
            if (result == SOCK_AGAIN) {
                again++;
                lab_serve();
                netmem_free(netmem_alloc(64)); /* somebody gives back */
                lab_serve();
                assert_int_equal(app.writable, again);
            } else {
                sent++;
                lab_serve();
            }
        }
        netmem_model_fail_in = 0;
        sock_close(app.sock, false);
        lab_serve();
        lab_assert_ledger();
        lab_close();
    }
}

/* An unknown address: the datagram waits, the socket too, and both go on with the answer. */
static void test_address_pending(void **state)
{
    struct model_options opt = lab_options();
    struct app app;
    (void)state;
    lab_open(&opt, NULL);
    lab.mute = true;
    app_open(&app, 1 << 24);
    assert_int_equal(send_filled(&app, 100, 1), SOCK_OK);
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
    struct model_options opt = lab_options();
    struct net_stats stats;
    struct app app;
    (void)state;
    lab_open(&opt, NULL);
    lab.mute = true;
    app_open(&app, 1 << 24);
    assert_int_equal(send_filled(&app, 100, 1), SOCK_OK);
    lab_elapse(8000, true);
    assert_int_equal(app.errors, 1);
    assert_int_equal(app.error, SOCK_ERR_ROUTE);
    net_stats(&stats);
    assert_int_equal(stats.arp_queue_drop, 1);
    close_at_rest(app.sock);
}

/* The link is down: as a full ring. */
static void test_link_down(void **state)
{
    struct app app;
    (void)state;
    open_default();
    app_open(&app, 1 << 24);
    model_set_link(&lab.dev, false);
    lab_pass();
    assert_int_equal(send_filled(&app, 100, 1), SOCK_AGAIN);
    lab_serve();
    assert_int_equal(app.writable, 0);
    model_set_link(&lab.dev, true);
    lab_serve();
    assert_int_equal(app.writable, 1);
    sock_close(app.sock, false);
    lab_close();
}

/* A server answers whoever asked. */
static void test_receive_and_answer(void **state)
{
    struct app app = {0};
    uint8_t frame[256], *payload;
    bool fresh;
    (void)state;
    open_default();
    app.sock = sock_udp_open(&ops, &app, 65536);
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
    twice.sock = sock_udp_open(&ops, &twice, 65536);
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
    open_default();
    app_open(&app, 65536);
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

/* The device is gone with datagrams in flight: aborted, credited, balanced. */
static void test_abort(void **state)
{
    struct app app;
    struct sock_udp_stats stats;
    (void)state;
    open_default();
    app_open(&app, 1 << 24);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(send_filled(&app, 100, 1), SOCK_OK);
    }
    lab_pass();
    model_needs_reset(&lab.dev);
    lab_serve();
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.queued, 5);
    assert_int_equal(stats.aborted, 5);
    lab_assert_ledger();
    assert_int_equal(send_filled(&app, 100, 1), SOCK_OK); /* the device came back */
    lab_serve();
    sock_close(app.sock, false);
    lab_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_datagram),
        cmocka_unit_test(test_checksum_in_software),
        cmocka_unit_test(test_credit),
        cmocka_unit_test(test_ring_stops),
        cmocka_unit_test(test_waiters_in_order),
        cmocka_unit_test(test_closed_while_waiting),
        cmocka_unit_test(test_fragments),
        cmocka_unit_test(test_fresh),
        cmocka_unit_test(test_stop_before_commit),
        cmocka_unit_test(test_pool_exhausted),
        cmocka_unit_test(test_address_pending),
        cmocka_unit_test(test_address_missing),
        cmocka_unit_test(test_link_down),
        cmocka_unit_test(test_receive_and_answer),
        cmocka_unit_test(test_icmp_error),
        cmocka_unit_test(test_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
