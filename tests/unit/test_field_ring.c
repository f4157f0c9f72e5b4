/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Field reports about rings, tried on this driver: devices that interrupt too rarely, too often or
 * never, that stop asking for kicks, answer with what they were not given, or have queues of odd
 * sizes; counts at which an index wraps; readers that are slower than the wire.
 *
 *     test: application -> driver -> [rings] -> model device, or strict device <- test: its faults
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/rig.h"
#include "tests/device/seams.h"
#include "tests/device/strict_case.h"

#define PAIR      0u
#define PERIOD_NS 100000000ull
/* Steps of model time, and what the looks at the clock add. */
#define SLACK_NS  2000000ull
#define STEP_NS   1000000ull
#define SECOND_NS 1000000000ull
#define READ_NS   (10 * STEP_NS) /* for each frame, where a reader is slow */
#define BURST     1024u

static const struct virtio_net_hdr plain = {0};
static uint8_t frame[60];
static uint32_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static struct rig *open_rig(bool event_idx, uint16_t size_descs)
{
    struct rig *rig = rig_new();

    rig->config.refuse.event_idx = !event_idx;
    rig->opt.size_descs[MODEL_RX] = rig->opt.size_descs[MODEL_TX] = size_descs;
    if (!rig_open(rig)) {
        fail_msg("open: %s", rig->why);
    }
    return rig;
}

/* ---- the poll loop, on model time ---- */

struct loop {
    struct rig *rig;
    void (*step)(struct loop *loop); /* the device's turn, each STEP_NS of sleep */
    bool sends;
    uint64_t read_at_ns;         /* a reader is done with one more of the frames that it keeps */
    uint64_t tx_at_ns, rx_at_ns; /* of the last progress */
    uint64_t tx_gap_ns, rx_gap_ns;
    uint64_t tx_done, rx_packets;
};

static void note_gap(uint64_t now, bool moved, uint64_t *at_ns, uint64_t *gap_ns)
{
    if (now - *at_ns > *gap_ns) {
        *gap_ns = now - *at_ns;
    }
    *at_ns = moved ? now : *at_ns;
}

static void turn(struct loop *loop)
{
    struct rig *rig = loop->rig;

    (void)virtio_net_tx_reclaim(rig->dev, PAIR, 1024);
    (void)virtio_net_rx_poll(rig->dev, PAIR, 1024);
    (void)virtio_net_poll(rig->dev, seam_now_ns());
    note_gap(seam_now_ns(), rig->done != loop->tx_done, &loop->tx_at_ns, &loop->tx_gap_ns);
    note_gap(seam_now_ns(), rig->rx_packets != loop->rx_packets, &loop->rx_at_ns, &loop->rx_gap_ns);
    loop->tx_done = rig->done;
    loop->rx_packets = rig->rx_packets;
    for (unsigned i = 0; i < BURST && loop->sends && !virtio_net_tx_stopped(rig->dev, PAIR); i++) {
        assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
    }
    if (rig->n_rx_kept != 0 && seam_now_ns() >= loop->read_at_ns) {
        virtio_net_rx_return(rig->dev, rig->rx_kept[--rig->n_rx_kept]);
        loop->read_at_ns = seam_now_ns() + READ_NS;
    }
    if (!virtio_net_arm(rig->dev, virtio_net_tx_stopped(rig->dev, PAIR))) {
        return;
    }
    uint64_t deadline = virtio_net_next_deadline_ns(rig->dev, seam_now_ns());
    if (rig->n_rx_kept != 0 && loop->read_at_ns < deadline) {
        deadline = loop->read_at_ns;
    }
    while (!virtio_net_irq_pending(rig->dev) && seam_now_ns() < deadline) {
        seam_advance_ns(STEP_NS);
        loop->step(loop);
    }
    virtio_net_disarm(rig->dev);
}

static void run(struct loop *loop, uint64_t for_ns)
{
    uint64_t end_ns = seam_now_ns() + for_ns;

    loop->tx_at_ns = loop->rx_at_ns = seam_now_ns();
    while (seam_now_ns() < end_ns) {
        turn(loop);
    }
}

static void serve_all(struct loop *loop)
{
    model_serve(&loop->rig->device);
}

/* Nothing is out any more, everything balances, and frames pass both ways, each found by its own
 * interrupt. */
