/* SPDX-License-Identifier: BSD-2-Clause
 *
 * virtio over PCI, modern interface. VIRTIO 1.x section 4.1.
 */
#include "drivers/virtio_pci.h"

#include <stddef.h>

#include "boot/cpu.h"
#include "boot/mem.h"
#include "drivers/pci.h"

#define VIRTIO_VENDOR_ID           0x1af4u
#define VIRTIO_NET_DEVICE_ID       0x1041u
#define VIRTIO_NET_TRANSITIONAL_ID 0x1000u

#define NO_VECTOR 0xffffu

/* struct virtio_pci_cap (4.1.4). */
#define CAP_LEN          2u
#define CAP_CFG_TYPE     3u
#define CAP_BAR          4u
#define CAP_OFFSET       8u
#define CAP_LENGTH       12u
#define CAP_MULTIPLIER   16u
#define CAP_BYTES        16u
#define CAP_NOTIFY_BYTES 20u
#define CONFIG_BYTES     256u

enum cfg_type {
    CFG_COMMON = 1,
    CFG_NOTIFY = 2,
    CFG_ISR = 3,
    CFG_DEVICE = 4,
};

/* struct virtio_pci_common_cfg (4.1.4.3), offsets. */
#define COMMON_DEVICE_FEATURE_SELECT 0u
#define COMMON_DEVICE_FEATURE        4u
#define COMMON_DRIVER_FEATURE_SELECT 8u
#define COMMON_DRIVER_FEATURE        12u
#define COMMON_CONFIG_MSIX_VECTOR    16u
#define COMMON_NUM_QUEUES            18u
#define COMMON_DEVICE_STATUS         20u
#define COMMON_CONFIG_GENERATION     21u
#define COMMON_QUEUE_SELECT          22u
#define COMMON_QUEUE_SIZE            24u
#define COMMON_QUEUE_MSIX_VECTOR     26u
#define COMMON_QUEUE_ENABLE          28u
#define COMMON_QUEUE_NOTIFY_OFF      30u
#define COMMON_QUEUE_DESC            32u
#define COMMON_QUEUE_DRIVER          40u
#define COMMON_QUEUE_DEVICE          48u
#define COMMON_BYTES                 56u

/* One for the configuration, one for each queue. */
#define WANTED_VECTORS 3u

/* A structure of the device in one of its BARs. */
struct region {
    bool present;
    uint64_t phys;
    uint32_t bytes;
};

struct virtio_pci {
    struct virtio_transport base;
    struct pci_function function;
    struct region notify;
    uint32_t notify_multiplier;
    volatile uint8_t *common;
    volatile uint8_t *device;
    struct pci_msix msix;
    uint16_t n_vectors; /* programmed: 0, 1, 2 or 3 */
    struct irq_line lines[WANTED_VECTORS];
};

static struct virtio_pci *pci_of(struct virtio_transport *transport)
{
    return (struct virtio_pci *)((uint8_t *)transport - offsetof(struct virtio_pci, base));
}

/* ---- common configuration: byte, 16 and 32 bit accesses as wide as the field (4.1.3.1) ---- */

static uint8_t get_status(struct virtio_transport *transport)
{
    return mmio_read8(pci_of(transport)->common + COMMON_DEVICE_STATUS);
}

static void set_status(struct virtio_transport *transport, uint8_t status)
{
    mmio_write8(pci_of(transport)->common + COMMON_DEVICE_STATUS, status);
}

static uint64_t device_features(struct virtio_transport *transport)
{
    volatile uint8_t *common = pci_of(transport)->common;
    uint64_t features = 0;

    for (uint32_t half = 0; half < 2; half++) {
        mmio_write32(common + COMMON_DEVICE_FEATURE_SELECT, half);
        features |= (uint64_t)mmio_read32(common + COMMON_DEVICE_FEATURE) << (32 * half);
    }
    return features;
}

static void set_driver_features(struct virtio_transport *transport, uint64_t features)
{
    volatile uint8_t *common = pci_of(transport)->common;

    for (uint32_t half = 0; half < 2; half++) {
        mmio_write32(common + COMMON_DRIVER_FEATURE_SELECT, half);
        mmio_write32(common + COMMON_DRIVER_FEATURE, (uint32_t)(features >> (32 * half)));
    }
}

/* Fields of 64 bits are written as two halves (4.1.3.1). */
static void write64(volatile uint8_t *at, uint64_t value)
{
    mmio_write32(at, (uint32_t)value);
    mmio_write32(at + 4, (uint32_t)(value >> 32));
}

