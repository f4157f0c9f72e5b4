/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Streams of test traffic: what goes out as fast as the path takes it, and what comes in is
 * accounted for. A stream is opened (iperf3_open.c greets the server with it), then sends or
 * receives until it is closed.
 */
#ifndef SLUICE_APPS_BLASTER_H
#define SLUICE_APPS_BLASTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "apps/iperf3_proto.h"
#include "apps/pacer.h"
#include "apps/stats.h"
#include "net/net.h"
#include "net/sock.h"

/* Largest payload of one datagram or one write: the pattern that is sent has this length. */
#define BLASTER_MAX_WRITE_BYTES (1u << 20)

/* What a stream, or a sum of streams, has done so far. */
struct tally {
    uint64_t bytes; /* sent: consumed or acknowledged; received: arrived, duplicates not counted */
    uint64_t packets;        /* datagrams of these */
    uint64_t queued_packets; /* placed in the ring */
    uint64_t blocked_ns, again, writable, aborted, send_errors;
    uint64_t lost_packets, out_of_order, duplicates, malformed;
    uint64_t jitter_ns; /* of a sum: the largest */
    uint64_t retransmits;
    uint64_t skipped_ns;
};

struct stream;

/* Who is told about a stream. */
struct stream_owner {
    /* TCP: the connection stands. */
    void (*connected)(struct stream *stream);
    /* A datagram of a stream that does not count yet: the server's answer to the greeting. */
    void (*greeted)(struct stream *stream, const uint8_t *data, size_t len);
    /* The stream is broken; it only closes. */
    void (*failed)(struct stream *stream, enum sock_error error);
    void *arg;
};

struct stream_plan {
    bool udp;
    uint32_t ip;
    uint16_t port;
    uint32_t size_bytes;
    uint64_t rate_bits;
    uint32_t sndbuf_bytes; /* UDP */
    uint32_t window_bytes; /* TCP */
};

struct stream {
    const struct stream_plan *plan;
    const struct stream_owner *owner;
    struct sock *sock;
    unsigned id;
    bool sends;    /* else it receives */
    bool sending;  /* between stream_start and stream_stop */
    bool blocked;  /* the path is full: the writable callback comes */
    bool open;     /* the greeting is over: what is long enough is data, before the start as well */
    bool counting; /* arrivals are data */

    /* sending */
    struct net_timer turn; /* the next one, when it is not the writable callback that brings it */
    struct pacer pacer;
    uint64_t next_seq;
    uint64_t blocked_since_ns;
    uint64_t blocked_ns;    /* the waits that are over */
    uint64_t written_bytes; /* TCP: taken by the stack */

    /* receiving */
    struct seq_stats seq;
    uint8_t header[IPERF3_UDP_HEADER_BYTES]; /* of the datagram that is coming in, piece by piece */
    uint64_t received_bytes;
    uint64_t last_arrival_ns;

    uint64_t greeting_packets, greeting_bytes; /* sent, and no part of the test */
    struct tally closed_tally;                 /* once the socket is gone */
};

/* False: no memory. The owner and the plan outlive the stream. */
bool stream_open(struct stream *stream, const struct stream_plan *plan,
                 const struct stream_owner *owner, unsigned id, bool sends);

/* Sends what opens a stream: the hello of a datagram stream, the cookie of a connection.
 * SOCK_AGAIN: no room now, call again later. */
enum sock_result stream_greet(struct stream *stream, const void *data, size_t len);

/* The server has the stream, and may send as soon as it has all: data can overtake its word on the
 * control connection that the test runs. A greeting's answer that comes twice is no data. */
void stream_greeted(struct stream *stream);

/* From now on all arrivals are data, and a sender sends. */
void stream_start(struct stream *stream, uint64_t now_ns);

/* Nothing new is sent; what was is still on its way. */
void stream_stop(struct stream *stream, uint64_t now_ns);

/* What was sent and is still on its way: datagrams that the device has not consumed, bytes that the
 * peer has not acknowledged. */
uint64_t stream_outstanding(const struct stream *stream);

void stream_close(struct stream *stream, bool abort);

/* A wait that lasts counts up to now_ns, the same for all streams: nobody waits for longer than a
 * row is. One that stream_stop finds ends there. */
void stream_tally(const struct stream *stream, uint64_t now_ns, struct tally *out);
void tally_add(struct tally *sum, const struct tally *one);

/* What happened between two tallies; the jitter is the later one's. */
void tally_since(const struct tally *now, const struct tally *before, struct tally *out);

#endif
