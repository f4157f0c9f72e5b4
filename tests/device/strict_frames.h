/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Frames that carry a sequence number and a pattern made from it, so that whoever receives one
 * knows whether it is what was sent.
 */
#ifndef SLUICE_TESTS_STRICT_FRAMES_H
#define SLUICE_TESTS_STRICT_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

#define FRAMES_IP_AT          14u
#define FRAMES_L4_AT          34u
#define FRAMES_UDP_PAYLOAD_AT 42u
#define FRAMES_TCP_PAYLOAD_AT 54u

uint32_t frames_read32(const uint8_t *p);

/* The first four bytes are the number, in the machine's order; the rest follows from it. */
void frames_fill_payload(uint8_t *payload, uint32_t n, uint32_t sequence);
bool frames_payload_right(const uint8_t *payload, uint32_t n, uint32_t sequence);

/* A whole frame from 10.0.0.2:4000 to 10.0.0.1:5001; returns its length. partial: the checksum
 * field holds the pseudo header's sum only. */
uint32_t frames_udp(uint8_t *frame, const uint8_t *mac, uint32_t payload_bytes, uint32_t sequence,
                    bool partial);

/* The same in TCP, always partial, for segmentation. */
uint32_t frames_tcp(uint8_t *frame, const uint8_t *mac, uint32_t payload_bytes, uint32_t sequence);

#endif
