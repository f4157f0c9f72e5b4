/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The Internet checksum (RFC 1071).
 */
#ifndef SLUICE_NET_CHECKSUM_H
#define SLUICE_NET_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Folded one's complement sum of `len` bytes as 16-bit words in memory order, not complemented. */
uint16_t checksum_sum(const void *data, size_t len);

/*
 * Folded sum of the IPv4 pseudo header, not complemented: what the checksum field holds when a
 * device completes the checksum (VIRTIO 5.1.6.2). Addresses in network order; length is the
 * transport header and all its payload, host order; for a frame to be segmented that of the whole.
 */
uint16_t checksum_pseudo(uint32_t src_be, uint32_t dst_be, uint8_t protocol, uint16_t length);

#endif
