/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Between lwIP's netif and the driver. Down: a frame's pbufs become the driver's segments, with one
 * reference until tx_done. Up: the driver's pieces become a chain of pbufs, each of which gives its
 * buffer back when it is freed.
 */
#include <stddef.h>
#include <string.h>

#include "boot/panic.h"
#include "checksum.h"
#include "net_internal.h"
#include "netmem.h"
#include "sock_internal.h"

#include "lwip/etharp.h"
#include "lwip/ip4.h"
#include "lwip/prot/ethernet.h"
#include "lwip/prot/ip.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/tcp.h"
#include "lwip/prot/udp.h"

#define ETH_BYTES             14u
#define IP_OFFSET_BYTES       ETH_BYTES
#define IP_PROTO_OFFSET_BYTES (ETH_BYTES + 9u)
#define L4_OFFSET_BYTES       (ETH_BYTES + IP_HLEN) /* we send no IP options */

_Static_assert(PBUF_LINK_ENCAPSULATION_HLEN >= VIRTIO_NET_HDR_MAX_BYTES,
               "the net header needs no descriptor");

/* ---- down ---- */

struct frame_kind {
    bool tcp, udp, fragment;
    uint16_t tcp_payload_bytes;
};

static const struct tcp_hdr *tcp_of(const struct pbuf *p)
{
    return (const struct tcp_hdr *)(const void *)((const uint8_t *)p->payload + L4_OFFSET_BYTES);
}

static struct frame_kind classify(const struct pbuf *p)
{
    struct frame_kind kind = {0};
    const struct eth_hdr *eth = p->payload;
    if (eth->type != PP_HTONS(ETHTYPE_IP) || p->len < L4_OFFSET_BYTES) {
        return kind;
    }
    const struct ip_hdr *ip =
        (const struct ip_hdr *)(const void *)((const uint8_t *)p->payload + IP_OFFSET_BYTES);
    kind.fragment = (IPH_OFFSET(ip) & PP_HTONS(IP_OFFMASK | IP_MF)) != 0;
    kind.udp = IPH_PROTO(ip) == IP_PROTO_UDP;
    if (IPH_PROTO(ip) == IP_PROTO_TCP && !kind.fragment && p->len >= L4_OFFSET_BYTES + TCP_HLEN) {
        kind.tcp = true;
        kind.tcp_payload_bytes =
            (uint16_t)(p->tot_len - L4_OFFSET_BYTES - TCPH_HDRLEN_BYTES(tcp_of(p)));
    }
    return kind;
}

uint16_t netif_virtio_headroom(const struct pbuf *p)
{
    if ((p->type_internal & PBUF_TYPE_FLAG_STRUCT_DATA_CONTIGUOUS) == 0) {
        return 0;
    }
    const uint8_t *start = (p->flags & PBUF_FLAG_IS_CUSTOM) != 0
                               ? sock_udp_headroom_start(p)
                               : (const uint8_t *)p + LWIP_MEM_ALIGN_SIZE(sizeof(struct pbuf));
    return start == NULL ? 0 : (uint16_t)((const uint8_t *)p->payload - start);
}

/* The checksum field gets the pseudo header's sum, the device adds the rest. */
static void request_own_checksum(struct virtio_net_tx_frame *frame, struct pbuf *p,
                                 const struct frame_kind *kind)
{
    uint8_t *ip_start = (uint8_t *)p->payload + IP_OFFSET_BYTES;
    const struct ip_hdr *ip = (const struct ip_hdr *)(const void *)ip_start;
    uint16_t length = (uint16_t)(p->tot_len - L4_OFFSET_BYTES);
    uint16_t sum = checksum_pseudo(ip->src.addr, ip->dest.addr, IPH_PROTO(ip), length);
    if (kind->tcp) {
        ((struct tcp_hdr *)(void *)(ip_start + IP_HLEN))->chksum = sum;
        frame->csum_offset = offsetof(struct tcp_hdr, chksum);
    } else {
        struct udp_hdr *udp = (struct udp_hdr *)(void *)(ip_start + IP_HLEN);
        if (udp->chksum != 0) {
            return; /* done in software */
        }
        udp->chksum = sum;
        frame->csum_offset = offsetof(struct udp_hdr, chksum);
    }
    frame->csum_partial = true;
    frame->csum_start = L4_OFFSET_BYTES;
}

