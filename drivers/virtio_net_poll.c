/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What happens beside the packets: arming before sleep, configuration changes, the mending of a
 * broken ring, and the safety timer for interrupts and kicks that got lost.
 */
#include "drivers/virtio_net_impl.h"

#include "boot/clock.h"

static uint32_t line_count(const struct irq_watch *watch)
{
    return watch->line != NULL ? watch->line->count : 0;
}

void irq_account(struct irq_watch *watch, bool work, uint64_t *interrupts, uint64_t *spurious)
{
    uint32_t count = line_count(watch);
    uint32_t fresh = count - watch->counted;

    if (fresh == 0) {
        return;
    }
    watch->counted = count;
    *interrupts += fresh;
    if (!work && !watch->shared) {
        *spurious += fresh;
    }
}

void note_ring_fault(struct virtio_net *dev, enum vq_fault fault)
{
    static const enum virtio_net_device_fault kinds[] = {
        [VQ_FAULT_ID_RANGE] = VIRTIO_NET_FAULT_USED_ID_RANGE,
        [VQ_FAULT_NOT_IN_FLIGHT] = VIRTIO_NET_FAULT_USED_ID_NOT_IN_FLIGHT,
        [VQ_FAULT_IDX_JUMP] = VIRTIO_NET_FAULT_USED_IDX_JUMP,
    };

    if (!dev->reset_wanted) {
        dev->faults[kinds[fault]]++;
        dev->reset_wanted = true;
    }
}

/* ---- arming ---- */

static unsigned queue_of(const struct virtio_net *dev, const struct virtqueue *vq)
{
    return vq == &dev->tx.vq ? VIRTIO_NET_TX_QUEUE : VIRTIO_NET_RX_QUEUE;
}

/* How the queue stands now, for the one report should the suspicion turn out right. */
static void note_stall(struct virtio_net *dev, unsigned queue)
{
    bool tx = queue == VIRTIO_NET_TX_QUEUE;
    const struct virtqueue *vq = tx ? &dev->tx.vq : &dev->rx.vq;

    dev->stall[queue] = (struct virtio_net_stall){
        .queue = queue,
        .avail_idx = vq->published_idx,
        .used_idx = vq->used_known,
        .used_seen = vq->used_seen,
        .event = vq->event_seen,
        .interrupts = line_count(tx ? &dev->tx.irq : &dev->rx.irq),
    };
}

/* Once: what is lost again and again is in the counters. */
static void tell_stall(struct virtio_net *dev, unsigned queue, enum virtio_net_device_fault fault)
{
    struct virtio_net_stall *stall = &dev->stall[queue];

    if (dev->stall_told || dev->ops->stall == NULL) {
        return;
    }
    dev->stall_told = true;
    stall->fault = virtio_net_fault_names[fault];
    dev->ops->stall(dev->ctx, stall);
}

static void count_lost_interrupt(struct virtio_net *dev, const struct virtqueue *vq)
{
    bool excused = false;

    if (vq == &dev->tx.vq) {
        dev->tx.stats.timer_reaps++;
        /* Without the look after arming the event may have passed before it was set. */
        excused = !dev->tx.policy->recheck;
    }
    if (!excused) {
        dev->faults[VIRTIO_NET_FAULT_LOST_INTERRUPT]++;
        tell_stall(dev, queue_of(dev, vq), VIRTIO_NET_FAULT_LOST_INTERRUPT);
    }
}

static bool event_passed(struct virtqueue *vq)
{
    uint16_t since_arm = vq_wrap(vq->used_seen + vq_pending(vq) - vq->armed_seen);
    return since_arm >= vq->armed_after;
}

/*
 * At waking. A wait that ended by the safety timer although the armed event had passed: either the
 * interrupt was lost, or it is on its way just now. Which of the two is told by the next one: an
 * interrupt that has its own event to show for it is not the missing one, any other is.
 */
static void judge_wait(struct virtio_net *dev, struct virtqueue *vq, const struct irq_watch *irq,
                       struct irq_suspect *suspect)
{
    if (!vq->armed || irq->line == NULL) {
        return;
    }
    uint32_t interrupts = line_count(irq) - irq->at_arm;
    bool passed = event_passed(vq);

    if (suspect->suspected) {
        bool lost = passed && interrupts == 1;
        if (lost) {
            count_lost_interrupt(dev, vq);
        }
        suspect->suspected = !lost && interrupts == 0;
    } else if (passed && interrupts == 0 && clock_now_ns() >= dev->safety_at_ns) {
        *suspect = (struct irq_suspect){true, line_count(irq), clock_now_ns()};
        note_stall(dev, queue_of(dev, vq));
    }
}

/*
 * At arming. What has come since was late, unless it has its own event to show: that of an arming
 * at a stop. What has not come for long was lost.
 */
void judge_suspect(struct virtio_net *dev, struct virtqueue *vq, const struct irq_watch *irq,
                   struct irq_suspect *suspect)
{
    if (!suspect->suspected) {
        return;
    }
    uint32_t interrupts = line_count(irq) - suspect->count;
    bool own = vq->armed && event_passed(vq);
    bool lost = interrupts == 0 ? clock_now_ns() - suspect->at_ns >= LATE_INTERRUPT_NS
                                : interrupts == 1 && own;

