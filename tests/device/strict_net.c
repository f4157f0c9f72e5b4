/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Frames to send and buffers to receive into, as the device judges them. VIRTIO 1.x sections
 * 5.1.6.2 and 5.1.6.3.
 */
#include "tests/device/strict_net.h"

#include <string.h>

#define ETH_HDR_BYTES        14u
#define IPV4_HDR_BYTES       20u
#define ETHERTYPE_IPV4       0x0800u
#define ETHERTYPE_IPV6       0x86ddu
#define ETHERTYPE_ARP        0x0806u
#define ETHERTYPE_VLAN       0x8100u
#define ETHERTYPE_EXPERIMENT 0x88b5u
#define IP_PROTO_TCP         6u
#define IP_PROTO_UDP         17u
#define TCP_CHECK_AT         16u
#define UDP_CHECK_AT         6u
#define TCP_FLAGS_AT         13u
#define TCP_CWR              0x80u
#define RX_PLAIN_BYTES       1526u /* RXB-04: header, Ethernet header, MTU of 1500 */
#define RX_GSO_BYTES         65601u /* RXB-02, the shortest that the clause allows without MRG_RXBUF */
#define ETH_MIN_BYTES        ETH_HDR_BYTES

/* Where the parts of a frame lie; 0 where there is none. Offsets from the Ethernet header. */
struct layout {
    uint32_t len;
    uint16_t ethertype;
    uint32_t ip_at, ip_len, l4_at, payload_at;
    uint8_t protocol;
    bool fragment;
};

static uint16_t be16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

/* In the machine's order, as the sum does not mind it but for the bytes of the result (RFC 1071).
 */
uint16_t strict_sum(const uint8_t *bytes, uint32_t n, uint32_t sum)
{
    uint64_t total = 0;
    uint32_t i = 0;
    for (; i + sizeof(uint32_t) <= n; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, bytes + i, sizeof(word));
        total += word;
    }
    if (i < n) {
        uint32_t word = 0;
        memcpy(&word, bytes + i, n - i);
        total += word;
    }
    while (total >> 16 != 0) {
        total = (total & 0xffff) + (total >> 16);
    }
    total = be16((const uint8_t *)&total) + (uint64_t)sum;
    while (total >> 16 != 0) {
        total = (total & 0xffff) + (total >> 16);
    }
    return (uint16_t)total;
}

uint16_t strict_pseudo_sum(const uint8_t *ip, uint32_t upper_len)
{
    return strict_sum(ip + 12, 8, (uint32_t)ip[9] + (upper_len & 0xffff) + (upper_len >> 16));
}

static struct layout parse(const uint8_t *frame, uint32_t len)
{
    struct layout at = {.len = len};
    if (len < ETH_HDR_BYTES) {
        return at;
    }
    at.ethertype = be16(frame + 12);
    if (at.ethertype != ETHERTYPE_IPV4 || len < ETH_HDR_BYTES + IPV4_HDR_BYTES) {
        return at;
    }
    const uint8_t *ip = frame + ETH_HDR_BYTES;
    const uint32_t header = 4u * (ip[0] & 15u);
    if (header < IPV4_HDR_BYTES || ETH_HDR_BYTES + header > len) {
        return at;
    }
    at.ip_at = ETH_HDR_BYTES;
    at.ip_len = be16(ip + 2);
    at.fragment = (be16(ip + 6) & 0x3fff) != 0;
    at.protocol = ip[9];
    const uint32_t l4 = ETH_HDR_BYTES + header;
    if (at.fragment) {
        return at;
    }
    if (at.protocol == IP_PROTO_TCP && l4 + 20 <= len) {
        at.l4_at = l4;
        at.payload_at = l4 + 4u * (frame[l4 + 12] >> 4);
    } else if (at.protocol == IP_PROTO_UDP && l4 + 8 <= len) {
        at.l4_at = l4;
        at.payload_at = l4 + 8;
    }
    return at;
}

static uint32_t check_at(const struct layout *at)
{
    return at->l4_at + (at->protocol == IP_PROTO_TCP ? TCP_CHECK_AT : UDP_CHECK_AT);
}

/* The IPv4 header's own sum; and, where there is one, that of TCP or UDP over the whole packet. */
static bool ip_sum_right(const uint8_t *frame, const struct layout *at)
{
    return at->ip_at == 0 ||
           strict_sum(frame + at->ip_at, 4u * (frame[at->ip_at] & 15u), 0) == 0xffff;
}

