/* SPDX-License-Identifier: BSD-2-Clause
 *
 * RAM in three uses: the image where it was linked, a bump allocator from the lowest address up,
 * and the upper half of the largest range as heap. Nothing is given back, so there is nothing to
 * get wrong.
 */
#include "boot/mem.h"

#include <stdbool.h>
#include <string.h>

#include "boot/boot_info.h"
#include "boot/entry.h"
#include "boot/memmap.h"
#include "boot/paging.h"
#include "boot/panic.h"

/* RAM below is left out: page 0, firmware's data, and the start info lie there. */
#define LOW_BYTES (2ull << 20)

/* What the entry's own page tables reach; page tables and all else allocated before the switch must
 * lie there. */
#define BOOT_MAPPED_BYTES (1ull << 30)

/* Windows are handed out from here up: canonical with four levels and with five, above any RAM. */
#define WINDOW_BASE        (1ull << 46)
#define WINDOW_LARGE_BYTES (2ull << 20)
#define WINDOWS_MAX        64u

struct range {
    uint64_t next; /* first free byte */
    uint64_t end;
};

struct window {
    uint64_t phys; /* whole pages */
    uint64_t len;
    uint64_t virt;
    enum paging_access access;
};

static struct range ranges[BOOT_MEMORY_MAX];
static uint32_t range_count;
static uint64_t alloc_limit; /* no allocation above: what is mapped at the time */
static uint64_t heap_next, heap_end;
static uint64_t ram_bytes;

static struct window windows[WINDOWS_MAX];
static uint32_t window_count;
static uint64_t window_next = WINDOW_BASE;

static uint64_t round_up(uint64_t value, uint64_t align)
{
    return (value + align - 1) & ~(align - 1);
}

void *mem_alloc(size_t bytes, size_t align)
{
    invariant(align != 0 && (align & (align - 1)) == 0);
    for (uint32_t i = 0; i < range_count; i++) {
        uint64_t start = round_up(ranges[i].next, align);
        uint64_t end = ranges[i].end < alloc_limit ? ranges[i].end : alloc_limit;
        if (start < end && bytes <= end - start) {
            ranges[i].next = start + bytes;
            /* Firmware and a warm reset leave their data behind. */
            return memset((void *)start, 0, bytes);
        }
    }
    return NULL;
}

uint64_t mem_dma_addr(const void *ptr)
{
    return (uint64_t)ptr;
}

uint64_t mem_free_bytes(void)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < range_count; i++) {
        bytes += ranges[i].end - ranges[i].next;
    }
    return bytes;
}

uint64_t mem_ram_bytes(void)
{
    return ram_bytes;
}

void *mem_heap_grow(ptrdiff_t bytes)
{
    uint64_t old = heap_next;
    if (bytes > 0 && (uint64_t)bytes > heap_end - heap_next) {
        return NULL;
    }
    heap_next += (uint64_t)bytes;
    return (void *)old;
}

static const struct window *window_find(uint64_t phys, uint64_t len, enum paging_access access)
{
    for (uint32_t i = 0; i < window_count; i++) {
        const struct window *window = &windows[i];
        if (window->access == access && window->phys <= phys &&
            phys + len <= window->phys + window->len) {
            return window;
        }
    }
    return NULL;
}

static void *window_map(uint64_t phys, size_t len, enum paging_access access)
{
    const struct window *found = window_find(phys, len, access);
    if (found != NULL) {
        return (void *)(found->virt + (phys - found->phys));
    }
    if (window_count == WINDOWS_MAX) {
        return NULL;
    }
    uint64_t start = phys & ~(uint64_t)(MEM_PAGE_BYTES - 1);
    uint64_t bytes = round_up(phys + len, MEM_PAGE_BYTES) - start;
    /* The same offset into a large page as the registers have, so that a long range takes large
     * pages. */
    uint64_t virt = round_up(window_next, WINDOW_LARGE_BYTES) + (start & (WINDOW_LARGE_BYTES - 1));
    if (!paging_map(virt, start, bytes, access)) {
        return NULL;
    }
    window_next = virt + bytes;
    windows[window_count++] =
        (struct window){.phys = start, .len = bytes, .virt = virt, .access = access};
    return (void *)(virt + (phys - start));
}

void *mem_map_mmio(uint64_t phys, size_t len)
{
    return window_map(phys, len, PAGING_UNCACHED);
}

const void *mem_map_firmware(uint64_t phys, size_t len)
{
    return window_map(phys, len, PAGING_READ);
}

static void map_or_panic(const char *start, const char *end, enum paging_access access)
{
    uint64_t base = (uint64_t)start;
    if (!paging_map(base, base, (uint64_t)end - base, access)) {
        panic("no memory for page tables");
    }
}

/* The image by its permissions, then all other RAM; what lies between stays absent and faults. */
static void map_all(const struct boot_memory *usable, uint32_t count)
{
    map_or_panic(text_start, text_end, PAGING_TEXT);
    map_or_panic(rodata_start, rodata_end, PAGING_READ);
    map_or_panic(rodata_end, stack_guard_start, PAGING_WRITE);
    map_or_panic(stack_guard_end, image_end, PAGING_WRITE);
    for (uint32_t i = 0; i < count; i++) {
        map_or_panic((const char *)usable[i].base, (const char *)(usable[i].base + usable[i].len),
                     PAGING_WRITE);
    }
}

static void take_heap(void)
{
    uint32_t largest = 0;
    for (uint32_t i = 1; i < range_count; i++) {
        if (ranges[i].end - ranges[i].next > ranges[largest].end - ranges[largest].next) {
            largest = i;
        }
    }
    struct range *range = &ranges[largest];
    heap_end = range->end;
    heap_next = round_up(range->next + (range->end - range->next) / 2, MEM_PAGE_BYTES);
    range->end = heap_next;
}

void mem_setup(const struct boot_info *info)
{
    static struct boot_memory map[BOOT_MEMORY_MAX], usable[BOOT_MEMORY_MAX];
    memcpy(map, info->memory, sizeof(map));
    uint32_t count = memmap_usable(map, info->memory_count, LOW_BYTES, (uint64_t)image_start,
                                   (uint64_t)image_end, usable, BOOT_MEMORY_MAX);
    if (count == 0) {
        panic("no usable memory in a map of %u ranges", info->memory_count);
    }
    for (uint32_t i = 0; i < count; i++) {
        ranges[i] = (struct range){.next = usable[i].base, .end = usable[i].base + usable[i].len};
        ram_bytes += usable[i].len;
    }
    range_count = count;
    take_heap();
    alloc_limit = BOOT_MAPPED_BYTES;
    if (!paging_new()) {
        panic("no memory for page tables");
    }
    map_all(usable, count);
    paging_switch();
    alloc_limit = UINT64_MAX;
}
