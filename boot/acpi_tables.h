/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Reading ACPI tables that lie in memory: plain computation on bytes that are not to be trusted
 * (ACPI 6.5, chapter 5).
 */
#ifndef SLUICE_BOOT_ACPI_TABLES_H
#define SLUICE_BOOT_ACPI_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the root pointer: the first version has 20, later ones 36. */
#define ACPI_RSDP_V1_BYTES 20u
#define ACPI_RSDP_V2_BYTES 36u

struct acpi_root {
    uint64_t address;     /* of the root table */
    unsigned entry_bytes; /* 4: RSDT, 8: XSDT */
};

/* Generic address structure (5.2.3.2). */
enum acpi_space {
    ACPI_SPACE_MEMORY = 0,
    ACPI_SPACE_IO = 1,
};

struct acpi_register {
    uint64_t address; /* 0: absent */
    enum acpi_space space;
    unsigned bytes; /* width of one access: 1, 2 or 4 */
};

/* What the fixed description table says, as far as it is needed (5.2.9). */
struct acpi_fadt {
    uint64_t dsdt;
    bool hardware_reduced;
    struct acpi_register pm_timer;
    struct acpi_register pm1a_control;
    struct acpi_register pm1b_control;
    struct acpi_register sleep_control;
};

/* True when the bytes sum up to 0, as those of every table do. */
bool acpi_sum_ok(const void *table, size_t bytes);

/* The root table of a root pointer of which `bytes` can be read; false: it is not one, or its sum
 * is wrong. */
bool acpi_parse_rsdp(const void *rsdp, size_t bytes, struct acpi_root *root);

/* Fields that a short (old) table does not have are absent. */
void acpi_parse_fadt(const void *fadt, size_t bytes, struct acpi_fadt *out);

/*
 * Sleep types for S5 from the byte code of a description table: Name (\_S5, Package { a, b, ... })
 * with constant elements, which is the form that firmware uses (20.2.5.4, 16.3.4). False: not found
 * in that form.
 */
bool acpi_parse_s5(const void *aml, size_t bytes, uint8_t *type_a, uint8_t *type_b);

#endif