static bool l4_sum_right(const uint8_t *frame, const struct layout *at)
{
    if (at->l4_at == 0 || at->ip_at + at->ip_len > at->len || at->ip_at + at->ip_len < at->l4_at) {
        return true;
    }
    if (at->protocol == IP_PROTO_UDP && be16(frame + check_at(at)) == 0) {
        return true; /* UDP without a checksum */
    }
    const uint32_t n = at->ip_at + at->ip_len - at->l4_at;
    return strict_sum(frame + at->l4_at, n, strict_pseudo_sum(frame + at->ip_at, n)) == 0xffff;
}

static void check_flags(struct strict_net *net, const struct strict_net_hdr *h)
{
    struct strict_report *r = net->report;
    const uint64_t f = net->accepted;
    STRICT_CHECK(r, NET_DRV_TX_02, h->num_buffers == 0, "num_buffers %u", h->num_buffers);
    STRICT_CHECK(r, NET_DRV_TX_45, (h->flags & STRICT_HDR_F_DATA_VALID) == 0, "flags %#x",
                 h->flags);
    STRICT_CHECK(r, NET_DRV_TX_46, (h->flags & STRICT_HDR_F_RSC_INFO) == 0, "flags %#x", h->flags);
    STRICT_CHECK(r, NET_DRV_TX_47,
                 (h->flags & STRICT_HDR_F_DATA_VALID) == 0 ||
                     (h->gso_type & STRICT_GSO_TUNNELS) == 0,
                 "flags %#x gso %#x", h->flags, h->gso_type);
    if (!strict_has(f, F_HOST_UDP_TUNNEL_GSO_CSUM)) {
        const bool clear = (h->flags & STRICT_HDR_F_TUNNEL_CSUM) == 0;
        STRICT_CHECK(r, NET_DRV_TX_22, clear, "flags %#x", h->flags);
        STRICT_CHECK(r, NET_DRV_TX_20, clear, "flags %#x", h->flags);
    }
    if (!strict_has(f, F_CSUM)) {
        STRICT_CHECK(r, NET_DRV_TX_03, h->flags == 0, "flags %#x", h->flags);
    }
}

static void check_gso_negotiated(struct strict_net *net, const struct strict_net_hdr *h)
{
    struct strict_report *r = net->report;
    const uint64_t f = net->accepted;
    const uint8_t type = h->gso_type & 0x1f;
    const struct {
        enum strict_feature bit;
        uint8_t type;
        enum strict_clause clause;
    } kinds[] = {
        {F_HOST_TSO4, STRICT_GSO_TCPV4, NET_DRV_TX_07},
        {F_HOST_TSO6, STRICT_GSO_TCPV6, NET_DRV_TX_09},
        {F_HOST_UFO, STRICT_GSO_UDP, NET_DRV_TX_11},
        {F_HOST_USO, STRICT_GSO_UDP_L4, NET_DRV_TX_13},
    };
    bool any = false;
    for (unsigned i = 0; i < 4; i++) {
        any |= strict_has(f, kinds[i].bit);
        if (!strict_has(f, kinds[i].bit)) {
            STRICT_CHECK(r, kinds[i].clause, type != kinds[i].type, "gso_type %#x", h->gso_type);
        }
    }
    if (!any) {
        STRICT_CHECK(r, NET_DRV_TX_31, h->gso_type == STRICT_GSO_NONE, "gso_type %#x", h->gso_type);
    }
    if (!strict_has(f, F_HOST_UDP_TUNNEL_GSO)) {
        const bool clear = (h->gso_type & STRICT_GSO_TUNNELS) == 0;
        STRICT_CHECK(r, NET_DRV_TX_17, clear, "gso_type %#x", h->gso_type);
        STRICT_CHECK(r, NET_DRV_TX_23, clear, "gso_type %#x", h->gso_type);
        STRICT_CHECK(r, NET_DRV_TX_42, clear, "gso_type %#x", h->gso_type);
        STRICT_CHECK(r, NET_DRV_TX_43, clear, "gso_type %#x", h->gso_type);
    }
}

