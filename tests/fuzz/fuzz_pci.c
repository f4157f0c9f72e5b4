/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The device on its bus: a sane configuration space and sane registers, with bytes of both replaced
 * by the input.
 *
 *     virtio_net_open  ->  ports 0xcf8, 0xcfc  ->  capabilities, BARs, MSI-X
 *                      ->  windows             ->  common structure, configuration, table
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "boot/mem.h"
#include "drivers/pci.h"
#include "drivers/virtio_net_impl.h"
#include "tests/device/seams.h"
#include "tests/fuzz/input.h"

#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))

#define MAIN_PHYS    0x380000000000ull
#define TABLE_PHYS   0xfebc0000u
#define COMMON_BYTES 56u
#define MAX_WINDOWS  16u
#define MAX_PATCHES  24u
/* Longest way through a start: beyond it a loop has no end. */
#define MAX_ACCESSES 200000u

static struct {
    struct input in;
    uint8_t space[256];
    uint8_t bar_mask[24];
    uint32_t address; /* port 0xcf8 */
    uint8_t common[64], config[16];
    struct {
        uint64_t phys, bytes;
    } windows[MAX_WINDOWS];
    unsigned n_windows, accesses;
} device;

static _Noreturn void fail(int line, const char *what)
{
    fprintf(stderr, "fuzz_pci.c:%d: does not hold: %s\n", line, what);
    abort();
}

static void put(uint8_t *at, uint64_t value, unsigned bytes)
{
    memcpy(at, &value, bytes);
}

/* ---- configuration space ---- */

static void capability(uint8_t at, uint8_t next, uint8_t type, uint32_t offset, uint32_t length)
{
    uint8_t *cap = device.space + at;
    put(cap, 0x09u | (uint32_t)next << 8 | (type == 2 ? 20u : 16u) << 16 | (uint32_t)type << 24, 4);
    put(cap + 8, offset, 4);
    put(cap + 12, length, 4);
    put(cap + 16, 4, type == 2 ? 4 : 0); /* notify_off_multiplier */
}

static void build(void)
{
    put(device.space, 0x10411af4u, 4);
    put(device.space + PCI_STATUS, PCI_STATUS_CAPS, 2);
    put(device.space + PCI_BAR0, MAIN_PHYS | 4u, 8);
    put(device.space + PCI_BAR0 + 8, TABLE_PHYS, 4);
    put(device.bar_mask, 0xfffffffffffc0000ull, 8);
    put(device.bar_mask + 8, 0xfffff000u, 4);
    device.space[PCI_CAPABILITIES] = 0x40;
    put(device.space + 0x40, 0x00024c11u, 4);     /* MSI-X, three vectors ... */
    put(device.space + 0x44, 2, 4);               /* ... in BAR 2 */
    capability(0x4c, 0x5c, 1, 0, COMMON_BYTES);   /* common */
    capability(0x5c, 0x70, 2, 0x1000, 0x10);      /* notification */
    capability(0x70, 0x80, 4, 0x2000, 12);        /* device */
    capability(0x80, 0, 3, 0x3000, 1);            /* ISR */
    put(device.common + 4, 0x30818bab, 4);        /* features, lower half */
    put(device.common + 18, 2, 2);                /* queues */
    put(device.common + 24, 16, 2);               /* size */
    put(device.config, 0x0000010302005452ull, 8); /* MAC, link up */
    put(device.config + 10, 1500, 2);
}

static bool is_ours(void)
{
    return (device.address & 0x80ffff00u) == (0x80000000u | 3u << 11);
}

static uint32_t io_in(void *ctx, uint16_t port, unsigned bytes)
{
    uint32_t value = 0;

    (void)ctx;
    CHECK(port >= 0xcfc && port + bytes <= 0xd00 && ++device.accesses < MAX_ACCESSES);
    if (!is_ours()) {
        return 0xffffffffu;
    }
    memcpy(&value, device.space + (device.address & 0xfcu) + (port & 3u), bytes);
    return value;
}

/* The command register, the BARs and MSI-X's control are all that is written. */
static void io_out(void *ctx, uint16_t port, unsigned bytes, uint32_t value)
{
    (void)ctx;
    if (port == 0xcf8) {
        CHECK(bytes == 4);
        device.address = value;
        return;
    }
    uint32_t at = (device.address & 0xfcu) + (port & 3u);
    CHECK(is_ours());
    if (at >= PCI_BAR0 && at < PCI_BAR0 + 24) {
        CHECK(bytes == 4 && (device.space[PCI_COMMAND] & PCI_COMMAND_MEMORY) == 0);
        for (unsigned i = 0; i < 4; i++) {
            uint8_t mask = device.bar_mask[at - PCI_BAR0 + i];
            uint8_t fixed = device.space[at + i] & (uint8_t)~mask;
            device.space[at + i] = (uint8_t)((value >> 8 * i & mask) | fixed);
        }
        return;
    }
    CHECK(bytes == 2 && (at == PCI_COMMAND || at >= 0x40));
    put(device.space + at, value, 2);
}

/* ---- windows ---- */

/* What the BAR shows when all ones were written to it. */
static uint32_t ones(unsigned bar)
{
    uint32_t mask, value;
    memcpy(&mask, device.bar_mask + (size_t)4 * bar, 4);
    memcpy(&value, device.space + PCI_BAR0 + (size_t)4 * bar, 4);
    return mask | (value & ~mask);
}

