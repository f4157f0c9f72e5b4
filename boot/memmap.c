/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/memmap.h"

#include <stdbool.h>

#define PAGE_MASK 0xfffull

void memmap_add(struct boot_memory *map, uint32_t *count, uint64_t base, uint64_t len,
                uint64_t type)
{
    if (len == 0 || base + len < base) {
        return;
    }
    if (*count > 0) {
        struct boot_memory *last = &map[*count - 1];
        if (last->type == type && last->base + last->len == base) {
            last->len += len;
            return;
        }
    }
    if (*count < BOOT_MEMORY_MAX) {
        map[*count] = (struct boot_memory){.base = base, .len = len, .type = type};
        (*count)++;
    }
}

/* Maps are short and nearly sorted. */
static void sort(struct boot_memory *map, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        struct boot_memory moving = map[i];
        uint32_t at = i;
        while (at > 0 && map[at - 1].base > moving.base) {
            map[at] = map[at - 1];
            at--;
        }
        map[at] = moving;
    }
}

struct output {
    struct boot_memory *ranges;
    uint32_t count;
    uint32_t max;
};

static void emit(struct output *out, uint64_t start, uint64_t end)
{
    start = (start + PAGE_MASK) & ~PAGE_MASK;
    end &= ~PAGE_MASK;
    if (start >= end) {
        return;
    }
    if (out->count > 0) {
        struct boot_memory *last = &out->ranges[out->count - 1];
        if (last->base + last->len >= start) {
            if (end > last->base + last->len) {
                last->len = end - last->base;
            }
            return;
        }
    }
    if (out->count < out->max) {
        out->ranges[out->count++] =
            (struct boot_memory){.base = start, .len = end - start, .type = BOOT_MEMORY_RAM};
        return;
    }
    uint32_t smallest = 0;
    for (uint32_t i = 1; i < out->count; i++) {
        if (out->ranges[i].len < out->ranges[smallest].len) {
            smallest = i;
        }
    }
    if (out->ranges[smallest].len >= end - start) {
        return;
    }
    for (uint32_t i = smallest; i + 1 < out->count; i++) {
        out->ranges[i] = out->ranges[i + 1];
    }
    out->ranges[out->count - 1] =
        (struct boot_memory){.base = start, .len = end - start, .type = BOOT_MEMORY_RAM};
}

/*
 * The end of the free piece that begins at or after *start, within [*start, end): moves *start
 * behind every claim that covers it, then stops at the next claim.
 */
static uint64_t free_piece(const struct boot_memory *map, uint32_t count,
                           const struct boot_memory *hole, uint64_t *start, uint64_t end)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i <= count; i++) {
            const struct boot_memory *claim = i < count ? &map[i] : hole;
            if ((i == count || claim->type != BOOT_MEMORY_RAM) && claim->base <= *start &&
                *start < claim->base + claim->len) {
                *start = claim->base + claim->len;
                moved = true;
            }
        }
    }
    for (uint32_t i = 0; i <= count; i++) {
        const struct boot_memory *claim = i < count ? &map[i] : hole;
        if ((i == count || claim->type != BOOT_MEMORY_RAM) && claim->base > *start &&
            claim->base < end) {
            end = claim->base;
        }
    }
    return end;
}

uint32_t memmap_usable(struct boot_memory *map, uint32_t count, uint64_t low, uint64_t hole_start,
                       uint64_t hole_end, struct boot_memory *out, uint32_t max)
{
    struct output output = {.ranges = out, .max = max};
    const struct boot_memory hole = {.base = hole_start, .len = hole_end - hole_start};
    sort(map, count);
    for (uint32_t i = 0; i < count; i++) {
        if (map[i].type != BOOT_MEMORY_RAM) {
            continue;
        }
        uint64_t start = map[i].base < low ? low : map[i].base;
        uint64_t end = map[i].base + map[i].len;
        while (start < end) {
            uint64_t piece_end = free_piece(map, count, &hole, &start, end);
            if (start < piece_end) {
                emit(&output, start, piece_end);
            }
            start = piece_end > start ? piece_end : end;
        }
    }
    return output.count;
}
