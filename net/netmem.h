/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Memory of the network: blocks in size classes over mem_alloc, so that all of it is within a
 * device's reach. What is freed stays in its class. Allocation and release are a few instructions
 * each.
 */
#ifndef SLUICE_NET_NETMEM_H
#define SLUICE_NET_NETMEM_H

#include <stddef.h>
#include <stdint.h>

/* The largest block: a datagram of 64 KiB with its headroom. */
#define NETMEM_MAX_BYTES ((size_t)80 * 1024)

/* NULL: no memory left, or larger than NETMEM_MAX_BYTES. Aligned to 16 bytes, not cleared. */
void *netmem_alloc(size_t bytes);
void *netmem_calloc(size_t count, size_t bytes);
void netmem_free(void *block);

/* True bytes that a block of this many costs, its class and its header. */
size_t netmem_true_bytes(size_t bytes);

/* Bytes in use, and releases so far: who found no memory looks again when this has changed. */
uint64_t netmem_used_bytes(void);
uint64_t netmem_frees(void);

#ifdef SLUICE_MODEL
/* The allocation with this number from now on fails (1: the next), once. 0: none. */
extern uint64_t netmem_model_fail_in;
#endif

#endif
