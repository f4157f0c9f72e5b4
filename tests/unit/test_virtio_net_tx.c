/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Sending: stop and wake, the arm protocol, the reserve, the fault policies.
 *
 *     test -> [driver] -> ring -> model device, which completes what the test tells it to
 */
#include "tests/unit/rig_steps.h"

/* Stops when fewer than the stop threshold are free, not one frame earlier; everything is out and
 * kicked then; wakes once, at the wake threshold and not below. */
static void test_stop_and_wake(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 4; bits++) {
        struct rig *rig = rig_on((bits & 1) != 0, (bits & 2) != 0);
        assert_true(rig_open(rig));
        struct virtio_net_tx_stats s = rig_tx(rig);
        unsigned n = fill(rig);
        assert_int_equal(n, s.size_descs - s.stop_descs + 1);
        assert_int_equal(rig->device.q[MODEL_TX].kicks, 1);
        assert_int_equal(model_take(&rig->device, MODEL_TX), n);
        unsigned needed = s.wake_descs - (s.size_descs - n);
        model_complete(&rig->device, needed - 1);
        virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
        assert_true(virtio_net_tx_stopped(rig->dev, PAIR));
        assert_int_equal(rig->wakes, 0);
        model_complete(&rig->device, 1);
        virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
        assert_false(virtio_net_tx_stopped(rig->dev, PAIR));
        assert_int_equal(rig->wakes, 1);
        model_complete(&rig->device, 1000);
        virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
        assert_int_equal(rig->wakes, 1);
        assert_int_equal(rig_tx(rig).stops, 1);
        assert_true(rig_tx(rig).full_ns > 0);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* tx_wake comes at the end of the batch, when the slots are free: the woken can fill the queue. */
static void refill_in_wake(struct rig *rig)
{
    assert_false(virtio_net_tx_stopped(rig->dev, PAIR));
    rig->on_wake = NULL;
    fill(rig);
}

static void test_sending_from_wake(void **state)
{
    struct rig *rig = rig_opened(true);

    (void)state;
    fill(rig);
    rig->on_wake = refill_in_wake;
    model_serve(&rig->device);
    virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
    assert_true(virtio_net_tx_stopped(rig->dev, PAIR));
    assert_int_equal(rig_tx(rig).stops, 2);
    model_serve(&rig->device);
    virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* The device completes everything between the arming and the look after it: it sends no interrupt
 * for what came before the arming could be seen, so only the look can find it. */
static void complete_on_arm(void *ctx, const volatile void *addr, bool is_store)
{
    struct rig *rig = ctx;
    if (is_store || addr != &rig->dev->tx.vq.used->idx || !rig->dev->tx.vq.armed) {
        return;
    }
    serve_unheard(rig);
}

static void test_recheck_finds_progress(void **state)
{
    (void)state;
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        struct rig *rig = rig_opened(event_idx != 0);
        rig->device.ctx = rig;
        rig->device.on_access = complete_on_arm;
        fill(rig);
        assert_int_equal(rig_tx(rig).recheck_hits, 1);
        assert_false(rig->dev->tx.vq.armed);           /* undone */
        assert_false(virtio_net_arm(rig->dev, false)); /* the caller must not sleep */
        virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
        assert_int_equal(rig->wakes, 1);
        /* The same before idling. */
        assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
        assert_false(virtio_net_arm(rig->dev, false));
        virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
        rig->device.on_access = NULL;
        assert_true(virtio_net_arm(rig->dev, false));
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* The armed event lies in what is outstanding, so that it comes: checked at every arming, then the
 * device completes and the line must have been raised by the time it has nothing left. */
static void test_armed_event_comes(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 4; bits++) {
        struct rig *rig = rig_on((bits & 1) != 0, (bits & 2) != 0);
        assert_true(rig_open(rig));
        struct irq_line *line = rig->device.base.queue_line[MODEL_TX];
        for (unsigned round = 0; round < 3000; round++) {
            unsigned n = 1 + round % 40;
            while (n-- > 0 && !virtio_net_tx_stopped(rig->dev, PAIR)) {
                assert_int_equal(rig_send(rig, (uint16_t)(1 + n % 3), n % 2 != 0), VIRTIO_NET_OK);
            }
            uint32_t before = line->count;
            if (virtio_net_arm(rig->dev, round % 2 != 0)) {
                struct virtqueue *vq = &rig->dev->tx.vq;
                assert_in_range(vq->armed_after, 1, vq_in_flight(vq));
                model_take(&rig->device, MODEL_TX);
                while (model_complete(&rig->device, 1 + round % 3) != 0) {
                }
                assert_true(line->count != before);
                assert_true(virtio_net_irq_pending(rig->dev));
            }
            virtio_net_disarm(rig->dev);
            virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
        }
        model_serve(&rig->device);
        virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
        assert_true(rig_at_rest(rig));
        rig_free(rig);
    }
}

/* ---- a poll loop against a device that acts between any two accesses ---- */

struct chaos {
    struct rig *rig;
    uint32_t random;
    unsigned eagerness; /* acts in one of so many accesses */
    bool asleep;        /* acts only when kicked: it asked for a kick and nothing came */
    uint64_t kicks_seen;
};

static uint32_t next_random(struct chaos *c)
{
    c->random = c->random * 1664525u + 1013904223u;
    return c->random >> 8;
}

/* The device: looks at the ring only while awake; goes to sleep by asking for a kick and looking
 * once more; completes some of what it has. */
static void device_acts(struct chaos *c)
{
    struct model_device *dev = &c->rig->device;
    struct model_queue *q = &dev->q[MODEL_TX];

    if (c->asleep && q->kicks != c->kicks_seen) {
        c->asleep = false;
    }
    c->kicks_seen = q->kicks;
    if (!c->asleep) {
        unsigned before = q->n_held;
        q->notify_off = true;
        model_take(dev, MODEL_TX);
        if (q->n_held == before) {
            model_notify(dev, MODEL_TX, true);
            uint16_t seen = q->avail_seen;
            model_take(dev, MODEL_TX);
            c->asleep = q->avail_seen == seen;
        }
    }
    model_complete(dev, next_random(c) % 8);
}

static void act_sometimes(void *ctx, const volatile void *addr, bool is_store)
{
    struct chaos *c = ctx;
    (void)addr;
    (void)is_store;
    if (next_random(c) % c->eagerness == 0) {
        device_acts(c);
    }
}

static bool anything(struct rig *rig)
{
    struct irq_line *line = rig->device.base.queue_line[MODEL_TX];
    (void)line;
    return virtio_net_irq_pending(rig->dev);
}

/* Sends `frames`; fails when the loop sleeps and the device, run for as long as it likes, neither
 * interrupts nor has anything left to do: that is a lost wake or a lost kick. */
static void run_loop(struct chaos *c, uint32_t frames)
{
    struct rig *rig = c->rig;
    uint32_t sent = 0;

    while (sent < frames || virtio_net_tx_in_flight(rig->dev, PAIR) != 0) {
        bool did = virtio_net_tx_reclaim(rig->dev, PAIR, 16) != 0;
        for (unsigned i = next_random(c) % 40;
             i > 0 && sent < frames && !virtio_net_tx_stopped(rig->dev, PAIR); i--) {
            assert_int_equal(rig_send(rig, (uint16_t)(1 + sent % 3), sent % 2 != 0), VIRTIO_NET_OK);
            sent++;
            did = true;
        }
        virtio_net_tx_flush(rig->dev, PAIR);
        if (did || !virtio_net_arm(rig->dev, next_random(c) % 2 != 0)) {
            continue;
        }
        bool may_send = sent < frames && !virtio_net_tx_stopped(rig->dev, PAIR);
        for (unsigned i = 0; !anything(rig) && i < 1000; i++) {
            device_acts(c);
        }
        if (!anything(rig) && !may_send && virtio_net_tx_in_flight(rig->dev, PAIR) != 0) {
            fail_msg("asleep for ever with %u in flight, device %s",
                     virtio_net_tx_in_flight(rig->dev, PAIR), c->asleep ? "asleep" : "awake");
        }
        virtio_net_disarm(rig->dev);
    }
}

static void test_no_wake_is_lost(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 12; bits++) {
        for (unsigned eagerness = 1; eagerness <= 64; eagerness *= 4) {
            struct rig *rig = rig_on((bits & 1) != 0, (bits & 2) != 0);
            struct chaos c = {.rig = rig, .random = bits * 97 + eagerness, .eagerness = eagerness};
            rig->opt.order = (enum model_order)(bits >> 2);
            rig->opt.size_descs[MODEL_TX] = bits & 1 ? 16 : 64;
            assert_true(rig_open(rig));
            rig->device.ctx = &c;
            rig->device.on_access = act_sometimes;
            run_loop(&c, 3000);
            virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
            assert_int_equal(rig_tx(rig).unexpected_full, 0);
            assert_int_equal(rig_tx(rig).timer_reaps, 0);
            assert_true(rig_at_rest(rig));
            rig_free(rig);
        }
    }
}

/* ---- room ---- */

/* Control frames have the reserve for themselves while the queue is stopped, and no more. */
static void test_reserve(void **state)
{
    struct rig *rig = rig_opened(true);

    (void)state;
    fill(rig);
    unsigned n = 0;
    while (rig_send_control(rig) == VIRTIO_NET_OK) {
        n++;
    }
    assert_int_equal(n, rig_tx(rig).stop_descs - 1);
    assert_int_equal(rig_tx(rig).drops[VIRTIO_NET_TX_DROP_RESERVE_EXHAUSTED], 1);
    assert_int_equal(rig_tx(rig).unexpected_full, 0);
    complete_sent(rig);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* A frame that is being joined counts as in the ring, and its stop is undone without a completion
 * when it needs less in the end. */
static void test_set_aside(void **state)
{
    struct rig *rig = rig_opened(true);

    (void)state;
    struct virtio_net_tx_stats s = rig_tx(rig);
    uint16_t most = (uint16_t)(s.size_descs - s.reserve_descs);
    assert_false(virtio_net_tx_reserve(rig->dev, PAIR, (uint16_t)(most + 1)));
    assert_true(virtio_net_tx_reserve(rig->dev, PAIR, most));
    assert_true(virtio_net_tx_stopped(rig->dev, PAIR));
    virtio_net_tx_unreserve(rig->dev, PAIR, most);
    assert_true(virtio_net_tx_stopped(rig->dev, PAIR));
    assert_false(virtio_net_arm(rig->dev, false)); /* a wake is due: no sleep */
    virtio_net_tx_reclaim(rig->dev, PAIR, 16);
    assert_int_equal(rig->wakes, 1);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* A frame larger than the gate's unit that finds no room: AGAIN, counted, and the wake comes. */
static void test_unexpected_full_is_counted(void **state)
{
    struct rig *rig = rig_on(true, false);

    (void)state;
    rig->config.refuse.host_tso = true;
    assert_true(rig_open(rig));
    while (rig_tx(rig).unexpected_full == 0) {
        enum virtio_net_result r = rig_send(rig, VIRTIO_NET_TX_MAX_PIECES, true);
        assert_int_equal(r, rig_tx(rig).unexpected_full == 0 ? VIRTIO_NET_OK : VIRTIO_NET_AGAIN);
    }
    assert_true(virtio_net_tx_stopped(rig->dev, PAIR));
    model_serve(&rig->device);
    virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
    assert_true(rig->wakes > 0);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

/* ---- policies ---- */

/* Report B in small: large chains and small frames into a ring without INDIRECT, on a device that
 * completes one buffer at a time. */
static struct rig *run_policy(enum virtio_net_policy policy, uint32_t packets)
{
    struct rig *rig = rig_on(true, false);
    uint32_t sent = 0;
    uint32_t random = 1;

    rig->config.policy = policy;
    rig->opt.size_descs[MODEL_TX] = 256;
    assert_true(rig_open(rig));
    while (sent < packets) {
        for (unsigned burst = 0; burst < 8 && !virtio_net_tx_stopped(rig->dev, PAIR); burst++) {
            random = random * 1664525u + 1013904223u;
            enum virtio_net_result r = (random >> 16) % 2 != 0
                                           ? rig_send(rig, 1, true)
                                           : rig_send_tso(rig, VIRTIO_NET_TX_MAX_PIECES);
            assert_int_equal(r, VIRTIO_NET_OK);
            sent++;
        }
        virtio_net_tx_flush(rig->dev, PAIR);
        model_take(&rig->device, MODEL_TX);
        model_complete(&rig->device, 1);
        virtio_net_tx_reclaim(rig->dev, PAIR, 64);
    }
    while (virtio_net_tx_in_flight(rig->dev, PAIR) != 0 || rig_tx(rig).held != 0) {
        complete_sent(rig);
    }
    assert_true(rig_at_rest(rig));
    return rig;
}

static void test_policies(void **state)
{
    struct virtio_net_tx_stats s[VIRTIO_NET_POLICIES];

    (void)state;
    for (unsigned policy = 0; policy < VIRTIO_NET_POLICIES; policy++) {
        struct rig *rig = run_policy((enum virtio_net_policy)policy, 10000);
        s[policy] = rig_tx(rig);
        assert_int_equal(s[policy].unexpected_full, 0);
        rig_free(rig);
    }
    assert_int_equal(s[VIRTIO_NET_POLICY_THRESHOLD].requeues, 0);
    assert_int_equal(s[VIRTIO_NET_POLICY_THRESHOLD].drops[VIRTIO_NET_TX_DROP_POLICY], 0);
    assert_int_equal(s[VIRTIO_NET_POLICY_NO_RECHECK].requeues, 0);
    assert_true(s[VIRTIO_NET_POLICY_WAKE_ON_ONE].requeues > 100);
    assert_true(s[VIRTIO_NET_POLICY_WAKE_ON_ONE].stops > 4 * s[VIRTIO_NET_POLICY_THRESHOLD].stops);
    assert_int_equal(s[VIRTIO_NET_POLICY_WAKE_ON_ONE].aborted, 0);
    assert_true(s[VIRTIO_NET_POLICY_DROP].drops[VIRTIO_NET_TX_DROP_POLICY] > 100);
    assert_int_equal(s[VIRTIO_NET_POLICY_DROP].aborted,
                     s[VIRTIO_NET_POLICY_DROP].drops[VIRTIO_NET_TX_DROP_POLICY]);
    assert_int_equal(s[VIRTIO_NET_POLICY_SPIN].stops, 0);
}

/* Without the look after arming the same completion as in test_recheck_finds_progress is slept
 * over; the safety timer finds it, and blames nobody but the driver. */
static void test_no_recheck_stalls(void **state)
{
    struct rig *rig = rig_on(true, true);

    (void)state;
    rig->config.policy = VIRTIO_NET_POLICY_NO_RECHECK;
    assert_true(rig_open(rig));
    fill(rig);
    serve_unheard(rig); /* the completion comes before the arming is seen */
    assert_true(virtio_net_arm(rig->dev, true)); /* sleeps although all is done */
    assert_false(virtio_net_irq_pending(rig->dev));
    uint64_t deadline = virtio_net_next_deadline_ns(rig->dev, clock_now_ns());
    assert_true(deadline != UINT64_MAX);
    seam_advance_ns(deadline - seam_now_ns());
    virtio_net_disarm(rig->dev);
    virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
    seam_advance_ns(5000000); /* no late interrupt either */
    assert_true(virtio_net_arm(rig->dev, false));
    assert_int_equal(rig_tx(rig).timer_reaps, 1);
    assert_int_equal(rig_fault(rig, VIRTIO_NET_FAULT_LOST_INTERRUPT), 0);
    assert_true(rig_at_rest(rig));
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_and_wake),
        cmocka_unit_test(test_sending_from_wake),
        cmocka_unit_test(test_recheck_finds_progress),
        cmocka_unit_test(test_armed_event_comes),
        cmocka_unit_test(test_no_wake_is_lost),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_set_aside),
        cmocka_unit_test(test_unexpected_full_is_counted),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_no_recheck_stalls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
