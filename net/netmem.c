/* SPDX-License-Identifier: BSD-2-Clause */
#include "netmem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "boot/mem.h"
#include "boot/panic.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NETMEM_ASAN 1 /* as clang says it */
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(NETMEM_ASAN)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(addr, size)   ((void)(addr), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(addr, size) ((void)(addr), (void)(size))
#endif

/* Four classes to each doubling, from 64 bytes: at most a quarter of a block is waste. */
#define SMALLEST_SHIFT 6u
#define STEPS_SHIFT    2u
#define CLASSES        44u
/* What a class takes from mem_alloc at once, unless one block is larger. */
#define SLAB_BYTES       ((size_t)64 * 1024)
#define SLAB_ALIGN_BYTES ((size_t)64)

#define MAGIC_USED 0x75736564u
#define MAGIC_FREE 0x66726565u

struct header {
    uint32_t magic;
    uint32_t class_index;
    struct header *next; /* while free */
};
_Static_assert(sizeof(struct header) == 16, "blocks stay aligned to 16 bytes");

static struct header *free_lists[CLASSES];
static uint64_t used_bytes, frees;

#ifdef SLUICE_MODEL
uint64_t netmem_model_fail_in;
#endif

static size_t class_bytes(unsigned index)
{
    size_t base = (size_t)1 << (SMALLEST_SHIFT + (index >> STEPS_SHIFT));
    return base + (base >> STEPS_SHIFT) * (index & ((1u << STEPS_SHIFT) - 1));
}

/* The smallest class of at least `bytes`. */
static unsigned class_of(size_t bytes)
{
    if (bytes <= ((size_t)1 << SMALLEST_SHIFT)) {
        return 0;
    }
    size_t last = bytes - 1;
    unsigned shift = 63u - (unsigned)__builtin_clzl(last);
    unsigned step = (unsigned)(last >> (shift - STEPS_SHIFT)) & ((1u << STEPS_SHIFT) - 1);
    return ((shift - SMALLEST_SHIFT) << STEPS_SHIFT) + step + 1;
}

static void *slab_memory(size_t bytes)
{
#ifdef SLUICE_MODEL
    /* The stack outlives the machine of one test, so its memory must. */
    return aligned_alloc(SLAB_ALIGN_BYTES,
                         (bytes + SLAB_ALIGN_BYTES - 1) & ~(SLAB_ALIGN_BYTES - 1));
#else
    return mem_alloc(bytes, SLAB_ALIGN_BYTES);
#endif
}

static bool refill(unsigned index)
{
    size_t each = class_bytes(index);
    size_t count = each < SLAB_BYTES / 2 ? SLAB_BYTES / each : 1;
    uint8_t *slab = slab_memory(count * each);
    if (slab == NULL && count > 1) {
        count = 1;
        slab = slab_memory(each);
    }
    if (slab == NULL) {
        return false;
    }
    for (size_t i = count; i-- > 0;) {
        struct header *header = (struct header *)(void *)(slab + i * each);
        header->magic = MAGIC_FREE;
        header->class_index = index;
        header->next = free_lists[index];
        free_lists[index] = header;
        ASAN_POISON_MEMORY_REGION(header + 1, each - sizeof(*header));
    }
    return true;
}

void *netmem_alloc(size_t bytes)
{
#ifdef SLUICE_MODEL
    if (netmem_model_fail_in != 0 && --netmem_model_fail_in == 0) {
        return NULL;
    }
#endif
    if (bytes > NETMEM_MAX_BYTES) {
        return NULL;
    }
    unsigned index = class_of(bytes + sizeof(struct header));
    if (free_lists[index] == NULL && !refill(index)) {
        return NULL;
    }
    struct header *header = free_lists[index];
    free_lists[index] = header->next;
    invariant(header->magic == MAGIC_FREE);
    header->magic = MAGIC_USED;
    used_bytes += class_bytes(index);
    ASAN_UNPOISON_MEMORY_REGION(header + 1, bytes);
    return header + 1;
}

void *netmem_calloc(size_t count, size_t bytes)
{
    if (bytes != 0 && count > NETMEM_MAX_BYTES / bytes) {
        return NULL;
    }
    void *block = netmem_alloc(count * bytes);
    if (block != NULL) {
        memset(block, 0, count * bytes);
    }
    return block;
}

void netmem_free(void *block)
{
    struct header *header = (struct header *)block - 1;
    invariant(header->magic == MAGIC_USED);
    header->magic = MAGIC_FREE;
    unsigned index = header->class_index;
    used_bytes -= class_bytes(index);
    frees++;
    header->next = free_lists[index];
    free_lists[index] = header;
    ASAN_POISON_MEMORY_REGION(block, class_bytes(index) - sizeof(*header));
}

size_t netmem_true_bytes(size_t bytes)
{
    return class_bytes(class_of(bytes + sizeof(struct header)));
}

uint64_t netmem_used_bytes(void)
{
    return used_bytes;
}

uint64_t netmem_frees(void)
{
    return frees;
}
