/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Joining of TCP segments: what the device cuts again must be, byte for byte, what would have left
 * without joining.
 *
 *     write -> lwIP -> segments -> joined frames -> cut as a device cuts (lab_expand) -> compare
 *                               -> single frames (tso off) ----------------------------> compare
 */
#include "tests/unit/lab_app.h"

#include "net/netmem.h"
#include "tests/unit/lab_expand.h"

#define STREAM_BYTES 1500000u
#define MSS_BYTES    1460u

static uint8_t pattern[STREAM_BYTES];
static struct app app;

static const struct sock_ops ops = {.connected = app_connected};

/* What left the guest, cut: headers without IP id, and payload. */
struct cut {
    struct lab_tcp *tcp;
    unsigned segments;
    uint32_t next_seq, window;
    bool any, fin;
};

static void on_segment(void *ctx, const uint8_t *bytes, uint32_t len)
{
    struct cut *cut = ctx;
    const uint8_t *tcp = bytes + L4_AT;
    uint32_t hdr = L4_AT + (uint32_t)(tcp[12] >> 4) * 4;
    assert_true(len - hdr <= MSS_BYTES);
    assert_true(len > hdr);
    if (cut->any) {
        assert_int_equal(get32(tcp + 4), cut->next_seq); /* in order, no gap */
    }
    cut->any = true;
    cut->next_seq = get32(tcp + 4) + len - hdr;
    cut->segments++;
    cut->fin |= (tcp[13] & LAB_FIN) != 0;
}

static struct lab_tcp tcp;

static void open_lab(bool tso, unsigned tx_descs, bool indirect, uint32_t window)
{
    struct model_options opt = lab_options();
    opt.size_descs[MODEL_TX] = (uint16_t)tx_descs;
    if (!tso) {
        opt.features &= ~FEATURE(VIRTIO_NET_F_HOST_TSO4);
    }
    if (!indirect) {
        opt.features &= ~FEATURE(VIRTIO_F_INDIRECT_DESC);
    }
    fill_pattern(pattern, sizeof(pattern), 11);
    memset(&app, 0, sizeof(app));
    lab_open(&opt, NULL);
    app.sock = sock_tcp_connect(&ops, &app, LAB_PEER_IP, 5201, 5000 * LAB_MS, window);
    lab_tcp_accept(&tcp, 5201);
    assert_int_equal(app.connected, 1);
}

static void close_lab(void)
{
    sock_close(app.sock, true);
    lab_tcp_free(&tcp);
    close_balanced();
}

/* All data frames seen since `from`, cut and checked. */
static struct cut cut_frames(unsigned from)
{
    struct cut cut = {0};
    for (unsigned i = from; i < lab.n_frames; i++) {
        const uint8_t *at = lab.frames[i].bytes + L4_AT;
        uint32_t hdr = L4_AT + (uint32_t)(at[12] >> 4) * 4;
        assert_int_equal(get16(lab.frames[i].bytes + 16), lab.frames[i].len - IP_AT);
        assert_int_equal(wire_sum(lab.frames[i].bytes + 14, 20, 0), 0xffff);
        if (lab.frames[i].len > hdr) {
            lab_expand(&lab.frames[i], on_segment, &cut);
        }
    }
    return cut;
}

/* Sends the pattern in writes of `chunk`; the peer acknowledges every round. */
static struct cut transfer(size_t chunk, bool copy)
{
    unsigned from = lab.n_frames;
    size_t done = 0;
    for (unsigned round = 0; tcp.stream_len < STREAM_BYTES; round++) {
        assert_true(round < 5000);
        while (done < STREAM_BYTES) {
            size_t want = STREAM_BYTES - done < chunk ? STREAM_BYTES - done : chunk;
            int64_t n = sock_tcp_write(app.sock, pattern + done, want, copy);
            assert_true(n >= 0);
            done += (size_t)n;
            if ((size_t)n < want) {
                break;
            }
        }
        lab_tcp_run(&tcp, 1);
    }
    assert_memory_equal(tcp.stream, pattern, STREAM_BYTES);
    assert_int_equal(tcp.repeated, 0);
    return cut_frames(from);
}

static void test_bytes_exact(void **state)
{
    static const size_t chunks[] = {100, 1000, 1460, 1461, 4096, 65535, 131072};
    struct net_stats stats;
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        for (unsigned i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
            bool tso = form < 3;
            open_lab(tso, form == 2 ? 64 : 256, form != 1, 0);
            uint64_t before = lab.n_frames;
            struct cut cut = transfer(chunks[i], (i + form) % 2 == 0);
            net_stats(&stats);
            assert_int_equal(cut.next_seq, tcp.rcv_nxt);
            assert_true(cut.segments >= STREAM_BYTES / MSS_BYTES);
            if (tso && chunks[i] >= 4096) {
                assert_true(stats.tso_frames > 0);
                assert_true(lab.n_frames - before < cut.segments / 4);
            }
            if (!tso) {
                assert_int_equal(stats.tso_frames, 0);
            }
            close_lab();
        }
    }
}

