/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Opening and closing a virtio network device, and what it is known by.
 */
#include "drivers/virtio_net_impl.h"

#include "boot/clock.h"
#include "boot/cpu.h"
#include "boot/mem.h"
#include "drivers/virtio_pci.h"

const char *const virtio_net_policy_names[VIRTIO_NET_POLICIES] = {
    [VIRTIO_NET_POLICY_THRESHOLD] = "threshold",
    [VIRTIO_NET_POLICY_WAKE_ON_ONE] = "wake-on-one",
    [VIRTIO_NET_POLICY_DROP] = "drop",
    [VIRTIO_NET_POLICY_SPIN] = "spin",
    [VIRTIO_NET_POLICY_NO_RECHECK] = "no-recheck",
};

const char *const virtio_net_tx_drop_names[VIRTIO_NET_TX_DROPS] = {
    [VIRTIO_NET_TX_DROP_RESERVE_EXHAUSTED] = "reserve_exhausted",
    [VIRTIO_NET_TX_DROP_POLICY] = "policy",
    [VIRTIO_NET_TX_DROP_MALFORMED] = "malformed",
};

const char *const virtio_net_rx_drop_names[VIRTIO_NET_RX_DROPS] = {
    [VIRTIO_NET_RX_DROP_SHORT] = "short",
    [VIRTIO_NET_RX_DROP_LONG] = "long",
    [VIRTIO_NET_RX_DROP_NUM_BUFFERS] = "num_buffers",
    [VIRTIO_NET_RX_DROP_BAD_HEADER] = "bad_header",
};

const char *const virtio_net_fault_names[VIRTIO_NET_FAULTS] = {
    [VIRTIO_NET_FAULT_USED_ID_RANGE] = "used_id_range",
    [VIRTIO_NET_FAULT_USED_ID_NOT_IN_FLIGHT] = "used_id_not_in_flight",
    [VIRTIO_NET_FAULT_USED_LEN] = "used_len",
    [VIRTIO_NET_FAULT_USED_IDX_JUMP] = "used_idx_jump",
    [VIRTIO_NET_FAULT_NUM_BUFFERS] = "num_buffers",
    [VIRTIO_NET_FAULT_HEADER] = "header",
    [VIRTIO_NET_FAULT_UNNEGOTIATED_FLAG] = "unnegotiated_flag",
    [VIRTIO_NET_FAULT_CONFIG_UNSTABLE] = "config_unstable",
    [VIRTIO_NET_FAULT_NEEDS_RESET] = "needs_reset",
    [VIRTIO_NET_FAULT_STATUS_LOST] = "status_lost",
    [VIRTIO_NET_FAULT_LOST_INTERRUPT] = "lost_interrupt",
    [VIRTIO_NET_FAULT_LOST_KICK] = "lost_kick",
};

struct virtio_net *virtio_net_open_transport(struct virtio_transport *transport,
                                             const struct virtio_net_config *config,
                                             const char **why)
{
    struct virtio_net *dev = mem_alloc(sizeof(*dev), CPU_CACHE_LINE_BYTES);

    if (dev == NULL) {
        *why = "no memory for the network driver";
        return NULL;
    }
    dev->transport = transport;
    dev->ops = config->ops;
    dev->ctx = config->ctx;
    dev->rx.vq.trace = dev->tx.vq.trace = config->trace;
    dev->rx.vq.number = VIRTIO_NET_RX_QUEUE;
    dev->tx.vq.number = VIRTIO_NET_TX_QUEUE;
    if (!device_start(dev, config, why)) {
        return NULL;
    }
    dev->safety_at_ns = clock_now_ns() + SAFETY_LOOK_NS;
    return dev;
}

struct virtio_net *virtio_net_open(unsigned nth, const struct virtio_net_config *config,
                                   const char **why)
{
    struct virtio_transport *transport = virtio_pci_open(nth, why);

    if (transport == NULL) {
        return NULL;
    }
    struct virtio_net *dev = virtio_net_open_transport(transport, config, why);
    if (dev == NULL) {
        transport->ops->close(transport);
        return NULL;
    }
    dev->info.n_devices = virtio_pci_count();
    return dev;
}

void virtio_net_close(struct virtio_net *dev)
{
    /* 3.3.1: the device lets go of the rings before the driver touches what was in them. */
    (void)device_reset(dev);
    dev->dead = true;
    tx_abort(dev);
    rx_take_back(dev);
    dev->transport->ops->close(dev->transport);
}

const struct virtio_net_info *virtio_net_info(const struct virtio_net *dev)
{
    return &dev->info;
}

const uint64_t *virtio_net_device_faults(const struct virtio_net *dev)
{
    return dev->faults;
}

uint64_t virtio_net_first_kick_ns(const struct virtio_net *dev)
{
    return dev->first_kick_ns;
}
