/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Taking a queue into use, using up and publishing, and the two directions of notification.
 */
#include "tests/device/strict_ring.h"

#include <stdlib.h>
#include <string.h>

#define AVAIL_F_NO_INTERRUPT 1u
#define USED_F_NO_NOTIFY     1u

static uint16_t load16(const uint16_t *addr)
{
    return __atomic_load_n(addr, __ATOMIC_ACQUIRE);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the check does not know the builtin */
static void store16(uint16_t *addr, uint16_t value)
{
    __atomic_store_n(addr, value, __ATOMIC_RELEASE);
}

static bool all_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

static bool map_rings(struct strict_queue *q)
{
    struct strict_report *r = q->report;
    const uint64_t n = q->size_descs;
    q->desc = (struct strict_desc *)(void *)q->memory.at(q->memory.ctx, q->desc_addr, 16 * n);
    q->avail = (uint16_t *)(void *)q->memory.at(q->memory.ctx, q->avail_addr, 6 + 2 * n);
    q->used = (uint16_t *)(void *)q->memory.at(q->memory.ctx, q->used_addr, 6 + 8 * n);
    return STRICT_CHECK(r, CORE_DRV_RFB_05, q->desc != NULL && q->avail != NULL && q->used != NULL,
                        "queue %u: rings at %#llx %#llx %#llx are not memory of the driver",
                        q->index, (unsigned long long)q->desc_addr,
                        (unsigned long long)q->avail_addr, (unsigned long long)q->used_addr);
}

static void span_rings(struct strict_queue *q)
{
    const size_t n = q->size_descs;
    const uintptr_t from[] = {(uintptr_t)q->desc, (uintptr_t)q->avail, (uintptr_t)q->used};
    const uintptr_t to[] = {from[0] + 16 * n, from[1] + 6 + 2 * n, from[2] + 6 + 8 * n};
    uintptr_t end = 0;
    q->span_at = UINTPTR_MAX;
    for (unsigned i = 0; i < 3; i++) {
        q->span_at = from[i] < q->span_at ? from[i] : q->span_at;
        end = to[i] > end ? to[i] : end;
    }
    q->span_bytes = end - q->span_at;
}

bool strict_queue_enable(struct strict_queue *q, uint16_t start_idx)
{
    struct strict_report *r = q->report;
    const uint32_t n = q->size_descs;
    STRICT_CHECK(r, SPL_DRV_ALN_01, q->desc_addr % 16 == 0, "queue %u: descriptors at %#llx",
                 q->index, (unsigned long long)q->desc_addr);
    STRICT_CHECK(r, SPL_DRV_ALN_02, q->avail_addr % 2 == 0, "queue %u: available ring at %#llx",
                 q->index, (unsigned long long)q->avail_addr);
    STRICT_CHECK(r, SPL_DRV_ALN_03, q->used_addr % 4 == 0, "queue %u: used ring at %#llx", q->index,
                 (unsigned long long)q->used_addr);
    if (n == 0 || n > STRICT_QUEUE_MAX_DESCS || (n & (n - 1)) != 0 || q->desc_addr % 16 != 0 ||
        q->avail_addr % 2 != 0 || q->used_addr % 4 != 0 || !map_rings(q)) {
        return false;
    }
    STRICT_CHECK(r, SPL_DRV_ANS_01, start_idx != 0 || load16(strict_used_flags(q)) == 0,
                 "queue %u: used flags %u when enabled", q->index, load16(strict_used_flags(q)));
    STRICT_CHECK(r, SPL_DRV_GEN_01, (uint16_t)(load16(strict_avail_idx(q)) - start_idx) <= n,
                 "queue %u: available index %u when enabled", q->index,
                 load16(strict_avail_idx(q)));
    /* The used ring is all the device's: what the driver left in it would read as completions. */
    STRICT_CHECK(r, PCI_DRV_GEN_03,
                 start_idx != 0 || all_zero((const uint8_t *)q->used, 6 + 8 * (size_t)n),
                 "queue %u: used ring not zero when enabled", q->index);
    q->chains = calloc(n, sizeof(*q->chains));
    q->owner = calloc(n, sizeof(*q->owner));
    q->fifo = calloc(n, sizeof(*q->fifo));
    if (q->chains == NULL || q->owner == NULL || q->fifo == NULL) {
        abort();
    }
    q->fifo_head = q->n_pending = q->owned_descs = 0;
    q->seen_idx = q->used_idx = q->used_next = start_idx;
    q->signalled_valid = false;
    q->kick_base = start_idx;
    q->kick_justified = q->kick_owed = false;
    q->notify_on = true;
    q->event = load16(strict_avail_event(q));
    span_rings(q);
    q->enabled = true;
    return true;
}

void strict_queue_disable(struct strict_queue *q)
{
    if (q->chains != NULL) {
        for (uint32_t i = 0; i < q->size_descs; i++) {
            free(q->chains[i].segs);
            free(q->chains[i].frozen);
        }
    }
    free(q->chains);
    free(q->owner);
    free(q->fifo);
    q->chains = NULL;
    q->owner = NULL;
    q->fifo = NULL;
    q->enabled = false;
    q->span_bytes = 0;
    q->n_pending = q->owned_descs = 0;
    q->kick_owed = false;
}

struct strict_chain *strict_queue_take(struct strict_queue *q, uint32_t nth)
{
    const uint32_t mask = q->size_descs - 1;
    const uint32_t first = q->fifo_head & mask;
    const uint32_t at = (first + nth) & mask;
    const uint16_t head = q->fifo[at];
    /* Those before it move up by one, so that their order stays. */
    if (at < first) {
        memmove(q->fifo + 1, q->fifo, at * sizeof(*q->fifo));
        q->fifo[0] = q->fifo[mask];
        memmove(q->fifo + first + 1, q->fifo + first, (mask - first) * sizeof(*q->fifo));
    } else {
        memmove(q->fifo + first + 1, q->fifo + first, nth * sizeof(*q->fifo));
    }
    q->fifo_head = (q->fifo_head + 1) & mask;
    q->n_pending--;
    return &q->chains[head];
}

void strict_queue_untake(struct strict_queue *q, struct strict_chain *chain)
{
    const uint32_t mask = q->size_descs - 1;
    q->fifo_head = (q->fifo_head - 1) & mask;
    q->fifo[q->fifo_head] = chain->head;
    q->n_pending++;
}

static void check_frozen(struct strict_queue *q, const struct strict_chain *chain)
{
    for (uint32_t i = 0; i < chain->n_frozen; i++) {
        struct strict_desc now;
        memcpy(&now, chain->frozen[i].where, sizeof(now));
        if (!STRICT_CHECK(q->report, CORE_DRV_CLN_01,
                          memcmp(&now, &chain->frozen[i].was, sizeof(now)) == 0,
                          "queue %u head %u: descriptor %u of the buffer changed while in flight",
                          q->index, chain->head, i)) {
            return;
        }
    }
}

void strict_queue_use_raw(struct strict_queue *q, uint32_t id, uint32_t len_bytes)
{
    const uint32_t slot = q->used_next & (q->size_descs - 1);
    uint32_t *element = (uint32_t *)(void *)(q->used + 2 + (size_t)4 * slot);
    __atomic_store_n(&element[0], id, __ATOMIC_RELAXED);
    __atomic_store_n(&element[1], len_bytes, __ATOMIC_RELAXED);
    q->used_next++;
}

void strict_queue_use(struct strict_queue *q, struct strict_chain *chain, uint32_t len_bytes)
{
    check_frozen(q, chain);
    for (uint32_t i = 0; i < chain->n_frozen; i++) {
        const ptrdiff_t slot = chain->frozen[i].where - q->desc;
        if (slot >= 0 && slot < (ptrdiff_t)q->size_descs && i < chain->n_main) {
            q->owner[slot] = 0;
        }
    }
    q->owned_descs -= chain->n_main;
    chain->in_flight = false;
    q->completed++;
    strict_queue_use_raw(q, chain->head, len_bytes);
}

bool strict_queue_publish(struct strict_queue *q)
{
    const uint16_t old = q->used_idx;
    q->used_idx = q->used_next;
    store16(strict_used_idx(q), q->used_idx);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    bool wanted;
    if (q->event_idx) {
        /* Since the last decision, not since the last publication: a suppressed one may have
         * passed the event already (2.7.10). */
        const uint16_t from = q->signalled_valid ? q->signalled_idx : old;
        wanted = strict_event_covered(load16(strict_used_event(q)), from, q->used_idx);
    } else {
        wanted = (load16(strict_avail_flags(q)) & AVAIL_F_NO_INTERRUPT) == 0;
    }
    q->signalled_idx = q->used_idx;
    q->signalled_valid = true;
    if (old == q->used_idx) {
        return false;
    }
    if (wanted) {
        q->interrupts_wanted++;
    } else {
        q->interrupts_suppressed++;
    }
    return wanted;
}

/*
 * What a kick decision that reads the present event or flag would say about what is exposed. With
 * the event index, a kick for what the device was given and has not used yet is justified too: a
 * safety timer cannot know that the device knows.
 */
static void judge_exposed(struct strict_queue *q)
{
    if (q->event_idx ? strict_event_covered(q->event, q->kick_base, q->seen_idx) ||
                           strict_event_covered(q->event, q->used_idx, q->seen_idx)
                     : q->notify_on) {
        q->kick_justified = true;
    }
}

unsigned strict_queue_notify_on(struct strict_queue *q, uint64_t now_ns)
{
    q->notify_on = true;
    if (q->event_idx) {
        q->event = q->seen_idx;
        store16(strict_avail_event(q), q->event);
    } else {
        store16(strict_used_flags(q), 0);
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    judge_exposed(q);
    const unsigned fresh = strict_queue_look(q, now_ns);
    /* The device has seen all there is, so no kick is owed for it; one may come all the same. */
    q->kick_owed = false;
    return fresh;
}

void strict_queue_notify_off(struct strict_queue *q)
{
    judge_exposed(q);
    q->notify_on = false;
    q->kick_owed = false;
    if (!q->event_idx) {
        store16(strict_used_flags(q), USED_F_NO_NOTIFY);
    }
}

void strict_queue_set_event(struct strict_queue *q, uint16_t event)
{
    judge_exposed(q);
    q->event = event;
    store16(strict_avail_event(q), event);
    judge_exposed(q);
}

void strict_queue_kicked(struct strict_queue *q)
{
    judge_exposed(q);
    q->kicks++;
    q->kick_owed = false;
    if (!q->kick_justified) {
        q->kicks_needless++;
    }
    if (q->exact) {
        const enum strict_clause clause = q->event_idx ? SPL_DRV_ANS_07 : SPL_DRV_ANS_03;
        STRICT_CHECK(q->report, clause, q->kick_justified,
                     "queue %u: kick at index %u, last kick at %u, event %u flags %u", q->index,
                     q->seen_idx, q->kick_base, q->event, load16(strict_used_flags(q)));
    }
    q->kick_justified = false;
    q->kick_base = q->seen_idx;
}

void strict_queue_kick_overdue(struct strict_queue *q, const char *when)
{
    const enum strict_clause clause = q->event_idx ? SPL_DRV_ANS_06 : SPL_DRV_ANS_04;
    if (!STRICT_CHECK(q->report, clause, !q->kick_owed,
                      "queue %u: no kick %s: index %u, last kick at %u, event %u", q->index, when,
                      q->seen_idx, q->kick_base, q->event)) {
        q->lost_kicks++;
        q->kick_owed = false;
    }
}
