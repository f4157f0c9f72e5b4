/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Arithmetic on memory maps. Firmware's ones are unsorted, touch, and now and then overlap.
 */
#ifndef SLUICE_BOOT_MEMMAP_H
#define SLUICE_BOOT_MEMMAP_H

#include <stdint.h>

#include "boot/boot_info.h"

/*
 * Adds one range to `map` of BOOT_MEMORY_MAX entries, joined to the last one added when it
 * continues that with the same type. Empty ranges, ranges that wrap, and what does not fit any more
 * are left out.
 */
void memmap_add(struct boot_memory *map, uint32_t *count, uint64_t base, uint64_t len,
                uint64_t type);

/*
 * Into `out` of `max` entries: the ranges of RAM in address order, joined, cut to whole pages,
 * without anything that an entry of another type also claims, and without [0, low) and [hole_start,
 * hole_end). Returns their number. Changes the order of `map`. The smallest ranges are lost when
 * there are more than `max`.
 */
uint32_t memmap_usable(struct boot_memory *map, uint32_t count, uint64_t low, uint64_t hole_start,
                       uint64_t hole_end, struct boot_memory *out, uint32_t max);

#endif
