/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The order of the driver's accesses to shared memory, as the clauses ask for it. Each rule of two
 * accesses and a barrier between them is a flag that the first raises, the barrier lowers, and the
 * second must not find up. So a missing barrier is seen on a machine whose memory would hide it.
 */
#include <string.h>

#include "tests/device/strict_host.h"

#define AVAIL_F_NO_INTERRUPT 1u

static bool within(const volatile void *addr, const void *from, size_t bytes)
{
    const uintptr_t at = (uintptr_t)addr;
    return at >= (uintptr_t)from && at - (uintptr_t)from < bytes;
}

static bool live(const struct strict_host *host, unsigned i)
{
    return host->dev.queue[i].enabled;
}

/* Another value where the driver has just looked: whoever looks twice does not see the same. */
static void change_what_was_read(struct strict_host *host)
{
    struct strict_device *dev = &host->dev;
    const volatile void *addr = host->watch.loaded;
    for (unsigned i = 0; i < 2; i++) {
        const struct strict_queue *q = &dev->queue[i];
        if (live(host, i) && within(addr, q->used + 2, 8 * (size_t)q->size_descs)) {
            const uint64_t junk = strict_random(dev);
            memcpy((void *)(uintptr_t)addr, &junk, host->watch.loaded_bytes);
            dev->faults_done++;
            return;
        }
    }
    /* Else a header in a receive buffer, or a register of the rings that must not be touched. */
    for (unsigned i = 0; i < 2; i++) {
        const struct strict_queue *q = &dev->queue[i];
        if (live(host, i) && (within(addr, q->used, 6 + 8 * (size_t)q->size_descs) ||
                              within(addr, q->avail, 6 + 2 * (size_t)q->size_descs) ||
                              within(addr, q->desc, 16 * (size_t)q->size_descs))) {
            return;
        }
    }
    const uint64_t junk = strict_random(dev);
    memcpy((void *)(uintptr_t)addr, &junk, host->watch.loaded_bytes);
    dev->faults_done++;
}

static void after_idx_store(struct strict_host *host, unsigned i)
{
    struct strict_queue *q = &host->dev.queue[i];
    const uint16_t now = *strict_avail_idx(q);
    STRICT_CHECK(&host->dev.report, SPL_DRV_GEN_01,
                 (uint16_t)(now - host->watch.q[i].stored_idx) == host->watch.q[i].ring_stores,
                 "queue %u: index from %u to %u after %u entries", i, host->watch.q[i].stored_idx,
                 now, host->watch.q[i].ring_stores);
    host->watch.q[i].ring_stores = 0;
    if ((host->dev.status & 4) != 0) {
        strict_queue_look(q, host->now_ns);
    }
}

static void after_arm_store(struct strict_host *host, unsigned i)
{
    const struct strict_queue *q = &host->dev.queue[i];
    host->watch.q[i].unfenced_arm =
        q->event_idx
            ? (uint16_t)(*strict_used_event(q) - host->dev.driver_saw_used[i]) < q->size_descs
            : (*strict_avail_flags(q) & AVAIL_F_NO_INTERRUPT) == 0;
    if (!q->event_idx) {
        STRICT_CHECK(&host->dev.report, SPL_DRV_UNS_01, *strict_avail_flags(q) <= 1,
                     "queue %u: flags %u", i, *strict_avail_flags(q));
    } else {
        STRICT_CHECK(&host->dev.report, SPL_DRV_UNS_03, *strict_avail_flags(q) == 0,
                     "queue %u: flags %u", i, *strict_avail_flags(q));
    }
}

void strict_watch_settle(struct strict_host *host)
{
    struct strict_watch *w = &host->watch;
    const volatile void *stored = w->stored;
    w->stored = NULL;
    for (unsigned i = 0; i < 2 && stored != NULL; i++) {
        struct strict_queue *q = &host->dev.queue[i];
        if (!strict_near(q, stored)) {
            continue;
        }
        if (stored == strict_avail_idx(q)) {
            after_idx_store(host, i);
        } else if (stored == strict_used_event(q) || stored == strict_avail_flags(q)) {
            after_arm_store(host, i);
        } else if (within(stored, q->used, 6 + 8 * (size_t)q->size_descs)) {
            /* The used ring is the device's alone. */
            STRICT_CHECK(&host->dev.report, CORE_DRV_CLN_01, false,
                         "queue %u: the driver wrote into the used ring", i);
        }
    }
    if (w->loaded != NULL && host->dev.fault.reread) {
        change_what_was_read(host);
    }
    if (w->loaded != NULL) {
        for (unsigned i = 0; i < 2; i++) {
            struct strict_queue *q = &host->dev.queue[i];
            if (strict_near(q, w->loaded) && w->loaded == strict_used_idx(q)) {
                host->dev.driver_saw_used[i] = host->dev.queue[i].used_idx;
                host->dev.interrupt_sent[i] = false;
            }
        }
    }
    w->loaded = NULL;
}

