/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Field cases of checksums and segmentation: what the net header of each frame may say, and what is
 * believed of the header of a received one. The table is tests/field_cases.tsv.
 *
 *     socket -> lwIP -> net/ -> driver -> [ring] -> model device -> judge() -> peer
 */
#include "tests/unit/lab_app.h"

#include "tests/device/rig.h"
#include "tests/unit/lab_expand.h"

#define MSS_BYTES    1460u
#define MTU_BYTES    1500u
#define STREAM_BYTES 400000u
#define POISON       0xa5
#define UDP_PORT     9u
/* Of the outer headers, when a checksum is given as a place in the whole frame. */
#define INNER_L4_OFFSET (LAB_TUNNEL_BYTES + L4_AT)

static uint8_t pattern[STREAM_BYTES];
static struct app app;

static const struct sock_ops ops = {.connected = app_connected, .received = app_received};

/* ---- what a net header may say ---- */

static struct seen {
    unsigned arp, icmp, datagrams, fragments, tcp_single, super;
} seen;

static const struct virtio_net_hdr nothing_asked;

static void expect_header(const struct virtio_net_hdr *hdr, const struct virtio_net_hdr *expected)
{
    assert_int_equal(hdr->flags, expected->flags);
    assert_int_equal(hdr->gso_type, expected->gso_type);
    assert_int_equal(hdr->hdr_len, expected->hdr_len);
    assert_int_equal(hdr->gso_size, expected->gso_size);
    assert_int_equal(hdr->csum_start, expected->csum_start);
    assert_int_equal(hdr->csum_offset, expected->csum_offset);
    assert_int_equal(hdr->num_buffers, 0);
}

static void judge_tcp(const struct virtio_net_hdr *hdr, const uint8_t *frame, uint32_t len)
{
    uint32_t headers = L4_AT + (uint32_t)(frame[46] >> 4) * 4;
    struct virtio_net_hdr expected = {
        .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .csum_start = L4_AT, .csum_offset = 16};
    if (hdr->gso_type == 0 && len <= MTU_BYTES + 14) {
        seen.tcp_single++;
    } else {
        seen.super++;
        expected.gso_type = VIRTIO_NET_HDR_GSO_TCPV4;
        expected.hdr_len = (uint16_t)headers;
        expected.gso_size = hdr->gso_size;
        assert_in_range(hdr->gso_size, 1, len - headers - 1);
        assert_in_range(hdr->gso_size, 1, MTU_BYTES + 14 - headers);
    }
    expect_header(hdr, &expected);
}

static void judge_udp(const struct virtio_net_hdr *hdr, const uint8_t *frame, uint32_t len)
{
    static const struct virtio_net_hdr sum = {
        .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .csum_start = L4_AT, .csum_offset = 6};
    if ((get16(frame + 20) & 0x3fffu) != 0) {
        seen.fragments++;
        expect_header(hdr, &nothing_asked);
        return;
    }
    seen.datagrams++;
    assert_int_equal(get16(frame + 38), len - L4_AT);
    expect_header(hdr, &sum);
}

/* Every field of the net header is what the frame calls for, 0 included; IP's length and sum are
 * those of the frame. */
static void judge(void *ctx, const struct virtio_net_hdr *hdr, const uint8_t *frame, uint32_t len)
{
    if (get16(frame + 12) == 0x0806) {
        seen.arp++;
        expect_header(hdr, &nothing_asked);
    } else {
        assert_int_equal(get16(frame + 16), len - IP_AT);
        assert_int_equal(wire_sum(frame + 14, 20, 0), 0xffff);
        if (frame[23] == 6) {
            judge_tcp(hdr, frame, len);
        } else if (frame[23] == 17) {
            judge_udp(hdr, frame, len);
        } else {
            seen.icmp++;
            expect_header(hdr, &nothing_asked);
        }
    }
    lab_on_frame(ctx, hdr, frame, len);
}

static void open_lab(struct model_options *opt, struct net_config *config)
{
    fill_pattern(pattern, sizeof(pattern), 13);
    memset(&app, 0, sizeof(app));
    memset(&seen, 0, sizeof(seen));
    lab_open(opt, config);
}

static void open_judged(uint64_t features)
{
    struct model_options opt = lab_options();
    opt.size_descs[MODEL_TX] = 256;
    opt.features = features != 0 ? features : opt.features;
    open_lab(&opt, NULL);
    lab.dev.on_frame = judge;
}

static void close_lab(struct sock *sock)
{
    sock_close(sock, true);
    close_balanced();
}

