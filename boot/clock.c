/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "boot/acpi.h"
#include "boot/boot_info.h"
#include "boot/cpu.h"
#include "boot/lapic.h"
#include "boot/machine.h"
#include "boot/mem.h"
#include "boot/panic.h"
#include "boot/timescale.h"
#include "boot/x86.h"

#define CPUID_TSC_DEADLINE (1u << 24) /* leaf 1, ECX */
#define MSR_TSC_DEADLINE   0x6e0u

/* Linux Documentation/virt/kvm/x86/cpuid.rst and msr.rst. */
#define CPUID_KVM_FEATURES       1u /* relative to the hypervisor's base leaf */
#define KVM_FEATURE_CLOCKSOURCE2 (1u << 3)
#define MSR_KVM_SYSTEM_TIME_NEW  0x4b564d01u
#define KVM_SYSTEM_TIME_ENABLE   1u

/* Frequencies in kHz, a convention of several hypervisors. */
#define CPUID_HYPERVISOR_TIMING 0x40000010u

#define PIT_HZ                 1193182u
#define PIT_CHANNEL0_PORT      0x40
#define PIT_COMMAND_PORT       0x43
#define PIT_CHANNEL0_RATE_LOHI 0x34
#define PIT_CHANNEL0_LATCH     0x00

/* The virtual APIC of KVM and QEMU counts nanoseconds. */
#define VIRTUAL_APIC_HZ 1000000000u

/* How long to compare two counters. A reading is off by some 0.3 us, so 5 ms give 100 ppm. */
#define COMPARE_NS 5000000ull
/* Of so many readings the one with the shortest bracket counts: the others were interrupted from
 * outside. */
#define READINGS 5u
/* Every reference ticks at least once in a microsecond, and a reading takes some 0.1 us or more:
 * one that shows the same value this often stands still. */
#define SAME_READINGS_MAX 1000u

struct kvm_time {
    uint32_t version;
    uint32_t pad0;
    uint64_t tsc_timestamp;
    uint64_t system_time;
    uint32_t tsc_to_system_mul;
    int8_t tsc_shift;
    uint8_t flags;
    uint8_t pad[2];
};
_Static_assert(sizeof(struct kvm_time) == 32, "msr.rst, MSR_KVM_SYSTEM_TIME_NEW");

/* A counter of known frequency. read() gives its value modulo mask + 1, counting up; false: absent.
 */
struct reference {
    const char *name;
    bool (*read)(uint32_t *ticks);
    uint32_t mask;
    uint32_t hz;
};

static uint64_t tsc_hz, tsc_mult, tsc_entry;
static uint64_t lapic_hz;
static const char *source = "none";
static bool deadline_mode;
static struct irq_line alarm_line;

uint64_t clock_now_ns(void)
{
    return timescale_ns(x86_rdtsc() - tsc_entry, tsc_mult);
}

const char *clock_source(void)
{
    return source;
}

uint64_t clock_tsc_hz(void)
{
    return tsc_hz;
}

void clock_alarm_set(uint64_t deadline_ns)
{
    if (deadline_mode) {
        x86_write_msr(MSR_TSC_DEADLINE, tsc_entry + timescale_ticks(deadline_ns, tsc_hz));
        return;
    }
    uint64_t now = clock_now_ns();
    uint64_t ticks = deadline_ns > now ? timescale_ticks(deadline_ns - now, lapic_hz) : 0;
    /* 0 would stop it, and what is too far away rings early and is set again. */
    if (ticks == 0) {
        ticks = 1;
    }
    lapic_timer_count(ticks < UINT32_MAX ? (uint32_t)ticks : UINT32_MAX);
}

void clock_alarm_clear(void)
{
    if (deadline_mode) {
        x86_write_msr(MSR_TSC_DEADLINE, 0);
    } else {
        lapic_timer_count(0);
    }
}

/* Reads what KVM says about the counter, once, and takes the page away from it again. */
static uint64_t kvmclock_hz(void)
{
    uint32_t base = machine_kvm_leaf();
    if (base == 0 ||
        (x86_cpuid(base + CPUID_KVM_FEATURES, 0).eax & KVM_FEATURE_CLOCKSOURCE2) == 0) {
        return 0;
    }
    volatile struct kvm_time *time = mem_alloc(sizeof(*time), sizeof(*time));
    if (time == NULL) {
        return 0;
    }
    x86_write_msr(MSR_KVM_SYSTEM_TIME_NEW,
                  mem_dma_addr((const void *)time) | KVM_SYSTEM_TIME_ENABLE);
    cpu_mb();
    uint64_t hz = timescale_kvmclock_hz(time->tsc_to_system_mul, time->tsc_shift);
    x86_write_msr(MSR_KVM_SYSTEM_TIME_NEW, 0);
    return hz;
}

