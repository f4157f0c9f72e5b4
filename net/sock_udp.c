/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Datagrams with backpressure: nothing is built before ring, credit and pool all have room, and the
 * credit comes back when the last reference to the buffer is gone.
 *
 *     struct udp_buf   [pbuf_custom ...][ headroom: net, Ethernet, IP, UDP header ][ payload ]
 *                                       ^ lwIP pushes headers to the left           ^ the
 * application writes here
 *
 * Buffers stay with the socket that used them last, payload and all.
 */
#include "sock_internal.h"

#include <string.h>

#include "boot/clock.h"
#include "boot/panic.h"
#include "net_internal.h"
#include "netmem.h"

#include "lwip/ip4_frag.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/udp.h"
#include "lwip/udp.h"

/* Net header, outer headers of a tunnel, Ethernet, IPv4 with its longest options, UDP; rounded up
 * to lines. */
#define HEADROOM_BYTES    192u
#define MAX_PAYLOAD_BYTES 65507u

struct udp_buf {
    struct pbuf_custom custom; /* first: pbuf_free comes back with its address */
    struct udp_buf *next;
    struct sock *owner;
    uint32_t true_bytes, capacity_bytes;
    uint32_t len_bytes; /* payload of its last use */
    bool taken;         /* placed in the ring at least in part */
    bool committed, aborted;
    _Alignas(16) uint8_t headroom[HEADROOM_BYTES];
    uint8_t payload[];
};

/*
 * lwIP's check of a header push guards only struct pbuf, so a push too long would overwrite the
 * members above. 60: the longest IPv4 header; it covers TCP with options on a plain one too.
 */
_Static_assert(HEADROOM_BYTES >= 60 + 14 + 12 + 8, "headers fit in front of the payload");
_Static_assert(HEADROOM_BYTES >= PBUF_TRANSPORT + 8,
               "what lwIP takes for a transport header's room is there");
_Static_assert(sizeof(struct udp_buf) + MAX_PAYLOAD_BYTES <= NETMEM_MAX_BYTES,
               "the largest datagram fits a block");

static void buf_free(struct pbuf *p);

const uint8_t *sock_udp_headroom_start(const struct pbuf *p)
{
    const struct pbuf_custom *custom = (const struct pbuf_custom *)p;
    return custom->custom_free_function == buf_free ? ((const struct udp_buf *)p)->headroom : NULL;
}

/* ---- buffers ---- */

static void buf_discard(struct udp_buf *buf)
{
    net.tx_bufs--;
    net.tx_bufs_free--;
    netmem_free(buf);
}

static struct udp_buf *buf_make(struct sock *sock, size_t len)
{
    struct udp_buf *buf = netmem_alloc(sizeof(*buf) + len);
    if (buf == NULL) {
        return NULL;
    }
    size_t true_bytes = netmem_true_bytes(sizeof(*buf) + len);
    memset(buf, 0, sizeof(*buf));
    buf->owner = sock;
    buf->true_bytes = (uint32_t)true_bytes;
    buf->capacity_bytes = (uint32_t)len;
    buf->custom.custom_free_function = buf_free;
    buf->custom.pbuf.type_internal = (uint8_t)PBUF_RAM;
    buf->custom.pbuf.flags = PBUF_FLAG_IS_CUSTOM;
    net.tx_bufs++;
    net.tx_bufs_free++;
    return buf;
}

/* A buffer for len bytes: a warm one, else a new one. */
static struct udp_buf *buf_take(struct sock *sock, size_t len, bool *fresh)
{
    struct udp_buf *buf;
    while ((buf = sock->free_bufs) != NULL) {
        sock->free_bufs = buf->next;
        if (buf->len_bytes == len || buf->capacity_bytes == len) {
            *fresh = buf->len_bytes != len;
            return buf;
        }
        buf_discard(buf); /* the socket changed its size: its old buffers go back to the pool */
    }
    *fresh = true;
    return buf_make(sock, len);
}

/* Anew for each use: the stack moved payload and lengths. */
static void buf_arm(struct udp_buf *buf, size_t len)
{
    struct pbuf *p = &buf->custom.pbuf;
    buf->len_bytes = (uint32_t)len;
    buf->taken = false;
    buf->committed = false;
    buf->aborted = false;
    p->next = NULL;
    p->payload = buf->payload;
    p->len = p->tot_len = (uint16_t)len;
    p->flags = PBUF_FLAG_IS_CUSTOM;
    p->ref = 1;
    p->if_idx = 0;
}

