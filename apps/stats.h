/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the sequence numbers of a datagram stream tell its receiver: each arrival is either new,
 * late or a duplicate, and what has not arrived up to the highest number seen is lost. Loss is
 * highest - unique and can therefore not be negative, whatever the order; a gap that fills up later
 * is a reordering, not a loss.
 */
#ifndef SLUICE_APPS_STATS_H
#define SLUICE_APPS_STATS_H

#include <stdint.h>

/* How far behind the highest number an arrival is still told from a duplicate: a queue of 1000
 * packets four times over. */
#define SEQ_WINDOW_PKTS 4096u

/* A number further ahead than this is a corrupt one. */
#define SEQ_JUMP_MAX_PKTS (1ull << 30)

struct seq_stats {
    uint64_t highest;
    uint64_t unique;
    uint64_t duplicates;
    uint64_t out_of_order; /* new, but below the highest */
    uint64_t
        ancient; /* behind the window: late or duplicate, nobody knows; counted as duplicate too */
    uint64_t malformed; /* number 0, or absurdly far ahead */
    int64_t last_transit_ns;
    uint64_t jitter_x16_ns;
    uint64_t window[SEQ_WINDOW_PKTS / 64];
};

enum seq_arrival {
    SEQ_NEW,
    SEQ_DUPLICATE,
    SEQ_MALFORMED,
};

/* All zero is the empty state. seq counts from 1; transit_ns is arrival minus departure on clocks
 * whose offset is unknown, so only its changes mean anything. */
enum seq_arrival seq_note(struct seq_stats *stats, uint64_t seq, int64_t transit_ns);

uint64_t seq_lost(const struct seq_stats *stats);

/* RFC 3550's estimate, gain 1/16. */
uint64_t seq_jitter_ns(const struct seq_stats *stats);

#endif
