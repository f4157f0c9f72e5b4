/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The guest as the end of a VXLAN tunnel (RFC 7348): a netif whose frames travel as datagrams of
 * the other one.
 *
 *     socket -> lwIP -> netif "vx" -> [outer Ethernet|IP|UDP|VXLAN][inner frame] -> netif "vn" ->
 * device
 *
 * The outer headers are pushed in front of the inner frame, into the same buffer: no copy, no
 * further descriptor. The gate is that of the device below; TCP's refusal happens in front of the
 * inner address resolution, as everywhere.
 */
#include <string.h>

#include "boot/clock.h"
#include "net_internal.h"
#include "checksum.h"
#include "sock_internal.h"

#include "lwip/etharp.h"
#include "lwip/ip4.h"
#include "lwip/prot/ethernet.h"
#include "lwip/prot/ip.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/tcp.h"
#include "lwip/prot/udp.h"
#include "lwip/udp.h"
#include "netif/ethernet.h"

#define ETH_BYTES      14u
#define IP_BYTES       20u
#define UDP_BYTES      8u
#define VXLAN_BYTES    8u
#define OVERHEAD_BYTES (IP_BYTES + UDP_BYTES + VXLAN_BYTES + ETH_BYTES)
_Static_assert(OVERHEAD_BYTES == NET_TUNNEL_BYTES, "where the inner headers of a frame begin");
_Static_assert(PBUF_LINK_ENCAPSULATION_HLEN >= OVERHEAD_BYTES + VIRTIO_NET_HDR_MAX_BYTES,
               "a tunnelled frame still needs no descriptor for its headers");

#define FLAG_VNI 0x08u
/* RFC 7348 5: the source port carries the inner flow, so that paths and queues can be chosen by it.
 */
#define ASK_PERIOD_NS 200000000ull
#define PORT_FIRST    49152u
#define PORT_MASK     0x3fffu

static struct {
    struct netif netif;
    struct udp_pcb *listener; /* bound to the tunnel's port */
    struct udp_pcb *sender;   /* not in lwIP's list: its source port changes with each frame */
    ip_addr_t remote;
    uint32_t remote_ip; /* the same in host order */
    uint64_t ask_ns;    /* not before: the next question for its address */
    uint32_t vni;
    uint16_t port;
    bool csum;
    uint16_t check_flags; /* of the netif, without the switches for one packet */
} tunnel;

struct netif *net_vxlan_netif(void)
{
    return tunnel.listener != NULL ? &tunnel.netif : NULL;
}

/* ---- out ---- */

/* FNV-1a over addresses and ports, or over the Ethernet addresses of what has none. */
static uint16_t source_port(const struct pbuf *p)
{
    const uint8_t *frame = p->payload;
    const struct ip_hdr *ip = (const struct ip_hdr *)(const void *)(frame + ETH_BYTES);
    const struct eth_hdr *eth = p->payload;
    size_t from = 0, len = (size_t)2 * ETH_HWADDR_LEN;
    if (eth->type == PP_HTONS(ETHTYPE_IP) && p->len >= ETH_BYTES + IP_BYTES) {
        bool ports = (IPH_OFFSET(ip) & PP_HTONS(IP_OFFMASK | IP_MF)) == 0 &&
                     (IPH_PROTO(ip) == IP_PROTO_TCP || IPH_PROTO(ip) == IP_PROTO_UDP) &&
                     p->len >= ETH_BYTES + IP_BYTES + 4;
        from = ETH_BYTES + 12;
        len = ports ? 12 : 8;
    }
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ frame[from + i]) * 16777619u;
    }
    return (uint16_t)(PORT_FIRST + ((hash ^ hash >> 16) & PORT_MASK));
}

/* The inner transport checksum is the device's work when the outer one is not wanted: it can do one
 * of a frame. */
