/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Conversions between counter ticks, frequencies and nanoseconds, without a division of 128 bits.
 */
#ifndef SLUICE_BOOT_TIMESCALE_H
#define SLUICE_BOOT_TIMESCALE_H

#include <stdint.h>

#define TIMESCALE_SHIFT 32

/* ns = ticks * timescale_mult(hz) >> TIMESCALE_SHIFT. Exact to 1e-9 for hz below 4 GHz; 0 < hz. */
uint64_t timescale_mult(uint64_t hz);

/* The other way; exact to one tick for every ns below 2^63. */
uint64_t timescale_ticks(uint64_t ns, uint64_t hz);

/* Frequency of a counter that made `ticks` while another one of `ref_hz` made `ref_ticks` (not 0,
 * below 2^28). */
uint64_t timescale_hz(uint64_t ticks, uint64_t ref_ticks, uint64_t ref_hz);

/* Counter frequency by what KVM publishes: ns = (ticks << shift) * mul >> 32; 0 when mul is 0. */
uint64_t timescale_kvmclock_hz(uint32_t mul, int8_t shift);

static inline uint64_t timescale_ns(uint64_t ticks, uint64_t mult)
{
    return (uint64_t)((unsigned __int128)ticks * mult >> TIMESCALE_SHIFT);
}

#endif
