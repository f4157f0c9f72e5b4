/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Bringing the device up: the order of VIRTIO 1.x 3.1.1, for the first time and after a reset.
 */
#include "drivers/virtio_net_impl.h"

#include "boot/machine.h"

static bool has(const struct virtio_net *dev, unsigned bit)
{
    return (dev->info.features_accepted & FEATURE(bit)) != 0;
}

/*
 * Raises a status bit; the others stay (2.1.1): those that this driver has set, by its own account.
 * What the register shows is not written back, or a device that shows DRIVER_OK early would be live
 * before its queues are there. Only NEEDS_RESET is the device's to set, and stays as it is.
 */
static void raise_status(struct virtio_net *dev, unsigned bit)
{
    struct virtio_transport *t = dev->transport;

    dev->status |= (uint8_t)bit;
    t->ops->set_status(t, dev->status | (t->ops->status(t) & VIRTIO_STATUS_NEEDS_RESET));
}

static bool fail(struct virtio_net *dev, const char **why, const char *reason)
{
    raise_status(dev, VIRTIO_STATUS_FAILED);
    *why = reason;
    return false;
}

/*
 * Copies bytes of the configuration, all of one generation (2.5.1): a change between the two looks
 * at the generation makes it start again. False: out of reach, or never stable.
 */
static bool config_copy(struct virtio_net *dev, uint32_t offset, unsigned bytes_each, unsigned n,
                        uint32_t *out)
{
    struct virtio_transport *t = dev->transport;

    if (offset + bytes_each * n > t->config_bytes) {
        return false;
    }
    for (unsigned try = 0; try < CONFIG_READ_TRIES; try++) {
        uint32_t before = t->ops->config_generation(t);
        for (unsigned i = 0; i < n; i++) {
            out[i] = t->ops->config_read(t, offset + i * bytes_each, bytes_each);
        }
        if (t->ops->config_generation(t) == before) {
            return true;
        }
    }
    dev->faults[VIRTIO_NET_FAULT_CONFIG_UNSTABLE]++;
    return false;
}

bool config_status(struct virtio_net *dev, uint16_t *status)
{
    uint32_t value;

    *status = VIRTIO_NET_S_LINK_UP;
    if (!has(dev, VIRTIO_NET_F_STATUS)) {
        return true; /* 5.1.4.2: without STATUS the link is up */
    }
    if (!config_copy(dev, VIRTIO_NET_CFG_STATUS, 2, 1, &value)) {
        return false;
    }
    *status = (uint16_t)value;
    return true;
}

/* The device's address. False: it offers none, or none that can be read whole. */
static bool read_mac(struct virtio_net *dev, uint64_t offered)
{
    uint32_t bytes[6];

    if ((offered & FEATURE(VIRTIO_NET_F_MAC)) == 0 ||
        !config_copy(dev, VIRTIO_NET_CFG_MAC, 1, 6, bytes)) {
        return false;
    }
    for (unsigned i = 0; i < 6; i++) {
        dev->info.mac[i] = (uint8_t)bytes[i];
    }
    return true;
}

static void choose_mac(struct virtio_net *dev)
{
    for (unsigned i = 0; i < 6; i++) {
        dev->info.mac[i] = machine_random32() & 0xff;
    }
    /* 5.1.5: locally administered, not a group */
    dev->info.mac[0] = (uint8_t)((dev->info.mac[0] & ~1u) | 2u);
}

bool device_reset(struct virtio_net *dev)
{
    dev->status = 0;
    return virtio_reset(dev->transport, RESET_TIMEOUT_NS);
}

/* Steps 1 to 3: a reset first, since firmware may have driven the device before (3.1.1). */
static bool wake_device(struct virtio_net *dev, const char **why)
{
    if (!device_reset(dev)) {
        *why = "the device does not end its reset: its status register stays above 0";
        return false;
    }
    raise_status(dev, VIRTIO_STATUS_ACKNOWLEDGE);
    raise_status(dev, VIRTIO_STATUS_DRIVER);
    return true;
}

