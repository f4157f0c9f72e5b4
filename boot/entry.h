/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Names that C and assembly share: selectors, stacks, linker symbols.
 */
#ifndef SLUICE_BOOT_ENTRY_H
#define SLUICE_BOOT_ENTRY_H

#define SEL_CODE 0x08
#define SEL_DATA 0x10
#define SEL_TSS  0x18

/* Interrupt stack table slots. Exceptions have a stack of their own, so that a stack overflow can
 * be told. */
#define IST_EXCEPTION 1
#define IST_IRQ       2

#define IRQ_FIRST_VECTOR    32
#define IRQ_SPURIOUS_VECTOR 255

#ifndef __ASSEMBLER__
#include <stdint.h>

/* linker.ld; only their addresses mean something. */
extern const char image_start[], text_start[], text_end[], rodata_start[], rodata_end[];
extern const char stack_guard_start[], stack_guard_end[], stack_top[], image_end[];

struct pvh_start_info;

/* entry_pvh.S calls these on the image's stack, with the counter at the first instruction. */
_Noreturn void pvh_start(const struct pvh_start_info *start, uint64_t tsc_at_entry);
#endif
#endif
