/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Field reports about what rings count, tried on this driver: devices that answer with what they
 * were not given, or have queues of odd sizes; counts at which an index wraps; readers that are
 * slower than the wire.
 *
 *     test: application -> driver -> [rings] -> model device <- test: its faults
 */
#include "tests/unit/rig_loop.h"

/* ---- ids that are no chain's ---- */

/* A full TX ring of chains of three descriptors; returns one that is in a chain and not its head.
 */
static uint16_t fill_with_chains(struct rig *rig)
{
    bool head[64] = {0}, inside[64] = {0};

    while (!virtio_net_tx_stopped(rig->dev, PAIR)) {
        assert_int_equal(rig_send(rig, 3, true), VIRTIO_NET_OK);
    }
    (void)model_take(&rig->device, MODEL_TX);
    struct model_queue *q = &rig->device.q[MODEL_TX];
    for (unsigned i = 0; i < q->n_held; i++) {
        head[q->held[i]] = true;
        inside[q->desc[q->held[i]].next] = true;
    }
    for (uint16_t i = 0; i < 64; i++) {
        if (inside[i] && !head[i]) {
            return i;
        }
    }
    fail_msg("no chain");
    return 0;
}

/*
 * Field case 17: the device hands back an id that heads no chain (inside of one, never posted, the
 * same twice, beyond the ring). It is counted under its name, the device is reset, what was in
 * flight comes back once, nothing else is touched, and traffic goes on.
 */
static void test_ids_never_posted(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < 4; kind++) {
        struct rig *rig = rig_new();
        struct loop loop = {.rig = rig, .step = serve_all};
        rig->config.refuse.indirect = true;
        assert_true(rig_open(rig));
        uint32_t id = fill_with_chains(rig);
        uint32_t free_id = rig->dev->tx.vq.free_head;
        uint32_t ids[] = {id, free_id, rig->device.q[MODEL_TX].held[0], 64};
        uint64_t sent = rig_tx(rig).submitted, resets = rig->device.resets;
        model_use_raw(&rig->device, MODEL_TX, ids[kind], 0);
        if (kind == 2) {
            model_use_raw(&rig->device, MODEL_TX, ids[kind], 0);
        }
        model_publish(&rig->device, MODEL_TX);
        (void)virtio_net_tx_reclaim(rig->dev, PAIR, 64);
        assert_int_equal(rig->done, kind == 2 ? 1 : 0);
        assert_int_equal(rig_fault(rig, kind == 3 ? VIRTIO_NET_FAULT_USED_ID_RANGE
                                                  : VIRTIO_NET_FAULT_USED_ID_NOT_IN_FLIGHT),
                         1);
        assert_true(virtio_net_poll(rig->dev, seam_now_ns()));
        assert_true(rig->device.resets > resets);
        assert_int_equal(rig->done + rig->aborted, sent);
        assert_int_equal(rig->unknown_cookies, 0);
        expect_alive(&loop);
        rig_free(rig);
    }
}

/* ---- sizes ---- */

/*
 * Field cases 15, 16: split queues of 1, 2, 256 and 4096 work, or are refused in words where one
 * frame and the reserve do not fit; sizes that are no power of two, and 0, which is no queue, are
 * refused in words, for either queue.
 */
