/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Segmentation offload by joining: lwIP emits segments of one MSS, consecutive ones of a flow leave
 * as one frame that the device cuts again.
 *
 *     lwIP       [hdr|payload 1] [hdr|payload 2] [hdr|payload 3]      (references are held on all
 * three) the frame  [copy of hdr 1][payload 1 + 2 + 3, merged where they touch in memory]
 *
 * The header is a copy: lwIP will build its own again for a retransmission, and a FIN or PSH that
 * belongs to the last segment must not get into the first one's memory. A segment that is in flight
 * has two references, and lwIP does not retransmit such a one.
 */
#include <string.h>

#include "net_internal.h"
#include "checksum.h"
#include "netmem.h"

#include "lwip/prot/ethernet.h"
#include "lwip/prot/ip.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/tcp.h"

#define IP_OFFSET_BYTES   14u
#define TCP_OFFSET_BYTES  34u
#define TCP_MAX_HDR_BYTES 60u
#define MAX_HDR_BYTES     (TCP_OFFSET_BYTES + TCP_MAX_HDR_BYTES)
#define IP_MAX_BYTES      65535u
/* Source and destination address, then both ports: with no IP options they are adjacent. */
#define FLOW_OFFSET_BYTES 26u
#define FLOW_BYTES        12u
/* 45 segments of 1460 fill a frame; small segments stop here, their references have to be kept
 * somewhere. */
#define MAX_SEGMENTS 64u

struct offload_frame {
    struct pbuf *segments[MAX_SEGMENTS];
    unsigned n_segments;
    uint8_t headroom[VIRTIO_NET_HDR_MAX_BYTES +
                     4]; /* the net header goes here: no descriptor of its own */
    uint8_t header[MAX_HDR_BYTES];
};

/* The frame that is being joined. */
static struct {
    struct pbuf *first;          /* NULL: nothing is held */
    struct offload_frame *frame; /* NULL while there is one segment */
    struct virtio_net_seg pieces[VIRTIO_NET_TX_MAX_PIECES];
    uint16_t n_pieces; /* the header's included */
    uint16_t header_bytes, mss_bytes;
    uint16_t reserved_descs;
    bool closed; /* ends with a short segment or FIN: nothing can follow */
    uint32_t payload_bytes, next_seq;
} held;

static const struct ip_hdr *ip_of(const void *frame)
{
    return (const struct ip_hdr *)(const void *)((const uint8_t *)frame + IP_OFFSET_BYTES);
}

static struct tcp_hdr *tcp_of(const void *frame)
{
    return (struct tcp_hdr *)(uintptr_t)((const uint8_t *)frame + TCP_OFFSET_BYTES);
}

static bool same_flow(const void *a, const void *b)
{
    return memcmp((const uint8_t *)a + FLOW_OFFSET_BYTES, (const uint8_t *)b + FLOW_OFFSET_BYTES,
                  FLOW_BYTES) == 0;
}

/* Adds payload that lies after `skip` bytes of the chain; false: too many pieces. */
static bool add_pieces(const struct pbuf *p, uint16_t skip)
{
    uint16_t n = held.n_pieces;
    struct virtio_net_seg last = held.pieces[n - 1];
    for (; p != NULL; p = p->next) {
        const uint8_t *addr = (const uint8_t *)p->payload + skip;
        uint32_t len = (uint32_t)p->len - skip;
        skip = 0;
        if (len == 0) {
            continue;
        }
        /* The header's piece is a copy elsewhere: payload never continues it. */
        if (n > 1 &&
            (const uint8_t *)held.pieces[n - 1].addr + held.pieces[n - 1].len_bytes == addr) {
            held.pieces[n - 1].len_bytes += len;
            continue;
        }
        if (n == VIRTIO_NET_TX_MAX_PIECES) {
            held.pieces[held.n_pieces - 1] = last; /* undo a merge */
            return false;
        }
        held.pieces[n].addr = addr;
        held.pieces[n].len_bytes = len;
        n++;
    }
    held.n_pieces = n;
    return true;
}

