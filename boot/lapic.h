/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The local APIC's timer, for clock.c. Both of its modes of access are hidden here.
 */
#ifndef SLUICE_BOOT_LAPIC_H
#define SLUICE_BOOT_LAPIC_H

#include <stdint.h>

#include "boot/irq.h"

/* Gives the timer its vector, in counting mode and stopped. */
void lapic_timer_init(struct irq_line *line);

/* From now on it compares the TSC with MSR TSC_DEADLINE instead of counting. */
void lapic_timer_use_deadline(void);

/* Counting mode: counts `ticks` down to 0, once, then raises the interrupt. 0 stops it. */
void lapic_timer_count(uint32_t ticks);
uint32_t lapic_timer_left(void);

#endif
