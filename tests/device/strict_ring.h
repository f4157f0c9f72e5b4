/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The device's side of one split virtqueue, and what the clauses say about the driver's side of it.
 * VIRTIO 1.x section 2.7.
 *
 * Memory of the driver is reached only through an injected translation, so that the same engine
 * runs in the process of the driver and over shared memory of another one. Everything is read
 * once: a walked chain is a private copy, and a snapshot of its descriptors tells later whether the
 * driver changed them while the device owned them.
 */
#ifndef SLUICE_TESTS_STRICT_RING_H
#define SLUICE_TESTS_STRICT_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/device/strict_report.h"

#define STRICT_QUEUE_MAX_DESCS 32768u

/* len bytes of the driver's memory at addr, or NULL if any of them is not the driver's RAM. */
struct strict_memory {
    uint8_t *(*at)(void *ctx, uint64_t addr, uint64_t len_bytes);
    void *ctx;
};

struct strict_desc {
    uint64_t addr;
    uint32_t len;
    uint16_t flags;
    uint16_t next;
};

struct strict_seg {
    uint8_t *ptr;
    uint32_t len_bytes;
    bool writable;
};

/* One descriptor as it was at exposure, and where it lies. */
struct strict_frozen {
    const struct strict_desc *where;
    struct strict_desc was;
};

struct strict_chain {
    uint16_t head;
    bool in_flight;
    bool malformed; /* a clause was violated: give it back untouched */
    bool indirect;
    uint32_t n_segs, segs_cap;
    uint32_t n_frozen, frozen_cap;
    uint32_t n_main; /* descriptors that it holds in the table */
    uint64_t readable_bytes, writable_bytes;
    struct strict_seg *segs;
    struct strict_frozen *frozen;
    uint64_t exposed_ns;
};

enum strict_direction {
    STRICT_DEVICE_WRITES, /* receive */
    STRICT_DEVICE_READS,  /* transmit */
    STRICT_DEVICE_BOTH,   /* control */
};

struct strict_queue {
    /* Set by the owner before strict_queue_enable. */
    struct strict_report *report;
    struct strict_memory memory;
    unsigned index;
    enum strict_direction direction;
    uint32_t size_descs;
    uint64_t desc_addr, avail_addr, used_addr;
    bool event_idx, indirect;
    bool exact; /* every access of the driver is seen: needless kicks are judged too */
    uint32_t max_chain_descs; /* ceiling of SPL-DRV-FRM-02, 0: none */

    bool enabled;
    struct strict_desc *desc;
    uint16_t *avail, *used; /* as 16-bit words: flags, idx, ring, event */
    uintptr_t span_at;      /* all three lie in so many bytes from here; 0 bytes while off */
    size_t span_bytes;
    uint16_t seen_idx;      /* available index as last looked at */
    uint16_t used_idx;      /* as published */
    uint16_t used_next;     /* with what is written and not published */
    uint16_t signalled_idx; /* used index at the last interrupt decision */
    bool signalled_valid;

    struct strict_chain *chains; /* by head */
    uint16_t *owner;             /* by descriptor: head + 1 of the chain that holds it */
    uint16_t *fifo;              /* heads in order of exposure, n_pending of them from fifo_head */
    uint32_t fifo_head, n_pending;
    uint32_t owned_descs;

    bool notify_on;        /* the device wants a kick */
    uint16_t event;        /* avail_event that is in force, with event_idx */
    uint16_t kick_base;    /* available index at the last kick */
    bool kick_justified;   /* an exposure since then asked for a kick */
    bool kick_owed;        /* and none came yet */
    uint64_t kick_owed_ns; /* since when */
    uint64_t moved_ns;     /* used index last published */

    uint64_t exposed, completed, kicks, kicks_needless, kicks_after_silence, lost_kicks;
    uint64_t interrupts_wanted, interrupts_suppressed;
};

/* Positions in the rings, as addresses that the driver's accesses are compared with. */
static inline uint16_t *strict_avail_flags(const struct strict_queue *q)
{
    return q->avail;
}

static inline uint16_t *strict_avail_idx(const struct strict_queue *q)
{
    return q->avail + 1;
}

static inline uint16_t *strict_used_event(const struct strict_queue *q)
{
    return q->avail + 2 + q->size_descs;
}

static inline uint16_t *strict_used_flags(const struct strict_queue *q)
{
    return q->used;
}

static inline uint16_t *strict_used_idx(const struct strict_queue *q)
{
    return q->used + 1;
}

static inline uint16_t *strict_avail_event(const struct strict_queue *q)
{
    return q->used + 2 + (size_t)4 * q->size_descs;
}

/* False: an access to addr is not one to this queue. Most are not. */
static inline bool strict_near(const struct strict_queue *q, const volatile void *addr)
{
    return (uintptr_t)addr - q->span_at < q->span_bytes;
}

/* The other side asked to be told when index passes event: did going from old to new do it? */
static inline bool strict_event_covered(uint16_t event, uint16_t old_idx, uint16_t new_idx)
{
    return (uint16_t)(new_idx - event - 1) < (uint16_t)(new_idx - old_idx);
}

/*
 * Checks alignment, size and memory of the rings and takes the queue into use. start_idx is where
 * both indices stand: 0 but for a device that took over a running queue. False: the rings are not
 * in the driver's memory, the queue stays off.
 */
bool strict_queue_enable(struct strict_queue *q, uint16_t start_idx);

/* Forgets everything. The driver's memory is not touched. */
void strict_queue_disable(struct strict_queue *q);

/*
 * Looks at the available ring: checks its flags and index, walks and checks each chain that is new.
 * Returns how many were. now_ns stamps them.
 */
unsigned strict_queue_look(struct strict_queue *q, uint64_t now_ns);

/* The n-th of the chains that the device owns, in order of exposure; taken off that order. */
struct strict_chain *strict_queue_take(struct strict_queue *q, uint32_t nth);

/* Puts a chain that was taken back in front. */
void strict_queue_untake(struct strict_queue *q, struct strict_chain *chain);

/* Writes a used element for the chain; checks that its descriptors are unchanged. Not published. */
void strict_queue_use(struct strict_queue *q, struct strict_chain *chain, uint32_t len_bytes);

/* Writes any used element at all: for hostile devices. */
void strict_queue_use_raw(struct strict_queue *q, uint32_t id, uint32_t len_bytes);

/* Publishes the used index, full barrier. True: the driver asked for an interrupt for it. */
bool strict_queue_publish(struct strict_queue *q);

/* Asks for kicks from here on, full barrier, looks again: returns what strict_queue_look does. */
unsigned strict_queue_notify_on(struct strict_queue *q, uint64_t now_ns);

/* Asks for none. */
void strict_queue_notify_off(struct strict_queue *q);

/* avail_event of the device's own choice, on a queue with event index. */
void strict_queue_set_event(struct strict_queue *q, uint16_t event);

/* The driver kicked. */
void strict_queue_kicked(struct strict_queue *q);

/* The driver had every chance to kick and did not: a violation if it owed one. */
void strict_queue_kick_overdue(struct strict_queue *q, const char *when);

#endif
