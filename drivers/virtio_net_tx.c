/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Sending: room, add, stop, arm, reclaim, wake. The order of these is what this project is about;
 * docs/tx-path.md tells it once as a story, docs/thresholds.md has the numbers.
 *
 * The promise: a queue that is not stopped has room for one whole unit of the gate and the reserve
 * behind it. Every add that breaks it stops the queue, and whoever stopped it is woken once, when
 * the wake threshold is free. Between the two the device has been kicked, and either an interrupt
 * is armed that lies within what it still has to do, or the next pass of the poll loop finds
 * progress.
 */
#include "drivers/virtio_net_impl.h"

#include <string.h>

#include "boot/clock.h"
#include "boot/cpu.h"
#include "boot/mem.h"
#include "boot/panic.h"

const struct tx_policy tx_policies[VIRTIO_NET_POLICIES] = {
    [VIRTIO_NET_POLICY_THRESHOLD] = {.stops = true, .recheck = true},
    [VIRTIO_NET_POLICY_WAKE_ON_ONE] = {.stops = true,
                                       .wake_on_one = true,
                                       .recheck = true,
                                       .on_full = TX_FULL_HOLD},
    [VIRTIO_NET_POLICY_DROP] = {.stops = true,
                                .wake_on_one = true,
                                .recheck = true,
                                .on_full = TX_FULL_DROP},
    [VIRTIO_NET_POLICY_SPIN] = {.recheck = true, .on_full = TX_FULL_SPIN},
    [VIRTIO_NET_POLICY_NO_RECHECK] = {.stops = true},
};

/* Descriptors for data: those of a frame that is still being joined are as good as used. */
static uint16_t tx_room(const struct tx_queue *tx)
{
    uint16_t n_free = vq_free_descs(&tx->vq);
    return n_free > tx->set_aside ? (uint16_t)(n_free - tx->set_aside) : 0;
}

bool virtio_net_tx_stopped(const struct virtio_net *dev, unsigned queue)
{
    (void)queue;
    return dev->tx.stopped;
}

unsigned virtio_net_tx_in_flight(const struct virtio_net *dev, unsigned queue)
{
    (void)queue;
    return vq_in_flight(&dev->tx.vq);
}

uint16_t virtio_net_tx_cost_descs(const struct virtio_net *dev, uint16_t n_segs,
                                  bool header_in_headroom)
{
    return vq_cost_descs(&dev->tx.vq, (uint16_t)(n_segs + (header_in_headroom ? 0 : 1)));
}

/* ---- publish and kick ---- */

void virtio_net_tx_flush(struct virtio_net *dev, unsigned queue)
{
    struct tx_queue *tx = &dev->tx;

    (void)queue;
    vq_publish(&tx->vq);
    if (tx->vq.unkicked == 0) {
        return;
    }
    if (dev->first_kick_ns == 0) {
        dev->first_kick_ns = clock_now_ns();
    }
    if (vq_kick(&tx->vq)) {
        tx->stats.kicks++;
    } else {
        tx->stats.kicks_suppressed++;
    }
}

/* ---- stop, arm, wake ---- */

/*
 * How many completions to wait for: enough for the wake threshold when stopped, half when only
 * credit is waited for, else all. Chains differ in length, so the first is an estimate by their
 * mean; when it is short, the next arming asks for the rest. Never beyond what is in flight, since
 * an event past the last chain would never come (2.7.10).
 */
static uint16_t completions_to_wait_for(const struct tx_queue *tx, bool want_tx)
{
    uint32_t chains = vq_in_flight(&tx->vq);
    uint32_t n = want_tx ? (chains + 1) / 2 : chains;

    if (tx->stopped) {
        uint32_t wake = tx->policy->wake_on_one ? 1 : tx->wake;
        uint32_t descs = tx->vq.size - vq_free_descs(&tx->vq);
        uint32_t missing = wake > tx_room(tx) ? wake - tx_room(tx) : 1;
        uint32_t for_wake = (uint32_t)((uint64_t)missing * chains / descs);
        n = for_wake < n ? for_wake : n;
    }
    return (uint16_t)(n == 0 ? 1 : n);
}

