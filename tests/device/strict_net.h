/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the clauses of the network device say about features, frames to send and buffers to receive
 * into. VIRTIO 1.x section 5.1.
 */
#ifndef SLUICE_TESTS_STRICT_NET_H
#define SLUICE_TESTS_STRICT_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/device/strict_report.h"
#include "tests/device/strict_ring.h"

#define STRICT_NET_HDR_BYTES   12u
#define STRICT_NET_FRAME_BYTES (65535u + 14u + 4u) /* longest that any queue carries */

/* Feature bits (2.2, 5.1.3, 6). */
enum strict_feature {
    F_CSUM = 0,
    F_GUEST_CSUM = 1,
    F_CTRL_GUEST_OFFLOADS = 2,
    F_MTU = 3,
    F_MAC = 5,
    F_GSO = 6,
    F_GUEST_TSO4 = 7,
    F_GUEST_TSO6 = 8,
    F_GUEST_ECN = 9,
    F_GUEST_UFO = 10,
    F_HOST_TSO4 = 11,
    F_HOST_TSO6 = 12,
    F_HOST_ECN = 13,
    F_HOST_UFO = 14,
    F_MRG_RXBUF = 15,
    F_STATUS = 16,
    F_CTRL_VQ = 17,
    F_CTRL_RX = 18,
    F_CTRL_VLAN = 19,
    F_CTRL_RX_EXTRA = 20,
    F_GUEST_ANNOUNCE = 21,
    F_MQ = 22,
    F_CTRL_MAC_ADDR = 23,
    F_INDIRECT_DESC = 28,
    F_EVENT_IDX = 29,
    F_VERSION_1 = 32,
    F_ACCESS_PLATFORM = 33,
    F_RING_PACKED = 34,
    F_IN_ORDER = 35,
    F_ORDER_PLATFORM = 36,
    F_SR_IOV = 37,
    F_NOTIFICATION_DATA = 38,
    F_NOTIF_CONFIG_DATA = 39,
    F_RING_RESET = 40,
    F_ADMIN_VQ = 41,
    F_RSC_42 = 42,
    F_SUSPEND = 43,
    F_GUEST_UDP_TUNNEL_GSO = 46,
    F_GUEST_UDP_TUNNEL_GSO_CSUM = 47,
    F_HOST_UDP_TUNNEL_GSO = 48,
    F_HOST_UDP_TUNNEL_GSO_CSUM = 49,
    F_DEVICE_STATS = 50,
    F_HASH_TUNNEL = 51,
    F_VQ_NOTF_COAL = 52,
    F_NOTF_COAL = 53,
    F_GUEST_USO4 = 54,
    F_GUEST_USO6 = 55,
    F_HOST_USO = 56,
    F_HASH_REPORT = 57,
    F_GUEST_HDRLEN = 59,
    F_RSS = 60,
    F_RSC_EXT = 61,
    F_STANDBY = 62,
    F_SPEED_DUPLEX = 63,
};

static inline uint64_t strict_bit(enum strict_feature bit)
{
    return 1ull << bit;
}

static inline bool strict_has(uint64_t features, enum strict_feature bit)
{
    return (features >> bit & 1) != 0;
}

/* The header in front of each frame (5.1.6), little-endian. */
struct strict_net_hdr {
    uint8_t flags, gso_type;
    uint16_t hdr_len, gso_size, csum_start, csum_offset, num_buffers;
};

_Static_assert(sizeof(struct strict_net_hdr) == STRICT_NET_HDR_BYTES, "5.1.6");

#define STRICT_HDR_F_NEEDS_CSUM  1u
#define STRICT_HDR_F_DATA_VALID  2u
#define STRICT_HDR_F_RSC_INFO    4u
#define STRICT_HDR_F_TUNNEL_CSUM 8u
#define STRICT_GSO_NONE          0u
#define STRICT_GSO_TCPV4         1u
#define STRICT_GSO_UDP           3u
#define STRICT_GSO_TCPV6         4u
#define STRICT_GSO_UDP_L4        5u
#define STRICT_GSO_TUNNELS       0x60u
#define STRICT_GSO_ECN           0x80u

/* What one end of the wire knows of the driver. */
struct strict_net {
    struct strict_report *report;
    uint64_t offered, accepted;
    uint8_t mac[6];
    bool check_source_mac; /* off when guest traffic is bridged */
    uint16_t mtu_bytes;    /* of config space, with F_MTU offered */
    uint8_t local_mac[6];  /* first source address seen without F_MAC */
    bool local_mac_valid;
    uint64_t tx_frames, tx_bytes, tx_gso, tx_csum;
};

/* At FEATURES_OK: the accepted set against the offer. */
void strict_net_check_features(struct strict_net *net);

/*
 * One frame as the driver sent it: header and frame in one piece of memory that is the caller's.
 * Fills in what was left to the device (checksum), so that the frame can go on. False: not a frame.
 */
bool strict_net_check_tx(struct strict_net *net, uint8_t *hdr_and_frame, uint32_t len_bytes);

/* One receive buffer as the driver exposed it. */
void strict_net_check_rx_buffer(struct strict_net *net, const struct strict_chain *chain);

/* All receive buffers together, when the device starts to receive. */
void strict_net_check_rx_stock(struct strict_net *net, uint64_t writable_bytes);

/* A command on the control queue (or on any queue beyond the first pair): class, command. */
void strict_net_check_command(struct strict_net *net, uint8_t class, uint8_t command);

/* Internet checksum of n bytes, started from sum; folded, not inverted. */
uint16_t strict_sum(const uint8_t *bytes, uint32_t n, uint32_t sum);

/* The sum of the pseudo header of an IPv4 packet (20-byte header or longer), for upper_len bytes.
 */
uint16_t strict_pseudo_sum(const uint8_t *ip, uint32_t upper_len);

#endif
