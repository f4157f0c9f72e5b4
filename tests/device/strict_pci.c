/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The PCI side: configuration space with its capabilities and decoys, the windows, MSI-X.
 * VIRTIO 1.x section 4.1.4, PCI 3.0 section 6.8.2.
 */
#include <string.h>

#include "tests/device/strict_device.h"

#define CAP_VENDOR       0x09u
#define CAP_MSIX         0x11u
#define CFG_COMMON       1u
#define CFG_NOTIFY       2u
#define CFG_ISR          3u
#define CFG_DEVICE       4u
#define CFG_PCI          5u
#define CFG_VENDOR       9u
#define COMMON_AT        0x0000u
#define ISR_AT           0x1000u
#define CONFIG_AT        0x2000u
#define NOTIFY_AT        0x4000u
#define COMMON_BYTES     0x40u
#define NOTIFY_BYTES     0x20000u
#define BAR_MAIN         4u
#define BAR_MSIX         1u
#define BAR_SECOND       2u
#define MSIX_TABLE_AT    0u
#define MSIX_PBA_AT      0x8000u
#define MSIX_ENABLE      0x8000u
#define MSIX_ALL_MASKED  0x4000u
#define COMMON_USED      0x38u /* what 4.1.4.3 says without a feature that adds to it */
#define CONFIG_USED      0x100u
#define MSIX_ENTRY_BYTES 16u

struct builder {
    struct strict_device *dev;
    uint8_t at;
    uint8_t *link; /* where the offset of the next capability goes */
};