/* DESIGN rule 4. True: an interrupt will come, or nothing is in flight. */
bool tx_arm(struct virtio_net *dev, bool want_tx)
{
    struct tx_queue *tx = &dev->tx;

    if (vq_in_flight(&tx->vq) == 0) {
        return true;
    }
    uint16_t after = completions_to_wait_for(tx, want_tx);
    if (!tx->policy->recheck) {
        vq_arm_unchecked(&tx->vq, after);
        return true;
    }
    if (vq_arm(&tx->vq, after)) {
        return true;
    }
    tx->stats.recheck_hits++;
    return false;
}

/*
 * The frames already added go out before anyone waits for their completion (rule 5). Progress found
 * by the look after arming is left to the poll loop, which has not slept: it reclaims next, and
 * wakes. Reclaiming here would call tx_done from inside the caller's own send.
 */
static void tx_stop(struct virtio_net *dev)
{
    struct tx_queue *tx = &dev->tx;

    tx->stopped = true;
    tx->stats.stops++;
    tx->stopped_at_ns = clock_now_ns();
    virtio_net_tx_flush(dev, VIRTIO_NET_TX_QUEUE);
    (void)tx_arm(dev, true);
}

static void stop_if_short(struct virtio_net *dev)
{
    struct tx_queue *tx = &dev->tx;

    if (tx_room(tx) < tx->stop && !tx->stopped && tx->policy->stops) {
        tx_stop(dev);
    }
}

bool tx_wake_due(const struct tx_queue *tx)
{
    return tx->stopped && !tx->holder.occupied &&
           tx_room(tx) >= (tx->policy->wake_on_one ? 1 : tx->wake);
}

void tx_wake_if_due(struct virtio_net *dev)
{
    struct tx_queue *tx = &dev->tx;

    if (!tx_wake_due(tx)) {
        return;
    }
    tx->stopped = false;
    tx->stats.wakes++;
    tx->stats.full_ns += clock_now_ns() - tx->stopped_at_ns;
    dev->ops->tx_wake(dev->ctx, VIRTIO_NET_TX_QUEUE);
}

bool virtio_net_tx_reserve(struct virtio_net *dev, unsigned queue, uint16_t descs)
{
    struct tx_queue *tx = &dev->tx;

    (void)queue;
    if (tx_room(tx) < descs + tx->stats.reserve_descs) {
        return false;
    }
    tx->set_aside = (uint16_t)(tx->set_aside + descs);
    stop_if_short(dev);
    return true;
}

void virtio_net_tx_unreserve(struct virtio_net *dev, unsigned queue, uint16_t descs)
{
    (void)queue;
    invariant(descs <= dev->tx.set_aside);
    dev->tx.set_aside = (uint16_t)(dev->tx.set_aside - descs);
}

/* ---- add ---- */

static bool frame_is_sound(const struct virtio_net *dev, const struct virtio_net_tx_frame *frame)
{
    uint32_t limit = dev->info.mtu_bytes + ETH_HEADER_BYTES;
    uint32_t bytes = 0;

    if (frame->n_segs == 0 || frame->n_segs > VIRTIO_NET_TX_MAX_PIECES) {
        return false;
    }
    for (uint16_t i = 0; i < frame->n_segs; i++) {
        bytes += frame->segs[i].len_bytes;
    }
    if (frame->gso != VIRTIO_NET_TX_PLAIN) {
        /* 5.1.6.2: a segment's size is needed, and the checksum is the device's. */
        if (!dev->info.can_tso || !frame->csum_partial || frame->gso_size_bytes == 0 ||
            frame->hdr_len_bytes + (uint32_t)frame->gso_size_bytes > limit) {
            return false;
        }
        limit = VIRTIO_NET_GSO_MAX_BYTES;
    }
    if (frame->csum_partial &&
        (!dev->info.can_csum ||
         (uint32_t)frame->csum_start + frame->csum_offset + sizeof(uint16_t) > bytes)) {
        return false;
    }
    return bytes >= ETH_HEADER_BYTES && bytes <= limit;
}