static void request_inner_checksum(struct pbuf *p)
{
    uint8_t *ip_start = (uint8_t *)p->payload + ETH_BYTES;
    const struct ip_hdr *ip = (const struct ip_hdr *)(const void *)ip_start;
    uint16_t length = (uint16_t)(p->tot_len - ETH_BYTES - IP_BYTES);
    uint16_t sum = checksum_pseudo(ip->src.addr, ip->dest.addr, IPH_PROTO(ip), length);
    if (IPH_PROTO(ip) == IP_PROTO_TCP) {
        ((struct tcp_hdr *)(void *)(ip_start + IP_BYTES))->chksum = sum;
        net.tunnel.csum_offset = offsetof(struct tcp_hdr, chksum);
        net.tunnel.csum_start = ETH_BYTES + OVERHEAD_BYTES + IP_BYTES;
        return;
    }
    struct udp_hdr *udp = (struct udp_hdr *)(void *)(ip_start + IP_BYTES);
    if (udp->chksum == 0) {
        udp->chksum = sum;
        net.tunnel.csum_offset = offsetof(struct udp_hdr, chksum);
        net.tunnel.csum_start = ETH_BYTES + OVERHEAD_BYTES + IP_BYTES;
    }
}

/* What the outer frame will be to the glue: data or control, and which checksum is asked for. */
static void describe(struct pbuf *p)
{
    const struct eth_hdr *eth = p->payload;
    net.tunnel = (struct net_tunnel_frame){.active = true, .outer_csum = tunnel.csum};
    if (eth->type != PP_HTONS(ETHTYPE_IP) || p->len < ETH_BYTES + IP_BYTES + UDP_BYTES) {
        return;
    }
    const struct ip_hdr *ip =
        (const struct ip_hdr *)(const void *)((const uint8_t *)p->payload + ETH_BYTES);
    bool fragment = (IPH_OFFSET(ip) & PP_HTONS(IP_OFFMASK | IP_MF)) != 0;
    bool tcp = IPH_PROTO(ip) == IP_PROTO_TCP && p->len >= ETH_BYTES + IP_BYTES + TCP_HLEN;
    if (tcp && !fragment) {
        const struct tcp_hdr *hdr =
            (const struct tcp_hdr *)(const void *)((const uint8_t *)ip + IP_BYTES);
        net.tunnel.tcp_data = p->tot_len > ETH_BYTES + IP_BYTES + TCPH_HDRLEN_BYTES(hdr);
    }
    if (!fragment && (tcp || IPH_PROTO(ip) == IP_PROTO_UDP) && net.info->can_csum && !tunnel.csum) {
        request_inner_checksum(p);
    }
}

static void push_vxlan(struct pbuf *p)
{
    uint8_t *hdr = p->payload;
    memset(hdr, 0, VXLAN_BYTES);
    hdr[0] = FLAG_VNI;
    hdr[4] = (uint8_t)(tunnel.vni >> 16);
    hdr[5] = (uint8_t)(tunnel.vni >> 8);
    hdr[6] = (uint8_t)tunnel.vni;
}

bool net_vxlan_ready(void)
{
    bool no_route;
    if (tunnel.listener == NULL || net_next_hop_known(tunnel.remote_ip, &no_route)) {
        return true;
    }
    /* It expired in a long silence. */
    uint64_t now_ns = clock_now_ns();
    if (now_ns >= tunnel.ask_ns) {
        tunnel.ask_ns = now_ns + ASK_PERIOD_NS;
        net_ask_next_hop(tunnel.remote_ip);
    }
    return false;
}

