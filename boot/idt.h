/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Descriptor tables. Needs no memory and no page tables of ours, so that a fault in anything later
 * has a name.
 */
#ifndef SLUICE_BOOT_IDT_H
#define SLUICE_BOOT_IDT_H

void idt_init(void);

#endif
