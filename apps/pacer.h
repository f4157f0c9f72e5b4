/* SPDX-License-Identifier: BSD-2-Clause
 *
 * When the next packet of a stream is due, on a schedule of absolute deadlines: a late packet does
 * not move the ones behind it, so the average rate is exact and no error adds up.
 */
#ifndef SLUICE_APPS_PACER_H
#define SLUICE_APPS_PACER_H

#include <stdint.h>

/* What a sender that was held up may make good in one burst. More would fill the shallow queue
 * behind a shaper with one clump (iperf3's own throttle has no such bound); the rest is given up
 * and counted. */
#define PACER_CATCH_UP_NS 10000000ull

struct pacer {
    uint64_t rate_bits;        /* per second; 0: always due */
    uint64_t gap_ns, gap_rest; /* time of one packet: gap_ns + gap_rest / rate_bits */
    uint64_t due_ns, due_rest;
    uint64_t skipped_ns; /* schedule that was given up */
};

static inline void pacer_start(struct pacer *pacer, uint64_t rate_bits, uint64_t packet_bytes,
                               uint64_t now_ns)
{
    *pacer = (struct pacer){.rate_bits = rate_bits, .due_ns = now_ns};
    if (rate_bits != 0) {
        /* At most 2^20 bytes: 8e9 times that is below 2^53. */
        pacer->gap_ns = packet_bytes * 8000000000ull / rate_bits;
        pacer->gap_rest = packet_bytes * 8000000000ull % rate_bits;
    }
}

/* 0: a packet is due. Else the time until it is. */
static inline uint64_t pacer_wait_ns(struct pacer *pacer, uint64_t now_ns)
{
    if (pacer->rate_bits == 0) {
        return 0;
    }
    if (now_ns < pacer->due_ns) {
        return pacer->due_ns - now_ns;
    }
    uint64_t late_ns = now_ns - pacer->due_ns;
    if (late_ns > PACER_CATCH_UP_NS) {
        pacer->skipped_ns += late_ns - PACER_CATCH_UP_NS;
        pacer->due_ns = now_ns - PACER_CATCH_UP_NS;
    }
    return 0;
}

static inline void pacer_sent(struct pacer *pacer)
{
    if (pacer->rate_bits == 0) {
        return;
    }
    pacer->due_ns += pacer->gap_ns;
    pacer->due_rest += pacer->gap_rest;
    if (pacer->due_rest >= pacer->rate_bits) {
        pacer->due_rest -= pacer->rate_bits;
        pacer->due_ns++;
    }
}

#endif