static err_t tunnel_output(struct netif *netif, struct pbuf *p)
{
    (void)netif;
    describe(p);
    if (net.tunnel.tcp_data && virtio_net_tx_stopped(net.dev, NET_PAIR)) {
        net.tunnel.active = false;
        return netif_virtio_refuse();
    }
    if (!net_vxlan_ready()) {
        net.tunnel.active = false;
        net.stats.tx_no_route++;
        return ERR_MEM; /* for its protocol to repeat; datagrams of sockets are not let so far */
    }
    tunnel.sender->local_port = source_port(p);
    if (pbuf_add_header(p, VXLAN_BYTES) != 0) {
        net.tunnel.active = false;
        return ERR_BUF;
    }
    push_vxlan(p);
    bool outer_was_data = net.tx_is_data;
    net.tx_is_data |= net.tunnel.tcp_data;
    err_t result = udp_sendto_if(tunnel.sender, p, &tunnel.remote, tunnel.port, &net.netif);
    net.tx_is_data = outer_was_data;
    net.tunnel.active = false;
    net.stats.vxlan_encapsulated += result == ERR_OK;
    return result;
}

/* ---- in ---- */

static void drop(struct pbuf *p, uint64_t *count)
{
    (*count)++;
    pbuf_free(p);
}

/*
 * The device's word counts for the inner packet only when it left the sum there open (the packet
 * never was on a wire); that an outer one was right says nothing about it.
 */
static void set_checks(const struct pbuf *p)
{
    const struct ip_hdr *ip = p->payload;
    uint16_t flags = tunnel.check_flags;
    bool fragment = p->len >= IP_BYTES && (IPH_OFFSET(ip) & PP_HTONS(IP_OFFMASK | IP_MF)) != 0;
    if (net.rx_csum_start >= ETH_BYTES + OVERHEAD_BYTES + IP_BYTES && !fragment) {
        flags = (uint16_t)(flags & ~(NETIF_CHECKSUM_CHECK_UDP | NETIF_CHECKSUM_CHECK_TCP));
    }
    NETIF_SET_CHECKSUM_CTRL(&tunnel.netif, flags);
}

static void input_inner(struct pbuf *p)
{
    const struct eth_hdr *eth = p->payload;
    uint16_t type = eth->type;
    bool group = (eth->dest.addr[0] & 1) != 0;
    if (!group && memcmp(&eth->dest, tunnel.netif.hwaddr, ETH_HWADDR_LEN) != 0) {
        pbuf_free(p); /* flooded */
        return;
    }
    pbuf_remove_header(p, ETH_BYTES);
    p->if_idx = netif_get_index(&tunnel.netif);
    p->flags = (uint8_t)(p->flags | (group ? PBUF_FLAG_LLBCAST : 0));
    net.stats.vxlan_decapsulated++;
    if (type == PP_HTONS(ETHTYPE_ARP)) {
        netif_virtio_arp(p, &tunnel.netif);
    } else if (type == PP_HTONS(ETHTYPE_IP)) {
        set_checks(p);
        netif_virtio_ip(p, &tunnel.netif);
        NETIF_SET_CHECKSUM_CTRL(&tunnel.netif, tunnel.check_flags);
    } else {
        pbuf_free(p);
    }
}

static void tunnel_received(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *addr,
                            u16_t port)
{
    (void)arg;
    (void)pcb;
    (void)addr;
    (void)port;
    const uint8_t *hdr = p->payload;
    /* The first piece holds all headers of any frame that came whole. */
    if (p->len <= VXLAN_BYTES + ETH_BYTES || (hdr[0] & FLAG_VNI) == 0) {
        drop(p, &net.stats.vxlan_malformed);
        return;
    }
    uint32_t vni = (uint32_t)hdr[4] << 16 | (uint32_t)hdr[5] << 8 | hdr[6];
    if (vni != tunnel.vni) {
        drop(p, &net.stats.vxlan_unknown_vni);
        return;
    }
    pbuf_remove_header(p, VXLAN_BYTES);
    input_inner(p);
}

/* ---- open, close ---- */

