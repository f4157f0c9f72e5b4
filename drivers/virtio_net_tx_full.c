/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The stop/wake policies, and what each does with a frame that finds no room. The first row is the
 * driver; with it nothing in this file happens, but for a counter that must stay 0. The others are
 * faults that were shipped, so that their cost can be measured with everything else the same.
 */
#include "drivers/virtio_net_impl.h"

#include "boot/cpu.h"

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
    uint16_t cost = tx_frame_cost(dev, frame);

    virtio_net_tx_flush(dev, VIRTIO_NET_PAIR);
    while (tx_room(tx) < cost) {
        if (tx->vq.fault != VQ_FAULT_NONE) {
            tx_stop(dev);
            return VIRTIO_NET_AGAIN;
        }
        cpu_relax();
        virtio_net_tx_reclaim(dev, VIRTIO_NET_PAIR, tx->vq.size);
    }
    tx_place(dev, frame);
    tx->stats.submitted++;
    return VIRTIO_NET_OK;
}

enum virtio_net_result tx_add_when_full(struct virtio_net *dev,
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
        tx_stop_if_short(dev);
        return VIRTIO_NET_OK;
    case TX_FULL_DROP:
        tx->stats.drops[VIRTIO_NET_TX_DROP_POLICY]++;
        tx->stats.submitted++;
        tx->stats.aborted++;
        tx_stop_if_short(dev);
        dev->ops->tx_done(dev->ctx, VIRTIO_NET_PAIR, frame->cookie, true);
        return VIRTIO_NET_OK;
    case TX_FULL_SPIN:
        return spin_for_room(dev, frame);
    case TX_FULL_UNEXPECTED:
        break;
    }
    /* AGAIN promises a wake, so the queue stops even if the gate's unit would still have room. */
    tx->stats.unexpected_full++;
    tx_stop(dev);
    return VIRTIO_NET_AGAIN;
}

/* The held frame's turn: into the ring if it fits now, else back, which is one more requeue. */
void tx_retry_held(struct virtio_net *dev)
{
    struct tx_queue *tx = &dev->tx;

    if (!tx->holder.occupied) {
        return;
    }
    if (tx_room(tx) < tx_frame_cost(dev, &tx->holder.frame)) {
        tx->stats.requeues++;
        return;
    }
    tx->holder.occupied = false;
    tx->stats.held = 0;
    tx_place(dev, &tx->holder.frame);
    virtio_net_tx_flush(dev, VIRTIO_NET_PAIR);
}
