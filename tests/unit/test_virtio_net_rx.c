/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Receiving: one buffer and many, headers, what a device may answer wrong, the pool running dry.
 *
 *     model device -> ring -> [driver] -> test
 */
#include "tests/unit/rig_steps.h"

static uint8_t frame[70000];

static void fill_frame(uint32_t len, unsigned seed)
{
    for (uint32_t i = 0; i < len; i++) {
        frame[i] = (uint8_t)(i * 13 + seed);
    }
}

/* Frames of every length from the shortest to what the form carries arrive whole, header stripped;
 * all forms of buffers. */
static void test_lengths(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 3; form++) {
        struct rig *rig = rig_new();
        rig->config.refuse.guest_tso = form < 2;
        rig->config.refuse.mrg_rxbuf = form < 1;
        assert_true(rig_open(rig));
        assert_int_equal(virtio_net_info(rig->dev)->guest_tso, form == 2);
        uint32_t longest = form == 0 ? 1518 : form == 1 ? 9014 : 65549;
        for (uint32_t len = 14; len <= longest; len += 1 + len / 64) {
            fill_frame(len, len);
            assert_true(model_receive(&rig->device, plain, frame, len));
            assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
            assert_int_equal(rig->rx_last.len_bytes, len);
            assert_memory_equal(rig->rx_copy, frame, len);
        }
        assert_int_equal(rig_rx(rig).packets, rig->rx_packets);
        assert_int_equal(rig_rx(rig).bytes, rig->rx_bytes);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* More packets than the ring has entries, in batches, over many laps; the budget is kept, the ring
 * refilled, and the device kicked when it asked. */
static void test_many(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 4; bits++) {
        struct rig *rig = rig_new();
        rig->config.refuse.event_idx = (bits & 1) != 0;
        rig->config.refuse.mrg_rxbuf = (bits & 2) != 0;
        rig->opt.size_descs[MODEL_RX] = 16;
        assert_true(rig_open(rig));
        uint64_t sent = 0;
        while (sent < 70000) {
            for (unsigned i = 0; i < 1 + sent % 16; i++) {
                fill_frame(60, (unsigned)sent);
                sent += model_receive(&rig->device, plain, frame, 60);
            }
            while (virtio_net_rx_poll(rig->dev, PAIR, 5) == 5) {
            }
        }
        assert_int_equal(rig->rx_packets, sent);
        assert_int_equal(rig_rx(rig).posted, 16);
        assert_true(rig_rx(rig).kicks > 1);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* The callee keeps everything: the ring runs dry, nothing breaks, refill_fail says so, and the
 * buffers that come back go out again without a poll. Field case 24: refilled by those who free, as
 * no interrupt can come. */
static void test_pool_runs_dry(void **state)
{
    struct rig *rig = rig_new();
    unsigned n = 0;

    (void)state;
    rig->opt.size_descs[MODEL_RX] = 16;
    assert_true(rig_open(rig));
    rig->rx_keep = true;
    while (model_receive(&rig->device, plain, frame, 60)) {
        n++;
        virtio_net_rx_poll(rig->dev, PAIR, 64);
    }
    assert_int_equal(n, rig_rx(rig).pool_bufs);
    assert_int_equal(rig_rx(rig).posted, 0);
    assert_true(rig_rx(rig).refill_fail > 0);
    assert_true(virtio_net_arm(rig->dev, false)); /* nothing can come: no harm in sleeping */
    uint64_t kicks = rig->device.q[MODEL_RX].kicks;
    rig_return_kept(rig);
    assert_in_range(rig_rx(rig).posted, 8, 16);
    assert_true(rig->device.q[MODEL_RX].kicks > kicks);
    assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 0);
    assert_int_equal(rig_rx(rig).posted, 16);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* Each buffer comes back once: a second return is a bug of the caller. */
static void test_double_return_panics(void **state)
{
    struct rig *rig = rig_new();
    jmp_buf back;

    (void)state;
    assert_true(rig_open(rig));
    rig->rx_keep = true;
    assert_true(model_receive(&rig->device, plain, frame, 60));
    virtio_net_rx_poll(rig->dev, PAIR, 64);
    void *buf = rig->rx_kept[0];
    rig_return_kept(rig);
    seam_expect_panic(&back);
    if (setjmp(back) == 0) {
        virtio_net_rx_return(rig->dev, buf);
        fail_msg("a buffer was taken back twice");
    }
    seam_expect_panic(NULL);
    rig_free(rig);
}

/* ---- headers ---- */

static bool receive_header(struct rig *rig, struct virtio_net_hdr hdr)
{
    uint64_t before = rig->rx_packets;
    assert_true(model_receive(&rig->device, hdr, frame, 100));
    assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
    return rig->rx_packets == before + 1;
}

static void test_header_fields(void **state)
{
    struct rig *rig = rig_opened(true);

    (void)state;
    assert_true(receive_header(rig, plain));
    assert_false(rig->rx_last.csum_valid || rig->rx_last.csum_partial || rig->rx_last.coalesced);
    assert_true(receive_header(rig, (struct virtio_net_hdr){.flags = 2}));
    assert_true(rig->rx_last.csum_valid);
    assert_true(receive_header(
        rig, (struct virtio_net_hdr){.flags = 1, .csum_start = 34, .csum_offset = 16}));
    assert_true(rig->rx_last.csum_partial);
    assert_int_equal(rig->rx_last.csum_start, 34);
    assert_int_equal(rig->rx_last.csum_offset, 16);
    assert_true(receive_header(
        rig, (struct virtio_net_hdr){.flags = 1, .csum_start = 98, .csum_offset = 0}));
    assert_true(receive_header(rig, (struct virtio_net_hdr){.gso_type = 1, .gso_size = 50}));
    assert_true(rig->rx_last.coalesced);
    assert_int_equal(rig->rx_last.gso_size_bytes, 50);
    /* 5.1.6.4.1: unknown flag bits, and positions without NEEDS_CSUM, mean nothing. */
    assert_true(receive_header(
        rig, (struct virtio_net_hdr){.flags = 0xf8, .csum_start = 9999, .hdr_len = 9999}));
    assert_false(rig->rx_last.csum_valid || rig->rx_last.csum_partial);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_HEADER), 0);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_UNNEGOTIATED_FLAG), 0);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