/* The datagram whose frames follow `from`, put together: length and content are what was sent. */
static void expect_datagram(unsigned from, size_t len)
{
    static uint8_t whole[70000];
    uint32_t total = 0;
    for (unsigned i = from; i < lab.n_frames; i++) {
        struct lab_frame *frame = &lab.frames[i];
        uint32_t at = (get16(frame->bytes + 20) & 0x1fffu) * 8;
        assert_int_equal(at, total);
        assert_true(frame->len <= MTU_BYTES + 14);
        memcpy(whole, frame->bytes, total == 0 ? L4_AT : 0);
        memcpy(whole + L4_AT + at, frame->bytes + L4_AT, frame->len - L4_AT);
        total += frame->len - L4_AT;
        assert_int_equal((get16(frame->bytes + 20) & 0x2000u) != 0, i + 1 < lab.n_frames);
    }
    assert_int_equal(total, 8 + len);
    assert_int_equal(get16(whole + 38), 8 + len);
    assert_memory_equal(whole + 42, pattern, len);
    if (lab.n_frames - from > 1) { /* a device cannot sum across fragments */
        assert_int_equal(wire_l4_sum(whole, total), 0xffff);
    }
}

/* ---- sent ---- */

static struct virtio_net_hdr noted;

static void note_header(void *ctx, const struct virtio_net_hdr *hdr, const uint8_t *frame,
                        uint32_t len)
{
    (void)ctx;
    (void)frame;
    (void)len;
    noted = *hdr;
}

/*
 * Field case 61: whatever lies in the memory of a header, of its headroom and of its frame, fields
 * that are not used are 0.
 */
static void test_poisoned_memory(void **state)
{
    static const struct virtio_net_hdr tso = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                              .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
                                              .hdr_len = 54,
                                              .gso_size = 1000,
                                              .csum_start = 34,
                                              .csum_offset = 16};
    (void)state;
    for (unsigned bits = 0; bits < 4; bits++) {
        struct rig *rig = rig_new();
        rig->config.refuse.indirect = (bits & 1) != 0;
        assert_true(rig_open(rig));
        rig->device.on_frame = note_header;
        for (unsigned kind = 0; kind < 3; kind++) {
            for (unsigned i = 0; i < RIG_FRAMES; i++) {
                memset(rig->frames[i].headroom, POISON, sizeof(rig->frames[i].headroom));
                memset(rig->frames[i].bytes, POISON, sizeof(rig->frames[i].bytes));
            }
            memset(rig->dev->tx.hdrs, POISON, sizeof(rig->dev->tx.hdrs[0]) * rig->dev->tx.vq.size);
            if (kind == 0) {
                assert_int_equal(rig_send(rig, 3, (bits & 2) != 0), VIRTIO_NET_OK);
            } else if (kind == 1) {
                assert_int_equal(rig_send_control(rig), VIRTIO_NET_OK);
            } else {
                assert_int_equal(rig_send_tso(rig, 4), VIRTIO_NET_OK);
            }
            virtio_net_tx_flush(rig->dev, 0);
            model_serve(&rig->device);
            virtio_net_tx_reclaim(rig->dev, 0, 64);
            expect_header(&noted, kind == 2 ? &tso : &nothing_asked);
        }
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* Field case 61: ARP, echo, datagrams, fragments and TCP: each kind asks for what it needs and no
 * more. */
static void test_header_of_each_kind(void **state)
{
    struct lab_tcp tcp;
    uint8_t frame[128] = {0};
    (void)state;
    open_judged(0);
    frame[L4_AT] = 8;
    uint32_t len = lab_ip(frame, 1, 64);
    put16(frame + L4_AT + 2, 0xffffu & ~wire_sum(frame + L4_AT, 64, 0));
    lab_inject(frame, len);
    struct sock *udp = app_open_udp(&app, &ops, 5000);
    app_send(udp, pattern, 1);
    lab_serve();
    app_send(udp, pattern, 1472);
    app_send(udp, pattern, 1473);
    lab_serve();
    sock_close(udp, false);
    app_connect(&app, &ops, &tcp, 0);
    assert_int_equal(sock_tcp_write(app.sock, pattern, 20000, false), 20000);
    for (unsigned i = 0; i < 20; i++) {
        lab_tcp_run(&tcp, 1);
    }
    assert_int_equal(tcp.stream_len, 20000);
    assert_true(seen.arp > 0 && seen.super > 0 && seen.tcp_single > 0);
    assert_int_equal(seen.icmp, 1);
    assert_int_equal(seen.datagrams, 2);
    assert_int_equal(seen.fragments, 2);
    lab_tcp_free(&tcp);
    close_lab(app.sock);
}

static void count_segment(void *ctx, const uint8_t *bytes, uint32_t len)
{
    (void)bytes;
    (void)len;
    ++*(unsigned *)ctx;
}

/*
 * Field cases 62, 63: of each super-frame, also with an odd last segment, IP's length is the
 * frame's and its sum is right, the sum to be filled in lies where TCP's is, and the length of the
 * headers is exact (judge). What a device makes of it are the segments that were written.
 */
static void test_super_frames(void **state)
{
    static const size_t sizes[] = {1461, 2919, 2920, 2921, 20001, 44 * 1460, 44 * 1460 + 1, 200003};
    struct lab_tcp tcp;
    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        unsigned segments = 0;
        open_judged(0);
        app_connect(&app, &ops, &tcp, 0);
        sock_tcp_nodelay(app.sock, true);
        unsigned from = lab.n_frames;
        size_t done = 0;
        for (unsigned round = 0; tcp.stream_len < sizes[i]; round++) {
            assert_true(round < 1000);
            done += (size_t)sock_tcp_write(app.sock, pattern + done, sizes[i] - done, false);
            seam_advance_ns(LAB_MS);
            lab_tcp_run(&tcp, 1);
        }
        assert_memory_equal(tcp.stream, pattern, sizes[i]);
        assert_int_equal(tcp.repeated, 0);
        assert_true(seen.super > 0);
        for (unsigned n = from; n < lab.n_frames; n++) {
            uint32_t headers = L4_AT + (uint32_t)(lab.frames[n].bytes[46] >> 4) * 4;
            if (lab.frames[n].len > headers) {
                lab_expand(&lab.frames[n], count_segment, &segments);
            }
        }
        assert_true(segments >= (sizes[i] + MSS_BYTES - 1) / MSS_BYTES);
        lab_tcp_free(&tcp);
        close_lab(app.sock);
    }
}

