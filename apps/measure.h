/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The timed part of a test: warm-up, rows, the end of sending, and the watchdog over all of it.
 */
#ifndef SLUICE_APPS_MEASURE_H
#define SLUICE_APPS_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "apps/outcome.h"

/* Silence of everything that should move is a failure after this long: a stall of several
 * retransmission timeouts is survived, and a dead path is told within 10 s. */
#define MEASURE_STALL_NS (8 * CLOCK_NS_PER_S)

struct measure {
    /* Set by the owner. */
    struct outcome *outcome;
    struct stream *streams;
    unsigned n_streams;
    void (*over)(void *arg);    /* sending has ended */
    void (*stalled)(void *arg); /* nothing moves */
    void *arg;

    /* Outcome. */
    uint64_t start_ns, end_ns;                 /* of the measured phase */
    struct tally base[2 * IPERF3_MAX_STREAMS]; /* at its start */

    bool warming_up;
    bool row_open;
    uint64_t begun_ns;
    uint64_t row_start_ns;
    struct tally row_forward, row_back;
    uint64_t row_stops;
    uint64_t idle_at_start_ns;
    uint64_t last_progress, last_progress_ns; /* by net_awake_ns() */
    struct net_timer row, phase, watchdog;
};

void measure_start(struct measure *measure, uint64_t now_ns);
/* Before the end: nothing fires any more. The watchdog goes on after the end until this is called.
 */
void measure_cancel(struct measure *measure);
/* Ends the last row, once nothing is on its way any more: what moved after the end of sending is in
 * it, so that the rows add up to the summary. settled_ns: when the last of what the guest sent was
 * taken. */
void measure_close(struct measure *measure, uint64_t settled_ns);

#endif
