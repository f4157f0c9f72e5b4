/* SPDX-License-Identifier: BSD-2-Clause
 *
 * ACPI as far as it is needed: finding tables, the power management timer, power off. No
 * interpreter.
 */
#ifndef SLUICE_BOOT_ACPI_H
#define SLUICE_BOOT_ACPI_H

#include <stdbool.h>
#include <stdint.h>

struct boot_info;

/* Header of every system description table (ACPI 6.5, 5.2.6). */
struct acpi_header {
    char signature[4];
    uint32_t length; /* bytes, this header included */
    uint8_t revision;
    uint8_t checksum;
    char oem_id[6];
    char oem_table_id[8];
    uint32_t oem_revision;
    uint32_t creator_id;
    uint32_t creator_revision;
} __attribute__((packed));
_Static_assert(sizeof(struct acpi_header) == 36, "ACPI 5.2.6");

/* The first table with this signature ("MCFG", "HPET", ...), mapped whole and with a good sum;
 * NULL: none. */
const void *acpi_find_table(const char *signature);

/* Finds the root table and what FADT says. A machine without ACPI is no error: then nothing is
 * found. */
void acpi_init(const struct boot_info *info);

/* Reads the power management timer. False: the machine has none. It counts at ACPI_PM_TIMER_HZ,
 * modulo 2^24. */
#define ACPI_PM_TIMER_HZ   3579545u
#define ACPI_PM_TIMER_MASK 0xffffffu
bool acpi_pm_timer_read(uint32_t *ticks);

/* Enters S5. Returns when the machine cannot. */
void acpi_power_off(void);

#endif
