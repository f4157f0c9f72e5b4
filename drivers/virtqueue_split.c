/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver's side of a split virtqueue, VIRTIO 1.x section 2.7.
 */
#include "drivers/virtqueue.h"

#include "boot/cpu.h"
#include "boot/panic.h"

/* Whoever must not be woken puts the event here: half the index space away from any batch. */
#define VQ_EVENT_FAR_AWAY 0x8000

static size_t round_up_to_line(size_t bytes)
{
    return (bytes + CPU_CACHE_LINE_BYTES - 1) & ~(size_t)(CPU_CACHE_LINE_BYTES - 1);
}

/*
 * The three parts of 2.7.2 each begin on a line of their own, so that the device polling our index
 * and we polling its index do not take a line from each other. A line is also more than the 16, 2
 * and 4 bytes of alignment that the table there asks for.
 */
size_t vq_avail_offset_bytes(uint16_t size_descs)
{
    return round_up_to_line(sizeof(struct vq_desc) * size_descs);
}

size_t vq_used_offset_bytes(uint16_t size_descs)
{
    size_t avail = sizeof(struct vq_avail) + sizeof(uint16_t) * (size_t)(size_descs + 1u);
    return vq_avail_offset_bytes(size_descs) + round_up_to_line(avail);
}

size_t vq_ring_bytes(uint16_t size_descs)
{
    size_t used = sizeof(struct vq_used) + sizeof(struct vq_used_elem) * size_descs;
    return vq_used_offset_bytes(size_descs) + round_up_to_line(used + sizeof(uint16_t));
}

void vq_init(struct virtqueue *vq, uint16_t size_descs, bool event_idx,
             const struct vq_memory *memory)
{
    uint8_t *ring = memory->ring;
    struct vq_doorbell doorbell = vq->doorbell;
    struct ring_trace *trace = vq->trace;
    uint8_t number = vq->number;
    size_t words = vq_ring_bytes(size_descs) / sizeof(uint64_t);

    invariant(size_descs != 0 && (size_descs & (size_descs - 1)) == 0);
    *vq = (struct virtqueue){
        .slots = memory->slots,
        .desc = (struct vq_desc *)ring,
        .avail = (struct vq_avail *)(ring + vq_avail_offset_bytes(size_descs)),
        .used = (struct vq_used *)(ring + vq_used_offset_bytes(size_descs)),
        .size = size_descs,
        .mask = vq_wrap(size_descs - 1),
        .n_free = size_descs,
        .event_idx = event_idx,
        .trace = trace,
        .number = number,
        .doorbell = doorbell,
        .memory = *memory,
    };
    vq->used_event = &vq->avail->ring[size_descs];
    vq->avail_event = (volatile uint16_t *)&vq->used->ring[size_descs];

    /* 2.7.10.1: the used flags start as 0; all else too, since a rebuilt ring is not a fresh one.
     */
    for (size_t i = 0; i < words; i++) {
        shared_store64((uint64_t *)ring + i, 0);
    }
    for (uint16_t i = 0; i < size_descs; i++) {
        vq->slots[i] = (struct vq_slot){.next = vq_wrap((i + 1) & vq->mask)};
    }
    vq_note(vq, RING_INIT, size_descs, 0, 0);
    vq->armed = true;
    vq_disarm(vq);
}

static void write_desc(struct vq_desc *desc, const struct vq_seg *seg, unsigned flags,
                       unsigned next)
{
    shared_store64(&desc->addr, seg->dma_addr);
    shared_store32(&desc->len, seg->len_bytes);
    shared_store16(&desc->flags, (uint16_t)flags);
    shared_store16(&desc->next, (uint16_t)next);
}

