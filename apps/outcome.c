/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/outcome.h"

#include <stdarg.h>
#include <stdio.h>

void outcome_fail(struct outcome *outcome, enum sluice_exit code, const char *format, ...)
{
    va_list args;
    if (outcome->exit_code != SLUICE_EXIT_PASS && code != SLUICE_EXIT_INVARIANT) {
        return;
    }
    outcome->exit_code = code;
    va_start(args, format);
    vsnprintf(outcome->reason, sizeof outcome->reason, format, args);
    va_end(args);
    printf("sluice: error: %s\n", outcome->reason);
}

static void join_neighbours(struct outcome *outcome)
{
    for (size_t i = 0; i < OUTCOME_MAX_INTERVALS / 2; i++) {
        struct interval joined = outcome->intervals[2 * i];
        const struct interval *second = &outcome->intervals[2 * i + 1];
        joined.end_ns = second->end_ns;
        joined.back_end_ns = second->back_end_ns;
        joined.stops += second->stops;
        joined.sending_ns += second->sending_ns;
        tally_add(&joined.forward, &second->forward);
        tally_add(&joined.back, &second->back);
        outcome->intervals[i] = joined;
    }
    outcome->n_intervals = OUTCOME_MAX_INTERVALS / 2;
}

void outcome_add_interval(struct outcome *outcome, const struct interval *interval)
{
    if (outcome->n_intervals == OUTCOME_MAX_INTERVALS) {
        join_neighbours(outcome);
    }
    outcome->intervals[outcome->n_intervals++] = *interval;
}

static int64_t add_known(int64_t a, int64_t b)
{
    return a < 0 || b < 0 ? -1 : a + b;
}

void flow_add(struct flow *sum, const struct flow *one)
{
    if (!one->known) {
        return;
    }
    sum->out_of_order =
        sum->known ? add_known(sum->out_of_order, one->out_of_order) : one->out_of_order;
    sum->retransmits =
        sum->known ? add_known(sum->retransmits, one->retransmits) : one->retransmits;
    sum->known = true;
    sum->ns = sum->ns > one->ns ? sum->ns : one->ns;
    sum->bytes += one->bytes;
    sum->packets += one->packets;
    sum->lost_packets += one->lost_packets;
    sum->duplicates += one->duplicates;
    sum->jitter_ns = sum->jitter_ns > one->jitter_ns ? sum->jitter_ns : one->jitter_ns;
}
