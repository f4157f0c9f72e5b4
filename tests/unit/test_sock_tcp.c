/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Streams: connect and its failures, writing with and without copy, windows, half close, silence,
 * servers.
 */
#include "tests/unit/lab_app.h"

#include "net/netmem.h"

static uint8_t pattern[1 << 20];

static bool close_in_received;

static void on_received(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                        size_t total, uint32_t from_ip, uint16_t from_port)
{
    assert_true(offset + len <= total);
    assert_int_equal(from_ip, LAB_PEER_IP);
    app_received(sock, arg, data, len, offset, total, from_ip, from_port);
    if (close_in_received) {
        sock_close(sock, true);
        ((struct app *)arg)->sock = NULL;
    }
}

static const struct sock_ops ops = {
    .connected = app_connected,
    .writable = app_writable,
    .drained = app_drained,
    .received = on_received,
    .error = app_error,
};

static struct app app;
static struct lab_tcp tcp;

static void open_default(void)
{
    struct model_options opt = lab_options();
    memset(&app, 0, sizeof(app));
    memset(&tcp, 0, sizeof(tcp));
    close_in_received = false;
    fill_pattern(pattern, sizeof(pattern), 13);
    lab_open(&opt, NULL);
}

static void connect_to_peer(uint32_t window_bytes)
{
    app.sock = sock_tcp_connect(&ops, &app, LAB_PEER_IP, 5201, 5000 * LAB_MS, window_bytes);
    assert_non_null(app.sock);
    assert_int_equal(sock_tcp_write(app.sock, "x", 1, true), SOCK_FATAL); /* not connected yet */
    lab_tcp_accept_with(&tcp, 5201, 8192);
    assert_int_equal(app.connected, 1);
}

static void close_all(void)
{
    if (app.sock != NULL) {
        sock_close(app.sock, true);
    }
    lab_tcp_free(&tcp);
    close_balanced();
}

/* Everything written arrives in order, once, and drained is said when it was acknowledged. */
static void write_all(size_t total, size_t chunk, bool copy)
{
    size_t done = 0;
    unsigned asked = 0;
    while (done < total) {
        size_t want = total - done < chunk ? total - done : chunk;
        int64_t n = sock_tcp_write(app.sock, pattern + done, want, copy);
        assert_true(n >= 0);
        done += (size_t)n;
        if ((size_t)n < want) {
            asked++;
            for (unsigned i = 0; i < 1000 && app.writable < asked; i++) {
                seam_advance_ns(LAB_MS);
                lab_tcp_run(&tcp, 1);
            }
            assert_int_equal(app.writable, asked); /* AGAIN is kept, once */
        }
        if (lab.n_frames > LAB_FRAMES / 2) {
            lab_tcp_look(&tcp);
            lab_forget_frames();
            tcp.seen_frames = 0;
        }
    }
    lab_tcp_run(&tcp, 100);
    assert_int_equal(tcp.stream_len, total);
    assert_memory_equal(tcp.stream, pattern, total);
    assert_int_equal(tcp.repeated, 0);
}

static void test_write(void **state)
{
    static const size_t chunks[] = {1, 100, 1460, 5000, 65536, 300000};
    (void)state;
    for (unsigned copy = 0; copy < 2; copy++) {
        for (unsigned i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
            open_default();
            connect_to_peer(0);
            write_all(chunks[i] == 1 ? 2000 : 500000, chunks[i], copy != 0);
            assert_true(app.drained > 0);
            assert_int_equal(sock_tcp_bytes_acked(app.sock), tcp.stream_len);
            assert_int_equal(sock_tcp_retransmits(app.sock), 0);
            close_all();
        }
    }
}

/* The window asked for bounds what is written and what is announced. */
static void test_window_limit(void **state)
{
    (void)state;
    open_default();
    connect_to_peer(16384);
    assert_int_equal(sock_tcp_write(app.sock, pattern, 100000, false), 16384);
    lab_serve();
    const struct lab_frame *last = &lab.frames[lab.n_frames - 1];
    uint32_t announced = (uint32_t)get16(last->bytes + 48) << 6;
    assert_true(announced <= 16384 && announced > 16384 - 64);
    close_all();
}

/* An orderly close with a limited window is a FIN and no reset. */
static void test_orderly_close(void **state)
{
    (void)state;
    open_default();
    connect_to_peer(16384);
    lab_tcp_send(&tcp, LAB_ACK | LAB_PSH, "hello", 5);
    lab_tcp_run(&tcp, 2);
    assert_int_equal(app.n_received, 5);
    assert_memory_equal(app.received, "hello", 5);
    sock_close(app.sock, false);
    app.sock = NULL;
    lab_tcp_run(&tcp, 3);
    assert_true(tcp.finished);
    assert_int_equal(tcp.resets, 0);
    close_all();
}