static uint16_t select_queue(struct virtio_pci *pci, uint16_t queue)
{
    if (queue >= mmio_read16(pci->common + COMMON_NUM_QUEUES)) {
        return 0;
    }
    mmio_write16(pci->common + COMMON_QUEUE_SELECT, queue);
    return mmio_read16(pci->common + COMMON_QUEUE_SIZE);
}

static uint16_t queue_size(struct virtio_transport *transport, uint16_t queue)
{
    return select_queue(pci_of(transport), queue);
}

/* ---- interrupts ---- */

/* Vector of an event when n are there: the configuration has the first one, queues share the last
 * when there are too few. */
static uint16_t queue_vector(const struct virtio_pci *pci, uint16_t queue)
{
    uint16_t wanted = (uint16_t)(queue + 1u);
    return wanted < pci->n_vectors ? wanted : (uint16_t)(pci->n_vectors - 1u);
}

/* 4.1.5.1.2.1: only the vector register read back tells whether the device could map it. */
static bool map_vector(volatile uint8_t *at, uint16_t vector)
{
    mmio_write16(at, vector);
    return mmio_read16(at) == vector;
}

static bool setup_interrupts(struct virtio_transport *transport)
{
    struct virtio_pci *pci = pci_of(transport);

    if (pci->n_vectors == 0) {
        return true;
    }
    return map_vector(pci->common + COMMON_CONFIG_MSIX_VECTOR, 0);
}

static void open_vectors(struct virtio_pci *pci)
{
    struct virtio_transport *base = &pci->base;

    pci_msix_open(&pci->function, &pci->msix);
    while (pci->n_vectors < WANTED_VECTORS && pci->n_vectors < pci->msix.n_vectors) {
        uint64_t msg_addr;
        uint32_t msg_data;
        if (irq_msi_alloc(&pci->lines[pci->n_vectors], &msg_addr, &msg_data) < 0) {
            break;
        }
        pci_msix_set(&pci->msix, pci->n_vectors++, msg_addr, msg_data);
    }
    if (pci->n_vectors == 0) {
        return;
    }
    pci_msix_enable(&pci->function, &pci->msix, true);
    base->config_line = &pci->lines[0];
    for (uint16_t queue = 0; queue < 2; queue++) {
        base->queue_line[queue] = &pci->lines[queue_vector(pci, queue)];
    }
}

/* ---- queues ---- */

static bool map_doorbell(struct virtio_pci *pci, uint16_t queue, struct vq_doorbell *doorbell)
{
    uint64_t offset =
        (uint64_t)mmio_read16(pci->common + COMMON_QUEUE_NOTIFY_OFF) * pci->notify_multiplier;

    /* 4.1.4.4: the doorbell must lie inside the structure. */
    if (offset + sizeof(uint16_t) > pci->notify.bytes) {
        return false;
    }
    doorbell->addr = mem_map_mmio(pci->notify.phys + offset, sizeof(uint16_t));
    doorbell->value = queue;
    return doorbell->addr != NULL;
}

static bool queue_enable(struct virtio_transport *transport, uint16_t queue,
                         const struct virtio_queue_setup *setup, struct vq_doorbell *doorbell)
{
    struct virtio_pci *pci = pci_of(transport);
    volatile uint8_t *common = pci->common;

    if (setup->size_descs > select_queue(pci, queue) || !map_doorbell(pci, queue, doorbell)) {
        return false;
    }
    mmio_write16(common + COMMON_QUEUE_SIZE, setup->size_descs);
    if (pci->n_vectors != 0 &&
        !map_vector(common + COMMON_QUEUE_MSIX_VECTOR, queue_vector(pci, queue))) {
        return false;
    }
    write64(common + COMMON_QUEUE_DESC, setup->desc_dma);
    write64(common + COMMON_QUEUE_DRIVER, setup->avail_dma);
    write64(common + COMMON_QUEUE_DEVICE, setup->used_dma);
    /* 4.1.4.3.2: last, and never written with 0. */
    mmio_write16(common + COMMON_QUEUE_ENABLE, 1);
    return true;
}

/* ---- device configuration ---- */

static uint32_t config_read(struct virtio_transport *transport, uint32_t offset, unsigned bytes)
{
    volatile uint8_t *at = pci_of(transport)->device + offset;

    switch (bytes) {
    case 1:
        return mmio_read8(at);
    case 2:
        return mmio_read16(at);
    default:
        return mmio_read32(at);
    }
}

static uint32_t config_generation(struct virtio_transport *transport)
{
    return mmio_read8(pci_of(transport)->common + COMMON_CONFIG_GENERATION);
}

static void close(struct virtio_transport *transport)
{
    struct virtio_pci *pci = pci_of(transport);

    if (pci->n_vectors != 0) {
        pci_msix_enable(&pci->function, &pci->msix, false);
    }
    pci_command(&pci->function, 0, PCI_COMMAND_MASTER);
}

