/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/device/seams.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/acpi.h"
#include "boot/clock.h"
#include "boot/cpu.h"
#include "boot/irq.h"
#include "boot/machine.h"
#include "boot/mem.h"
#include "boot/panic.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SEAM_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(SEAM_ASAN)
#include <sanitizer/asan_interface.h>
#define POISONED(addr, len) (__asan_region_is_poisoned((addr), (len)) != NULL)
#else
#define POISONED(addr, len) ((void)(addr), (void)(len), false)
#endif

/* Windows onto registers: bit 60 set, which no pointer of a process has. */
#define MMIO_WINDOW   (1ull << 60)
#define MAX_VECTORS   64u
#define MSI_ADDRESS   0xfee00000ull
#define MSI_DATA_BASE 0x40u
/* Time that passes with each look at the clock, so that every bounded wait ends. */
#define CLOCK_LOOK_NS 50u

struct block {
    struct block *next;
    void *memory;
};

static struct {
    struct seam_hooks hooks;
    struct block *blocks;
    unsigned n_allocs, fail_alloc;
    struct irq_line *lines[MAX_VECTORS];
    unsigned n_lines, vector_limit;
    uint64_t now_ns, alarm_ns;
    uint32_t random;
    const char *acpi_signature;
    const void *acpi_table;
    jmp_buf *panic_to;
    char panic_text[256];
} seam = {.vector_limit = MAX_VECTORS, .alarm_ns = UINT64_MAX};

void seam_reset(void)
{
    while (seam.blocks != NULL) {
        struct block *next = seam.blocks->next;
        free(seam.blocks->memory);
        free(seam.blocks);
        seam.blocks = next;
    }
    memset(&seam, 0, sizeof(seam));
    seam.vector_limit = MAX_VECTORS;
    seam.alarm_ns = UINT64_MAX;
}

void seam_hook(const struct seam_hooks *hooks)
{
    seam.hooks = *hooks;
}

/* ---- memory ---- */

void *mem_alloc(size_t bytes, size_t align)
{
    seam.n_allocs++;
    if (seam.fail_alloc != 0 && --seam.fail_alloc == 0) {
        return NULL;
    }
    struct block *block = malloc(sizeof(*block));
    if (block == NULL || posix_memalign(&block->memory, align < 16 ? 16 : align, bytes) != 0) {
        abort();
    }
    memset(block->memory, 0, bytes);
    block->next = seam.blocks;
    seam.blocks = block;
    return block->memory;
}

void seam_fail_alloc(unsigned nth)
{
    seam.fail_alloc = nth;
}

unsigned seam_allocs(void)
{
    return seam.n_allocs;
}

uint64_t mem_dma_addr(const void *ptr)
{
    return (uint64_t)(uintptr_t)ptr + SEAM_DMA_OFFSET;
}

void *seam_ram(uint64_t dma_addr, uint64_t len_bytes)
{
    if (dma_addr <= SEAM_DMA_OFFSET || dma_addr + len_bytes < dma_addr) {
        return NULL;
    }
    void *ptr = (void *)(uintptr_t)(dma_addr - SEAM_DMA_OFFSET);
    return len_bytes != 0 && POISONED(ptr, len_bytes) ? NULL : ptr;
}

void *mem_map_mmio(uint64_t phys, size_t len)
{
    if (seam.hooks.mapped != NULL) {
        seam.hooks.mapped(seam.hooks.ctx, phys, len);
    }
    return (void *)(uintptr_t)(phys | MMIO_WINDOW);
}

const void *mem_map_firmware(uint64_t phys, size_t len)
{
    return seam_ram(phys, len);
}

/* ---- shared memory and barriers ---- */

static void touch(const volatile void *addr, unsigned bytes, bool is_store)
{
    if (seam.hooks.shared != NULL) {
        seam.hooks.shared(seam.hooks.ctx, addr, bytes, is_store);
    }
}

