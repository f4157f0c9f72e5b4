/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Field reports about signals of rings, tried on this driver: devices that interrupt too rarely,
 * too often or never, or that stop asking for kicks.
 *
 *     test: application -> driver -> [rings] -> model device, or strict device <- test: its faults
 */
#include "tests/unit/rig_loop.h"

#include "tests/device/strict_case.h"

#define PERIOD_NS 100000000ull
#define SLACK_NS  2000000ull /* steps of model time, and what the looks at the clock add */

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
        uint8_t *buffer = seam_ram(q->desc[head].addr, sizeof(hdr) + sizeof(short_frame));
        memcpy(buffer, &hdr, sizeof(hdr));
        memcpy(buffer + sizeof(hdr), short_frame, sizeof(short_frame));
        model_use_raw(&rig->device, MODEL_RX, head, sizeof(hdr) + sizeof(short_frame));
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
    (void)model_receive(&loop->rig->device, plain, short_frame, sizeof(short_frame));
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
    (void)model_receive(dev, plain, short_frame, sizeof(short_frame));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_tx_interrupt),
        cmocka_unit_test(test_interrupt_on_equality),
        cmocka_unit_test(test_stale_kick_request),
        cmocka_unit_test(test_stall_is_told_once),
        cmocka_unit_test(test_spurious_change_nothing),
        cmocka_unit_test(test_spurious_cost_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