/* Is all that was set there when read back? */
static bool status_kept(struct virtio_net *dev, uint8_t bits, const char **why)
{
    return (bits & dev->status) == dev->status ||
           fail(dev, why, "the device's status register does not keep what is written to it");
}

/* Steps 4 to 6. FEATURES_OK must still be there when read back, or the device refuses the set. */
static bool confirm_features(struct virtio_net *dev, uint64_t accepted, const char **why)
{
    struct virtio_transport *t = dev->transport;

    t->ops->set_driver_features(t, accepted);
    raise_status(dev, VIRTIO_STATUS_FEATURES_OK);
    uint8_t bits = t->ops->status(t);
    if ((bits & VIRTIO_STATUS_FEATURES_OK) == 0) {
        return fail(dev, why, "the device refuses the features that it offered itself");
    }
    return status_kept(dev, bits, why);
}

static bool negotiate(struct virtio_net *dev, const struct virtio_net_config *config,
                      const char **why)
{
    struct virtio_transport *t = dev->transport;
    uint64_t offered = t->ops->device_features(t);
    uint32_t device_mtu = 0;

    if ((offered & FEATURE(VIRTIO_F_VERSION_1)) == 0) {
        return fail(dev, why,
                    "the device is legacy only: give it disable-legacy=on or =off, "
                    "disable-modern=off");
    }
    bool mtu_usable = (offered & FEATURE(VIRTIO_NET_F_MTU)) != 0 &&
                      config_copy(dev, VIRTIO_NET_CFG_MTU, 2, 1, &device_mtu) &&
                      device_mtu >= MTU_MIN_BYTES;
    /* Read before it is accepted: who takes MAC must use the device's address (5.1.4.2). */
    bool mac_usable = read_mac(dev, offered);
    uint64_t accepted = features_negotiate(config, offered, mtu_usable, mac_usable, &dev->info);
    uint32_t mtu = config->mtu_bytes != 0 ? config->mtu_bytes
                   : mtu_usable           ? device_mtu
                                          : MTU_DEFAULT_BYTES;

    if (mtu_usable && mtu > device_mtu) {
        mtu = device_mtu;
    }
    if (mtu < MTU_MIN_BYTES) {
        return fail(dev, why,
                    "the MTU asked for is below 68 bytes, the least that IPv4 works with");
    }
    dev->info.mtu_bytes = (uint16_t)mtu;
    dev->rx.packet_bytes = (mtu_usable && device_mtu > mtu ? device_mtu : mtu) + ETH_HEADER_BYTES;
    dev->info.hdr_bytes = sizeof(struct virtio_net_hdr);
    return confirm_features(dev, accepted, why);
}

static bool enable_queue(struct virtio_net *dev, uint16_t queue, struct virtqueue *vq,
                         const char **why)
{
    struct virtio_transport *t = dev->transport;
    uint64_t ring = vq->memory.ring_dma;
    struct virtio_queue_setup setup = {
        .size_descs = vq->size,
        .desc_dma = ring,
        .avail_dma = ring + vq_avail_offset_bytes(vq->size),
        .used_dma = ring + vq_used_offset_bytes(vq->size),
    };

    if (!t->ops->queue_enable(t, queue, &setup, &vq->doorbell)) {
        return fail(dev, why, "the device refuses a queue or its interrupt vector");
    }
    return true;
}