/* Full frames: as many segments as 65,535 bytes of IP hold. */
static void test_largest_frame(void **state)
{
    uint32_t largest = 0;
    (void)state;
    open_lab(true, 256, true, 0);
    transfer(131072, false);
    for (unsigned i = 0; i < lab.n_frames; i++) {
        largest = lab.frames[i].len > largest ? lab.frames[i].len : largest;
    }
    assert_int_equal(largest, 54 + 44 * MSS_BYTES);
    close_lab();
}

/* PSH and FIN hold for the end of the frame, and lwIP's own headers are not touched: sent again,
 * the first segment of a frame that ended with FIN has none. */
static void test_fin_stays_at_the_end(void **state)
{
    (void)state;
    open_lab(true, 256, true, 0);
    assert_int_equal(sock_tcp_write(app.sock, pattern, 4000, false), 4000);
    unsigned from = lab.n_frames;
    sock_close(app.sock, false);
    lab_serve();
    struct cut cut = cut_frames(from);
    assert_int_equal(cut.segments, 3);
    assert_true(cut.fin);
    tcp.seen_frames = lab.n_frames; /* all of it is lost */
    lab_forget_frames();
    tcp.seen_frames = 0;
    lab_elapse(3000, true);
    assert_true(lab.n_frames > 0);
    const uint8_t *first = lab.frames[0].bytes;
    assert_int_equal(get32(first + 38), tcp.rcv_nxt);
    lab_tcp_look(&tcp);
    for (unsigned i = 0; i < 20 && !tcp.finished; i++) {
        lab_tcp_ack(&tcp);
        lab_elapse(1000, true);
        lab_tcp_look(&tcp);
    }
    assert_int_equal(tcp.stream_len, 4000);
    assert_memory_equal(tcp.stream, pattern, 4000);
    assert_true(tcp.finished);
    lab_tcp_free(&tcp);
    close_balanced();
}

/* The acknowledgement in a joined frame is the newest: data comes in while the frame is held. */
static void test_newest_ack(void **state)
{
    (void)state;
    open_lab(true, 256, true, 0);
    assert_int_equal(sock_tcp_write(app.sock, pattern, 200000, false), 200000);
    lab_serve();
    lab_tcp_look(&tcp);
    unsigned from = lab.n_frames;
    uint32_t all = tcp.rcv_nxt;
    tcp.rcv_nxt -= 2 * MSS_BYTES;
    lab_tcp_ack(&tcp); /* lets some go */
    tcp.rcv_nxt = all;
    lab_tcp_send(&tcp, LAB_ACK | LAB_PSH, "abc", 3); /* and some more, in the same pass */
    lab_pass();
    model_serve(&lab.dev);
    assert_int_equal(lab.n_frames, from + 1);
    assert_true(lab.frames[from].hdr.gso_size != 0);
    assert_int_equal(get32(lab.frames[from].bytes + 42), tcp.snd_nxt);
    lab_tcp_look(&tcp);
    lab_tcp_ack(&tcp);
    lab_tcp_run(&tcp, 60);
    assert_int_equal(tcp.stream_len, 200000);
    assert_memory_equal(tcp.stream, pattern, 200000);
    close_lab();
}

/* A short segment ends its frame: behind it the cuts would lie elsewhere than lwIP laid them. */
static void test_short_segments(void **state)
{
    static const unsigned sizes[] = {1460, 300, 700, 700, 700, 100, 1000, 1460, 1460};
    unsigned n = sizeof(sizes) / sizeof(sizes[0]), at = 0;
    (void)state;
    open_lab(true, 256, true, 0);
    sock_tcp_nodelay(app.sock, true);
    unsigned from = lab.n_frames;
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(sock_tcp_write(app.sock, pattern + at, sizes[i], i % 2 == 0), sizes[i]);
        at += sizes[i];
    }
    lab_tcp_run(&tcp, 3);
    struct cut cut = cut_frames(from);
    assert_int_equal(cut.segments, n);
    assert_int_equal(lab.n_frames - from, 4); /* 1460+300, 3*700+100, 1000, 2*1460 */
    assert_int_equal(tcp.stream_len, at);
    assert_memory_equal(tcp.stream, pattern, at);
    close_lab();
}

/* Pieces that do not touch: a frame takes as many as the driver allows, and the rest goes in the
 * next. */
static void test_many_pieces(void **state)
{
    static uint8_t scattered[200][1500];
    (void)state;
    open_lab(true, 256, true, 0);
    unsigned from = lab.n_frames;
    for (unsigned i = 0; i < 40; i++) {
        memcpy(scattered[i * 5], pattern + i * 700u, 700);
        assert_int_equal(sock_tcp_write(app.sock, scattered[i * 5], 700, false), 700);
    }
    for (unsigned i = 0; i < 20; i++) {
        lab_tcp_run(&tcp, 1);
    }
    assert_int_equal(tcp.stream_len, 40u * 700u);
    assert_memory_equal(tcp.stream, pattern, 40u * 700u);
    (void)cut_frames(from); /* no byte of a segment that did not fit */
    close_lab();
}

