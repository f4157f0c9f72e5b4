/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Interrupt descriptor table and task state segment (Intel SDM 3A, 6.14 and 7.7). All vectors have
 * a stub; all of them switch stacks. Exceptions do so because the running stack may be the cause.
 * Interrupts do so because code that is not ours (libgcc) is compiled with a red zone, and must
 * find it unchanged.
 */
#include "boot/idt.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "boot/entry.h"

#define VECTORS               256u
#define GATE_INTERRUPT        0x8e /* present, ring 0, interrupts off on entry */
#define TSS_AVAILABLE         0x89
#define EXCEPTION_STACK_BYTES 16384u
#define IRQ_STACK_BYTES       1024u

struct gate {
    uint16_t offset_low;
    uint16_t selector;
    uint8_t ist;
    uint8_t type;
    uint16_t offset_middle;
    uint32_t offset_high;
    uint32_t reserved;
};
static_assert(sizeof(struct gate) == 16, "SDM 3A figure 6-8");

struct tss {
    uint32_t reserved0;
    uint64_t rsp[3];
    uint64_t reserved1;
    uint64_t ist[7]; /* IST n is ist[n - 1] */
    uint64_t reserved2;
    uint16_t reserved3;
    uint16_t io_map_base;
} __attribute__((packed));
static_assert(sizeof(struct tss) == 104, "SDM 3A figure 7-11");

struct table_pointer {
    uint16_t limit;
    uint64_t base;
} __attribute__((packed));

/* entry_irq.S, entry_pvh.S */
extern const uint64_t vector_stubs[VECTORS];
extern uint64_t gdt_tss[2];

static struct gate idt[VECTORS];
static struct tss tss;
static uint8_t exception_stack[EXCEPTION_STACK_BYTES] __attribute__((aligned(16)));
static uint8_t irq_stack[IRQ_STACK_BYTES] __attribute__((aligned(16)));

static void load_tss(void)
{
    uint64_t base = (uint64_t)&tss;
    tss.ist[IST_EXCEPTION - 1] = (uint64_t)(exception_stack + sizeof(exception_stack));
    tss.ist[IST_IRQ - 1] = (uint64_t)(irq_stack + sizeof(irq_stack));
    tss.io_map_base = sizeof(tss);
    gdt_tss[0] = (sizeof(tss) - 1) | (base & 0xffffff) << 16 | (uint64_t)TSS_AVAILABLE << 40 |
                 (base >> 24 & 0xff) << 56;
    gdt_tss[1] = base >> 32;
    __asm__ volatile("ltr %0" : : "r"((uint16_t)SEL_TSS) : "memory");
}

void idt_init(void)
{
    for (uint32_t vector = 0; vector < VECTORS; vector++) {
        uint64_t stub = vector_stubs[vector];
        idt[vector] = (struct gate){
            .offset_low = (uint16_t)stub,
            .selector = SEL_CODE,
            .ist = vector < IRQ_FIRST_VECTOR ? IST_EXCEPTION : IST_IRQ,
            .type = GATE_INTERRUPT,
            .offset_middle = (uint16_t)(stub >> 16),
            .offset_high = (uint32_t)(stub >> 32),
        };
    }
    load_tss();
    const struct table_pointer pointer = {.limit = sizeof(idt) - 1, .base = (uint64_t)idt};
    __asm__ volatile("lidt %0" : : "m"(pointer) : "memory");
}
