/* SPDX-License-Identifier: BSD-2-Clause
 *
 * vq_need_event against its meaning, for all 2^32 cases: an event is wanted when its entry is among
 * those that the step from old to new exposes.
 *
 *     index:   old             new
 *      ... ----[===============)---- ...   modulo 2^16
 *                   ^ event in here: true; anywhere else: false
 *
 * Two parts. With old = 0, every pair (event, new) against the definition, which walks the exposed
 * entries one by one. And that moving all three indices together changes nothing, so that old = 0
 * stands for every old.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "drivers/virtqueue.h"

#define INDICES 65536u

/* Entries 0..new-1 are exposed; walks new upwards and remembers whether the event was among them.
 */
static uint32_t disagreements_for_event(uint16_t event)
{
    uint32_t wrong = 0;
    bool exposed = false;

    for (uint32_t new_idx = 0; new_idx < INDICES; new_idx++) {
        exposed = exposed || (new_idx != 0 && new_idx - 1 == event);
        wrong += vq_need_event(event, (uint16_t)new_idx, 0) != exposed;
    }
    return wrong;
}

static void all_pairs_against_the_definition(void **state)
{
    (void)state;
    for (uint32_t event = 0; event < INDICES; event++) {
        assert_int_equal(disagreements_for_event((uint16_t)event), 0);
    }
}

/* Where 16-bit arithmetic turns. */
static const uint16_t turns[] = {0, 1, 2, 255, 256, 32766, 32767, 32768, 32769, 65534, 65535};
#define N_TURNS (sizeof(turns) / sizeof(turns[0]))

static uint32_t shifts_that_matter(uint16_t event, uint16_t new_idx)
{
    uint32_t wrong = 0;
    bool at_zero = vq_need_event(event, new_idx, 0);

    for (uint32_t shift = 0; shift < INDICES; shift++) {
        wrong += at_zero != vq_need_event((uint16_t)(event + shift), (uint16_t)(new_idx + shift),
                                          (uint16_t)shift);
    }
    return wrong;
}

static void only_differences_matter_at_the_turns(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_TURNS; i++) {
        for (size_t j = 0; j < N_TURNS; j++) {
            assert_int_equal(shifts_that_matter(turns[i], turns[j]), 0);
        }
    }
}

/* Marsaglia's xorshift: any fixed sequence without a pattern in its low bits will do. */
static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void only_differences_matter_in_samples(void **state)
{
    uint64_t seed = 0x9E3779B97F4A7C15u;

    (void)state;
    for (uint32_t i = 0; i < 20000000u; i++) {
        uint64_t r = next_random(&seed);
        uint16_t event = (uint16_t)r;
        uint16_t new_idx = (uint16_t)(r >> 16);
        uint16_t old_idx = (uint16_t)(r >> 32);
        bool moved = vq_need_event(vq_wrap(event - old_idx), vq_wrap(new_idx - old_idx), 0);

        if (vq_need_event(event, new_idx, old_idx) != moved) {
            fail_msg("event %u new %u old %u", event, new_idx, old_idx);
        }
    }
}

/* The expression of the models in tests/model, whose indices run modulo m. */
static bool need_event_modulo(unsigned m, unsigned event, unsigned new_idx, unsigned old_idx)
{
    return (new_idx + 2 * m - event - 1) % m < (new_idx + m - old_idx) % m;
}

static bool exposed_modulo(unsigned m, unsigned event, unsigned new_idx, unsigned old_idx)
{
    for (unsigned at = old_idx; at != new_idx; at = (at + 1) % m) {
        if (at == event) {
            return true;
        }
    }
    return false;
}

static void models_use_the_same_predicate(void **state)
{
    static const unsigned moduli[] = {4, 8, 16, 64, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(moduli) / sizeof(moduli[0]); i++) {
        unsigned m = moduli[i];
        /* All triples of the small widths; of 256 every old index that is a multiple of 15. */
        for (unsigned old_idx = 0; old_idx < m; old_idx += m < 256 ? 1 : 15) {
            for (unsigned pair = 0; pair < m * m; pair++) {
                unsigned event = pair / m;
                unsigned new_idx = pair % m;
                assert_int_equal(need_event_modulo(m, event, new_idx, old_idx),
                                 exposed_modulo(m, event, new_idx, old_idx));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_pairs_against_the_definition),
        cmocka_unit_test(only_differences_matter_at_the_turns),
        cmocka_unit_test(only_differences_matter_in_samples),
        cmocka_unit_test(models_use_the_same_predicate),
    };
    return cmocka_run_group_tests_name("event predicate", tests, NULL, NULL);
}
