/* SPDX-License-Identifier: BSD-2-Clause */
#include "checksum.h"

#include <string.h>

static uint16_t fold(uint64_t sum)
{
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffu) + ((sum >> 16) & 0xffffu) + (sum >> 32);
    sum = (sum & 0xffffu) + (sum >> 16);
    sum = (sum & 0xffffu) + (sum >> 16);
    return (uint16_t)sum;
}

uint16_t checksum_sum(const void *data, size_t len)
{
    const uint8_t *at = data;
    uint64_t low = 0, high = 0;
    /* 32-bit halves in 64-bit sums: no carry is lost before 2^32 words. */
    for (; len >= 16; len -= 16, at += 16) {
        uint64_t a, b;
        memcpy(&a, at, 8);
        memcpy(&b, at + 8, 8);
        low += (a & 0xffffffffu) + (b & 0xffffffffu);
        high += (a >> 32) + (b >> 32);
    }
    uint64_t sum = low + high;
    for (; len >= 2; len -= 2, at += 2) {
        uint16_t word;
        memcpy(&word, at, 2);
        sum += word;
    }
    if (len != 0) {
        sum += *at; /* little endian: the odd byte is the low half of the last word */
    }
    return fold(sum);
}

uint16_t checksum_pseudo(uint32_t src_be, uint32_t dst_be, uint8_t protocol, uint16_t length)
{
    uint64_t sum = (uint64_t)src_be + dst_be;
    sum += (uint64_t)protocol << 8; /* network order words read by a little endian machine */
    sum += (uint16_t)((uint16_t)(length << 8) | (uint16_t)(length >> 8));
    return fold(sum);
}

/* lwIP's hook for its own sums (arch/cc.h). */
uint16_t checksum_lwip(const void *data, int len);

uint16_t checksum_lwip(const void *data, int len)
{
    return checksum_sum(data, (size_t)len);
}
