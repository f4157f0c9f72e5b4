/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Both ways in. PVH: 32-bit protected mode, paging off, EBX = start info, no stack (Xen's x86/HVM direct boot ABI).
 * EFI: the loader calls the ELF entry in long mode under the firmware's tables, RDI = struct boot_info.
 * Both end on the image's own stack, segments and SSE state.
 */
#include "entry.h"

#define CR0_PE 0x1
#define CR0_MP 0x2
#define CR0_EM 0x4
#define CR0_TS 0x8
#define CR0_NE 0x20
#define CR0_WP 0x10000
#define CR0_PG 0x80000000
#define CR4_PAE 0x20
#define CR4_LA57_BIT 12
#define CR4_OSFXSR 0x200
#define CR4_OSXMMEXCPT 0x400
#define MSR_EFER 0xc0000080
#define EFER_LME 0x100
#define EFER_NXE 0x800
#define CPUID_EXT_LM 29
#define CPUID_EXT_NX 20

/* The note by which a loader finds the 32-bit entry: XEN_ELFNOTE_PHYS32_ENTRY. */
    .section .note.pvh, "a", @note
    .long 4, 4, 18
    .asciz "Xen"
    .long pvh_entry

    .section .text.entry, "ax", @progbits
    .code32
    .globl pvh_entry
pvh_entry:
    cli
    cld
    rdtsc
    movl %eax, %esi
    movl %edx, %edi
    movl $stack_top, %esp
    movl %ebx, %ebp

    movl $0x80000001, %eax
    cpuid
    btl $CPUID_EXT_LM, %edx
    jnc no_long_mode
    btl $CPUID_EXT_NX, %edx
    jnc no_long_mode

    movl $(CR4_PAE | CR4_OSFXSR | CR4_OSXMMEXCPT), %eax
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $MSR_EFER, %ecx
    rdmsr
    orl $(EFER_LME | EFER_NXE), %eax
    wrmsr
    movl $(CR0_PE | CR0_MP | CR0_NE | CR0_WP | CR0_PG), %eax
    movl %eax, %cr0
    lgdt gdt_pointer
    ljmp $SEL_CODE, $pvh_long

/* Nothing works yet, so say it byte by byte on the port and leave by the debug exit. */
no_long_mode:
    movl $no_long_mode_text, %esi
    movw $0x3f8, %dx
1:  lodsb
    testb %al, %al
    jz 2f
    outb %al, %dx
    jmp 1b
2:  movw $0x501, %dx
    movl $1, %eax
    outl %eax, %dx
3:  hlt
    jmp 3b

    .code64
pvh_long:
    call load_segments
    movl %ebp, %ebp
    movq %rbp, %rax
    shlq $32, %rdi
    movl %esi, %esi
    orq %rdi, %rsi
    movq %rax, %rdi
    xorl %ebp, %ebp
    call pvh_start
    ud2

    .globl efi_entry
efi_entry:
    cli
    cld
    movq $stack_top, %rsp
    movq %rdi, %rbx
    /* The firmware's tables lie in memory that is about to be used. */
    movl $boot_pml4, %eax
    movq %cr4, %rcx
    btl $CR4_LA57_BIT, %ecx
    jnc 1f
    movl $boot_pml5, %eax
1:  movq %rax, %cr3
    lgdt gdt_pointer
    pushq $SEL_CODE
    pushq $efi_long
    lretq
efi_long:
    call load_segments
    movl $MSR_EFER, %ecx
    rdmsr
    orl $EFER_NXE, %eax
    wrmsr
    movq %cr4, %rax
    orl $(CR4_OSFXSR | CR4_OSXMMEXCPT), %eax
    movq %rax, %cr4
    movq %cr0, %rax
    andl $~(CR0_EM | CR0_TS), %eax
    orl $(CR0_MP | CR0_NE | CR0_WP), %eax
    movq %rax, %cr0
    movq %rbx, %rdi
    xorl %ebp, %ebp
    call kernel_main
    ud2

load_segments:
    movl $SEL_DATA, %eax
    movl %eax, %ss
    movl %eax, %ds
    movl %eax, %es
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    fninit
    ldmxcsr mxcsr_default
    retq

    .section .rodata.entry, "a", @progbits
mxcsr_default:
    .long 0x1f80                    /* the power-on value: all exceptions masked, round to nearest */
no_long_mode_text:
    .asciz "sluice: this processor has no 64-bit mode or no execute-disable\r\n"

    .section .data.entry, "aw", @progbits
    .balign 16
    .globl gdt, gdt_tss
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        /* SEL_CODE: 64-bit, present, accessed */
    .quad 0x00cf93000000ffff        /* SEL_DATA */
gdt_tss:
    .quad 0, 0                      /* SEL_TSS: filled by idt.c */
gdt_end:
gdt_pointer:
    .word gdt_end - gdt - 1
    .quad gdt

/*
 * Identity map of the first GiB, writable and executable, for the time until mem_setup() has built the real one. The
 * fifth level is for firmware that left it on: it cannot be switched off in long mode.
 */
    .balign 4096
boot_pml5:
    .quad boot_pml4 + 0x3
    .fill 511, 8, 0
boot_pml4:
    .quad boot_pdpt + 0x3
    .fill 511, 8, 0
boot_pdpt:
    .quad boot_pd + 0x3
    .fill 511, 8, 0
boot_pd:
    .set entry, 0x83
    .rept 512
    .quad entry
    .set entry, entry + 0x200000
    .endr

    .section .note.GNU-stack, "", @progbits
