/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/stats.h"

#include <stdbool.h>
#include <string.h>

static uint64_t *window_word(struct seq_stats *stats, uint64_t seq)
{
    return &stats->window[seq % SEQ_WINDOW_PKTS / 64];
}

/* Marks seq as seen; true when it was before. */
static bool window_mark(struct seq_stats *stats, uint64_t seq)
{
    uint64_t *word = window_word(stats, seq);
    uint64_t bit = 1ull << (seq % 64);
    bool seen = (*word & bit) != 0;
    *word |= bit;
    return seen;
}

/* Numbers between the old and the new highest share slots with ones that fell out of the window. */
static void window_advance(struct seq_stats *stats, uint64_t seq)
{
    uint64_t ahead = seq - stats->highest;
    if (ahead >= SEQ_WINDOW_PKTS) {
        memset(stats->window, 0, sizeof stats->window);
    } else {
        for (uint64_t s = stats->highest + 1; s <= seq; s++) {
            *window_word(stats, s) &= ~(1ull << (s % 64));
        }
    }
    stats->highest = seq;
}

static void note_transit(struct seq_stats *stats, int64_t transit_ns)
{
    if (stats->unique != 0) {
        int64_t change = (int64_t)((uint64_t)transit_ns - (uint64_t)stats->last_transit_ns);
        uint64_t size = change < 0 ? -(uint64_t)change : (uint64_t)change;
        stats->jitter_x16_ns += size - (stats->jitter_x16_ns + 8) / 16;
    }
    stats->last_transit_ns = transit_ns;
}

enum seq_arrival seq_note(struct seq_stats *stats, uint64_t seq, int64_t transit_ns)
{
    if (seq == 0 || (seq > stats->highest && seq - stats->highest > SEQ_JUMP_MAX_PKTS)) {
        stats->malformed++;
        return SEQ_MALFORMED;
    }
    if (seq > stats->highest) {
        window_advance(stats, seq);
        window_mark(stats, seq);
    } else if (stats->highest - seq >= SEQ_WINDOW_PKTS) {
        stats->ancient++;
        stats->duplicates++;
        return SEQ_DUPLICATE;
    } else if (window_mark(stats, seq)) {
        stats->duplicates++;
        return SEQ_DUPLICATE;
    } else {
        stats->out_of_order++;
    }
    note_transit(stats, transit_ns);
    stats->unique++;
    return SEQ_NEW;
}

uint64_t seq_lost(const struct seq_stats *stats)
{
    return stats->highest - stats->unique;
}

uint64_t seq_jitter_ns(const struct seq_stats *stats)
{
    return stats->jitter_x16_ns / 16;
}