static bool header_in_headroom(const struct virtio_net_tx_frame *frame)
{
    return frame->headroom_bytes >= sizeof(struct virtio_net_hdr);
}

/* 5.1.6.2: flags 0 and no segmentation unless asked for; num_buffers 0 always. */
static void write_header(void *at, const struct virtio_net_tx_frame *frame)
{
    struct virtio_net_hdr hdr = {0};

    if (frame->csum_partial) {
        hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
        hdr.csum_start = frame->csum_start;
        hdr.csum_offset = frame->csum_offset;
    }
    if (frame->gso == VIRTIO_NET_TX_TSO4) {
        hdr.gso_type = VIRTIO_NET_HDR_GSO_TCPV4;
        hdr.gso_size = frame->gso_size_bytes;
        hdr.hdr_len = frame->hdr_len_bytes;
    }
    memcpy(at, &hdr, sizeof(hdr)); /* headroom ends where the frame begins: at any address */
}

static void place(struct virtio_net *dev, const struct virtio_net_tx_frame *frame)
{
    struct tx_queue *tx = &dev->tx;
    struct vq_seg segs[TX_MAX_SEGS];
    uint16_t n = 0;
    uint16_t first = 0;

    if (header_in_headroom(frame)) {
        uint8_t *start = (uint8_t *)frame->segs[0].addr - sizeof(struct virtio_net_hdr);
        write_header(start, frame);
        segs[n++] = (struct vq_seg){
            .dma_addr = mem_dma_addr(start),
            .len_bytes = frame->segs[0].len_bytes + (uint32_t)sizeof(struct virtio_net_hdr),
        };
        first = 1;
    } else {
        uint16_t head = vq_next_head(&tx->vq);
        write_header(&tx->hdrs[head], frame);
        segs[n++] = (struct vq_seg){
            .dma_addr = tx->hdrs_dma + head * sizeof(struct virtio_net_hdr),
            .len_bytes = sizeof(struct virtio_net_hdr),
        };
    }
    for (uint16_t i = first; i < frame->n_segs; i++) {
        segs[n++] = (struct vq_seg){
            .dma_addr = mem_dma_addr(frame->segs[i].addr),
            .len_bytes = frame->segs[i].len_bytes,
        };
    }
    vq_add(&tx->vq, segs, n, 0, frame->cookie);
}

static uint16_t frame_cost(const struct virtio_net *dev, const struct virtio_net_tx_frame *frame)
{
    return virtio_net_tx_cost_descs(dev, frame->n_segs, header_in_headroom(frame));
}

/* The fault policies' ways with a frame that does not fit. */
static enum virtio_net_result add_when_full(struct virtio_net *dev,
                                            const struct virtio_net_tx_frame *frame);

enum virtio_net_result virtio_net_tx_add(struct virtio_net *dev, unsigned queue,
                                         const struct virtio_net_tx_frame *frame)
{
    struct tx_queue *tx = &dev->tx;

    (void)queue;
    if (dev->dead) {
        return VIRTIO_NET_FATAL;
    }
    uint16_t cost = frame_cost(dev, frame);
    if (!frame_is_sound(dev, frame) || cost > tx->vq.size) {
        tx->stats.drops[VIRTIO_NET_TX_DROP_MALFORMED]++;
        return VIRTIO_NET_FATAL;
    }
    if (tx_room(tx) < cost || (tx->holder.occupied && !frame->control)) {
        return add_when_full(dev, frame);
    }
    place(dev, frame);
    tx->stats.submitted++;
    stop_if_short(dev);
    return VIRTIO_NET_OK;
}

static void hold(struct tx_queue *tx, const struct virtio_net_tx_frame *frame)
{
    struct tx_holder *holder = &tx->holder;

    holder->occupied = true;
    holder->frame = *frame;
    holder->frame.segs = holder->segs;
    for (uint16_t i = 0; i < frame->n_segs; i++) {
        holder->segs[i] = frame->segs[i];
    }
    tx->stats.held = 1;
    tx->stats.submitted++;
    tx->stats.requeues++;
}

/* Waits for room where it stands, as drivers without a stopped state do: the caller sees no AGAIN,
 * and the machine nothing else. A device that never completes keeps it here. */
