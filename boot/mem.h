/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Memory: pages for devices and tables, windows onto device registers. Virtual addresses of RAM are
 * the physical ones. malloc() is newlib's, on a heap apart from this.
 */
#ifndef SLUICE_BOOT_MEM_H
#define SLUICE_BOOT_MEM_H

#include <stddef.h>
#include <stdint.h>

struct boot_info;

#define MEM_PAGE_BYTES 4096u

/*
 * `bytes` of zeroed, physically contiguous memory that devices can reach, at a multiple of `align`
 * (a power of two). Never freed. NULL: there is no such piece left.
 */
void *mem_alloc(size_t bytes, size_t align);

/* The address by which a device reaches what the processor sees at `ptr`. */
uint64_t mem_dma_addr(const void *ptr);

/*
 * An uncached window onto device registers at `phys`, anywhere in the processor's physical range.
 * The same range asked for again gives the same window. NULL: out of memory for page tables.
 */
void *mem_map_mmio(uint64_t phys, size_t len);

/* A cached, read-only window onto memory that is not ours (firmware tables). NULL as above. */
const void *mem_map_firmware(uint64_t phys, size_t len);

/* Bytes that mem_alloc() can still give in pieces, for the boot line and for tests of exhaustion.
 */
uint64_t mem_free_bytes(void);

/* RAM that the machine has and that the image uses, bytes. */
uint64_t mem_ram_bytes(void);

/*
 * Takes stock of `info->memory`, builds the image's page tables and switches to them: text
 * read-only and executable, the rest not executable, page 0 and the stack's guard page absent.
 * Panics when there is not enough memory.
 */
void mem_setup(const struct boot_info *info);

/* For sbrk() alone: moves the end of the heap. NULL: no room. */
void *mem_heap_grow(ptrdiff_t bytes);

#endif
