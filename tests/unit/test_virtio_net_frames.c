/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Frames to send: what arrives of them, which are malformed, and how often the device is kicked for
 * them and interrupts.
 *
 *     test -> [driver] -> ring -> model device -> test
 */
#include "tests/unit/rig_steps.h"

struct seen {
    struct virtio_net_hdr hdr;
    uint32_t len_bytes;
    uint8_t bytes[RIG_FRAME_BYTES];
};

static void note_frame(void *ctx, const struct virtio_net_hdr *hdr, const uint8_t *frame,
                       uint32_t len_bytes)
{
    struct seen *seen = ctx;
    seen->hdr = *hdr;
    seen->len_bytes = len_bytes;
    memcpy(seen->bytes, frame, len_bytes);
}

/* What arrives is what was sent, in any number of pieces, header in headroom or beside. Field case
 * 29: the pieces of a frame arrive in the order in which they were given. */
static void test_frames_arrive(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 4; bits++) {
        struct rig *rig = rig_on(true, (bits & 1) != 0);
        struct seen seen;
        assert_true(rig_open(rig));
        rig->device.ctx = &seen;
        rig->device.on_frame = note_frame;
        for (uint16_t n = 1; n <= VIRTIO_NET_TX_MAX_PIECES; n++) {
            struct rig_frame *frame = &rig->frames[rig->next_frame % RIG_FRAMES];
            for (unsigned i = 0; i < RIG_FRAME_BYTES; i++) {
                frame->bytes[i] = (uint8_t)(i * 7 + n);
            }
            uint16_t free_before = vq_free_descs(&rig->dev->tx.vq);
            assert_int_equal(rig_send(rig, n, (bits & 2) != 0), VIRTIO_NET_OK);
            assert_int_equal(free_before - vq_free_descs(&rig->dev->tx.vq),
                             virtio_net_tx_cost_descs(rig->dev, n, (bits & 2) != 0));
            complete_sent(rig);
            assert_int_equal(seen.len_bytes, 1080 / n * n);
            assert_memory_equal(seen.bytes, frame->bytes, seen.len_bytes);
            assert_int_equal(seen.hdr.flags, 0);
            assert_int_equal(seen.hdr.gso_type, 0);
        }
        assert_int_equal(rig_send_tso(rig, 4), VIRTIO_NET_OK);
        complete_sent(rig);
        assert_int_equal(seen.hdr.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
        assert_int_equal(seen.hdr.gso_type, VIRTIO_NET_HDR_GSO_TCPV4);
        assert_int_equal(seen.hdr.gso_size, 1000);
        assert_int_equal(seen.hdr.hdr_len, 54);
        assert_int_equal(seen.hdr.csum_start, 34);
        assert_int_equal(seen.hdr.csum_offset, 16);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

static void expect_malformed(struct rig *rig, const struct virtio_net_tx_frame *frame)
{
    uint64_t before = rig_tx(rig).drops[VIRTIO_NET_TX_DROP_MALFORMED];
    assert_int_equal(virtio_net_tx_add(rig->dev, PAIR, frame), VIRTIO_NET_FATAL);
    assert_int_equal(rig_tx(rig).drops[VIRTIO_NET_TX_DROP_MALFORMED], before + 1);
}

/* What can never be sent is refused and counted, and costs nothing. */
static void test_malformed(void **state)
{
    struct rig *rig = rig_on(true, true);
    static uint8_t bytes[70000];
    struct virtio_net_seg seg = {bytes + 64, 1514};
    struct virtio_net_tx_frame good = {
        .segs = &seg, .n_segs = 1, .headroom_bytes = 64, .cookie = &rig->frames[0]};
    struct virtio_net_tx_frame bad;

    (void)state;
    assert_true(rig_open(rig));
    seg.len_bytes = 1515;
    expect_malformed(rig, &good);
    seg.len_bytes = 13;
    expect_malformed(rig, &good);
    seg.len_bytes = 1514;
    bad = good;
    bad.n_segs = 0;
    expect_malformed(rig, &bad);
    bad.n_segs = VIRTIO_NET_TX_MAX_PIECES + 1;
    expect_malformed(rig, &bad);
    bad = good;
    bad.csum_partial = true;
    bad.csum_start = 1500;
    bad.csum_offset = 13;
    expect_malformed(rig, &bad);
    bad = good;
    bad.gso = VIRTIO_NET_TX_TSO4; /* without the checksum */
    bad.gso_size_bytes = 1000;
    expect_malformed(rig, &bad);
    bad.csum_partial = true;
    bad.csum_start = 34;
    bad.csum_offset = 16;
    bad.gso_size_bytes = 0;
    expect_malformed(rig, &bad);
    bad.gso_size_bytes = 1461;
    bad.hdr_len_bytes = 54; /* segments longer than the MTU */
    expect_malformed(rig, &bad);
    assert_int_equal(rig_tx(rig).submitted, 0);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* 2.7.5.3.1: a table beside the ring costs one descriptor and is still no longer than the ring. Nor
 * is a piece empty, or the sum of the pieces beyond what a number holds. */
static void test_malformed_pieces(void **state)
{
    struct rig *rig = rig_on(true, true);
    static uint8_t bytes[2048];
    struct virtio_net_seg segs[VIRTIO_NET_TX_MAX_PIECES];
    struct virtio_net_tx_frame frame = {
        .segs = segs, .n_segs = 8, .headroom_bytes = 64, .cookie = &rig->frames[0]};

    (void)state;
    rig->opt.size_descs[1] = 8;
    assert_true(rig_open(rig));
    for (unsigned i = 0; i < VIRTIO_NET_TX_MAX_PIECES; i++) {
        segs[i] = (struct virtio_net_seg){bytes + 64, 60};
    }
    for (uint16_t n = 9; n <= VIRTIO_NET_TX_MAX_PIECES; n++) {
        frame.n_segs = n;
        expect_malformed(rig, &frame);
    }
    frame.n_segs = 8;
    frame.headroom_bytes = 0;
    expect_malformed(rig, &frame);
    frame.headroom_bytes = 64;
    segs[3].len_bytes = 0;
    expect_malformed(rig, &frame);
    segs[3].len_bytes = 0xffffffff;
    segs[4].len_bytes = 61;
    expect_malformed(rig, &frame);
    segs[3].len_bytes = 60;
    rig->frames[0].in_use = true;
    assert_int_equal(virtio_net_tx_add(rig->dev, PAIR, &frame), VIRTIO_NET_OK);
    complete_sent(rig);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* ---- kicks and interrupts ---- */

static void test_one_kick_a_batch(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        struct rig *rig = rig_opened(event_idx != 0);
        assert_int_equal(virtio_net_first_kick_ns(rig->dev), 0);
        for (unsigned i = 0; i < 10; i++) {
            rig_send(rig, 1, true);
        }
        assert_int_equal(rig->device.q[MODEL_TX].kicks, 0);
        virtio_net_tx_flush(rig->dev, PAIR);
        virtio_net_tx_flush(rig->dev, PAIR);
        assert_int_equal(rig->device.q[MODEL_TX].kicks, 1);
        assert_true(virtio_net_first_kick_ns(rig->dev) != 0);
        model_take(&rig->device, MODEL_TX);
        model_notify(&rig->device, MODEL_TX, false);
        rig_send(rig, 1, true);
        virtio_net_tx_flush(rig->dev, PAIR);
        assert_int_equal(rig->device.q[MODEL_TX].kicks, 1);
        assert_int_equal(rig_tx(rig).kicks, 1);
        assert_int_equal(rig_tx(rig).kicks_suppressed, 1);
        model_serve(&rig->device);
        virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
        assert_int_equal(rig->device.q[MODEL_TX].interrupts, 0); /* nobody armed */
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

static void test_spurious_interrupts(void **state)
{
    struct rig *rig = rig_opened(true);

    (void)state;
    rig->device.lines[2].count += 3;
    virtio_net_tx_reclaim(rig->dev, PAIR, 16);
    assert_int_equal(rig_tx(rig).interrupts, 3);
    assert_int_equal(rig_tx(rig).spurious_interrupts, 3);
    rig_send(rig, 1, true);
    assert_true(virtio_net_arm(rig->dev, true));
    model_serve(&rig->device);
    virtio_net_disarm(rig->dev);
    virtio_net_tx_reclaim(rig->dev, PAIR, 16);
    assert_int_equal(rig_tx(rig).interrupts, 4);
    assert_int_equal(rig_tx(rig).spurious_interrupts, 3);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_arrive),       cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_malformed_pieces),    cmocka_unit_test(test_one_kick_a_batch),
        cmocka_unit_test(test_spurious_interrupts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
