/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/acpi.h"

#include <stddef.h>
#include <string.h>

#include "boot/acpi_tables.h"
#include "boot/boot_info.h"
#include "boot/cpu.h"
#include "boot/mem.h"

/* 4.8.3.2.1, 4.8.3.7: fields of PM1 control and of the sleep control register. */
#define PM1_SLEEP_TYPE_SHIFT     10
#define PM1_SLEEP_TYPE_MASK      (7u << PM1_SLEEP_TYPE_SHIFT)
#define PM1_SLEEP_ENABLE         (1u << 13)
#define SLEEP_CONTROL_TYPE_SHIFT 2
#define SLEEP_CONTROL_ENABLE     (1u << 5)
#define SLEEP_TYPE_MASK          7u

/* 5.2.5.1: where a PC's firmware leaves the root pointer, on 16 byte boundaries. */
#define BIOS_AREA_START  0xe0000ull
#define BIOS_AREA_BYTES  0x20000u
#define RSDP_ALIGN_BYTES 16u

/* Longer than any table that firmware was seen to have; more is a broken length field. */
#define TABLE_MAX_BYTES (4u << 20)

static struct acpi_root root;
static const uint8_t *root_entries;
static size_t root_count;
static struct acpi_fadt fadt;

/* The whole table at `address`, NULL when its header or its sum is wrong. */
static const struct acpi_header *map_table(uint64_t address)
{
    const struct acpi_header *header = mem_map_firmware(address, sizeof(*header));
    if (header == NULL || header->length < sizeof(*header) || header->length > TABLE_MAX_BYTES) {
        return NULL;
    }
    const struct acpi_header *table = mem_map_firmware(address, header->length);
    if (table == NULL || !acpi_sum_ok(table, table->length)) {
        return NULL;
    }
    return table;
}

const void *acpi_find_table(const char *signature)
{
    for (size_t i = 0; i < root_count; i++) {
        uint64_t address = 0;
        memcpy(&address, root_entries + i * root.entry_bytes, root.entry_bytes);
        const struct acpi_header *header = mem_map_firmware(address, sizeof(*header));
        if (header != NULL &&
            memcmp(header->signature, signature, sizeof(header->signature)) == 0) {
            const void *table = map_table(address);
            if (table != NULL) {
                return table;
            }
        }
    }
    return NULL;
}

/* PVH loaders name the root pointer; where one does not, PC firmware has left it in its own area.
 */
static bool find_root(uint64_t rsdp)
{
    if (rsdp != 0) {
        const void *pointer = mem_map_firmware(rsdp, ACPI_RSDP_V2_BYTES);
        return pointer != NULL && acpi_parse_rsdp(pointer, ACPI_RSDP_V2_BYTES, &root);
    }
    const uint8_t *area = mem_map_firmware(BIOS_AREA_START, BIOS_AREA_BYTES);
    if (area == NULL) {
        return false;
    }
    for (size_t at = 0; at + ACPI_RSDP_V2_BYTES <= BIOS_AREA_BYTES; at += RSDP_ALIGN_BYTES) {
        /* Nearly all of them differ in the first byte. */
        if (area[at] != 'R') {
            continue;
        }
        if (acpi_parse_rsdp(area + at, BIOS_AREA_BYTES - at, &root)) {
            return true;
        }
    }
    return false;
}

void acpi_init(const struct boot_info *info)
{
    if (!find_root(info->rsdp)) {
        return;
    }
    const struct acpi_header *table = map_table(root.address);
    if (table == NULL) {
        return;
    }
    root_entries = (const uint8_t *)(table + 1);
    root_count = (table->length - sizeof(*table)) / root.entry_bytes;
    const struct acpi_header *fixed = acpi_find_table("FACP");
    if (fixed != NULL) {
        acpi_parse_fadt(fixed, fixed->length, &fadt);
    }
}

static uint32_t read_register(const struct acpi_register *reg)
{
    if (reg->space == ACPI_SPACE_IO) {
        return reg->bytes == 4 ? io_in32((uint16_t)reg->address) : io_in16((uint16_t)reg->address);
    }
    const void *at = mem_map_mmio(reg->address, reg->bytes);
    if (at == NULL) {
        return 0;
    }
    return reg->bytes == 4 ? mmio_read32(at) : mmio_read16(at);
}

static void write_register(const struct acpi_register *reg, uint32_t value)
{
    if (reg->space == ACPI_SPACE_IO) {
        if (reg->bytes == 1) {
            io_out8((uint16_t)reg->address, (uint8_t)value);
        } else {
            io_out16((uint16_t)reg->address, (uint16_t)value);
        }
        return;
    }
    void *at = mem_map_mmio(reg->address, reg->bytes);
    if (at == NULL) {
        return;
    }
    if (reg->bytes == 1) {
        mmio_write8(at, (uint8_t)value);
    } else {
        mmio_write16(at, (uint16_t)value);
    }
}

bool acpi_pm_timer_read(uint32_t *ticks)
{
    if (fadt.pm_timer.address == 0) {
        return false;
    }
    *ticks = read_register(&fadt.pm_timer) & ACPI_PM_TIMER_MASK;
    return true;
}

static void sleep_pm1(const struct acpi_register *reg, uint8_t type)
{
    if (reg->address != 0) {
        uint32_t value = read_register(reg) & ~PM1_SLEEP_TYPE_MASK;
        value |= (type & SLEEP_TYPE_MASK) << PM1_SLEEP_TYPE_SHIFT;
        write_register(reg, value | PM1_SLEEP_ENABLE);
    }
}

void acpi_power_off(void)
{
    uint8_t type_a, type_b;
    const struct acpi_header *dsdt = fadt.dsdt != 0 ? map_table(fadt.dsdt) : NULL;
    if (dsdt == NULL || !acpi_parse_s5(dsdt + 1, dsdt->length - sizeof(*dsdt), &type_a, &type_b)) {
        return;
    }
    if (fadt.sleep_control.address != 0) {
        uint32_t type = (type_a & SLEEP_TYPE_MASK) << SLEEP_CONTROL_TYPE_SHIFT;
        write_register(&fadt.sleep_control, type | SLEEP_CONTROL_ENABLE);
    }
    sleep_pm1(&fadt.pm1a_control, type_a);
    sleep_pm1(&fadt.pm1b_control, type_b);
}
