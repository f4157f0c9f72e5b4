/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Sockets for applications that wait instead of losing. All calls come from the poll loop's one
 * context: from sluice_main, or from inside a callback of this file or of net.h. Addresses are IPv4
 * in host byte order.
 *
 * Three outcomes: OK; AGAIN, which promises the writable callback; fatal, after which the socket
 * only closes.
 *
 * UDP is zero-copy: reserve takes a buffer once ring, credit and pool all have room, the
 * application writes its payload once, commit sends that very buffer. Credit is counted in true
 * bytes (the buffer's whole size), charged at commit, and comes back when the last reference is
 * gone, so a datagram that waits in the ring keeps its sender waiting.
 */
#ifndef SLUICE_NET_SOCK_H
#define SLUICE_NET_SOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sock;

enum sock_result {
    SOCK_OK = 0,
    SOCK_AGAIN = -1,
    SOCK_FATAL = -2,
};

enum sock_error {
    SOCK_ERR_NONE = 0,
    SOCK_ERR_CLOSED,  /* the peer closed in order */
    SOCK_ERR_RESET,   /* the peer reset */
    SOCK_ERR_ABORTED, /* too many retransmissions, or no memory at the stack's side */
    SOCK_ERR_TIMEOUT, /* no answer before the deadline of connect, or keepalive unanswered */
    SOCK_ERR_ROUTE,   /* no route, or the next hop does not answer ARP */
    SOCK_ERR_REFUSED, /* ICMP port unreachable, or RST to a SYN */
};

const char *sock_error_text(enum sock_error error);

struct sock_ops {
    /* There is room again after AGAIN: send on. Called from the poll loop, at most once for each
     * AGAIN. */
    void (*writable)(struct sock *sock, void *arg);
    /* TCP: connected (or, on a socket from accept, ready). */
    void (*connected)(struct sock *sock, void *arg);
    /* Bytes of a TCP stream, or one datagram's payload in one or more pieces (first: offset 0;
     * total: its length). data is valid during the call only. */
    void (*received)(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                     size_t total, uint32_t from_ip, uint16_t from_port);
    /* TCP: all bytes written so far have been acknowledged: a no-copy payload may be reused. May be
     * NULL. */
    void (*drained)(struct sock *sock, void *arg);
    /* The connection is gone, or (UDP) an ICMP error came. TCP: the sock is still to be closed by
     * its owner. error SOCK_ERR_CLOSED: the peer sends no more (half close); writing may go on. */
    void (*error)(struct sock *sock, void *arg, enum sock_error error);
};

/* ---- UDP ---- */

/* sndbuf_bytes: send credit in true bytes. NULL when there is no memory. */
struct sock *sock_udp_open(const struct sock_ops *ops, void *arg, uint32_t sndbuf_bytes);

/* port 0: any free one. SOCK_FATAL: taken. */
enum sock_result sock_udp_bind(struct sock *sock, uint16_t port);
enum sock_result sock_udp_connect(struct sock *sock, uint32_t ip, uint16_t port);

/*
 * The gate: charged < sndbuf, and TX not stopped, and a buffer in the pool; looked at before
 * anything is built. OK: *payload has len bytes to be written (what an earlier use left there is
 * still there: *fresh is true when the buffer was never handed to this socket with this length, so
 * a constant filling need be written only then), and the next call on this socket must be
 * sock_udp_commit or sock_udp_cancel. len 1..65507.
 */
enum sock_result sock_udp_reserve(struct sock *sock, size_t len, uint8_t **payload, bool *fresh);
enum sock_result sock_udp_commit(struct sock *sock);
/* The same to an address given, on a socket that is bound and not connected: a server's answer. */
enum sock_result sock_udp_commit_to(struct sock *sock, uint32_t ip, uint16_t port);
void sock_udp_cancel(struct sock *sock);

/* Datagrams of this socket that were placed in the ring, and whose last reference has come back
 * used by the device (consumed) or aborted. queued = consumed + aborted + in flight. Fragments of
 * one datagram count as one. */
struct sock_udp_stats {
    uint64_t queued, consumed, aborted;
    uint64_t again;    /* AGAIN answers */
    uint64_t writable; /* writable callbacks */
    uint64_t charged_bytes, credited_bytes;
    uint64_t send_errors; /* the stack refused after a positive gate: 0 */
};
void sock_udp_stats(const struct sock *sock, struct sock_udp_stats *out);

/* ---- TCP ---- */

/* deadline_ns: from now. The error callback gets SOCK_ERR_TIMEOUT / ROUTE / REFUSED. window_bytes
 * 0: the stack's own; else limits both windows. NULL when there is no memory. */
struct sock *sock_tcp_connect(const struct sock_ops *ops, void *arg, uint32_t ip, uint16_t port,
                              uint64_t deadline_ns, uint32_t window_bytes);

/* accept is called with each new connection; it returns ops and arg for it through the pointers.
 * NULL: port taken. */
typedef bool (*sock_accept_fn)(void *arg, struct sock *fresh, const struct sock_ops **ops,
                               void **sock_arg);
struct sock *sock_tcp_listen(uint16_t port, sock_accept_fn accept, void *arg);

/*
 * Writes at most len bytes; returns how many were taken. Fewer than len promises the writable
 * callback. copy false: the bytes are sent from where they are and must not change until drained (a
 * constant pattern never does). Negative: SOCK_FATAL.
 */
int64_t sock_tcp_write(struct sock *sock, const void *data, size_t len, bool copy);

/*
 * Backpressure on the peer: from now on it may be at most window_bytes (64 KiB or more) ahead of
 * what the application has consumed. Without this call what was received counts as consumed. Right
 * after accept or connected.
 */
void sock_tcp_hold(struct sock *sock, uint32_t window_bytes);
void sock_tcp_consumed(struct sock *sock, size_t bytes);

void sock_tcp_nodelay(struct sock *sock, bool on);
/* First probe after idle_s seconds of silence, then every interval_s, count unanswered ones end it
 * with TIMEOUT. */
void sock_tcp_keepalive(struct sock *sock, unsigned idle_s, unsigned interval_s, unsigned count);
/* Time since anything was heard from the peer, as the stack's timer of 500 ms sees it. */
uint64_t sock_tcp_silent_ns(const struct sock *sock);
/* Asks the peer for a sign of life now, with one segment of keepalive. */
void sock_tcp_probe(struct sock *sock);
/* Retransmissions that the stack made for this connection. */
uint64_t sock_tcp_retransmits(const struct sock *sock);
uint64_t sock_tcp_bytes_acked(const struct sock *sock);
uint16_t sock_tcp_mss(const struct sock *sock);

/* ---- both ---- */

/* TCP: orderly unless abort. The pointer is dead after this; datagrams in flight keep their buffers
 * till used. */
void sock_close(struct sock *sock, bool abort);
uint16_t sock_local_port(const struct sock *sock);

#endif
