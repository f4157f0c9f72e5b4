/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One monotonic clock in nanoseconds since entry, from the time stamp counter, and one alarm that
 * ends hlt.
 */
#ifndef SLUICE_BOOT_CLOCK_H
#define SLUICE_BOOT_CLOCK_H

#include <stdint.h>

struct boot_info;

#define CLOCK_NS_PER_S 1000000000ull

/* Nanoseconds since the image's first instruction. A few instructions; no device is asked. */
uint64_t clock_now_ns(void);

/* What the counter was calibrated against, in words for the report ("kvmclock", "acpi pm timer",
 * ...). */
const char *clock_source(void);

uint64_t clock_tsc_hz(void);

/*
 * One interrupt at `deadline_ns` or soon after, whose only effect is that hlt returns; it replaces
 * an earlier one. It may come early: who waits looks at the clock again and sets it anew. A
 * deadline in the past fires at once.
 */
void clock_alarm_set(uint64_t deadline_ns);
void clock_alarm_clear(void);

/* Calibrates; at most about 10 ms. After irq_init() and acpi_init(). */
void clock_init(const struct boot_info *info);

#endif