/* Step 7 and 8. Only after DRIVER_OK may a queue be kicked, and RX has buffers to announce. */
static bool go_live(struct virtio_net *dev, const char **why)
{
    struct virtio_transport *t = dev->transport;
    uint16_t status;

    if (!enable_queue(dev, VIRTIO_NET_RX_QUEUE, &dev->rx.vq, why) ||
        !enable_queue(dev, VIRTIO_NET_TX_QUEUE, &dev->tx.vq, why)) {
        return false;
    }
    if (!config_status(dev, &status)) {
        return fail(dev, why, "the device's configuration space is too short or never stable");
    }
    dev->info.link_up = (status & VIRTIO_NET_S_LINK_UP) != 0;
    rx_refill(dev);
    raise_status(dev, VIRTIO_STATUS_DRIVER_OK);
    /* NEEDS_RESET right away: a device that cannot work with what it was given (2.1.2). */
    uint8_t bits = t->ops->status(t);
    if ((bits & VIRTIO_STATUS_NEEDS_RESET) != 0) {
        return fail(dev, why, "the device asked for a reset as soon as it was started");
    }
    if (!status_kept(dev, bits, why)) {
        return false;
    }
    rx_kick(dev);
    return true;
}

static bool ring_size(struct virtio_net *dev, uint16_t queue, uint16_t *size, const char **why)
{
    *size = dev->transport->ops->queue_size(dev->transport, queue);
    if (*size == 0 || (*size & (*size - 1)) != 0 || *size > VQ_MAX_SIZE_DESCS) {
        return fail(dev, why, "the device has no receive or transmit queue of a possible size");
    }
    return true;
}

static bool make_rings(struct virtio_net *dev, const struct virtio_net_config *config,
                       const char **why)
{
    uint16_t rx_size, tx_size;

    if (!ring_size(dev, VIRTIO_NET_RX_QUEUE, &rx_size, why) ||
        !ring_size(dev, VIRTIO_NET_TX_QUEUE, &tx_size, why)) {
        return false;
    }
    if (config->tx_size_descs != 0) {
        if (config->tx_size_descs > tx_size ||
            (config->tx_size_descs & (config->tx_size_descs - 1)) != 0) {
            return fail(dev, why, "tx.size must be a power of two, not above the device's ring");
        }
        tx_size = config->tx_size_descs;
    }
    if (!rx_allocate(dev, rx_size, why) || !tx_allocate(dev, config, tx_size, why)) {
        raise_status(dev, VIRTIO_STATUS_FAILED);
        return false;
    }
    return true;
}

static bool bring_up(struct virtio_net *dev, const struct virtio_net_config *config,
                     const char **why)
{
    struct virtio_transport *t = dev->transport;

    if (!wake_device(dev, why) || !negotiate(dev, config, why)) {
        return false;
    }
    if (!t->ops->setup_interrupts(t)) {
        return fail(dev, why, "the device refuses every interrupt vector");
    }
    dev->rx.irq.line = t->queue_line[VIRTIO_NET_RX_QUEUE];
    dev->tx.irq.line = t->queue_line[VIRTIO_NET_TX_QUEUE];
    dev->config_irq.line = t->config_line;
    dev->rx.irq.shared = dev->tx.irq.shared = dev->rx.irq.line == dev->tx.irq.line;
    dev->info.mac_from_device = has(dev, VIRTIO_NET_F_MAC);
    if (!dev->info.mac_from_device) {
        choose_mac(dev);
    }
    return make_rings(dev, config, why) && go_live(dev, why);
}

bool device_start(struct virtio_net *dev, const struct virtio_net_config *config, const char **why)
{
    if (bring_up(dev, config, why)) {
        return true;
    }
    /* Nothing of ours may stay known to a device that nobody drives. */
    (void)device_reset(dev);
    return false;
}

/* The device as it was, with the same features, or not at all: reset, and what was posted to it is
 * for the caller to take back. */
bool device_restart(struct virtio_net *dev)
{
    struct virtio_transport *t = dev->transport;
    uint64_t accepted = dev->info.features_accepted;
    const char *why;

    if (!wake_device(dev, &why)) {
        return false; /* closed: a second reset would only wait as long again */
    }
    if ((accepted & ~t->ops->device_features(t)) == 0 && confirm_features(dev, accepted, &why) &&
        t->ops->setup_interrupts(t) && go_live(dev, &why)) {
        return true;
    }
    (void)device_reset(dev);
    return false;
}
