/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/selftest.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/clock.h"

/* ---- those that must not come back ---- */

static void test_panic(void)
{
    panic("selftest: the panic that was asked for");
}

/* An address on page 0, which nothing may map; volatile, so that no compiler knows it. */
static volatile uintptr_t absent_address = 8;

static void test_pagefault(void)
{
    *(volatile uint32_t *)absent_address = 1;
}

/* More frames than any stack holds; volatile, so that no compiler knows. */
static volatile unsigned endless = UINT32_MAX;

/* Not a tail call: the frame is used after the inner call. */
/* NOLINTNEXTLINE(misc-no-recursion): it is what the stack's guard page is tested with */
__attribute__((noinline)) static unsigned recurse(volatile const unsigned *outer)
{
    volatile unsigned frame[256];
    frame[0] = *outer + 1;
    return frame[0] == endless ? 0 : recurse(frame) + frame[0];
}

static void test_stack(void)
{
    const volatile unsigned start = 0;
    printf("recursion came back with %u\n", recurse(&start));
}

static void test_wx(void)
{
    /* Code is read-only: the store must fault. The same byte, so that a machine without protection
     * lives on. */
    volatile uint8_t *code = (volatile uint8_t *)(uintptr_t)test_panic;
    *code = *code;
}

static void test_nx(void)
{
    /* Data is not executable: "ret" in a writable page must not run. */
    static uint8_t data[16] = {0xc3};
    ((void (*)(void))(uintptr_t)data)();
}

/* ---- those that must ---- */

static bool expect_text(const char *what, const char *got, const char *wanted)
{
    bool ok = strcmp(got, wanted) == 0;
    printf("%-12s %s%s%s\n", what, got, ok ? "" : "  WRONG, wanted ", ok ? "" : wanted);
    return ok;
}

static bool test_printf(void)
{
    char text[64];
    bool ok = true;
    snprintf(text, sizeof text, "%.3f %g %e", 3.14159, 1e-7, 123456.789);
    ok &= expect_text("double", text, "3.142 1e-07 1.234568e+05");
    snprintf(text, sizeof text, "%" PRIu64 " %" PRId64, UINT64_MAX, INT64_MIN);
    ok &= expect_text("64 bit", text, "18446744073709551615 -9223372036854775808");
    snprintf(text, sizeof text, "%zu|%-5s|%5s|%05d|%#x", sizeof text, "ab", "cd", -42, 255u);
    ok &= expect_text("fields", text, "64|ab   |   cd|-0042|0xff");
    snprintf(text, sizeof text, "%.17g", strtod("0.1", NULL));
    ok &= expect_text("strtod", text, "0.10000000000000001");
    snprintf(text, sizeof text, "%.6f", sqrt(2.0));
    ok &= expect_text("sqrt", text, "1.414214");
    return ok;
}

static bool test_clock(void)
{
    uint64_t start_ns = clock_now_ns();
    uint64_t last_ns = start_ns;
    uint64_t reads = 0;
    uint64_t largest_step_ns = 0;
    while (last_ns - start_ns < CLOCK_NS_PER_S) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns < last_ns) {
            printf("clock went back by %" PRIu64 " ns\n", last_ns - now_ns);
            return false;
        }
        uint64_t step_ns = now_ns - last_ns;
        largest_step_ns = step_ns > largest_step_ns ? step_ns : largest_step_ns;
        last_ns = now_ns;
        reads++;
    }
    printf("clock        %s, %" PRIu64 " Hz, %" PRIu64 " reads in 1 s, largest step %" PRIu64
           " ns\n",
           clock_source(), clock_tsc_hz(), reads, largest_step_ns);
    return true;
}

/* Blocks of growing size until none is left, each filled and checked, all freed, the largest asked
 * for again. */
static bool test_heap(void)
{
    struct block {
        struct block *next;
        size_t size;
    } *blocks = NULL;
    size_t total = 0;
    size_t largest = 0;
    bool intact = true;
    for (struct block *block; total < (64u << 20) && (block = malloc(largest + 4096)) != NULL;
         total += largest) {
        largest += 4096;
        memset(block, (int)(largest >> 12 & 0xff), largest);
        block->next = blocks;
        block->size = largest;
        blocks = block;
    }
    while (blocks != NULL) {
        struct block *block = blocks;
        blocks = block->next;
        const uint8_t *last = (const uint8_t *)block + block->size - 1;
        intact &= *last == (uint8_t)(block->size >> 12 & 0xff);
        free(block);
    }
    void *again = largest != 0 ? malloc(largest) : NULL;
    /* No machine has this much: the answer must be NULL, not a fault. The size is read at run time,
     * or the compiler knows better. */
    volatile size_t absurd = SIZE_MAX / 4;
    void *none = malloc(absurd);
    printf("heap         %zu bytes in blocks up to %zu, %s\n", total, largest,
           intact ? "intact" : "DAMAGED");
    bool ok = intact && again != NULL && none == NULL;
    free(again);
    free(none);
    return ok;
}

void selftest_run(struct outcome *outcome)
{
    static void (*const fatal[])(void) = {
        [CONFIG_SELFTEST_PANIC] = test_panic, [CONFIG_SELFTEST_PAGEFAULT] = test_pagefault,
        [CONFIG_SELFTEST_STACK] = test_stack, [CONFIG_SELFTEST_WX] = test_wx,
        [CONFIG_SELFTEST_NX] = test_nx,       [CONFIG_SELFTEST_HEAP] = NULL,
    };
    static bool (*const passable[])(void) = {
        [CONFIG_SELFTEST_PRINTF] = test_printf,
        [CONFIG_SELFTEST_CLOCK] = test_clock,
        [CONFIG_SELFTEST_HEAP] = test_heap,
    };
    uint32_t which = outcome->config->selftest;
    fflush(stdout);
    if (fatal[which] != NULL) {
        fatal[which]();
        outcome_fail(outcome, SLUICE_EXIT_INVARIANT, "the machine let pass what must fault");
    } else if (!passable[which]()) {
        outcome_fail(outcome, SLUICE_EXIT_INVARIANT, "the machine does not do what it must");
    }
}
