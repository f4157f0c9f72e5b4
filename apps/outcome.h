/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a run found, from the parts that measure to the part that reports.
 */
#ifndef SLUICE_APPS_OUTCOME_H
#define SLUICE_APPS_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

#include "apps/blaster.h"
#include "apps/config.h"
#include "boot/panic.h"

#define OUTCOME_REASON_BYTES CONFIG_ERROR_BYTES

/* Rows kept for the JSON line; when they are full, neighbours are joined, so a day fits too. */
#define OUTCOME_MAX_INTERVALS 512u

/* One direction of one stream or of all, as one of its ends saw it. */
struct flow {
    bool known; /* false: that end never said */
    uint64_t ns;
    uint64_t bytes, packets;
    uint64_t lost_packets, duplicates;
    int64_t out_of_order; /* -1: not known */
    uint64_t jitter_ns;
    int64_t retransmits; /* -1: not known */
};

struct stream_outcome {
    unsigned id;
    bool from_guest;
    struct flow sent, received;
};

struct interval {
    uint64_t start_ns, end_ns; /* since the measured phase began; in the warm-up, since it began */
    uint64_t back_end_ns;      /* of the other way: the last row's ends differ */
    bool omitted;
    struct tally forward, back; /* guest to server, and the other way: of this interval alone */
    uint64_t stops;
    uint64_t sending_ns; /* up to the end of sending: what was sent leaves later */
};

/* What the server said it got, summed over the streams that the guest sent; as received, for
 * whoever doubts the arithmetic. */
struct peer_counts {
    uint64_t bytes, packets, errors;
};

/* Datagrams of the whole test, warm-up included, as the counters along the path have them. */
struct totals {
    uint64_t arrived;                 /* of those that the guest sent, at the server */
    uint64_t back_sent, back_arrived; /* server to guest; arrived: each number once */
};

struct outcome {
    const struct config *config;
    enum sluice_exit exit_code;
    char reason[OUTCOME_REASON_BYTES]; /* empty: passed */

    bool measured; /* data flowed */
    struct interval intervals[OUTCOME_MAX_INTERVALS];
    unsigned n_intervals;

    struct stream_outcome streams[2 * IPERF3_MAX_STREAMS];
    unsigned n_streams;
    struct flow sent, received;           /* guest to server */
    struct flow back_sent, back_received; /* server to guest */

    struct tally sender;      /* the guest's own senders, warm-up included but for blocked_ns */
    uint64_t idle_ns, run_ns; /* of the measured phase */
    struct peer_counts peer;
    struct totals totals;
    bool drained;
    bool drain_in_flight_zero, drain_echo_answered;
    uint64_t drain_quiet_ns, drain_waited_ns;
    unsigned link_losses; /* times that the link went down */

    uint64_t boot_ns; /* network up */
    bool net_is_open;
};

/* The first failure stands; later ones are its consequences. But a broken invariant of the driver
 * stands above all. Prints it. */
void outcome_fail(struct outcome *outcome, enum sluice_exit code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void outcome_add_interval(struct outcome *outcome, const struct interval *interval);

void flow_add(struct flow *sum, const struct flow *one);

#endif
