/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Driver and device in every order of their shared accesses, up to a number of preemptions: what is
 * queued is sent, a stopped queue is woken, what is used is seen; and each barrier and each look
 * that is taken out loses a wake-up in one of these orders.
 *
 *     send, reclaim, arm, halt  ->  [ring of 2 or 4]  ->  device (one access a turn)
 *     receive, return, arm, halt <-                   <-
 *
 * INTERLEAVE_LONG=1: one preemption more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/device/interleave_queue.h"
#include "tests/device/seams.h"
#include "tests/device/snapshot.h"

#define PAIR     0u
#define FRAMES   4u
#define MAX_KEPT 8u

struct scene {
    bool receive; /* else transmit; with both */
    bool transmit;
    bool event_idx;
    bool keep_rx; /* buffers go back after the pass, not during it */
    bool again;   /* one frame at a time, announced as the safety timer does, and by nothing else */
    uint16_t size_descs;
    unsigned frames, batch;
    unsigned preemptions, stores;
    enum interleave_without without;
};

static struct bench {
    struct model_device dev;
    struct virtio_net *net;
    struct snapshot snapshot;
    struct {
        const struct scene *scene;
        bool out[FRAMES];
        unsigned sent, done, received, wakes, n_kept;
        void *kept[MAX_KEPT];
        bool wrong;
        struct interleave_queue q[2];
        struct irq_line lines[3];
    } now; /* goes back with the driver */
    uint8_t memory[128];
} bench;

/* ---- the user ---- */

static void on_tx_done(void *ctx, unsigned pair, void *cookie, bool aborted)
{
    bool *out = cookie;

    (void)ctx;
    (void)pair;
    bench.now.wrong |= aborted || !*out;
    *out = false;
    bench.now.done++;
}

static void on_tx_wake(void *ctx, unsigned pair)
{
    (void)ctx;
    (void)pair;
    bench.now.wakes++;
}

static void on_rx(void *ctx, unsigned pair, const struct virtio_net_rx_packet *packet)
{
    (void)ctx;
    (void)pair;
    bench.now.received++;
    bench.now.wrong |= packet->n_pieces != 1 || packet->len_bytes != 60;
    if (bench.now.scene->keep_rx) {
        bench.now.kept[bench.now.n_kept++] = packet->pieces[0].buf;
    } else {
        virtio_net_rx_return(bench.net, packet->pieces[0].buf);
    }
}

static void on_link(void *ctx, bool up)
{
    (void)ctx;
    (void)up;
}

static const struct virtio_net_ops ops = {
    .tx_done = on_tx_done, .tx_wake = on_tx_wake, .rx = on_rx, .link = on_link};

static bool send_some(void)
{
    bool did = false;

    while (bench.now.sent < bench.now.scene->frames && bench.now.scene->transmit &&
           !virtio_net_tx_stopped(bench.net, PAIR) &&
           (!bench.now.scene->again || bench.now.sent == bench.now.done)) {
        struct virtio_net_seg seg = {bench.memory + 64, 60};
        bool *out = &bench.now.out[bench.now.sent++];
        struct virtio_net_tx_frame frame = {
            .segs = &seg, .n_segs = 1, .headroom_bytes = 64, .cookie = out};
        *out = true;
        bench.now.wrong |= virtio_net_tx_add(bench.net, PAIR, &frame) != VIRTIO_NET_OK;
        did = true;
    }
    if (did && bench.now.scene->again) {
        vq_publish(&bench.net->tx.vq);
        (void)vq_kick_again(&bench.net->tx.vq);
        bench.net->tx.vq.unkicked = 0;
    }
    virtio_net_tx_flush(bench.net, PAIR);
    return did;
}

static bool receive_some(void)
{
    bool did = virtio_net_rx_poll(bench.net, PAIR, 64) != 0;

    while (bench.now.n_kept != 0) {
        virtio_net_rx_return(bench.net, bench.now.kept[--bench.now.n_kept]);
    }
    return did;
}

static bool all_done(void)
{
    const struct scene *scene = bench.now.scene;
    return (!scene->transmit || bench.now.done == scene->frames) &&
           (!scene->receive || bench.now.received == scene->frames);
}