static void request_checksum(struct virtio_net_tx_frame *frame, struct pbuf *p,
                             const struct frame_kind *kind)
{
    if (!net.tunnel.active || net.tunnel.outer_csum) {
        request_own_checksum(frame, p, kind);
    } else if (net.tunnel.csum_start != 0) {
        frame->csum_partial = true;
        frame->csum_start = net.tunnel.csum_start;
        frame->csum_offset = net.tunnel.csum_offset;
    }
}

static uint16_t tcp_data_frames[256];

unsigned net_tcp_in_flight(uint16_t local_port)
{
    return tcp_data_frames[local_port & 255u];
}

void net_tcp_in_flight_add(const struct tcp_hdr *tcp, int change)
{
    uint16_t *count = &tcp_data_frames[lwip_ntohs(tcp->src) & 255u];
    *count = (uint16_t)(*count + change);
}

/* Of a frame with TCP payload, in a tunnel or not. */
static const struct tcp_hdr *data_tcp_of(const struct pbuf *p)
{
    const uint8_t *frame = p->payload;
    size_t inner = frame[IP_PROTO_OFFSET_BYTES] == IP_PROTO_UDP ? NET_TUNNEL_BYTES : 0;
    return (const struct tcp_hdr *)(const void *)(frame + L4_OFFSET_BYTES + inner);
}

static enum virtio_net_result send_kind(struct pbuf *p, bool control, const struct frame_kind *kind)
{
    struct virtio_net_seg segs[VIRTIO_NET_TX_MAX_PIECES];
    struct virtio_net_tx_frame frame = {0};
    uint16_t n = 0;
    for (const struct pbuf *q = p; q != NULL; q = q->next) {
        if (q->len == 0) {
            continue;
        }
        if (n == VIRTIO_NET_TX_MAX_PIECES) {
            return VIRTIO_NET_FATAL;
        }
        segs[n].addr = q->payload;
        segs[n].len_bytes = q->len;
        n++;
    }
    frame.segs = segs;
    frame.n_segs = n;
    frame.headroom_bytes = netif_virtio_headroom(p);
    frame.control = control;
    frame.cookie = p;
    if ((kind->tcp || (kind->udp && !kind->fragment)) && net.info->can_csum) {
        request_checksum(&frame, p, kind);
    }
    bool tcp_data = (kind->tcp && kind->tcp_payload_bytes != 0) ||
                    (net.tunnel.active && net.tunnel.tcp_data &&
                     p->len >= L4_OFFSET_BYTES + NET_TUNNEL_BYTES + TCP_HLEN);
    if (tcp_data) {
        frame.cookie = (void *)((uintptr_t)p | COOKIE_TCP_DATA);
    }
    enum virtio_net_result result = virtio_net_tx_add(net.dev, NET_PAIR, &frame);
    if (tcp_data && result == VIRTIO_NET_OK) {
        net_tcp_in_flight_add(data_tcp_of(p), 1);
    }
    net.stats.udp_frames_out += kind->udp && result == VIRTIO_NET_OK;
    return result;
}

enum virtio_net_result netif_virtio_send(struct pbuf *p, bool control)
{
    struct frame_kind kind = classify(p);
    return send_kind(p, control, &kind);
}

/* A segment written in many small pieces: one copy instead of a chain that no descriptor table
 * holds. */
static err_t send_copy(struct pbuf *p, bool control, const struct frame_kind *kind)
{
    struct pbuf *copy = pbuf_clone(PBUF_RAW_TX, PBUF_RAM, p);
    if (copy == NULL) {
        return ERR_MEM;
    }
    if (send_kind(copy, control, kind) != VIRTIO_NET_OK) {
        pbuf_free(copy);
        return ERR_MEM;
    }
    return ERR_OK;
}

