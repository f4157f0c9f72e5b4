/* SPDX-License-Identifier: BSD-2-Clause
 *
 * PCI configuration space, by the memory window where ACPI names one, else by the two ports.
 */
#include "drivers/pci.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "boot/acpi.h"
#include "boot/cpu.h"
#include "boot/mem.h"

#define CONFIG_ADDRESS_PORT 0xcf8u
#define CONFIG_DATA_PORT    0xcfcu
#define CONFIG_ENABLE       0x80000000u
/* Without the memory window only the first 256 bytes of a function can be reached. */
#define CONFIG_PORT_BYTES 256u

#define ECAM_BUS_BYTES (1u << 20)
#define N_BUSES        256u
#define SLOTS          32u
#define FUNCTIONS      8u

#define HEADER_MULTIFUNCTION 0x80u
#define HEADER_TYPE_MASK     0x7fu
#define HEADER_BRIDGE        0x01u

#define BAR_IO           0x1u
#define BAR_TYPE_MASK    0x6u
#define BAR_TYPE_64      0x4u
#define BAR_MEMORY_MASK  0xfffffff0u
#define CAPABILITIES_MIN 0x40u
/* The most that a page table of this machine can point to. */
#define PHYS_ADDRESS_BITS 52u
/* Links of four bytes each between the header and the end of 256 bytes. */
#define MAX_CAPABILITIES ((CONFIG_PORT_BYTES - CAPABILITIES_MIN) / 4u)

/* ---- access ---- */

/* PCI Firmware Specification 3.0, 4.1.2: a table header, eight bytes, then these. */
struct mcfg_entry {
    uint64_t base;
    uint16_t segment;
    uint8_t first_bus, last_bus;
    uint32_t reserved;
} __attribute__((packed));
_Static_assert(sizeof(struct mcfg_entry) == 16, "one entry of MCFG");

#define MCFG_ENTRIES_OFFSET (sizeof(struct acpi_header) + 8u)

static struct {
    struct mcfg_entry window; /* base 0: none, use the ports */
    volatile uint8_t *bus[N_BUSES];
} config;

static void look_for_window(void)
{
    const uint8_t *table = acpi_find_table("MCFG");
    struct acpi_header header;

    memset(&config, 0, sizeof(config));
    if (table == NULL) {
        return;
    }
    memcpy(&header, table, sizeof(header));
    for (size_t at = MCFG_ENTRIES_OFFSET; at + sizeof(struct mcfg_entry) <= header.length;
         at += sizeof(struct mcfg_entry)) {
        struct mcfg_entry entry;
        memcpy(&entry, table + at, sizeof(entry));
        if (entry.segment == 0 && entry.first_bus == 0) {
            config.window = entry;
            return;
        }
    }
}

/* The function's own page in the memory window, NULL where the ports must do. */
static volatile uint8_t *window_of(const struct pci_function *f)
{
    if (config.window.base == 0 || f->bus > config.window.last_bus) {
        return NULL;
    }
    if (config.bus[f->bus] == NULL) {
        config.bus[f->bus] =
            mem_map_mmio(config.window.base + (uint64_t)f->bus * ECAM_BUS_BYTES, ECAM_BUS_BYTES);
    }
    return config.bus[f->bus] == NULL ? NULL
                                      : config.bus[f->bus] + ((size_t)f->slot_function << 12);
}

static uint16_t port_for(const struct pci_function *f, uint16_t offset)
{
    io_out32(CONFIG_ADDRESS_PORT, CONFIG_ENABLE | (uint32_t)f->bus << 16 |
                                      (uint32_t)f->slot_function << 8 | (offset & 0xfcu));
    return (uint16_t)(CONFIG_DATA_PORT + (offset & 3u));
}

uint8_t pci_read8(const struct pci_function *f, uint16_t offset)
{
    volatile uint8_t *window = window_of(f);
    return window != NULL ? mmio_read8(window + offset) : io_in8(port_for(f, offset));
}

uint16_t pci_read16(const struct pci_function *f, uint16_t offset)
{
    volatile uint8_t *window = window_of(f);
    return window != NULL ? mmio_read16(window + offset) : io_in16(port_for(f, offset));
}

uint32_t pci_read32(const struct pci_function *f, uint16_t offset)
{
    volatile uint8_t *window = window_of(f);
    return window != NULL ? mmio_read32(window + offset) : io_in32(port_for(f, offset));
}

void pci_write16(const struct pci_function *f, uint16_t offset, uint16_t value)
{
    volatile uint8_t *window = window_of(f);
    if (window != NULL) {
        mmio_write16(window + offset, value);
    } else {
        io_out16(port_for(f, offset), value);
    }
}

void pci_write32(const struct pci_function *f, uint16_t offset, uint32_t value)
{
    volatile uint8_t *window = window_of(f);
    if (window != NULL) {
        mmio_write32(window + offset, value);
    } else {
        io_out32(port_for(f, offset), value);
    }
}

void pci_command(const struct pci_function *f, uint16_t set, uint16_t clear)
{
    uint16_t command = pci_read16(f, PCI_COMMAND);
    pci_write16(f, PCI_COMMAND, (uint16_t)((command & ~clear) | set));
}

/* ---- the walk ---- */

