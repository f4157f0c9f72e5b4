/* SPDX-License-Identifier: BSD-2-Clause
 *
 * TCP while the device stands still: segments are refused before a reference, timers do not count,
 * acknowledgements still go, and at the wake everything follows, without a connection lost or a
 * segment sent for nothing.
 */
#include "tests/unit/lab_app.h"

#define STREAM_BYTES       300000u
#define FAULT_STREAM_BYTES 60000u

static uint8_t pattern[STREAM_BYTES];

static const struct sock_ops ops = {
    .connected = app_connected,
    .writable = app_writable,
    .received = app_received,
    .error = app_error,
};

static struct app app, filler;
static struct lab_tcp tcp;

/* The stream that a test is about, and what fills the ring beside it. */
static void connect_both(void)
{
    app_connect(&app, &ops, &tcp, 0);
    filler.sock = app_open_udp(&filler, &ops, 9);
}

static void open_lab(bool tso)
{
    struct model_options opt = lab_options();
    if (!tso) {
        opt.features &= ~FEATURE(VIRTIO_NET_F_HOST_TSO4);
    }
    fill_pattern(pattern, sizeof(pattern), 12);
    memset(&app, 0, sizeof(app));
    memset(&filler, 0, sizeof(filler));
    lab_open(&opt, NULL);
    connect_both();
}

/* Datagrams until the queue stops. */
static void fill_ring(void)
{
    uint8_t *payload;
    bool fresh;
    while (sock_udp_reserve(filler.sock, 100, &payload, &fresh) == SOCK_OK) {
        assert_int_equal(sock_udp_commit(filler.sock), SOCK_OK);
    }
    assert_true(virtio_net_tx_stopped(net_device(), 0));
}

static void close_lab(void)
{
    sock_close(app.sock, true);
    sock_close(filler.sock, true);
    lab_tcp_free(&tcp);
    close_balanced();
}

static void elapse_stalled(uint64_t s)
{
    for (uint64_t i = 0; i < s * 40; i++) {
        seam_advance_ns(25 * LAB_MS);
        lab_pass();
    }
}

static void finish(size_t written)
{
    size_t done = written;
    for (unsigned round = 0; tcp.stream_len < STREAM_BYTES; round++) {
        assert_true(round < 3000);
        if (done < STREAM_BYTES) {
            done += (size_t)sock_tcp_write(app.sock, pattern + done, STREAM_BYTES - done, false);
        }
        lab_tcp_run(&tcp, 1);
    }
    assert_memory_equal(tcp.stream, pattern, STREAM_BYTES);
    assert_int_equal(app.errors, 0);
}

/* Refused while stopped, sent at the wake, nothing twice. */
static void test_refused_then_sent(void **state)
{
    (void)state;
    for (unsigned tso = 0; tso < 2; tso++) {
        struct net_stats stats;
        open_lab(tso != 0);
        fill_ring();
        size_t done = (size_t)sock_tcp_write(app.sock, pattern, 50000, false);
        assert_int_equal(done, 50000);
        lab_pass();
        net_stats(&stats);
        assert_true(stats.tx_refused > 0);
        finish(done);
        assert_int_equal(tcp.repeated, 0);
        assert_int_equal(sock_tcp_retransmits(app.sock), 0);
        close_lab();
    }
}

/* A stall far beyond the RTO with data refused: no connection ends, at most one segment goes twice.
 */
static void test_long_stall_stopped(void **state)
{
    (void)state;
    for (unsigned tso = 0; tso < 2; tso++) {
        open_lab(tso != 0);
        fill_ring();
        size_t done = (size_t)sock_tcp_write(app.sock, pattern, 50000, false);
        elapse_stalled(60);
        finish(done);
        assert_true(tcp.repeated <= 1);
        assert_true(sock_tcp_retransmits(app.sock) <= 1);
        close_lab();
    }
}

/* The same with segments in the ring that the device does not take, the queue not stopped. */
static void test_long_stall_in_ring(void **state)
{
    (void)state;
    for (unsigned tso = 0; tso < 2; tso++) {
        open_lab(tso != 0);
        size_t done = (size_t)sock_tcp_write(app.sock, pattern, 8000, false);
        lab_pass();
        assert_false(virtio_net_tx_stopped(net_device(), 0));
        elapse_stalled(60);
        finish(done);
        assert_true(tcp.repeated <= 1);
        assert_true(sock_tcp_retransmits(app.sock) <= 1);
        close_lab();
    }
}