/* The peer closes its half: said once, and writing goes on. */
static void test_half_close(void **state)
{
    (void)state;
    open_default();
    connect_to_peer(0);
    lab_tcp_send(&tcp, LAB_ACK | LAB_FIN, NULL, 0);
    lab_tcp_run(&tcp, 2);
    assert_int_equal(app.errors, 1);
    assert_int_equal(app.error, SOCK_ERR_CLOSED);
    assert_int_equal(sock_tcp_write(app.sock, pattern, 3000, false), 3000);
    lab_tcp_run(&tcp, 5);
    assert_int_equal(tcp.stream_len, 3000);
    close_all();
}

/*
 * Both sides have closed, and data is still to be sent: it arrives, however long that takes. Either
 * the peer hears nothing for three seconds, or it hears one segment in a third of a second.
 */
static void test_closed_with_data_left(void **state)
{
    (void)state;
    for (unsigned slow = 0; slow < 2; slow++) {
        open_default();
        connect_to_peer(0);
        lab_tcp_send(&tcp, LAB_ACK | LAB_FIN, NULL, 0);
        lab_tcp_run(&tcp, 2);
        assert_int_equal(sock_tcp_write(app.sock, pattern, 60000, true), 60000);
        sock_close(app.sock, false);
        app.sock = NULL;
        for (unsigned i = 0; i < 200 && !tcp.finished; i++) {
            const uint32_t before = tcp.rcv_nxt;
            lab_elapse(300, true);
            if (slow != 0 && tcp.seen_frames < lab.n_frames) {
                lab_tcp_frame(&tcp, &lab.frames[tcp.seen_frames++]);
            } else if (slow == 0 && i < 10) {
                tcp.seen_frames = lab.n_frames;
            } else {
                lab_tcp_look(&tcp);
            }
            if (tcp.rcv_nxt != before) {
                lab_tcp_ack(&tcp);
            }
        }
        assert_true(tcp.finished);
        assert_int_equal(tcp.stream_len, 60000);
        assert_memory_equal(tcp.stream, pattern, 60000);
        assert_int_equal(tcp.resets, 0);
        close_all();
    }
}

static void test_refused(void **state)
{
    (void)state;
    open_default();
    app.sock = sock_tcp_connect(&ops, &app, LAB_PEER_IP, 5201, 5000 * LAB_MS, 0);
    lab_serve();
    tcp = (struct lab_tcp){.peer_port = 5201};
    lab_tcp_look(&tcp);
    lab_tcp_send(&tcp, LAB_RST | LAB_ACK, NULL, 0);
    lab_serve();
    assert_int_equal(app.errors, 1);
    assert_int_equal(app.error, SOCK_ERR_REFUSED);
    assert_int_equal(sock_tcp_write(app.sock, "x", 1, true), SOCK_FATAL);
    close_all();
}

static void test_reset(void **state)
{
    (void)state;
    open_default();
    connect_to_peer(0);
    lab_tcp_send(&tcp, LAB_RST | LAB_ACK, NULL, 0);
    lab_serve();
    assert_int_equal(app.errors, 1);
    assert_int_equal(app.error, SOCK_ERR_RESET);
    close_all();
}

/* Nobody answers: TIMEOUT at the deadline when the next hop is there, ROUTE when it is not or there
 * is none. */
static void test_connect_deadline(void **state)
{
    (void)state;
    open_default();
    app.sock = sock_tcp_connect(&ops, &app, LAB_PEER_IP, 5201, 1000 * LAB_MS, 0);
    lab_elapse(900, true);
    assert_int_equal(app.errors, 0);
    lab_elapse(300, true);
    assert_int_equal(app.error, SOCK_ERR_TIMEOUT);
    close_all();

    open_default();
    lab.mute = true;
    app.sock = sock_tcp_connect(&ops, &app, LAB_PEER_IP, 5201, 1000 * LAB_MS, 0);
    lab_elapse(1200, true);
    assert_int_equal(app.error, SOCK_ERR_ROUTE);
    close_all();

    open_default();
    app.sock = sock_tcp_connect(&ops, &app, 0x08080808u, 5201, 1000 * LAB_MS, 0);
    lab_serve();
    assert_int_equal(app.errors, 1);
    assert_int_equal(app.error, SOCK_ERR_ROUTE);
    close_all();
}

/* Silence of the peer ends a connection with keepalive, and only then. */
static void test_keepalive(void **state)
{
    (void)state;
    open_default();
    connect_to_peer(0);
    sock_tcp_keepalive(app.sock, 1, 1, 3);
    for (unsigned i = 0; i < 5; i++) {
        lab_elapse(1000, true);
        lab_tcp_ack(&tcp);
        lab_serve();
    }
    assert_int_equal(app.errors, 0);
    lab_elapse(6000, true);
    assert_int_equal(app.errors, 1);
    assert_int_equal(app.error, SOCK_ERR_TIMEOUT);
    close_all();
}

