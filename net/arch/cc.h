/* SPDX-License-Identifier: BSD-2-Clause
 *
 * lwIP's view of compiler and platform.
 */
#ifndef SLUICE_NET_ARCH_CC_H
#define SLUICE_NET_ARCH_CC_H

#include <stdint.h>
#include <stdio.h>

#include "boot/machine.h"
#include "boot/panic.h"
#include "net/netmem.h"

#define LWIP_PLATFORM_DIAG(x)                                                                      \
    do {                                                                                           \
        printf x;                                                                                  \
    } while (0)
#define LWIP_PLATFORM_ASSERT(x) panic("%s:%d: lwIP: %s", __FILE__, __LINE__, x)

/* One instruction each instead of a call. */
#define lwip_htons(x) ((uint16_t)__builtin_bswap16(x))
#define lwip_htonl(x) ((uint32_t)__builtin_bswap32(x))

#define LWIP_RAND() machine_random32()

#define LWIP_NO_UNISTD_H     1
#define LWIP_TIMEVAL_PRIVATE 0

/* RFC 1071 sum by 64-bit loads: net/checksum.c. */
uint16_t checksum_lwip(const void *data, int len);
#define LWIP_CHKSUM checksum_lwip

#endif
