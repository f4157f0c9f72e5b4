/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The image's page tables (Intel SDM 3A, chapter 4). Nothing is ever unmapped, so nothing is ever
 * flushed.
 */
#ifndef SLUICE_BOOT_PAGING_H
#define SLUICE_BOOT_PAGING_H

#include <stdbool.h>
#include <stdint.h>

enum paging_access {
    PAGING_TEXT,     /* read, execute */
    PAGING_READ,     /* read */
    PAGING_WRITE,    /* read, write */
    PAGING_UNCACHED, /* read, write, for device registers */
};

/* A new, empty top table out of mem_alloc(). False: no memory. */
bool paging_new(void);

/*
 * Maps [virt, virt + len) to phys, in the largest pages that fit; all are multiples of the small
 * page. What is mapped already is a panic: two views of one address would be a bug. False: no
 * memory for tables.
 */
bool paging_map(uint64_t virt, uint64_t phys, uint64_t len, enum paging_access access);

/* Makes the processor use them. */
void paging_switch(void);

#endif