/* One descriptor for any number of segments (2.7.5.3). Each head has a table of its own. */
static void write_indirect(struct virtqueue *vq, uint16_t head, const struct vq_seg *segs,
                           uint16_t n_out, uint16_t n_segs)
{
    size_t first = (size_t)head * vq->memory.indirect_descs;
    struct vq_desc *table = vq->memory.indirect + first;
    struct vq_seg whole = {
        .dma_addr = vq->memory.indirect_dma + first * sizeof(struct vq_desc),
        .len_bytes = n_segs * (uint32_t)sizeof(struct vq_desc),
    };

    /* 2.7.5.3.1: no longer than the queue, and never indirect itself. */
    invariant(n_segs <= vq->memory.indirect_descs && n_segs <= vq->size);
    for (uint16_t i = 0; i < n_segs; i++) {
        bool last = i + 1 == n_segs;
        unsigned flags = (i < n_out ? 0u : VQ_DESC_F_WRITE) | (last ? 0u : VQ_DESC_F_NEXT);
        write_desc(&table[i], &segs[i], flags, last ? 0 : i + 1u);
    }
    write_desc(&vq->desc[head], &whole, VQ_DESC_F_INDIRECT, 0);
}

/* A chain in the table itself; returns its last descriptor. Follows the private free list. */
static uint16_t write_chain(struct virtqueue *vq, uint16_t head, const struct vq_seg *segs,
                            uint16_t n_out, uint16_t n_segs)
{
    uint16_t at = head;
    for (uint16_t i = 0;; i++) {
        unsigned write = i < n_out ? 0u : VQ_DESC_F_WRITE;
        if (i + 1 == n_segs) {
            write_desc(&vq->desc[at], &segs[i], write, 0);
            return at;
        }
        uint16_t next = vq->slots[at].next;
        write_desc(&vq->desc[at], &segs[i], write | VQ_DESC_F_NEXT, next);
        at = next;
    }
}

uint16_t vq_add(struct virtqueue *vq, const struct vq_seg *segs, uint16_t n_out, uint16_t n_in,
                void *cookie)
{
    uint16_t n_segs = vq_wrap(n_out + n_in);
    uint16_t n_descs = vq_cost_descs(vq, n_segs);
    uint16_t head = vq->free_head;
    uint16_t tail = head;
    struct vq_slot *slot = &vq->slots[head];
    uint32_t bytes[2] = {0, 0};

    invariant(n_segs != 0 && n_descs <= vq->n_free);
    for (uint16_t i = 0; i < n_segs; i++) {
        bytes[i >= n_out] += segs[i].len_bytes;
    }
    if (n_segs == 1) {
        write_desc(&vq->desc[head], &segs[0], n_out != 0 ? 0u : VQ_DESC_F_WRITE, 0);
    } else if (n_descs == 1) {
        write_indirect(vq, head, segs, n_out, n_segs);
    } else {
        tail = write_chain(vq, head, segs, n_out, n_segs);
    }
    vq->free_head = vq->slots[tail].next;
    vq->n_free = vq_wrap(vq->n_free - n_descs);
    slot->cookie = cookie;
    slot->out_bytes = bytes[0];
    slot->in_bytes = bytes[1];
    slot->n_descs = n_descs;
    slot->tail = tail;
    slot->batch = vq->batch;
    vq_note(vq, RING_ADD, head, n_descs, bytes[0] + bytes[1]);
    shared_store16(&vq->avail->ring[vq->avail_idx & vq->mask], head);
    vq->avail_idx = vq_wrap(vq->avail_idx + 1);
    return head;
}

void vq_publish(struct virtqueue *vq)
{
    uint16_t n = vq_wrap(vq->avail_idx - vq->published_idx);
    if (n == 0) {
        return;
    }
    /* 2.7.13.3.1: descriptors and ring entries first, then the index that shows them. */
    cpu_wmb();
    shared_store16(&vq->avail->idx, vq->avail_idx);
    vq->published_idx = vq->avail_idx;
    vq->batch++;
    vq->unkicked += n;
    vq->untold += n;
    vq_note(vq, RING_PUBLISH, vq->published_idx, 0, 0);
}

