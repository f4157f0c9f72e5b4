/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Interrupts do one thing: they count. Who cares looks at the count between two passes of the poll
 * loop.
 */
#ifndef SLUICE_BOOT_IRQ_H
#define SLUICE_BOOT_IRQ_H

#include <stdint.h>

/* Incremented once for each interrupt, by the interrupt; wraps. Must stay where it is for ever. */
struct irq_line {
    volatile uint32_t count;
};

/*
 * Binds `line` to a vector of its own and gives the message by which a device raises it (MSI or
 * MSI-X). Returns the vector, or -1 when all are taken.
 */
int irq_msi_alloc(struct irq_line *line, uint64_t *msg_addr, uint32_t *msg_data);

/* Interrupts on vectors that nobody has; a device or firmware that was not quiet. */
uint32_t irq_stray_count(void);

/* Descriptor tables, exceptions to panic, local APIC on, everything else masked. Leaves interrupts
 * disabled. */
void irq_init(void);

#endif