/* The last reference is gone: credit. */
static void buf_free(struct pbuf *p)
{
    struct udp_buf *buf = (struct udp_buf *)p;
    struct sock *sock = buf->owner;
    net.tx_bufs_free++;
    sock->charged_bytes -= buf->true_bytes;
    sock->stats.credited_bytes += buf->true_bytes;
    net.credited_bytes += buf->true_bytes;
    if (buf->taken && buf->aborted) {
        sock->stats.aborted++;
    } else if (buf->taken) {
        sock->stats.consumed++;
    } else if (buf->committed) {
        /* It waited for an address that did not come. */
        net.stats.arp_queue_drop++;
        net.arp_pending_ip = 0;
        if (!sock->closed) {
            sock_post_error(sock, SOCK_ERR_ROUTE);
        }
    }
    if (sock->closed) {
        buf_discard(buf);
    } else {
        buf->next = sock->free_bufs;
        sock->free_bufs = buf;
    }
    sock_release(sock);
}

/* The datagram that a frame is, or is a fragment of; NULL: of no socket. */
static struct udp_buf *buf_of(struct pbuf *p)
{
    if ((p->flags & PBUF_FLAG_IS_CUSTOM) != 0) {
        return sock_udp_headroom_start(p) != NULL ? (struct udp_buf *)p : NULL;
    }
    /* A fragment: lwIP's header, then a reference to part of the datagram. */
    struct pbuf *part = p->next;
    if (part == NULL || (part->flags & PBUF_FLAG_IS_CUSTOM) == 0) {
        return NULL;
    }
    p = ((struct pbuf_custom_ref *)part)->original;
    bool ours = p != NULL && (p->flags & PBUF_FLAG_IS_CUSTOM) != 0;
    return ours && sock_udp_headroom_start(p) != NULL ? (struct udp_buf *)p : NULL;
}

void sock_udp_mark_taken(struct pbuf *p)
{
    struct udp_buf *buf = buf_of(p);
    if (buf == NULL || buf->taken) {
        return;
    }
    buf->taken = true;
    buf->owner->stats.queued++;
    if (buf->committed) {
        net.arp_pending_ip = 0; /* its address came */
    }
}

void sock_udp_mark_aborted(struct pbuf *p)
{
    struct udp_buf *buf = buf_of(p);
    if (buf != NULL) {
        buf->aborted = true;
    }
}

/* ---- the gate ---- */

/* One datagram may wait for an address, whoever sent it: a queue of them would go out at once when
 * it comes. */
static bool address_known(struct sock *sock)
{
    bool no_route;
    if (net_path(sock->remote_ip) != &net.netif && !net_vxlan_ready()) {
        return false;
    }
    if (net.arp_pending_ip == 0 || net.arp_pending_ip != sock->remote_ip) {
        return true;
    }
    if (!net_next_hop_known(sock->remote_ip, &no_route)) {
        return false;
    }
    net.arp_pending_ip = 0;
    return true;
}

bool sock_udp_ready(struct sock *sock)
{
    if (sock->pool_empty && sock->free_bufs == NULL && !sock_pool_moved(sock)) {
        return false;
    }
    return net_tx_open() && sock->charged_bytes < sock->sndbuf_bytes && address_known(sock);
}

static enum sock_result again(struct sock *sock)
{
    sock->stats.again++;
    sock_wait(sock);
    return SOCK_AGAIN;
}

enum sock_result sock_udp_reserve(struct sock *sock, size_t len, uint8_t **payload, bool *fresh)
{
    if (len == 0 || len > net.max_datagram_bytes) {
        return SOCK_FATAL;
    }
    if (sock->reserved != NULL) {
        sock_udp_cancel(sock);
    }
    if (sock->charged_bytes >= sock->sndbuf_bytes || !net_tx_open() || !address_known(sock)) {
        return again(sock);
    }
    struct udp_buf *buf = buf_take(sock, len, fresh);
    if (buf == NULL) {
        sock->pool_empty = true;
        sock->pool_frees_seen = netmem_frees();
        return again(sock);
    }
    sock->pool_empty = false;
    buf_arm(buf, len);
    sock->reserved = buf;
    *payload = buf->payload;
    return SOCK_OK;
}

void sock_udp_cancel(struct sock *sock)
{
    struct udp_buf *buf = sock->reserved;
    if (buf == NULL) {
        return;
    }
    sock->reserved = NULL;
    buf->len_bytes = 0; /* half written: the next user must not take it for its own */
    buf->next = sock->free_bufs;
    sock->free_bufs = buf;
}

static void charge(struct sock *sock, struct udp_buf *buf)
{
    sock_hold(sock); /* until the buffer is back */
    net.tx_bufs_free--;
    sock->charged_bytes += buf->true_bytes;
    sock->stats.charged_bytes += buf->true_bytes;
    net.charged_bytes += buf->true_bytes;
}

