/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Small computations of boot/: configuration text, symbol names, time scales.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "boot/cmdline.h"
#include "boot/symbols.h"
#include "boot/timescale.h"

static void assert_line(const char *before, const char *text, const char *after)
{
    char line[64];
    snprintf(line, sizeof(line), "%s", before);
    assert_true(cmdline_append(line, sizeof(line), text, strlen(text)));
    assert_string_equal(line, after);
}

static void test_cmdline_forms(void **state)
{
    (void)state;
    assert_line("", "", "");
    assert_line("", "a=1", "a=1");
    assert_line("", "  a=1\r\n\tb=2  \n\n", "a=1 b=2");
    assert_line("", "# all of it\n", "");
    assert_line("", "a=1 # x=2\nb=3#c=4\n#\nd=5", "a=1 b=3 d=5");
    assert_line("a=1", "b=2", "a=1 b=2");
    assert_line("a=1", "# nothing", "a=1");
}

/* The longest that fits, and one more; a refusal leaves the line as it was. */
static void test_cmdline_limit(void **state)
{
    (void)state;
    char line[8] = "ab";
    assert_false(cmdline_append(line, sizeof(line), "cdefg", 5));
    assert_string_equal(line, "ab");
    assert_true(cmdline_append(line, sizeof(line), "cdef", 4));
    assert_string_equal(line, "ab cdef");
    assert_true(cmdline_append(line, sizeof(line), " \n # x", 6));
    assert_false(cmdline_append(line, sizeof(line), "x", 1));
    assert_string_equal(line, "ab cdef");
    /* Room for the word and the NUL, but not for the blank before it. */
    strcpy(line, "abcdef");
    assert_false(cmdline_append(line, sizeof(line), "x", 1));
    assert_string_equal(line, "abcdef");
}

static void test_symbols(void **state)
{
    (void)state;
    static const struct symbol symbols[] = {{100, 0}, {200, 4}, {200, 8}, {300, 12}};
    const struct symbol_table table = {symbols, 4, "one\0two\0tri\0end"};
    uint64_t offset = 0;
    assert_null(symbols_find(&table, 99, &offset));
    assert_string_equal(symbols_find(&table, 100, &offset), "one");
    assert_int_equal(offset, 0);
    assert_string_equal(symbols_find(&table, 199, &offset), "one");
    assert_int_equal(offset, 99);
    assert_string_equal(symbols_find(&table, 250, &offset), "tri");
    assert_string_equal(symbols_find(&table, 0xffffffffffull, &offset), "end");
    const struct symbol_table empty = {symbols, 0, ""};
    assert_null(symbols_find(&empty, 100, &offset));
}

/* A day at several frequencies, there and back: off by half a unit of the factor (1/2^30 at 4 GHz)
 * at most. */
static void test_timescale_there_and_back(void **state)
{
    (void)state;
    static const uint64_t rates[] = {1000000, 24000000, 1000000000, 2596148123, 3999999999};
    const uint64_t day_ns = 86400ull * 1000000000;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        uint64_t ticks = timescale_ticks(day_ns, rates[i]);
        assert_int_equal(ticks, 86400 * rates[i]);
        uint64_t ns = timescale_ns(ticks, timescale_mult(rates[i]));
        uint64_t off = ns > day_ns ? ns - day_ns : day_ns - ns;
        assert_true(off < 41000);
    }
}

static void test_timescale_hz(void **state)
{
    (void)state;
    /* 5 ms of the ACPI timer at 2.6 GHz */
    assert_int_equal(timescale_hz(13000000, 17898, 3579545), 2599960051);
    assert_int_equal(timescale_hz(0, 17898, 3579545), 0);
}

/* mul and shift as KVM computes them for 2.6 GHz, 800 MHz and 4 GHz. */
static void test_timescale_kvmclock(void **state)
{
    (void)state;
    assert_in_range(timescale_kvmclock_hz(3303820997u, -1), 2599999990, 2600000010);
    assert_in_range(timescale_kvmclock_hz(2684354560u, 1), 799999990, 800000010);
    assert_in_range(timescale_kvmclock_hz(2147483648u, -1), 3999999990, 4000000010);
    assert_int_equal(timescale_kvmclock_hz(0, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cmdline_forms), cmocka_unit_test(test_cmdline_limit),
        cmocka_unit_test(test_symbols),       cmocka_unit_test(test_timescale_there_and_back),
        cmocka_unit_test(test_timescale_hz),  cmocka_unit_test(test_timescale_kvmclock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