static err_t send_plain(struct pbuf *p, bool control, const struct frame_kind *kind)
{
    /* More pieces than a unit has room for would break what a positive room check promised. */
    if (p->next != NULL && pbuf_clen(p) > net.info->tx_max_segs) {
        return send_copy(p, control, kind);
    }
    pbuf_ref(p);
    if (send_kind(p, control, kind) != VIRTIO_NET_OK) {
        pbuf_free(p);
        return ERR_MEM;
    }
    return ERR_OK;
}

/* Before any reference: after one, TCP would take the segment for sent. */
err_t netif_virtio_refuse(void)
{
    net.stats.tx_refused++;
    net.tcp_refused = true;
    return ERR_MEM;
}

static err_t send_tcp_data(struct pbuf *p, const struct frame_kind *kind)
{
    enum offload_verdict verdict = OFFLOAD_PLAIN;
    if (net.info->can_tso) {
        verdict = offload_segment(p, kind->tcp_payload_bytes);
    } else if (virtio_net_tx_stopped(net.dev, NET_PAIR)) {
        verdict = OFFLOAD_REFUSE;
    }
    switch (verdict) {
    case OFFLOAD_TAKEN:
        return ERR_OK;
    case OFFLOAD_REFUSE:
        return netif_virtio_refuse();
    case OFFLOAD_PLAIN:
    default:
        return send_plain(p, false, kind);
    }
}

/*
 * From IP, before the address is resolved. TCP's data is refused here already while stopped: in the
 * queue of an address it would count as sent, and be dropped there when no answer comes.
 */
err_t netif_virtio_ip_output(struct netif *netif, struct pbuf *p, const ip4_addr_t *to)
{
    const struct ip_hdr *ip = p->payload;
    if (virtio_net_tx_stopped(net.dev, NET_PAIR) && IPH_PROTO(ip) == IP_PROTO_TCP &&
        p->len >= IP_HLEN + TCP_HLEN) {
        const struct tcp_hdr *tcp =
            (const struct tcp_hdr *)(const void *)((const uint8_t *)ip + IP_HLEN);
        if (p->tot_len > IP_HLEN + TCPH_HDRLEN_BYTES(tcp) && !offload_may_join(&ip->src)) {
            return netif_virtio_refuse();
        }
    }
    return etharp_output(netif, p, to);
}

static err_t link_output(struct netif *netif, struct pbuf *p)
{
    (void)netif;
    struct frame_kind kind = classify(p);
    if (!net.link_up) {
        net.stats.tx_link_down++;
        return ERR_IF;
    }
    if (kind.tcp) {
        if (kind.tcp_payload_bytes != 0) {
            return send_tcp_data(p, &kind);
        }
        offload_before(p);
        return send_plain(p, true, &kind);
    }
    if (!kind.udp) {
        return send_plain(p, true, &kind);
    }
    err_t result = send_plain(p, !net.tx_is_data, &kind);
    if (result == ERR_OK) {
        sock_udp_mark_taken(p);
        net.stats.ip_fragments += kind.fragment;
    }
    return result;
}

static void tx_done(void *ctx, unsigned pair, void *cookie, bool aborted)
{
    (void)ctx;
    (void)pair;
    void *what = (void *)((uintptr_t)cookie & ~(uintptr_t)COOKIE_BITS);
    if (((uintptr_t)cookie & COOKIE_JOINED) != 0) {
        net_tcp_in_flight_add(offload_tcp(what), -1);
        offload_done(what);
    } else {
        if (((uintptr_t)cookie & COOKIE_TCP_DATA) != 0) {
            net_tcp_in_flight_add(data_tcp_of(what), -1);
        }
        if (aborted) {
            sock_udp_mark_aborted(what);
        }
        pbuf_free(what);
    }
}

static void tx_wake(void *ctx, unsigned pair)
{
    (void)ctx;
    (void)pair;
    /* TCP is told from the poll loop: this may come from inside one of its own calls. */
    net.tx_wake_pending = true;
}

/* ---- up ---- */