/* Down the stack. The buffer is built now: whatever happens, it is not sent again (its headers are
 * pushed). */
static err_t send_down(struct sock *sock, struct udp_buf *buf, const ip_addr_t *ip, uint16_t port)
{
    struct netif *path = net_path(lwip_ntohl(ip4_addr_get_u32(ip)));
    uint16_t checks = path->chksum_flags;
    if (buf->len_bytes + UDP_HLEN + IP_HLEN > path->mtu) {
        /* A device cannot checksum across fragments. */
        NETIF_SET_CHECKSUM_CTRL(path, (uint16_t)(checks | NETIF_CHECKSUM_GEN_UDP));
    }
    net.tx_is_data = true;
    err_t result = udp_sendto(sock->udp, &buf->custom.pbuf, ip, port);
    net.tx_is_data = false;
    NETIF_SET_CHECKSUM_CTRL(path, checks);
    return result;
}

static enum sock_result commit(struct sock *sock, const ip_addr_t *ip, uint16_t port)
{
    struct udp_buf *buf = sock->reserved;
    invariant(buf != NULL);
    if (!net_tx_open()) {
        /* Something else went out since the reservation. Nothing was built yet, so nothing is lost.
         */
        sock_udp_cancel(sock);
        return again(sock);
    }
    sock->reserved = NULL;
    charge(sock, buf);
    err_t result = send_down(sock, buf, ip, port);
    enum sock_result outcome = SOCK_OK;
    if (!buf->taken && buf->custom.pbuf.ref > 1) {
        buf->committed = true; /* in the queue of an address to be resolved */
        net.arp_pending_ip = sock->remote_ip;
    } else if (!buf->taken) {
        sock->stats.send_errors++;
        net.stats.tx_no_route += result == ERR_RTE;
        outcome = SOCK_FATAL;
    }
    pbuf_free(&buf->custom.pbuf);
    return outcome;
}

enum sock_result sock_udp_commit(struct sock *sock)
{
    return commit(sock, &sock->udp->remote_ip, sock->udp->remote_port);
}

enum sock_result sock_udp_commit_to(struct sock *sock, uint32_t ip, uint16_t port)
{
    ip_addr_t to = IPADDR4_INIT(lwip_htonl(ip));
    sock->remote_ip = ip;
    return commit(sock, &to, port);
}

/* ---- life ---- */

static void udp_received(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *addr,
                         u16_t port)
{
    struct sock *sock = arg;
    uint32_t from = lwip_ntohl(ip4_addr_get_u32(addr));
    size_t offset = 0, total = p->tot_len;
    (void)pcb;
    sock_hold(sock);
    for (const struct pbuf *q = p; q != NULL && !sock->closed && sock->ops->received != NULL;
         q = q->next) {
        if (q->len != 0 || total == 0) {
            sock->ops->received(sock, sock->arg, q->payload, q->len, offset, total, from, port);
        }
        offset += q->len;
    }
    sock_release(sock);
    pbuf_free(p);
}

struct sock *sock_udp_open(const struct sock_ops *ops, void *arg, uint32_t sndbuf_bytes)
{
    struct sock *sock = sock_new(SOCK_UDP, ops, arg);
    if (sock == NULL) {
        return NULL;
    }
    sock->sndbuf_bytes = sndbuf_bytes;
    sock->udp = udp_new();
    if (sock->udp == NULL) {
        sock_forget(sock);
        return NULL;
    }
    udp_recv(sock->udp, udp_received, sock);
    return sock;
}

enum sock_result sock_udp_bind(struct sock *sock, uint16_t port)
{
    return udp_bind(sock->udp, IP4_ADDR_ANY, port) == ERR_OK ? SOCK_OK : SOCK_FATAL;
}

enum sock_result sock_udp_connect(struct sock *sock, uint32_t ip, uint16_t port)
{
    ip_addr_t remote = IPADDR4_INIT(lwip_htonl(ip));
    sock->remote_ip = ip;
    return udp_connect(sock->udp, &remote, port) == ERR_OK ? SOCK_OK : SOCK_FATAL;
}

void sock_udp_stats(const struct sock *sock, struct sock_udp_stats *out)
{
    *out = sock->stats;
}

void sock_udp_close(struct sock *sock)
{
    sock_udp_cancel(sock);
    udp_remove(sock->udp);
    sock->udp = NULL;
    struct udp_buf *buf;
    while ((buf = sock->free_bufs) != NULL) {
        sock->free_bufs = buf->next;
        buf_discard(buf);
    }
}
