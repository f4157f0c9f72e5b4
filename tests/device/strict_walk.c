/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Looking at the available ring, and walking the chains in it with every check that a descriptor
 * admits. VIRTIO 1.x sections 2.7.4 to 2.7.6.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/device/strict_ring.h"

#define DESC_F_NEXT     1u
#define DESC_F_WRITE    2u
#define DESC_F_INDIRECT 4u

static uint16_t load16(const uint16_t *addr)
{
    return __atomic_load_n(addr, __ATOMIC_ACQUIRE);
}

static void *grown(void *array, uint32_t *cap, uint32_t n, size_t element_bytes)
{
    if (n < *cap) {
        return array;
    }
    *cap = *cap == 0 ? 4 : 2 * *cap;
    void *bigger = realloc(array, *cap * element_bytes);
    if (bigger == NULL) {
        abort();
    }
    return bigger;
}

static void freeze(struct strict_chain *c, const struct strict_desc *where, struct strict_desc was)
{
    c->frozen = grown(c->frozen, &c->frozen_cap, c->n_frozen, sizeof(*c->frozen));
    c->frozen[c->n_frozen++] = (struct strict_frozen){.where = where, .was = was};
}

/* A descriptor that names memory: order, address and length. False: unusable. */
static bool take_segment(struct strict_queue *q, struct strict_chain *c, struct strict_desc d)
{
    struct strict_report *r = q->report;
    const bool writable = (d.flags & DESC_F_WRITE) != 0;
    bool ok = STRICT_CHECK(r, SPL_DRV_FRM_01, writable || c->writable_bytes == 0,
                           "queue %u head %u: readable descriptor after a writable one", q->index,
                           c->head);
    if (q->direction == STRICT_DEVICE_READS) {
        ok &= STRICT_CHECK(r, NET_DRV_TX_50, !writable,
                           "queue %u head %u: writable descriptor on a transmit queue", q->index,
                           c->head);
    } else if (q->direction == STRICT_DEVICE_WRITES) {
        ok &= STRICT_CHECK(r, NET_DRV_TX_50, writable,
                           "queue %u head %u: readable descriptor on a receive queue", q->index,
                           c->head);
    }
    uint8_t *ptr = q->memory.at(q->memory.ctx, d.addr, d.len);
    ok &= STRICT_CHECK(r, CORE_DRV_RFB_05, ptr != NULL,
                       "queue %u head %u: %u bytes at %#llx are not memory of the driver", q->index,
                       c->head, d.len, (unsigned long long)d.addr);
    c->segs = grown(c->segs, &c->segs_cap, c->n_segs, sizeof(*c->segs));
    c->segs[c->n_segs++] =
        (struct strict_seg){.ptr = ptr, .len_bytes = d.len, .writable = writable};
    *(writable ? &c->writable_bytes : &c->readable_bytes) += d.len;
    return ok;
}

static bool walk_indirect(struct strict_queue *q, struct strict_chain *c, struct strict_desc outer)
{
    struct strict_report *r = q->report;
    const uint32_t n = outer.len / sizeof(struct strict_desc);
    c->indirect = true;
    bool ok =
        STRICT_CHECK(r, SPL_DRV_IND_01, q->indirect,
                     "queue %u head %u: indirect descriptor was not negotiated", q->index, c->head);
    ok &= STRICT_CHECK(r, SPL_DRV_IND_03, n > 0 && n <= q->size_descs,
                       "queue %u head %u: %u entries in a table, queue of %u", q->index, c->head, n,
                       q->size_descs);
    const uint8_t *bytes = q->memory.at(q->memory.ctx, outer.addr, outer.len);
    ok &= STRICT_CHECK(r, CORE_DRV_RFB_05, bytes != NULL && outer.addr % 8 == 0,
                       "queue %u head %u: indirect table at %#llx", q->index, c->head,
                       (unsigned long long)outer.addr);
    if (!ok) {
        return false;
    }
    const struct strict_desc *table = (const struct strict_desc *)(const void *)bytes;
    uint32_t at = 0;
    for (uint32_t steps = 0;; steps++) {
        if (!STRICT_CHECK(r, SPL_DRV_DSC_02, steps < n, "queue %u head %u: indirect cycle",
                          q->index, c->head)) {
            return false;
        }
        struct strict_desc d;
        memcpy(&d, &table[at], sizeof(d));
        freeze(c, &table[at], d);
        if (!STRICT_CHECK(r, SPL_DRV_IND_02, (d.flags & DESC_F_INDIRECT) == 0,
                          "queue %u head %u: entry %u of a table is indirect", q->index, c->head,
                          at)) {
            return false;
        }
        ok &= take_segment(q, c, d);
        if ((d.flags & DESC_F_NEXT) == 0) {
            return ok;
        }
        at = d.next;
        if (!STRICT_CHECK(r, SPL_DRV_GEN_02, at < n, "queue %u head %u: entry %u of %u", q->index,
                          c->head, at, n)) {
            return false;
        }
    }
}

