/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Frames as they lie on the wire, for the peers of tests: numbers in network order, sums the slow
 * and obvious way, the headers of Ethernet and of IPv4 without options, and the answer to a
 * question of ARP.
 */
#ifndef SLUICE_TESTS_WIRE_H
#define SLUICE_TESTS_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define IP_AT     14u
#define IP_BYTES  20u
#define L4_AT     34u
#define ARP_BYTES 42u /* with Ethernet's header */

/* ---- numbers ---- */

static inline void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void put32(uint8_t *at, uint32_t value)
{
    put16(at, value >> 16);
    put16(at + 2, value & 0xffffu);
}

static inline uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t get32(const uint8_t *at)
{
    return (uint32_t)get16(at) << 16 | get16(at + 2);
}

/* ---- sums ---- */

/* The Internet checksum, not complemented. */
static inline uint32_t wire_sum(const uint8_t *at, size_t len, uint32_t sum)
{
    for (size_t i = 0; i < len; i++) {
        sum += (i & 1) != 0 ? at[i] : (uint32_t)at[i] << 8;
        sum = (sum & 0xffffu) + (sum >> 16);
    }
    return sum;
}

/* Of what stands behind the IP header of a frame, with its pseudo header; 0xffff: right. */
static inline uint32_t wire_l4_sum(const uint8_t *frame, size_t l4_len)
{
    uint32_t sum = wire_sum(frame + 26, 8, 0);
    sum += frame[23] + (uint32_t)l4_len;
    sum = (sum & 0xffffu) + (sum >> 16);
    return wire_sum(frame + L4_AT, l4_len, sum);
}

/* ---- headers ---- */

static inline void wire_ethernet(uint8_t *frame, const uint8_t *to, const uint8_t *from,
                                 uint16_t type)
{
    memcpy(frame, to, 6);
    memcpy(frame + 6, from, 6);
    put16(frame + 12, type);
}

/* Again, after a change of the header. */
static inline void wire_ip_sum(uint8_t *ip)
{
    put16(ip + 10, 0);
    put16(ip + 10, 0xffffu & ~wire_sum(ip, IP_BYTES, 0));
}

/* For l4_len bytes behind it. */
static inline void wire_ip(uint8_t *ip, uint8_t protocol, uint32_t l4_len, uint32_t from,
                           uint32_t to)
{
    memset(ip, 0, IP_BYTES);
    ip[0] = 0x45;
    put16(ip + 2, IP_BYTES + l4_len);
    ip[8] = 64;
    ip[9] = protocol;
    put32(ip + 12, from);
    put32(ip + 16, to);
    wire_ip_sum(ip);
}

/* Whoever was asked for has the address `mac`. */
static inline void wire_arp_answer(uint8_t *answer, const uint8_t *request, const uint8_t *mac)
{
    memcpy(answer, request, ARP_BYTES);
    memcpy(answer, request + 6, 6);
    memcpy(answer + 6, mac, 6);
    answer[21] = 2;
    memcpy(answer + 22, mac, 6);
    memcpy(answer + 28, request + 38, 4);
    memcpy(answer + 32, request + 22, 10);
}

#endif
