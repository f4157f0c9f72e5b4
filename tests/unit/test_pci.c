/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The bus: functions behind bridges, by port and by memory window; capability lists that loop;
 * BARs of every kind; the MSI-X table.
 *
 *     bus 0: 0.0 host bridge, 1.0 + 1.3 two functions, 2.0 bridge -> bus 5: 0.0
 *                                               3.0 bridge -> bus 0 (a liar)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "boot/acpi.h"
#include "drivers/pci.h"
#include "tests/device/seams.h"

#define ECAM_PHYS  0xb0000000ull
#define TABLE_PHYS 0x38000000000ull

struct fake_function {
    uint8_t bus, slot, fn;
    uint8_t space[256];
    uint32_t bar_mask[6];
};

struct fake_bus {
    struct fake_function f[8];
    unsigned n;
    uint32_t address; /* port 0xcf8 */
    unsigned port_accesses, window_accesses;
    uint32_t msix[16];
};

static void put(struct fake_function *f, uint32_t at, unsigned bytes, uint32_t value)
{
    if (f == NULL) {
        fail_msg("no such function on the bus");
        return;
    }
    memcpy(f->space + at, &value, bytes);
}

static struct fake_function *add(struct fake_bus *b, uint8_t bus, uint8_t slot, uint8_t fn,
                                 uint16_t device, uint8_t header)
{
    struct fake_function *f = &b->f[b->n++];
    f->bus = bus;
    f->slot = slot;
    f->fn = fn;
    put(f, PCI_VENDOR_ID, 4, 0x1af4u | (uint32_t)device << 16);
    put(f, PCI_HEADER_TYPE, 1, header);
    return f;
}

static struct fake_function *at(struct fake_bus *b, uint32_t bus, uint32_t slot_fn)
{
    for (unsigned i = 0; i < b->n; i++) {
        if (b->f[i].bus == bus && (b->f[i].slot << 3 | b->f[i].fn) == (int)slot_fn) {
            return &b->f[i];
        }
    }
    return NULL;
}

static uint32_t config_get(struct fake_function *f, uint32_t offset, unsigned bytes)
{
    uint32_t value = 0xffffffff;
    if (f != NULL) {
        value = 0;
        memcpy(&value, f->space + offset, bytes);
    }
    return bytes == 4 ? value : value & ((1u << (8 * bytes)) - 1);
}

static void config_set(struct fake_function *f, uint32_t offset, unsigned bytes, uint32_t value)
{
    if (f == NULL) {
        return;
    }
    if (offset >= PCI_BAR0 && offset < PCI_BAR0 + 24) {
        uint32_t mask = f->bar_mask[(offset - PCI_BAR0) / 4];
        uint32_t low = config_get(f, offset, 4) & 0xf;
        assert_int_equal(bytes, 4);
        /* Only the upper half of a wide BAR has address bits below. */
        value = (value & mask) | (mask & 0xf ? 0 : low);
        /* Never resized while the function answers there. */
        assert_int_equal(config_get(f, PCI_COMMAND, 2) & PCI_COMMAND_MEMORY, 0);
    }
    put(f, offset, bytes, value);
}

static uint32_t port_in(void *ctx, uint16_t port, unsigned bytes)
{
    struct fake_bus *b = ctx;
    b->port_accesses++;
    assert_in_range(port, 0xcfc, 0xcff);
    assert_true((b->address & 0x80000000u) != 0);
    return config_get(at(b, b->address >> 16 & 0xff, b->address >> 8 & 0xff),
                      (b->address & 0xfc) + (port & 3u), bytes);
}

static void port_out(void *ctx, uint16_t port, unsigned bytes, uint32_t value)
{
    struct fake_bus *b = ctx;
    if (port == 0xcf8) {
        assert_int_equal(bytes, 4);
        b->address = value;
        return;
    }
    config_set(at(b, b->address >> 16 & 0xff, b->address >> 8 & 0xff),
               (b->address & 0xfc) + (port & 3u), bytes, value);
}

static uint32_t mmio_in(void *ctx, uint64_t phys, unsigned bytes)
{
    struct fake_bus *b = ctx;
    uint64_t offset = phys - ECAM_PHYS;
    b->window_accesses++;
    assert_true(offset < 256u << 20);
    return config_get(at(b, (uint32_t)(offset >> 20), offset >> 12 & 0xff), offset & 0xfff, bytes);
}

static void mmio_out(void *ctx, uint64_t phys, unsigned bytes, uint32_t value)
{
    struct fake_bus *b = ctx;
    if (phys >= TABLE_PHYS && phys < TABLE_PHYS + 0x2000) {
        assert_int_equal(bytes, 4);
        b->msix[(phys - TABLE_PHYS - 0x800) / 4] = value;
        return;
    }
    uint64_t offset = phys - ECAM_PHYS;
    config_set(at(b, (uint32_t)(offset >> 20), offset >> 12 & 0xff), offset & 0xfff, bytes, value);
}

