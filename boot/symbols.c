/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/symbols.h"

#include <stddef.h>

const char *symbols_find(const struct symbol_table *table, uint64_t address, uint64_t *offset)
{
    uint32_t low = 0;
    uint32_t high = table->count;
    /* All before `low` are at or below the address, all from `high` on are above. */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (table->symbols[middle].address <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == 0) {
        return NULL;
    }
    const struct symbol *found = &table->symbols[low - 1];
    *offset = address - found->address;
    return table->names + found->name;
}
