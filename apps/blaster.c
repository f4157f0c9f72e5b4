/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The application's end of the path, and where to begin reading:
 *
 *     here: reserve, write the payload, commit      sock_udp_reserve, sock_udp_commit
 *     net/sock.c          credit, the gate          sock_udp_reserve says AGAIN when anything below
 * is full net/netif_virtio.c  lwIP to frames drivers/virtio_net_tx.c, virtqueue_split.c    ring,
 * stop, wake
 *
 * A sender takes turns. A turn sends a bounded number of packets and ends in one of three ways,
 * each with one thing that brings the next turn, so a stream that has something to send is never
 * forgotten:
 *
 *     the path is full          the writable callback, promised with AGAIN
 *     the next packet is early  a timer
 *     the turn was long enough  the next pass of the poll loop, which receives first
 *
 * Nothing is sent that was not taken and nothing is numbered that was not sent: a full path costs
 * waiting, never a packet.
 */
#include "apps/blaster.h"

#include <string.h>

#include "boot/clock.h"

/* One turn: short against the ring (256), so that several streams share it and reception has its
 * turn in between; long against the cost of a pass of the loop. */
#define TURN_PKTS 64u

/* TCP: as few, because each may be a megabyte. */
#define TURN_WRITES 4u

/* A wait longer than this is worth a timer and a halt; a shorter one is spent polling. */
#define WORTH_SLEEPING_NS 50000u

/* Below this a TCP write is copied: a segment made of many tiny references costs more than the
 * copy. */
#define COPY_BELOW_BYTES 2048u

/* What all packets are made of. Constant once filled, so it can be sent from where it is any number
 * of times. */
static uint8_t pattern[BLASTER_MAX_WRITE_BYTES];

static void fill_pattern(void)
{
    for (uint32_t i = 0; pattern[i] == 0; i++) {
        pattern[i] = (uint8_t)('0' + i % 10);
        if (i == sizeof pattern - 1) {
            return;
        }
    }
}

static void fail(struct stream *stream, enum sock_error error)
{
    stream_stop(stream, clock_now_ns());
    stream->owner->failed(stream, error);
}

/* ---- sending ---- */

static void udp_turn(void *arg);
static void tcp_turn(void *arg);

static void wait_for_pacer(struct stream *stream, uint64_t now_ns, uint64_t wait_ns)
{
    void (*turn)(void *) = stream->plan->udp ? udp_turn : tcp_turn;
    if (wait_ns > WORTH_SLEEPING_NS) {
        net_timer_set(&stream->turn, now_ns + wait_ns, turn, stream);
    } else {
        net_defer(&stream->turn, turn, stream);
    }
}

static void wait_for_room(struct stream *stream, uint64_t now_ns)
{
    stream->blocked = true;
    stream->blocked_since_ns = now_ns;
}

static void end_wait(struct stream *stream, uint64_t now_ns)
{
    if (stream->blocked) {
        stream->blocked = false;
        stream->blocked_ns += now_ns - stream->blocked_since_ns;
    }
}

static void write_payload(const struct stream *stream, uint8_t *payload, bool fresh,
                          uint64_t now_ns)
{
    if (fresh) {
        memcpy(payload, pattern, stream->plan->size_bytes);
    }
    iperf3_put_udp_header(payload, stream->next_seq, now_ns);
}

static void udp_turn(void *arg)
{
    struct stream *stream = arg;
    for (unsigned n = 0; n < TURN_PKTS && stream->sending; n++) {
        uint64_t now_ns = clock_now_ns();
        uint64_t wait_ns = pacer_wait_ns(&stream->pacer, now_ns);
        if (wait_ns != 0) {
            wait_for_pacer(stream, now_ns, wait_ns);
            return;
        }
        uint8_t *payload;
        bool fresh;
        enum sock_result result =
            sock_udp_reserve(stream->sock, stream->plan->size_bytes, &payload, &fresh);
        if (result == SOCK_OK) {
            write_payload(stream, payload, fresh, now_ns);
            result = sock_udp_commit(stream->sock);
        }
        if (result == SOCK_AGAIN) {
            wait_for_room(stream, now_ns);
            return;
        }
        if (result != SOCK_OK) {
            fail(stream, SOCK_ERR_ABORTED);
            return;
        }
        stream->next_seq++;
        pacer_sent(&stream->pacer);
    }
    if (stream->sending) {
        net_defer(&stream->turn, udp_turn, stream);
    }
}

static void tcp_turn(void *arg)
{
    struct stream *stream = arg;
    size_t size = stream->plan->size_bytes;
    for (unsigned n = 0; n < TURN_WRITES && stream->sending; n++) {
        uint64_t now_ns = clock_now_ns();
        uint64_t wait_ns = pacer_wait_ns(&stream->pacer, now_ns);
        if (wait_ns != 0) {
            wait_for_pacer(stream, now_ns, wait_ns);
            return;
        }
        /* A write that found no room for all of it is ended before the next begins. */
        size_t at = (size_t)((stream->written_bytes - stream->greeting_bytes) % size);
        size_t rest = size - at;
        int64_t taken = sock_tcp_write(stream->sock, pattern + at, rest, rest < COPY_BELOW_BYTES);
        if (taken < 0) {
            fail(stream, SOCK_ERR_ABORTED);
            return;
        }
        stream->written_bytes += (uint64_t)taken;
        if ((uint64_t)taken < rest) {
            wait_for_room(stream, now_ns);
            return;
        }
        pacer_sent(&stream->pacer);
    }
    if (stream->sending) {
        net_defer(&stream->turn, tcp_turn, stream);
    }
}

