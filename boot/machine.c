/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/machine.h"

#include <string.h>

#include "boot/acpi.h"
#include "boot/cpu.h"
#include "boot/serial.h"
#include "boot/x86.h"

#define CPUID_HYPERVISOR      (1u << 31) /* leaf 1, ECX */
#define CPUID_RDRAND          (1u << 30) /* leaf 1, ECX */
#define CPUID_HYPERVISOR_BASE 0x40000000u
#define CPUID_HYPERVISOR_STEP 0x100u
#define CPUID_HYPERVISOR_END  0x40010000u

/* Intel SDM 1, 7.3.17.1: more failures in a row than this mean a broken generator. */
#define RDRAND_TRIES 10

/* The signature is the text of three registers of the base leaf. */
static void read_signature(uint32_t leaf, char signature[13])
{
    struct x86_cpuid id = x86_cpuid(leaf, 0);
    memcpy(signature, &id.ebx, 4);
    memcpy(signature + 4, &id.ecx, 4);
    memcpy(signature + 8, &id.edx, 4);
    signature[12] = '\0';
}

const char *machine_hypervisor(void)
{
    static char signature[13];
    if (signature[0] == '\0' && (x86_cpuid(1, 0).ecx & CPUID_HYPERVISOR) != 0) {
        read_signature(CPUID_HYPERVISOR_BASE, signature);
    }
    return signature;
}

uint32_t machine_kvm_leaf(void)
{
    if (machine_hypervisor()[0] == '\0') {
        return 0;
    }
    for (uint32_t leaf = CPUID_HYPERVISOR_BASE; leaf < CPUID_HYPERVISOR_END;
         leaf += CPUID_HYPERVISOR_STEP) {
        char signature[13];
        read_signature(leaf, signature);
        if (strcmp(signature, "KVMKVMKVM") == 0) {
            return leaf;
        }
    }
    return 0;
}

uint32_t machine_random32(void)
{
    static uint64_t state;
    if ((x86_cpuid(1, 0).ecx & CPUID_RDRAND) != 0) {
        for (int i = 0; i < RDRAND_TRIES; i++) {
            uint32_t value;
            uint8_t ok;
            __asm__ volatile("rdrand %0\n\tsetc %1" : "=r"(value), "=qm"(ok) : : "cc");
            if (ok) {
                return value;
            }
        }
    }
    /* SplitMix64's finaliser: spreads the few bits of the counter that differ over all of them. */
    state += x86_rdtsc() | 1;
    uint64_t mixed = state;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)(mixed >> 32 ^ mixed);
}

void machine_exit(int code)
{
    cpu_irq_disable();
    console_flush();
    io_out32(MACHINE_DEBUG_EXIT_PORT, (uint32_t)code);
    /* Still here: no such device. */
    acpi_power_off();
    for (;;) {
        __asm__ volatile("hlt");
    }
}