static uint64_t cpuid_hz(void)
{
    if (machine_hypervisor()[0] != '\0' &&
        x86_cpuid(0x40000000u, 0).eax >= CPUID_HYPERVISOR_TIMING) {
        uint32_t khz = x86_cpuid(CPUID_HYPERVISOR_TIMING, 0).eax;
        if (khz != 0) {
            return (uint64_t)khz * 1000;
        }
    }
    if (x86_cpuid(0, 0).eax >= 0x15) {
        /* Intel SDM 2A, CPUID 15H: crystal frequency times numerator by denominator. */
        struct x86_cpuid leaf = x86_cpuid(0x15, 0);
        if (leaf.eax != 0 && leaf.ebx != 0 && leaf.ecx != 0) {
            return (uint64_t)leaf.ecx * leaf.ebx / leaf.eax;
        }
    }
    return 0;
}

static bool pit_read(uint32_t *ticks)
{
    io_out8(PIT_COMMAND_PORT, PIT_CHANNEL0_LATCH);
    uint32_t value = io_in8(PIT_CHANNEL0_PORT);
    value |= (uint32_t)io_in8(PIT_CHANNEL0_PORT) << 8;
    *ticks = 0xffffu - value; /* it counts down */
    return true;
}

/* Channel 0 needs no gate, which the minimal machines lack; from 65,536 down, again and again (55
 * ms). */
static void pit_start(void)
{
    io_out8(PIT_COMMAND_PORT, PIT_CHANNEL0_RATE_LOHI);
    io_out8(PIT_CHANNEL0_PORT, 0);
    io_out8(PIT_CHANNEL0_PORT, 0);
}

static bool lapic_read(uint32_t *ticks)
{
    *ticks = UINT32_MAX - lapic_timer_left();
    return true;
}

/* Both counters at one moment, and how long that moment was. False: the reference is absent. */
static bool read_both(const struct reference *reference, uint64_t *tsc, uint32_t *ticks,
                      uint32_t *apic)
{
    uint64_t shortest = UINT64_MAX;
    for (unsigned i = 0; i < READINGS; i++) {
        uint32_t value;
        uint64_t before = x86_rdtsc();
        if (!reference->read(&value)) {
            return false;
        }
        uint64_t bracket = x86_rdtsc() - before;
        if (bracket < shortest) {
            shortest = bracket;
            *tsc = before + bracket / 2;
            *ticks = value;
            *apic = UINT32_MAX - lapic_timer_left();
        }
    }
    return true;
}

/* Frequencies of the TSC and of the local APIC's timer against a reference. False: absent or
 * standing still. */
static bool compare(const struct reference *reference)
{
    uint64_t tsc_start, tsc_end;
    uint32_t start, end, apic_start, apic_end;
    lapic_timer_count(UINT32_MAX);
    if (!read_both(reference, &tsc_start, &start, &apic_start)) {
        return false;
    }
    uint32_t wanted = (uint32_t)timescale_ticks(COMPARE_NS, reference->hz);
    uint32_t now = start, last = start;
    unsigned same = 0;
    while (((now - start) & reference->mask) < wanted) {
        same = now == last ? same + 1 : 0;
        last = now;
        if (same > SAME_READINGS_MAX || !reference->read(&now)) {
            return false;
        }
    }
    read_both(reference, &tsc_end, &end, &apic_end);
    uint32_t elapsed = (end - start) & reference->mask;
    lapic_timer_count(0);
    tsc_hz = timescale_hz(tsc_end - tsc_start, elapsed, reference->hz);
    lapic_hz = timescale_hz(apic_end - apic_start, elapsed, reference->hz);
    source = reference->name;
    return true;
}

static void calibrate(void)
{
    static const struct reference pm_timer = {"acpi pm timer", acpi_pm_timer_read,
                                              ACPI_PM_TIMER_MASK, ACPI_PM_TIMER_HZ};
    static const struct reference pit = {"pit", pit_read, 0xffff, PIT_HZ};
    static const struct reference apic = {"virtual apic", lapic_read, UINT32_MAX, VIRTUAL_APIC_HZ};
    if (compare(&pm_timer)) {
        return;
    }
    pit_start();
    if (compare(&pit)) {
        return;
    }
    if (machine_hypervisor()[0] == '\0' || !compare(&apic)) {
        panic("no clock to calibrate the time stamp counter against");
    }
}

void clock_init(const struct boot_info *info)
{
    tsc_entry = info->tsc_at_entry;
    deadline_mode = (x86_cpuid(1, 0).ecx & CPUID_TSC_DEADLINE) != 0;
    uint64_t known_hz = kvmclock_hz();
    const char *known_source = "kvmclock";
    if (known_hz == 0) {
        known_hz = cpuid_hz();
        known_source = "cpuid";
    }
    /* Counting mode first: the comparison counts with it. It cannot raise its interrupt: that is
     * off until idle. */
    lapic_timer_init(&alarm_line);
    if (known_hz == 0 || !deadline_mode) {
        calibrate();
    }
    if (known_hz != 0) {
        tsc_hz = known_hz;
        source = known_source;
    }
    if (deadline_mode) {
        lapic_timer_use_deadline();
    }
    tsc_mult = timescale_mult(tsc_hz);
}