static void test_bad_headers(void **state)
{
    struct rig *rig = rig_new();
    const struct virtio_net_hdr bad[] = {
        {.flags = 1, .csum_start = 99, .csum_offset = 0},
        {.flags = 1, .csum_start = 65535, .csum_offset = 65535},
        {.gso_type = 1}, /* no size */
    };
    const struct virtio_net_hdr unnegotiated[] = {
        {.gso_type = 3, .gso_size = 50},    {.gso_type = 4, .gso_size = 50},
        {.gso_type = 5, .gso_size = 50},    {.gso_type = 0x81, .gso_size = 50},
        {.gso_type = 0xff, .gso_size = 50},
    };

    (void)state;
    assert_true(rig_open(rig));
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(receive_header(rig, bad[i]));
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_HEADER), i + 1);
    }
    for (unsigned i = 0; i < sizeof(unnegotiated) / sizeof(unnegotiated[0]); i++) {
        assert_false(receive_header(rig, unnegotiated[i]));
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_UNNEGOTIATED_FLAG), i + 1);
    }
    assert_int_equal(rig_rx(rig).drops[VIRTIO_NET_RX_DROP_BAD_HEADER], 8);
    assert_true(receive_header(rig, plain));
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* A device that says "checksum valid" uninvited (seen in a cloud) is not believed, and not refused
 * either. */
static void test_uninvited_flags(void **state)
{
    struct rig *rig = rig_new();

    (void)state;
    rig->config.refuse.guest_csum = true;
    assert_true(rig_open(rig));
    assert_true(receive_header(rig, (struct virtio_net_hdr){.flags = 2}));
    assert_false(rig->rx_last.csum_valid);
    assert_true(receive_header(rig, (struct virtio_net_hdr){.flags = 1, .csum_start = 9999}));
    assert_false(rig->rx_last.csum_partial);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_UNNEGOTIATED_FLAG), 2);
    rig_free(rig);
}

