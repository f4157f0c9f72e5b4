/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The end of sending, so that nothing is under way when the server is told to stop counting: what
 * was sent has settled and the ring is empty; an echo went the same way and came back, behind
 * everything in every queue; then it stays quiet for a while, in which the receiver's own socket is
 * read empty.
 */
#ifndef SLUICE_APPS_DRAIN_H
#define SLUICE_APPS_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "net/net.h"

struct drain {
    /* Set by the owner. */
    uint32_t ip; /* who is asked for the echo */
    uint64_t quiet_ns;
    uint64_t longest_ns;
    uint64_t (*outstanding)(void *arg); /* what all streams have on their way */
    const char *unit;                   /* of these, for messages */
    bool ring_must_empty; /* false where answers to the other direction keep it busy */
    void (*done)(void *arg);
    void *arg;

    /* Outcome. */
    bool in_flight_zero;
    bool echo_answered;
    uint64_t settled_ns; /* when the ring was empty, on the clock */
    uint64_t waited_ns;  /* from the start to the quiet time */

    struct net_timer timer;
    uint64_t start_ns;
    uint64_t last_outstanding, last_said_ns;
    uint64_t last_progress_ns; /* by net_awake_ns() */
    unsigned echoes;
    bool cancelled;
};

/* done comes when all has settled, or when nothing did for 5 s, or after longest_ns; 3 s more at
 * most for the echo; and the quiet time. */
void drain_start(struct drain *drain, uint64_t now_ns);
void drain_cancel(struct drain *drain);

#endif