/*
 * Field cases 65, 69: with every feature offered, segmentation and fragmentation of UDP by the
 * device are refused, both ways and with a reason, whatever else is on.
 */
static void test_udp_offloads_are_refused(void **state)
{
    static const struct {
        unsigned bit;
        const char *name;
    } refused[] = {{10, "GUEST_UFO"},  {14, "HOST_UFO"}, {54, "GUEST_USO4"},
                   {55, "GUEST_USO6"}, {56, "HOST_USO"}, {8, "GUEST_TSO6"},
                   {12, "HOST_TSO6"},  {13, "HOST_ECN"}, {9, "GUEST_ECN"}};
    struct rig *rig = rig_new();
    (void)state;
    rig->opt.features = UINT64_MAX;
    assert_true(rig_open(rig));
    const struct virtio_net_info *info = virtio_net_info(rig->dev);
    assert_true(info->can_csum && info->can_tso && info->guest_tso);
    for (unsigned i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        const char *reason = NULL;
        for (unsigned n = 0; n < info->n_refused; n++) {
            if (strcmp(info->refused[n].name, refused[i].name) == 0) {
                reason = info->refused[n].reason;
            }
        }
        assert_non_null(reason);
        assert_int_equal(rig->device.accepted & FEATURE(refused[i].bit), 0);
        assert_int_equal(info->features_accepted & FEATURE(refused[i].bit), 0);
    }
    rig_free(rig);
}

/*
 * Field cases 65, 66, 69: large datagrams are cut by the guest; no fragment and no datagram asks
 * for segmentation, and lengths and content are exact, also where the last part is as long as the
 * others or one byte.
 */
static void test_large_datagrams(void **state)
{
    static const size_t sizes[] = {1472,  1473, 2952, 2953, 8192, 14720, 14721, 1472 + 1480 * 9,
                                   65506, 65507};
    (void)state;
    open_judged(UINT64_MAX & ~(FEATURE(VIRTIO_NET_F_MTU)));
    struct sock *sock = app_open_udp(&app, &ops, 5000);
    app_send(sock, pattern, 1);
    lab_serve();
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        lab_forget_frames();
        app_send(sock, pattern, sizes[i]);
        lab_serve();
        assert_int_equal(lab.n_frames, (sizes[i] + 8 + 1479) / 1480);
        expect_datagram(0, sizes[i]);
    }
    assert_int_equal(seen.datagrams, 2);
    assert_true(seen.fragments > 100);
    close_lab(sock);
}

/* ---- received ---- */

static uint64_t csum_bad(void)
{
    struct net_stats stats;
    net_stats(&stats);
    return stats.csum_bad;
}

/* Whether the datagram reaches the application; if not, a wrong checksum must have been counted. */
static bool let_in(struct virtio_net_hdr hdr, const uint8_t *frame, uint32_t len)
{
    uint64_t bad = csum_bad();
    unsigned before = app.n_datagrams;
    app.n_received = 0;
    lab_inject_hdr(hdr, frame, len);
    lab_serve();
    assert_int_equal(csum_bad() - bad, app.n_datagrams == before ? 1 : 0);
    return app.n_datagrams == before + 1;
}

