/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What UDP and TCP sockets have in common: their life, the list of those who wait, and events.
 */
#include "sock_internal.h"

#include <string.h>

#include "boot/clock.h"
#include "boot/panic.h"
#include "net_internal.h"
#include "netmem.h"

#include "lwip/icmp.h"
#include "lwip/ip.h"
#include "lwip/tcp.h"
#include "lwip/udp.h"

/* Memory may also come back to another class than ours, or be none of ours that is missed. */
#define POOL_RETRY_NS 100000000ull

static struct sock *all;
static struct sock *wait_head, *wait_tail;
static struct sock *wait_cursor; /* the next to look at, while sock_run_writable runs */
static uint64_t next_wait_seq;

const char *sock_error_text(enum sock_error error)
{
    switch (error) {
    case SOCK_ERR_NONE:
        return "no error";
    case SOCK_ERR_CLOSED:
        return "the peer closed the connection";
    case SOCK_ERR_RESET:
        return "the peer reset the connection";
    case SOCK_ERR_ABORTED:
        return "the connection was given up after too many retransmissions or for lack of memory";
    case SOCK_ERR_TIMEOUT:
        return "the peer does not answer";
    case SOCK_ERR_ROUTE:
        return "no route: the next hop does not answer ARP, or there is no gateway";
    case SOCK_ERR_REFUSED:
        return "nobody listens at the peer's port";
    default:
        return "unknown error";
    }
}

/* ---- life ---- */

struct sock *sock_new(enum sock_kind kind, const struct sock_ops *ops, void *arg)
{
    struct sock *sock = netmem_calloc(1, sizeof(*sock));
    if (sock == NULL) {
        return NULL;
    }
    sock->kind = kind;
    sock->ops = ops;
    sock->arg = arg;
    sock->holds = 1; /* its owner's */
    sock->next = all;
    all = sock;
    return sock;
}

struct sock *sock_all(void)
{
    return all;
}

void sock_hold(struct sock *sock)
{
    sock->holds++;
}

void sock_release(struct sock *sock)
{
    invariant(sock->holds > 0);
    if (--sock->holds == 0) {
        netmem_free(sock);
    }
}

void sock_forget(struct sock *sock)
{
    struct sock **link = &all;
    while (*link != sock) {
        link = &(*link)->next;
    }
    *link = sock->next;
    sock_wait_end(sock);
    net_timer_clear(&sock->event);
    net_timer_clear(&sock->deadline);
    sock->closed = true;
    sock_release(sock);
}

void sock_close(struct sock *sock, bool abort_now)
{
    invariant(!sock->closed);
    if (sock->kind == SOCK_UDP) {
        sock_udp_close(sock);
    } else {
        sock_tcp_close(sock, abort_now);
    }
    sock_forget(sock);
}

uint16_t sock_local_port(const struct sock *sock)
{
    if (sock->kind == SOCK_UDP) {
        return sock->udp->local_port;
    }
    return sock->tcp != NULL ? sock->tcp->local_port : 0;
}

/* ---- those who wait ---- */

void sock_wait(struct sock *sock)
{
    if (sock->waiting) {
        return;
    }
    sock->waiting = true;
    sock->wait_seq = next_wait_seq++;
    sock->wait_since_ns = clock_now_ns();
    sock->wait_next = NULL;
    sock->wait_prev = wait_tail;
    if (wait_tail != NULL) {
        wait_tail->wait_next = sock;
    } else {
        wait_head = sock;
    }
    wait_tail = sock;
}

void sock_wait_end(struct sock *sock)
{
    if (!sock->waiting) {
        return;
    }
    sock->waiting = false;
    if (wait_cursor == sock) {
        wait_cursor = sock->wait_next;
    }
    if (sock->wait_prev != NULL) {
        sock->wait_prev->wait_next = sock->wait_next;
    } else {
        wait_head = sock->wait_next;
    }
    if (sock->wait_next != NULL) {
        sock->wait_next->wait_prev = sock->wait_prev;
    } else {
        wait_tail = sock->wait_prev;
    }
}

bool sock_pool_moved(const struct sock *sock)
{
    return netmem_frees() != sock->pool_frees_seen ||
           clock_now_ns() - sock->wait_since_ns >= POOL_RETRY_NS;
}

bool sock_any_waiting(void)
{
    return wait_head != NULL;
}

static void call_writable(struct sock *sock)
{
    sock_wait_end(sock);
    if (sock->kind == SOCK_UDP) {
        sock->stats.writable++;
    }
    if (sock->ops->writable != NULL) {
        sock_hold(sock);
        sock->ops->writable(sock, sock->arg);
        sock_release(sock);
    }
}

bool sock_run_writable(void)
{
    /* Who gets AGAIN during this run has a later number and waits for the next: one turn each. */
    uint64_t limit = next_wait_seq;
    bool any = false;
    wait_cursor = wait_head;
    while (wait_cursor != NULL && wait_cursor->wait_seq < limit) {
        struct sock *sock = wait_cursor;
        wait_cursor = sock->wait_next;
        if (sock->kind == SOCK_UDP ? sock_udp_ready(sock) : sock_tcp_ready(sock)) {
            call_writable(sock);
            any = true;
        }
    }
    wait_cursor = NULL;
    return any;
}

/* ---- events ---- */

static void deliver(void *arg)
{
    struct sock *sock = arg;
    sock_hold(sock);
    if (sock->event_connected) {
        sock->event_connected = false;
        if (sock->ops->connected != NULL) {
            sock->ops->connected(sock, sock->arg);
        }
    }
    if (sock->event_drained && !sock->closed) {
        sock->event_drained = false;
        if (sock->ops->drained != NULL) {
            sock->ops->drained(sock, sock->arg);
        }
    }
    if (sock->event_error != SOCK_ERR_NONE && !sock->closed) {
        enum sock_error error = sock->event_error;
        sock->event_error = SOCK_ERR_NONE;
        if (sock->ops->error != NULL) {
            sock->ops->error(sock, sock->arg, error);
        }
    }
    sock_release(sock);
}

void sock_post(struct sock *sock)
{
    net_defer(&sock->event, deliver, sock);
}

void sock_post_error(struct sock *sock, enum sock_error error)
{
    if (sock->event_error == SOCK_ERR_NONE) {
        sock->event_error = error;
    }
    sock_post(sock);
}

void sock_icmp_error(uint8_t protocol, uint16_t local_port, uint32_t remote_ip,
                     uint16_t remote_port, uint8_t code)
{
    enum sock_error error =
        code == ICMP_DUR_PORT || code == ICMP_DUR_PROTO ? SOCK_ERR_REFUSED : SOCK_ERR_ROUTE;
    for (struct sock *sock = all; sock != NULL; sock = sock->next) {
        if (protocol == IP_PROTO_UDP && sock->kind == SOCK_UDP &&
            sock->udp->local_port == local_port && sock->udp->remote_port == remote_port &&
            sock->remote_ip == remote_ip) {
            sock_post_error(sock, error);
        }
        /* RFC 1122 4.2.3.9: hard errors end an attempt to connect; an established connection lives
         * on. */
        if (protocol == IP_PROTO_TCP && sock->kind == SOCK_TCP && sock->tcp != NULL &&
            !sock->connected && sock->tcp->local_port == local_port &&
            sock->remote_port == remote_port && sock->remote_ip == remote_ip) {
            sock_post_error(sock, error);
        }
    }
}