static err_t tunnel_init(struct netif *netif)
{
    netif->name[0] = 'v';
    netif->name[1] = 'x';
    netif->hwaddr_len = ETH_HWADDR_LEN;
    /* Its own station: locally administered, and another than the device's. */
    memcpy(netif->hwaddr, net_mac(), ETH_HWADDR_LEN);
    netif->hwaddr[0] = (uint8_t)((netif->hwaddr[0] | 2) & ~1);
    netif->hwaddr[1] ^= 0x56;
    netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
    netif->output = netif_virtio_ip_output;
    netif->linkoutput = tunnel_output;
    tunnel.check_flags = NETIF_CHECKSUM_ENABLE_ALL;
    if (net.info->can_csum && !tunnel.csum) {
        tunnel.check_flags =
            (uint16_t)(tunnel.check_flags & ~(NETIF_CHECKSUM_GEN_UDP | NETIF_CHECKSUM_GEN_TCP));
    }
    NETIF_SET_CHECKSUM_CTRL(netif, tunnel.check_flags);
    return ERR_OK;
}

static bool open_pcbs(void)
{
    tunnel.listener = udp_new();
    tunnel.sender = udp_new();
    if (tunnel.listener == NULL || tunnel.sender == NULL ||
        udp_bind(tunnel.listener, IP4_ADDR_ANY, tunnel.port) != ERR_OK) {
        return false;
    }
    udp_recv(tunnel.listener, tunnel_received, NULL);
    if (!tunnel.csum) {
        udp_set_flags(tunnel.sender, UDP_FLAGS_NOCHKSUM);
    }
    return true;
}

/* As many fragments as the gate's unit has, but each of them smaller. */
static uint32_t largest_datagram(uint16_t mtu)
{
    uint32_t outer_part = (net.netif.mtu - IP_BYTES) & ~7u, part = (mtu - IP_BYTES) & ~7u;
    uint32_t fragments = (net.max_datagram_bytes + UDP_BYTES + outer_part - 1) / outer_part;
    return fragments > 1 ? fragments * part - UDP_BYTES : mtu - IP_BYTES - UDP_BYTES;
}

bool net_vxlan_open(const struct net_vxlan_config *config, const char **why)
{
    uint16_t room = (uint16_t)(net.netif.mtu - OVERHEAD_BYTES);
    uint16_t mtu = config->mtu_bytes != 0 ? config->mtu_bytes : room;
    if (mtu > room) {
        *why = "vxlan.mtu: at most the outer MTU less 50, or each frame would be cut";
        return false;
    }
    if (config->local_ip != 0 && config->local_ip != net_outer_ip()) {
        *why = "vxlan.local: allowed is the guest's own outer address (ip)";
        return false;
    }
    memset(&tunnel, 0, sizeof(tunnel));
    tunnel.vni = config->vni;
    tunnel.port = config->port;
    tunnel.csum = config->csum;
    tunnel.remote_ip = config->remote_ip;
    ip_addr_set_ip4_u32_val(tunnel.remote, lwip_htonl(config->remote_ip));
    ip4_addr_t ip = {.addr = lwip_htonl(config->ip)}, mask = {.addr = lwip_htonl(config->netmask)};
    ip4_addr_t none = {0};
    if (!open_pcbs() ||
        netif_add(&tunnel.netif, &ip, &mask, &none, NULL, tunnel_init, ethernet_input) == NULL) {
        *why = "no memory for the tunnel";
        return false;
    }
    tunnel.netif.mtu = mtu;
    net.max_datagram_bytes = LWIP_MIN(net.max_datagram_bytes, largest_datagram(mtu));
    netif_set_up(&tunnel.netif);
    netif_set_link_up(&tunnel.netif);
    return true;
}

void net_vxlan_close(void)
{
    if (tunnel.netif.output != NULL) {
        netif_remove(&tunnel.netif);
    }
    if (tunnel.listener != NULL) {
        udp_remove(tunnel.listener);
    }
    if (tunnel.sender != NULL) {
        udp_remove(tunnel.sender);
    }
    memset(&tunnel, 0, sizeof(tunnel));
}
