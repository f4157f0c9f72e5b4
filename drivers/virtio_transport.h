/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a virtio device driver needs of the bus its device sits on: status, features, queues,
 * configuration space, interrupts. VIRTIO 1.x sections 2 and 3; each transport (section 4) fills in
 * the functions.
 *
 * None of these is called on the way of a packet: a kick is a register write through the doorbell
 * that queue_enable hands out, and an interrupt is a counter.
 */
#ifndef SLUICE_DRIVERS_VIRTIO_TRANSPORT_H
#define SLUICE_DRIVERS_VIRTIO_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "boot/irq.h"
#include "drivers/virtqueue.h"

/* Device status bits (2.1). */
#define VIRTIO_STATUS_ACKNOWLEDGE 1u
#define VIRTIO_STATUS_DRIVER      2u
#define VIRTIO_STATUS_DRIVER_OK   4u
#define VIRTIO_STATUS_FEATURES_OK 8u
#define VIRTIO_STATUS_NEEDS_RESET 64u
#define VIRTIO_STATUS_FAILED      128u
#define VIRTIO_STATUS_NOBODY      0xffu /* what a read finds where no device answers */

/* Feature bits of every device type (6). */
#define VIRTIO_F_INDIRECT_DESC     28
#define VIRTIO_F_EVENT_IDX         29
#define VIRTIO_F_VERSION_1         32
#define VIRTIO_F_ACCESS_PLATFORM   33
#define VIRTIO_F_RING_PACKED       34
#define VIRTIO_F_IN_ORDER          35
#define VIRTIO_F_ORDER_PLATFORM    36
#define VIRTIO_F_SR_IOV            37
#define VIRTIO_F_NOTIFICATION_DATA 38
#define VIRTIO_F_NOTIF_CONFIG_DATA 39
#define VIRTIO_F_RING_RESET        40

/* A device without MSI-X is looked at this often instead. */
#define VIRTIO_POLLED_PERIOD_NS 1000000ull

struct virtio_transport;

struct virtio_queue_setup {
    uint16_t size_descs;
    uint64_t desc_dma, avail_dma, used_dma;
};

struct virtio_transport_ops {
    uint8_t (*status)(struct virtio_transport *);
    void (*set_status)(struct virtio_transport *, uint8_t status);
    uint64_t (*device_features)(struct virtio_transport *);
    void (*set_driver_features)(struct virtio_transport *, uint64_t features);

    /* Before any queue: the configuration vector. False: the device refused it. */
    bool (*setup_interrupts)(struct virtio_transport *);
    /* Largest size of the queue, 0: there is no such queue. */
    uint16_t (*queue_size)(struct virtio_transport *, uint16_t queue);
    /* Programs and enables the queue; *doorbell is what kicks it. False: refused. */
    bool (*queue_enable)(struct virtio_transport *, uint16_t queue,
                         const struct virtio_queue_setup *setup, struct vq_doorbell *doorbell);

    /* Device configuration space, one aligned access of 1, 2 or 4 bytes. */
    uint32_t (*config_read)(struct virtio_transport *, uint32_t offset, unsigned bytes);
    uint32_t (*config_generation)(struct virtio_transport *);

    /* The device reaches no memory and raises no interrupt any more. May be called twice. */
    void (*close)(struct virtio_transport *);
};

struct virtio_transport {
    const struct virtio_transport_ops *ops;
    uint32_t config_bytes; /* length of the configuration space */
    /* Interrupt counters. Several may be the same one when the device has few vectors. All NULL:
     * the device has none, and is polled. */
    struct irq_line *config_line;
    struct irq_line *queue_line[2];
};

/*
 * Resets the device and waits until it says so (4.1.4.3.1: status reads 0), at most `timeout_ns`.
 * False: it does not, and was closed: it reaches no memory any more.
 */
bool virtio_reset(struct virtio_transport *transport, uint64_t timeout_ns);

#endif
