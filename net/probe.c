/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Looking at the network before believing it: resolve the next hop, ping, and the ICMP errors that
 * come back.
 */
#include <string.h>

#include "boot/clock.h"
#include "net_internal.h"

#include "lwip/etharp.h"
#include "lwip/icmp.h"
#include "lwip/inet_chksum.h"
#include "lwip/prot/ip4.h"
#include "lwip/raw.h"

#define RETRY_NS   200000000ull
#define PING_BYTES 32u
/* ICMP header, the quoted IP header with options, and the ports behind it. */
#define ICMP_HDR_BYTES  8u
#define QUOTE_MAX_BYTES (ICMP_HDR_BYTES + 60u + 4u)

struct probe {
    void (*done)(void *arg, bool ok); /* NULL: none is running */
    void *arg;
    uint32_t ip;
    uint64_t deadline_ns, retry_ns; /* the first by net_awake_ns() */
};

static struct probe resolving, pinging;
static struct raw_pcb *raw;
static uint16_t ping_id, ping_seq;

/* The address whose hardware address frames to `ip` carry; 0: none. */
static uint32_t next_hop(const struct netif *path, uint32_t ip)
{
    uint32_t mine = lwip_ntohl(ip4_addr_get_u32(netif_ip4_addr(path)));
    uint32_t mask = lwip_ntohl(ip4_addr_get_u32(netif_ip4_netmask(path)));
    if (((ip ^ mine) & mask) == 0) {
        return ip;
    }
    return lwip_ntohl(ip4_addr_get_u32(netif_ip4_gw(path)));
}

bool net_next_hop_known(uint32_t ip, bool *no_route)
{
    struct netif *path = net_path(ip);
    ip4_addr_t hop = {.addr = lwip_htonl(next_hop(path, ip))};
    *no_route = hop.addr == 0;
    if (*no_route) {
        return false;
    }
    if (ip4_addr_isbroadcast(&hop, path) || ip4_addr_ismulticast(&hop)) {
        return true;
    }
    struct eth_addr *eth;
    const ip4_addr_t *found;
    return etharp_find_addr(path, &hop, &eth, &found) >= 0;
}

static void start(struct probe *probe, uint32_t ip, uint64_t deadline_ns,
                  void (*done)(void *, bool), void *arg)
{
    probe->done = done;
    probe->arg = arg;
    probe->ip = ip;
    probe->deadline_ns = net_awake_ns() + deadline_ns;
    probe->retry_ns = 0;
}

static void finish(struct probe *probe, bool ok)
{
    void (*done)(void *arg, bool ok) = probe->done;
    probe->done = NULL;
    done(probe->arg, ok);
}

void net_resolve(uint32_t ip, uint64_t deadline_ns, void (*done)(void *arg, bool ok), void *arg)
{
    start(&resolving, ip, deadline_ns, done, arg);
}

void net_ping(uint32_t ip, uint64_t deadline_ns, void (*done)(void *arg, bool ok), void *arg)
{
    ping_id = (uint16_t)LWIP_RAND();
    start(&pinging, ip, deadline_ns, done, arg);
}

static void send_echo(void)
{
    struct pbuf *p = pbuf_alloc(PBUF_IP, ICMP_HDR_BYTES + PING_BYTES, PBUF_RAM);
    if (p == NULL) {
        return;
    }
    struct icmp_echo_hdr *echo = p->payload;
    memset(echo, 0, ICMP_HDR_BYTES + PING_BYTES);
    ICMPH_TYPE_SET(echo, ICMP_ECHO);
    echo->id = lwip_htons(ping_id);
    echo->seqno = lwip_htons(ping_seq++);
    echo->chksum = inet_chksum(echo, ICMP_HDR_BYTES + PING_BYTES);
    ip_addr_t to = IPADDR4_INIT(lwip_htonl(pinging.ip));
    raw_sendto(raw, p, &to);
    pbuf_free(p);
}

void net_ask_next_hop(uint32_t ip)
{
    struct netif *path = net_path(ip);
    ip4_addr_t hop = {.addr = lwip_htonl(next_hop(path, ip))};
    etharp_query(path, &hop, NULL);
}

