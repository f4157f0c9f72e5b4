/* SPDX-License-Identifier: BSD-2-Clause
 *
 * TCP streams over lwIP's callbacks. lwIP's send buffer is the backpressure: a write takes what
 * fits, and the rest is asked for again when a part of it was acknowledged.
 */
#include "sock_internal.h"

#include "boot/clock.h"
#include "net_internal.h"
#include "netmem.h"

#include "lwip/priv/tcp_priv.h"

/*
 * Without a limit of the application. Sending: below the 1000 packets of 1500 bytes that a common
 * queue holds, so that streams do not overflow it. They share it: lwIP walks a connection's queues
 * at each acknowledgement, and long ones of many connections fit no cache.
 */
#define DEFAULT_SEND_BYTES     (1024u * 1024)
#define DEFAULT_SEND_MIN_BYTES (64u * 1024)
#define DEFAULT_RECV_BYTES     (2u * 1024 * 1024)
#define INITIAL_CWND_SEGMENTS  10u    /* RFC 6928 */
#define MAX_WRITE_BYTES        65535u /* of tcp_write */
#define DRAIN_RECHECK_NS       1000000ull

/* Connections that ever had more to send than fitted. */
static unsigned n_bulk;

static void mark_bulk(struct sock *sock, bool bulk)
{
    if (sock->bulk != bulk) {
        sock->bulk = bulk;
        n_bulk = bulk ? n_bulk + 1 : n_bulk - 1;
    }
}

static void limit_windows(struct sock *sock, uint32_t window_bytes)
{
    sock->snd_limit_bytes = window_bytes != 0 ? LWIP_MIN(window_bytes, TCP_SND_BUF) : 0;
    sock->rcv_limit_bytes =
        window_bytes != 0 ? LWIP_MIN(window_bytes, TCP_WND) : DEFAULT_RECV_BYTES;
}

/*
 * lwIP opens with the largest window there is; before the first acknowledgement it becomes ours.
 * The edge goes back too, or all of the old window would go on being announced: what a peer sent
 * behind our own end of it would reach lwIP's queue of early segments, which asserts that there is
 * none. The peer has seen no more than the 65,535 bytes that fit the unscaled field of a SYN.
 */
static void apply_recv_limit(struct sock *sock)
{
    struct tcp_pcb *pcb = sock->tcp;
    if (pcb->rcv_wnd > sock->rcv_limit_bytes) {
        pcb->rcv_wnd = sock->rcv_limit_bytes;
        pcb->rcv_ann_wnd = sock->rcv_limit_bytes;
        pcb->rcv_ann_right_edge = pcb->rcv_nxt + LWIP_MIN(pcb->rcv_wnd, UINT16_MAX);
    }
}

static void start_windows(struct sock *sock)
{
    sock->tcp->cwnd = INITIAL_CWND_SEGMENTS * sock->tcp->mss;
    apply_recv_limit(sock);
}

/* ---- callbacks of lwIP ---- */

static err_t leave_callback(struct sock *sock)
{
    bool aborted = sock->aborted_in_callback;
    sock->in_callback = false;
    sock_release(sock);
    return aborted ? ERR_ABRT : ERR_OK;
}

static void enter_callback(struct sock *sock)
{
    sock_hold(sock);
    sock->in_callback = true;
}

static err_t on_received(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    struct sock *sock = arg;
    (void)err;
    if (p == NULL) {
        sock_post_error(sock, SOCK_ERR_CLOSED);
        return ERR_OK;
    }
    size_t offset = 0;
    enter_callback(sock);
    for (const struct pbuf *q = p; q != NULL && !sock->closed && sock->ops->received != NULL;
         q = q->next) {
        if (q->len != 0) {
            sock->ops->received(sock, sock->arg, q->payload, q->len, offset, p->tot_len,
                                sock->remote_ip, sock->remote_port);
        }
        offset += q->len;
    }
    if (!sock->closed && sock->tcp != NULL && !sock->hold) {
        tcp_recved(pcb, p->tot_len);
    }
    pbuf_free(p);
    return leave_callback(sock);
}

static bool all_acknowledged(const struct sock *sock)
{
    return sock->tcp == NULL || sock->tcp->snd_queuelen == 0;
}