/* The header may change under the reader: each field is read once, so that what was checked is what
 * is used. */
static unsigned header_reads[12];
static struct rig *watched;

static void watch_header(void *ctx, const volatile void *addr, bool is_store)
{
    const uint8_t *hdr = watched->dev->rx.bufs[0].addr;
    const volatile uint8_t *at = addr;
    (void)ctx;
    if (!is_store && at >= hdr && at < hdr + 12) {
        header_reads[at - hdr]++;
    }
}

static void test_header_is_read_once(void **state)
{
    struct rig *rig = rig_opened(true);

    (void)state;
    watched = rig;
    memset(header_reads, 0, sizeof(header_reads));
    rig->device.on_access = watch_header;
    assert_true(receive_header(rig, (struct virtio_net_hdr){.flags = 1, .csum_start = 34}));
    unsigned reads = 0;
    for (unsigned i = 0; i < 12; i++) {
        assert_in_range(header_reads[i], 0, 1);
        reads += header_reads[i];
    }
    assert_true(reads >= 5);
    rig_free(rig);
}

/* ---- lengths and num_buffers ---- */

/* Field case 25: lengths shorter than the header, and longer than the buffer, are dropped and
 * counted, each buffer comes back once, and the next good frame is delivered. */
static void test_short_and_long(void **state)
{
    (void)state;
    for (unsigned mrg = 0; mrg < 2; mrg++) {
        struct rig *rig = rig_new();
        struct virtio_net_hdr one = {.num_buffers = 1};
        rig->config.refuse.mrg_rxbuf = mrg == 0;
        assert_true(rig_open(rig));
        for (uint32_t len = 0; len < 26; len++) {
            use_first(rig, &one, len);
        }
        virtio_net_rx_poll(rig->dev, PAIR, 64);
        assert_int_equal(rig_rx(rig).drops[VIRTIO_NET_RX_DROP_SHORT], 26);
        uint32_t buf_bytes = rig->dev->rx.buf_bytes;
        const uint32_t lies[] = {buf_bytes + 1, 65536, 0x7fffffff, 0xffffffff};
        for (unsigned i = 0; i < 4; i++) {
            use_first(rig, &one, lies[i]);
        }
        virtio_net_rx_poll(rig->dev, PAIR, 64);
        assert_int_equal(rig_rx(rig).drops[VIRTIO_NET_RX_DROP_LONG], 4);
        assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_USED_LEN), 4);
        assert_int_equal(rig->rx_packets, 0);
        use_first(rig, &one, 26);
        virtio_net_rx_poll(rig->dev, PAIR, 64);
        assert_int_equal(rig->rx_last.len_bytes, 14);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

static void test_num_buffers(void **state)
{
    struct rig *rig = rig_new();
    const uint16_t bad[] = {0, 17, 65, 256, 65535};
    struct virtio_net_hdr hdr = {0};

    (void)state;
    rig->opt.size_descs[MODEL_RX] = 16;
    assert_true(rig_open(rig));
    for (unsigned i = 0; i < 5; i++) {
        hdr.num_buffers = bad[i];
        use_first(rig, &hdr, 100);
        virtio_net_rx_poll(rig->dev, PAIR, 64);
    }
    assert_int_equal(rig_rx(rig).drops[VIRTIO_NET_RX_DROP_NUM_BUFFERS], 5);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_NUM_BUFFERS), 5);
    assert_int_equal(rig->rx_packets, 0);
    /* More than a packet can need, on a ring that has as many. */
    rig_free(rig);
    rig = rig_new();
    rig->opt.size_descs[MODEL_RX] = 256;
    assert_true(rig_open(rig));
    for (unsigned i = 2; i < 4; i++) {
        hdr.num_buffers = bad[i];
        use_first(rig, &hdr, 100);
        virtio_net_rx_poll(rig->dev, PAIR, 64);
    }
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_NUM_BUFFERS), 2);
    /* Without merging the field is the device's business (5.1.6.4). */
    rig_free(rig);
    rig = rig_new();
    rig->config.refuse.mrg_rxbuf = true;
    assert_true(rig_open(rig));
    hdr.num_buffers = 999;
    use_first(rig, &hdr, 100);
    virtio_net_rx_poll(rig->dev, PAIR, 64);
    assert_int_equal(rig->rx_packets, 1);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* A packet whose buffers become used one by one: nothing is handed up before the last. */