    suspect->suspected = !lost && interrupts == 0;
    if (lost) {
        count_lost_interrupt(dev, vq);
    }
}

static bool arm_rx(struct virtio_net *dev)
{
    struct rx_queue *rx = &dev->rx;

    if (vq_in_flight(&rx->vq) == 0 || vq_arm(&rx->vq, 1)) {
        return true;
    }
    rx->stats.recheck_hits++;
    return false;
}

static bool arm_queues(struct virtio_net *dev, bool want_tx)
{
    if (dev->rx.irq.line == NULL) {
        return vq_pending(&dev->rx.vq) == 0 && vq_pending(&dev->tx.vq) == 0;
    }
    return arm_rx(dev) && tx_arm(dev, want_tx);
}

bool virtio_net_arm(struct virtio_net *dev, bool want_tx)
{
    if (dev->dead) {
        return true;
    }
    vq_note(&dev->tx.vq, RING_CALL_ARM, want_tx, 0, 0);
    /* Interrupts count from here, before any of them is asked for: none falls between. */
    dev->rx.irq.at_arm = line_count(&dev->rx.irq);
    dev->tx.irq.at_arm = line_count(&dev->tx.irq);
    dev->config_irq.at_arm = line_count(&dev->config_irq);
    judge_suspect(dev, &dev->rx.vq, &dev->rx.irq, &dev->rx.suspect);
    judge_suspect(dev, &dev->tx.vq, &dev->tx.irq, &dev->tx.suspect);
    virtio_net_tx_flush(dev, VIRTIO_NET_PAIR);
    if (dev->reset_wanted || dev->config_irq.at_arm != dev->config_irq.counted ||
        tx_wake_due(&dev->tx)) {
        return false;
    }
    if (!arm_queues(dev, want_tx)) {
        vq_disarm(&dev->rx.vq);
        vq_disarm(&dev->tx.vq);
        return false;
    }
    return true;
}

void virtio_net_disarm(struct virtio_net *dev)
{
    vq_note(&dev->tx.vq, RING_CALL_DISARM, 0, 0, 0);
    judge_wait(dev, &dev->rx.vq, &dev->rx.irq, &dev->rx.suspect);
    judge_wait(dev, &dev->tx.vq, &dev->tx.irq, &dev->tx.suspect);
    vq_disarm(&dev->rx.vq);
    vq_disarm(&dev->tx.vq);
}

bool virtio_net_irq_pending(const struct virtio_net *dev)
{
    return line_count(&dev->rx.irq) != dev->rx.irq.at_arm ||
           line_count(&dev->tx.irq) != dev->tx.irq.at_arm ||
           line_count(&dev->config_irq) != dev->config_irq.at_arm;
}

/* ---- mending ---- */

/* Gives the device up: everything comes back, and nobody waits for it. */
static void give_up(struct virtio_net *dev)
{
    dev->dead = true;
    dev->info.lost = dev->status_lost
                         ? "the network device is gone: it was removed from the machine"
                         : "the network device is broken, and no reset mends it";
    dev->info.link_up = false;
    dev->ops->link(dev->ctx, false);
}

static void take_all_back(struct virtio_net *dev)
{
    tx_abort(dev);
    rx_take_back(dev);
}

/*
 * Reset, take everything back, start again (2.1.2, 3.3). Bounded: a device that completes nothing
 * between one reset and the next is given up.
 */
static void mend(struct virtio_net *dev)
{
    uint64_t done = dev->tx.stats.completed + dev->rx.stats.packets;
    bool was_up = dev->info.link_up;

    dev->reset_wanted = false;
    dev->fruitless_resets = done == dev->done_at_reset ? dev->fruitless_resets + 1 : 1;
    dev->done_at_reset = done;
    bool reset = device_reset(dev);
    take_all_back(dev);
    if (!reset || dev->fruitless_resets > MAX_FRUITLESS_RESETS) {
        give_up(dev);
    } else if (!device_restart(dev)) {
        take_all_back(dev);
        give_up(dev);
    } else if (dev->info.link_up != was_up) {
        /* The restart has read it, so no later look would find a difference. */
        dev->ops->link(dev->ctx, dev->info.link_up);
    }
    dev->status_lost = false;
    tx_wake_if_due(dev);
}

static void check_config(struct virtio_net *dev)
{
    struct virtio_transport *t = dev->transport;
    uint8_t bits = t->ops->status(t);
    uint16_t status;

    /* Only a reset clears DRIVER_OK, and it was not ours. Where a device was removed from the bus,
     * all ones or all zeroes are read. */
    if ((bits & VIRTIO_STATUS_DRIVER_OK) == 0 || bits == VIRTIO_STATUS_NOBODY) {
        dev->faults[VIRTIO_NET_FAULT_STATUS_LOST]++;
        dev->status_lost = true;
        dev->reset_wanted = true;
        return;
    }
    if ((bits & VIRTIO_STATUS_NEEDS_RESET) != 0) {
        dev->faults[VIRTIO_NET_FAULT_NEEDS_RESET]++;
        dev->reset_wanted = true;
        return;
    }
    if (!config_status(dev, &status)) {
        return;
    }
    bool up = (status & VIRTIO_NET_S_LINK_UP) != 0;
    if (up != dev->info.link_up) {
        dev->info.link_up = up;
        dev->ops->link(dev->ctx, up);
    }
}

