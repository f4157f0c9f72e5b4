/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Memory maps as firmware hands them over: unsorted, touching, overlapping, too many.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "boot/memmap.h"

#define MIB      (1ull << 20)
#define RAM      BOOT_MEMORY_RAM
#define RESERVED BOOT_MEMORY_RESERVED

struct fixture {
    struct boot_memory map[BOOT_MEMORY_MAX];
    uint32_t count;
    struct boot_memory out[BOOT_MEMORY_MAX];
};

static void add(struct fixture *f, uint64_t base, uint64_t end, uint64_t type)
{
    memmap_add(f->map, &f->count, base, end - base, type);
}

static uint32_t usable(struct fixture *f, uint64_t low, uint64_t hole_start, uint64_t hole_end)
{
    return memmap_usable(f->map, f->count, low, hole_start, hole_end, f->out, BOOT_MEMORY_MAX);
}

static void assert_range(const struct boot_memory *range, uint64_t base, uint64_t end)
{
    assert_int_equal(range->base, base);
    assert_int_equal(range->base + range->len, end);
}

/* What QEMU's q35 hands over, with the image in the middle. */
static void test_pc_map(void **state)
{
    (void)state;
    struct fixture f = {0};
    add(&f, 0, 0x9fc00, RAM);
    add(&f, 0x9fc00, 0xa0000, RESERVED);
    add(&f, 0xf0000, MIB, RESERVED);
    add(&f, MIB, 0xffe0000, RAM);
    add(&f, 0xffe0000, 0x10000000, RESERVED);
    add(&f, 0x100000000, 0x140000000, RAM);
    assert_int_equal(usable(&f, 2 * MIB, 32 * MIB, 33 * MIB), 3);
    assert_range(&f.out[0], 2 * MIB, 32 * MIB);
    assert_range(&f.out[1], 33 * MIB, 0xffe0000);
    assert_range(&f.out[2], 0x100000000, 0x140000000);
}

static void test_unsorted_and_touching_are_joined(void **state)
{
    (void)state;
    struct fixture f = {0};
    add(&f, 20 * MIB, 30 * MIB, RAM);
    add(&f, 4 * MIB, 10 * MIB, RAM);
    add(&f, 10 * MIB, 20 * MIB, RAM);
    assert_int_equal(usable(&f, 0, 0, 0), 1);
    assert_range(&f.out[0], 4 * MIB, 30 * MIB);
}

/* Whatever the order and the kind of overlap: memory that somebody else claims is not ours. */
static void test_reserved_wins(void **state)
{
    (void)state;
    static const struct {
        uint64_t base, end;
    } claims[] = {{5, 6}, {3, 5}, {8, 12}, {4, 5}, {9, 10}};
    struct fixture f = {0};
    for (size_t i = 0; i < sizeof(claims) / sizeof(claims[0]); i++) {
        add(&f, claims[i].base * MIB, claims[i].end * MIB, RESERVED);
        if (i == 1) {
            add(&f, 4 * MIB, 10 * MIB, RAM);
        }
    }
    assert_int_equal(usable(&f, 0, 0, 0), 1);
    assert_range(&f.out[0], 6 * MIB, 8 * MIB);

    add(&f, 0, 100 * MIB, RESERVED);
    assert_int_equal(usable(&f, 0, 0, 0), 0);
}

static void test_whole_pages_only(void **state)
{
    (void)state;
    struct fixture f = {0};
    add(&f, MIB + 1, MIB + 4096 * 3 - 1, RAM);
    add(&f, 5 * MIB + 1, 5 * MIB + 4096, RAM);
    assert_int_equal(usable(&f, 0, 0, 0), 1);
    assert_range(&f.out[0], MIB + 4096, MIB + 4096 * 2);
}

static void test_broken_ranges_are_left_out(void **state)
{
    (void)state;
    struct fixture f = {0};
    memmap_add(f.map, &f.count, MIB, 0, RAM);
    memmap_add(f.map, &f.count, UINT64_MAX - 10, 100, RAM);
    assert_int_equal(f.count, 0);
    assert_int_equal(usable(&f, 0, 0, 0), 0);
}

static void test_a_map_that_is_too_long_is_cut(void **state)
{
    (void)state;
    struct fixture f = {0};
    for (uint32_t i = 0; i < BOOT_MEMORY_MAX + 10; i++) {
        add(&f, (2 * i + 2) * MIB, (2 * i + 3) * MIB, RAM);
    }
    assert_int_equal(f.count, BOOT_MEMORY_MAX);
    add(&f, f.map[BOOT_MEMORY_MAX - 1].base + MIB, f.map[BOOT_MEMORY_MAX - 1].base + 2 * MIB, RAM);
    assert_int_equal(f.map[BOOT_MEMORY_MAX - 1].len, 2 * MIB);
}

/* With room for few, the large ones stay, still in address order. */
static void test_the_largest_are_kept(void **state)
{
    (void)state;
    struct fixture f = {0};
    static const uint64_t lengths[] = {1, 7, 2, 9, 3};
    for (size_t i = 0; i < 5; i++) {
        add(&f, (i + 1) * 100 * MIB, ((i + 1) * 100 + lengths[i]) * MIB, RAM);
    }
    assert_int_equal(memmap_usable(f.map, f.count, 0, 0, 0, f.out, 2), 2);
    assert_range(&f.out[0], 200 * MIB, 207 * MIB);
    assert_range(&f.out[1], 400 * MIB, 409 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pc_map),
        cmocka_unit_test(test_unsorted_and_touching_are_joined),
        cmocka_unit_test(test_reserved_wins),
        cmocka_unit_test(test_whole_pages_only),
        cmocka_unit_test(test_broken_ranges_are_left_out),
        cmocka_unit_test(test_a_map_that_is_too_long_is_cut),
        cmocka_unit_test(test_the_largest_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
