/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the machine was handed over with. Both ways in (PVH, EFI) fill the same struct, so that
 * nothing behind kernel_main() knows which one it was.
 */
#ifndef SLUICE_BOOT_BOOT_INFO_H
#define SLUICE_BOOT_BOOT_INFO_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* EFI firmware fragments its map; more entries than this are merged or, when they do not touch,
 * left unused. */
#define BOOT_MEMORY_MAX 128u

/* Longest configuration, the final NUL included. */
#define BOOT_CMDLINE_BYTES 4096u

/* Values of the ACPI address range types, which PVH hands over as they are. */
enum boot_memory_type {
    BOOT_MEMORY_RAM = 1,
    BOOT_MEMORY_RESERVED = 2,
    BOOT_MEMORY_ACPI = 3,
    BOOT_MEMORY_NVS = 4,
};

enum boot_path {
    BOOT_PVH = 0,
    BOOT_EFI = 1,
};

struct boot_memory {
    uint64_t base;
    uint64_t len; /* bytes */
    uint64_t type;
};

struct boot_info {
    const char *cmdline;   /* NUL terminated, never NULL */
    uint64_t rsdp;         /* physical address of the ACPI root pointer; 0: none was handed over */
    uint64_t tsc_at_entry; /* time stamp counter at our first instruction */
    enum boot_path path;
    uint32_t memory_count;
    struct boot_memory memory[BOOT_MEMORY_MAX]; /* in address order, not overlapping */
};

/* Read by name from efi_main.c, which is compiled apart from the image. */
static_assert(offsetof(struct boot_info, memory) == 32,
              "boot_info: the loader has the same layout");

/*
 * The image's first C function, on its own stack and under the entry's page tables, interrupts off.
 * Brings the machine up, calls sluice_main() and leaves with its result.
 */
_Noreturn void kernel_main(const struct boot_info *handed_over);

/* The program. Its result is the exit code of the guest. */
int sluice_main(const struct boot_info *info);

#endif