/* One step in the table: ownership first, a chain may not run through what is in flight. */
static bool claim(struct strict_queue *q, struct strict_chain *c, uint32_t at)
{
    struct strict_report *r = q->report;
    if (!STRICT_CHECK(r, SPL_DRV_DSC_02, q->owner[at] != c->head + 1u,
                      "queue %u head %u: cycle at %u", q->index, c->head, at) ||
        !STRICT_CHECK(r, SPL_DRV_GEN_02, q->owner[at] == 0,
                      "queue %u head %u: descriptor %u is in flight with head %u", q->index,
                      c->head, at, q->owner[at] - 1u)) {
        return false;
    }
    q->owner[at] = (uint16_t)(c->head + 1u);
    c->n_main++;
    q->owned_descs++;
    STRICT_CHECK(r, SPL_DRV_GEN_03, q->owned_descs <= q->size_descs,
                 "queue %u: %u descriptors in flight, size %u", q->index, q->owned_descs,
                 q->size_descs);
    return true;
}

static bool walk(struct strict_queue *q, struct strict_chain *c)
{
    struct strict_report *r = q->report;
    uint32_t at = c->head;
    bool ok = true; /* a segment that is wrong does not end the walk: the rest is judged too */
    for (;;) {
        if (!claim(q, c, at)) {
            return false;
        }
        struct strict_desc d;
        memcpy(&d, &q->desc[at], sizeof(d));
        freeze(c, &q->desc[at], d);
        if ((d.flags & DESC_F_INDIRECT) != 0) {
            return STRICT_CHECK(r, SPL_DRV_IND_04, (d.flags & DESC_F_NEXT) == 0,
                                "queue %u head %u: flags %#x", q->index, c->head, d.flags) &&
                   walk_indirect(q, c, d) && ok;
        }
        ok &= take_segment(q, c, d);
        if ((d.flags & DESC_F_NEXT) == 0) {
            return ok;
        }
        at = d.next;
        if (!STRICT_CHECK(r, SPL_DRV_GEN_02, at < q->size_descs, "queue %u head %u: next %u of %u",
                          q->index, c->head, at, q->size_descs)) {
            return false;
        }
    }
}

static void expose(struct strict_queue *q, uint16_t head, uint64_t now_ns)
{
    struct strict_report *r = q->report;
    if (!STRICT_CHECK(r, SPL_DRV_GEN_02, head < q->size_descs, "queue %u: head %u of %u", q->index,
                      head, q->size_descs)) {
        return;
    }
    struct strict_chain *c = &q->chains[head];
    if (!STRICT_CHECK(r, SPL_DRV_GEN_02, !c->in_flight && q->owner[head] == 0,
                      "queue %u: head %u is in flight already", q->index, head)) {
        return;
    }
    c->head = head;
    c->in_flight = true;
    c->indirect = false;
    c->n_segs = c->n_frozen = c->n_main = 0;
    c->readable_bytes = c->writable_bytes = 0;
    c->exposed_ns = now_ns;
    c->malformed = !walk(q, c);
    STRICT_CHECK(r, SPL_DRV_IND_03, c->n_segs <= q->size_descs,
                 "queue %u head %u: %u descriptors, queue of %u", q->index, head, c->n_segs,
                 q->size_descs);
    STRICT_CHECK(r, SPL_DRV_DSC_01, c->readable_bytes + c->writable_bytes <= 1ull << 32,
                 "queue %u head %u: %llu bytes", q->index, head,
                 (unsigned long long)(c->readable_bytes + c->writable_bytes));
    STRICT_CHECK(r, SPL_DRV_FRM_02, q->max_chain_descs == 0 || c->n_segs <= q->max_chain_descs,
                 "queue %u head %u: %u descriptors for one buffer", q->index, head, c->n_segs);
    q->fifo[(q->fifo_head + q->n_pending) & (q->size_descs - 1)] = head;
    q->n_pending++;
    q->exposed++;
}

static void check_avail_flags(struct strict_queue *q)
{
    const uint16_t flags = load16(strict_avail_flags(q));
    if (q->event_idx) {
        STRICT_CHECK(q->report, SPL_DRV_UNS_03, flags == 0, "queue %u: available flags %#x",
                     q->index, flags);
    } else {
        STRICT_CHECK(q->report, SPL_DRV_UNS_01, flags <= 1, "queue %u: available flags %#x",
                     q->index, flags);
    }
}

unsigned strict_queue_look(struct strict_queue *q, uint64_t now_ns)
{
    struct strict_report *r = q->report;
    check_avail_flags(q);
    const uint16_t idx = load16(strict_avail_idx(q));
    const uint16_t fresh = (uint16_t)(idx - q->seen_idx);
    if (fresh == 0) {
        return 0;
    }
    /* Backwards shows as a step of nearly 65536; a queue of 32768 leaves them apart still. */
    if (!STRICT_CHECK(r, SPL_DRV_AVL_01, fresh <= q->size_descs,
                      "queue %u: available index from %u to %u", q->index, q->seen_idx, idx)) {
        return 0;
    }
    STRICT_CHECK(r, SPL_DRV_GEN_03, q->n_pending + fresh <= q->size_descs,
                 "queue %u: %u buffers in flight, %u more, size %u", q->index, q->n_pending, fresh,
                 q->size_descs);
    for (uint16_t i = 0; i < fresh; i++) {
        const uint32_t slot = (uint16_t)(q->seen_idx + i) & (q->size_descs - 1);
        expose(q, load16(q->avail + 2 + slot), now_ns);
    }
    const uint16_t old = q->seen_idx;
    q->seen_idx = idx;
    const bool wanted = q->event_idx ? strict_event_covered(q->event, old, idx) : q->notify_on;
    if (wanted) {
        q->kick_justified = true;
        if (!q->kick_owed) {
            q->kick_owed = true;
            q->kick_owed_ns = now_ns;
        }
    }
    return fresh;
}
