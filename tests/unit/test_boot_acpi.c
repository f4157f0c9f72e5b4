/* SPDX-License-Identifier: BSD-2-Clause
 *
 * ACPI tables of firmware that is old, short, wrong or hardware-reduced.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "boot/acpi_tables.h"

static void fix_sum(uint8_t *table, size_t bytes, size_t at)
{
    uint8_t sum = 0;
    table[at] = 0;
    for (size_t i = 0; i < bytes; i++) {
        sum = (uint8_t)(sum + table[i]);
    }
    table[at] = (uint8_t)-sum;
}

static void put(uint8_t *table, size_t at, uint64_t value, size_t bytes)
{
    memcpy(table + at, &value, bytes);
}

static void make_rsdp(uint8_t rsdp[36], uint8_t revision, uint32_t rsdt, uint64_t xsdt)
{
    memset(rsdp, 0, 36);
    memcpy(rsdp, "RSD PTR ", 8);
    rsdp[15] = revision;
    put(rsdp, 16, rsdt, 4);
    put(rsdp, 20, 36, 4);
    put(rsdp, 24, xsdt, 8);
    fix_sum(rsdp, 20, 8);
    fix_sum(rsdp, 36, 32);
}

static void test_root_pointer_versions(void **state)
{
    (void)state;
    uint8_t rsdp[36];
    struct acpi_root root;

    make_rsdp(rsdp, 2, 0x1000, 0x123456789000);
    assert_true(acpi_parse_rsdp(rsdp, sizeof(rsdp), &root));
    assert_int_equal(root.address, 0x123456789000);
    assert_int_equal(root.entry_bytes, 8);

    make_rsdp(rsdp, 0, 0x1000, 0x123456789000);
    assert_true(acpi_parse_rsdp(rsdp, sizeof(rsdp), &root));
    assert_int_equal(root.address, 0x1000);
    assert_int_equal(root.entry_bytes, 4);

    make_rsdp(rsdp, 2, 0x1000, 0);
    assert_true(acpi_parse_rsdp(rsdp, sizeof(rsdp), &root));
    assert_int_equal(root.entry_bytes, 4);

    /* A good first part with a bad second one is still a version 1 pointer. */
    make_rsdp(rsdp, 2, 0x1000, 0x2000);
    rsdp[30]++;
    assert_true(acpi_parse_rsdp(rsdp, sizeof(rsdp), &root));
    assert_int_equal(root.entry_bytes, 4);
}

static void test_root_pointer_refused(void **state)
{
    (void)state;
    uint8_t rsdp[36];
    struct acpi_root root;
    for (size_t i = 0; i < 20; i++) {
        make_rsdp(rsdp, 2, 0x1000, 0x2000);
        rsdp[i]++;
        assert_false(acpi_parse_rsdp(rsdp, sizeof(rsdp), &root));
    }
    make_rsdp(rsdp, 2, 0x1000, 0x2000);
    assert_false(acpi_parse_rsdp(rsdp, 19, &root));
    make_rsdp(rsdp, 0, 0, 0);
    assert_false(acpi_parse_rsdp(rsdp, sizeof(rsdp), &root));
}

/* Every length must be safe to read (the sanitizer watches) and must not find what lies beyond it.
 */
static void test_fadt_of_every_length(void **state)
{
    (void)state;
    uint8_t full[276] = {0};
    put(full, 40, 0x11110000, 4);
    put(full, 64, 0x604, 4);
    put(full, 76, 0x608, 4);
    put(full, 140, 0x222200000000, 8);
    full[208] = ACPI_SPACE_MEMORY;
    put(full, 212, 0xfed00000, 8);
    for (size_t bytes = 0; bytes <= sizeof(full); bytes++) {
        uint8_t *exact = malloc(bytes + 1) /* malloc(0) may be NULL */;
        memcpy(exact, full, bytes);
        exact = realloc(exact, bytes > 0 ? bytes : 1);
        struct acpi_fadt fadt;
        acpi_parse_fadt(exact, bytes, &fadt);
        assert_int_equal(fadt.dsdt, bytes >= 148 ? 0x222200000000 : bytes >= 44 ? 0x11110000 : 0);
        assert_int_equal(fadt.pm1a_control.address, bytes >= 68 ? 0x604 : 0);
        assert_int_equal(fadt.pm_timer.address, bytes >= 220  ? 0xfed00000
                                                : bytes >= 80 ? 0x608
                                                              : 0);
        free(exact);
    }
}