/* Twelve retransmissions without an answer, the device working: given up, and told. */
static void test_given_up(void **state)
{
    (void)state;
    open_default();
    connect_to_peer(0);
    sock_tcp_write(app.sock, pattern, 1000, false);
    for (unsigned i = 0; i < 40000 && app.errors == 0; i++) {
        seam_advance_ns(50 * LAB_MS);
        lab_serve();
        lab_tcp_look(&tcp);
        lab_forget_frames();
        tcp.seen_frames = 0;
    }
    assert_int_equal(app.errors, 1);
    assert_int_equal(app.error, SOCK_ERR_ABORTED);
    assert_int_equal(sock_tcp_retransmits(app.sock), 12);
    assert_int_equal(tcp.repeated, 12);
    close_all();
}

/* One lost segment: sent again after the RTO, counted, and the stream is whole. */
static void test_retransmit(void **state)
{
    (void)state;
    open_default();
    connect_to_peer(0);
    sock_tcp_write(app.sock, pattern, 1000, false);
    lab_serve();
    tcp.seen_frames = lab.n_frames; /* lost behind the device */
    lab_elapse(3000, true);
    lab_tcp_run(&tcp, 3);
    assert_int_equal(tcp.stream_len, 1000);
    assert_true(sock_tcp_retransmits(app.sock) >= 1);
    close_all();
}

static void test_close_in_callback(void **state)
{
    (void)state;
    open_default();
    connect_to_peer(0);
    close_in_received = true;
    lab_tcp_send(&tcp, LAB_ACK | LAB_PSH, "bye", 3);
    lab_tcp_run(&tcp, 2);
    assert_null(app.sock);
    assert_int_equal(tcp.resets, 1);
    close_all();
}

/* ---- servers ---- */

static struct app served;
static bool refuse;

static bool on_accept(void *arg, struct sock *fresh, const struct sock_ops **fresh_ops,
                      void **sock_arg)
{
    assert_ptr_equal(arg, &app);
    if (refuse) {
        return false;
    }
    served.sock = fresh;
    *fresh_ops = &ops;
    *sock_arg = &served;
    return true;
}

static void connect_to_guest(uint16_t port)
{
    memset(&served, 0, sizeof(served));
    lab_serve();
    tcp = (struct lab_tcp){.guest_port = port, .peer_port = 40000, .snd_nxt = 7000, .window = 8192};
    tcp.seen_frames = lab.n_frames;
    lab_tcp_send(&tcp, LAB_SYN, NULL, 0);
    lab_serve();
    lab_tcp_look(&tcp);
    assert_true(tcp.synchronised);
    lab_tcp_ack(&tcp);
    lab_serve();
    lab_tcp_look(&tcp);
}

static void test_listen(void **state)
{
    (void)state;
    open_default();
    refuse = false;
    struct sock *listener = sock_tcp_listen(5201, on_accept, &app);
    assert_non_null(listener);
    assert_null(sock_tcp_listen(5201, on_accept, &app));
    connect_to_guest(5201);
    assert_int_equal(served.connected, 1);
    lab_tcp_send(&tcp, LAB_ACK | LAB_PSH, "ping", 4);
    lab_tcp_run(&tcp, 1);
    assert_int_equal(served.n_received, 4);
    assert_int_equal(sock_tcp_write(served.sock, "pong", 4, true), 4);
    lab_tcp_run(&tcp, 2);
    assert_int_equal(tcp.stream_len, 4);
    assert_memory_equal(tcp.stream, "pong", 4);
    sock_close(served.sock, true);
    lab_tcp_free(&tcp);
    refuse = true;
    connect_to_guest(5201);
    assert_int_equal(tcp.resets, 1);
    sock_close(listener, false);
    close_all();
}

/* A connection belongs to its listener until it is accepted. When that one is closed first, nothing
 * may be noted with it any more. */
static void test_listener_closed_amid_handshake(void **state)
{
    (void)state;
    open_default();
    struct sock *listener = sock_tcp_listen(5201, on_accept, &app);
    assert_non_null(listener);
    tcp = (struct lab_tcp){.guest_port = 5201, .peer_port = 40000, .snd_nxt = 7, .window = 8192};
    lab_tcp_send(&tcp, LAB_SYN, NULL, 0);
    lab_serve();
    lab_tcp_look(&tcp);
    assert_true(tcp.synchronised);
    sock_close(listener, false);
    lab_elapse(500, true);
    close_all();
}

/* Each allocation fails once: nothing is lost or leaked, and a connection that came about works. */
static void test_memory(void **state)
{
    (void)state;
    for (unsigned nth = 1; nth < 40; nth++) {
        open_default();
        connect_to_peer(0);
        netmem_model_fail_in = nth;
        write_all(40000, 40000, nth % 2 != 0);
        netmem_model_fail_in = 0;
        close_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_window_limit),
        cmocka_unit_test(test_orderly_close),
        cmocka_unit_test(test_half_close),
        cmocka_unit_test(test_closed_with_data_left),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_connect_deadline),
        cmocka_unit_test(test_keepalive),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_retransmit),
        cmocka_unit_test(test_close_in_callback),
        cmocka_unit_test(test_listen),
        cmocka_unit_test(test_listener_closed_amid_handshake),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