static const struct virtio_transport_ops pci_ops = {
    .status = get_status,
    .set_status = set_status,
    .device_features = device_features,
    .set_driver_features = set_driver_features,
    .setup_interrupts = setup_interrupts,
    .queue_size = queue_size,
    .queue_enable = queue_enable,
    .config_read = config_read,
    .config_generation = config_generation,
    .close = close,
};

/* ---- finding it ---- */

/* Neither revision nor subsystem plays a part (4.1.2.1). */
static bool is_virtio_net(const struct pci_function *f)
{
    return f->vendor_id == VIRTIO_VENDOR_ID &&
           (f->device_id == VIRTIO_NET_DEVICE_ID || f->device_id == VIRTIO_NET_TRANSITIONAL_ID);
}

/* One capability: where the structure lies, or not present when it cannot be there. */
static struct region read_region(const struct pci_function *f, uint8_t cap, uint32_t min_bytes)
{
    uint8_t bar = pci_read8(f, (uint16_t)(cap + CAP_BAR));
    uint32_t offset = pci_read32(f, (uint16_t)(cap + CAP_OFFSET));
    uint32_t bytes = pci_read32(f, (uint16_t)(cap + CAP_LENGTH));
    uint64_t phys, bar_bytes;

    /* 4.1.4.1: BAR numbers above 5 are reserved. An I/O BAR is passed over too. */
    if (bar >= PCI_BARS || bytes < min_bytes || !pci_memory_bar(f, bar, &phys, &bar_bytes) ||
        offset > bar_bytes || bytes > bar_bytes - offset) {
        return (struct region){0};
    }
    return (struct region){.present = true, .phys = phys + offset, .bytes = bytes};
}

/* The first usable instance of a structure (4.1.4.1). A longer capability than ours is fine. */
static struct region find_region(const struct pci_function *f, enum cfg_type type,
                                 uint32_t min_bytes, uint8_t *cap_out)
{
    uint8_t cap_bytes = type == CFG_NOTIFY ? CAP_NOTIFY_BYTES : CAP_BYTES;
    uint8_t cap = 0;

    for (unsigned i = 0; i < CONFIG_BYTES / CAP_BYTES; i++) {
        cap = pci_next_capability(f, PCI_CAP_ID_VENDOR, cap);
        if (cap == 0) {
            break;
        }
        if (cap + cap_bytes > (int)CONFIG_BYTES ||
            pci_read8(f, (uint16_t)(cap + CAP_LEN)) < cap_bytes ||
            pci_read8(f, (uint16_t)(cap + CAP_CFG_TYPE)) != type) {
            continue;
        }
        struct region region = read_region(f, cap, min_bytes);
        if (region.present) {
            *cap_out = cap;
            return region;
        }
    }
    return (struct region){0};
}

static bool map_structures(struct virtio_pci *pci)
{
    const struct pci_function *f = &pci->function;
    uint8_t cap = 0;
    struct region common = find_region(f, CFG_COMMON, COMMON_BYTES, &cap);
    struct region device = find_region(f, CFG_DEVICE, 1, &cap);

    pci->notify = find_region(f, CFG_NOTIFY, sizeof(uint16_t), &cap);
    if (!common.present || !pci->notify.present) {
        return false;
    }
    pci->notify_multiplier = pci_read32(f, (uint16_t)(cap + CAP_MULTIPLIER));
    /* No more than is needed, however long it says to be (4.1.4.1). */
    pci->common = mem_map_mmio(common.phys, COMMON_BYTES);
    if (device.present) {
        uint32_t bytes = device.bytes < CONFIG_BYTES ? device.bytes : CONFIG_BYTES;
        pci->device = mem_map_mmio(device.phys, bytes);
        pci->base.config_bytes = pci->device != NULL ? bytes : 0;
    }
    return pci->common != NULL;
}

struct virtio_transport *virtio_pci_open(unsigned nth, const char **why)
{
    struct virtio_pci *pci = mem_alloc(sizeof(*pci), CPU_CACHE_LINE_BYTES);

    if (pci == NULL) {
        *why = "no memory for the PCI transport";
        return NULL;
    }
    if (!pci_find(nth, is_virtio_net, &pci->function)) {
        *why = "no virtio network device on PCI: give the machine one (-device virtio-net-pci)";
        return NULL;
    }
    pci->base.ops = &pci_ops;
    if (!map_structures(pci)) {
        *why = "the virtio network device has no modern interface: disable-modern must be off";
        return NULL;
    }
    pci_command(&pci->function, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_NO_INTX, 0);
    open_vectors(pci);
    return &pci->base;
}

unsigned virtio_pci_count(void)
{
    return pci_count(is_virtio_net);
}
