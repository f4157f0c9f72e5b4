/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The local APIC (Intel SDM 3A, chapter 11) and message signalled interrupts. The I/O APIC and the
 * 8259 stay masked.
 */
#include "boot/irq.h"

#include <stdbool.h>
#include <stddef.h>

#include "boot/cpu.h"
#include "boot/entry.h"
#include "boot/lapic.h"
#include "boot/mem.h"
#include "boot/panic.h"
#include "boot/x86.h"

#define MSR_APIC_BASE     0x1bu
#define APIC_BASE_X2      (1ull << 10)
#define APIC_BASE_ENABLE  (1ull << 11)
#define APIC_BASE_ADDRESS 0x000ffffffffff000ull
#define APIC_BYTES        4096u
#define CPUID_X2APIC      (1u << 21) /* leaf 1, ECX */

/* Registers by their xAPIC offset; the x2APIC number is MSR 0x800 + offset / 16. */
#define MSR_X2APIC        0x800u
#define REG_ID            0x20u
#define REG_TASK_PRIORITY 0x80u
#define REG_EOI           0xb0u
#define REG_SPURIOUS      0xf0u
#define REG_LVT_TIMER     0x320u
#define REG_LVT_THERMAL   0x330u
#define REG_LVT_PERF      0x340u
#define REG_LVT_LINT0     0x350u
#define REG_LVT_LINT1     0x360u
#define REG_LVT_ERROR     0x370u
#define REG_TIMER_INITIAL 0x380u
#define REG_TIMER_CURRENT 0x390u
#define REG_TIMER_DIVIDE  0x3e0u

#define SPURIOUS_APIC_ENABLE 0x100u
#define LVT_MASKED           0x10000u
#define LVT_TIMER_DEADLINE   0x40000u
#define TIMER_DIVIDE_BY_1    0xbu

/* SDM 3A, 11.11: address and data of a message; physical destination, fixed delivery, edge. */
#define MSI_ADDRESS           0xfee00000ull
#define MSI_DESTINATION_SHIFT 12

#define PIC_PRIMARY_MASK_PORT   0x21
#define PIC_SECONDARY_MASK_PORT 0xa1

static struct irq_line stray;
static int next_vector = IRQ_FIRST_VECTOR;
static int timer_vector;
static volatile void *apic;
static bool x2apic;

/* entry_irq.S: which count a vector increments; where to say that it has ended (NULL: the x2APIC
 * MSR). */
struct irq_line *irq_lines[IRQ_SPURIOUS_VECTOR];
volatile void *irq_eoi_register;

static uint32_t apic_read(uint32_t reg)
{
    if (x2apic) {
        return (uint32_t)x86_read_msr(MSR_X2APIC + reg / 16);
    }
    return mmio_read32((const volatile char *)apic + reg);
}

static void apic_write(uint32_t reg, uint32_t value)
{
    if (x2apic) {
        x86_write_msr(MSR_X2APIC + reg / 16, value);
    } else {
        mmio_write32((volatile char *)apic + reg, value);
    }
}

static int vector_alloc(struct irq_line *line)
{
    if (next_vector == IRQ_SPURIOUS_VECTOR) {
        return -1;
    }
    irq_lines[next_vector] = line;
    return next_vector++;
}

int irq_msi_alloc(struct irq_line *line, uint64_t *msg_addr, uint32_t *msg_data)
{
    int vector = vector_alloc(line);
    if (vector < 0) {
        return -1;
    }
    uint32_t id = x2apic ? apic_read(REG_ID) : apic_read(REG_ID) >> 24;
    /* A message carries eight bits of it, and the boot processor has a small one. */
    invariant(id < 256);
    *msg_addr = MSI_ADDRESS | (uint64_t)id << MSI_DESTINATION_SHIFT;
    *msg_data = (uint32_t)vector;
    return vector;
}

uint32_t irq_stray_count(void)
{
    return stray.count;
}

void irq_init(void)
{
    for (int vector = IRQ_FIRST_VECTOR; vector < IRQ_SPURIOUS_VECTOR; vector++) {
        irq_lines[vector] = &stray;
    }
    io_out8(PIC_PRIMARY_MASK_PORT, 0xff);
    io_out8(PIC_SECONDARY_MASK_PORT, 0xff);

    uint64_t base = x86_read_msr(MSR_APIC_BASE) | APIC_BASE_ENABLE;
    x2apic = (x86_cpuid(1, 0).ecx & CPUID_X2APIC) != 0;
    if (x2apic) {
        /* First on, then extended: the other order is a general protection fault (SDM 3A, 11.12.5).
         */
        x86_write_msr(MSR_APIC_BASE, base);
        x86_write_msr(MSR_APIC_BASE, base | APIC_BASE_X2);
    } else {
        x86_write_msr(MSR_APIC_BASE, base);
        apic = mem_map_mmio(base & APIC_BASE_ADDRESS, APIC_BYTES);
        invariant(apic != NULL);
        irq_eoi_register = (volatile char *)apic + REG_EOI;
    }
    apic_write(REG_SPURIOUS, SPURIOUS_APIC_ENABLE | IRQ_SPURIOUS_VECTOR);
    static const uint32_t local_sources[] = {REG_LVT_TIMER, REG_LVT_THERMAL, REG_LVT_PERF,
                                             REG_LVT_LINT0, REG_LVT_LINT1,   REG_LVT_ERROR};
    for (size_t i = 0; i < sizeof(local_sources) / sizeof(local_sources[0]); i++) {
        apic_write(local_sources[i], LVT_MASKED);
    }
    apic_write(REG_TASK_PRIORITY, 0);
}

void lapic_timer_init(struct irq_line *line)
{
    timer_vector = vector_alloc(line);
    invariant(timer_vector >= 0);
    apic_write(REG_TIMER_DIVIDE, TIMER_DIVIDE_BY_1);
    apic_write(REG_TIMER_INITIAL, 0);
    apic_write(REG_LVT_TIMER, (uint32_t)timer_vector);
}

void lapic_timer_use_deadline(void)
{
    apic_write(REG_LVT_TIMER, (uint32_t)timer_vector | LVT_TIMER_DEADLINE);
    /* The mode must be in force before the first deadline is written (SDM 3A, 11.5.4.1). */
    cpu_mb();
}

void lapic_timer_count(uint32_t ticks)
{
    apic_write(REG_TIMER_INITIAL, ticks);
}

uint32_t lapic_timer_left(void)
{
    return apic_read(REG_TIMER_CURRENT);
}