struct walk {
    unsigned left; /* matches still to be passed over */
    bool (*wanted)(const struct pci_function *f);
    bool found;
    struct pci_function match;
    uint8_t todo[N_BUSES]; /* buses behind bridges, in the order in which they were met */
    unsigned n_todo, n_done;
    bool known[N_BUSES];
};

static void add_bus(struct walk *walk, uint8_t bus)
{
    /* Each bus once, whatever bridges claim: the walk ends. */
    if (!walk->known[bus]) {
        walk->known[bus] = true;
        walk->todo[walk->n_todo++] = bus;
    }
}

/* False: there is no function here. */
static bool visit(struct walk *walk, struct pci_function *f, uint8_t *header_type)
{
    uint32_t ids = pci_read32(f, PCI_VENDOR_ID);
    f->vendor_id = (uint16_t)ids;
    f->device_id = (uint16_t)(ids >> 16);
    if (f->vendor_id == 0xffff || f->vendor_id == 0) {
        return false;
    }
    *header_type = pci_read8(f, PCI_HEADER_TYPE);
    if ((*header_type & HEADER_TYPE_MASK) == HEADER_BRIDGE) {
        add_bus(walk, pci_read8(f, PCI_SECONDARY_BUS));
    } else if ((*header_type & HEADER_TYPE_MASK) == 0 && walk->wanted(f)) {
        if (walk->left == 0 && !walk->found) {
            walk->found = true;
            walk->match = *f;
        }
        walk->left -= walk->left != 0;
    }
    return true;
}

static void visit_bus(struct walk *walk, uint8_t bus)
{
    for (unsigned slot = 0; slot < SLOTS && !walk->found; slot++) {
        for (unsigned fn = 0; fn < FUNCTIONS && !walk->found; fn++) {
            struct pci_function f = {.bus = bus, .slot_function = (uint8_t)(slot << 3 | fn)};
            uint8_t header_type = 0;
            bool present = visit(walk, &f, &header_type);
            if (fn == 0 && (!present || (header_type & HEADER_MULTIFUNCTION) == 0)) {
                break;
            }
        }
    }
}

static void walk_buses(struct walk *walk)
{
    look_for_window();
    add_bus(walk, 0);
    while (walk->n_done < walk->n_todo && !walk->found) {
        visit_bus(walk, walk->todo[walk->n_done++]);
    }
}

unsigned pci_count(bool (*wanted)(const struct pci_function *f))
{
    struct walk walk = {.left = UINT_MAX, .wanted = wanted};

    walk_buses(&walk);
    return UINT_MAX - walk.left;
}

bool pci_find(unsigned nth, bool (*wanted)(const struct pci_function *f), struct pci_function *out)
{
    struct walk walk = {.left = nth, .wanted = wanted};

    walk_buses(&walk);
    *out = walk.match;
    return walk.found;
}

/* ---- capabilities and BARs ---- */

uint8_t pci_next_capability(const struct pci_function *f, uint8_t id, uint8_t after)
{
    if ((pci_read16(f, PCI_STATUS) & PCI_STATUS_CAPS) == 0) {
        return 0;
    }
    uint8_t at = pci_read8(f, after == 0 ? (uint16_t)PCI_CAPABILITIES : (uint16_t)(after + 1u));
    for (unsigned i = 0; i < MAX_CAPABILITIES; i++) {
        at &= 0xfcu; /* the two low bits are reserved */
        if (at < CAPABILITIES_MIN) {
            return 0;
        }
        if (pci_read8(f, at) == id) {
            return at;
        }
        at = pci_read8(f, (uint16_t)(at + 1u));
    }
    return 0;
}

/* Writes all ones and reads back which address bits there are (6.2.5.1). */
static uint32_t bar_mask(const struct pci_function *f, uint16_t offset)
{
    uint32_t value = pci_read32(f, offset);
    pci_write32(f, offset, 0xffffffffu);
    uint32_t mask = pci_read32(f, offset);
    pci_write32(f, offset, value);
    return mask;
}

bool pci_memory_bar(const struct pci_function *f, unsigned bar, uint64_t *phys, uint64_t *bytes)
{
    uint16_t offset = (uint16_t)(PCI_BAR0 + 4u * bar);
    uint32_t low = pci_read32(f, offset);
    bool wide = (low & BAR_TYPE_MASK) == BAR_TYPE_64;

    if ((low & BAR_IO) != 0 || bar >= PCI_BARS || (wide && bar + 1 >= PCI_BARS)) {
        return false;
    }
    uint16_t command = pci_read16(f, PCI_COMMAND);
    pci_command(f, 0, PCI_COMMAND_MEMORY);
    uint64_t mask = 0xffffffff00000000ull | (bar_mask(f, offset) & BAR_MEMORY_MASK);
    uint64_t address = low & BAR_MEMORY_MASK;
    if (wide) {
        uint16_t high = (uint16_t)(offset + 4u);
        address |= (uint64_t)pci_read32(f, high) << 32;
        mask = (uint64_t)bar_mask(f, high) << 32 | (uint32_t)mask;
    }
    pci_write16(f, PCI_COMMAND, command);
    *phys = address;
    *bytes = ~mask + 1;
    return address != 0 && (uint32_t)mask != 0 && address + *bytes > address &&
           (address + *bytes - 1) >> PHYS_ADDRESS_BITS == 0;
}
