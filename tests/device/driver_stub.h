/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A driver without a device, for programs in which net/ runs on a driver of their own: what that
 * answers whatever the program wants to see of net/. One file of a program includes it and defines
 * the rest of drivers/virtio_net.h itself: close, add, flush, reclaim, reception, arming.
 *
 *     net/ -> drivers/virtio_net.h -> [stub] and the program's own functions
 */
#ifndef SLUICE_TESTS_DRIVER_STUB_H
#define SLUICE_TESTS_DRIVER_STUB_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "drivers/virtio_net.h"

static struct {
    struct virtio_net_config config; /* as net/ gave it at open */
    struct virtio_net_info info;
    uint32_t pool_bufs;
    bool stopped;
} stub = {
    .info =
        {
            .mac = {0x52, 0x54, 0, 0, 0, 1},
            .mtu_bytes = 1500,
            .link_up = true,
            .can_csum = true,
        },
};

struct virtio_net *virtio_net_open(unsigned nth, const struct virtio_net_config *config,
                                   const char **why)
{
    (void)nth;
    (void)why;
    stub.config = *config;
    return (struct virtio_net *)&stub;
}

struct virtio_net *virtio_net_open_transport(struct virtio_transport *transport,
                                             const struct virtio_net_config *config,
                                             const char **why)
{
    (void)transport;
    return virtio_net_open(0, config, why);
}

const struct virtio_net_info *virtio_net_info(const struct virtio_net *dev)
{
    (void)dev;
    return &stub.info;
}

bool virtio_net_tx_stopped(const struct virtio_net *dev, unsigned pair)
{
    (void)dev;
    (void)pair;
    return stub.stopped;
}

bool virtio_net_tx_reserve(struct virtio_net *dev, unsigned pair, uint16_t descs)
{
    (void)dev;
    (void)pair;
    (void)descs;
    return true;
}

void virtio_net_tx_unreserve(struct virtio_net *dev, unsigned pair, uint16_t descs)
{
    (void)dev;
    (void)pair;
    (void)descs;
}

uint64_t virtio_net_next_deadline_ns(const struct virtio_net *dev, uint64_t now_ns)
{
    (void)dev;
    (void)now_ns;
    return UINT64_MAX;
}

void virtio_net_tx_stats(const struct virtio_net *dev, unsigned pair,
                         struct virtio_net_tx_stats *out)
{
    (void)dev;
    (void)pair;
    memset(out, 0, sizeof(*out));
}

void virtio_net_rx_stats(const struct virtio_net *dev, unsigned pair,
                         struct virtio_net_rx_stats *out)
{
    (void)dev;
    (void)pair;
    memset(out, 0, sizeof(*out));
    out->pool_bufs = stub.pool_bufs;
}

#endif