static void query(void)
{
    net_ask_next_hop(resolving.ip);
}

static bool retry(struct probe *probe, uint64_t now_ns, void (*send)(void))
{
    if (now_ns < probe->retry_ns) {
        return false;
    }
    probe->retry_ns = now_ns + RETRY_NS;
    send();
    return true;
}

bool net_probe_poll(uint64_t now_ns)
{
    bool any = false;
    if (resolving.done != NULL) {
        bool no_route;
        bool known = net_next_hop_known(resolving.ip, &no_route);
        if (known || no_route || net_awake_ns() >= resolving.deadline_ns) {
            finish(&resolving, known);
            any = true;
        } else {
            any |= retry(&resolving, now_ns, query);
        }
    }
    if (pinging.done != NULL) {
        if (net_awake_ns() >= pinging.deadline_ns) {
            finish(&pinging, false);
            any = true;
        } else {
            any |= retry(&pinging, now_ns, send_echo);
        }
    }
    return any;
}

uint64_t net_probe_next_ns(void)
{
    uint64_t next = UINT64_MAX, still_ns = net.stats.stood_still_ns;
    if (resolving.done != NULL) {
        next = LWIP_MIN(next, LWIP_MIN(resolving.retry_ns, resolving.deadline_ns + still_ns));
    }
    if (pinging.done != NULL) {
        next = LWIP_MIN(next, LWIP_MIN(pinging.retry_ns, pinging.deadline_ns + still_ns));
    }
    return next;
}

/* bytes: from the ICMP header on. */
static void unreachable(const uint8_t *bytes, size_t len)
{
    const uint8_t *ip = bytes + ICMP_HDR_BYTES;
    size_t ip_bytes = len > ICMP_HDR_BYTES ? (ip[0] & 15u) * 4u : 0;
    if (ip_bytes < IP_HLEN || len < ICMP_HDR_BYTES + ip_bytes + 4) {
        return;
    }
    const uint8_t *ports = ip + ip_bytes;
    uint32_t remote_ip =
        (uint32_t)ip[16] << 24 | (uint32_t)ip[17] << 16 | (uint32_t)ip[18] << 8 | ip[19];
    sock_icmp_error(ip[9], (uint16_t)(ports[0] << 8 | ports[1]), remote_ip,
                    (uint16_t)(ports[2] << 8 | ports[3]), bytes[1]);
}

static u8_t icmp_received(void *arg, struct raw_pcb *pcb, struct pbuf *p, const ip_addr_t *addr)
{
    (void)arg;
    (void)pcb;
    uint16_t ip_bytes = IPH_HL_BYTES((const struct ip_hdr *)p->payload);
    if (p->len < ip_bytes + ICMP_HDR_BYTES) {
        return 0;
    }
    /* The raw hook comes before lwIP's own check. */
    pbuf_remove_header(p, ip_bytes);
    bool intact = inet_chksum_pbuf(p) == 0;
    uint8_t bytes[QUOTE_MAX_BYTES];
    size_t len = pbuf_copy_partial(p, bytes, sizeof(bytes), 0);
    pbuf_add_header_force(p, ip_bytes);
    if (!intact) {
        return 0; /* lwIP counts and drops it */
    }
    if (bytes[0] == ICMP_ER && pinging.done != NULL &&
        lwip_ntohl(ip4_addr_get_u32(addr)) == pinging.ip &&
        (uint16_t)(bytes[4] << 8 | bytes[5]) == ping_id) {
        finish(&pinging, true);
    } else if (bytes[0] == ICMP_DUR) {
        unreachable(bytes, len);
    }
    return 0;
}

bool net_probe_open(void)
{
    resolving.done = NULL;
    pinging.done = NULL;
    raw = raw_new(IP_PROTO_ICMP);
    if (raw == NULL) {
        return false;
    }
    raw_recv(raw, icmp_received, NULL);
    return true;
}

void net_probe_close(void)
{
    raw_remove(raw);
    raw = NULL;
}