/* Headers of frames lie at any address, so no access here may ask for alignment. */
#define DEFINE_SHARED(bits)                                                                        \
    uint##bits##_t model_load##bits(const volatile void *addr)                                     \
    {                                                                                              \
        uint##bits##_t value;                                                                      \
        touch(addr, sizeof(value), false);                                                         \
        if (seam.hooks.load != NULL) {                                                             \
            return (uint##bits##_t)seam.hooks.load(seam.hooks.ctx, addr, sizeof(value));           \
        }                                                                                          \
        memcpy(&value, (const void *)(uintptr_t)addr, sizeof(value));                              \
        return value;                                                                              \
    }                                                                                              \
    void model_store##bits(volatile void *addr, uint##bits##_t value)                              \
    {                                                                                              \
        touch(addr, sizeof(value), true);                                                          \
        if (seam.hooks.store != NULL) {                                                            \
            seam.hooks.store(seam.hooks.ctx, addr, sizeof(value), value);                          \
            return;                                                                                \
        }                                                                                          \
        memcpy((void *)(uintptr_t)addr, &value, sizeof(value));                                    \
    }
DEFINE_SHARED(8)
DEFINE_SHARED(16)
DEFINE_SHARED(32)
DEFINE_SHARED(64)

static void barrier(bool full)
{
    if (seam.hooks.barrier != NULL) {
        seam.hooks.barrier(seam.hooks.ctx, full);
    }
}

void model_mb(void)
{
    barrier(true);
}

void model_rmb(void)
{
    barrier(false);
}

void model_wmb(void)
{
    barrier(false);
}

/* ---- registers ---- */

static uint64_t phys_of(const volatile void *addr)
{
    uint64_t window = (uint64_t)(uintptr_t)addr;
    if ((window & MMIO_WINDOW) == 0) {
        panic("a register access to %p, which is no window onto registers", (const void *)addr);
    }
    return window & ~MMIO_WINDOW;
}

#define DEFINE_MMIO(bits)                                                                          \
    uint##bits##_t model_mmio_read##bits(const volatile void *addr)                                \
    {                                                                                              \
        uint64_t phys = phys_of(addr);                                                             \
        return seam.hooks.mmio_read == NULL                                                        \
                   ? (uint##bits##_t) - 1                                                          \
                   : (uint##bits##_t)seam.hooks.mmio_read(seam.hooks.ctx, phys, (bits) / 8);       \
    }                                                                                              \
    void model_mmio_write##bits(volatile void *addr, uint##bits##_t value)                         \
    {                                                                                              \
        uint64_t phys = phys_of(addr);                                                             \
        if (seam.hooks.mmio_write != NULL) {                                                       \
            seam.hooks.mmio_write(seam.hooks.ctx, phys, (bits) / 8, value);                        \
        }                                                                                          \
    }
DEFINE_MMIO(8)
DEFINE_MMIO(16)
DEFINE_MMIO(32)

uint32_t model_io_in(uint16_t port, unsigned bytes)
{
    return seam.hooks.io_in == NULL ? 0xffffffffu : seam.hooks.io_in(seam.hooks.ctx, port, bytes);
}

void model_io_out(uint16_t port, unsigned bytes, uint32_t value)
{
    if (seam.hooks.io_out != NULL) {
        seam.hooks.io_out(seam.hooks.ctx, port, bytes, value);
    }
}

/* ---- interrupts, idling, time ---- */

void model_irq_disable(void)
{
}

void model_irq_enable(void)
{
}

void model_idle(void)
{
    if (seam.hooks.idle != NULL) {
        seam.hooks.idle(seam.hooks.ctx);
    } else if (seam.alarm_ns != UINT64_MAX && seam.alarm_ns > seam.now_ns) {
        seam.now_ns = seam.alarm_ns;
    }
}

void model_relax(void)
{
    seam.now_ns += CLOCK_LOOK_NS;
    if (seam.hooks.relax != NULL) {
        seam.hooks.relax(seam.hooks.ctx);
    }
}

int irq_msi_alloc(struct irq_line *line, uint64_t *msg_addr, uint32_t *msg_data)
{
    if (seam.n_lines >= seam.vector_limit) {
        return -1;
    }
    seam.lines[seam.n_lines] = line;
    *msg_addr = MSI_ADDRESS;
    *msg_data = MSI_DATA_BASE + seam.n_lines;
    return (int)(MSI_DATA_BASE + seam.n_lines++);
}

bool seam_interrupt(uint64_t msg_addr, uint32_t msg_data)
{
    uint32_t n = msg_data - MSI_DATA_BASE;
    if (msg_addr != MSI_ADDRESS || n >= seam.n_lines) {
        return false;
    }
    seam.lines[n]->count++;
    return true;
}

void seam_limit_vectors(unsigned n)
{
    seam.vector_limit = n < MAX_VECTORS ? n : MAX_VECTORS;
}

uint64_t clock_now_ns(void)
{
    seam.now_ns += CLOCK_LOOK_NS;
    return seam.now_ns;
}

uint64_t seam_now_ns(void)
{
    return seam.now_ns;
}

void seam_advance_ns(uint64_t ns)
{
    seam.now_ns += ns;
}

void clock_alarm_set(uint64_t deadline_ns)
{
    seam.alarm_ns = deadline_ns;
}

void clock_alarm_clear(void)
{
    seam.alarm_ns = UINT64_MAX;
}

const char *clock_source(void)
{
    return "model";
}

uint64_t clock_tsc_hz(void)
{
    return CLOCK_NS_PER_S;
}

/* ---- the machine ---- */

uint32_t machine_random32(void)
{
    seam.random = seam.random * 1664525u + 1013904223u;
    return seam.random ^ (seam.random >> 16);
}

const char *machine_hypervisor(void)
{
    return "model";
}

void machine_exit(int code)
{
    exit(code);
}

const void *acpi_find_table(const char *signature)
{
    return seam.acpi_signature != NULL && strcmp(signature, seam.acpi_signature) == 0
               ? seam.acpi_table
               : NULL;
}

void seam_set_acpi_table(const char *signature, const void *table)
{
    seam.acpi_signature = signature;
    seam.acpi_table = table;
}

void seam_expect_panic(jmp_buf *where)
{
    seam.panic_to = where;
}

const char *seam_panic_text(void)
{
    return seam.panic_text;
}

void panic(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(seam.panic_text, sizeof(seam.panic_text), format, args);
    va_end(args);
    if (seam.panic_to != NULL) {
        longjmp(*seam.panic_to, 1);
    }
    fprintf(stderr, "panic: %s\n", seam.panic_text);
    abort();
}
