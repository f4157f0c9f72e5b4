/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Two threads that sleep until the other one rings: what an interrupt line and a doorbell are
 * between a driver and a device. Who is rung for nothing is not told from who is rung for work.
 */
#ifndef SLUICE_TESTS_BELL_H
#define SLUICE_TESTS_BELL_H

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

/* One side's sleep. */
struct bell {
    uint32_t rung; /* what a sleeper looks at */
    uint32_t seen; /* by the sleeper, before it blocked */
    bool blocked;
    sem_t sem;
};

void bell_init(struct bell *bell);
void bell_ring(struct bell *bell);

/* How often it was rung so far: to be read before the last look for work. */
static inline uint32_t bell_rung(const struct bell *bell)
{
    return __atomic_load_n(&bell->rung, __ATOMIC_ACQUIRE);
}

/*
 * Sleeps until it was rung more often than `seen`. False: nobody will ring. Told by the other
 * sleeper, who alone could, and not by the time, which a busy machine may take: both sleep, and
 * neither bell was rung since. Without `other` it sleeps for as long as it takes.
 */
bool bell_wait(struct bell *bell, uint32_t seen, const struct bell *other);

#endif
