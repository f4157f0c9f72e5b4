/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The poll loop of a guest, on model time: it sends while it may, sleeps as net_run does, and notes
 * the longest time without progress each way. A test says what the device does in each step of
 * sleep.
 *
 *     [loop] -> driver -> [rings] -> model device <- step of the test
 */
#ifndef SLUICE_TESTS_RIG_LOOP_H
#define SLUICE_TESTS_RIG_LOOP_H

#include "tests/unit/rig_steps.h"

#define STEP_NS   1000000ull
#define SECOND_NS 1000000000ull
#define READ_NS   (10 * STEP_NS) /* for each frame, where a reader is slow */
#define BURST     1024u

static uint32_t random_state = 1;

static inline uint32_t random_below(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static inline struct rig *open_rig(bool event_idx, uint16_t size_descs)
{
    struct rig *rig = rig_on(event_idx, true);

    rig->opt.size_descs[MODEL_RX] = rig->opt.size_descs[MODEL_TX] = size_descs;
    if (!rig_open(rig)) {
        fail_msg("open: %s", rig->why);
    }
    return rig;
}

struct loop {
    struct rig *rig;
    void (*step)(struct loop *loop); /* the device's turn, each STEP_NS of sleep */
    bool sends;
    uint64_t read_at_ns;         /* a reader is done with one more of the frames that it keeps */
    uint64_t tx_at_ns, rx_at_ns; /* of the last progress */
    uint64_t tx_gap_ns, rx_gap_ns;
    uint64_t tx_done, rx_packets;
};

static inline void note_gap(uint64_t now, bool moved, uint64_t *at_ns, uint64_t *gap_ns)
{
    if (now - *at_ns > *gap_ns) {
        *gap_ns = now - *at_ns;
    }
    *at_ns = moved ? now : *at_ns;
}

static inline void turn(struct loop *loop)
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

static inline void run(struct loop *loop, uint64_t for_ns)
{
    uint64_t end_ns = seam_now_ns() + for_ns;

    loop->tx_at_ns = loop->rx_at_ns = seam_now_ns();
    while (seam_now_ns() < end_ns) {
        turn(loop);
    }
}

static inline void serve_all(struct loop *loop)
{
    model_serve(&loop->rig->device);
}

/* Nothing is out any more, everything balances, and frames pass both ways, each found by its own
 * interrupt. */
static inline void expect_alive(struct loop *loop)
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
        receive_short(rig);
        assert_true(virtio_net_irq_pending(rig->dev));
        virtio_net_disarm(rig->dev);
        assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
        assert_int_equal(rig->done, done + 1);
        assert_int_equal(rig->rx_packets, packets + 1);
    }
    assert_true(rig_at_rest(rig));
}

#endif
