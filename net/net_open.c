/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From a device to a network with an address, and back; what was counted meanwhile.
 */
#include <string.h>

#include "boot/clock.h"
#include "boot/machine.h"
#include "net_internal.h"
#include "sock_internal.h"

#include "lwip/dhcp.h"
#include "lwip/etharp.h"
#include "lwip/init.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/stats.h"
#include "netif/ethernet.h"

#define MAX_DATAGRAM_BYTES 65507u
#define RX_PIN_MIN_BUFS    16u

struct net_state net;

#define TUNNEL_SLACK_BYTES 128u
#define TUNNEL_RESOLVE_NS  3000000000ull

static uint8_t mac[6];
static uint32_t far_end;
static bool stack_ready, dhcp_started;
static void (*link_changed)(void *arg, bool up);
static void *link_changed_arg;
static void (*stall_told)(const struct virtio_net_stall *stall);

void net_on_link(void (*changed)(void *arg, bool up), void *arg)
{
    link_changed = changed;
    link_changed_arg = arg;
}

void net_on_stall(void (*told)(const struct virtio_net_stall *stall))
{
    stall_told = told;
}

void net_stalled(const struct virtio_net_stall *stall)
{
    if (stall_told != NULL) {
        stall_told(stall);
    }
}

void net_link_changed(bool up)
{
    if (up == net.link_up) {
        /* The host asks for an announcement: neighbours may have moved. */
        if (up && !ip4_addr_isany_val(*netif_ip4_addr(&net.netif))) {
            etharp_gratuitous(&net.netif);
        }
        return;
    }
    net.link_up = up;
    struct netif *inner = net_vxlan_netif();
    if (up) {
        netif_set_link_up(&net.netif); /* announces the address */
        if (inner != NULL) {
            netif_set_link_up(inner);
        }
        net.tx_wake_pending = true; /* who found the link down waits as for a full ring */
    } else {
        netif_set_link_down(&net.netif);
        if (inner != NULL) {
            netif_set_link_down(inner);
        }
    }
    if (link_changed != NULL) {
        link_changed(link_changed_arg, up);
    }
}

/* ---- open ---- */

static bool open_device(const struct net_config *config, const char **why)
{
    struct virtio_net_config driver = config->driver;
    driver.ops = &netif_virtio_ops;
    driver.ctx = &net;
    if (driver.max_datagram_bytes == 0) {
        driver.max_datagram_bytes = MAX_DATAGRAM_BYTES;
    }
    if (config->vxlan.on) {
        /* Fragments within a tunnel are smaller, so a datagram has more of them. */
        driver.max_datagram_bytes += driver.max_datagram_bytes / 8 + TUNNEL_SLACK_BYTES;
        driver.max_datagram_bytes = LWIP_MIN(driver.max_datagram_bytes, MAX_DATAGRAM_BYTES);
    }
    net.dev = config->transport != NULL ? virtio_net_open_transport(config->transport, &driver, why)
                                        : virtio_net_open(0, &driver, why);
    if (net.dev == NULL) {
        return false;
    }
    net.info = virtio_net_info(net.dev);
    memcpy(mac, config->mac_set ? config->mac : net.info->mac, sizeof(mac));
    net.max_datagram_bytes = LWIP_MIN(net.info->max_datagram_bytes, MAX_DATAGRAM_BYTES);
    struct virtio_net_rx_stats rx;
    virtio_net_rx_stats(net.dev, NET_PAIR, &rx);
    /* Half of the pool may be pinned by the stack; beyond that packets are copied. */
    net.rx_pin_limit = LWIP_MAX((uint32_t)rx.pool_bufs / 2, RX_PIN_MIN_BUFS);
    return true;
}

static bool open_netif(const struct net_config *config)
{
    ip4_addr_t ip = {0}, mask = {0}, gateway = {0};
    if (!config->dhcp) {
        ip.addr = lwip_htonl(config->ip);
        mask.addr = lwip_htonl(config->netmask);
        gateway.addr = lwip_htonl(config->gateway);
    }
    if (!stack_ready) {
        lwip_init();
        stack_ready = true;
    }
    if (netif_add(&net.netif, &ip, &mask, &gateway, &net, netif_virtio_init, ethernet_input) ==
        NULL) {
        return false;
    }
    netif_set_hostname(&net.netif, "sluice");
    netif_set_default(&net.netif);
    netif_set_up(&net.netif);
    return net_probe_open();
}

static void ignore(void *arg, bool ok)
{
    (void)arg;
    (void)ok;
}

static bool link_is_up(void)
{
    return net.link_up;
}

static bool has_lease(void)
{
    return dhcp_supplied_address(&net.netif) != 0;
}