static void build(struct fake_bus *b)
{
    memset(b, 0, sizeof(*b));
    add(b, 0, 0, 0, 0x1237, 0);
    add(b, 0, 1, 0, 0x1000, 0x80);
    add(b, 0, 1, 3, 0x1041, 0);
    put(add(b, 0, 2, 0, 0x000c, 1), PCI_SECONDARY_BUS, 1, 5);
    put(add(b, 0, 3, 0, 0x000c, 1), PCI_SECONDARY_BUS, 1, 0);
    add(b, 5, 0, 0, 0x1041, 0);
    add(b, 0, 4, 2, 0x1041, 0); /* no function 0: does not exist */
    struct seam_hooks hooks = {.ctx = b,
                               .io_in = port_in,
                               .io_out = port_out,
                               .mmio_read = mmio_in,
                               .mmio_write = mmio_out};
    seam_reset();
    seam_hook(&hooks);
}

static bool is_net(const struct pci_function *f)
{
    return f->device_id == 0x1000 || f->device_id == 0x1041;
}

static void expect_found(unsigned nth, uint8_t bus, uint8_t slot, uint8_t fn)
{
    struct pci_function f;
    assert_true(pci_find(nth, is_net, &f));
    assert_int_equal(f.bus, bus);
    assert_int_equal(f.slot_function, slot << 3 | fn);
}

static void expect_walk(void)
{
    struct pci_function f;
    expect_found(0, 0, 1, 0);
    expect_found(1, 0, 1, 3);
    expect_found(2, 5, 0, 0);
    assert_false(pci_find(3, is_net, &f));
    assert_int_equal(pci_count(is_net), 3);
}

/* Field case 53: several network devices are all found and counted, in the order of the buses. */
static void test_walk_by_port(void **state)
{
    struct fake_bus *b = *state;
    build(b);
    expect_walk();
    assert_true(b->port_accesses > 0);
    assert_int_equal(b->window_accesses, 0);
}

static void test_walk_by_window(void **state)
{
    struct fake_bus *b = *state;
    struct {
        struct acpi_header header;
        uint64_t reserved;
        uint64_t base;
        uint16_t segment;
        uint8_t first, last;
        uint32_t reserved2;
    } __attribute__((packed))
    mcfg = {.header = {.length = sizeof(mcfg)}, .base = ECAM_PHYS, .last = 255};
    build(b);
    seam_set_acpi_table("MCFG", &mcfg);
    expect_walk();
    assert_int_equal(b->port_accesses, 0);
    assert_true(b->window_accesses > 0);
    /* A table too short for its entry is passed over. */
    build(b);
    mcfg.header.length = sizeof(mcfg) - 1;
    seam_set_acpi_table("MCFG", &mcfg);
    expect_walk();
    assert_int_equal(b->window_accesses, 0);
}

static const struct pci_function net = {.slot_function = 1 << 3};

/* As every user does it: the walk first. */
static void build_and_walk(struct fake_bus *b)
{
    struct pci_function f;
    build(b);
    assert_true(pci_find(0, is_net, &f));
}

static void test_capabilities(void **state)
{
    struct fake_bus *b = *state;
    build_and_walk(b);
    struct fake_function *f = at(b, 0, 1 << 3);

    assert_int_equal(pci_next_capability(&net, PCI_CAP_ID_VENDOR, 0), 0);
    put(f, PCI_CAPABILITIES, 1, 0x40);
    put(f, 0x40, 2, PCI_CAP_ID_VENDOR | 0x53 << 8); /* the two low bits mean nothing */
    put(f, 0x50, 2, PCI_CAP_ID_MSIX | 0x60 << 8);
    put(f, 0x60, 2, PCI_CAP_ID_VENDOR);
    assert_int_equal(pci_next_capability(&net, PCI_CAP_ID_VENDOR, 0), 0); /* status says none */
    put(f, PCI_STATUS, 2, PCI_STATUS_CAPS);
    assert_int_equal(pci_next_capability(&net, PCI_CAP_ID_VENDOR, 0), 0x40);
    assert_int_equal(pci_next_capability(&net, PCI_CAP_ID_VENDOR, 0x40), 0x60);
    assert_int_equal(pci_next_capability(&net, PCI_CAP_ID_VENDOR, 0x60), 0);
    assert_int_equal(pci_next_capability(&net, PCI_CAP_ID_MSIX, 0), 0x50);
    /* A list that bites its tail, and one that points into the header, end. */
    put(f, 0x60, 2, PCI_CAP_ID_VENDOR | 0x40 << 8);
    assert_int_equal(pci_next_capability(&net, 0x77, 0), 0);
    put(f, 0x60, 2, PCI_CAP_ID_VENDOR | 0x10 << 8);
    assert_int_equal(pci_next_capability(&net, 0x77, 0), 0);
}