static void expect_alive(struct loop *loop)
{
    struct rig *rig = loop->rig;

    loop->sends = false;
    loop->step = serve_all;
    rig->device.opt.serve = false;
    for (unsigned i = 0; i < 100 && virtio_net_tx_in_flight(rig->dev, PAIR) != 0; i++) {
        turn(loop);
    }
    while (virtio_net_rx_poll(rig->dev, PAIR, 64) != 0) {
    }
    for (unsigned i = 0; i < 20; i++) {
        uint64_t done = rig->done, packets = rig->rx_packets;
        assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
        assert_true(virtio_net_arm(rig->dev, false));
        model_serve(&rig->device);
        assert_true(virtio_net_irq_pending(rig->dev));
        virtio_net_disarm(rig->dev);
        assert_int_equal(virtio_net_tx_reclaim(rig->dev, PAIR, 64), 1);
        assert_true(virtio_net_arm(rig->dev, false));
        assert_true(model_receive(&rig->device, plain, frame, sizeof(frame)));
        assert_true(virtio_net_irq_pending(rig->dev));
        virtio_net_disarm(rig->dev);
        assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
        assert_int_equal(rig->done, done + 1);
        assert_int_equal(rig->rx_packets, packets + 1);
    }
    assert_true(rig_at_rest(rig));
}

/* ---- devices that signal too rarely ---- */

/*
 * Field case 2: the device completes what it was sent and never says so, and nothing comes in that
 * would wake the driver instead. In each second frames go out and the safety timer's counter grows,
 * and a stop never lasts longer than the timer's look.
 */
static void test_no_tx_interrupt(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 2; form++) {
        struct virtio_net_tx_stats tx;
        struct strict_options opt;
        strict_options_default(&opt);
        opt.pace = STRICT_LAZY;
        opt.queue_max_descs[1] = 32;
        opt.offered &= form == 1 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
        case_init(&opt);
        case_open(NULL);
        host.dev.fault.lose_interrupts = 1;
        uint64_t reaps = 0;
        for (unsigned second = 0; second < 30; second++) {
            uint32_t done = host.tx_done;
            uint64_t end_ns = seam_now_ns() + SECOND_NS;
            while (seam_now_ns() < end_ns) {
                while (!virtio_net_tx_stopped(host.net, PAIR)) {
                    assert_int_equal(host_send(&host, 100, 1, true, false), VIRTIO_NET_OK);
                }
                (void)host_turn(&host);
            }
            virtio_net_tx_stats(host.net, PAIR, &tx);
            assert_true(host.tx_done > done);
            assert_true(tx.timer_reaps > reaps);
            reaps = tx.timer_reaps;
        }
        assert_true(host.dev.interrupts_lost > 100);
        assert_int_equal(host.rx_got, 0);
        assert_true(host.longest_stop_ns <= PERIOD_NS / 2 + SLACK_NS);
        host.dev.fault.lose_interrupts = 0;
        assert_true(host_settle(&host, 1000));
        case_traffic(100, 100);
        case_end();
    }
}

/* Frames into the first `n` buffers that the device has, in one jump of the used index. */
static void receive_jump(struct rig *rig, unsigned n)
{
    struct model_queue *q = &rig->device.q[MODEL_RX];
    struct virtio_net_hdr hdr = {.num_buffers = 1};

    while (n-- > 0 && q->n_held != 0) {
        uint16_t head = q->held[0];
        memmove(&q->held[0], &q->held[1], --q->n_held * sizeof(q->held[0]));
        q->mine[head] = false;
        uint8_t *buffer = seam_ram(q->desc[head].addr, sizeof(hdr) + sizeof(frame));
        memcpy(buffer, &hdr, sizeof(hdr));
        memcpy(buffer + sizeof(hdr), frame, sizeof(frame));
        model_use_raw(&rig->device, MODEL_RX, head, sizeof(hdr) + sizeof(frame));
    }
}

/* Interrupts only when the new index stands exactly behind the event that the driver asked for. */
static void publish_on_equality(struct rig *rig, unsigned queue)
{
    struct model_queue *q = &rig->device.q[queue];
    uint16_t event = q->avail->ring[q->size];

    __atomic_store_n(&q->used->idx, q->used_idx, __ATOMIC_SEQ_CST);
    if (q->used_idx == vq_wrap(event + 1)) {
        rig->device.base.queue_line[queue]->count++;
        q->interrupts++;
    }
}

static void step_on_equality(struct loop *loop)
{
    struct model_device *dev = &loop->rig->device;

    (void)model_take(dev, MODEL_RX);
    (void)model_take(dev, MODEL_TX);
    receive_jump(loop->rig, 2 + random_below(63));
    publish_on_equality(loop->rig, MODEL_RX);
    for (unsigned n = 2 + random_below(63); n > 0 && dev->q[MODEL_TX].n_held != 0; n--) {
        struct model_queue *q = &dev->q[MODEL_TX];
        uint16_t head = q->held[--q->n_held];
        q->mine[head] = false;
        model_use_raw(dev, MODEL_TX, head, 0);
    }
    publish_on_equality(loop->rig, MODEL_TX);
}