struct rx_pbuf {
    struct pbuf_custom custom;
    void *buf;
    uint32_t generation; /* of the device that the buffer belongs to */
};

static void rx_pbuf_free(struct pbuf *p)
{
    struct rx_pbuf *rx = (struct rx_pbuf *)p;
    if (net.dev != NULL && rx->generation == net.generation) {
        net.rx_pinned--;
        virtio_net_rx_return(net.dev, rx->buf);
    }
    netmem_free(rx);
}

static void return_from(const struct virtio_net_rx_packet *packet, unsigned first)
{
    for (unsigned i = first; i < packet->n_pieces; i++) {
        virtio_net_rx_return(net.dev, packet->pieces[i].buf);
    }
}

/* The packet without its first `skip` bytes as a chain that refers to the driver's buffers. */
static struct pbuf *chain_by_reference(const struct virtio_net_rx_packet *packet, uint32_t skip)
{
    struct pbuf *head = NULL, **link = &head;
    uint32_t left = packet->len_bytes - skip;
    for (unsigned i = 0; i < packet->n_pieces; i++) {
        const struct virtio_net_rx_piece *piece = &packet->pieces[i];
        if (piece->len_bytes <= skip) {
            skip -= piece->len_bytes;
            virtio_net_rx_return(net.dev, piece->buf);
            continue;
        }
        struct rx_pbuf *rx = netmem_alloc(sizeof(*rx));
        if (rx == NULL) {
            return_from(packet, i);
            if (head != NULL) {
                pbuf_free(head);
            }
            return NULL;
        }
        uint16_t len = (uint16_t)(piece->len_bytes - skip);
        rx->custom.custom_free_function = rx_pbuf_free;
        rx->buf = piece->buf;
        rx->generation = net.generation;
        struct pbuf *p =
            pbuf_alloced_custom(PBUF_RAW, len, PBUF_REF, &rx->custom, piece->addr + skip, len);
        skip = 0;
        net.rx_pinned++;
        p->tot_len = (uint16_t)left;
        left -= len;
        *link = p;
        link = &p->next;
    }
    return head;
}

/* Many buffers are pinned by segments out of order and fragments: this one is copied, so that the
 * ring stays full. */
static struct pbuf *copy_packet(const struct virtio_net_rx_packet *packet, uint32_t skip)
{
    struct pbuf *p = pbuf_alloc(PBUF_RAW, (uint16_t)(packet->len_bytes - skip), PBUF_RAM);
    uint8_t *to = p != NULL ? p->payload : NULL;
    for (unsigned i = 0; i < packet->n_pieces; i++) {
        const struct virtio_net_rx_piece *piece = &packet->pieces[i];
        uint32_t hidden = skip < piece->len_bytes ? skip : piece->len_bytes;
        if (to != NULL) {
            memcpy(to, piece->addr + hidden, piece->len_bytes - hidden);
            to += piece->len_bytes - hidden;
        }
        skip -= hidden;
        virtio_net_rx_return(net.dev, piece->buf);
    }
    return p;
}

/* The device vouches for a whole packet, never for fragments: those are checked when they are
 * together again. */
static void set_checks(const struct pbuf *p, bool vouched)
{
    uint16_t flags = net.csum_flags;
    const struct ip_hdr *ip = p->payload;
    bool fragment = p->len >= IP_HLEN && (IPH_OFFSET(ip) & PP_HTONS(IP_OFFMASK | IP_MF)) != 0;
    if (vouched && !fragment) {
        flags = (uint16_t)(flags & ~(NETIF_CHECKSUM_CHECK_UDP | NETIF_CHECKSUM_CHECK_TCP));
    }
    NETIF_SET_CHECKSUM_CTRL(&net.netif, flags);
}

static bool for_us(const struct eth_hdr *eth)
{
    return (eth->dest.addr[0] & 1) != 0 ||
           memcmp(&eth->dest, net.netif.hwaddr, ETH_HWADDR_LEN) == 0;
}