/* Acknowledged is not enough: a retransmission of it may still be at the device, which reads the
 * payload there. */
static void check_drained(void *arg)
{
    struct sock *sock = arg;
    if (!sock->want_drained || !all_acknowledged(sock)) {
        return;
    }
    /* With the connection gone the port is not known any more; nothing is promised about its data
     * then. */
    if (sock->tcp != NULL && net_tcp_in_flight(sock->tcp->local_port) != 0) {
        net_timer_set(&sock->deadline, clock_now_ns() + DRAIN_RECHECK_NS, check_drained, sock);
        return;
    }
    sock->want_drained = false;
    sock->event_drained = true;
    sock_post(sock);
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t len)
{
    struct sock *sock = arg;
    sock->acked_bytes += len;
    if (pcb->snd_queuelen == 0 && sock->want_drained) {
        net_timer_set(&sock->deadline, 0, check_drained, sock);
    }
    return ERR_OK;
}

static enum sock_error meaning(const struct sock *sock, err_t err)
{
    switch (err) {
    case ERR_RST:
        return sock->connected ? SOCK_ERR_RESET : SOCK_ERR_REFUSED;
    case ERR_CLSD:
        return SOCK_ERR_CLOSED;
    default:
        /* Given up: by the count of retransmissions, else by the silence of keepalive. */
        return !sock->connected || sock->last_nrtx < TCP_MAXRTX ? SOCK_ERR_TIMEOUT
                                                                : SOCK_ERR_ABORTED;
    }
}

static void on_error(void *arg, err_t err)
{
    struct sock *sock = arg;
    sock->tcp = NULL;
    mark_bulk(sock, false);
    net_timer_clear(&sock->deadline);
    sock_post_error(sock, meaning(sock, err));
}

static err_t on_connected(void *arg, struct tcp_pcb *pcb, err_t err)
{
    struct sock *sock = arg;
    (void)pcb;
    (void)err;
    sock->connected = true;
    net_timer_clear(&sock->deadline);
    start_windows(sock);
    enter_callback(sock);
    if (sock->ops->connected != NULL) {
        sock->ops->connected(sock, sock->arg);
    }
    return leave_callback(sock);
}

static void attach(struct sock *sock, struct tcp_pcb *pcb)
{
    sock->tcp = pcb;
    tcp_arg(pcb, sock);
    tcp_recv(pcb, on_received);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_error);
}

static void detach(struct sock *sock)
{
    struct tcp_pcb *pcb = sock->tcp;
    sock->tcp = NULL;
    mark_bulk(sock, false);
    tcp_arg(pcb, NULL);
    if (sock->kind == SOCK_TCP_LISTEN) {
        tcp_accept(pcb, NULL);
        return;
    }
    tcp_recv(pcb, NULL);
    tcp_sent(pcb, NULL);
    tcp_err(pcb, NULL);
}

/* ---- connect ---- */

static void connect_failed(struct sock *sock, enum sock_error error)
{
    struct tcp_pcb *pcb = sock->tcp;
    detach(sock);
    tcp_abort(pcb);
    sock_post_error(sock, error);
}

static void connect_deadline(void *arg)
{
    struct sock *sock = arg;
    bool no_route;
    bool known = net_next_hop_known(sock->remote_ip, &no_route);
    connect_failed(sock, known ? SOCK_ERR_TIMEOUT : SOCK_ERR_ROUTE);
}

struct sock *sock_tcp_connect(const struct sock_ops *ops, void *arg, uint32_t ip, uint16_t port,
                              uint64_t deadline_ns, uint32_t window_bytes)
{
    struct sock *sock = sock_new(SOCK_TCP, ops, arg);
    struct tcp_pcb *pcb = sock != NULL ? tcp_new() : NULL;
    if (pcb == NULL) {
        if (sock != NULL) {
            sock_forget(sock);
        }
        return NULL;
    }
    sock->remote_ip = ip;
    sock->remote_port = port;
    limit_windows(sock, window_bytes);
    attach(sock, pcb);
    ip_addr_t remote = IPADDR4_INIT(lwip_htonl(ip));
    bool no_route = false;
    (void)net_next_hop_known(ip, &no_route);
    err_t err = ERR_RTE;
    if (!no_route) {
        err = tcp_connect(pcb, &remote, port, on_connected);
    }
    if (err != ERR_OK) {
        connect_failed(sock, err == ERR_RTE ? SOCK_ERR_ROUTE : SOCK_ERR_ABORTED);
        return sock;
    }
    net_timer_set_patient(&sock->deadline, clock_now_ns() + deadline_ns, connect_deadline, sock);
    return sock;
}