/*
 * Field case 6, stub A: the used index moves in jumps of 2 to 64 and the device interrupts only
 * when it lands on the driver's event. Most interrupts never come, in both directions; what they
 * were for is found within the safety timer's period, for a minute.
 */
static void test_interrupt_on_equality(void **state)
{
    struct rig *rig = open_rig(true, 256);
    struct loop loop = {.rig = rig, .step = step_on_equality, .sends = true};

    (void)state;
    run(&loop, 60 * SECOND_NS);
    assert_true(loop.tx_gap_ns <= PERIOD_NS + SLACK_NS);
    assert_true(loop.rx_gap_ns <= PERIOD_NS + SLACK_NS);
    assert_true(rig_tx(rig).timer_reaps > 100);
    assert_true(rig->done > 600 && rig->rx_packets > 600);
    (void)model_take(&rig->device, MODEL_TX);
    (void)model_complete(&rig->device, UINT32_MAX);
    expect_alive(&loop);
    rig_free(rig);
}

/* One frame for the driver, into a buffer that the device knows of: it does not look for more. */
static void step_asleep(struct loop *loop)
{
    struct model_queue *q = &loop->rig->device.q[MODEL_RX];

    q->enabled = false;
    (void)model_receive(&loop->rig->device, plain, frame, sizeof(frame));
    q->enabled = true;
}

/*
 * Field case 6, stub B: the device takes buffers only when it is kicked, and after its first packet
 * never again moves the event, or clears the flag, by which it asks for a kick. Once all that it
 * was told of is used, the safety timer kicks unasked: no stall is longer than its period, in
 * either direction, for a minute.
 */
static void test_stale_kick_request(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        struct rig *rig = open_rig(event_idx != 0, 64);
        struct loop loop = {.rig = rig, .step = step_asleep, .sends = true};
        rig->device.opt.serve = true;
        (void)model_take(&rig->device, MODEL_RX);
        turn(&loop);
        for (unsigned i = 0; i < 2; i++) {
            if (event_idx == 0) {
                model_notify(&rig->device, i, false);
            }
            rig->device.q[i].notify_off = true;
        }
        run(&loop, 60 * SECOND_NS);
        assert_true(loop.tx_gap_ns <= PERIOD_NS + SLACK_NS);
        assert_true(loop.rx_gap_ns <= PERIOD_NS + SLACK_NS);
        assert_true(rig->done > 600 * 32 && rig->rx_packets > 600 * 32);
        /* Less than two a period: it is a timer, not a storm. */
        assert_in_range(rig->device.q[MODEL_TX].kicks, 300, 1200);
        assert_in_range(rig->device.q[MODEL_RX].kicks, 300, 1200);
        for (unsigned i = 0; i < 2; i++) {
            model_notify(&rig->device, i, true);
        }
        expect_alive(&loop);
        rig_free(rig);
    }
}

/* Frames arrive and nobody says so. */
static void step_mute(struct loop *loop)
{
    struct model_device *dev = &loop->rig->device;

    dev->drop_interrupts = true;
    (void)model_receive(dev, plain, frame, sizeof(frame));
    dev->drop_interrupts = false;
}

static void step_nothing(struct loop *loop)
{
    (void)loop;
}

/*
 * Field cases 8, 12: frames arrive in the ring and the driver is not told, or a kick does not reach
 * the device. Within the safety timer's period the driver finds it, tells once how all indices
 * stood, and goes on as before, armed anew.
 */
static void test_stall_is_told_once(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 4; form++) {
        struct rig *rig = open_rig((form & 1) != 0, 64);
        struct loop loop = {.rig = rig, .step = step_nothing};
        bool kick = (form & 2) != 0;
        rig->device.opt.serve = true;
        turn(&loop);
        for (unsigned round = 0; round < 3; round++) {
            uint64_t before = rig->done + rig->rx_packets;
            rig->device.drop_kicks = kick;
            loop.step = kick ? step_nothing : step_mute;
            if (kick) {
                assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
            }
            virtio_net_tx_flush(rig->dev, PAIR);
            rig->device.drop_kicks = false;
            run(&loop, PERIOD_NS + SLACK_NS);
            loop.step = step_nothing;
            run(&loop, 2 * PERIOD_NS);
            assert_true(rig->done + rig->rx_packets > before);
            assert_int_equal(rig->stalls, 1);
        }
        assert_string_equal(rig->stall.fault, kick ? "lost_kick" : "lost_interrupt");
        assert_int_equal(rig->stall.queue, kick ? MODEL_TX : MODEL_RX);
        if (kick) {
            assert_int_equal(rig->stall.avail_idx, 1);
            assert_int_equal(rig->stall.used_idx, 0);
        } else {
            assert_int_equal(rig->stall.avail_idx, 64);
            assert_true(rig->stall.used_idx > 0);
        }
        assert_int_equal(rig->stall.used_seen, 0);
        assert_int_equal(rig->stall.interrupts, 0);
        expect_alive(&loop);
        rig_free(rig);
    }
}

