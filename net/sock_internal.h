/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the socket files share.
 */
#ifndef SLUICE_NET_SOCK_INTERNAL_H
#define SLUICE_NET_SOCK_INTERNAL_H

#include "net/net.h"
#include "net/sock.h"

#include "lwip/pbuf.h"

struct tcp_pcb;
struct udp_pcb;
struct udp_buf;

enum sock_kind {
    SOCK_UDP,
    SOCK_TCP,
    SOCK_TCP_LISTEN,
};

struct sock {
    enum sock_kind kind;
    const struct sock_ops *ops;
    void *arg;
    struct sock *next; /* of all sockets */

    /* Until the last buffer in flight came back and no callback is running, a closed socket is
     * kept. */
    bool closed;
    unsigned holds;

    /* The list of those who got AGAIN, in order. */
    struct sock *wait_next, *wait_prev;
    bool waiting;
    uint64_t wait_seq, wait_since_ns;

    /* Events for the application that must not be delivered from where they arose. */
    struct net_timer event;
    bool event_connected, event_drained;
    enum sock_error event_error;

    /* UDP */
    struct udp_pcb *udp;
    uint32_t sndbuf_bytes, charged_bytes;
    struct udp_buf *free_bufs; /* warm: they still hold what this socket wrote */
    struct udp_buf *reserved;
    bool pool_empty; /* AGAIN because there was no buffer */
    uint64_t pool_frees_seen;
    uint32_t remote_ip;
    struct sock_udp_stats stats;

    /* TCP */
    struct tcp_pcb *tcp;
    sock_accept_fn accept;
    bool connected, in_callback, aborted_in_callback, want_drained, no_memory, bulk;
    uint16_t remote_port;
    uint32_t snd_limit_bytes, rcv_limit_bytes; /* sending 0: a share of the default */
    bool hold;                                 /* the application says what it has consumed */
    uint64_t retransmits, acked_bytes;
    uint8_t last_nrtx;
    struct net_timer deadline;
};

/* ---- sock.c ---- */
struct sock *sock_new(enum sock_kind kind, const struct sock_ops *ops, void *arg);
/* While held, the memory stays. The last release of a closed socket frees it. */
void sock_hold(struct sock *sock);
void sock_release(struct sock *sock);
/* Out of the list of all: its owner let go. */
void sock_forget(struct sock *sock);
void sock_wait(struct sock *sock);
void sock_wait_end(struct sock *sock);
/* For who found no memory: something was given back since, or it is time to look again anyway. */
bool sock_pool_moved(const struct sock *sock);
/* Delivers the event flags from the next pass. */
void sock_post(struct sock *sock);
void sock_post_error(struct sock *sock, enum sock_error error);
struct sock *sock_all(void);

/* ---- sock_udp.c ---- */
bool sock_udp_ready(struct sock *sock);
void sock_udp_close(struct sock *sock);
/* Where the writable room of a datagram's pbuf begins; NULL: not such a pbuf. */
const uint8_t *sock_udp_headroom_start(const struct pbuf *p);

/* ---- sock_tcp.c ---- */
bool sock_tcp_ready(struct sock *sock);
void sock_tcp_close(struct sock *sock, bool abort_now);
/* Before TCP's timers, with each connection of ours. */
void sock_tcp_note(struct tcp_pcb *pcb);

#endif
