/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a driver and its device did to the rings, event by event, in memory: the first events of a
 * run, so that a host test can drive the same driver through the same run (docs/trace.md has the
 * format and the meaning of each event).
 *
 * Recorded are calls from above, what the device was seen to say (its index, its event, its used
 * entries) and what the driver decided. Decisions follow from the other two, or a replay fails.
 *
 * Without a trace each place that records costs one branch that is never taken.
 */
#ifndef SLUICE_DRIVERS_RING_TRACE_H
#define SLUICE_DRIVERS_RING_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The queue's number (5.1.2) is with each event. Values are letters of the text form. */
enum ring_event_kind {
    /* Calls from above. One without consequence is overwritten by the next. */
    RING_CALL_POLL = 'C', /* a: budget; of receive buffers, or of transmitted frames */
    RING_CALL_ARM = 'M',  /* a: want_tx */
    RING_CALL_DISARM = 'X',
    RING_CALL_SAFETY = 'Y',    /* the safety timer's look; changes what the next one sees */
    RING_CALL_RETURN = 'B',    /* a: number of the receive buffer that came back */
    RING_CALL_RESERVE = 'V',   /* a: descriptors set aside */
    RING_CALL_UNRESERVE = 'Z', /* a: descriptors */
    /* What the device says. */
    RING_USED_IDX = 'U',    /* a: used index, where it differs from the last look */
    RING_RECLAIM = 'R',     /* a: head, b: length as the device has it */
    RING_NUM_BUFFERS = 'N', /* a: buffers of the packet that begins in the last one, if not 1 */
    /* What the driver does. */
    RING_INIT = 'I',        /* a: size */
    RING_ADD = 'A',         /* a: head, b: bytes, c: descriptors */
    RING_PUBLISH = 'P',     /* a: available index */
    RING_KICK = 'K',        /* a: wanted, b: published since the last decision, c: event as seen */
    RING_REKICK = 'G',      /* the safety timer's; a: wanted, b: not used yet, c: event as seen */
    RING_KICK_UNTOLD = 'H', /* the safety timer's, unasked; a: not used yet */
    RING_ARM = 'E',         /* a: completions to wait for, c: event */
    RING_DISARM = 'D',      /* a: completions that are there */
    RING_STOP = 'S',        /* a: descriptors free for data */
    RING_WAKE = 'W',        /* a: descriptors free for data */
};

struct ring_event {
    uint32_t at_us; /* since the trace was made */
    uint32_t b;
    uint16_t a;
    uint16_t c;
    uint8_t kind;
    uint8_t queue;
};
_Static_assert(sizeof(struct ring_event) == 16, "four a cache line");

struct ring_trace {
    struct ring_event *events;
    uint32_t capacity;
    uint32_t n;
    uint64_t lost; /* that found the trace full */
    uint64_t start_ns;
};

/* An empty trace of so many events. NULL: no memory. Never freed. */
struct ring_trace *ring_trace_new(uint32_t capacity);

void ring_trace_add(struct ring_trace *trace, enum ring_event_kind kind, unsigned queue, unsigned a,
                    unsigned c, uint32_t b);

/* Longest text of a line, with its end. */
#define RING_TRACE_LINE_BYTES 128u

/* The next line of events as text, without prefix and line feed; *cursor starts as 0. False: that
 * was all. */
bool ring_trace_line(const struct ring_trace *trace, uint32_t *cursor,
                     char line[RING_TRACE_LINE_BYTES]);

#endif
