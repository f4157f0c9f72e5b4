/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The split virtqueue, VIRTIO 1.x section 2.7: add, publish, kick, reclaim, arm, disarm.
 *
 * The driver's side keeps everything that it must know in private memory (struct vq_slot). What
 * lies in memory that the device can write is read once, checked, and never believed a second time;
 * descriptors and the available ring are written and never read back.
 *
 * One context calls all of these. What runs beside them is the device, and only through the ring.
 */
#ifndef SLUICE_DRIVERS_VIRTQUEUE_H
#define SLUICE_DRIVERS_VIRTQUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "drivers/ring_trace.h"

/* Largest split ring there is (2.7). */
#define VQ_MAX_SIZE_DESCS 32768u

/* Descriptor flags (2.7.5). */
#define VQ_DESC_F_NEXT     1u
#define VQ_DESC_F_WRITE    2u
#define VQ_DESC_F_INDIRECT 4u

/* 2.7.6, 2.7.8: the one flag of each ring, without EVENT_IDX. */
#define VQ_AVAIL_F_NO_INTERRUPT 1u
#define VQ_USED_F_NO_NOTIFY     1u

struct vq_desc {
    uint64_t addr;
    uint32_t len;
    uint16_t flags;
    uint16_t next;
};
_Static_assert(sizeof(struct vq_desc) == 16, "2.7.5");

struct vq_avail {
    uint16_t flags;
    uint16_t idx;
    uint16_t ring[]; /* size entries, then used_event */
};
_Static_assert(offsetof(struct vq_avail, ring) == 4, "2.7.6");

struct vq_used_elem {
    uint32_t id;
    uint32_t len;
};
_Static_assert(sizeof(struct vq_used_elem) == 8, "2.7.8");

struct vq_used {
    uint16_t flags;
    uint16_t idx;
    struct vq_used_elem ring[]; /* size entries, then avail_event */
};
_Static_assert(offsetof(struct vq_used, ring) == 4, "2.7.8");

/* One piece of a buffer, by the address that the device uses. */
struct vq_seg {
    uint64_t dma_addr;
    uint32_t len_bytes;
};

/*
 * What the driver knows of a descriptor. As the head of a chain in flight it carries the chain; as
 * any descriptor it is a link of its chain or of the free list.
 */
struct vq_slot {
    void *cookie;
    uint32_t out_bytes; /* that the device reads */
    uint32_t in_bytes;  /* that the device may write */
    uint16_t n_descs;   /* of the chain in the table, 0: not the head of one */
    uint16_t tail;      /* last descriptor of the chain */
    uint16_t next;
    uint32_t batch; /* vq->batch when it was added */
};

/* Where a kick goes: one register write (4.1.5.2). */
struct vq_doorbell {
    volatile void *addr;
    uint16_t value;
};

enum vq_fault {
    VQ_FAULT_NONE = 0,
    VQ_FAULT_ID_RANGE,      /* used id is no descriptor */
    VQ_FAULT_NOT_IN_FLIGHT, /* used id heads no chain that the device was given */
    VQ_FAULT_IDX_JUMP,      /* used index ran past what was made available */
};

/* A chain that the device has returned. */
struct vq_done {
    void *cookie;
    uint32_t out_bytes; /* what was lent, as added */
    uint32_t in_bytes;
    uint32_t used_bytes; /* that the device says it wrote; above in_bytes it lies */
    uint16_t head;
};

struct vq_memory {
    void *ring; /* vq_ring_bytes(), aligned to a cache line */
    uint64_t ring_dma;
    struct vq_slot *slots;    /* one for each descriptor */
    struct vq_desc *indirect; /* size x indirect_descs descriptors, NULL without INDIRECT_DESC */
    uint64_t indirect_dma;
    uint16_t indirect_descs; /* most segments that one indirect table takes */
};

struct virtqueue {
    /* Driver private, touched for each buffer. */
    struct vq_slot *slots;
    struct vq_desc *desc;
    struct vq_avail *avail;
    struct vq_used *used;
    uint16_t size;
    uint16_t mask;
    uint16_t free_head;
    uint16_t n_free;        /* descriptors */
    uint16_t avail_idx;     /* next entry to fill */
    uint16_t published_idx; /* what the device may see */
    uint16_t used_seen;     /* next entry to take back */
    uint16_t used_known;    /* used index as last read and checked */
    uint32_t batch;         /* counts publications: a chain of this one is not published yet */
    uint32_t unkicked;      /* published since the last decision about a kick; may pass 2^16 */
    uint32_t untold;        /* published since the last kick that went out; may pass 2^16 */
    uint32_t told;          /* published for that kick */
    bool event_idx;
    bool armed;
    uint8_t number;           /* of the queue, in the trace */
    struct ring_trace *trace; /* NULL: not recorded. Both stay through vq_init */
    uint16_t armed_after;     /* completions, counted from used_seen at the time of arming */
    uint16_t armed_seen;      /* used_seen then */
    uint16_t event_seen;      /* the device's, at the last decision about a kick */
    enum vq_fault fault;
    struct vq_doorbell doorbell;
    volatile uint16_t *used_event;  /* ours to write, 2.7.10 */
    volatile uint16_t *avail_event; /* the device's */
    struct vq_memory memory;
};

