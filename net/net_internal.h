/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the files of net/ know of each other. One struct net_state is one stack on one device queue;
 * nothing here stops there being one per core.
 */
#ifndef SLUICE_NET_NET_INTERNAL_H
#define SLUICE_NET_NET_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "drivers/virtio_net.h"
#include "net/net.h"

#include "lwip/netif.h"
#include "lwip/pbuf.h"

/* The pair of queues of this stack. */
#define NET_PAIR 0u

/* What the tunnel says to the glue about the outer frame that it is just sending. */
struct net_tunnel_frame {
    bool active;
    bool outer_csum; /* the device is to complete the outer checksum */
    bool tcp_data;   /* the inner frame carries TCP payload */
    uint16_t csum_start,
        csum_offset; /* of the inner one, from the start of the outer frame; 0: none */
};
/* From the outer to the inner Ethernet header. */
#define NET_TUNNEL_BYTES 50u

struct net_state {
    struct virtio_net *dev; /* NULL while closed */
    const struct virtio_net_info *info;
    struct netif netif;
    bool link_up;
    bool tx_wake_pending; /* tx_wake came and TCP has not been told yet */
    bool tcp_refused;     /* a segment was refused since TCP was last looked at */
    bool tx_is_data;      /* what is being output passed the gate of a socket */
    uint16_t csum_flags;  /* of the netif, without the switches for one frame */
    struct net_tunnel_frame tunnel;
    uint16_t rx_csum_start;  /* of the packet that comes in, when its sum is still open; else 0 */
    uint32_t arp_pending_ip; /* datagrams to it wait: one of them is in the queue of its address; 0:
                                none */
    uint32_t generation;     /* of opens: what is left of an earlier one is known by it */
    uint32_t max_datagram_bytes;
    uint32_t rx_pinned; /* buffers of reception that the stack holds */
    uint32_t rx_pin_limit;
    uint64_t tx_bufs, tx_bufs_free; /* buffers of datagrams */
    uint64_t charged_bytes, credited_bytes;
    uint64_t pass_ns;     /* start of this pass */
    uint64_t pass_due_ns; /* when the next pass comes at the latest; 0: there was none */
    struct net_stats stats;
};

extern struct net_state net;

/* The gate's view of the ring: false promises nothing, true promises room for a whole unit. */
static inline bool net_tx_open(void)
{
    return net.link_up && !virtio_net_tx_stopped(net.dev, NET_PAIR);
}

/* ---- net.c ---- */
/* Passes and sleeps until reached() or the limit; the answer is that of reached(). */
bool net_run_until(bool (*reached)(void), uint64_t limit_ns);

/* ---- net_open.c ---- */
/* The netif that frames to ip leave by. */
struct netif *net_path(uint32_t ip);
uint32_t net_outer_ip(void);
/* From the driver's poll: tells lwIP, wakes who waits, then the application. */
void net_link_changed(bool up);
void net_stalled(const struct virtio_net_stall *stall);

/* ---- netif_virtio.c ---- */
extern const struct virtio_net_ops netif_virtio_ops;
/* For netif_add: takes MAC, MTU and checksum duties from the open device. */
err_t netif_virtio_init(struct netif *netif);
/* Says to TCP that a segment cannot go now, before any reference is taken. */
err_t netif_virtio_refuse(void);
/* A packet without its Ethernet header. lwIP reads all fields of an ARP packet, and of an IP header
 * before it looks at the length: what was in the buffer before would be the rest of a short one. */
void netif_virtio_arp(struct pbuf *p, struct netif *netif);
void netif_virtio_ip(struct pbuf *p, struct netif *netif);
/* The output function of a netif: refuses TCP's data while stopped, else resolves and sends. */
err_t netif_virtio_ip_output(struct netif *netif, struct pbuf *p, const ip4_addr_t *to);
/* Frames with TCP payload at the device, by local port; ports share counters, so 0 is sure and more
 * is not. */
unsigned net_tcp_in_flight(uint16_t local_port);
struct tcp_hdr;
void net_tcp_in_flight_add(const struct tcp_hdr *tcp, int change);
/* Bytes that may be written in front of p->payload. */
uint16_t netif_virtio_headroom(const struct pbuf *p);

/* ---- offload.c: joining of TCP segments ---- */
struct offload_frame; /* what a joined frame is made of, until the device is done with it */
enum offload_verdict {
    OFFLOAD_TAKEN,  /* held, with a reference */
    OFFLOAD_REFUSE, /* no room now; a wake follows */
    OFFLOAD_PLAIN,  /* not for joining: send it as it is */
};
/* p is an IPv4 TCP frame with payload, Ethernet header first. */
enum offload_verdict offload_segment(struct pbuf *p, uint16_t payload_bytes);
/* A frame of TCP that is not offered: what is held of the same flow goes first. */
void offload_before(const struct pbuf *p);
/* True if what is held is of the flow whose addresses and ports begin there, and may still grow. */
bool offload_may_join(const void *addresses);
/* Sends what is held. */
void offload_flush(void);
unsigned offload_held(void);
/* Forgets what is held: the device is being closed. */
void offload_drop(void);
/* Releases what a joined frame referenced. */
void offload_done(struct offload_frame *frame);
const struct tcp_hdr *offload_tcp(const struct offload_frame *frame);
/* A plain frame as the driver wants it; the caller's reference goes to the driver on OK. */
enum virtio_net_result netif_virtio_send(struct pbuf *p, bool control);
/* What a cookie is: pbufs and joined frames are aligned, so the lowest bits are free. */
#define COOKIE_JOINED   1u
#define COOKIE_TCP_DATA 2u
#define COOKIE_BITS     3u

/* ---- vxlan.c ---- */
bool net_vxlan_open(const struct net_vxlan_config *config, const char **why);
void net_vxlan_close(void);
/* NULL: no tunnel. */
struct netif *net_vxlan_netif(void);
/* False: the far end's address is being asked for, and frames of the tunnel must wait. */
bool net_vxlan_ready(void);

/* ---- sock.c, sock_udp.c ---- */
/* One pass over the sockets that wait, in the order in which they began. True if any was called. */
bool sock_run_writable(void);
bool sock_any_waiting(void);
/* A frame that is, or is cut from, a socket's datagram was placed in the ring. */
void sock_udp_mark_taken(struct pbuf *p);
/* It came back unsent. */
void sock_udp_mark_aborted(struct pbuf *p);
/* An ICMP error about a datagram or segment of ours; ports in host order. */
void sock_icmp_error(uint8_t protocol, uint16_t local_port, uint32_t remote_ip,
                     uint16_t remote_port, uint8_t code);

/* ---- tcp_gate.c: TCP across a stopped queue ---- */
/* While stopped: connections that were refused and owe an acknowledgement send it by itself. */
void tcp_gate_acks(void);
/* Before TCP's timers run: they must not count time that the device had the data. */
void tcp_gate_hold_timers(void);
/* The queue woke: everything that was refused goes now. */
void tcp_gate_wake(void);

/* ---- timer.c ---- */
/* Fires what is due; true if anything was. */
bool net_timers_run(uint64_t now_ns);
uint64_t net_timers_next_ns(void);
bool net_timers_deferred(void);

/* ---- probe.c: resolve and ping ---- */
bool net_probe_open(void);
void net_probe_close(void);
bool net_probe_poll(uint64_t now_ns);
uint64_t net_probe_next_ns(void);
/* True when frames to this address have a known next hop; *no_route when there cannot be any. */
bool net_next_hop_known(uint32_t ip, bool *no_route);
void net_ask_next_hop(uint32_t ip);

#endif