static void test_packet_in_parts(void **state)
{
    struct rig *rig = rig_new();
    struct virtio_net_hdr three = {.num_buffers = 3};

    (void)state;
    assert_true(rig_open(rig));
    use_first(rig, &three, 112);
    assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 0);
    use_first(rig, NULL, 50);
    assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 0);
    assert_int_equal(rig->rx_packets, 0);
    use_first(rig, NULL, 7);
    assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
    assert_int_equal(rig->rx_last.n_pieces, 3);
    assert_int_equal(rig->rx_last.len_bytes, 157);
    /* A part that cannot be spoils the packet, and only this one. */
    use_first(rig, &three, 112);
    use_first(rig, NULL, 0x10000);
    use_first(rig, NULL, 60);
    use_first(rig, &three, 112);
    use_first(rig, NULL, 0);
    use_first(rig, NULL, 60);
    virtio_net_rx_poll(rig->dev, PAIR, 64);
    assert_int_equal(rig->rx_packets, 1);
    assert_int_equal(rig_rx(rig).drops[VIRTIO_NET_RX_DROP_LONG], 1);
    assert_int_equal(rig_rx(rig).drops[VIRTIO_NET_RX_DROP_SHORT], 1);
    assert_true(receive_header(rig, plain));
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

static void receive_on_arm(void *ctx, const volatile void *addr, bool is_store)
{
    struct rig *rig = ctx;
    if (!is_store && addr == &rig->dev->rx.vq.used->idx && rig->dev->rx.vq.armed) {
        rig->device.on_access = NULL;
        rig->device.drop_interrupts = true;
        assert_true(model_receive(&rig->device, plain, frame, 60));
        rig->device.drop_interrupts = false;
    }
}

/* Field case 11: a packet that comes between arming and looking is found; after that its interrupt
 * comes. */
static void test_arm(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        struct rig *rig = rig_opened(event_idx != 0);
        rig->device.ctx = rig;
        rig->device.on_access = receive_on_arm;
        assert_false(virtio_net_arm(rig->dev, false));
        assert_int_equal(rig_rx(rig).recheck_hits, 1);
        assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
        assert_true(virtio_net_arm(rig->dev, false));
        assert_false(virtio_net_irq_pending(rig->dev));
        assert_true(model_receive(&rig->device, plain, frame, 60));
        assert_true(virtio_net_irq_pending(rig->dev));
        virtio_net_disarm(rig->dev);
        assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
        assert_int_equal(rig_rx(rig).interrupts, 1);
        /* Polling: no interrupts. */
        for (unsigned i = 0; i < 100; i++) {
            assert_true(model_receive(&rig->device, plain, frame, 60));
            virtio_net_rx_poll(rig->dev, PAIR, 64);
        }
        assert_int_equal(rig->device.q[MODEL_RX].interrupts, 1 + 1);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),         cmocka_unit_test(test_many),
        cmocka_unit_test(test_pool_runs_dry),   cmocka_unit_test(test_double_return_panics),
        cmocka_unit_test(test_header_fields),   cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_uninvited_flags), cmocka_unit_test(test_header_is_read_once),
        cmocka_unit_test(test_short_and_long),  cmocka_unit_test(test_num_buffers),
        cmocka_unit_test(test_packet_in_parts), cmocka_unit_test(test_arm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