static void open_receiver(bool tunnel, uint64_t without)
{
    struct model_options opt = lab_options();
    struct net_config config = lab_tunnel();
    opt.features &= ~without;
    open_lab(&opt, tunnel ? &config : NULL);
}

/*
 * Field cases 57, 67: all four combinations of "checksum needed" and "checksum valid", on good and
 * bad frames. Needed wins over valid: the sum is open and not judged, also inside a tunnel, where
 * "valid" is said of the outer datagram alone. Without a flag, or without the feature, a wrong sum
 * is dropped.
 */
static void test_needed_and_valid(void **state)
{
    uint8_t frame[256];
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        bool tunnel = (form & 1) != 0, negotiated = (form & 2) == 0;
        open_receiver(tunnel, negotiated ? 0
                                         : FEATURE(VIRTIO_NET_F_GUEST_CSUM) |
                                               FEATURE(VIRTIO_NET_F_GUEST_TSO4));
        struct sock *sock = sock_udp_open(&ops, &app, 65536);
        assert_int_equal(sock_udp_bind(sock, UDP_PORT), SOCK_OK);
        uint32_t len = lab_udp(frame, 5000, UDP_PORT, pattern, 101);
        for (unsigned flags = 0; flags < 4; flags++) {
            bool needed = negotiated && (flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) != 0;
            bool vouched = negotiated && !tunnel && (flags & VIRTIO_NET_HDR_F_DATA_VALID) != 0;
            struct virtio_net_hdr hdr = {
                .flags = (uint8_t)flags,
                .csum_start = tunnel ? INNER_L4_OFFSET : L4_AT,
                .csum_offset = 6,
            };
            if (tunnel && flags == VIRTIO_NET_HDR_F_NEEDS_CSUM) {
                hdr.csum_start = L4_AT; /* the lab moves it */
            }
            assert_true(let_in(hdr, frame, len));
            assert_memory_equal(app.received, pattern, 101);
            frame[40] ^= 0x5a; /* the sum is wrong, or not finished: the pseudo header's alone */
            assert_int_equal(let_in(hdr, frame, len), needed || vouched);
            frame[40] ^= 0x5a;
        }
        assert_true(let_in((struct virtio_net_hdr){0}, frame, len));
        sock_close(sock, false);
        lab_serve();
        lab_close();
    }
}

/*
 * Field cases 58, 59: a coalesced packet has no checksum of the whole. What stands in its field is
 * the pseudo header's sum or that of its first segment, and its flag says so: none is counted as
 * wrong, all is delivered. The same packet without a flag is dropped.
 */
static void test_coalesced_without_a_sum(void **state)
{
    static const uint8_t flags[] = {VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_F_DATA_VALID,
                                    VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID, 0};
    static const uint32_t sizes[] = {1461, 4000, 20001, 65495};
    static uint8_t frame[70000];
    struct lab_tcp tcp;
    (void)state;
    open_receiver(false, 0);
    app_connect(&app, &ops, &tcp, 0);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (unsigned kind = 0; kind < sizeof(flags); kind++) {
            for (unsigned first = 0; first < 2; first++) {
                struct virtio_net_hdr hdr = {.flags = flags[kind],
                                             .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
                                             .hdr_len = 54,
                                             .gso_size = MSS_BYTES,
                                             .csum_start = L4_AT,
                                             .csum_offset = 16};
                uint64_t bad = csum_bad();
                app.n_received = 0;
                uint32_t len = lab_tcp_segment(&tcp, frame, tcp.snd_nxt, pattern, sizes[i],
                                               first ? LAB_TCP_BYTES + MSS_BYTES : 0);
                lab_inject_hdr(hdr, frame, len);
                lab_serve();
                assert_int_equal(app.n_received, flags[kind] != 0 ? sizes[i] : 0);
                assert_memory_equal(app.received, pattern, app.n_received);
                assert_int_equal(csum_bad() - bad, flags[kind] != 0 ? 0 : 1);
                tcp.snd_nxt += (uint32_t)app.n_received;
            }
        }
    }
    lab_tcp_look(&tcp);
    assert_int_equal(tcp.last_ack, tcp.snd_nxt);
    lab_tcp_free(&tcp);
    close_lab(app.sock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poisoned_memory),
        cmocka_unit_test(test_header_of_each_kind),
        cmocka_unit_test(test_super_frames),
        cmocka_unit_test(test_udp_offloads_are_refused),
        cmocka_unit_test(test_large_datagrams),
        cmocka_unit_test(test_needed_and_valid),
        cmocka_unit_test(test_coalesced_without_a_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