/* ---- interrupts with nothing to do ---- */

static void storm(struct rig *rig, unsigned n)
{
    while (n-- > 0) {
        assert_true(virtio_net_arm(rig->dev, false));
        rig->device.lines[1 + random_below(2)].count++;
        assert_true(virtio_net_irq_pending(rig->dev));
        virtio_net_disarm(rig->dev);
        assert_int_equal(virtio_net_tx_reclaim(rig->dev, PAIR, 64), 0);
        assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 0);
        assert_false(virtio_net_poll(rig->dev, seam_now_ns()));
    }
}

/*
 * Field case 20: interrupts of either queue with nothing to do. Frames in flight stay in flight, no
 * counter moves but those of interrupts and of spurious ones, each of which is counted.
 */
static void test_spurious_change_nothing(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        struct rig *rig = open_rig(event_idx != 0, 64);
        struct loop loop = {.rig = rig, .step = serve_all};
        for (unsigned i = 0; i < 5; i++) {
            assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
        }
        virtio_net_tx_flush(rig->dev, PAIR);
        struct virtio_net_tx_stats tx = rig_tx(rig);
        struct virtio_net_rx_stats rx = rig_rx(rig);
        storm(rig, 1000);
        struct virtio_net_tx_stats tx_after = rig_tx(rig);
        struct virtio_net_rx_stats rx_after = rig_rx(rig);
        assert_int_equal(tx_after.interrupts + rx_after.interrupts, 1000);
        assert_int_equal(tx_after.spurious_interrupts + rx_after.spurious_interrupts, 1000);
        assert_true(tx_after.spurious_interrupts > 0 && rx_after.spurious_interrupts > 0);
        tx_after.interrupts = tx_after.spurious_interrupts = 0;
        rx_after.interrupts = rx_after.spurious_interrupts = 0;
        assert_memory_equal(&tx_after, &tx, sizeof(tx));
        assert_memory_equal(&rx_after, &rx, sizeof(rx));
        assert_int_equal(virtio_net_tx_in_flight(rig->dev, PAIR), 5);
        expect_alive(&loop);
        rig_free(rig);
    }
}

static uint64_t time_of_traffic(uint32_t spurious)
{
    struct strict_options opt;
    strict_options_default(&opt);
    opt.pace = STRICT_LAZY;
    opt.slow = 3;
    opt.per_step = 8;
    case_init(&opt);
    case_open(NULL);
    host.dev.fault.spurious_interrupts = spurious;
    uint64_t start_ns = seam_now_ns();
    case_traffic(10000, 10000);
    uint64_t time_ns = seam_now_ns() - start_ns;
    assert_true(spurious == 0 || host.dev.faults_done > 1000);
    case_end();
    return time_ns;
}

/* Field case 20: amid traffic they cost no tenth of the throughput, in the device's own time. */
static void test_spurious_cost_little(void **state)
{
    (void)state;
    uint64_t without_ns = time_of_traffic(0);
    uint64_t with_ns = time_of_traffic(2);
    assert_true(with_ns <= without_ns + without_ns / 10);
}

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
        assert_true(model_receive(&rig->device, plain, frame, sizeof(frame)));
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
        reader->dropped += !model_receive(&rig->device, plain, frame, sizeof(frame));
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
        cmocka_unit_test(test_no_tx_interrupt),
        cmocka_unit_test(test_interrupt_on_equality),
        cmocka_unit_test(test_stale_kick_request),
        cmocka_unit_test(test_stall_is_told_once),
        cmocka_unit_test(test_spurious_change_nothing),
        cmocka_unit_test(test_spurious_cost_little),
        cmocka_unit_test(test_ids_never_posted),
        cmocka_unit_test(test_queue_sizes),
        cmocka_unit_test(test_exact_counts),
        cmocka_unit_test(test_slow_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
