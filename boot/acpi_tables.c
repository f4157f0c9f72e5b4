/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/acpi_tables.h"

#include <string.h>

/* Offsets into the root pointer (5.2.5.3). */
#define RSDP_REVISION 15u
#define RSDP_RSDT     16u
#define RSDP_XSDT     24u

/* Offsets into FADT (5.2.9). */
#define FADT_DSDT            40u
#define FADT_PM1A_CONTROL    64u
#define FADT_PM1B_CONTROL    68u
#define FADT_PM_TIMER        76u
#define FADT_FLAGS           112u
#define FADT_FLAG_HW_REDUCED (1u << 20)
#define FADT_X_DSDT          140u
#define FADT_X_PM1A_CONTROL  172u
#define FADT_X_PM1B_CONTROL  184u
#define FADT_X_PM_TIMER      208u
#define FADT_SLEEP_CONTROL   244u
#define GAS_BYTES            12u

/* Byte code (20.2). */
#define AML_ZERO_OP      0x00
#define AML_ONE_OP       0x01
#define AML_NAME_OP      0x08
#define AML_BYTE_PREFIX  0x0a
#define AML_WORD_PREFIX  0x0b
#define AML_DWORD_PREFIX 0x0c
#define AML_PACKAGE_OP   0x12

static uint64_t load(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, bytes);
    return value;
}

bool acpi_sum_ok(const void *table, size_t bytes)
{
    const uint8_t *at = table;
    uint8_t sum = 0;
    for (size_t i = 0; i < bytes; i++) {
        sum = (uint8_t)(sum + at[i]);
    }
    return sum == 0;
}

bool acpi_parse_rsdp(const void *rsdp, size_t bytes, struct acpi_root *root)
{
    const uint8_t *at = rsdp;
    if (bytes < ACPI_RSDP_V1_BYTES || memcmp(at, "RSD PTR ", 8) != 0 ||
        !acpi_sum_ok(at, ACPI_RSDP_V1_BYTES)) {
        return false;
    }
    *root = (struct acpi_root){.address = load(at + RSDP_RSDT, 4), .entry_bytes = 4};
    if (at[RSDP_REVISION] >= 2 && bytes >= ACPI_RSDP_V2_BYTES &&
        acpi_sum_ok(at, ACPI_RSDP_V2_BYTES)) {
        uint64_t xsdt = load(at + RSDP_XSDT, 8);
        if (xsdt != 0) {
            *root = (struct acpi_root){.address = xsdt, .entry_bytes = 8};
        }
    }
    return root->address != 0;
}

/* A generic address, or absent. */
static struct acpi_register parse_gas(const uint8_t *at, unsigned bytes)
{
    struct acpi_register reg = {
        .address = load(at + 4, 8), .space = (enum acpi_space)at[0], .bytes = bytes};
    if (reg.space != ACPI_SPACE_MEMORY && reg.space != ACPI_SPACE_IO) {
        reg.address = 0;
    }
    return reg;
}

/* The extended form where there is one (5.2.9: it then takes precedence), else the port of the old
 * form. */
static struct acpi_register parse_register(const uint8_t *fadt, size_t bytes, size_t extended,
                                           size_t old, unsigned access_bytes)
{
    if (bytes >= extended + GAS_BYTES) {
        struct acpi_register reg = parse_gas(fadt + extended, access_bytes);
        if (reg.address != 0) {
            return reg;
        }
    }
    struct acpi_register port = {.space = ACPI_SPACE_IO, .bytes = access_bytes};
    if (bytes >= old + 4) {
        port.address = load(fadt + old, 4);
    }
    return port;
}

void acpi_parse_fadt(const void *fadt, size_t bytes, struct acpi_fadt *out)
{
    const uint8_t *at = fadt;
    *out = (struct acpi_fadt){0};
    if (bytes >= FADT_DSDT + 4) {
        out->dsdt = load(at + FADT_DSDT, 4);
    }
    if (bytes >= FADT_X_DSDT + 8 && load(at + FADT_X_DSDT, 8) != 0) {
        out->dsdt = load(at + FADT_X_DSDT, 8);
    }
    if (bytes >= FADT_FLAGS + 4) {
        out->hardware_reduced = (load(at + FADT_FLAGS, 4) & FADT_FLAG_HW_REDUCED) != 0;
    }
    if (bytes >= FADT_SLEEP_CONTROL + GAS_BYTES) {
        out->sleep_control = parse_gas(at + FADT_SLEEP_CONTROL, 1);
    }
    /* 5.2.9.1: with reduced hardware, the fixed registers do not exist, whatever their fields say.
     * The timer may. */
    out->pm_timer = parse_register(at, bytes, FADT_X_PM_TIMER, FADT_PM_TIMER, 4);
    if (!out->hardware_reduced) {
        out->pm1a_control = parse_register(at, bytes, FADT_X_PM1A_CONTROL, FADT_PM1A_CONTROL, 2);
        out->pm1b_control = parse_register(at, bytes, FADT_X_PM1B_CONTROL, FADT_PM1B_CONTROL, 2);
    }
}

/* One constant integer at *at; moves behind it. */
static bool parse_constant(const uint8_t **at, const uint8_t *end, uint8_t *value)
{
    if (*at >= end) {
        return false;
    }
    size_t bytes;
    switch (*(*at)++) {
    case AML_ZERO_OP:
        *value = 0;
        return true;
    case AML_ONE_OP:
        *value = 1;
        return true;
    case AML_BYTE_PREFIX:
        bytes = 1;
        break;
    case AML_WORD_PREFIX:
        bytes = 2;
        break;
    case AML_DWORD_PREFIX:
        bytes = 4;
        break;
    default:
        return false;
    }
    if ((size_t)(end - *at) < bytes) {
        return false;
    }
    *value = **at; /* little endian; the type has three bits */
    *at += bytes;
    return true;
}

/* Behind the name: PackageOp PkgLength NumElements element element. */
static bool parse_s5_package(const uint8_t *at, const uint8_t *end, uint8_t *type_a,
                             uint8_t *type_b)
{
    if (end - at < 3 || *at++ != AML_PACKAGE_OP) {
        return false;
    }
    /* The top two bits of the first length byte say how many follow it (20.2.4). */
    size_t length_bytes = 1 + (size_t)(*at >> 6);
    if ((size_t)(end - at) <= length_bytes) {
        return false;
    }
    at += length_bytes;
    uint8_t elements = *at++;
    if (elements < 1 || !parse_constant(&at, end, type_a)) {
        return false;
    }
    if (elements < 2 || !parse_constant(&at, end, type_b)) {
        *type_b = *type_a;
    }
    return true;
}

bool acpi_parse_s5(const void *aml, size_t bytes, uint8_t *type_a, uint8_t *type_b)
{
    const uint8_t *start = aml;
    const uint8_t *end = start + bytes;
    for (const uint8_t *at = start; end - at >= 4; at++) {
        if (memcmp(at, "_S5_", 4) != 0) {
            continue;
        }
        /* NameOp directly before it, or with the root character between: anything else is a mention
         * of the name. */
        bool named = (at - start >= 1 && at[-1] == AML_NAME_OP) ||
                     (at - start >= 2 && at[-1] == '\\' && at[-2] == AML_NAME_OP);
        if (named && parse_s5_package(at + 4, end, type_a, type_b)) {
            return true;
        }
    }
    return false;
}
