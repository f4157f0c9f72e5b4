/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/device/interleave.h"

#include <stdlib.h>
#include <string.h>

#include "tests/device/seams.h"

/* Sides: the driver, then the device's. */
#define DRIVER       0u
#define STORE_BUFFER (INTERLEAVE_DEVICES + 1u)
#define NOBODY       (INTERLEAVE_DEVICES + 2u)

struct choice {
    uint8_t taken, n;
};

struct buffered_store {
    volatile void *addr;
    unsigned bytes;
    uint64_t value;
};

static struct {
    const struct interleave_options *opt;
    struct interleave_result result;
    struct choice path[INTERLEAVE_MAX_CHOICES];
    unsigned depth, at;
    unsigned preemptions;
    unsigned turns;
    bool waiting; /* the driver halts */
    bool over;    /* lost or endless: the driver runs on alone to the end of its call */
    struct buffered_store buffer[INTERLEAVE_MAX_STORES];
    unsigned n_buffered;
    const volatile void *last_store;
    bool look_is_recheck; /* nothing but a barrier came since interrupts were asked for */
    uint16_t seen_used_idx;
} il;

/* ---- choices ---- */

/* One of n: as in the run before up to where that one is to be left, then the first. */
static unsigned choose(unsigned n)
{
    if (n == 1) {
        return 0;
    }
    if (il.at == il.depth) {
        if (il.depth == INTERLEAVE_MAX_CHOICES) {
            abort();
        }
        il.path[il.depth++] = (struct choice){0, (uint8_t)n};
    }
    if (il.path[il.at].n != n) {
        abort(); /* the run is not the same as the last one */
    }
    return il.path[il.at++].taken;
}

/* The next schedule; false: there is none. */
static bool advance(void)
{
    while (il.depth != 0 && il.path[il.depth - 1].taken + 1 == il.path[il.depth - 1].n) {
        il.depth--;
    }
    if (il.depth == 0) {
        return false;
    }
    il.path[il.depth - 1].taken++;
    return true;
}

/* ---- the store buffer: stores become visible in order, late ---- */

static void drain_one(void)
{
    struct buffered_store *first = &il.buffer[0];
    memcpy((void *)(uintptr_t)first->addr, &first->value, first->bytes);
    memmove(first, first + 1, --il.n_buffered * sizeof(*first));
}

static void drain_all(void)
{
    while (il.n_buffered != 0) {
        drain_one();
    }
}

/* ---- turns ---- */

static bool can(unsigned side)
{
    if (side == DRIVER) {
        return !il.waiting || il.opt->interrupted(il.opt->ctx);
    }
    const struct interleave_device *device = &il.opt->device[side - 1];
    return device->ctx != NULL && device->can(device->ctx);
}

/* Who goes on after `side`, or NOBODY. The store buffer may shrink on the way. */
static unsigned next_side(unsigned side)
{
    for (;;) {
        unsigned options[INTERLEAVE_DEVICES + 2], n = 0;
        bool goes_on = can(side);
        bool may_leave = !goes_on || il.preemptions < il.opt->preemptions;

        if (goes_on) {
            options[n++] = side;
        }
        for (unsigned other = DRIVER; may_leave && other <= INTERLEAVE_DEVICES; other++) {
            if (other != side && can(other)) {
                options[n++] = other;
            }
        }
        if (may_leave && il.n_buffered != 0) {
            options[n++] = STORE_BUFFER;
        }
        if (n == 0) {
            return NOBODY;
        }
        unsigned chosen = choose(n);
        il.preemptions += goes_on && chosen != 0;
        if (options[chosen] != STORE_BUFFER) {
            return options[chosen];
        }
        drain_one();
    }
}

/* The others' turns until it is the driver's. False: it never will be. */
static bool others(void)
{
    unsigned side = DRIVER;

    while (!il.over) {
        side = next_side(side);
        if (side == DRIVER || side == NOBODY) {
            return side == DRIVER;
        }
        if (++il.turns > INTERLEAVE_MAX_TURNS) {
            il.over = true;
            il.result.endless++;
        }
        il.opt->device[side - 1].turn(il.opt->device[side - 1].ctx);
    }
    return false;
}

