/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Streams to a peer whose window or segment size is small, late, or at odds with what it
 * acknowledges: nothing is lost, nothing stands still, and no assertion of lwIP ends the guest.
 */
#include "tests/unit/lab_app.h"

static uint8_t pattern[40000];
static size_t write_in_received;

static void on_received(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                        size_t total, uint32_t from_ip, uint16_t from_port)
{
    app_received(sock, arg, data, len, offset, total, from_ip, from_port);
    if (write_in_received != 0) {
        size_t n = write_in_received;
        write_in_received = 0;
        assert_int_equal(sock_tcp_write(sock, pattern + 5, n, true), n);
    }
}

static const struct sock_ops ops = {
    .connected = app_connected,
    .writable = app_writable,
    .received = on_received,
    .error = app_error,
};

static struct app app;
static struct lab_tcp tcp;

static void open_to_peer(uint16_t peer_window)
{
    struct model_options opt = lab_options();
    memset(&app, 0, sizeof(app));
    memset(&tcp, 0, sizeof(tcp));
    fill_pattern(pattern, sizeof(pattern), 13);
    lab_open(&opt, NULL);
    app.sock = sock_tcp_connect(&ops, &app, LAB_PEER_IP, 5201, 5000 * LAB_MS, 0);
    assert_non_null(app.sock);
    lab_tcp_accept_with(&tcp, 5201, peer_window);
    assert_int_equal(app.connected, 1);
}

static void close_all(void)
{
    sock_close(app.sock, true);
    lab_tcp_free(&tcp);
    close_balanced();
}

/* A peer that opens with no window or hardly one, and then with one smaller than two segments: what
 * was begun before is finished, and nothing is lost. */
static void test_window_opens_small(void **state)
{
    (void)state;
    for (uint16_t first = 0; first < 4; first++) {
        for (unsigned later = 1; later < 40; later++) {
            open_to_peer(first);
            for (unsigned i = 0; i < 5; i++) {
                assert_int_equal(sock_tcp_write(app.sock, pattern + i, 1, true), 1);
            }
            tcp.window = (uint16_t)later; /* scaled by 7 */
            write_in_received = 3000;     /* before what was begun is sent */
            lab_tcp_send(&tcp, LAB_ACK | LAB_PSH, "x", 1);
            for (unsigned i = 0; i < 2000 && tcp.stream_len < 3005; i++) {
                lab_elapse(5, true);
                lab_tcp_run(&tcp, 4);
            }
            assert_int_equal(tcp.stream_len, 3005);
            assert_memory_equal(tcp.stream, pattern, 3005);
            close_all();
        }
    }
}

/* All is lost, and sent again and lost; then a part of the first segment is acknowledged, with a
 * window that does not hold the rest of it, and after a while one that does: 64 KiB, a multiple of
 * it, others. Everything arrives, and there is no standing still. */
static void test_window_within_an_acked_segment(void **state)
{
    static const uint16_t wide[] = {512, 22016, 8193, 12}; /* scaled by 7 */
    (void)state;
    for (unsigned i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
        for (uint32_t acked = 0; acked < 1460; acked += 73) {
            open_to_peer(8192);
            assert_int_equal(sock_tcp_write(app.sock, pattern, 9000, true), 9000);
            lab_elapse(4000, true);
            tcp.rcv_nxt += acked;
            for (unsigned k = 0; k < 2; k++) {
                tcp.window = k == 0 ? 1 : wide[i];
                lab_tcp_ack(&tcp);
                lab_elapse(k == 0 ? 3000 : 5, true);
                tcp.seen_frames = lab.n_frames;
            }
            for (unsigned n = 0; n < 4000 && tcp.stream_len < 9000 - acked; n++) {
                lab_elapse(5, true);
                lab_tcp_run(&tcp, 4);
            }
            assert_int_equal(tcp.stream_len, 9000 - acked);
            assert_memory_equal(tcp.stream, pattern + acked, 9000 - acked);
            close_all();
        }
    }
}

/* What was lost waits for a window; then an old copy of it arrives after all, and all of it is
 * acknowledged: nothing is left to send, and lwIP's timer is on. The connection goes on. */
static void test_all_acked_while_waiting_for_a_window(void **state)
{
    (void)state;
    open_to_peer(8192);
    assert_int_equal(sock_tcp_write(app.sock, pattern, 4380, true), 4380);
    lab_elapse(4000, true);
    tcp.window = 0;
    lab_tcp_ack(&tcp);
    lab_elapse(4000, true);
    tcp.window = 100;    /* scaled by 7 */
    tcp.rcv_nxt += 4380; /* three segments */
    lab_tcp_ack(&tcp);
    lab_elapse(4000, true);
    tcp.seen_frames = lab.n_frames;
    assert_int_equal(sock_tcp_write(app.sock, pattern, 100, true), 100);
    lab_elapse(5, true);
    lab_tcp_run(&tcp, 4);
    assert_int_equal(tcp.stream_len, 100);
    close_all();
}

/* A segment size that comes in mid-stream is not believed: lwIP would assert that segments never
 * shrink, and send larger ones than the link takes. */
static void test_late_segment_size(void **state)
{
    static const uint16_t sizes[] = {100, 8960};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        uint8_t frame[128] = {0}, *at = frame + L4_AT;
        open_to_peer(8192);
        lab_tcp_ack(&tcp);
        lab_serve();
        assert_int_equal(sock_tcp_write(app.sock, pattern, 20000, false), 20000);
        (void)lab_tcp_header(&tcp, frame, tcp.snd_nxt, LAB_ACK);
        at[12] = 0x60;
        at[20] = 2;
        at[21] = 4;
        put16(at + 22, sizes[i]);
        uint32_t len = lab_ip(frame, 6, 24);
        put16(at + 16, 0xffffu & ~wire_l4_sum(frame, 24));
        lab_inject(frame, len);
        lab_serve();
        assert_int_equal(sock_tcp_mss(app.sock), 1460);
        assert_int_equal(sock_tcp_write(app.sock, pattern + 20000, 20000, false), 20000);
        lab_tcp_run(&tcp, 50);
        assert_int_equal(tcp.stream_len, 40000);
        assert_memory_equal(tcp.stream, pattern, 40000);
        close_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window_opens_small),
        cmocka_unit_test(test_window_within_an_acked_segment),
        cmocka_unit_test(test_all_acked_while_waiting_for_a_window),
        cmocka_unit_test(test_late_segment_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
