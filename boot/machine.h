/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The machine as a whole: leaving it, and a number that differs from boot to boot.
 */
#ifndef SLUICE_BOOT_MACHINE_H
#define SLUICE_BOOT_MACHINE_H

#include <stdint.h>

/*
 * Where QEMU's isa-debug-exit listens when it is given without an address: QEMU then ends with
 * (code << 1) | 1. An unclaimed port otherwise.
 */
#define MACHINE_DEBUG_EXIT_PORT 0x501u

/* Flushes the console and leaves: debug exit, else ACPI power off, else halt for ever. */
_Noreturn void machine_exit(int code);

/* From the processor's generator, or mixed from the time stamp counter where it has none. Not for
 * secrets. */
uint32_t machine_random32(void);

/* The hypervisor's CPUID signature ("KVMKVMKVM", "TCGTCGTCGTCG", ...), "" on bare metal. */
const char *machine_hypervisor(void);

/* The CPUID leaf from which KVM's own leaves count (not always the first one: another interface may
 * come before it); 0: this is not KVM. */
uint32_t machine_kvm_leaf(void);

#endif
