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
#include "boot/mem.h"
#include "boot/panic.h"

bool virtio_net_tx_stopped(const struct virtio_net *dev, unsigned pair)
{
    (void)pair;
    return dev->tx.stopped;
}

unsigned virtio_net_tx_in_flight(const struct virtio_net *dev, unsigned pair)
{
    (void)pair;
    return vq_in_flight(&dev->tx.vq);
}

uint16_t virtio_net_tx_cost_descs(const struct virtio_net *dev, uint16_t n_segs,
                                  bool header_in_headroom)
{
    return vq_cost_descs(&dev->tx.vq, (uint16_t)(n_segs + (header_in_headroom ? 0 : 1)));
}

/* ---- publish and kick ---- */

void virtio_net_tx_flush(struct virtio_net *dev, unsigned pair)
{
    struct tx_queue *tx = &dev->tx;

    (void)pair;
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
        vq_disarm(&tx->vq); /* a stop's arming is over, and no interrupt is missing for it */
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
void tx_stop(struct virtio_net *dev)
{
    struct tx_queue *tx = &dev->tx;

    if (tx->stopped) {
        return;
    }
    tx->stopped = true;
    tx->stats.stops++;
    vq_note(&tx->vq, RING_STOP, tx_room(tx), 0, 0);
    tx->stopped_at_ns = clock_now_ns();
    virtio_net_tx_flush(dev, VIRTIO_NET_PAIR);
    judge_suspect(dev, &tx->vq, &tx->irq, &tx->suspect);
    (void)tx_arm(dev, true);
}

void tx_stop_if_short(struct virtio_net *dev)
{
    struct tx_queue *tx = &dev->tx;

    if (tx_room(tx) < tx->stop && tx->policy->stops) {
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
    vq_note(&tx->vq, RING_WAKE, tx_room(tx), 0, 0);
    tx->stopped = false;
    tx->stats.wakes++;
    tx->stats.full_ns += clock_now_ns() - tx->stopped_at_ns;
    dev->ops->tx_wake(dev->ctx, VIRTIO_NET_PAIR);
}

bool virtio_net_tx_reserve(struct virtio_net *dev, unsigned pair, uint16_t descs)
{
    struct tx_queue *tx = &dev->tx;

    (void)pair;
    if (tx_room(tx) < descs + tx->stats.reserve_descs) {
        return false;
    }
    vq_note(&tx->vq, RING_CALL_RESERVE, descs, 0, 0);
    tx->set_aside = (uint16_t)(tx->set_aside + descs);
    tx_stop_if_short(dev);
    return true;
}

void virtio_net_tx_unreserve(struct virtio_net *dev, unsigned pair, uint16_t descs)
{
    (void)pair;
    invariant(descs <= dev->tx.set_aside);
    vq_note(&dev->tx.vq, RING_CALL_UNRESERVE, descs, 0, 0);
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
        /* A descriptor of length 0 breaks devices; and a sum that wraps would be a short frame. */
        if (frame->segs[i].len_bytes == 0 || frame->segs[i].len_bytes > VIRTIO_NET_GSO_MAX_BYTES) {
            return false;
        }
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

void tx_place(struct virtio_net *dev, const struct virtio_net_tx_frame *frame)
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

uint16_t tx_frame_cost(const struct virtio_net *dev, const struct virtio_net_tx_frame *frame)
{
    return virtio_net_tx_cost_descs(dev, frame->n_segs, header_in_headroom(frame));
}

enum virtio_net_result virtio_net_tx_add(struct virtio_net *dev, unsigned pair,
                                         const struct virtio_net_tx_frame *frame)
{
    struct tx_queue *tx = &dev->tx;

    (void)pair;
    if (dev->dead) {
        return VIRTIO_NET_FATAL;
    }
    uint16_t cost = tx_frame_cost(dev, frame);
    uint32_t chain = frame->n_segs + (header_in_headroom(frame) ? 0u : 1u);
    /* 2.7.5.3.1: no chain is longer than the queue, neither in a table of its own. */
    if (!frame_is_sound(dev, frame) || chain > tx->vq.size) {
        tx->stats.drops[VIRTIO_NET_TX_DROP_MALFORMED]++;
        return VIRTIO_NET_FATAL;
    }
    if (tx_room(tx) < cost || (tx->holder.occupied && !frame->control)) {
        return tx_add_when_full(dev, frame);
    }
    tx_place(dev, frame);
    tx->stats.submitted++;
    tx_stop_if_short(dev);
    return VIRTIO_NET_OK;
}

/* ---- reclaim ---- */

unsigned virtio_net_tx_reclaim(struct virtio_net *dev, unsigned pair, unsigned budget)
{
    struct tx_queue *tx = &dev->tx;
    struct vq_done done;
    unsigned n = 0;

    (void)pair;
    if (dev->dead) {
        return 0;
    }
    vq_note(&tx->vq, RING_CALL_POLL, budget, 0, 0);
    while (n < budget && vq_reclaim(&tx->vq, &done)) {
        n++;
        tx->stats.completed++;
        tx->stats.packets++;
        tx->stats.bytes += done.out_bytes - sizeof(struct virtio_net_hdr);
        /* 2.7.8.2: nothing was lent for writing. The length is used for nothing, so only noted. */
        dev->faults[VIRTIO_NET_FAULT_USED_LEN] += done.used_bytes != 0;
        dev->ops->tx_done(dev->ctx, VIRTIO_NET_PAIR, done.cookie, false);
    }
    irq_account(&tx->irq, n != 0, &tx->stats.interrupts, &tx->stats.spurious_interrupts);
    rekick_account(dev, &tx->rekick, n != 0);
    if (tx->vq.fault != VQ_FAULT_NONE) {
        note_ring_fault(dev, tx->vq.fault);
        return n;
    }
    if (n != 0 || vq_in_flight(&tx->vq) == 0) {
        tx_retry_held(dev);
    }
    /* Also without a completion: a joined frame may have cost less than was set aside for it. */
    tx_wake_if_due(dev);
    return n;
}

void virtio_net_tx_stats(const struct virtio_net *dev, unsigned pair,
                         struct virtio_net_tx_stats *out)
{
    (void)pair;
    *out = dev->tx.stats;
}