static void before_store(struct strict_host *host, unsigned i, const volatile void *addr)
{
    struct strict_queue *q = &host->dev.queue[i];
    if (addr == strict_avail_idx(q)) {
        STRICT_CHECK(&host->dev.report, SPL_DRV_IDX_01, !host->watch.q[i].unordered_stores,
                     "queue %u: no barrier between the entries and the index", i);
        host->watch.q[i].unfenced_idx = true;
        host->watch.q[i].stored_idx = *strict_avail_idx(q);
    } else if (within(addr, q->avail + 2, 2 * (size_t)q->size_descs)) {
        host->watch.q[i].ring_stores++;
        host->watch.q[i].unordered_stores = true;
    } else if (within(addr, q->desc, 16 * (size_t)q->size_descs)) {
        host->watch.q[i].unordered_stores = true;
    }
}

static void before_load(struct strict_host *host, unsigned i, const volatile void *addr)
{
    struct strict_report *r = &host->dev.report;
    struct strict_queue *q = &host->dev.queue[i];
    if (addr == strict_used_idx(q)) {
        STRICT_CHECK(r, SPL_DRV_GEN_04, !host->watch.q[i].unfenced_arm,
                     "queue %u: no full barrier between asking for interrupts and looking again",
                     i);
        host->watch.q[i].unordered_used_idx = true;
    } else if (addr == strict_used_flags(q) || addr == strict_avail_event(q)) {
        STRICT_CHECK(r, SPL_DRV_NTY_01, !host->watch.q[i].unfenced_idx,
                     "queue %u: no full barrier between the index and the look at %s", i,
                     addr == strict_used_flags(q) ? "flags" : "avail_event");
    } else if (within(addr, q->used + 2, 8 * (size_t)q->size_descs)) {
        STRICT_CHECK(r, SPL_DRV_GEN_05, !host->watch.q[i].unordered_used_idx,
                     "queue %u: no barrier between the used index and its entry", i);
        const size_t at = (uintptr_t)addr - (uintptr_t)(q->used + 2);
        if (at % 8 == 0) {
            const uint16_t next = host->dev.driver_next_used[i]++;
            STRICT_CHECK(r, SPL_DRV_GEN_07,
                         at / 8 == (next & (q->size_descs - 1)) &&
                             (uint16_t)(host->dev.driver_saw_used[i] - next - 1) < q->size_descs,
                         "queue %u: entry %zu is read as number %u, index seen %u", i, at / 8, next,
                         host->dev.driver_saw_used[i]);
        }
    }
}

void strict_watch_shared(struct strict_host *host, const volatile void *addr, unsigned bytes,
                         bool is_store)
{
    strict_watch_settle(host);
    if (host->watch.eager != 0 && strict_random(&host->dev) % host->watch.eager == 0) {
        strict_device_step(&host->dev, host->now_ns);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (strict_near(&host->dev.queue[i], addr)) {
            (is_store ? before_store : before_load)(host, i, addr);
        }
    }
    *(is_store ? &host->watch.stored : &host->watch.loaded) = addr;
    host->watch.loaded_bytes = bytes;
}

void strict_watch_barrier(struct strict_host *host, bool full)
{
    strict_watch_settle(host);
    for (unsigned i = 0; i < 2; i++) {
        host->watch.q[i].unordered_stores = false;
        host->watch.q[i].unordered_used_idx = false;
        if (full) {
            host->watch.q[i].unfenced_idx = false;
            host->watch.q[i].unfenced_arm = false;
        }
    }
    if (host->watch.eager != 0 && strict_random(&host->dev) % host->watch.eager == 0) {
        strict_device_step(&host->dev, host->now_ns);
    }
}