/* All index arithmetic is modulo 2^16 (2.7.13.1), and only here. */
static inline uint16_t vq_wrap(int value)
{
    return (uint16_t)value;
}

/*
 * Does moving an index from old_idx to new_idx pass the event (2.7.10)? Exact for moves of up to
 * 2^16 - 1 entries, that is for everything but a move that the 16-bit indices cannot show.
 */
static inline bool vq_need_event(uint16_t event, uint16_t new_idx, uint16_t old_idx)
{
    return vq_wrap(new_idx - event - 1) < vq_wrap(new_idx - old_idx);
}

/* Records an event of this queue, if anything is recorded. */
static inline void vq_note(const struct virtqueue *vq, enum ring_event_kind kind, unsigned a,
                           unsigned c, uint32_t b)
{
    if (__builtin_expect(vq->trace != NULL, 0)) {
        ring_trace_add(vq->trace, kind, vq->number, a, c, b);
    }
}

/* Bytes of ring memory, and where its parts lie in it. size_descs: a power of two, 1..32768. */
size_t vq_ring_bytes(uint16_t size_descs);
size_t vq_avail_offset_bytes(uint16_t size_descs);
size_t vq_used_offset_bytes(uint16_t size_descs);

/* Sets up an empty ring in memory that the device does not know yet. Interrupts are suppressed. */
void vq_init(struct virtqueue *vq, uint16_t size_descs, bool event_idx,
             const struct vq_memory *memory);

static inline uint16_t vq_free_descs(const struct virtqueue *vq)
{
    return vq->n_free;
}

/* Chains added and not taken back. */
static inline uint16_t vq_in_flight(const struct virtqueue *vq)
{
    return vq_wrap(vq->avail_idx - vq->used_seen);
}

/* Descriptors that a buffer of n_segs segments costs. */
static inline uint16_t vq_cost_descs(const struct virtqueue *vq, uint16_t n_segs)
{
    return vq->memory.indirect != NULL && n_segs > 1 ? 1 : n_segs;
}

/*
 * Adds a buffer of n_out segments that the device reads, then n_in that it writes. There must be
 * room: vq_cost_descs() of it. The device does not see it before vq_publish. Returns the head, an
 * index below the ring's size that is in no other use until the buffer is taken back.
 */
uint16_t vq_add(struct virtqueue *vq, const struct vq_seg *segs, uint16_t n_out, uint16_t n_in,
                void *cookie);

/* The head that the next vq_add will return: for what lies in a table beside the ring. */
static inline uint16_t vq_next_head(const struct virtqueue *vq)
{
    return vq->free_head;
}

/* Shows the device all that was added. */
void vq_publish(struct virtqueue *vq);

/* Notifies the device if it asked for it, once for all that was published since the last call.
 * Returns true if it did. */
bool vq_kick(struct virtqueue *vq);

/* For a safety timer: notifies again if the device says it waits for a buffer that it was given
 * long ago. Returns true if it did. */
bool vq_kick_again(struct virtqueue *vq);

/* For a safety timer: notifies a device that asks for no notification, has used all that it was
 * notified of, and leaves what came after. Returns true if it did; once for the same buffers. */
bool vq_kick_untold(struct virtqueue *vq);

/* True: the device has used all that it knew of before the last kick, so if that one was lost, it
 * knows of nothing that is out. */
bool vq_all_from_last_kick(const struct virtqueue *vq);

/* Completions that are in the used ring and not taken back. Sets vq->fault on an impossible index.
 */
uint16_t vq_pending(struct virtqueue *vq);

/* Takes back one buffer; its descriptors are free when this returns. False: there is none, or
 * vq->fault is set, and stays set until vq_init. */
bool vq_reclaim(struct virtqueue *vq, struct vq_done *done);

/*
 * Asks for an interrupt when `after` more buffers (1..in flight) have been used, then looks again.
 * True: they had not been by then, so that the interrupt will come. False: they had; the request is
 * withdrawn, go on reclaiming. Without EVENT_IDX `after` counts as 1.
 */
bool vq_arm(struct virtqueue *vq, uint16_t after);

/* The first half of vq_arm alone, as the fault policy "no-recheck" has it. */
void vq_arm_unchecked(struct virtqueue *vq, uint16_t after);

/* Asks for no interrupts. They may come all the same (2.7.7.1). */
void vq_disarm(struct virtqueue *vq);

/* After a reset of the device: takes one buffer out of the dead ring, NULL when it is empty.
 * *cursor starts as 0. Cookies come in no particular order. Only vq_init makes the ring usable
 * again. */
void *vq_abort(struct virtqueue *vq, uint16_t *cursor);

#endif