static void on_writable(struct sock *sock, void *arg)
{
    struct stream *stream = arg;
    (void)sock;
    if (stream->blocked) {
        end_wait(stream, clock_now_ns());
        (stream->plan->udp ? udp_turn : tcp_turn)(stream);
    }
}

/* ---- receiving ---- */

/* The header decides about the whole datagram; it is complete with the first piece in all but odd
 * cases. */
static void udp_arrival(struct stream *stream, const uint8_t *data, size_t len, size_t offset,
                        size_t total)
{
    if (offset >= IPERF3_UDP_HEADER_BYTES) {
        return;
    }
    size_t part = IPERF3_UDP_HEADER_BYTES - offset;
    part = part < len ? part : len;
    memcpy(stream->header + offset, data, part);
    if (offset + part < IPERF3_UDP_HEADER_BYTES) {
        stream->seq.malformed += offset + part == total;
        return;
    }
    uint64_t seq;
    uint64_t sent_ns;
    uint64_t now_ns = clock_now_ns();
    iperf3_get_udp_header(stream->header, &seq, &sent_ns);
    if (seq_note(&stream->seq, seq, (int64_t)(now_ns - sent_ns)) == SEQ_NEW) {
        stream->received_bytes += total;
    }
    stream->last_arrival_ns = now_ns;
}

static void on_received(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                        size_t total, uint32_t from_ip, uint16_t from_port)
{
    struct stream *stream = arg;
    (void)sock;
    (void)from_ip;
    (void)from_port;
    if (!stream->plan->udp) {
        stream->received_bytes += len;
        stream->last_arrival_ns = clock_now_ns();
    } else if (stream->counting || (stream->open && total >= IPERF3_UDP_HEADER_BYTES)) {
        udp_arrival(stream, data, len, offset, total);
    } else if (offset == 0) {
        stream->owner->greeted(stream, data, len);
    }
}

/* ---- life of a stream ---- */

static void on_connected(struct sock *sock, void *arg)
{
    struct stream *stream = arg;
    (void)sock;
    stream->owner->connected(stream);
}

static void on_error(struct sock *sock, void *arg, enum sock_error error)
{
    (void)sock;
    fail(arg, error);
}

static const struct sock_ops stream_ops = {
    .writable = on_writable,
    .connected = on_connected,
    .received = on_received,
    .error = on_error,
};

bool stream_open(struct stream *stream, const struct stream_plan *plan,
                 const struct stream_owner *owner, unsigned id, bool sends)
{
    *stream =
        (struct stream){.plan = plan, .owner = owner, .id = id, .sends = sends, .next_seq = 1};
    fill_pattern();
    if (!plan->udp) {
        stream->sock = sock_tcp_connect(&stream_ops, stream, plan->ip, plan->port,
                                        5 * CLOCK_NS_PER_S, plan->window_bytes);
        return stream->sock != NULL;
    }
    stream->sock = sock_udp_open(&stream_ops, stream, plan->sndbuf_bytes);
    return stream->sock != NULL && sock_udp_connect(stream->sock, plan->ip, plan->port) == SOCK_OK;
}

enum sock_result stream_greet(struct stream *stream, const void *data, size_t len)
{
    if (!stream->plan->udp) {
        /* A new connection has room for a cookie. */
        stream->greeting_bytes += len;
        stream->written_bytes += len;
        return sock_tcp_write(stream->sock, data, len, true) == (int64_t)len ? SOCK_OK : SOCK_FATAL;
    }
    uint8_t *payload;
    bool fresh;
    enum sock_result result = sock_udp_reserve(stream->sock, len, &payload, &fresh);
    if (result == SOCK_OK) {
        memcpy(payload, data, len);
        result = sock_udp_commit(stream->sock);
        stream->greeting_packets += result == SOCK_OK;
    }
    return result;
}

void stream_greeted(struct stream *stream)
{
    stream->open = true;
}

void stream_start(struct stream *stream, uint64_t now_ns)
{
    stream->counting = true;
    if (stream->sends) {
        stream->sending = true;
        pacer_start(&stream->pacer, stream->plan->rate_bits, stream->plan->size_bytes, now_ns);
        net_defer(&stream->turn, stream->plan->udp ? udp_turn : tcp_turn, stream);
    }
}

void stream_stop(struct stream *stream, uint64_t now_ns)
{
    stream->sending = false;
    end_wait(stream, now_ns);
    net_timer_clear(&stream->turn);
}

uint64_t stream_outstanding(const struct stream *stream)
{
    struct sock_udp_stats stats;
    if (!stream->sends || stream->sock == NULL) {
        return 0;
    }
    if (!stream->plan->udp) {
        uint64_t acked = sock_tcp_bytes_acked(stream->sock);
        return stream->written_bytes > acked ? stream->written_bytes - acked : 0;
    }
    sock_udp_stats(stream->sock, &stats);
    return stats.queued - stats.consumed - stats.aborted;
}

void stream_close(struct stream *stream, bool abort)
{
    uint64_t now_ns = clock_now_ns();
    stream_stop(stream, now_ns);
    if (stream->sock != NULL) {
        stream_tally(stream, now_ns, &stream->closed_tally);
        sock_close(stream->sock, abort);
        stream->sock = NULL;
    }
}
