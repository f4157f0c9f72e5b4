/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The backend's side of the vhost-user protocol: messages over a Unix socket set up memory and two
 * rings, which the strict device then serves.
 */
#ifndef SLUICE_TESTS_VHOST_USER_H
#define SLUICE_TESTS_VHOST_USER_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/device/strict_device.h"

#define VHOST_QUEUES      2u
#define VHOST_REGIONS_MAX 8u

struct vhost_region {
    uint64_t guest_addr, bytes, user_addr; /* user_addr: where QEMU has it, as rings are named */
    uint8_t *ptr;
};

struct vhost_queue {
    uint32_t size_descs;
    uint16_t base;
    uint64_t desc_user, used_user, avail_user;
    int kick_fd, call_fd;
    bool enabled, started;
};

struct vhost_backend {
    int socket;
    struct strict_device *dev;
    uint64_t features, protocol_features;
    struct vhost_region regions[VHOST_REGIONS_MAX];
    unsigned n_regions;
    struct vhost_queue queue[VHOST_QUEUES];
    uint64_t starts; /* times that a ring was taken into use */
    bool features_changed;
};

/* Takes one message and answers it. False: the other side has hung up or speaks nonsense. */
bool vhost_message(struct vhost_backend *backend);

/* len bytes of guest memory, NULL where there is none: a strict_memory. */
uint8_t *vhost_memory(void *backend, uint64_t guest_addr, uint64_t len_bytes);

/* Signals the driver's interrupt of a queue: a strict_device.queue_interrupt. */
void vhost_interrupt(void *backend, unsigned queue);

#endif