static bool balanced(void)
{
    struct virtio_net_tx_stats tx;

    virtio_net_tx_stats(bench.net, PAIR, &tx);
    return !bench.now.wrong && bench.now.q[0].wrong == NULL && bench.now.q[1].wrong == NULL &&
           tx.unexpected_full == 0 && tx.submitted == tx.completed + tx.aborted &&
           tx.stops == tx.wakes && tx.wakes == bench.now.wakes &&
           virtio_net_tx_in_flight(bench.net, PAIR) == 0;
}

/* A poll loop as the stack's: halt only after a pass without anything. */
static bool run(void *ctx)
{
    (void)ctx;
    snapshot_restore(&bench.snapshot);
    while (!all_done() && !interleave_over()) {
        bool did = receive_some();
        did |= virtio_net_tx_reclaim(bench.net, PAIR, 64) != 0;
        did |= send_some();
        if (did || all_done()) {
            continue;
        }
        interleave_turn();
        if (!virtio_net_arm(bench.net, bench.now.sent != bench.now.done)) {
            continue;
        }
        interleave_turn();
        if (!virtio_net_irq_pending(bench.net) && !interleave_idle()) {
            return false;
        }
        virtio_net_disarm(bench.net);
    }
    return balanced();
}

/* ---- the device ---- */

static bool interrupted(void *ctx)
{
    (void)ctx;
    return virtio_net_irq_pending(bench.net);
}

static void kick(void *ctx, uint64_t phys, uint32_t value)
{
    (void)ctx;
    (void)phys;
    interleave_queue_kick(&bench.now.q[value]);
}

static void open_bench(const struct scene *scene)
{
    struct model_options opt;
    struct virtio_net_config config = {
        .ops = &ops, .max_datagram_bytes = 60, .refuse.event_idx = !scene->event_idx};
    const char *why = "";

    memset(&bench, 0, sizeof(bench));
    model_options_default(&opt);
    opt.size_descs[0] = opt.size_descs[1] = scene->size_descs;
    model_init(&bench.dev, &opt);
    for (unsigned i = 0; i < 2; i++) {
        bench.dev.base.queue_line[i] = &bench.now.lines[1 + i];
    }
    bench.net = virtio_net_open_transport(&bench.dev.base, &config, &why);
    assert_non_null(bench.net);
    bench.now.scene = scene;
    for (unsigned i = 0; i < 2; i++) {
        interleave_queue_init(&bench.now.q[i], &bench.dev, i, scene->batch);
    }
    bench.now.q[MODEL_RX].frames_left = scene->receive ? scene->frames : 0;
    snapshot_take(&bench.snapshot, bench.net);
    snapshot_add(&bench.snapshot, &bench.now, sizeof(bench.now));
}

static struct interleave_result explore(const struct scene *scene)
{
    open_bench(scene);
    const struct virtqueue *vq =
        scene->transmit ? &bench.net->tx.vq : &bench.net->rx.vq; /* what is taken out is here */
    struct interleave_options options = {
        .preemptions = scene->preemptions,
        .stores = scene->stores,
        .without = scene->without,
        .avail_idx = &vq->avail->idx,
        .used_idx = &vq->used->idx,
        .arm_word = scene->event_idx ? vq->used_event : &vq->avail->flags,
        .event_idx = scene->event_idx,
        .interrupted = interrupted,
        .kick = kick,
        .run = run,
    };
    if (scene->receive) {
        options.device[0] = interleave_queue_side(&bench.now.q[MODEL_RX]);
    }
    if (scene->transmit) {
        options.device[1] = interleave_queue_side(&bench.now.q[MODEL_TX]);
    }
    struct interleave_result result = interleave_explore(&options);
    for (unsigned i = 0; i < 2; i++) {
        if (bench.now.q[i].wrong != NULL) {
            print_message("queue %u: %s\n", i, bench.now.q[i].wrong);
        }
    }
    print_message("%s%s, %s, ring of %u, %u frames, batch %u, %u preemptions, %u stores%s: "
                  "%llu schedules, %llu turns%s\n",
                  scene->transmit ? "transmit" : "", scene->receive ? "receive" : "",
                  scene->event_idx ? "event index" : "flags", scene->size_descs, scene->frames,
                  scene->batch, scene->preemptions, scene->stores, scene->keep_rx ? ", kept" : "",
                  (unsigned long long)result.schedules, (unsigned long long)result.turns,
                  result.lost != 0 ? ", one lost" : "");
    snapshot_free(&bench.snapshot);
    seam_reset();
    return result;
}

