/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a person asked for: the `key=value` words of docs/configuration.md, parsed and checked as a
 * whole.
 */
#ifndef SLUICE_APPS_CONFIG_H
#define SLUICE_APPS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "drivers/virtio_net.h"

/* Longest text of an error, with its end. */
#define CONFIG_ERROR_BYTES 640u

enum config_test {
    CONFIG_TEST_SERVE = 0,
    CONFIG_TEST_UDP,
    CONFIG_TEST_TCP,
    CONFIG_TEST_SELFTEST,
};

enum config_selftest {
    CONFIG_SELFTEST_NONE = 0,
    CONFIG_SELFTEST_PANIC,
    CONFIG_SELFTEST_PAGEFAULT,
    CONFIG_SELFTEST_STACK,
    CONFIG_SELFTEST_WX,
    CONFIG_SELFTEST_NX,
    CONFIG_SELFTEST_PRINTF,
    CONFIG_SELFTEST_CLOCK,
    CONFIG_SELFTEST_HEAP,
};

/* Addresses are IPv4 in host byte order; 0 means that none was given. */
struct config_net {
    uint32_t ip; /* 0: by DHCP */
    uint32_t netmask;
    uint32_t gateway;
    uint8_t mac[6];
    bool mac_set;
    uint32_t mtu_bytes; /* 0: the device's, or 1500 */
};

struct config_vxlan {
    bool on;
    uint32_t vni;
    uint32_t remote_ip, local_ip;
    uint32_t ip, netmask; /* inner */
    uint32_t mtu_bytes;   /* 0: outer MTU - 50 */
    bool csum;
    uint32_t port;
};

struct config {
    uint32_t test;     /* enum config_test */
    uint32_t selftest; /* enum config_selftest */

    uint32_t server_ip;
    uint32_t port;
    uint64_t time_ns, omit_ns, drain_ns, interval_ns;
    uint32_t size_bytes; /* payload of a datagram, or of one write */
    uint64_t rate_bits;  /* per second and stream; 0: as fast as it goes */
    uint32_t parallel;
    bool reverse, bidir;
    uint32_t window_bytes;      /* TCP; 0: the stack's own */
    uint32_t peer_window_bytes; /* UDP: socket buffer that the server is asked for; 0: its own */
    uint32_t sndbuf_bytes;      /* UDP: send credit in true bytes */

    struct config_net net;
    struct config_vxlan vxlan;

    uint32_t tx_policy; /* enum virtio_net_policy */
    uint32_t tx_size_descs;
    struct virtio_net_refuse refuse;
    uint32_t trace_ring; /* 1: print the ring trace at the end */
};

/*
 * Parses words separated by blanks over the defaults; later ones override, '#' at the start of a
 * word begins a comment that ends with the line. False: error names the key, the value and what is
 * allowed, in one line; *out then holds what was understood.
 */
bool config_parse(const char *words, struct config *out, char error[CONFIG_ERROR_BYTES]);

extern const char *const config_test_names[];

#endif