static void set_bar(struct fake_function *f, unsigned n, uint32_t value, uint32_t mask)
{
    put(f, PCI_BAR0 + 4 * n, 4, value);
    f->bar_mask[n] = mask;
}

static void test_bars(void **state)
{
    struct fake_bus *b = *state;
    uint64_t phys, bytes;

    build_and_walk(b);
    struct fake_function *f = at(b, 0, 1 << 3);
    put(f, PCI_COMMAND, 2, PCI_COMMAND_MEMORY);
    set_bar(f, 0, 0xc001, 0xffe1);         /* I/O */
    set_bar(f, 1, 0xfebc0000, 0xfffff000); /* 32 bits */
    set_bar(f, 2, 0x0000000c, 0xffffc00c); /* 64 bits, prefetchable, at 0xe000000000 */
    set_bar(f, 3, 0x000000e0, 0xffffffff);
    set_bar(f, 4, 0x00000000, 0xfffff000); /* without an address */
    set_bar(f, 5, 0xfe000004, 0xfffff000); /* 64 bits, but there is no sixth */
    assert_false(pci_memory_bar(&net, 0, &phys, &bytes));
    assert_true(pci_memory_bar(&net, 1, &phys, &bytes));
    assert_int_equal(phys, 0xfebc0000);
    assert_int_equal(bytes, 0x1000);
    assert_true(pci_memory_bar(&net, 2, &phys, &bytes));
    assert_int_equal(phys, 0xe000000000ull);
    assert_int_equal(bytes, 0x4000);
    assert_false(pci_memory_bar(&net, 4, &phys, &bytes));
    assert_false(pci_memory_bar(&net, 5, &phys, &bytes));
    assert_false(pci_memory_bar(&net, 6, &phys, &bytes));
    assert_false(pci_memory_bar(&net, 7, &phys, &bytes));
    /* Where no page table reaches: at 2^52, and from below into it. */
    set_bar(f, 4, 0x00000004, 0xfffff004);
    set_bar(f, 5, 0x00100000, 0xffffffff);
    assert_false(pci_memory_bar(&net, 4, &phys, &bytes));
    set_bar(f, 4, 0xfffff004, 0xfffff004);
    set_bar(f, 5, 0x000fffff, 0xffffffff);
    assert_true(pci_memory_bar(&net, 4, &phys, &bytes));
    set_bar(f, 4, 0xffff0004, 0xfffe0004);
    assert_false(pci_memory_bar(&net, 4, &phys, &bytes));
    /* Sizing leaves everything as it was. */
    assert_int_equal(config_get(f, PCI_BAR0 + 4, 4), 0xfebc0000);
    assert_int_equal(config_get(f, PCI_BAR0 + 12, 4), 0xe0);
    assert_int_equal(config_get(f, PCI_COMMAND, 2), PCI_COMMAND_MEMORY);
}

static void test_msix(void **state)
{
    struct fake_bus *b = *state;
    struct pci_msix msix;

    build_and_walk(b);
    struct fake_function *f = at(b, 0, 1 << 3);
    pci_msix_open(&net, &msix);
    assert_int_equal(msix.n_vectors, 0);
    put(f, PCI_STATUS, 2, PCI_STATUS_CAPS);
    put(f, PCI_CAPABILITIES, 1, 0x40);
    put(f, 0x40, 2, PCI_CAP_ID_MSIX);
    put(f, 0x42, 2, 3);         /* four vectors */
    put(f, 0x44, 4, 0x800 | 2); /* BAR 2, offset 0x800 */
    set_bar(f, 2, 0x0000000c, 0xffffe00c);
    set_bar(f, 3, (uint32_t)(TABLE_PHYS >> 32), 0xffffffff);
    pci_msix_open(&net, &msix);
    assert_int_equal(msix.n_vectors, 4);
    pci_msix_set(&msix, 1, 0x1fee00000ull, 0x55);
    assert_int_equal(b->msix[4], 0xfee00000);
    assert_int_equal(b->msix[5], 1);
    assert_int_equal(b->msix[6], 0x55);
    assert_int_equal(b->msix[7], 0); /* unmasked */
    pci_msix_enable(&net, &msix, true);
    assert_int_equal(config_get(f, 0x42, 2), 0x8003);
    pci_msix_enable(&net, &msix, false);
    assert_int_equal(config_get(f, 0x42, 2), 0x0003);
    /* A table that does not fit into its BAR is none. */
    put(f, 0x42, 2, 0x7ff);
    pci_msix_open(&net, &msix);
    assert_int_equal(msix.n_vectors, 0);
    put(f, 0x44, 4, 0x800 | 6);
    pci_msix_open(&net, &msix);
    assert_int_equal(msix.n_vectors, 0);
}

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct fake_bus));
    return *state == NULL;
}

static int teardown(void **state)
{
    seam_reset();
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk_by_port), cmocka_unit_test(test_walk_by_window),
        cmocka_unit_test(test_capabilities), cmocka_unit_test(test_bars),
        cmocka_unit_test(test_msix),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
