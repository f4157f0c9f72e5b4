/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From the PVH start info (Xen's public/arch-x86/hvm/start_info.h describes it) to boot_info.
 */
#include "boot/boot_info.h"
#include "boot/entry.h"
#include "boot/memmap.h"
#include "boot/panic.h"

#define PVH_MAGIC 0x336ec578u
/* The version that brought the memory map; without one there is nothing to stand on. */
#define PVH_VERSION_MEMMAP 1u

struct pvh_start_info {
    uint32_t magic;
    uint32_t version;
    uint32_t flags;
    uint32_t module_count;
    uint64_t module_list;
    uint64_t cmdline;
    uint64_t rsdp;
    uint64_t memmap;
    uint32_t memmap_count;
    uint32_t reserved;
};
static_assert(sizeof(struct pvh_start_info) == 56, "PVH start info");

struct pvh_memmap_entry {
    uint64_t base;
    uint64_t len;
    uint32_t type;
    uint32_t reserved;
};
static_assert(sizeof(struct pvh_memmap_entry) == 24, "PVH memory map entry");

static struct boot_info pvh_info;

void pvh_start(const struct pvh_start_info *start, uint64_t tsc_at_entry)
{
    if (start->magic != PVH_MAGIC || start->version < PVH_VERSION_MEMMAP ||
        start->memmap_count == 0) {
        panic("PVH start info without a memory map (magic 0x%08x, version %u)", start->magic,
              start->version);
    }
    pvh_info.path = BOOT_PVH;
    pvh_info.tsc_at_entry = tsc_at_entry;
    pvh_info.rsdp = start->rsdp;
    pvh_info.cmdline = start->cmdline != 0 ? (const char *)start->cmdline : "";
    const struct pvh_memmap_entry *entry = (const struct pvh_memmap_entry *)start->memmap;
    for (uint32_t i = 0; i < start->memmap_count; i++) {
        memmap_add(pvh_info.memory, &pvh_info.memory_count, entry[i].base, entry[i].len,
                   entry[i].type);
    }
    kernel_main(&pvh_info);
}