static void check_gso_fields(struct strict_net *net, const struct strict_net_hdr *h,
                             const uint8_t *frame, const struct layout *at)
{
    struct strict_report *r = net->report;
    if (h->gso_type == STRICT_GSO_NONE) {
        return;
    }
    net->tx_gso++;
    const uint32_t headers = at->payload_at;
    STRICT_CHECK(r, NET_DRV_TX_32, (h->flags & STRICT_HDR_F_NEEDS_CSUM) != 0,
                 "gso_type %#x flags %#x", h->gso_type, h->flags);
    STRICT_CHECK(r, NET_DRV_TX_33,
                 h->gso_size != 0 && headers != 0 && h->gso_size <= at->len - headers,
                 "gso_size %u, frame %u, headers %u", h->gso_size, at->len, headers);
    STRICT_CHECK(r, NET_DRV_TX_36, h->hdr_len >= headers, "hdr_len %u, headers %u", h->hdr_len,
                 headers);
    if (strict_has(net->accepted, F_GUEST_HDRLEN)) {
        STRICT_CHECK(r, NET_DRV_TX_34, h->hdr_len == headers, "hdr_len %u, headers %u", h->hdr_len,
                     headers);
    }
    if (!strict_has(net->accepted, F_HOST_ECN) && at->l4_at != 0 && at->protocol == IP_PROTO_TCP) {
        STRICT_CHECK(r, NET_DRV_TX_14,
                     (frame[at->l4_at + TCP_FLAGS_AT] & TCP_CWR) == 0 &&
                         (h->gso_type & STRICT_GSO_ECN) == 0,
                     "gso_type %#x, TCP flags %#x", h->gso_type, frame[at->l4_at + TCP_FLAGS_AT]);
    }
}

/* What NEEDS_CSUM promises: where, the pseudo header's sum in it, and that completing it is right.
 */
static void check_partial(struct strict_net *net, const struct strict_net_hdr *h, uint8_t *frame,
                          const struct layout *at)
{
    struct strict_report *r = net->report;
    const uint32_t field = (uint32_t)h->csum_start + h->csum_offset;
    net->tx_csum++;
    if (!STRICT_CHECK(r, NET_DRV_TX_30, field + 2 <= at->len && h->csum_start < at->len,
                      "csum_start %u offset %u, frame %u", h->csum_start, h->csum_offset,
                      at->len)) {
        return;
    }
    STRICT_CHECK(r, NET_DRV_TX_28, ip_sum_right(frame, at), "IPv4 header checksum");
    if (at->l4_at != 0) {
        STRICT_CHECK(r, NET_DRV_TX_30, h->csum_start == at->l4_at && field == check_at(at),
                     "csum_start %u offset %u, transport at %u", h->csum_start, h->csum_offset,
                     at->l4_at);
        const uint32_t n = at->ip_at + at->ip_len - at->l4_at;
        const uint16_t want = strict_pseudo_sum(frame + at->ip_at, n);
        STRICT_CHECK(r, NET_DRV_TX_29, be16(frame + field) == want,
                     "field %#x, pseudo header's sum %#x", be16(frame + field), want);
    }
    /* The device's part of the work; then the whole packet must verify. */
    uint16_t sum = (uint16_t)~strict_sum(frame + h->csum_start, at->len - h->csum_start, 0);
    if (sum == 0) {
        sum = 0xffff;
    }
    frame[field] = (uint8_t)(sum >> 8);
    frame[field + 1] = (uint8_t)sum;
    STRICT_CHECK(r, NET_DRV_TX_30, l4_sum_right(frame, at), "completed checksum %#x is wrong", sum);
}

static void check_frame(struct strict_net *net, const struct strict_net_hdr *h, uint8_t *frame,
                        const struct layout *at)
{
    struct strict_report *r = net->report;
    if ((h->flags & STRICT_HDR_F_NEEDS_CSUM) != 0) {
        check_partial(net, h, frame, at);
    } else {
        STRICT_CHECK(r, NET_DRV_TX_04, ip_sum_right(frame, at) && l4_sum_right(frame, at),
                     "checksum of a plain packet, protocol %u length %u", at->protocol, at->len);
    }
    if ((h->flags & STRICT_HDR_F_NEEDS_CSUM) == 0 && h->gso_type == STRICT_GSO_NONE) {
        STRICT_CHECK(r, NET_DRV_TX_50,
                     h->flags == 0 && h->hdr_len == 0 && h->gso_size == 0 && h->csum_start == 0 &&
                         h->csum_offset == 0,
                     "plain packet: flags %#x hdr_len %u gso_size %u csum %u+%u", h->flags,
                     h->hdr_len, h->gso_size, h->csum_start, h->csum_offset);
    }
    if (strict_has(net->accepted, F_MTU) && h->gso_type == STRICT_GSO_NONE) {
        STRICT_CHECK(r, NET_DRV_CFG_09, at->len <= net->mtu_bytes + ETH_HDR_BYTES,
                     "frame of %u bytes, MTU %u", at->len, net->mtu_bytes);
    }
    if (!net->check_source_mac) {
        return;
    }
    if (strict_has(net->accepted, F_MAC)) {
        STRICT_CHECK(r, NET_DRV_CFG_03, memcmp(frame + 6, net->mac, 6) == 0,
                     "source %02x:..:%02x, config %02x:..:%02x", frame[6], frame[11], net->mac[0],
                     net->mac[5]);
    } else {
        STRICT_CHECK(r, NET_DRV_CFG_04, (frame[6] & 3) == 2, "source %02x:...", frame[6]);
    }
}