void netif_virtio_arp(struct pbuf *p, struct netif *netif)
{
    if (p->len < SIZEOF_ETHARP_HDR) {
        ETHARP_STATS_INC(etharp.lenerr);
        ETHARP_STATS_INC(etharp.drop);
        pbuf_free(p);
        return;
    }
    etharp_input(p, netif);
}

void netif_virtio_ip(struct pbuf *p, struct netif *netif)
{
    if (p->len < IP_HLEN) {
        IP_STATS_INC(ip.lenerr);
        IP_STATS_INC(ip.drop);
        pbuf_free(p);
        return;
    }
    ip4_input(p, netif);
}

static void rx(void *ctx, unsigned pair, const struct virtio_net_rx_packet *packet)
{
    (void)ctx;
    (void)pair;
    const struct eth_hdr *eth = (const struct eth_hdr *)(const void *)packet->pieces[0].addr;
    uint16_t type = eth->type;
    bool broadcast = (eth->dest.addr[0] & 1) != 0;
    bool known = type == PP_HTONS(ETHTYPE_IP) || type == PP_HTONS(ETHTYPE_ARP);
    /* pbuf lengths have 16 bits: of a coalesced packet only what follows the Ethernet header fits.
     */
    if (!known || !for_us(eth) || packet->len_bytes - ETH_BYTES > 65535u ||
        packet->len_bytes <= ETH_BYTES) {
        return_from(packet, 0);
        return;
    }
    bool pinned = net.rx_pinned + packet->n_pieces > net.rx_pin_limit;
    struct pbuf *p =
        pinned ? copy_packet(packet, ETH_BYTES) : chain_by_reference(packet, ETH_BYTES);
    if (p == NULL) {
        net.stats.rx_no_pbuf++;
        return;
    }
    net.stats.lro_frames += packet->coalesced;
    p->if_idx = netif_get_index(&net.netif);
    p->flags |= broadcast ? PBUF_FLAG_LLBCAST : 0;
    if (type == PP_HTONS(ETHTYPE_ARP)) {
        netif_virtio_arp(p, &net.netif);
        return;
    }
    const struct ip_hdr *ip = p->payload;
    net.stats.udp_frames_in += p->len >= IP_HLEN && IPH_PROTO(ip) == IP_PROTO_UDP;
    net.rx_csum_start = packet->csum_partial ? packet->csum_start : 0;
    set_checks(p, packet->csum_valid || packet->csum_partial);
    netif_virtio_ip(p, &net.netif);
    NETIF_SET_CHECKSUM_CTRL(&net.netif, net.csum_flags);
}

uint32_t net_ooseq_limit_bytes(void)
{
    /* Pinned buffers come back only when the hole is filled; a peer sends again what is dropped
     * here. */
    return net.rx_pinned * 4 > net.rx_pin_limit * 3 ? 256u * 1024 : TCP_WND;
}

static void link(void *ctx, bool up)
{
    (void)ctx;
    net_link_changed(up);
}

static void stalled(void *ctx, const struct virtio_net_stall *stall)
{
    (void)ctx;
    net_stalled(stall);
}

const struct virtio_net_ops netif_virtio_ops = {
    .tx_done = tx_done,
    .tx_wake = tx_wake,
    .rx = rx,
    .link = link,
    .stall = stalled,
};

err_t netif_virtio_init(struct netif *netif)
{
    netif->name[0] = 'v';
    netif->name[1] = 'n';
    netif->hwaddr_len = ETH_HWADDR_LEN;
    memcpy(netif->hwaddr, net_mac(), ETH_HWADDR_LEN);
    netif->mtu = net.info->mtu_bytes;
    netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
    netif->output = netif_virtio_ip_output;
    netif->linkoutput = link_output;
    net.csum_flags = NETIF_CHECKSUM_ENABLE_ALL;
    if (net.info->can_csum) {
        net.csum_flags =
            (uint16_t)(net.csum_flags & ~(NETIF_CHECKSUM_GEN_UDP | NETIF_CHECKSUM_GEN_TCP));
    }
    NETIF_SET_CHECKSUM_CTRL(netif, net.csum_flags);
    return ERR_OK;
}