static enum virtio_net_result spin_for_room(struct virtio_net *dev,
                                            const struct virtio_net_tx_frame *frame)
{
    struct tx_queue *tx = &dev->tx;
    uint16_t cost = frame_cost(dev, frame);

    virtio_net_tx_flush(dev, VIRTIO_NET_TX_QUEUE);
    while (tx_room(tx) < cost) {
        if (tx->vq.fault != VQ_FAULT_NONE) {
            return VIRTIO_NET_AGAIN;
        }
        cpu_relax();
        virtio_net_tx_reclaim(dev, VIRTIO_NET_TX_QUEUE, tx->vq.size);
    }
    place(dev, frame);
    tx->stats.submitted++;
    return VIRTIO_NET_OK;
}

static enum virtio_net_result add_when_full(struct virtio_net *dev,
                                            const struct virtio_net_tx_frame *frame)
{
    struct tx_queue *tx = &dev->tx;

    if (frame->control) {
        tx->stats.drops[VIRTIO_NET_TX_DROP_RESERVE_EXHAUSTED]++;
        return VIRTIO_NET_AGAIN;
    }
    switch (tx->policy->on_full) {
    case TX_FULL_HOLD:
        if (tx->holder.occupied) {
            break;
        }
        hold(tx, frame);
        stop_if_short(dev);
        return VIRTIO_NET_OK;
    case TX_FULL_DROP:
        tx->stats.drops[VIRTIO_NET_TX_DROP_POLICY]++;
        tx->stats.submitted++;
        tx->stats.aborted++;
        stop_if_short(dev);
        dev->ops->tx_done(dev->ctx, VIRTIO_NET_TX_QUEUE, frame->cookie, true);
        return VIRTIO_NET_OK;
    case TX_FULL_SPIN:
        return spin_for_room(dev, frame);
    case TX_FULL_UNEXPECTED:
        break;
    }
    tx->stats.unexpected_full++;
    stop_if_short(dev);
    return VIRTIO_NET_AGAIN;
}

/* ---- reclaim ---- */

/* The held frame's turn: into the ring if it fits now, else back, which is one more requeue. */
static void retry_held(struct virtio_net *dev)
{
    struct tx_queue *tx = &dev->tx;

    if (!tx->holder.occupied) {
        return;
    }
    if (tx_room(tx) < frame_cost(dev, &tx->holder.frame)) {
        tx->stats.requeues++;
        return;
    }
    tx->holder.occupied = false;
    tx->stats.held = 0;
    place(dev, &tx->holder.frame);
    virtio_net_tx_flush(dev, VIRTIO_NET_TX_QUEUE);
}

unsigned virtio_net_tx_reclaim(struct virtio_net *dev, unsigned queue, unsigned budget)
{
    struct tx_queue *tx = &dev->tx;
    struct vq_done done;
    unsigned n = 0;

    (void)queue;
    if (dev->dead) {
        return 0;
    }
    while (n < budget && vq_reclaim(&tx->vq, &done)) {
        n++;
        tx->stats.completed++;
        tx->stats.packets++;
        tx->stats.bytes += done.out_bytes - sizeof(struct virtio_net_hdr);
        /* 2.7.8.2: nothing was lent for writing. The length is used for nothing, so only noted. */
        dev->faults[VIRTIO_NET_FAULT_USED_LEN] += done.used_bytes != 0;
        dev->ops->tx_done(dev->ctx, VIRTIO_NET_TX_QUEUE, done.cookie, false);
    }
    irq_account(&tx->irq, n != 0, &tx->stats.interrupts, &tx->stats.spurious_interrupts);
    rekick_account(dev, &tx->rekick, n != 0);
    if (tx->vq.fault != VQ_FAULT_NONE) {
        note_ring_fault(dev, tx->vq.fault);
        return n;
    }
    if (n != 0 || vq_in_flight(&tx->vq) == 0) {
        retry_held(dev);
    }
    /* Also without a completion: a joined frame may have cost less than was set aside for it. */
    tx_wake_if_due(dev);
    return n;
}

