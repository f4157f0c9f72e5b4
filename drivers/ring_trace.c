/* SPDX-License-Identifier: BSD-2-Clause */
#include "drivers/ring_trace.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>

#include "boot/clock.h"
#include "boot/cpu.h"
#include "boot/mem.h"

/* Most that one event takes: a time, three numbers, and what stands between them. */
#define EVENT_TEXT_BYTES 44u

struct ring_trace *ring_trace_new(uint32_t capacity)
{
    struct ring_trace *trace = mem_alloc(sizeof(*trace), CPU_CACHE_LINE_BYTES);
    struct ring_event *events =
        mem_alloc(capacity * sizeof(struct ring_event), CPU_CACHE_LINE_BYTES);

    if (trace == NULL || events == NULL) {
        return NULL;
    }
    *trace =
        (struct ring_trace){.events = events, .capacity = capacity, .start_ns = clock_now_ns()};
    return trace;
}

/* Calls that a polling loop makes all the time, and that change nothing by themselves. */
static bool is_idle_call(enum ring_event_kind kind)
{
    return kind == RING_CALL_POLL || kind == RING_CALL_ARM || kind == RING_CALL_DISARM;
}

void ring_trace_add(struct ring_trace *trace, enum ring_event_kind kind, unsigned queue, unsigned a,
                    unsigned c, uint32_t b)
{
    /* Once full, always full: what comes after a gap could not be replayed. */
    if (trace->lost != 0) {
        trace->lost++;
        return;
    }
    if (trace->n != 0 && is_idle_call(kind) &&
        is_idle_call((enum ring_event_kind)trace->events[trace->n - 1].kind)) {
        trace->n--;
    }
    if (trace->n == trace->capacity) {
        trace->lost = 1;
        return;
    }
    trace->events[trace->n++] = (struct ring_event){
        .at_us = (uint32_t)((clock_now_ns() - trace->start_ns) / 1000),
        .a = (uint16_t)(a < UINT16_MAX ? a : UINT16_MAX),
        .b = b,
        .c = (uint16_t)c,
        .kind = (uint8_t)kind,
        .queue = (uint8_t)queue,
    };
}

/* Small letters are the receive queue's. Numbers that are 0 and last are left out. */
static int event_text(char *at, size_t room, const struct ring_event *event, uint32_t before_us)
{
    int letter = event->queue == 0 ? tolower(event->kind) : event->kind;
    int n = 0;

    if (event->at_us != before_us) {
        n = snprintf(at, room, " +%" PRIu32, event->at_us - before_us);
    }
    n += snprintf(at + n, room - (size_t)n, " %c%u", letter, event->a);
    if (event->b != 0) {
        n += snprintf(at + n, room - (size_t)n, ",%u,%" PRIu32, event->c, event->b);
    } else if (event->c != 0) {
        n += snprintf(at + n, room - (size_t)n, ",%u", event->c);
    }
    return n;
}

bool ring_trace_line(const struct ring_trace *trace, uint32_t *cursor,
                     char line[RING_TRACE_LINE_BYTES])
{
    size_t n = 0;

    if (*cursor == trace->n) {
        return false;
    }
    while (*cursor < trace->n && n + EVENT_TEXT_BYTES < RING_TRACE_LINE_BYTES) {
        uint32_t before_us = *cursor != 0 ? trace->events[*cursor - 1].at_us : 0;
        n += (size_t)event_text(line + n, RING_TRACE_LINE_BYTES - n, &trace->events[*cursor],
                                before_us);
        (*cursor)++;
    }
    return true;
}
