/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Interrupt and exception stubs. An interrupt counts and leaves: one increment through irq_lines[], end of interrupt,
 * return. General registers only, so that the code it interrupts keeps its SSE state without a save.
 */
#include "entry.h"

#define X2APIC_MSR_EOI 0x80b

    .text
    .code64

/* ------------------------------------------------------------ interrupts */

    .macro irq_stub vector
irq_stub_\vector:
    pushq %rax
    movq irq_lines + 8 * \vector(%rip), %rax
    jmp irq_count
    .endm

irq_count:
    incl (%rax)
    movq irq_eoi_register(%rip), %rax
    testq %rax, %rax
    jz 1f
    movl $0, (%rax)
    popq %rax
    iretq
1:  pushq %rcx
    pushq %rdx
    movl $X2APIC_MSR_EOI, %ecx
    xorl %eax, %eax
    xorl %edx, %edx
    wrmsr
    popq %rdx
    popq %rcx
    popq %rax
    iretq

/* A spurious interrupt of the local APIC gets no end of interrupt (Intel SDM 3A, 11.9). */
irq_stub_spurious:
    iretq

    .altmacro
    .macro irq_stub_number number
    irq_stub \number
    .endm
    .set vector, IRQ_FIRST_VECTOR
    .rept IRQ_SPURIOUS_VECTOR - IRQ_FIRST_VECTOR
    irq_stub_number %vector
    .set vector, vector + 1
    .endr

/* ------------------------------------------------------------ exceptions */

/* 8, 10 to 14, 17, 21, 29 and 30 push an error code; the others get a 0 in its place. */
    .macro exception_stub vector
exception_stub_\vector:
    .if !(\vector == 8 || (\vector >= 10 && \vector <= 14) || \vector == 17 || \vector == 21 || \vector >= 29)
    pushq $0
    .elseif \vector == 31
    pushq $0
    .endif
    pushq $\vector
    jmp exception_common
    .endm
    .macro exception_stub_number number
    exception_stub \number
    .endm
    .set vector, 0
    .rept IRQ_FIRST_VECTOR
    exception_stub_number %vector
    .set vector, vector + 1
    .endr

/* Lays out struct exception_frame (idt.c) and never comes back. */
exception_common:
    pushq %r15
    pushq %r14
    pushq %r13
    pushq %r12
    pushq %r11
    pushq %r10
    pushq %r9
    pushq %r8
    pushq %rbp
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %rbx
    pushq %rax
    cld
    movq %rsp, %rdi
    andq $-16, %rsp
    call exception_panic
    ud2

/* ------------------------------------------------------------ addresses of the stubs, by vector */

    .section .rodata
    .balign 8
    .globl vector_stubs
    .macro stub_address prefix, number
    .quad \prefix\number
    .endm
vector_stubs:
    .set vector, 0
    .rept IRQ_FIRST_VECTOR
    stub_address exception_stub_, %vector
    .set vector, vector + 1
    .endr
    .rept IRQ_SPURIOUS_VECTOR - IRQ_FIRST_VECTOR
    stub_address irq_stub_, %vector
    .set vector, vector + 1
    .endr
    .quad irq_stub_spurious

    .section .note.GNU-stack, "", @progbits
