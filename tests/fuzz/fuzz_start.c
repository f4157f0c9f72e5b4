/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Start-up: every answer of the transport comes from the input, or is what a sane device says.
 *
 *     virtio_net_open_transport  ->  status, features, sizes, vectors, queues, configuration
 */
#include <stdio.h>
#include <stdlib.h>

#include "boot/mem.h"
#include "drivers/virtio_net_impl.h"
#include "tests/device/seams.h"
#include "tests/fuzz/input.h"

#define CHECK(holds) (((holds)) ? (void)0 : fail(__LINE__, #holds))
/* Rings this long at most: pools of more only cost time. */
#define MAX_LOG_SIZE 6u

static struct {
    struct input in;
    struct irq_line lines[3];
    uint8_t status;
    uint64_t offered, accepted;
    uint16_t size[2];
    bool reset_last; /* the last write of the status was a reset */
    bool driver_ok;
} device;

static _Noreturn void fail(int line, const char *what)
{
    fprintf(stderr, "fuzz_start.c:%d: does not hold: %s\n", line, what);
    abort();
}

/* One answer in four is a lie, while there is input. */
static uint64_t answer(uint64_t sane, unsigned bytes)
{
    if (device.in.left == 0 || (in8(&device.in) & 3u) != 0) {
        return sane;
    }
    return in_bytes(&device.in, bytes);
}

static uint8_t status(struct virtio_transport *transport)
{
    (void)transport;
    return (uint8_t)answer(device.status, 1);
}

static void set_status(struct virtio_transport *transport, uint8_t value)
{
    (void)transport;
    /* One bit at a time and in order, whatever was read; NEEDS_RESET is the device's. */
    const unsigned set = value & ~VIRTIO_STATUS_NEEDS_RESET;
    const unsigned added = set & ~device.status;
    CHECK(value == 0 || (device.status & ~set & ~VIRTIO_STATUS_NEEDS_RESET) == 0);
    CHECK((added & (added - 1)) == 0);
    CHECK(added == 0 || added == VIRTIO_STATUS_FAILED || set == 1 || set == 3 || set == 11 ||
          set == 15);
    device.status = value;
    device.reset_last = value == 0;
    device.driver_ok |= (value & VIRTIO_STATUS_DRIVER_OK) != 0;
}

static uint64_t features(struct virtio_transport *transport)
{
    (void)transport;
    device.offered =
        answer(device.offered, 8) | ((in8(&device.in) & 7u) != 0 ? FEATURE(VIRTIO_F_VERSION_1) : 0);
    return device.offered;
}

static void set_features(struct virtio_transport *transport, uint64_t value)
{
    (void)transport;
    CHECK((value & ~device.offered) == 0);
    CHECK((value & FEATURE(VIRTIO_F_VERSION_1)) != 0);
    device.accepted = value;
}

static bool setup_interrupts(struct virtio_transport *transport)
{
    (void)transport;
    return answer(1, 1) != 0;
}

static uint16_t queue_size(struct virtio_transport *transport, uint16_t queue)
{
    (void)transport;
    CHECK(queue < 2);
    uint16_t size = (uint16_t)answer(16, 2);
    bool power = (size & (size - 1)) == 0;
    device.size[queue] = power && size > 1u << MAX_LOG_SIZE ? 1u << MAX_LOG_SIZE : size;
    return device.size[queue];
}

static bool queue_enable(struct virtio_transport *transport, uint16_t queue,
                         const struct virtio_queue_setup *setup, struct vq_doorbell *doorbell)
{
    uint16_t n = setup->size_descs;

    (void)transport;
    CHECK(queue < 2 && !device.driver_ok && n != 0 && (n & (n - 1)) == 0);
    CHECK(n <= device.size[queue]);
    CHECK(seam_ram(setup->desc_dma, (size_t)16 * n) != NULL && setup->desc_dma % 16 == 0);
    CHECK(seam_ram(setup->avail_dma, 6u + 2u * n) != NULL && setup->avail_dma % 2 == 0);
    CHECK(seam_ram(setup->used_dma, 6u + 8u * n) != NULL && setup->used_dma % 4 == 0);
    *doorbell = (struct vq_doorbell){mem_map_mmio(0xfeb00000u, 2), queue};
    return answer(1, 1) != 0;
}

