/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The network's memory and its checksum: classes, alignment, reuse; sums of every length at every
 * offset.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "net/checksum.h"
#include "net/netmem.h"

static void test_sizes(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes <= NETMEM_MAX_BYTES; bytes += bytes < 4096 ? 1 : 509) {
        size_t true_bytes = netmem_true_bytes(bytes);
        assert_true(true_bytes >= bytes + 16);
        assert_true(true_bytes <= 64 || true_bytes <= (bytes + 16) * 5 / 4 + 16);
        uint64_t before = netmem_used_bytes();
        uint8_t *block = netmem_alloc(bytes);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % 16, 0);
        assert_int_equal(netmem_used_bytes() - before, true_bytes);
        memset(block, 0xaa, bytes);
        netmem_free(block);
        assert_int_equal(netmem_used_bytes(), before);
    }
    assert_null(netmem_alloc(NETMEM_MAX_BYTES + 1));
    assert_null(netmem_calloc(SIZE_MAX / 2, 4));
}

static void test_blocks_are_apart(void **state)
{
    static uint8_t *blocks[600];
    (void)state;
    for (unsigned i = 0; i < 600; i++) {
        blocks[i] = netmem_calloc(1, 40 + i);
        assert_non_null(blocks[i]);
        for (unsigned j = 0; j < 40 + i; j++) {
            assert_int_equal(blocks[i][j], 0);
        }
        memset(blocks[i], (int)i, 40 + i);
    }
    for (unsigned i = 0; i < 600; i++) {
        for (unsigned j = 0; j < 40 + i; j++) {
            assert_int_equal(blocks[i][j], (uint8_t)i);
        }
    }
    uint64_t frees = netmem_frees();
    for (unsigned i = 0; i < 600; i++) {
        netmem_free(blocks[i]);
    }
    assert_int_equal(netmem_frees() - frees, 600);
}

static void test_reuse(void **state)
{
    (void)state;
    void *first = netmem_alloc(1000);
    netmem_free(first);
    assert_ptr_equal(netmem_alloc(1000), first);
    netmem_free(first);
}

static void test_fails_on_demand(void **state)
{
    (void)state;
    netmem_model_fail_in = 2;
    void *first = netmem_alloc(10);
    assert_non_null(first);
    assert_null(netmem_alloc(10));
    void *third = netmem_alloc(10);
    assert_non_null(third);
    netmem_free(first);
    netmem_free(third);
}

static uint16_t slow_sum(const uint8_t *at, size_t len)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < len; i++) {
        sum += (i & 1) != 0 ? (uint32_t)at[i] << 8 : at[i];
        sum = (sum & 0xffffu) + (sum >> 16);
    }
    return (uint16_t)sum;
}

static void test_sum(void **state)
{
    static uint8_t data[2100];
    (void)state;
    for (unsigned fill = 0; fill < 3; fill++) {
        for (size_t i = 0; i < sizeof(data); i++) {
            data[i] = fill == 0 ? (uint8_t)(i * 2654435761u >> 24) : fill == 1 ? 0xff : 0;
        }
        for (size_t offset = 0; offset < 9; offset++) {
            for (size_t len = 0; len < 2000; len += len < 70 ? 1 : 61) {
                uint16_t slow = slow_sum(data + offset, len),
                         fast = checksum_sum(data + offset, len);
                /* 0 and 0xffff are the same number; only no bytes at all make 0 of it. */
                assert_int_equal(fast % 0xffff, slow % 0xffff);
                assert_true((fast == 0) == (slow == 0));
            }
        }
    }
}

static void test_pseudo(void **state)
{
    static const uint8_t header[12] = {192, 168, 1, 77, 10, 255, 255, 254, 0, 17, 0xfe, 0x01};
    uint32_t src, dst;
    (void)state;
    memcpy(&src, header, 4);
    memcpy(&dst, header + 4, 4);
    assert_int_equal(checksum_pseudo(src, dst, 17, 0xfe01), slow_sum(header, 12));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_blocks_are_apart),
        cmocka_unit_test(test_reuse), cmocka_unit_test(test_fails_on_demand),
        cmocka_unit_test(test_sum),   cmocka_unit_test(test_pseudo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