static void put(uint8_t *p, unsigned bytes, uint64_t value)
{
    for (unsigned i = 0; i < bytes; i++) {
        p[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint8_t *add_cap(struct builder *b, uint8_t id, uint8_t len)
{
    uint8_t *cap = b->dev->pci + b->at;
    cap[0] = id;
    *b->link = b->at;
    b->link = cap + 1;
    b->at = (uint8_t)(b->at + ((len + 3u) & ~3u));
    return cap;
}

static uint8_t *add_virtio(struct builder *b, uint8_t type, uint8_t bar, uint32_t offset,
                           uint32_t length)
{
    uint8_t len = type == CFG_NOTIFY || type == CFG_PCI ? 20 : 16;
    if (b->dev->opt.decoys & STRICT_CAPS_LONGER) {
        len = (uint8_t)(len + 8);
    }
    memset(b->dev->pci_cap_type + b->at, type + 1, len);
    uint8_t *cap = add_cap(b, CAP_VENDOR, len);
    cap[2] = len;
    cap[3] = type;
    cap[4] = bar;
    put(cap + 8, 4, offset);
    put(cap + 12, 4, length);
    if (type == CFG_NOTIFY) {
        put(cap + 16, 4, b->dev->opt.notify_multiplier);
    }
    return cap;
}

static void add_decoys_in_front(struct builder *b)
{
    const unsigned decoys = b->dev->opt.decoys;
    if (decoys & STRICT_CAPS_RESERVED_TYPES) {
        add_virtio(b, 0, BAR_SECOND, 0, 0x1000);
        add_virtio(b, 6, BAR_SECOND, 0, 0x1000);
        add_virtio(b, 200, BAR_SECOND, 0, 0x1000);
    }
    if (decoys & STRICT_CAPS_RESERVED_BARS) {
        add_virtio(b, CFG_COMMON, 6, 0, COMMON_BYTES);
        add_virtio(b, CFG_NOTIFY, 255, 0, 0x1000);
        add_virtio(b, CFG_DEVICE, 7, 0, 0x1000);
    }
    if (decoys & STRICT_CAPS_WRAP) {
        add_virtio(b, CFG_COMMON, BAR_SECOND, 0xfffffff0u, COMMON_BYTES);
    }
    if (decoys & STRICT_CAPS_VENDOR) {
        uint8_t *cap = add_virtio(b, CFG_VENDOR, 0, 0, 0);
        put(cap + 4, 2, 0x5aa5);
    }
}

static uint32_t told_bytes(unsigned decoys, uint32_t at, uint32_t bytes)
{
    return decoys & STRICT_CAPS_GIANT  ? 0xffffffffu
           : decoys & STRICT_CAPS_HUGE ? STRICT_BAR_MAIN_BYTES - at
                                       : bytes;
}

static void add_structures(struct builder *b)
{
    const unsigned decoys = b->dev->opt.decoys;
    const uint32_t common = decoys & STRICT_CAPS_SHORT ? 0x10 : COMMON_BYTES;
    add_virtio(b, CFG_COMMON, BAR_MAIN, COMMON_AT, told_bytes(decoys, COMMON_AT, common));
    add_virtio(b, CFG_NOTIFY, BAR_MAIN, NOTIFY_AT, told_bytes(decoys, NOTIFY_AT, NOTIFY_BYTES));
    add_virtio(b, CFG_ISR, BAR_MAIN, ISR_AT, told_bytes(decoys, ISR_AT, 1));
    add_virtio(b, CFG_DEVICE, BAR_MAIN, CONFIG_AT,
               told_bytes(decoys, CONFIG_AT, b->dev->opt.config_bytes));
    if (decoys & STRICT_CAPS_TWICE) {
        add_virtio(b, CFG_COMMON, BAR_SECOND, 0, COMMON_BYTES);
        add_virtio(b, CFG_DEVICE, BAR_SECOND, 0x1000, 0x1000);
    } else if (!(decoys &
                 (STRICT_CAPS_RESERVED_TYPES | STRICT_CAPS_RESERVED_BARS | STRICT_CAPS_LONGER))) {
        add_virtio(b, CFG_PCI, 0, 0, 0);
    }
}

void strict_pci_build(struct strict_device *dev)
{
    struct builder b = {.dev = dev, .at = 0x40, .link = dev->pci + 0x34};
    memset(dev->pci, 0, sizeof(dev->pci));
    memset(dev->pci_cap_type, 0, sizeof(dev->pci_cap_type));
    put(dev->pci, 2, 0x1af4);
    put(dev->pci + 2, 2, dev->opt.pci_device_id);
    put(dev->pci + 6, 2, 0x0010); /* there is a list of capabilities */
    dev->pci[8] = dev->opt.revision;
    put(dev->pci + 0x0a, 2, 0x0200);
    put(dev->pci + 0x14, 4, STRICT_BAR_MSIX_PHYS);
    put(dev->pci + 0x18, 4, STRICT_BAR_SECOND_PHYS);
    put(dev->pci + 0x20, 4, (STRICT_BAR_MAIN_PHYS & 0xffffffffu) | 0xcu);
    put(dev->pci + 0x24, 4, STRICT_BAR_MAIN_PHYS >> 32);
    put(dev->pci + 0x2c, 4, 0x00011af4u);
    dev->pci[0x3d] = 1;
    if (dev->opt.vectors != 0) {
        uint8_t *cap = add_cap(&b, CAP_MSIX, 12);
        put(cap + 2, 2, dev->opt.vectors - 1u);
        put(cap + 4, 4, MSIX_TABLE_AT | BAR_MSIX);
        put(cap + 8, 4, MSIX_PBA_AT | BAR_MSIX);
    }
    if (!(dev->opt.decoys & STRICT_CAPS_NONE)) {
        add_decoys_in_front(&b);
        add_structures(&b);
    }
    if (dev->opt.decoys & STRICT_CAPS_LOOP) {
        *b.link = dev->pci[0x34];
    }
}

uint32_t strict_pci_read(struct strict_device *dev, uint32_t offset, unsigned bytes)
{
    uint32_t value = 0;
    if (offset + bytes > sizeof(dev->pci)) {
        return 0;
    }
    if (dev->pci_cap_type[offset] == CFG_VENDOR + 1) {
        uint32_t start = offset;
        while (dev->pci_cap_type[start - 1] == CFG_VENDOR + 1) {
            start--;
        }
        STRICT_CHECK(&dev->report, PCI_DRV_VND_02, offset - start < 6,
                     "read at %u of vendor data of an unknown vendor", offset - start);
    }
    memcpy(&value, dev->pci + offset, bytes);
    return value;
}

static bool is_bar(uint32_t offset)
{
    return offset >= 0x10 && offset < 0x28;
}

void strict_pci_write(struct strict_device *dev, uint32_t offset, unsigned bytes, uint32_t value)
{
    if (offset + bytes > sizeof(dev->pci)) {
        return;
    }
    const uint8_t type = dev->pci_cap_type[offset];
    STRICT_CHECK(&dev->report, PCI_DRV_CAP_08, type == 0 || type == CFG_PCI + 1,
                 "write of %#x at %#x, a capability of type %u", value, offset, type - 1u);
    STRICT_CHECK(&dev->report, PCI_DRV_PCFG_01, type != CFG_PCI + 1,
                 "the window of configuration accesses is used at %#x", offset);
    STRICT_CHECK(&dev->report, PCI_DRV_PCFG_02, type != CFG_PCI + 1,
                 "the window of configuration accesses is used at %#x", offset);
    if (is_bar(offset) && bytes == 4) {
        const uint32_t mask = offset == 0x20   ? ~(STRICT_BAR_MAIN_BYTES - 1)
                              : offset == 0x24 ? 0xffffffffu
                              : offset == 0x10 ? 0
                                               : ~(STRICT_BAR_MSIX_BYTES - 1);
        put(dev->pci + offset, 4, (value & mask) | (offset == 0x20 ? 0xcu : 0));
    } else if (offset == 4) {
        put(dev->pci + 4, 2, value & 0x0547u);
    } else if (dev->pci[0x34] == 0x40 && dev->pci[0x40] == CAP_MSIX &&
               (offset == 0x42 || offset == 0x40)) {
        const uint16_t control = (uint16_t)(offset == 0x40 ? value >> 16 : value);
        put(dev->pci + 0x42, 2, (control & 0xc000u) | (dev->opt.vectors - 1u));
    }
}

bool strict_msix_enabled(const struct strict_device *dev)
{
    return dev->opt.vectors != 0 && (dev->pci[0x43] & (MSIX_ENABLE >> 8)) != 0;
}

void strict_msix_raise(struct strict_device *dev, uint16_t vector)
{
    if (!strict_msix_enabled(dev) || vector >= dev->opt.vectors) {
        return;
    }
    const uint32_t *entry = dev->msix_table + (size_t)4 * vector;
    const bool masked = (dev->pci[0x43] & (MSIX_ALL_MASKED >> 8)) != 0 || (entry[3] & 1) != 0;
    if (masked) {
        dev->msix_pending[vector / 64] |= 1ull << (vector % 64);
        return;
    }
    dev->msix_pending[vector / 64] &= ~(1ull << (vector % 64));
    dev->interrupts++;
    /* A driver that is bus master off gets nothing, neither memory writes nor messages. */
    if (dev->interrupt != NULL && (dev->pci[4] & 4) != 0) {
        dev->interrupt(dev->ctx, (uint64_t)entry[1] << 32 | entry[0], entry[2]);
    }
}

static void msix_write(struct strict_device *dev, uint32_t offset, unsigned bytes, uint32_t value)
{
    if (offset / 16 >= dev->opt.vectors || bytes != 4 || offset % 4 != 0) {
        return;
    }
    dev->msix_table[offset / 4] = value;
    const uint16_t vector = (uint16_t)(offset / 16);
    if ((dev->msix_pending[vector / 64] >> (vector % 64) & 1) != 0) {
        strict_msix_raise(dev, vector);
    }
}

bool strict_mmio_hit(uint64_t phys)
{
    return (phys >= STRICT_BAR_MSIX_PHYS && phys < STRICT_BAR_MSIX_PHYS + STRICT_BAR_MSIX_BYTES) ||
           (phys >= STRICT_BAR_MAIN_PHYS && phys < STRICT_BAR_MAIN_PHYS + STRICT_BAR_MAIN_BYTES) ||
           (phys >= STRICT_BAR_SECOND_PHYS &&
            phys < STRICT_BAR_SECOND_PHYS + STRICT_BAR_MSIX_BYTES);
}

/* Bytes from an address on that a driver has a use for, and that the device said are there; and of
 * the doorbells no more than one. */
static uint64_t usable_bytes(const struct strict_device *dev, uint64_t phys)
{
    const uint32_t config = told_bytes(dev->opt.decoys, CONFIG_AT, dev->opt.config_bytes);
    const struct {
        uint64_t at, bytes;
    } structures[] = {
        {STRICT_BAR_MAIN_PHYS + COMMON_AT, COMMON_USED},
        {STRICT_BAR_MAIN_PHYS + CONFIG_AT, config < CONFIG_USED ? config : CONFIG_USED},
        {STRICT_BAR_MAIN_PHYS + ISR_AT, 1},
        {STRICT_BAR_MAIN_PHYS + NOTIFY_AT, NOTIFY_BYTES},
        {STRICT_BAR_MSIX_PHYS + MSIX_TABLE_AT, (uint64_t)MSIX_ENTRY_BYTES * dev->opt.vectors},
    };
    for (unsigned i = 0; i < sizeof(structures) / sizeof(structures[0]); i++) {
        if (phys >= structures[i].at && phys - structures[i].at < structures[i].bytes) {
            const uint64_t left = structures[i].bytes - (phys - structures[i].at);
            const uint64_t bell = strict_has(dev->driver_features, F_NOTIFICATION_DATA) ? 4 : 2;
            const bool rings = structures[i].at == STRICT_BAR_MAIN_PHYS + NOTIFY_AT;
            return rings && left > bell ? bell : left;
        }
    }
    return 0;
}

void strict_device_mapped(struct strict_device *dev, uint64_t phys, uint64_t len_bytes)
{
    STRICT_CHECK(&dev->report, PCI_DRV_CAP_05, len_bytes <= usable_bytes(dev, phys),
                 "%llu bytes mapped at %#llx, where %llu are of use", (unsigned long long)len_bytes,
                 (unsigned long long)phys, (unsigned long long)usable_bytes(dev, phys));
}

static void check_reach(struct strict_device *dev, uint64_t phys, unsigned bytes)
{
    STRICT_CHECK(&dev->report, PCI_DRV_CAP_05, bytes <= usable_bytes(dev, phys),
                 "access of %u bytes at %#llx, where %llu are of use", bytes,
                 (unsigned long long)phys, (unsigned long long)usable_bytes(dev, phys));
}

static bool in_first_instance(struct strict_device *dev, uint64_t phys)
{
    const bool second =
        phys >= STRICT_BAR_SECOND_PHYS && phys < STRICT_BAR_SECOND_PHYS + STRICT_BAR_MSIX_BYTES;
    STRICT_CHECK(&dev->report, PCI_DRV_CAP_02, !second || !(dev->opt.decoys & STRICT_CAPS_TWICE),
                 "access to the second instance at %#llx", (unsigned long long)phys);
    STRICT_CHECK(&dev->report, PCI_DRV_CAP_01,
                 !second || !(dev->opt.decoys & STRICT_CAPS_RESERVED_TYPES),
                 "access to a structure of a reserved type at %#llx", (unsigned long long)phys);
    STRICT_CHECK(&dev->report, PCI_DRV_CAP_06, !second || !(dev->opt.decoys & STRICT_CAPS_WRAP),
                 "access to a structure that wraps at %#llx", (unsigned long long)phys);
    return !second;
}

uint32_t strict_mmio_read(struct strict_device *dev, uint64_t phys, unsigned bytes)
{
    check_reach(dev, phys, bytes);
    if (phys >= STRICT_BAR_MAIN_PHYS && phys < STRICT_BAR_MAIN_PHYS + STRICT_BAR_MAIN_BYTES) {
        const uint32_t offset = (uint32_t)(phys - STRICT_BAR_MAIN_PHYS);
        if (offset < COMMON_AT + COMMON_BYTES) {
            return strict_common_read(dev, offset, bytes);
        }
        if (offset >= CONFIG_AT && offset < CONFIG_AT + 0x1000) {
            return strict_config_read(dev, offset - CONFIG_AT, bytes);
        }
        if (offset == ISR_AT) {
            STRICT_CHECK(&dev->report, PCI_DRV_ISR_01, !strict_msix_enabled(dev),
                         "the ISR byte is read with MSI-X on");
            const uint8_t isr = dev->isr;
            dev->isr = 0;
            return isr;
        }
        return 0;
    }
    if (!in_first_instance(dev, phys)) {
        return 0xffffffffu;
    }
    const uint32_t offset = (uint32_t)(phys - STRICT_BAR_MSIX_PHYS);
    return offset / 16 < dev->opt.vectors ? dev->msix_table[offset / 4] : 0;
}

void strict_mmio_write(struct strict_device *dev, uint64_t phys, unsigned bytes, uint32_t value)
{
    check_reach(dev, phys, bytes);
    if (phys >= STRICT_BAR_MAIN_PHYS && phys < STRICT_BAR_MAIN_PHYS + STRICT_BAR_MAIN_BYTES) {
        const uint32_t offset = (uint32_t)(phys - STRICT_BAR_MAIN_PHYS);
        if (offset >= NOTIFY_AT) {
            strict_device_kick(dev, offset - NOTIFY_AT, bytes, value);
        } else if (offset < COMMON_AT + COMMON_BYTES) {
            strict_common_write(dev, offset, bytes, value);
        } else if (offset >= CONFIG_AT) {
            strict_config_write(dev, offset - CONFIG_AT, bytes);
        }
        return;
    }
    if (in_first_instance(dev, phys)) {
        msix_write(dev, (uint32_t)(phys - STRICT_BAR_MSIX_PHYS), bytes, value);
    }
}