/* A segment of more pieces than a plain frame may have is copied together. */
static void test_pieces_without_tso(void **state)
{
    static uint8_t scattered[200][64];
    (void)state;
    open_lab(false, 64, false, 0);
    for (unsigned i = 0; i < 40; i++) {
        memcpy(scattered[i * 5], pattern + i * 30u, 30);
        assert_int_equal(sock_tcp_write(app.sock, scattered[i * 5], 30, false), 30);
    }
    for (unsigned i = 0; i < 20; i++) {
        lab_tcp_run(&tcp, 1);
    }
    assert_int_equal(tcp.stream_len, 40u * 30u);
    assert_memory_equal(tcp.stream, pattern, 40u * 30u);
    close_lab();
}

/*
 * Field case 19: one segment written in 90 pieces of 16 bytes, in 257 and in 400 smaller ones,
 * without copying, into rings with and without indirect descriptors, with and without segmentation.
 * It leaves as one frame of few pieces, arrives once and as written, and nothing stays in the
 * queue.
 */
static void test_hundreds_of_pieces(void **state)
{
    static const struct {
        unsigned pieces, bytes;
    } forms[] = {{90, 16}, {257, 5}, {400, 3}};
    static uint8_t scattered[401][32];
    (void)state;
    for (unsigned form = 0; form < 4 * sizeof(forms) / sizeof(forms[0]); form++) {
        unsigned pieces = forms[form / 4].pieces, bytes = forms[form / 4].bytes;
        open_lab((form & 1) != 0, 64, (form & 2) != 0, 0);
        unsigned from = lab.n_frames;
        /* The first goes at once; the others wait for its acknowledgement, and go together. */
        for (unsigned i = 0; i <= pieces; i++) {
            memcpy(scattered[i], pattern + i * bytes, bytes);
            assert_int_equal(sock_tcp_write(app.sock, scattered[i], bytes, false), bytes);
        }
        for (unsigned i = 0; i < 20; i++) {
            lab_tcp_run(&tcp, 1);
        }
        assert_int_equal(tcp.stream_len, (pieces + 1) * bytes);
        assert_memory_equal(tcp.stream, pattern, (pieces + 1) * bytes);
        assert_int_equal(tcp.repeated, 0);
        assert_int_equal(cut_frames(from).segments, 2);
        assert_int_equal(virtio_net_tx_in_flight(net_device(), 0), 0);
        close_lab();
    }
}

/* No memory for a joined frame: the segments go one by one. */
static void test_no_memory(void **state)
{
    (void)state;
    for (unsigned nth = 1; nth < 120; nth += 3) {
        open_lab(true, 256, true, 0);
        netmem_model_fail_in = nth;
        unsigned from = lab.n_frames;
        size_t done = 0;
        for (unsigned round = 0; tcp.stream_len < 100000; round++) {
            assert_true(round < 5000);
            if (done < 100000) {
                done += (size_t)sock_tcp_write(app.sock, pattern + done, 100000 - done, false);
            }
            seam_advance_ns(LAB_MS);
            lab_tcp_run(&tcp, 1);
        }
        netmem_model_fail_in = 0;
        assert_memory_equal(tcp.stream, pattern, 100000);
        (void)cut_frames(from);
        close_lab();
    }
}

/* Two flows at once do not get into one frame, and neither is held up by the other. */
static void test_two_flows(void **state)
{
    struct lab_tcp other;
    (void)state;
    open_lab(true, 256, true, 0);
    struct sock *second = sock_tcp_connect(&ops, &app, LAB_PEER_IP, 5202, 5000 * LAB_MS, 0);
    unsigned seen = tcp.seen_frames;
    lab_tcp_accept(&other, 5202);
    tcp.seen_frames = seen;
    assert_int_equal(sock_tcp_write(app.sock, pattern, 10000, false), 10000);
    assert_int_equal(sock_tcp_write(second, pattern + 10000, 10000, false), 10000);
    for (unsigned i = 0; i < 10; i++) {
        lab_tcp_run(&tcp, 1);
        lab_tcp_run(&other, 1);
    }
    assert_int_equal(tcp.stream_len, 10000);
    assert_int_equal(other.stream_len, 10000);
    assert_memory_equal(tcp.stream, pattern, 10000);
    assert_memory_equal(other.stream, pattern + 10000, 10000);
    sock_close(second, true);
    lab_tcp_free(&other);
    close_lab();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_exact),
        cmocka_unit_test(test_largest_frame),
        cmocka_unit_test(test_fin_stays_at_the_end),
        cmocka_unit_test(test_newest_ack),
        cmocka_unit_test(test_short_segments),
        cmocka_unit_test(test_many_pieces),
        cmocka_unit_test(test_pieces_without_tso),
        cmocka_unit_test(test_hundreds_of_pieces),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_two_flows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