static void test_queue_sizes(void **state)
{
    static const struct {
        uint16_t size;
        bool works;
    } sizes[] = {{2, true},  {256, true},  {4096, true}, {32768, true}, {0, false},
                 {3, false}, {100, false}, {255, false}, {48, false}};
    (void)state;
    for (unsigned queue = 0; queue < 2; queue++) {
        for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            struct rig *rig = rig_new();
            rig->opt.size_descs[queue] = sizes[i].size;
            assert_int_equal(rig_open(rig), sizes[i].works);
            if (sizes[i].works) {
                struct loop loop = {.rig = rig, .step = serve_all, .sends = true};
                for (unsigned n = 0; n < 50; n++) {
                    turn(&loop);
                }
                expect_alive(&loop);
            } else {
                assert_non_null(strstr(rig->why, "queue"));
                assert_int_equal(rig->device.status, 0);
            }
            rig_free(rig);
        }
    }
    for (unsigned queue = 0; queue < 2; queue++) {
        struct rig *rig = rig_new();
        rig->opt.size_descs[queue] = 1;
        bool works = rig_open(rig);
        assert_true(works == (queue == MODEL_RX) && (works || strstr(rig->why, "ring") != NULL));
        if (works) {
            struct loop loop = {.rig = rig, .step = serve_all};
            expect_alive(&loop);
        }
        rig_free(rig);
    }
}

/* ---- exact counts ---- */

static void send_exactly(struct rig *rig, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
        virtio_net_tx_flush(rig->dev, PAIR);
        assert_int_equal(virtio_net_tx_reclaim(rig->dev, PAIR, 64), 1);
    }
}

static void receive_exactly(struct rig *rig, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        receive_short(rig);
        assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
    }
}

/*
 * Field case 10: exactly so many frames one way, each on a fresh device that serves only when it is
 * kicked, and then frames both ways with sleep: no count stalls, at the ring's wrap or the index's.
 */
static void test_exact_counts(void **state)
{
    static const uint32_t counts[] = {255, 256, 257, 65535, 65536, 65537, 131073};
    (void)state;
    for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (unsigned form = 0; form < 4; form++) {
            struct rig *rig = open_rig((form & 1) != 0, 256);
            struct loop loop = {.rig = rig, .step = serve_all};
            rig->device.opt.serve = true;
            (form & 2 ? receive_exactly : send_exactly)(rig, counts[i]);
            struct virtqueue *vq = form & 2 ? &rig->dev->rx.vq : &rig->dev->tx.vq;
            assert_int_equal(vq->used_seen, (uint16_t)counts[i]);
            expect_alive(&loop);
            rig_free(rig);
        }
    }
}

/* ---- a reader that is slower than the wire ---- */

struct slow_reader {
    struct loop loop;
    uint32_t flood, dropped;
};

static void step_flood(struct loop *loop)
{
    struct slow_reader *reader = (struct slow_reader *)loop;
    struct rig *rig = loop->rig;

    /* Now and then more at once than any ring holds: from empty to all used in one step. */
    unsigned burst = random_below(16) == 0 ? 2000 : 60;

    for (unsigned n = 0; n < burst && reader->flood != 0; n++, reader->flood--) {
        reader->dropped += !model_receive(&rig->device, plain, short_frame, sizeof(short_frame));
    }
}

/*
 * Field cases 9, 11: 60,000 frames at the wire's rate into rings of 256, 512 and 1024 whose reader
 * takes 10 ms for each. The ring is emptied and full many times over, most frames are lost; when
 * the flood ends and the reader has caught up, each frame arrives at once, by its own interrupt.
 */
static void test_slow_reader(void **state)
{
    static const uint16_t sizes[] = {256, 512, 1024};
    (void)state;
    for (unsigned form = 0; form < 6; form++) {
        struct rig *rig = open_rig((form & 1) != 0, sizes[form / 2]);
        struct slow_reader reader = {.loop = {.rig = rig, .step = step_flood}, .flood = 60000};
        rig->rx_keep = true;
        while (reader.flood != 0) {
            turn(&reader.loop);
        }
        run(&reader.loop, SECOND_NS);
        assert_true(reader.dropped > 50000);
        assert_true(rig_rx(rig).refill_fail > 0);
        assert_int_equal(rig->rx_packets, 60000 - reader.dropped);
        rig->rx_keep = false;
        rig_return_kept(rig);
        expect_alive(&reader.loop);
        rig_free(rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_never_posted),
        cmocka_unit_test(test_queue_sizes),
        cmocka_unit_test(test_exact_counts),
        cmocka_unit_test(test_slow_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