static bool hold_first(struct pbuf *p, uint16_t payload_bytes)
{
    const struct tcp_hdr *tcp = tcp_of(p->payload);
    uint16_t header_bytes = (uint16_t)(TCP_OFFSET_BYTES + TCPH_HDRLEN_BYTES(tcp));
    uint16_t descs = virtio_net_tx_cost_descs(net.dev, VIRTIO_NET_TX_MAX_PIECES, true);
    if (p->len < header_bytes) {
        return false;
    }
    if (!virtio_net_tx_reserve(net.dev, NET_PAIR, descs)) {
        descs =
            0; /* only a policy that breaks the promise says no: its add shows what that costs */
    }
    held.first = p;
    held.frame = NULL;
    held.reserved_descs = descs;
    held.header_bytes = header_bytes;
    held.mss_bytes = payload_bytes;
    held.payload_bytes = payload_bytes;
    held.next_seq = lwip_ntohl(tcp->seqno) + payload_bytes;
    held.closed = (TCPH_FLAGS(tcp) & (TCP_FIN | TCP_RST | TCP_URG)) != 0;
    held.n_pieces = 1;
    held.pieces[0].addr = p->payload;
    held.pieces[0].len_bytes = header_bytes;
    if (!add_pieces(p, header_bytes)) {
        virtio_net_tx_unreserve(net.dev, NET_PAIR, descs);
        held.first = NULL;
        return false;
    }
    pbuf_ref(p);
    return true;
}

/* Everything but what a device derives for each segment must be equal. */
static bool headers_fit(const struct pbuf *p, uint16_t header_bytes)
{
    const struct ip_hdr *ip = ip_of(p->payload), *ip_first = ip_of(held.first->payload);
    const struct tcp_hdr *tcp = tcp_of(p->payload);
    uint16_t options = (uint16_t)(TCP_OFFSET_BYTES + TCP_HLEN);
    return header_bytes == held.header_bytes && p->len >= header_bytes &&
           IPH_TOS(ip) == IPH_TOS(ip_first) && IPH_TTL(ip) == IPH_TTL(ip_first) &&
           memcmp(p->payload, held.first->payload, IP_OFFSET_BYTES) == 0 &&
           (TCPH_FLAGS(tcp) & (TCP_SYN | TCP_RST | TCP_URG)) == 0 &&
           memcmp((const uint8_t *)p->payload + options,
                  (const uint8_t *)held.first->payload + options, header_bytes - options) == 0;
}

static bool can_join(const struct pbuf *p, uint16_t payload_bytes)
{
    const struct tcp_hdr *tcp = tcp_of(p->payload);
    uint16_t header_bytes = (uint16_t)(TCP_OFFSET_BYTES + TCPH_HDRLEN_BYTES(tcp));
    uint32_t ip_bytes = held.header_bytes - IP_OFFSET_BYTES + held.payload_bytes + payload_bytes;
    return !held.closed && same_flow(p->payload, held.first->payload) &&
           lwip_ntohl(tcp->seqno) == held.next_seq && payload_bytes <= held.mss_bytes &&
           ip_bytes <= IP_MAX_BYTES &&
           (held.frame == NULL || held.frame->n_segments < MAX_SEGMENTS) &&
           headers_fit(p, header_bytes);
}

static bool start_frame(void)
{
    held.frame = netmem_alloc(sizeof(*held.frame));
    if (held.frame == NULL) {
        return false;
    }
    memcpy(held.frame->header, held.first->payload, held.header_bytes);
    held.frame->segments[0] = held.first;
    held.frame->n_segments = 1;
    held.pieces[0].addr = held.frame->header;
    return true;
}

static bool join(struct pbuf *p, uint16_t payload_bytes)
{
    if (!can_join(p, payload_bytes) || (held.frame == NULL && !start_frame()) ||
        !add_pieces(p, held.header_bytes)) {
        return false;
    }
    const struct tcp_hdr *tcp = tcp_of(p->payload);
    struct tcp_hdr *joined = tcp_of(held.frame->header);
    /* Acknowledgement and window as of the newest segment; PSH and FIN hold for the end of the
     * frame. */
    joined->ackno = tcp->ackno;
    joined->wnd = tcp->wnd;
    TCPH_SET_FLAG(joined, TCPH_FLAGS(tcp) & (TCP_FIN | TCP_PSH));
    held.closed = payload_bytes < held.mss_bytes || (TCPH_FLAGS(tcp) & TCP_FIN) != 0;
    held.payload_bytes += payload_bytes;
    held.next_seq += payload_bytes;
    held.frame->segments[held.frame->n_segments++] = p;
    pbuf_ref(p);
    return true;
}

