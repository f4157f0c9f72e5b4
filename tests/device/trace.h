/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A ring trace (docs/trace.md) outside of the guest that recorded it: read, judged, replayed.
 *
 *     console text -> trace_read -> trace_check: may a driver and a device do that?
 *                                -> trace_replay: does this driver do the same again?
 */
#ifndef SLUICE_TESTS_TRACE_H
#define SLUICE_TESTS_TRACE_H

#include "drivers/ring_trace.h"
#include "drivers/virtio_net.h"

#define TRACE_ERROR_BYTES 256u

struct trace {
    uint64_t features; /* accepted */
    uint64_t lost;     /* events that happened after the last one recorded */
    uint32_t max_datagram_bytes;
    uint16_t mtu_bytes;
    uint16_t tx_size, tx_stop, tx_wake, rx_size;
    enum virtio_net_policy policy;
    uint32_t n;
    struct ring_event *events;
    char error[TRACE_ERROR_BYTES]; /* why the last function answered false */
};

/* Takes the lines of a console's output that belong to a trace. The caller frees with trace_free,
 * also after false. */
bool trace_read(struct trace *trace, const char *text);
void trace_free(struct trace *trace);

/* Each event follows from those before it, by the rules of the rings and of the stop/wake protocol;
 * a whole trace ends at rest. */
bool trace_check(struct trace *trace);

/* Opens the driver on the model device, makes the calls that were recorded, lets the device say
 * what it said, where it said it, and compares all that is recorded now with what was recorded
 * then. */
bool trace_replay(struct trace *trace);

/* For the three above: notes why, with the event's number and text (NULL: none), answers false. */
bool trace_fail(struct trace *trace, const struct ring_event *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