/* ---- listen ---- */

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    struct sock *listener = arg;
    if (err != ERR_OK || pcb == NULL || listener == NULL) {
        return ERR_VAL;
    }
    struct sock *sock = sock_new(SOCK_TCP, NULL, NULL);
    if (sock == NULL) {
        return ERR_MEM;
    }
    sock->remote_ip = lwip_ntohl(ip4_addr_get_u32(&pcb->remote_ip));
    sock->remote_port = pcb->remote_port;
    sock->connected = true;
    limit_windows(sock, 0);
    attach(sock, pcb);
    start_windows(sock);
    if (!listener->accept(listener->arg, sock, &sock->ops, &sock->arg)) {
        detach(sock);
        sock_forget(sock);
        return ERR_VAL; /* lwIP aborts the connection */
    }
    enter_callback(sock);
    if (sock->ops->connected != NULL) {
        sock->ops->connected(sock, sock->arg);
    }
    return leave_callback(sock);
}

struct sock *sock_tcp_listen(uint16_t port, sock_accept_fn accept, void *arg)
{
    struct sock *sock = sock_new(SOCK_TCP_LISTEN, NULL, arg);
    struct tcp_pcb *pcb = sock != NULL ? tcp_new() : NULL;
    if (pcb == NULL) {
        if (sock != NULL) {
            sock_forget(sock);
        }
        return NULL;
    }
    ip_set_option(pcb, SOF_REUSEADDR); /* connections of an earlier test may be in TIME_WAIT */
    struct tcp_pcb *listening =
        tcp_bind(pcb, IP4_ADDR_ANY, port) == ERR_OK ? tcp_listen(pcb) : NULL;
    if (listening == NULL) {
        tcp_close(pcb);
        sock_forget(sock);
        return NULL;
    }
    sock->accept = accept;
    sock->tcp = listening;
    tcp_arg(listening, sock);
    tcp_accept(listening, on_accept);
    return sock;
}

/* ---- write ---- */

static uint32_t send_limit_bytes(const struct sock *sock)
{
    if (sock->snd_limit_bytes != 0) {
        return sock->snd_limit_bytes;
    }
    return LWIP_MAX(DEFAULT_SEND_BYTES / LWIP_MAX(n_bulk, 1u), DEFAULT_SEND_MIN_BYTES);
}

static uint32_t room_bytes(const struct sock *sock)
{
    uint32_t used = TCP_SND_BUF - sock->tcp->snd_buf;
    uint32_t limit = send_limit_bytes(sock);
    return used >= limit ? 0 : LWIP_MIN(limit - used, sock->tcp->snd_buf);
}

bool sock_tcp_ready(struct sock *sock)
{
    if (sock->tcp == NULL) {
        return true; /* the next write says that it is over */
    }
    if (!sock->connected) {
        return false;
    }
    if (sock->no_memory && !sock_pool_moved(sock)) {
        return false;
    }
    /* A quarter at a time: fewer, larger writes make fewer, larger frames. */
    return room_bytes(sock) >= send_limit_bytes(sock) / 4;
}

/*
 * lwIP cuts segments to half of the largest window that it has seen, but to the whole segment size
 * while that half is 0. A first real window would make them smaller than what it has begun, which
 * it asserts never happens: a peer that opens with no window and goes on with a small one would end
 * us. So they stay whole; what a window does not hold is split when it is sent.
 */
static void keep_segment_size(struct tcp_pcb *pcb)
{
    if (pcb->snd_wnd_max < 2) {
        pcb->snd_wnd_max = 2u * pcb->mss;
    }
}

