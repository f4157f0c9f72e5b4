/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/timescale.h"

#define NS_PER_S 1000000000ull

uint64_t timescale_mult(uint64_t hz)
{
    return ((NS_PER_S << TIMESCALE_SHIFT) + hz / 2) / hz;
}

uint64_t timescale_ticks(uint64_t ns, uint64_t hz)
{
    /* Whole seconds apart, so that the product of the rest fits: 1e9 * hz < 2^64 up to 18 GHz. */
    return ns / NS_PER_S * hz + ns % NS_PER_S * hz / NS_PER_S;
}

uint64_t timescale_hz(uint64_t ticks, uint64_t ref_ticks, uint64_t ref_hz)
{
    return ticks / ref_ticks * ref_hz + ticks % ref_ticks * ref_hz / ref_ticks;
}

uint64_t timescale_kvmclock_hz(uint32_t mul, int8_t shift)
{
    if (mul == 0) {
        return 0;
    }
    uint64_t hz = (NS_PER_S << 32) / mul;
    return shift < 0 ? hz << -shift : hz >> shift;
}
