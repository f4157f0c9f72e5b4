/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/device/bell.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK_AFTER 4000u /* looks */
#define LOOK_MS     20    /* how often a sleeper looks whether anybody is awake */
#define GIVE_UP_MS  10000 /* one who is awake and never rings is as bad */

void bell_init(struct bell *bell)
{
    memset(bell, 0, sizeof(*bell));
    if (sem_init(&bell->sem, 0, 0) != 0) {
        abort();
    }
}

void bell_ring(struct bell *bell)
{
    __atomic_fetch_add(&bell->rung, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&bell->blocked, __ATOMIC_SEQ_CST)) {
        sem_post(&bell->sem);
    }
}

static bool asleep(const struct bell *bell)
{
    return __atomic_load_n(&bell->blocked, __ATOMIC_SEQ_CST) &&
           __atomic_load_n(&bell->rung, __ATOMIC_SEQ_CST) ==
               __atomic_load_n(&bell->seen, __ATOMIC_SEQ_CST);
}

/* True: the time of one look is over. */
static bool doze(struct bell *bell)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_MS * 1000000l;
    until.tv_sec += until.tv_nsec / 1000000000l;
    until.tv_nsec %= 1000000000l;
    return sem_timedwait(&bell->sem, &until) != 0 && errno == ETIMEDOUT;
}

bool bell_wait(struct bell *bell, uint32_t seen, const struct bell *other)
{
    for (unsigned i = 0; i < BLOCK_AFTER; i++) {
        if (bell_rung(bell) != seen) {
            return true;
        }
    }
    __atomic_store_n(&bell->seen, seen, __ATOMIC_SEQ_CST);
    __atomic_store_n(&bell->blocked, true, __ATOMIC_SEQ_CST);
    for (int ms = 0; __atomic_load_n(&bell->rung, __ATOMIC_SEQ_CST) == seen; ms += LOOK_MS) {
        if (doze(bell) && other != NULL && (asleep(other) || ms >= GIVE_UP_MS) &&
            __atomic_load_n(&bell->rung, __ATOMIC_SEQ_CST) == seen) {
            return false;
        }
    }
    __atomic_store_n(&bell->blocked, false, __ATOMIC_SEQ_CST);
    return true;
}