/* ---- the safety timer ---- */

void rekick_account(struct virtio_net *dev, struct rekick *rekick, bool work)
{
    if (!work || rekick->given == 0) {
        return;
    }
    if (rekick->given == 1 && rekick->shows_loss &&
        clock_now_ns() - rekick->first_at_ns < LOST_KICK_WINDOW_NS) {
        dev->faults[VIRTIO_NET_FAULT_LOST_KICK]++;
        tell_stall(dev, rekick == &dev->tx.rekick ? VIRTIO_NET_TX_QUEUE : VIRTIO_NET_RX_QUEUE,
                   VIRTIO_NET_FAULT_LOST_KICK);
    }
    rekick->given = 0;
}

/*
 * Kicked again: does what moves next show that a kick was lost? Not if the device has something
 * that it knew of before the last kick: it is slow, or has nothing to do. A receive queue is also
 * silent as long as nobody sends: there only an event among its buffers says that the device does
 * not know them, and only one that the device has written. A flag that asks for kicks says no such
 * thing, nor does the 0 that the ring began with.
 */
static bool shows_loss(const struct virtqueue *vq, bool receives, bool asked)
{
    return vq_all_from_last_kick(vq) &&
           (!receives || (asked && vq->event_idx && vq->event_seen != 0));
}

/* True: what was in flight at the last look is so still, a whole look later. */
static bool look_at(struct virtio_net *dev, unsigned queue, uint64_t now_ns)
{
    bool tx = queue == VIRTIO_NET_TX_QUEUE;
    struct virtqueue *vq = tx ? &dev->tx.vq : &dev->rx.vq;
    struct rekick *rekick = tx ? &dev->tx.rekick : &dev->rx.rekick;
    uint64_t *kicks = tx ? &dev->tx.stats.kicks : &dev->rx.stats.kicks;
    uint16_t max_rekicks = tx ? UINT16_MAX : RX_REKICKS_MAX;
    bool stalled = rekick->busy && vq->used_seen == rekick->seen && vq_pending(vq) == 0;

    rekick->busy = vq_in_flight(vq) != 0;
    rekick->seen = vq->used_seen;
    if (!stalled || rekick->given >= max_rekicks) {
        return stalled;
    }
    bool asked = vq_kick_again(vq);
    if (asked || vq_kick_untold(vq)) {
        if (rekick->given++ == 0) {
            rekick->first_at_ns = now_ns;
            rekick->shows_loss = shows_loss(vq, !tx, asked);
            note_stall(dev, queue);
        }
        (*kicks)++;
    }
    return stalled;
}

static void safety_look(struct virtio_net *dev, uint64_t now_ns)
{
    vq_note(&dev->tx.vq, RING_CALL_SAFETY, 0, 0, 0);
    bool stalled = look_at(dev, VIRTIO_NET_TX_QUEUE, now_ns);

    (void)look_at(dev, VIRTIO_NET_RX_QUEUE, now_ns);
    /* Without a vector for it a change of configuration is only found by looking; and a device that
     * has stopped may have said so in a lost interrupt. */
    if (stalled || dev->config_irq.line == NULL || ++dev->looks % STATUS_LOOKS == 0) {
        check_config(dev);
    }
}

bool virtio_net_poll(struct virtio_net *dev, uint64_t now_ns)
{
    bool did = false;

    if (dev->dead) {
        return false;
    }
    if (line_count(&dev->config_irq) != dev->config_irq.counted) {
        dev->config_irq.counted = line_count(&dev->config_irq);
        check_config(dev);
        did = !dev->rx.irq.shared;
    }
    /* The next look is set by this one alone: whoever is woken more often must not put it off. */
    if (now_ns >= dev->safety_at_ns) {
        dev->safety_at_ns = now_ns + SAFETY_LOOK_NS;
        safety_look(dev, now_ns);
    }
    if (dev->reset_wanted) {
        mend(dev);
        did = true;
    }
    return did;
}

uint64_t virtio_net_next_deadline_ns(const struct virtio_net *dev, uint64_t now_ns)
{
    if (dev->dead || (vq_in_flight(&dev->rx.vq) == 0 && vq_in_flight(&dev->tx.vq) == 0)) {
        return UINT64_MAX;
    }
    uint64_t at_ns = dev->safety_at_ns;
    if (dev->rx.irq.line == NULL && now_ns + VIRTIO_POLLED_PERIOD_NS < at_ns) {
        at_ns = now_ns + VIRTIO_POLLED_PERIOD_NS;
    }
    return at_ns > now_ns ? at_ns : now_ns;
}
