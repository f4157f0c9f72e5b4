/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/paging.h"

#include <stddef.h>

#include "boot/mem.h"
#include "boot/panic.h"
#include "boot/x86.h"

#define PTE_PRESENT       (1ull << 0)
#define PTE_WRITE         (1ull << 1)
#define PTE_WRITE_THROUGH (1ull << 3)
#define PTE_CACHE_DISABLE (1ull << 4)
#define PTE_LARGE         (1ull << 7)
#define PTE_NO_EXECUTE    (1ull << 63)
#define PTE_ADDRESS       0x000ffffffffff000ull

#define ENTRIES 512u
#define LEVELS  4u /* 4: top table, 1: tables of small pages */

#define CR4_LA57          (1ull << 12)
#define CPUID_EXT_PAGE_1G (1u << 26)

/* Power-on value: entry 3 (cache disable and write through) is uncached whatever else was set
 * before. */
#define MSR_PAT     0x277u
#define PAT_DEFAULT 0x0007040600070406ull

static uint64_t *top;
static bool has_1g_pages;

static uint64_t flags_of(enum paging_access access)
{
    switch (access) {
    case PAGING_TEXT:
        return PTE_PRESENT;
    case PAGING_READ:
        return PTE_PRESENT | PTE_NO_EXECUTE;
    case PAGING_WRITE:
        return PTE_PRESENT | PTE_WRITE | PTE_NO_EXECUTE;
    case PAGING_UNCACHED:
        break;
    }
    return PTE_PRESENT | PTE_WRITE | PTE_NO_EXECUTE | PTE_CACHE_DISABLE | PTE_WRITE_THROUGH;
}

static unsigned shift_of(unsigned level)
{
    return 12 + 9 * (level - 1);
}

bool paging_new(void)
{
    has_1g_pages = (x86_cpuid(0x80000001u, 0).edx & CPUID_EXT_PAGE_1G) != 0;
    top = mem_alloc(MEM_PAGE_BYTES, MEM_PAGE_BYTES);
    return top != NULL;
}

/* The largest level whose page fits at virt and phys and is no longer than len. */
static unsigned level_for(uint64_t virt, uint64_t phys, uint64_t len)
{
    for (unsigned level = has_1g_pages ? 3 : 2; level > 1; level--) {
        uint64_t bytes = 1ull << shift_of(level);
        if (((virt | phys) & (bytes - 1)) == 0 && len >= bytes) {
            return level;
        }
    }
    return 1;
}

/* The entry of `level` that translates virt; makes the tables above it. NULL: no memory. */
static uint64_t *entry_at(uint64_t virt, unsigned level)
{
    uint64_t *table = top;
    for (unsigned at = LEVELS;; at--) {
        uint64_t *entry = &table[(virt >> shift_of(at)) % ENTRIES];
        if (at == level) {
            return entry;
        }
        invariant((*entry & PTE_LARGE) == 0);
        if (*entry == 0) {
            void *next = mem_alloc(MEM_PAGE_BYTES, MEM_PAGE_BYTES);
            if (next == NULL) {
                return NULL;
            }
            /* The strictest level decides, so the upper ones allow everything. */
            *entry = (uint64_t)next | PTE_PRESENT | PTE_WRITE;
        }
        table = (uint64_t *)(*entry & PTE_ADDRESS);
    }
}

bool paging_map(uint64_t virt, uint64_t phys, uint64_t len, enum paging_access access)
{
    invariant(((virt | phys | len) & (MEM_PAGE_BYTES - 1)) == 0);
    while (len > 0) {
        unsigned level = level_for(virt, phys, len);
        uint64_t *entry = entry_at(virt, level);
        if (entry == NULL) {
            return false;
        }
        invariant(*entry == 0);
        *entry = phys | flags_of(access) | (level > 1 ? PTE_LARGE : 0);
        uint64_t bytes = 1ull << shift_of(level);
        virt += bytes;
        phys += bytes;
        len -= bytes;
    }
    return true;
}

void paging_switch(void)
{
    uint64_t root = (uint64_t)top;
    if (x86_read_cr4() & CR4_LA57) {
        /* Firmware left five levels on, and they cannot be switched off in long mode: one more
         * table on top. */
        uint64_t *fifth = mem_alloc(MEM_PAGE_BYTES, MEM_PAGE_BYTES);
        if (fifth == NULL) {
            panic("no memory for page tables");
        }
        fifth[0] = root | PTE_PRESENT | PTE_WRITE;
        root = (uint64_t)fifth;
    }
    x86_write_msr(MSR_PAT, PAT_DEFAULT);
    x86_write_cr3(root);
}
