/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Acts of the device and of the driver's user, each with its arguments from the input.
 */
#ifndef SLUICE_TESTS_FUZZ_RING_ACTS_H
#define SLUICE_TESTS_FUZZ_RING_ACTS_H

#include "tests/fuzz/ring_rig.h"

/* Arguments from here on name something that is not there. */
#define ODD_ARGUMENT 0xe0u

/* ---- the device ---- */

/* Mostly one of those that the device has. */
static inline uint32_t arg_id(struct rig *rig, struct input *in, unsigned queue)
{
    const struct rig_queue *q = &rig->q[queue];
    uint8_t arg = in8(in);

    if (arg >= ODD_ARGUMENT) {
        return in32(in);
    }
    if ((arg & 0x20) == 0 && q->n_held != 0) {
        return q->held[arg % q->n_held];
    }
    arg &= 0x1fu;
    return arg < RING_DESCS ? arg : RING_DESCS; /* the first that is none */
}

static inline void act_tx_use(struct rig *rig, struct input *in)
{
    rig_take(rig, TX);
    uint32_t id = arg_id(rig, in, TX);
    if (rig->q[TX].size != 0) {
        rig_use(rig, TX, id, 0);
    }
}

static inline void act_tx_use_len(struct rig *rig, struct input *in)
{
    rig_take(rig, TX);
    uint32_t id = arg_id(rig, in, TX);
    if (rig->q[TX].size != 0) {
        rig_use(rig, TX, id, in32(in));
    }
}

static inline void act_tx_serve(struct rig *rig, struct input *in)
{
    unsigned n = in8(in) % RING_DESCS + 1u;

    rig_take(rig, TX);
    while (n-- != 0 && rig->q[TX].n_held != 0) {
        rig_use(rig, TX, rig->q[TX].held[0], 0);
    }
    if (rig->q[TX].size != 0) {
        rig_publish(rig, TX);
    }
}

static inline void act_publish(struct rig *rig, struct input *in)
{
    unsigned queue = in8(in) & 1u;
    if (rig->q[queue].size != 0) {
        rig_publish(rig, queue);
    }
}

/* An index that nothing was written for. */
static inline void act_jump(struct rig *rig, struct input *in)
{
    uint8_t arg = in8(in);
    struct rig_queue *q = &rig->q[arg & 1u];

    rig->tainted = true;
    q->used_idx = (uint16_t)(q->used_idx + (arg >= ODD_ARGUMENT ? in16(in) : (arg >> 1) % 20u));
    if (q->size != 0) {
        rig_publish(rig, arg & 1u);
    }
}

/* A received buffer: which, how long, what header. */
static inline void act_rx_use(struct rig *rig, struct input *in)
{
    struct rig_queue *q = &rig->q[RX];
    rig_take(rig, RX);
    uint32_t id = arg_id(rig, in, RX);
    uint8_t form = in8(in);
    struct virtio_net_hdr hdr = {.num_buffers = form & 7u};
    uint32_t len = (form & 8u) != 0 ? in8(in) : sizeof(hdr) + 60;

    if ((form & 16u) != 0) {
        uint64_t low = in_bytes(in, 8);
        uint32_t high = in32(in);
        memcpy(&hdr, &low, sizeof(low));
        memcpy((uint8_t *)&hdr + sizeof(low), &high, sizeof(high));
    }
    if ((form & 32u) != 0) {
        len = (form & 128u) != 0 ? in32(in) : in16(in);
    }
    if (q->size == 0) {
        return;
    }
    if (id < q->size && q->mine[id]) {
        memcpy(seam_ram(q->desc[id].addr, sizeof(hdr)), &hdr, sizeof(hdr));
    }
    rig_use(rig, RX, id, len);
    if ((form & 64u) == 0) {
        rig_publish(rig, RX);
    }
}

/* One of the driver's next loads finds another value than the one before. */
static inline void act_scribble(struct rig *rig, struct input *in)
{
    rig->scribble_in = in8(in) % 16u;
    rig->scribble = in32(in);
}

static inline void act_event(struct rig *rig, struct input *in)
{
    unsigned queue = in8(in) & 1u;
    struct rig_queue *q = &rig->q[queue];
    uint16_t value = in16(in);

    if (q->size != 0) {
        q->used->flags = value;
        memcpy(&q->used->ring[q->size], &value, sizeof(value));
    }
}

static inline void act_interrupt(struct rig *rig, struct input *in)
{
    rig->lines[in8(in) % 3].count++;
}

static inline void act_needs_reset(struct rig *rig, struct input *in)
{
    rig->status |= VIRTIO_STATUS_NEEDS_RESET;
    rig->lines[0].count += in8(in) & 1u;
}

static inline void act_link(struct rig *rig, struct input *in)
{
    rig->link_status = in16(in);
    rig->generation++;
    rig->lines[0].count++;
}

/* What the device will answer when it is reset and started again. */
static inline void act_answers(struct rig *rig, struct input *in)
{
    uint8_t bits = in8(in);

    rig->say = (struct rig_answers){
        .reset_never = (bits & 1u) != 0,
        .refuse_features = (bits & 2u) != 0,
        .refuse_queue = (bits & 4u) != 0,
        .refuse_vectors = (bits & 8u) != 0,
        .needs_reset = (bits & 16u) != 0,
        .reset_reads = (bits & 32u) != 0 ? in8(in) : 0,
        .config_changes = (bits & 64u) != 0 ? in8(in) : 0,
        .features_gone = (bits & 128u) != 0 ? in_bytes(in, 8) : 0,
    };
}

/* ---- the user ---- */