static bool known_ethertype(uint16_t type)
{
    return type == ETHERTYPE_IPV4 || type == ETHERTYPE_IPV6 || type == ETHERTYPE_ARP ||
           type == ETHERTYPE_VLAN || type == ETHERTYPE_EXPERIMENT;
}

bool strict_net_check_tx(struct strict_net *net, uint8_t *hdr_and_frame, uint32_t len_bytes)
{
    struct strict_report *r = net->report;
    if (!STRICT_CHECK(r, NET_DRV_RXB_09, len_bytes >= STRICT_NET_HDR_BYTES + ETH_MIN_BYTES,
                      "%u bytes with the header", len_bytes)) {
        return false;
    }
    struct strict_net_hdr h;
    memcpy(&h, hdr_and_frame, sizeof(h));
    uint8_t *frame = hdr_and_frame + STRICT_NET_HDR_BYTES;
    const struct layout at = parse(frame, len_bytes - STRICT_NET_HDR_BYTES);
    net->tx_frames++;
    net->tx_bytes += at.len;
    /* A header of another size moves the frame: then the Ethernet header does not start here. */
    STRICT_CHECK(r, NET_DRV_TX_01,
                 known_ethertype(at.ethertype) && (at.ip_at == 0 || frame[at.ip_at] >> 4 == 4) &&
                     (at.ip_at == 0 || at.ip_at + at.ip_len <= at.len),
                 "ethertype %#x after a header of 12 bytes, frame %u", at.ethertype, at.len);
    check_flags(net, &h);
    check_gso_negotiated(net, &h);
    check_gso_fields(net, &h, frame, &at);
    check_frame(net, &h, frame, &at);
    return true;
}

void strict_net_check_rx_buffer(struct strict_net *net, const struct strict_chain *chain)
{
    struct strict_report *r = net->report;
    const uint64_t f = net->accepted;
    const unsigned long long n = chain->writable_bytes;
    const uint64_t gso = strict_bit(F_GUEST_TSO4) | strict_bit(F_GUEST_TSO6) |
                         strict_bit(F_GUEST_UFO) | strict_bit(F_GUEST_USO4) |
                         strict_bit(F_GUEST_USO6);
    if (strict_has(f, F_MRG_RXBUF)) {
        STRICT_CHECK(r, NET_DRV_RXB_05, n >= STRICT_NET_HDR_BYTES, "receive buffer of %llu", n);
    } else if ((f & gso) != 0) {
        STRICT_CHECK(r, NET_DRV_RXB_02, n >= RX_GSO_BYTES, "receive buffer of %llu", n);
    } else {
        STRICT_CHECK(r, NET_DRV_RXB_04, n >= RX_PLAIN_BYTES, "receive buffer of %llu", n);
    }
    if (strict_has(f, F_MTU) && !strict_has(f, F_MRG_RXBUF)) {
        STRICT_CHECK(r, NET_DRV_CFG_08, n >= STRICT_NET_HDR_BYTES + ETH_HDR_BYTES + net->mtu_bytes,
                     "receive buffer of %llu, MTU %u", n, net->mtu_bytes);
    }
}

void strict_net_check_rx_stock(struct strict_net *net, uint64_t writable_bytes)
{
    if (strict_has(net->accepted, F_MTU) && strict_has(net->accepted, F_MRG_RXBUF)) {
        STRICT_CHECK(net->report, NET_DRV_CFG_08,
                     writable_bytes >= STRICT_NET_HDR_BYTES + ETH_HDR_BYTES + net->mtu_bytes,
                     "%llu bytes of receive buffers in all, MTU %u",
                     (unsigned long long)writable_bytes, net->mtu_bytes);
    }
}