/* ---- set up and reset ---- */

static bool allocate_tables(struct virtio_net *dev, uint16_t size)
{
    struct tx_queue *tx = &dev->tx;
    struct vq_memory memory = {0};

    memory.ring = mem_alloc(vq_ring_bytes(size), MEM_PAGE_BYTES);
    memory.slots = mem_alloc(size * sizeof(struct vq_slot), CPU_CACHE_LINE_BYTES);
    tx->hdrs = mem_alloc(size * sizeof(struct virtio_net_hdr), CPU_CACHE_LINE_BYTES);
    if (memory.ring == NULL || memory.slots == NULL || tx->hdrs == NULL) {
        return false;
    }
    memory.ring_dma = mem_dma_addr(memory.ring);
    tx->hdrs_dma = mem_dma_addr(tx->hdrs);
    if (dev->info.indirect) {
        /* 2.7.5.3.1: a table may not be longer than the queue. */
        memory.indirect_descs = size < TX_MAX_SEGS ? size : TX_MAX_SEGS;
        memory.indirect = mem_alloc((size_t)size * memory.indirect_descs * sizeof(struct vq_desc),
                                    CPU_CACHE_LINE_BYTES);
        if (memory.indirect == NULL) {
            return false;
        }
        memory.indirect_dma = mem_dma_addr(memory.indirect);
    }
    vq_init(&tx->vq, size, dev->info.event_idx, &memory);
    return true;
}

bool tx_allocate(struct virtio_net *dev, const struct virtio_net_config *config, uint16_t size,
                 const char **why)
{
    struct tx_queue *tx = &dev->tx;
    struct tx_form form = {
        .size_descs = size,
        .indirect = dev->info.indirect,
        .tso = dev->info.can_tso,
        .mtu_bytes = dev->info.mtu_bytes,
        .max_datagram_bytes = config->max_datagram_bytes,
    };
    struct tx_thresholds thresholds;

    if (!tx_thresholds(&form, &thresholds)) {
        *why = "the transmit ring cannot hold one frame and the reserve: choose a larger tx.size";
        return false;
    }
    if (dev->info.can_tso && !thresholds.tso) {
        dev->info.can_tso = false;
        features_refuse(&dev->info, "HOST_TSO4", "negotiated but not used: the ring is too small");
    }
    dev->info.max_datagram_bytes = thresholds.max_datagram_bytes;
    dev->info.tx_max_segs = thresholds.max_segs;
    tx->policy = &tx_policies[config->policy];
    tx->stop = thresholds.stop;
    tx->wake = thresholds.wake;
    tx->stats = (struct virtio_net_tx_stats){
        .size_descs = size,
        .unit_descs = thresholds.unit,
        .reserve_descs = thresholds.reserve,
        .stop_descs = thresholds.stop,
        .wake_descs = thresholds.wake,
        .policy = config->policy,
    };
    if (!allocate_tables(dev, size)) {
        *why = "no memory for the transmit ring";
        return false;
    }
    return true;
}

/* After a reset: nothing that was in the ring will be heard of again. Leaves an empty ring. */
void tx_abort(struct virtio_net *dev)
{
    struct tx_queue *tx = &dev->tx;
    uint16_t cursor = 0;
    void *cookie;

    while ((cookie = vq_abort(&tx->vq, &cursor)) != NULL) {
        tx->stats.aborted++;
        dev->ops->tx_done(dev->ctx, VIRTIO_NET_TX_QUEUE, cookie, true);
    }
    if (tx->holder.occupied) {
        tx->holder.occupied = false;
        tx->stats.held = 0;
        tx->stats.aborted++;
        dev->ops->tx_done(dev->ctx, VIRTIO_NET_TX_QUEUE, tx->holder.frame.cookie, true);
    }
    tx->rekick = (struct rekick){0};
    vq_init(&tx->vq, tx->vq.size, tx->vq.event_idx, &tx->vq.memory);
}

void virtio_net_tx_stats(const struct virtio_net *dev, unsigned queue,
                         struct virtio_net_tx_stats *out)
{
    (void)queue;
    *out = dev->tx.stats;
}