/* Before each access of the driver. */
void interleave_turn(void)
{
    if (++il.turns > INTERLEAVE_MAX_TURNS && !il.over) {
        il.over = true;
        il.result.endless++;
    }
    (void)others();
}

bool interleave_idle(void)
{
    il.waiting = true;
    bool woken = others();
    il.waiting = false;
    if (!woken && !il.over) {
        il.over = true;
        il.result.lost++;
    }
    return woken;
}

bool interleave_over(void)
{
    return il.over;
}

/* ---- the driver's accesses ---- */

static uint64_t on_load(void *ctx, const volatile void *addr, unsigned bytes)
{
    uint64_t value = 0;

    (void)ctx;
    interleave_turn();
    memcpy(&value, (const void *)(uintptr_t)addr, bytes);
    for (unsigned i = 0; i < il.n_buffered; i++) {
        if (il.buffer[i].addr == addr) {
            value = il.buffer[i].value; /* the newest of its own stores */
        }
    }
    if (addr == il.opt->used_idx) {
        if (il.look_is_recheck && il.opt->without == INTERLEAVE_WITHOUT_RECHECK) {
            value = il.seen_used_idx;
        }
        il.seen_used_idx = (uint16_t)value;
    }
    il.look_is_recheck = false;
    return value;
}

/* Interrupts are asked for: the flag is taken away, or the event comes near. */
static bool asks_for_interrupts(const volatile void *addr, uint64_t value)
{
    return addr == il.opt->arm_word &&
           (il.opt->event_idx ? (uint16_t)(value - il.seen_used_idx + 0x4000) < 0x8000
                              : value == 0);
}

static void on_store(void *ctx, volatile void *addr, unsigned bytes, uint64_t value)
{
    (void)ctx;
    interleave_turn();
    if (il.n_buffered == il.opt->stores && il.n_buffered != 0) {
        drain_one();
    }
    if (il.opt->stores == 0 || il.over) {
        memcpy((void *)(uintptr_t)addr, &value, bytes);
    } else {
        il.buffer[il.n_buffered++] = (struct buffered_store){addr, bytes, value};
    }
    il.last_store = addr;
    il.look_is_recheck = asks_for_interrupts(addr, value);
}

static void on_barrier(void *ctx, bool full)
{
    (void)ctx;
    if (!full ||
        (il.opt->without == INTERLEAVE_WITHOUT_KICK_BARRIER &&
         il.last_store == il.opt->avail_idx) ||
        (il.opt->without == INTERLEAVE_WITHOUT_ARM_BARRIER && il.last_store == il.opt->arm_word)) {
        return;
    }
    drain_all();
}

/* A register is written after all that was stored before. */
static void on_mmio_write(void *ctx, uint64_t phys, unsigned bytes, uint32_t value)
{
    (void)ctx;
    (void)bytes;
    interleave_turn();
    drain_all();
    il.opt->kick(il.opt->ctx, phys, value);
}

/* ---- all schedules ---- */

static void one_schedule(void)
{
    il.at = il.preemptions = il.turns = il.n_buffered = 0;
    il.over = il.waiting = il.look_is_recheck = false;
    il.last_store = NULL;
    il.seen_used_idx = *il.opt->used_idx;
    bool right = il.opt->run(il.opt->ctx);
    drain_all();
    il.result.wrong += !right && !il.over;
    il.result.schedules++;
    il.result.turns += il.turns;
}

struct interleave_result interleave_explore(const struct interleave_options *options)
{
    const struct interleave_result *result = &il.result;
    bool more = true;

    memset(&il, 0, sizeof(il));
    il.opt = options;
    if (options->stores > INTERLEAVE_MAX_STORES) {
        abort();
    }
    seam_hook(&(struct seam_hooks){
        .load = on_load, .store = on_store, .barrier = on_barrier, .mmio_write = on_mmio_write});
    while (more && result->lost + result->endless + result->wrong == 0 &&
           (options->max_schedules == 0 || result->schedules < options->max_schedules)) {
        one_schedule();
        more = advance();
    }
    il.result.complete = !more;
    seam_hook(&(struct seam_hooks){0});
    return il.result;
}