static bool inside_bar(unsigned bar, uint64_t phys, uint64_t len_bytes)
{
    uint64_t base = 0, mask = 0xffffffff00000000ull | (ones(bar) & ~0xfu);

    memcpy(&base, device.space + PCI_BAR0 + (size_t)4 * bar, 4);
    if ((base & 6u) == 4 && bar + 1 < PCI_BARS) {
        memcpy(&base, device.space + PCI_BAR0 + (size_t)4 * bar, 8);
        mask = (uint64_t)ones(bar + 1) << 32 | (uint32_t)mask;
    }
    base &= ~0xfull;
    return phys >= base && phys - base <= ~mask + 1 && len_bytes <= ~mask + 1 - (phys - base);
}

static void mapped(void *ctx, uint64_t phys, uint64_t len_bytes)
{
    bool inside = false;

    (void)ctx;
    CHECK(device.n_windows < MAX_WINDOWS && len_bytes != 0 && phys + len_bytes > phys);
    CHECK(phys + len_bytes <= 1ull << 52); /* no page table has more */
    for (unsigned bar = 0; bar < PCI_BARS; bar++) {
        inside |= inside_bar(bar, phys, len_bytes);
    }
    CHECK(inside);
    device.windows[device.n_windows].phys = phys;
    device.windows[device.n_windows++].bytes = len_bytes;
}

static bool is_mapped(uint64_t phys, unsigned bytes)
{
    for (unsigned i = 0; i < device.n_windows; i++) {
        if (phys >= device.windows[i].phys &&
            phys + bytes <= device.windows[i].phys + device.windows[i].bytes) {
            return true;
        }
    }
    return false;
}

/* One answer in eight is a lie, while there is input. */
static uint32_t mmio_read(void *ctx, uint64_t phys, unsigned bytes)
{
    uint64_t at = phys - MAIN_PHYS;
    uint32_t value = 0;

    (void)ctx;
    CHECK(is_mapped(phys, bytes) && ++device.accesses < MAX_ACCESSES);
    if (device.in.left != 0 && (in8(&device.in) & 7u) == 0) {
        return (uint32_t)in_bytes(&device.in, bytes);
    }
    if (at + bytes <= COMMON_BYTES) {
        memcpy(&value, device.common + at, bytes);
    } else if (at >= 0x2000 && at + bytes <= 0x2000 + sizeof(device.config)) {
        memcpy(&value, device.config + (at - 0x2000), bytes);
    }
    return value;
}

static void mmio_write(void *ctx, uint64_t phys, unsigned bytes, uint32_t value)
{
    uint64_t at = phys - MAIN_PHYS;

    (void)ctx;
    CHECK(is_mapped(phys, bytes) && ++device.accesses < MAX_ACCESSES);
    if (at == 0 && bytes == 4) {
        put(device.common + 4, value == 0 ? 0x30818bab : 1, 4); /* VERSION_1 in the upper half */
    } else if (at >= 4 && at + bytes <= COMMON_BYTES) {
        put(device.common + at, value, bytes);
    }
}

static void relax(void *ctx)
{
    (void)ctx;
    seam_advance_ns(RESET_TIMEOUT_NS / 8);
}

/* ---- one input ---- */

static void on_link(void *ctx, bool up)
{
    (void)ctx;
    (void)up;
}

static const struct virtio_net_ops ops = {.link = on_link};

/* Another byte, or a whole word of the capabilities: small, or nearly as large as can be. */
static void patch(uint8_t where, uint8_t at, uint8_t value)
{
    switch (where & 3u) {
    case 0:
        device.bar_mask[at % sizeof(device.bar_mask)] = value;
        break;
    case 1:
        device.common[at % sizeof(device.common)] = value;
        break;
    case 2:
        device.space[at] = value;
        break;
    default:
        put(device.space + (at & 0xfcu), (uint32_t)(int8_t)value << (where >> 2) % 24u, 4);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct virtio_net_config config = {.ops = &ops, .max_datagram_bytes = 1472};
    const char *why = NULL;

    seam_reset();
    memset(&device, 0, sizeof(device));
    device.in = (struct input){data, size};
    build();
    for (unsigned n = in8(&device.in) % MAX_PATCHES; n != 0; n--) {
        uint8_t where = in8(&device.in), at = in8(&device.in);
        patch(where, at, in8(&device.in));
    }
    /* A size of 2^15 is right, and costs what this is not about. */
    device.common[25] &= 0x80u;
    seam_limit_vectors(in8(&device.in) & 3u);
    seam_hook(&(struct seam_hooks){.mmio_read = mmio_read,
                                   .mmio_write = mmio_write,
                                   .mapped = mapped,
                                   .io_in = io_in,
                                   .io_out = io_out,
                                   .relax = relax});
    struct virtio_net *dev = virtio_net_open(0, &config, &why);
    if (dev != NULL) {
        virtio_net_poll(dev, seam_now_ns());
        virtio_net_close(dev);
    } else {
        CHECK(why != NULL && why[0] != '\0' && strchr(why, '\n') == NULL);
    }
    seam_reset();
    return 0;
}