static uint32_t config_read(struct virtio_transport *transport, uint32_t offset, unsigned bytes)
{
    CHECK(offset + bytes <= transport->config_bytes && offset % bytes == 0);
    return (uint32_t)answer(offset == VIRTIO_NET_CFG_MTU ? 1500 : 1, bytes) &
           (bytes == 4 ? ~0u : (1u << 8 * bytes) - 1);
}

static uint32_t config_generation(struct virtio_transport *transport)
{
    (void)transport;
    return (uint32_t)answer(0, 1);
}

static void closed(struct virtio_transport *transport)
{
    (void)transport;
    CHECK(device.reset_last);
}

static const struct virtio_transport_ops transport_ops = {
    .status = status,
    .set_status = set_status,
    .device_features = features,
    .set_driver_features = set_features,
    .setup_interrupts = setup_interrupts,
    .queue_size = queue_size,
    .queue_enable = queue_enable,
    .config_read = config_read,
    .config_generation = config_generation,
    .close = closed,
};

/* ---- the user, who is told nothing ---- */

static void on_link(void *ctx, bool up)
{
    (void)ctx;
    (void)up;
}

static const struct virtio_net_ops ops = {.link = on_link};

static void relax(void *ctx)
{
    (void)ctx;
    seam_advance_ns(RESET_TIMEOUT_NS / 8);
}

static void kick(void *ctx, uint64_t phys, unsigned bytes, uint32_t value)
{
    (void)ctx;
    CHECK(device.driver_ok && bytes == 2 && phys == 0xfeb00000u && value < 2);
}

static void open_and_close(struct virtio_transport *transport)
{
    uint8_t form = in8(&device.in);
    struct virtio_net_config config = {.ops = &ops,
                                       .policy = form % VIRTIO_NET_POLICIES,
                                       .tx_size_descs = (form & 0x80) != 0 ? in16(&device.in) : 0,
                                       .mtu_bytes = (form & 0x40) != 0 ? in16(&device.in) : 0};
    const char *why = NULL;

    config.max_datagram_bytes = in16(&device.in) % 65508u;
    if ((form & 0x20) != 0) {
        seam_fail_alloc(in8(&device.in) % 12u);
    }
    struct virtio_net *dev = virtio_net_open_transport(transport, &config, &why);
    if (dev == NULL) {
        CHECK(why != NULL && why[0] != '\0' && strchr(why, '\n') == NULL);
        CHECK(device.reset_last || seam_allocs() <= 1);
        return;
    }
    const struct virtio_net_info *info = virtio_net_info(dev);
    CHECK(info->mtu_bytes >= MTU_MIN_BYTES && info->features_accepted == device.accepted);
    CHECK(info->n_refused <= VIRTIO_NET_MAX_REFUSALS && info->tx_max_segs >= 1);
    CHECK((device.accepted & ~device.offered) == 0 && device.driver_ok);
    CHECK(!virtio_net_tx_stopped(dev, 0));
    virtio_net_close(dev);
    CHECK(dev->rx.n_free == dev->rx.n_bufs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct virtio_transport transport = {&transport_ops, 12, NULL, {NULL, NULL}};

    seam_reset();
    seam_hook(&(struct seam_hooks){.mmio_write = kick, .relax = relax});
    memset(&device, 0, sizeof(device));
    device.in = (struct input){data, size};
    device.offered = 0x300818bab; /* what QEMU offers, and what this driver takes of it */
    uint8_t form = in8(&device.in);
    transport.config_bytes = (form & 0x80) != 0 ? form & 0x0fu : 12;
    for (unsigned i = 0; i < 3; i++) {
        (i == 0 ? &transport.config_line : transport.queue_line + i - 1)[0] =
            (form & 0x40) != 0 ? NULL : &device.lines[(form & 0x20) != 0 ? 0 : i];
    }
    open_and_close(&transport);
    seam_reset();
    return 0;
}
