/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Names for addresses. The table is made from the first link's symbols and becomes part of the
 * second.
 */
#ifndef SLUICE_BOOT_SYMBOLS_H
#define SLUICE_BOOT_SYMBOLS_H

#include <stdint.h>

struct symbol {
    uint32_t address; /* the image lies below 4 GiB */
    uint32_t name;    /* offset into the names */
};

struct symbol_table {
    const struct symbol *symbols; /* by rising address */
    uint32_t count;
    const char *names;
};

/* The name of the last symbol at or below `address` and the distance to it; NULL: the address lies
 * below all. */
const char *symbols_find(const struct symbol_table *table, uint64_t address, uint64_t *offset);

#endif
