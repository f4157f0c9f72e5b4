/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Every order in which driver and device can meet, up to a number of preemptions.
 *
 *     driver (its own code)   --- store buffer --- memory ---   device queues (machines of one
 *     a turn: one shared access      depth n                    shared access a turn)
 *
 * A schedule is the list of choices made where more than one side could go on; it is run from the
 * start, and the next one differs in the last choice that has an alternative left. Leaving a side
 * that could go on costs one preemption, and so does a store that leaves the buffer early. A side
 * that waits, and the driver only waits in interleave_idle, is left for nothing. When all wait and
 * the buffer is empty, whatever was still to come is lost: a lost wake-up.
 *
 * The device is written as machines, so that the driver needs no second stack beside it.
 */
#ifndef SLUICE_TESTS_INTERLEAVE_H
#define SLUICE_TESTS_INTERLEAVE_H

#include <stdbool.h>
#include <stdint.h>

#define INTERLEAVE_DEVICES     2u
#define INTERLEAVE_MAX_STORES  4u
#define INTERLEAVE_MAX_CHOICES 4096u
/* A run with more turns than this makes no progress. */
#define INTERLEAVE_MAX_TURNS 4000u

/* One thing that the driver must do is taken out, on one queue. */
enum interleave_without {
    INTERLEAVE_COMPLETE,
    INTERLEAVE_WITHOUT_KICK_BARRIER, /* between the available index and the look at the event */
    INTERLEAVE_WITHOUT_ARM_BARRIER,  /* between the used event and the look at the used index */
    INTERLEAVE_WITHOUT_RECHECK,      /* the look at the used index after arming finds what the last
                                        look had found */
};

/* A side of the device: takes one turn when it can. */
struct interleave_device {
    bool (*can)(void *ctx);
    void (*turn)(void *ctx);
    void *ctx; /* NULL: there is no such side */
};

struct interleave_options {
    unsigned preemptions;
    unsigned stores; /* depth of the store buffer, 0: stores reach memory at once */
    enum interleave_without without;
    /* The words of the queue that `without` is about. */
    const volatile uint16_t *avail_idx, *arm_word, *used_idx;
    bool event_idx;
    struct interleave_device device[INTERLEAVE_DEVICES];
    bool (*interrupted)(void *ctx); /* ends the driver's wait */
    void (*kick)(void *ctx, uint64_t phys, uint32_t value);
    /* From a fresh start to the end; false: something is wrong, and has been said. */
    bool (*run)(void *ctx);
    void *ctx;
    uint64_t max_schedules; /* 0: all of them */
};

struct interleave_result {
    uint64_t schedules, turns;
    uint64_t lost;    /* schedules that ended with everyone waiting */
    uint64_t endless; /* and that did not end */
    uint64_t wrong;   /* whose run said so */
    bool complete;    /* all schedules within the bounds were run */
};

/* Explores until the first schedule that goes wrong, or the end. */
struct interleave_result interleave_explore(const struct interleave_options *options);

/* The driver halts until an interrupt. False: it never comes, or the schedule is over; the run must
 * return. */
bool interleave_idle(void);

/* Before the driver looks at what only interrupts change: no shared access, and the device may come
 * first all the same. */
void interleave_turn(void);

/* The schedule is over: a run that does not halt must return too. */
bool interleave_over(void);

#endif
