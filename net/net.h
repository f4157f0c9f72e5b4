/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The network of one guest: one virtio-net device under lwIP, one poll loop, timers, idling.
 *
 *     net_open(&config, &why);
 *     net_run(&done);          // poll, callbacks, sleep when nothing is to do, until *done
 *     net_ledger(&ledger);     // at rest everything balances
 *     net_close();
 *
 * One pass of the loop: receive (bounded), reclaim, timers, the writable callbacks of sockets in
 * the order in which they began to wait (each bounded by its own application's batch), flush, and
 * only if nothing at all happened: arm, look again, halt. Reception can therefore not be starved by
 * an application that always has something to send.
 */
#ifndef SLUICE_NET_NET_H
#define SLUICE_NET_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "drivers/virtio_net.h"

struct virtio_transport;

/* The guest as the end of a VXLAN tunnel: with it the addresses below are those of the tunnel. */
struct net_vxlan_config {
    bool on;
    uint32_t vni;
    uint32_t remote_ip;   /* of the other end, outer */
    uint32_t local_ip;    /* outer; 0: the guest's own */
    uint32_t ip, netmask; /* inner */
    uint16_t mtu_bytes;   /* inner; 0: the outer one less 50 */
    bool csum;            /* outer UDP checksum */
    uint16_t port;        /* outer destination port */
};

struct net_config {
    bool dhcp;
    uint32_t ip, netmask, gateway; /* host byte order, without dhcp */
    uint8_t mac[6];
    bool mac_set; /* false: the device's */
    uint64_t dhcp_deadline_ns;
    uint64_t link_deadline_ns;
    struct net_vxlan_config vxlan;
    struct virtio_net_config driver;    /* ops and ctx are filled in by net_open */
    struct virtio_transport *transport; /* NULL: the first network device on the PCI bus */
};

/* False: *why is a one-line text with cause and mend. With dhcp it returns once the lease is there.
 */
bool net_open(const struct net_config *config, const char **why);
void net_close(void);

/* Runs until *done is true. */
void net_run(const bool *done);
/* One pass without sleeping; true if anything happened. */
bool net_poll(void);

/*
 * The clock at the start of this pass, without the time in which the machine stood still: its host
 * gave it no processor time, so that nobody can be blamed for having been silent. Patience is
 * counted by it, and never by the clock alone.
 */
uint64_t net_awake_ns(void);

/* One-shot timer, owned by the caller; may be set again from its own callback. */
struct net_timer {
    struct net_timer *next;
    uint64_t at_ns;
    void (*fire)(void *arg);
    void *arg;
    bool active;
    bool patient;
    uint64_t stood_still_ns; /* of the machine, when it was set */
};
void net_timer_set(struct net_timer *timer, uint64_t at_ns, void (*fire)(void *arg), void *arg);
/* For the end of a patience: later by what the machine stood still meanwhile. */
void net_timer_set_patient(struct net_timer *timer, uint64_t at_ns, void (*fire)(void *arg),
                           void *arg);
void net_timer_clear(struct net_timer *timer);

/* Calls fn(arg) in the next pass: for an application that yields to reception but has more to send.
 */
void net_defer(struct net_timer *timer, void (*fn)(void *arg), void *arg);

/* Resolves the next hop towards ip by ARP; done(arg, ok) within deadline_ns. One at a time. */
void net_resolve(uint32_t ip, uint64_t deadline_ns, void (*done)(void *arg, bool ok), void *arg);

/* Sends an ICMP echo to ip; done(arg, ok) with the answer or at the deadline. One at a time. */
void net_ping(uint32_t ip, uint64_t deadline_ns, void (*done)(void *arg, bool ok), void *arg);

/* Link state changes; up is the new state. One listener. */
void net_on_link(void (*changed)(void *arg, bool up), void *arg);

/* Told of the first interrupt or kick that got lost. To be set before net_open. */
struct virtio_net_stall;
void net_on_stall(void (*told)(const struct virtio_net_stall *stall));

/* Total frames in the TX ring (and held in the joining glue) now. */
unsigned net_tx_in_flight(void);

/* Of the tunnel, when there is one. */
uint32_t net_ip(void);
uint16_t net_mtu(void);
const uint8_t *net_mac(void);
struct virtio_net *net_device(void);

struct net_stats {
    uint64_t csum_bad;       /* received frames with a wrong checksum and no flag: dropped */
    uint64_t arp_queue_drop; /* datagrams dropped while an address was being resolved */
    uint64_t tso_frames, tso_segments;
    uint64_t lro_frames;
    uint64_t tcp_retransmits;
    uint64_t tx_refused;   /* segments of TCP refused while TX was stopped (they go later) */
    uint64_t ip_fragments; /* sent */
    uint64_t udp_frames_out, udp_frames_in; /* frames that carry UDP, each fragment being one */
    uint64_t rx_no_pbuf;
    uint64_t tx_no_route, tx_link_down;
    uint64_t idle_ns;        /* time in hlt since net_open */
    uint64_t stood_still_ns; /* passes came so much later than they were due */
    uint64_t vxlan_unknown_vni, vxlan_malformed, vxlan_encapsulated, vxlan_decapsulated;
};
void net_stats(struct net_stats *out);

/* DESIGN rule 10: at rest submitted = completed + aborted, charged = credited, pool full, nothing
 * held. */
struct net_ledger {
    bool ok;
    uint64_t submitted, completed, aborted;
    uint64_t charged_bytes, credited_bytes;
    uint64_t pool_bufs, pool_free;
    uint64_t held;
};
void net_ledger(struct net_ledger *out);

#endif
