/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From a bare machine to sluice_main(), in the order in which each step needs the ones before it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "boot/acpi.h"
#include "boot/boot_info.h"
#include "boot/clock.h"
#include "boot/idt.h"
#include "boot/irq.h"
#include "boot/machine.h"
#include "boot/mem.h"
#include "boot/serial.h"

/* An image without a program says that it booted. */
__attribute__((weak)) int sluice_main(const struct boot_info *info)
{
    printf("hello: %s\n", info->cmdline);
    return 0;
}

/* What was handed over lies in memory that is free after mem_setup(), or not mapped any more. */
static const struct boot_info *adopt(const struct boot_info *info)
{
    static struct boot_info own;
    static char cmdline[BOOT_CMDLINE_BYTES];
    own = *info;
    strncpy(cmdline, info->cmdline, sizeof(cmdline) - 1);
    own.cmdline = cmdline;
    return &own;
}

void kernel_main(const struct boot_info *handed_over)
{
    console_init();
    idt_init();
    const struct boot_info *info = adopt(handed_over);
    mem_setup(info);
    acpi_init(info);
    irq_init();
    clock_init(info);
    const char *hypervisor = machine_hypervisor();
    printf(
        "sluice: %s boot, %s, %" PRIu64 " MiB, tsc %" PRIu64 " kHz by %s, up in %" PRIu64 " us\n",
        info->path == BOOT_EFI ? "efi" : "pvh", hypervisor[0] != '\0' ? hypervisor : "bare metal",
        mem_ram_bytes() >> 20, clock_tsc_hz() / 1000, clock_source(), clock_now_ns() / 1000);
    int code = sluice_main(info);
    fflush(NULL);
    machine_exit(code);
}