static bool device_wants_kick(struct virtqueue *vq, uint32_t n_new)
{
    if (!vq->event_idx) {
        return (shared_load16(&vq->used->flags) & VQ_USED_F_NO_NOTIFY) == 0;
    }
    /* The difference of two indices forgets whole laps; 2^16 entries pass every event there is. */
    if (n_new > UINT16_MAX) {
        return true;
    }
    uint16_t event = shared_load16(vq->avail_event);
    vq->event_seen = event;
    return vq_need_event(event, vq->published_idx, vq_wrap(vq->published_idx - (int)n_new));
}

bool vq_kick(struct virtqueue *vq)
{
    if (vq->unkicked == 0) {
        return false;
    }
    /*
     * 2.7.13.4.1: the device stores its event and then looks at our index; we stored the index and
     * now look at its event. With only compiler order both could read the old value, and both wait.
     */
    cpu_mb();
    bool wanted = device_wants_kick(vq, vq->unkicked);
    vq_note(vq, RING_KICK, wanted, vq->event_seen, vq->unkicked);
    vq->unkicked = 0;
    if (wanted) {
        vq->told = vq->untold;
        vq->untold = 0;
        mmio_write16(vq->doorbell.addr, vq->doorbell.value);
    }
    return wanted;
}

bool vq_kick_again(struct virtqueue *vq)
{
    uint16_t unused = vq_wrap(vq->published_idx - vq->used_seen);
    cpu_mb();
    /* An event among the buffers that it still has: it went to sleep before it saw that one. */
    if (unused == 0 || !device_wants_kick(vq, unused)) {
        vq_note(vq, RING_REKICK, 0, vq->event_seen, unused);
        return false;
    }
    vq_note(vq, RING_REKICK, 1, vq->event_seen, unused);
    vq->told += vq->untold;
    vq->untold = 0;
    mmio_write16(vq->doorbell.addr, vq->doorbell.value);
    return true;
}

bool vq_kick_untold(struct virtqueue *vq)
{
    uint16_t unused = vq_wrap(vq->published_idx - vq->used_seen);
    /* Some buffer that it knows of is with it: slow is not asleep. */
    if (unused == 0 || unused > vq->untold) {
        return false;
    }
    /* 2.7.10.1 says "should not". A device that went to sleep and left its event behind would not
     * look before the index has gone round, and one look is all that this costs any other. */
    vq_note(vq, RING_KICK_UNTOLD, unused, 0, 0);
    vq->told = vq->untold;
    vq->untold = 0;
    mmio_write16(vq->doorbell.addr, vq->doorbell.value);
    return true;
}

bool vq_all_from_last_kick(const struct virtqueue *vq)
{
    return vq_wrap(vq->published_idx - vq->used_seen) <= vq->told + vq->untold;
}

uint16_t vq_pending(struct virtqueue *vq)
{
    if (vq->fault != VQ_FAULT_NONE) {
        return 0;
    }
    uint16_t used_idx = shared_load16(&vq->used->idx);
    uint16_t pending = vq_wrap(used_idx - vq->used_seen);
    if (used_idx != vq->used_known) {
        vq_note(vq, RING_USED_IDX, used_idx, 0, 0);
    }
    /* One used entry for each available one: more than are out is a jump (2.7.13). So is an index
     * that goes back behind what it has covered already. */
    if (pending > vq_wrap(vq->published_idx - vq->used_seen) ||
        pending < vq_wrap(vq->used_known - vq->used_seen)) {
        vq->fault = VQ_FAULT_IDX_JUMP;
        return 0;
    }
    vq->used_known = used_idx;
    return pending;
}

/* The head of a chain that the device may have, or NULL with vq->fault set. */
static struct vq_slot *checked_slot(struct virtqueue *vq, uint32_t id)
{
    if (id >= vq->size) {
        vq->fault = VQ_FAULT_ID_RANGE;
        return NULL;
    }
    struct vq_slot *slot = &vq->slots[id];
    /*
     * What is not published yet cannot have been used. Told by the batch and not by the position in
     * the ring: a device that completes out of order may keep a chain for more than one lap.
     */
    bool unpublished = slot->batch == vq->batch && vq->avail_idx != vq->published_idx;
    if (slot->n_descs == 0 || unpublished) {
        vq->fault = VQ_FAULT_NOT_IN_FLIGHT;
        return NULL;
    }
    return slot;
}