static void test_fadt_hardware_reduced(void **state)
{
    (void)state;
    uint8_t table[276] = {0};
    put(table, 64, 0x604, 4);
    put(table, 112, 1u << 20, 4);
    table[244] = ACPI_SPACE_IO;
    put(table, 248, 0x600, 8);
    struct acpi_fadt fadt;
    acpi_parse_fadt(table, sizeof(table), &fadt);
    assert_true(fadt.hardware_reduced);
    assert_int_equal(fadt.pm1a_control.address, 0);
    assert_int_equal(fadt.sleep_control.address, 0x600);
    assert_int_equal(fadt.sleep_control.space, ACPI_SPACE_IO);
    /* An address space that is not memory or ports is no register. */
    table[244] = 0x7f;
    acpi_parse_fadt(table, sizeof(table), &fadt);
    assert_int_equal(fadt.sleep_control.address, 0);
}

static void test_s5_forms(void **state)
{
    (void)state;
    static const struct {
        uint8_t aml[24];
        uint8_t bytes;
        int a, b; /* -1: not found */
    } cases[] = {
        /* Name (_S5, Package (4) {0, 0, 0, 0}): QEMU */
        {{0x08, '_', 'S', '5', '_', 0x12, 0x06, 0x04, 0, 0, 0, 0}, 12, 0, 0},
        /* Name (\_S5, Package (2) {5, 5}) with byte constants */
        {{0x08, '\\', '_', 'S', '5', '_', 0x12, 0x06, 0x02, 0x0a, 5, 0x0a, 6}, 13, 5, 6},
        /* word and double word constants, two length bytes */
        {{0x08, '_', 'S', '5', '_', 0x12, 0x4a, 0x00, 0x02, 0x0b, 7, 0, 0x0c, 3, 0, 0, 0},
         17,
         7,
         3},
        /* one element serves for both */
        {{0x08, '_', 'S', '5', '_', 0x12, 0x03, 0x01, 0x01}, 9, 1, 1},
        /* a mention first, the definition behind it */
        {{'_', 'S', '5', '_', 0x08, '_', 'S', '5', '_', 0x12, 0x04, 0x02, 0x01, 0x00}, 14, 1, 0},
        /* a method, not a name */
        {{0x14, 0x0b, '_', 'S', '5', '_', 0x00, 0xa4}, 8, -1, -1},
        /* a reference as element */
        {{0x08, '_', 'S', '5', '_', 0x12, 0x06, 0x01, 'X', 'Y', 'Z', '0'}, 12, -1, -1},
        /* an empty package */
        {{0x08, '_', 'S', '5', '_', 0x12, 0x02, 0x00}, 8, -1, -1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t a = 0xff, b = 0xff;
        bool found = acpi_parse_s5(cases[i].aml, cases[i].bytes, &a, &b);
        assert_int_equal(found, cases[i].a >= 0);
        if (found) {
            assert_int_equal(a, cases[i].a);
            assert_int_equal(b, cases[i].b);
        }
    }
}

/* Cut anywhere, nothing beyond the end is read. */
static void test_s5_cut_short(void **state)
{
    (void)state;
    static const uint8_t aml[] = {0x08, '_',  'S', '5', '_', 0x12, 0xca, 0, 0, 0,
                                  0x02, 0x0c, 7,   0,   0,   0,    0x0b, 3, 0};
    for (size_t bytes = 1; bytes <= sizeof(aml); bytes++) {
        uint8_t *exact = malloc(bytes);
        memcpy(exact, aml, bytes);
        uint8_t a, b;
        bool found = acpi_parse_s5(exact, bytes, &a, &b);
        assert_int_equal(found, bytes >= 16);
        free(exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_root_pointer_versions),
        cmocka_unit_test(test_root_pointer_refused),
        cmocka_unit_test(test_fadt_of_every_length),
        cmocka_unit_test(test_fadt_hardware_reduced),
        cmocka_unit_test(test_s5_forms),
        cmocka_unit_test(test_s5_cut_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