/* Segments sent and not acknowledged, then the stall: what was moved back for a retransmission is
 * refused, and time still does not count. Longer than twelve RTOs. */
static void test_stall_of_an_hour(void **state)
{
    (void)state;
    open_lab(true);
    size_t done = (size_t)sock_tcp_write(app.sock, pattern, 8000, false);
    lab_serve(); /* on the wire; the peer is silent */
    fill_ring();
    done += (size_t)sock_tcp_write(app.sock, pattern + done, 50000, false);
    elapse_stalled(3600);
    assert_int_equal(app.errors, 0);
    finish(done);
    close_lab();
}

/* What comes in while stopped is acknowledged although data waits. */
static void test_acks_while_stopped(void **state)
{
    struct virtio_net_tx_stats before, after;
    (void)state;
    open_lab(true);
    fill_ring();
    assert_int_equal(sock_tcp_write(app.sock, pattern, 50000, false), 50000);
    lab_pass();
    virtio_net_tx_stats(net_device(), 0, &before);
    for (unsigned i = 0; i < 4; i++) {
        lab_tcp_send(&tcp, LAB_ACK | LAB_PSH, "data", 4);
        lab_pass();
    }
    assert_int_equal(app.n_received, 16);
    virtio_net_tx_stats(net_device(), 0, &after);
    assert_true(virtio_net_tx_stopped(net_device(), 0));
    assert_true(after.submitted >= before.submitted + 2);
    assert_true(after.submitted <= before.submitted + 4);
    lab_serve();
    lab_tcp_look(&tcp);
    assert_int_equal(tcp.last_ack, tcp.snd_nxt);
    close_lab();
}

/* A closed window and a stopped queue: probes that cannot go are not held against the peer. */
static void test_probes_while_stopped(void **state)
{
    (void)state;
    open_lab(true);
    tcp.window = 0;
    /* With new data twice: else a smaller window is not believed. */
    lab_tcp_send(&tcp, LAB_ACK, "x", 1);
    lab_tcp_send(&tcp, LAB_ACK, "y", 1);
    lab_serve();
    lab_elapse(300, true);
    size_t done = (size_t)sock_tcp_write(app.sock, pattern, 5000, false);
    lab_serve();
    fill_ring();
    elapse_stalled(300);
    assert_int_equal(app.errors, 0);
    tcp.window = 8192;
    lab_serve();
    lab_tcp_look(&tcp);
    lab_tcp_ack(&tcp);
    finish(done);
    close_lab();
}

/* Keepalive does not blame the peer for what the device did not send. */
static void test_keepalive_while_stopped(void **state)
{
    (void)state;
    open_lab(true);
    sock_tcp_keepalive(app.sock, 1, 1, 3);
    fill_ring();
    elapse_stalled(60);
    assert_int_equal(app.errors, 0);
    finish(0);
    close_lab();
}

/* Many connections, a small ring and a slow device: at each wake another one is first, so all get
 * their share. */
static void test_turns(void **state)
{
    enum { FLOWS = 6 };
    static struct app apps[FLOWS];
    static struct lab_tcp peers[FLOWS];
    uint32_t least = UINT32_MAX, most = 0;
    (void)state;
    open_lab(false);
    memset(apps, 0, sizeof(apps));
    for (unsigned i = 0; i < FLOWS; i++) {
        uint16_t port = (uint16_t)(6000 + i);
        apps[i].sock = sock_tcp_connect(&ops, &apps[i], LAB_PEER_IP, port, 5000 * LAB_MS, 0);
        lab_tcp_accept(&peers[i], port);
        lab_tcp_ack(&peers[i]);
    }
    lab_serve();
    for (unsigned i = 0; i < FLOWS; i++) {
        assert_int_equal(sock_tcp_write(apps[i].sock, pattern, STREAM_BYTES, false), STREAM_BYTES);
    }
    for (unsigned round = 0; round < 250; round++) {
        for (unsigned i = 0; i < FLOWS; i++) {
            uint32_t had = peers[i].rcv_nxt;
            lab_tcp_look(&peers[i]);
            if (peers[i].rcv_nxt != had) {
                lab_tcp_ack(&peers[i]);
            }
        }
        model_take(&lab.dev, MODEL_TX);
        model_complete(&lab.dev, 3);
        lab_pass();
    }
    for (unsigned i = 0; i < FLOWS; i++) {
        least = peers[i].stream_len < least ? peers[i].stream_len : least;
        most = peers[i].stream_len > most ? peers[i].stream_len : most;
        assert_int_equal(peers[i].repeated, 0);
        sock_close(apps[i].sock, true);
        lab_tcp_free(&peers[i]);
    }
    assert_true(most < STREAM_BYTES);
    assert_true(least * 3 >= most);
    close_lab();
}