static uint64_t total_schedules;

static unsigned more_preemptions(void)
{
    return getenv("INTERLEAVE_LONG") != NULL ? 1 : 0;
}

static void expect_right(struct scene scene)
{
    scene.preemptions += more_preemptions();
    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        scene.event_idx = event_idx != 0;
        struct interleave_result result = explore(&scene);
        assert_int_equal(result.lost, 0);
        assert_int_equal(result.endless, 0);
        assert_int_equal(result.wrong, 0);
        assert_true(result.complete);
        total_schedules += result.schedules;
    }
}

/* ---- nothing is lost ---- */

static void test_transmit(void **state)
{
    (void)state;
    expect_right((struct scene){
        .transmit = true, .size_descs = 2, .frames = 3, .batch = 1, .preemptions = 3});
    expect_right((struct scene){
        .transmit = true, .size_descs = 4, .frames = 4, .batch = 2, .preemptions = 3});
}

static void test_receive(void **state)
{
    (void)state;
    expect_right((struct scene){
        .receive = true, .size_descs = 2, .frames = 3, .batch = 1, .preemptions = 3});
    expect_right((struct scene){.receive = true,
                                .keep_rx = true,
                                .size_descs = 2,
                                .frames = 4,
                                .batch = 2,
                                .preemptions = 2});
}

static void test_both_ways(void **state)
{
    (void)state;
    expect_right((struct scene){.transmit = true,
                                .receive = true,
                                .size_descs = 2,
                                .frames = 2,
                                .batch = 1,
                                .preemptions = 2});
}

/* Stores of the driver are seen late, as x86 allows: after a later load. Field cases 3, 4: no kick
 * is lost in any order, with the event index and with flags. */
static void test_late_stores(void **state)
{
    (void)state;
    expect_right((struct scene){
        .transmit = true, .size_descs = 2, .frames = 3, .batch = 1, .preemptions = 3, .stores = 2});
    expect_right((struct scene){
        .receive = true, .size_descs = 2, .frames = 3, .batch = 1, .preemptions = 3, .stores = 2});
}

/* A kick given again decides by itself: it does not rely on a barrier of the kick before it. */
static void test_kick_again(void **state)
{
    (void)state;
    expect_right((struct scene){.transmit = true,
                                .again = true,
                                .size_descs = 4,
                                .frames = 3,
                                .batch = 1,
                                .preemptions = 3,
                                .stores = 2});
}

static void test_total(void **state)
{
    (void)state;
    print_message("%llu schedules, none with a lost wake-up\n",
                  (unsigned long long)total_schedules);
    assert_true(total_schedules >= (more_preemptions() != 0 ? 10000000u : 100000u));
}

/* ---- and everything is needed ---- */

/* Field cases 3, 4, 11: without the barrier before the look at the event, or without the look after
 * arming, a kick or an interrupt is lost. */
static void test_knock_outs(void **state)
{
    static const enum interleave_without without[] = {INTERLEAVE_WITHOUT_KICK_BARRIER,
                                                      INTERLEAVE_WITHOUT_ARM_BARRIER,
                                                      INTERLEAVE_WITHOUT_RECHECK};

    (void)state;
    for (unsigned i = 0; i < 3 * 4; i++) {
        struct scene scene = {.transmit = i % 2 == 0,
                              .receive = i % 2 != 0,
                              .event_idx = i / 2 % 2 != 0,
                              .size_descs = 2,
                              .frames = 3,
                              .batch = 1,
                              .preemptions = 3,
                              .stores = 2,
                              .without = without[i / 4]};
        struct interleave_result result = explore(&scene);
        assert_int_equal(result.lost, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transmit),   cmocka_unit_test(test_receive),
        cmocka_unit_test(test_both_ways),  cmocka_unit_test(test_late_stores),
        cmocka_unit_test(test_kick_again), cmocka_unit_test(test_total),
        cmocka_unit_test(test_knock_outs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