enum offload_verdict offload_segment(struct pbuf *p, uint16_t payload_bytes)
{
    /* Before the look at the ring: what is held has its slots reserved, so more of it costs none.
     */
    if (held.first != NULL && join(p, payload_bytes)) {
        return OFFLOAD_TAKEN;
    }
    offload_flush();
    if (virtio_net_tx_stopped(net.dev, NET_PAIR)) {
        return OFFLOAD_REFUSE;
    }
    return hold_first(p, payload_bytes) ? OFFLOAD_TAKEN : OFFLOAD_PLAIN;
}

static void finish_headers(struct virtio_net_tx_frame *out)
{
    uint8_t *header = held.frame->header;
    uint16_t tcp_bytes = (uint16_t)(held.header_bytes - TCP_OFFSET_BYTES + held.payload_bytes);
    struct ip_hdr *ip = (struct ip_hdr *)(void *)(header + IP_OFFSET_BYTES);
    IPH_LEN_SET(ip, lwip_htons((uint16_t)(tcp_bytes + IP_HLEN)));
    IPH_CHKSUM_SET(ip, 0);
    IPH_CHKSUM_SET(ip, (uint16_t)~checksum_sum(ip, IP_HLEN));
    /* The sum covers the length of the whole, from which a device derives that of each segment. */
    tcp_of(header)->chksum = checksum_pseudo(ip->src.addr, ip->dest.addr, IP_PROTO_TCP, tcp_bytes);
    out->segs = held.pieces;
    out->n_segs = held.n_pieces;
    out->headroom_bytes = sizeof(held.frame->headroom);
    out->csum_partial = true;
    out->csum_start = TCP_OFFSET_BYTES;
    out->csum_offset = offsetof(struct tcp_hdr, chksum);
    out->gso = VIRTIO_NET_TX_TSO4;
    out->gso_size_bytes = held.mss_bytes;
    out->hdr_len_bytes = held.header_bytes;
    out->cookie = (void *)((uintptr_t)held.frame | COOKIE_JOINED);
}

void offload_flush(void)
{
    struct pbuf *first = held.first;
    if (first == NULL) {
        return;
    }
    held.first = NULL;
    virtio_net_tx_unreserve(net.dev, NET_PAIR, held.reserved_descs);
    if (held.frame != NULL && held.frame->n_segments == 1) {
        netmem_free(held.frame); /* nothing joined after all */
        held.frame = NULL;
    }
    if (held.frame == NULL) {
        if (netif_virtio_send(first, false) != VIRTIO_NET_OK) {
            pbuf_free(first);
        }
        return;
    }
    struct virtio_net_tx_frame out = {0};
    finish_headers(&out);
    struct offload_frame *frame = held.frame;
    unsigned segments = frame->n_segments;
    held.frame = NULL;
    net_tcp_in_flight_add(tcp_of(frame->header), 1);
    /* The frame may be gone when this returns: a policy may drop it at once. */
    if (virtio_net_tx_add(net.dev, NET_PAIR, &out) == VIRTIO_NET_OK) {
        net.stats.tso_frames++;
        net.stats.tso_segments += segments;
    } else {
        net_tcp_in_flight_add(tcp_of(frame->header), -1);
        offload_done(frame);
    }
}

void offload_before(const struct pbuf *p)
{
    if (held.first != NULL && same_flow(p->payload, held.first->payload)) {
        offload_flush();
    }
}

bool offload_may_join(const void *addresses)
{
    return held.first != NULL && !held.closed &&
           memcmp(addresses, (const uint8_t *)held.first->payload + FLOW_OFFSET_BYTES,
                  FLOW_BYTES) == 0;
}

unsigned offload_held(void)
{
    return held.first != NULL ? 1 : 0;
}

const struct tcp_hdr *offload_tcp(const struct offload_frame *frame)
{
    return tcp_of(frame->header);
}

void offload_done(struct offload_frame *frame)
{
    for (unsigned i = 0; i < frame->n_segments; i++) {
        pbuf_free(frame->segments[i]);
    }
    netmem_free(frame);
}

void offload_drop(void)
{
    if (held.first == NULL) {
        return;
    }
    virtio_net_tx_unreserve(net.dev, NET_PAIR, held.reserved_descs);
    if (held.frame != NULL) {
        offload_done(held.frame);
    } else {
        pbuf_free(held.first);
    }
    held.first = NULL;
    held.frame = NULL;
}
