/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The linked image inside the EFI loader. IMAGE is its path, given by the Makefile.
 */
    .section .rodata, "a", @progbits
    .balign 8
    .globl efi_blob, efi_blob_end
efi_blob:
    .incbin IMAGE
efi_blob_end:

    .section .note.GNU-stack, "", @progbits
