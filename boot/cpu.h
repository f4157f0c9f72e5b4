/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the processor gives: barriers, single shared loads and stores, device registers, ports, and
 * idling.
 *
 * Everything that two sides can touch at once goes through here, so that one driver source has two
 * builds. With SLUICE_MODEL each access is a call into tests/device, where a model device may run
 * between any two of them; without, each is the plain instruction.
 */
#ifndef SLUICE_BOOT_CPU_H
#define SLUICE_BOOT_CPU_H

#include <stdbool.h>
#include <stdint.h>

/* One cache line: what the two sides of a ring must not share by accident. */
#define CPU_CACHE_LINE_BYTES 64u

#ifdef SLUICE_MODEL

/* Seams, defined by tests/device/seams.c. */
uint8_t model_load8(const volatile void *addr);
uint16_t model_load16(const volatile void *addr);
uint32_t model_load32(const volatile void *addr);
uint64_t model_load64(const volatile void *addr);
void model_store8(volatile void *addr, uint8_t value);
void model_store16(volatile void *addr, uint16_t value);
void model_store32(volatile void *addr, uint32_t value);
void model_store64(volatile void *addr, uint64_t value);
void model_mb(void);
void model_rmb(void);
void model_wmb(void);
uint8_t model_mmio_read8(const volatile void *addr);
uint16_t model_mmio_read16(const volatile void *addr);
uint32_t model_mmio_read32(const volatile void *addr);
void model_mmio_write8(volatile void *addr, uint8_t value);
void model_mmio_write16(volatile void *addr, uint16_t value);
void model_mmio_write32(volatile void *addr, uint32_t value);
uint32_t model_io_in(uint16_t port, unsigned bytes);
void model_io_out(uint16_t port, unsigned bytes, uint32_t value);
void model_irq_disable(void);
void model_irq_enable(void);
void model_idle(void);
void model_relax(void);

#define shared_load8    model_load8
#define shared_load16   model_load16
#define shared_load32   model_load32
#define shared_load64   model_load64
#define shared_store8   model_store8
#define shared_store16  model_store16
#define shared_store32  model_store32
#define shared_store64  model_store64
#define cpu_mb          model_mb
#define cpu_rmb         model_rmb
#define cpu_wmb         model_wmb
#define mmio_read8      model_mmio_read8
#define mmio_read16     model_mmio_read16
#define mmio_read32     model_mmio_read32
#define mmio_write8     model_mmio_write8
#define mmio_write16    model_mmio_write16
#define mmio_write32    model_mmio_write32
#define cpu_irq_disable model_irq_disable
#define cpu_irq_enable  model_irq_enable
#define cpu_idle        model_idle
#define cpu_relax       model_relax

static inline uint8_t io_in8(uint16_t port)
{
    return (uint8_t)model_io_in(port, 1);
}

static inline uint16_t io_in16(uint16_t port)
{
    return (uint16_t)model_io_in(port, 2);
}

static inline uint32_t io_in32(uint16_t port)
{
    return model_io_in(port, 4);
}

static inline void io_out8(uint16_t port, uint8_t value)
{
    model_io_out(port, 1, value);
}

static inline void io_out16(uint16_t port, uint16_t value)
{
    model_io_out(port, 2, value);
}

static inline void io_out32(uint16_t port, uint32_t value)
{
    model_io_out(port, 4, value);
}

#else

#define CPU_DEFINE_SHARED(bits)                                                                    \
    static inline uint##bits##_t shared_load##bits(const volatile void *addr)                      \
    {                                                                                              \
        return *(const volatile uint##bits##_t *)addr;                                             \
    }                                                                                              \
    static inline void shared_store##bits(volatile void *addr, uint##bits##_t value)               \
    {                                                                                              \
        *(volatile uint##bits##_t *)addr = value;                                                  \
    }
CPU_DEFINE_SHARED(8)
CPU_DEFINE_SHARED(16)
CPU_DEFINE_SHARED(32)
CPU_DEFINE_SHARED(64)

/*
 * Full barrier: orders an earlier store before a later load, which nothing less does on x86.
 * The store-then-load pairs of a ring (publish, then read the event) depend on it.
 */
static inline void cpu_mb(void)
{
    __asm__ volatile("mfence" ::: "memory");
}

/* x86 keeps loads in order and stores in order; only the compiler must be held. */
static inline void cpu_rmb(void)
{
    __asm__ volatile("" ::: "memory");
}

static inline void cpu_wmb(void)
{
    __asm__ volatile("" ::: "memory");
}

#define CPU_DEFINE_MMIO(bits, insn, constraint)                                                    \
    static inline uint##bits##_t mmio_read##bits(const volatile void *addr)                        \
    {                                                                                              \
        uint##bits##_t value;                                                                      \
        __asm__ volatile(insn " %1, %0"                                                            \
                         : constraint(value)                                                       \
                         : "m"(*(const volatile uint##bits##_t *)addr)                             \
                         : "memory");                                                              \
        return value;                                                                              \
    }                                                                                              \
    static inline void mmio_write##bits(volatile void *addr, uint##bits##_t value)                 \
    {                                                                                              \
        __asm__ volatile(insn " %0, %1"                                                            \
                         :                                                                         \
                         : "r"(value), "m"(*(volatile uint##bits##_t *)addr)                       \
                         : "memory");                                                              \
    }
/* One plain mov each: KVM can only decode simple instructions on an emulated register. */
CPU_DEFINE_MMIO(8, "movb", "=q")
CPU_DEFINE_MMIO(16, "movw", "=r")
CPU_DEFINE_MMIO(32, "movl", "=r")

#define CPU_DEFINE_IO(bits, in, out)                                                               \
    static inline uint##bits##_t io_in##bits(uint16_t port)                                        \
    {                                                                                              \
        uint##bits##_t value;                                                                      \
        __asm__ volatile(in " %1, %0" : "=a"(value) : "Nd"(port) : "memory");                      \
        return value;                                                                              \
    }                                                                                              \
    static inline void io_out##bits(uint16_t port, uint##bits##_t value)                           \
    {                                                                                              \
        __asm__ volatile(out " %0, %1" : : "a"(value), "Nd"(port) : "memory");                     \
    }
CPU_DEFINE_IO(8, "inb", "outb")
CPU_DEFINE_IO(16, "inw", "outw")
CPU_DEFINE_IO(32, "inl", "outl")

static inline void cpu_irq_disable(void)
{
    __asm__ volatile("cli" ::: "memory");
}

static inline void cpu_irq_enable(void)
{
    __asm__ volatile("sti" ::: "memory");
}

/*
 * Enable interrupts and halt in one step: sti holds interrupts off for one more instruction, so
 * none can be taken between the two and then slept over. Call with interrupts disabled, after the
 * last look for work; returns with interrupts disabled.
 */
static inline void cpu_idle(void)
{
    __asm__ volatile("sti\n\thlt\n\tcli" ::: "memory");
}

static inline void cpu_relax(void)
{
    __asm__ volatile("pause" ::: "memory");
}

#endif
#endif
