/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Sequence accounting against a reference that remembers everything, and the pacer against
 * arithmetic.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/pacer.h"
#include "apps/stats.h"

static void test_in_order(void **state)
{
    struct seq_stats stats = {0};
    (void)state;
    for (uint64_t seq = 1; seq <= 100000; seq++) {
        assert_int_equal(seq_note(&stats, seq, 0), SEQ_NEW);
    }
    assert_true(stats.unique == 100000 && seq_lost(&stats) == 0);
    assert_true(stats.out_of_order == 0 && stats.duplicates == 0 && seq_jitter_ns(&stats) == 0);
}

static void test_gap_fills_up(void **state)
{
    struct seq_stats stats = {0};
    (void)state;
    seq_note(&stats, 1, 0);
    seq_note(&stats, 4, 0);
    assert_true(seq_lost(&stats) == 2);
    seq_note(&stats, 3, 0);
    seq_note(&stats, 2, 0);
    assert_true(seq_lost(&stats) == 0 && stats.out_of_order == 2 && stats.duplicates == 0);
}

static void test_duplicates_hide_no_loss(void **state)
{
    struct seq_stats stats = {0};
    (void)state;
    seq_note(&stats, 1, 0);
    seq_note(&stats, 3, 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(seq_note(&stats, 3, 0), SEQ_DUPLICATE);
    }
    assert_true(seq_lost(&stats) == 1 && stats.duplicates == 5 && stats.unique == 2);
}

static void test_window_edges(void **state)
{
    (void)state;
    for (uint64_t start = 1; start < 200; start += 7) {
        struct seq_stats stats = {0};
        seq_note(&stats, start, 0);
        seq_note(&stats, start + SEQ_WINDOW_PKTS - 1, 0);
        assert_int_equal(seq_note(&stats, start, 0), SEQ_DUPLICATE);
        assert_true(stats.ancient == 0);
        assert_int_equal(seq_note(&stats, start + 1, 0), SEQ_NEW);
        seq_note(&stats, start + SEQ_WINDOW_PKTS, 0);
        assert_int_equal(seq_note(&stats, start, 0), SEQ_DUPLICATE);
        assert_true(stats.ancient == 1);
        /* The slot of start is that of start + window: it must not look taken to the next lap. */
        assert_int_equal(seq_note(&stats, start + 2 * SEQ_WINDOW_PKTS, 0), SEQ_NEW);
        assert_true(stats.unique == 5 && stats.duplicates == 2);
    }
}

static void test_absurd_numbers(void **state)
{
    struct seq_stats stats = {0};
    (void)state;
    assert_int_equal(seq_note(&stats, 0, 0), SEQ_MALFORMED);
    assert_int_equal(seq_note(&stats, UINT64_MAX, 0), SEQ_MALFORMED);
    seq_note(&stats, 5, 0);
    assert_int_equal(seq_note(&stats, 6 + SEQ_JUMP_MAX_PKTS, 0), SEQ_MALFORMED);
    assert_true(stats.highest == 5 && stats.malformed == 3);
    assert_int_equal(seq_note(&stats, 5 + SEQ_JUMP_MAX_PKTS, 0), SEQ_NEW);
}

/* Everything that ever arrived, and the definition of each count. */
static void test_against_reference(void **state)
{
    enum { N = 20000 };
    static uint8_t seen[N + 1];
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct seq_stats stats = {0};
        uint64_t highest = 0, unique = 0, late = 0, duplicates = 0;
        memset(seen, 0, sizeof seen);
        srandom(seed);
        for (int base = 1; base <= N - 64; base++) {
            if (random() % 10 == 0) {
                continue; /* lost, or so it seems */
            }
            uint64_t seq = (uint64_t)(base + random() % (seed % 2 != 0 ? 60 : 3));
            if (seen[seq]) {
                duplicates++;
            } else {
                unique++;
                late += seq < highest;
            }
            seen[seq] = 1;
            highest = seq > highest ? seq : highest;
            seq_note(&stats, seq, 0);
        }
        assert_true(stats.highest == highest && stats.unique == unique);
        assert_true(stats.out_of_order == late && stats.duplicates == duplicates);
        assert_true(seq_lost(&stats) == highest - unique && stats.ancient == 0);
    }
}

static void test_jitter(void **state)
{
    struct seq_stats stats = {0};
    double reference = 0;
    int64_t last = 0;
    (void)state;
    srandom(7);
    for (uint64_t seq = 1; seq <= 5000; seq++) {
        /* Offsets of the clocks may be anything. */
        int64_t transit = -1000000000000 + random() % 2000000;
        if (seq > 1) {
            double d = transit > last ? (double)(transit - last) : (double)(last - transit);
            reference += (d - reference) / 16;
        }
        last = transit;
        seq_note(&stats, seq, transit);
        double error = reference - (double)seq_jitter_ns(&stats);
        assert_true(error < 20 && error > -20);
    }
    /* The first packet seeds: a huge transit alone is no jitter. */
    struct seq_stats fresh = {0};
    seq_note(&fresh, 1, INT64_MIN);
    assert_true(seq_jitter_ns(&fresh) == 0);
    seq_note(&fresh, 2, INT64_MAX); /* wraps, and must not trap */
}

static void test_pacer_is_exact(void **state)
{
    struct pacer pacer;
    uint64_t now = 12345;
    (void)state;
    /* 1472 bytes at 7 Mbit/s: 1682285.714... ns each. */
    pacer_start(&pacer, 7000000, 1472, now);
    uint64_t start = now;
    for (uint64_t n = 0; n < 100000; n++) {
        now += pacer_wait_ns(&pacer, now);
        uint64_t ideal = start + (uint64_t)((unsigned __int128)n * 1472 * 8 * 1000000000 / 7000000);
        assert_true(now == ideal || now == ideal + 1);
        assert_true(pacer_wait_ns(&pacer, now) == 0);
        pacer_sent(&pacer);
    }
    assert_true(pacer.skipped_ns == 0);
}

static void test_pacer_catches_up_within_bounds(void **state)
{
    struct pacer pacer;
    uint64_t now = 0;
    unsigned burst = 0;
    (void)state;
    pacer_start(&pacer, 8000000, 1000, now); /* 1 ms each */
    pacer_sent(&pacer);
    now = 5000000; /* 4 ms late: all is made good */
    for (; pacer_wait_ns(&pacer, now) == 0; burst++) {
        pacer_sent(&pacer);
    }
    assert_true(burst == 5 && pacer.skipped_ns == 0);
    now = 1000000000;
    for (burst = 0; pacer_wait_ns(&pacer, now) == 0; burst++) {
        pacer_sent(&pacer);
    }
    assert_true(burst == PACER_CATCH_UP_NS / 1000000 + 1);
    assert_true(pacer.skipped_ns == 1000000000 - 6000000 - PACER_CATCH_UP_NS);
}

static void test_pacer_off(void **state)
{
    struct pacer pacer;
    (void)state;
    pacer_start(&pacer, 0, 1000, 5);
    for (int i = 0; i < 10; i++) {
        assert_true(pacer_wait_ns(&pacer, 5) == 0);
        pacer_sent(&pacer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_gap_fills_up),
        cmocka_unit_test(test_duplicates_hide_no_loss),
        cmocka_unit_test(test_window_edges),
        cmocka_unit_test(test_absurd_numbers),
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_jitter),
        cmocka_unit_test(test_pacer_is_exact),
        cmocka_unit_test(test_pacer_catches_up_within_bounds),
        cmocka_unit_test(test_pacer_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
