/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The machine under a driver that was compiled for Linux: memory, registers, interrupts, time. What
 * the image gets from boot/ comes from here, and a test decides what happens at each access.
 *
 * An address for a device is never the pointer, so that one given for the other is noticed: RAM is
 * seen by devices SEAM_DMA_OFFSET higher, and a window onto registers is no memory at all.
 */
#ifndef SLUICE_TESTS_SEAMS_H
#define SLUICE_TESTS_SEAMS_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEAM_DMA_OFFSET 0x0000100000000000ull

/* What a device model hooks in; any may be NULL. */
struct seam_hooks {
    void *ctx;
    /* Before each shared load or store of the driver. */
    void (*shared)(void *ctx, const volatile void *addr, unsigned bytes, bool is_store);
    /* In place of the access itself: what a load finds, where a store goes. NULL: memory. */
    uint64_t (*load)(void *ctx, const volatile void *addr, unsigned bytes);
    void (*store)(void *ctx, volatile void *addr, unsigned bytes, uint64_t value);
    /* After each full, read or write barrier; after a store, a full one shows it to the device. */
    void (*barrier)(void *ctx, bool full);
    uint32_t (*mmio_read)(void *ctx, uint64_t phys, unsigned bytes);
    void (*mmio_write)(void *ctx, uint64_t phys, unsigned bytes, uint32_t value);
    void (*mapped)(void *ctx, uint64_t phys, uint64_t len_bytes);
    uint32_t (*io_in)(void *ctx, uint16_t port, unsigned bytes);
    void (*io_out)(void *ctx, uint16_t port, unsigned bytes, uint32_t value);
    /* hlt, and pause in a loop that waits for the device. Without it time passes to the alarm. */
    void (*idle)(void *ctx);
    void (*relax)(void *ctx);
};

/* Forgets everything of the last test: memory, lines, hooks; time starts again. */
void seam_reset(void);
void seam_hook(const struct seam_hooks *hooks);

/* What a device sees at addr: len bytes of the driver's memory, NULL where there is none. */
void *seam_ram(uint64_t dma_addr, uint64_t len_bytes);

/* The n-th mem_alloc from now on answers NULL (1: the next one); 0: none. */
void seam_fail_alloc(unsigned nth);
unsigned seam_allocs(void);

/* Raises the line that irq_msi_alloc gave this message to. False: nobody's. */
bool seam_interrupt(uint64_t msg_addr, uint32_t msg_data);
/* From now on so many vectors are left. */
void seam_limit_vectors(unsigned n);

uint64_t seam_now_ns(void);
void seam_advance_ns(uint64_t ns);

void seam_set_acpi_table(const char *signature, const void *table);

/* panic() jumps there with 1 instead of ending the program. NULL: it ends it again. */
void seam_expect_panic(jmp_buf *where);
const char *seam_panic_text(void);

#endif