/* `sound`: as the contract of virtio_net_tx_add asks for; it must be taken then. */
static inline void add_frame(struct rig *rig, struct virtio_net_tx_frame *frame, bool sound)
{
    unsigned i = 0;
    while (i < FRAMES && rig->frames[i] != AT_USER) {
        i++;
    }
    CHECK(i < FRAMES);
    frame->cookie = &rig->frames[i];
    rig->frames[i] = ADDED;
    rig->n_added++;
    rig->n_out++;
    bool dead = rig->dev->dead;
    enum virtio_net_result result = virtio_net_tx_add(rig->dev, PAIR, frame);
    if (result != VIRTIO_NET_OK) {
        rig->n_added -= rig->frames[i] == ADDED;
        rig->frames[i] = AT_USER;
        rig->n_out--;
    }
    CHECK(!sound || result == (dead ? VIRTIO_NET_FATAL : VIRTIO_NET_OK));
    CHECK(result != VIRTIO_NET_AGAIN || virtio_net_tx_stopped(rig->dev, PAIR) || frame->control);
}

/* A frame like any other, at any time that it is allowed. */
static inline void act_send(struct rig *rig, struct input *in)
{
    struct virtio_net_seg segs[3];
    uint8_t form = in8(in);
    unsigned most = rig->dev->info.tx_max_segs;
    struct virtio_net_tx_frame frame = {.segs = segs, .n_segs = 1, .headroom_bytes = 12};

    most = most < 3 ? most : 3;
    if ((form & 1u) == 0) {
        frame.headroom_bytes = 0; /* costs one more */
        most--;
    }
    frame.n_segs = most > 1 ? (uint16_t)(1 + (form >> 1) % most) : 1;
    for (unsigned i = 0; i < 3; i++) {
        segs[i] = (struct virtio_net_seg){rig_memory + HEADROOM_BYTES, 60};
    }
    if (!virtio_net_tx_stopped(rig->dev, PAIR)) {
        const struct tx_policy *policy = rig->dev->tx.policy;
        add_frame(rig, &frame, policy->stops && !policy->wake_on_one);
    }
}

/* Any frame at any time. */
static inline void act_add(struct rig *rig, struct input *in)
{
    struct virtio_net_seg segs[VIRTIO_NET_TX_MAX_PIECES + 2];
    uint8_t form = in8(in), n = in8(in);
    struct virtio_net_tx_frame frame = {
        .segs = segs,
        .n_segs = n % (VIRTIO_NET_TX_MAX_PIECES + 2),
        .headroom_bytes = (n & 0x20) != 0 ? HEADROOM_BYTES : (n >> 5),
        .control = (form & 1u) != 0,
        .csum_partial = (form & 2u) != 0,
        .gso = (form & 4u) != 0 ? VIRTIO_NET_TX_TSO4 : VIRTIO_NET_TX_PLAIN,
    };
    uint16_t len = (form & 8u) != 0 ? in16(in) % SEG_BYTES : 60;

    if ((form & 6u) != 0) {
        frame.csum_start = in8(in);
        frame.csum_offset = (form & 16u) != 0 ? in16(in) : in8(in);
        frame.gso_size_bytes = in16(in);
        frame.hdr_len_bytes = in8(in);
    }
    for (unsigned i = 0; i < VIRTIO_NET_TX_MAX_PIECES + 2; i++) {
        segs[i] = (struct virtio_net_seg){rig_memory + HEADROOM_BYTES, len};
    }
    add_frame(rig, &frame, false);
}

static inline void act_reserve(struct rig *rig, struct input *in)
{
    uint8_t arg = in8(in);
    uint16_t descs = arg & 0x1fu;

    if ((arg & 0x80u) != 0) {
        descs = descs < rig->set_aside ? descs : rig->set_aside;
        virtio_net_tx_unreserve(rig->dev, PAIR, descs);
        rig->set_aside = (uint16_t)(rig->set_aside - descs);
    } else if (virtio_net_tx_reserve(rig->dev, PAIR, descs)) {
        rig->set_aside = (uint16_t)(rig->set_aside + descs);
    }
}

static inline void act_flush(struct rig *rig, struct input *in)
{
    (void)in;
    virtio_net_tx_flush(rig->dev, PAIR);
}

static inline void act_reclaim(struct rig *rig, struct input *in)
{
    unsigned budget = in8(in) % 20u;
    CHECK(virtio_net_tx_reclaim(rig->dev, PAIR, budget) <= budget);
}

static inline void act_rx_poll(struct rig *rig, struct input *in)
{
    unsigned budget = in8(in) % 20u;
    CHECK(virtio_net_rx_poll(rig->dev, PAIR, budget) <= budget);
}

static inline void act_keep(struct rig *rig, struct input *in)
{
    uint8_t arg = in8(in);
    rig->keep_rx = (arg & 1u) != 0;
    for (unsigned n = arg >> 1; n != 0 && rig->n_kept != 0; n--) {
        virtio_net_rx_return(rig->dev, rig->kept[--rig->n_kept]);
    }
}

/* Arms as before a halt, and wakes as after one. No sleep while there is something to do. */
static inline void act_sleep(struct rig *rig, struct input *in)
{
    uint8_t arg = in8(in);
    bool live = !rig->dev->dead;

    if (virtio_net_arm(rig->dev, (arg & 1u) != 0) && live) {
        CHECK(!rig->dev->reset_wanted && !tx_wake_due(&rig->dev->tx));
        seam_advance_ns((uint64_t)(arg >> 2) * 4000000u);
    }
    if ((arg & 2u) != 0) {
        virtio_net_disarm(rig->dev);
    }
}

static inline void act_poll(struct rig *rig, struct input *in)
{
    seam_advance_ns((uint64_t)in8(in) * 1000000u);
    virtio_net_poll(rig->dev, seam_now_ns());
    CHECK(!rig->dev->reset_wanted || rig->dev->dead || rig->status != 0);
}

#endif