static bool bring_up(const struct net_config *config, const char **why)
{
    if (net.info->link_up) {
        net_link_changed(true);
    }
    if (!net_run_until(link_is_up, config->link_deadline_ns)) {
        *why = "the link is down: the host side of the network device is not up";
        return false;
    }
    if (!config->dhcp) {
        return true;
    }
    dhcp_started = dhcp_start(&net.netif) == ERR_OK;
    if (!dhcp_started || !net_run_until(has_lease, config->dhcp_deadline_ns)) {
        *why = "no DHCP lease: no server answered; give the address with ip=";
        return false;
    }
    return true;
}

static bool far_end_known(void)
{
    bool no_route;
    return net_next_hop_known(far_end, &no_route);
}

/* What a frame of the tunnel asks of the device lives only while it is sent: it cannot wait in the
 * queue of an outer address, so that is known before the first one. */
static bool open_tunnel(const struct net_vxlan_config *config, const char **why)
{
    far_end = config->remote_ip;
    net_resolve(far_end, TUNNEL_RESOLVE_NS, ignore, NULL);
    if (!net_run_until(far_end_known, TUNNEL_RESOLVE_NS)) {
        *why = "vxlan.remote: the next hop towards it does not answer ARP";
        return false;
    }
    return net_vxlan_open(config, why);
}

bool net_open(const struct net_config *config, const char **why)
{
    uint32_t generation = net.generation + 1;
    memset(&net, 0, sizeof(net));
    net.generation = generation;
    net.pass_ns = clock_now_ns();
    if (!open_device(config, why)) {
        return false;
    }
    if (!open_netif(config)) {
        *why = "no memory for the network stack";
        net_close();
        return false;
    }
    if (!bring_up(config, why) || (config->vxlan.on && !open_tunnel(&config->vxlan, why))) {
        net_close();
        return false;
    }
    (void)net_poll(); /* what was said so far goes out now */
    return true;
}

/* ---- close ---- */

void net_close(void)
{
    if (net.dev == NULL) {
        return;
    }
    while (tcp_active_pcbs != NULL) {
        tcp_abort(tcp_active_pcbs);
    }
    while (tcp_tw_pcbs != NULL) {
        tcp_abort(tcp_tw_pcbs);
    }
    offload_flush();
    virtio_net_tx_flush(net.dev, NET_PAIR);
    if (dhcp_started) {
        dhcp_stop(&net.netif);
        dhcp_cleanup(&net.netif);
        dhcp_started = false;
    }
    if (net.netif.output != NULL) {
        net_probe_close();
        net_vxlan_close();
        netif_remove(&net.netif); /* frees what waits for an address */
    }
    offload_drop();
    virtio_net_close(net.dev);
    net.dev = NULL;
    net.info = NULL;
}

/* ---- what is and what was ---- */

unsigned net_tx_in_flight(void)
{
    return virtio_net_tx_in_flight(net.dev, NET_PAIR) + offload_held();
}

struct netif *net_path(uint32_t ip)
{
    struct netif *inner = net_vxlan_netif();
    uint32_t difference = inner == NULL ? 0 : lwip_htonl(ip) ^ netif_ip4_addr(inner)->addr;
    return inner != NULL && (difference & netif_ip4_netmask(inner)->addr) == 0 ? inner : &net.netif;
}

static const struct netif *tested(void)
{
    return net_vxlan_netif() != NULL ? net_vxlan_netif() : &net.netif;
}

uint32_t net_ip(void)
{
    return lwip_ntohl(ip4_addr_get_u32(netif_ip4_addr(tested())));
}

uint32_t net_outer_ip(void)
{
    return lwip_ntohl(ip4_addr_get_u32(netif_ip4_addr(&net.netif)));
}

uint16_t net_mtu(void)
{
    return tested()->mtu;
}

const uint8_t *net_mac(void)
{
    return mac;
}

struct virtio_net *net_device(void)
{
    return net.dev;
}

void net_stats(struct net_stats *out)
{
    *out = net.stats;
    out->csum_bad = lwip_stats.ip.chkerr + lwip_stats.udp.chkerr + lwip_stats.tcp.chkerr +
                    lwip_stats.icmp.chkerr;
}

void net_ledger(struct net_ledger *out)
{
    struct virtio_net_tx_stats tx;
    virtio_net_tx_stats(net.dev, NET_PAIR, &tx);
    *out = (struct net_ledger){
        .submitted = tx.submitted,
        .completed = tx.completed,
        .aborted = tx.aborted,
        .charged_bytes = net.charged_bytes,
        .credited_bytes = net.credited_bytes,
        .pool_bufs = net.tx_bufs,
        .pool_free = net.tx_bufs_free,
        .held = tx.held + offload_held(),
    };
    out->ok = out->submitted == out->completed + out->aborted &&
              out->charged_bytes == out->credited_bytes && out->pool_bufs == out->pool_free &&
              out->held == 0;
}
