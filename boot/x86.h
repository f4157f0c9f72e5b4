/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Instructions that only boot/ needs.
 */
#ifndef SLUICE_BOOT_X86_H
#define SLUICE_BOOT_X86_H

#include <stdint.h>

struct x86_cpuid {
    uint32_t eax, ebx, ecx, edx;
};

static inline struct x86_cpuid x86_cpuid(uint32_t leaf, uint32_t subleaf)
{
    struct x86_cpuid out;
    __asm__ volatile("cpuid"
                     : "=a"(out.eax), "=b"(out.ebx), "=c"(out.ecx), "=d"(out.edx)
                     : "a"(leaf), "c"(subleaf));
    return out;
}

/* Not ordered against the instructions around it; a clock read needs no more. */
static inline uint64_t x86_rdtsc(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

static inline uint64_t x86_read_msr(uint32_t msr)
{
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
    return (uint64_t)high << 32 | low;
}

static inline void x86_write_msr(uint32_t msr, uint64_t value)
{
    __asm__ volatile("wrmsr"
                     :
                     : "c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32))
                     : "memory");
}

static inline uint64_t x86_read_cr2(void)
{
    uint64_t value;
    __asm__ volatile("mov %%cr2, %0" : "=r"(value));
    return value;
}

static inline uint64_t x86_read_cr4(void)
{
    uint64_t value;
    __asm__ volatile("mov %%cr4, %0" : "=r"(value));
    return value;
}

static inline void x86_write_cr3(uint64_t value)
{
    __asm__ volatile("mov %0, %%cr3" : : "r"(value) : "memory");
}

#endif