/* Splices the chain before the free list: the descriptors used last are the warm ones. */
static void release(struct virtqueue *vq, struct vq_slot *slot, uint16_t head)
{
    vq->slots[slot->tail].next = vq->free_head;
    vq->free_head = head;
    vq->n_free = vq_wrap(vq->n_free + slot->n_descs);
    slot->n_descs = 0;
    slot->cookie = NULL;
}

bool vq_reclaim(struct virtqueue *vq, struct vq_done *done)
{
    if (vq->fault != VQ_FAULT_NONE || (vq->used_seen == vq->used_known && vq_pending(vq) == 0)) {
        return false;
    }
    /* The index before the entry it covers; 2.7.14 only shows this order in its example. */
    cpu_rmb();
    struct vq_used_elem *elem = &vq->used->ring[vq->used_seen & vq->mask];
    uint32_t id = shared_load32(&elem->id);
    uint32_t used_bytes = shared_load32(&elem->len);
    vq_note(vq, RING_RECLAIM, id, 0, used_bytes);
    struct vq_slot *slot = checked_slot(vq, id);
    if (slot == NULL) {
        return false;
    }
    *done = (struct vq_done){
        .cookie = slot->cookie,
        .out_bytes = slot->out_bytes,
        .in_bytes = slot->in_bytes,
        .used_bytes = used_bytes,
        .head = (uint16_t)id,
    };
    release(vq, slot, (uint16_t)id);
    vq->used_seen = vq_wrap(vq->used_seen + 1);
    return true;
}

void vq_arm_unchecked(struct virtqueue *vq, uint16_t after)
{
    vq->armed = true;
    vq->armed_seen = vq->used_seen;
    vq->armed_after = vq->event_idx ? after : 1;
    vq_note(vq, RING_ARM, vq->armed_after, vq_wrap(vq->used_seen + vq->armed_after - 1), 0);
    if (vq->event_idx) {
        /* The device interrupts when it writes the entry at this index (2.7.10). */
        shared_store16(vq->used_event, vq_wrap(vq->used_seen + after - 1));
    } else {
        shared_store16(&vq->avail->flags, 0);
    }
}

bool vq_arm(struct virtqueue *vq, uint16_t after)
{
    vq_arm_unchecked(vq, after);
    /*
     * 2.7.14: the device stores its index and then looks at our event; we stored the event and now
     * look at its index. One of the two sees the other, or this wait has no end.
     */
    cpu_mb();
    if (vq_pending(vq) < vq->armed_after && vq->fault == VQ_FAULT_NONE) {
        return true;
    }
    vq_disarm(vq);
    return false;
}

void vq_disarm(struct virtqueue *vq)
{
    if (!vq->armed) {
        return;
    }
    vq->armed = false;
    vq_note(vq, RING_DISARM, vq_wrap(vq->used_known - vq->used_seen), 0, 0);
    if (vq->event_idx) {
        /* Flags stay 0 (2.7.7.1). Comes near again only after 2^15 entries without an arm. */
        shared_store16(vq->used_event, vq_wrap(vq->used_seen + VQ_EVENT_FAR_AWAY));
    } else {
        shared_store16(&vq->avail->flags, VQ_AVAIL_F_NO_INTERRUPT);
    }
}

void *vq_abort(struct virtqueue *vq, uint16_t *cursor)
{
    while (*cursor < vq->size) {
        uint16_t head = (*cursor)++;
        struct vq_slot *slot = &vq->slots[head];
        if (slot->n_descs != 0) {
            void *cookie = slot->cookie;
            release(vq, slot, head);
            return cookie;
        }
    }
    return NULL;
}
