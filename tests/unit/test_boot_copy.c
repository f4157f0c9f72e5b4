/* SPDX-License-Identifier: BSD-2-Clause
 *
 * memcpy and memset of the image: every length around every boundary, at every alignment, and not
 * one byte beside.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "boot/copy.h"

#define LENGTH_MAX 300u
#define ALIGNMENTS 17u
#define GUARD      32u
#define ROOM       (GUARD + ALIGNMENTS + LENGTH_MAX + GUARD)
#define UNTOUCHED  0xa5

static uint8_t source[ROOM], target[ROOM];

static void prepare(void)
{
    for (size_t i = 0; i < ROOM; i++) {
        source[i] = (uint8_t)(i * 7 + 1);
        target[i] = UNTOUCHED;
    }
}

/* Byte i of the target is wanted(i) inside [start, start + length), untouched outside. */
static int wrong_at(size_t start, size_t length, const uint8_t *wanted, size_t step)
{
    for (size_t i = 0; i < ROOM; i++) {
        uint8_t expected =
            i >= start && i < start + length ? wanted[(i - start) * step] : UNTOUCHED;
        if (target[i] != expected) {
            return (int)i;
        }
    }
    return -1;
}

static void test_copy(void **state)
{
    (void)state;
    for (size_t from = 0; from < ALIGNMENTS; from += 3) {
        for (size_t to = 0; to < ALIGNMENTS; to += 4) {
            for (size_t length = 0; length <= LENGTH_MAX; length++) {
                prepare();
                copy_bytes((char *)target + GUARD + to, (const char *)source + GUARD + from,
                           length);
                assert_int_equal(wrong_at(GUARD + to, length, source + GUARD + from, 1), -1);
            }
        }
    }
}

static void test_fill(void **state)
{
    (void)state;
    static const uint8_t values[] = {0, 1, 0x80, 0xff};
    for (size_t v = 0; v < sizeof(values); v++) {
        for (size_t to = 0; to < ALIGNMENTS; to++) {
            for (size_t length = 0; length <= LENGTH_MAX; length++) {
                prepare();
                fill_bytes((char *)target + GUARD + to, values[v], length);
                assert_int_equal(wrong_at(GUARD + to, length, &values[v], 0), -1);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