int64_t sock_tcp_write(struct sock *sock, const void *data, size_t len, bool copy)
{
    struct tcp_pcb *pcb = sock->tcp;
    size_t done = 0;
    if (pcb == NULL || !sock->connected) {
        return SOCK_FATAL;
    }
    sock->no_memory = false;
    keep_segment_size(pcb);
    while (done < len) {
        size_t n = LWIP_MIN(len - done, LWIP_MIN(room_bytes(sock), MAX_WRITE_BYTES));
        if (n == 0) {
            break;
        }
        uint8_t flags = copy ? TCP_WRITE_FLAG_COPY : 0;
        if (done + n < len) {
            flags |= TCP_WRITE_FLAG_MORE;
        }
        err_t err = tcp_write(pcb, (const uint8_t *)data + done, (u16_t)n, flags);
        if (err == ERR_MEM) {
            sock->no_memory = true;
            sock->pool_frees_seen = netmem_frees();
            break;
        }
        if (err != ERR_OK) {
            return SOCK_FATAL;
        }
        done += n;
    }
    if (done != 0) {
        sock->want_drained = true;
        tcp_output(pcb);
    }
    if (done < len) {
        mark_bulk(sock, true);
        sock_wait(sock);
    }
    return (int64_t)done;
}

/* ---- the rest ---- */

void sock_tcp_hold(struct sock *sock, uint32_t window_bytes)
{
    sock->hold = true;
    sock->rcv_limit_bytes = LWIP_MIN(window_bytes, sock->rcv_limit_bytes);
    if (sock->tcp != NULL) {
        apply_recv_limit(sock);
    }
}

void sock_tcp_consumed(struct sock *sock, size_t bytes)
{
    while (bytes != 0 && sock->tcp != NULL) {
        u16_t part = (u16_t)LWIP_MIN(bytes, UINT16_MAX); /* tcp_recved takes 16 bits */
        tcp_recved(sock->tcp, part);
        bytes -= part;
    }
}

void sock_tcp_nodelay(struct sock *sock, bool on)
{
    if (sock->tcp == NULL) {
        return;
    }
    if (on) {
        tcp_nagle_disable(sock->tcp);
    } else {
        tcp_nagle_enable(sock->tcp);
    }
}

void sock_tcp_keepalive(struct sock *sock, unsigned idle_s, unsigned interval_s, unsigned count)
{
    if (sock->tcp == NULL) {
        return;
    }
    ip_set_option(sock->tcp, SOF_KEEPALIVE);
    sock->tcp->keep_idle = idle_s * 1000u;
    sock->tcp->keep_intvl = interval_s * 1000u;
    sock->tcp->keep_cnt = count;
}

uint64_t sock_tcp_silent_ns(const struct sock *sock)
{
    if (sock->tcp == NULL) {
        return 0;
    }
    return (uint64_t)(tcp_ticks - sock->tcp->tmr) * TCP_SLOW_INTERVAL * (CLOCK_NS_PER_S / 1000);
}

void sock_tcp_probe(struct sock *sock)
{
    if (sock->tcp != NULL && sock->connected) {
        tcp_keepalive(sock->tcp);
    }
}

uint64_t sock_tcp_retransmits(const struct sock *sock)
{
    return sock->retransmits;
}

uint64_t sock_tcp_bytes_acked(const struct sock *sock)
{
    return sock->acked_bytes;
}

uint16_t sock_tcp_mss(const struct sock *sock)
{
    return sock->tcp != NULL ? sock->tcp->mss : 0;
}

void sock_tcp_note(struct tcp_pcb *pcb)
{
    struct sock *sock = pcb->callback_arg;
    /* Before it is accepted the argument is its listener's, who may be gone. */
    if (sock != NULL && pcb->state != SYN_RCVD) {
        sock->last_nrtx = pcb->nrtx;
    }
}

void sock_tcp_close(struct sock *sock, bool abort_now)
{
    struct tcp_pcb *pcb = sock->tcp;
    if (pcb == NULL) {
        return;
    }
    detach(sock);
    if (abort_now && sock->kind == SOCK_TCP) {
        sock->aborted_in_callback = sock->in_callback;
        tcp_abort(pcb);
        return;
    }
    if (sock->kind == SOCK_TCP) {
        /* lwIP takes a window below its largest for data that nobody read, and would reset. */
        pcb->rcv_wnd = TCP_WND_MAX(pcb);
    }
    if (tcp_close(pcb) != ERR_OK) {
        tcp_abort(pcb);
        sock->aborted_in_callback = sock->in_callback;
    }
}
