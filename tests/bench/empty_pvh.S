/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The least that QEMU can boot: from the PVH entry (32-bit protected mode) straight to isa-debug-exit. What
 * remains is the time of QEMU and its firmware, the floor under any guest's time to its first frame.
 */
    .code32
    .globl _start
_start:
    movl $0, %eax
    movw $0x501, %dx
    outl %eax, %dx
1:  hlt
    jmp 1b

    .section .note.Xen, "a", @note
    .balign 4
    .long 4             /* bytes of the name */
    .long 4             /* bytes of the value */
    .long 18            /* XEN_ELFNOTE_PHYS32_ENTRY */
    .asciz "Xen"
    .long _start
    .section .note.GNU-stack, "", @progbits