/* The historical faults break the promise on purpose. What they cost is the driver's to show;
 * nothing of ours leaks or is counted wrong, and a stream gets there. */
static void open_with_policy(unsigned policy)
{
    struct model_options opt = lab_options();
    struct net_config config = {.ip = LAB_GUEST_IP, .netmask = 0xffffff00u};
    opt.features &= ~FEATURE(VIRTIO_F_INDIRECT_DESC);
    config.driver.policy = (enum virtio_net_policy)policy;
    config.driver.max_datagram_bytes = 3000;
    memset(&app, 0, sizeof(app));
    memset(&filler, 0, sizeof(filler));
    lab_open(&opt, &config);
    connect_both();
}

static void a_few_datagrams(unsigned n)
{
    uint8_t *payload;
    bool fresh;
    for (unsigned i = 0; i < n; i++) {
        if (sock_udp_reserve(filler.sock, 2000, &payload, &fresh) == SOCK_OK) {
            (void)sock_udp_commit(filler.sock);
        }
    }
}

/* Pieces that do not touch, so that frames are long chains. */
static size_t write_in_pieces(size_t done)
{
    static uint8_t twin[FAULT_STREAM_BYTES];
    if (done == 0) {
        memcpy(twin, pattern, sizeof(twin));
    }
    while (done < FAULT_STREAM_BYTES) {
        const uint8_t *from = done / 200 % 2 == 0 ? pattern : twin;
        int64_t n = sock_tcp_write(app.sock, from + done, 200, false);
        assert_true(n >= 0);
        done += (size_t)n;
        if (n < 200) {
            break;
        }
    }
    return done;
}

static void peer_round(unsigned round)
{
    uint32_t had = tcp.rcv_nxt;
    lab_tcp_look(&tcp);
    lab_forget_frames();
    tcp.seen_frames = 0;
    if (tcp.rcv_nxt != had || round % 16 == 0) {
        lab_tcp_ack(&tcp);
    }
}

static void test_fault_policies(void **state)
{
    (void)state;
    for (unsigned policy = 1; policy < VIRTIO_NET_POLICIES; policy++) {
        struct sock_udp_stats stats;
        struct virtio_net_tx_stats tx;
        size_t done = 0;
        open_with_policy(policy);
        for (unsigned round = 0; tcp.stream_len < FAULT_STREAM_BYTES; round++) {
            assert_true(round < 100000);
            a_few_datagrams(2);
            done = write_in_pieces(done);
            seam_advance_ns(20 * LAB_MS);
            lab_pass();
            model_take(&lab.dev, MODEL_TX);
            model_complete(&lab.dev, 3 + round % 5);
            lab_pass();
            peer_round(round);
        }
        assert_memory_equal(tcp.stream, pattern, FAULT_STREAM_BYTES);
        for (unsigned round = 0; round < 100; round++) {
            a_few_datagrams(8);
            lab_pass();
            model_take(&lab.dev, MODEL_TX);
            model_complete(&lab.dev, 1); /* a wake finds hardly any room */
        }
        lab_serve();
        sock_udp_stats(filler.sock, &stats);
        assert_int_equal(stats.queued, stats.consumed + stats.aborted);
        virtio_net_tx_stats(net_device(), 0, &tx);
        if (policy == VIRTIO_NET_POLICY_DROP) {
            assert_true(tx.drops[VIRTIO_NET_TX_DROP_POLICY] > 0);
            assert_true(stats.aborted > 0);
        }
        sock_close(app.sock, true);
        sock_close(filler.sock, true);
        lab_serve();
        lab_assert_ledger();
        lab_tcp_free(&tcp);
        net_close();
        lab_forget_frames();
        lab_time_ns = seam_now_ns();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_then_sent),       cmocka_unit_test(test_long_stall_stopped),
        cmocka_unit_test(test_long_stall_in_ring),      cmocka_unit_test(test_stall_of_an_hour),
        cmocka_unit_test(test_acks_while_stopped),      cmocka_unit_test(test_probes_while_stopped),
        cmocka_unit_test(test_keepalive_while_stopped), cmocka_unit_test(test_turns),
        cmocka_unit_test(test_fault_policies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
