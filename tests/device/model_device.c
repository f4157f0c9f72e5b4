/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/device/model_device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/mem.h"
#include "tests/device/seams.h"

#define DOORBELL_PHYS  0xfeb00000ull
#define DOORBELL_BYTES 4u

static void violate(struct model_device *dev, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void violate(struct model_device *dev, const char *format, ...)
{
    va_list args;

    dev->violations++;
    va_start(args, format);
    fputs("model device: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static bool accepted(const struct model_device *dev, unsigned bit)
{
    return (dev->accepted & FEATURE(bit)) != 0;
}

/* ---- transport ---- */

static struct model_device *model_of(struct virtio_transport *transport)
{
    return (struct model_device *)((char *)transport - offsetof(struct model_device, base));
}

static uint8_t status(struct virtio_transport *transport)
{
    return model_of(transport)->status;
}

static void set_status(struct virtio_transport *transport, uint8_t value)
{
    struct model_device *dev = model_of(transport);

    if (value == 0) {
        dev->resets++;
        dev->status = dev->opt.reset_never ? dev->status : 0;
        for (unsigned i = 0; i < 2; i++) {
            dev->q[i].enabled = false;
            dev->q[i].n_held = 0;
        }
        return;
    }
    if ((value & dev->status) != dev->status) {
        violate(dev, "CORE-DRV-STAT-02: status %#x after %#x", value, dev->status);
    }
    if ((value & VIRTIO_STATUS_FEATURES_OK) != 0 && dev->opt.refuse_features) {
        value &= (uint8_t)~VIRTIO_STATUS_FEATURES_OK;
    }
    dev->status = value;
}

static uint64_t device_features(struct virtio_transport *transport)
{
    return model_of(transport)->opt.features;
}

static void set_driver_features(struct virtio_transport *transport, uint64_t features)
{
    struct model_device *dev = model_of(transport);

    dev->accepted = features;
    if ((features & ~dev->opt.features) != 0) {
        violate(dev, "CORE-DRV-FEAT-01: took %#llx", (unsigned long long)features);
    }
    if ((dev->status & VIRTIO_STATUS_FEATURES_OK) != 0) {
        violate(dev, "CORE-DRV-INIT-08: features after FEATURES_OK");
    }
}

static bool setup_interrupts(struct virtio_transport *transport)
{
    return !model_of(transport)->opt.refuse_vector;
}

static uint16_t queue_size(struct virtio_transport *transport, uint16_t queue)
{
    return queue < 2 ? model_of(transport)->opt.size_descs[queue] : 0;
}

static bool queue_enable(struct virtio_transport *transport, uint16_t queue,
                         const struct virtio_queue_setup *setup, struct vq_doorbell *doorbell)
{
    struct model_device *dev = model_of(transport);
    struct model_queue *q = &dev->q[queue];

    if (dev->opt.refuse_queue) {
        return false;
    }
    if ((dev->status & VIRTIO_STATUS_DRIVER_OK) != 0) {
        violate(dev, "CORE-DRV-INIT-10: queue %u after DRIVER_OK", queue);
    }
    memset(q, 0, sizeof(*q));
    q->enabled = true;
    q->size = setup->size_descs;
    q->desc = seam_ram(setup->desc_dma, sizeof(struct vq_desc) * q->size);
    q->avail = seam_ram(setup->avail_dma, 6u + 2u * q->size);
    q->used = seam_ram(setup->used_dma, 6u + 8u * q->size);
    if (q->desc == NULL || q->avail == NULL || q->used == NULL) {
        violate(dev, "queue %u: rings outside of memory", queue);
        q->enabled = false;
    }
    *doorbell = (struct vq_doorbell){
        .addr = mem_map_mmio(DOORBELL_PHYS + (uint64_t)queue * DOORBELL_BYTES, 2),
        .value = queue,
    };
    return true;
}

static uint32_t config_read(struct virtio_transport *transport, uint32_t offset, unsigned bytes)
{
    struct model_device *dev = model_of(transport);
    uint8_t space[12] = {0};
    uint32_t value = 0;

    memcpy(space, dev->opt.mac, 6);
    memcpy(space + VIRTIO_NET_CFG_STATUS, &dev->link_status, 2);
    memcpy(space + VIRTIO_NET_CFG_MTU, &dev->opt.mtu_bytes, 2);
    dev->config_reads++;
    if (dev->opt.config_changes != 0) {
        dev->opt.config_changes--;
        dev->generation++;
    }
    if (offset + bytes > sizeof(space)) {
        violate(dev, "config read at %u", offset);
        return 0;
    }
    memcpy(&value, space + offset, bytes);
    return value;
}

static uint32_t config_generation(struct virtio_transport *transport)
{
    return model_of(transport)->generation;
}

static void model_close(struct virtio_transport *transport)
{
    model_of(transport)->off_bus = true;
}

static const struct virtio_transport_ops model_ops = {
    .status = status,
    .set_status = set_status,
    .device_features = device_features,
    .set_driver_features = set_driver_features,
    .setup_interrupts = setup_interrupts,
    .queue_size = queue_size,
    .queue_enable = queue_enable,
    .config_read = config_read,
    .config_generation = config_generation,
    .close = model_close,
};

/* ---- rings ---- */

static uint16_t load16(const uint16_t *at)
{
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

static void interrupt(struct model_device *dev, unsigned queue)
{
    struct irq_line *line = dev->base.queue_line[queue];

    dev->q[queue].interrupts++;
    if (line != NULL && !dev->drop_interrupts) {
        line->count++;
    }
}

unsigned model_take(struct model_device *dev, unsigned queue)
{
    struct model_queue *q = &dev->q[queue];

    if (!q->enabled || (dev->status & VIRTIO_STATUS_DRIVER_OK) == 0) {
        return 0;
    }
    while (q->avail_seen != load16(&q->avail->idx)) {
        uint16_t head = q->avail->ring[q->avail_seen % q->size];
        if (head >= q->size || q->mine[head] || q->n_held >= q->size) {
            violate(dev, "SPL-DRV-GEN-02: queue %u: head %u is no free chain", queue, head);
            return q->n_held;
        }
        q->mine[head] = true;
        q->held[q->n_held++] = head;
        q->taken++;
        q->avail_seen++;
    }
    if (!q->notify_off) {
        model_notify(dev, queue, true);
    }
    if (accepted(dev, VIRTIO_F_EVENT_IDX) && load16(&q->avail->flags) != 0) {
        violate(dev, "SPL-DRV-UNS-03: flags %u", q->avail->flags);
    }
    return q->n_held;
}

void model_notify(struct model_device *dev, unsigned queue, bool on)
{
    struct model_queue *q = &dev->q[queue];

    q->notify_off = !on;
    if (!accepted(dev, VIRTIO_F_EVENT_IDX)) {
        q->used->flags = (uint16_t)(on ? 0 : VQ_USED_F_NO_NOTIFY);
        return;
    }
    uint16_t event = (uint16_t)(q->avail_seen + (on ? 0 : 0x8000));
    memcpy(&q->used->ring[q->size], &event, sizeof(event));
}

/* Removes one of the held heads, by the order that the device is set to. */
static uint16_t pick(struct model_device *dev, struct model_queue *q)
{
    unsigned at = 0;

    if (dev->opt.order == MODEL_REVERSED) {
        at = q->n_held - 1;
    } else if (dev->opt.order == MODEL_RANDOM) {
        dev->random = dev->random * 1664525u + 1013904223u;
        at = (dev->random >> 16) % q->n_held;
    }
    uint16_t head = q->held[at];
    memmove(&q->held[at], &q->held[at + 1], (q->n_held - at - 1) * sizeof(q->held[0]));
    q->n_held--;
    q->mine[head] = false;
    return head;
}

void model_use_raw(struct model_device *dev, unsigned queue, uint32_t id, uint32_t len_bytes)
{
    struct model_queue *q = &dev->q[queue];

    q->used->ring[q->used_idx % q->size] = (struct vq_used_elem){id, len_bytes};
    q->used_idx++;
    q->completed++;
}

void model_publish(struct model_device *dev, unsigned queue)
{
    struct model_queue *q = &dev->q[queue];
    uint16_t old = q->signalled;

    __atomic_store_n(&q->used->idx, q->used_idx, __ATOMIC_SEQ_CST);
    q->signalled = q->used_idx;
    if (accepted(dev, VIRTIO_F_EVENT_IDX)) {
        uint16_t event = load16(&q->avail->ring[q->size]);
        if ((uint16_t)(q->used_idx - event - 1) < (uint16_t)(q->used_idx - old)) {
            interrupt(dev, queue);
        }
    } else if ((load16(&q->avail->flags) & VQ_AVAIL_F_NO_INTERRUPT) == 0) {
        interrupt(dev, queue);
    }
}

/* ---- frames ---- */

struct walk {
    struct model_device *dev;
    struct model_queue *q;
    bool writable;
    uint8_t *bytes;
    uint32_t n_bytes, capacity;
    unsigned n_segs;
    void (*piece)(struct walk *walk, uint8_t *at, uint32_t len);
};

static void gather(struct walk *walk, uint8_t *at, uint32_t len)
{
    if (walk->n_bytes + len > walk->capacity) {
        violate(walk->dev, "a frame longer than %u", walk->capacity);
        return;
    }
    memcpy(walk->bytes + walk->n_bytes, at, len);
    walk->n_bytes += len;
}

static void scatter(struct walk *walk, uint8_t *at, uint32_t len)
{
    uint32_t left = walk->capacity - walk->n_bytes;

    len = len < left ? len : left;
    memcpy(at, walk->bytes + walk->n_bytes, len);
    walk->n_bytes += len;
}

static void walk_table(struct walk *walk, const struct vq_desc *table, uint32_t n, uint32_t at,
                       bool indirect)
{
    struct model_device *dev = walk->dev;

    for (;;) {
        struct vq_desc desc = table[at];
        if (++walk->n_segs > walk->q->size + 1u) {
            violate(dev, "SPL-DRV-IND-03: a chain longer than the ring");
            return;
        }
        if ((desc.flags & VQ_DESC_F_INDIRECT) != 0) {
            struct vq_desc *inner = seam_ram(desc.addr, desc.len);
            if (indirect || inner == NULL || !accepted(dev, VIRTIO_F_INDIRECT_DESC) ||
                (desc.flags & VQ_DESC_F_NEXT) != 0) {
                violate(dev, "SPL-DRV-IND-01: an indirect descriptor out of place");
                return;
            }
            walk->n_segs--;
            table = inner;
            n = desc.len / (uint32_t)sizeof(desc);
            at = 0;
            indirect = true;
            continue;
        }
        uint8_t *ram = seam_ram(desc.addr, desc.len);
        if (ram == NULL || desc.len == 0 ||
            ((desc.flags & VQ_DESC_F_WRITE) != 0) != walk->writable) {
            violate(dev, "a descriptor that is not memory, or not for this queue");
            return;
        }
        walk->piece(walk, ram, desc.len);
        if ((desc.flags & VQ_DESC_F_NEXT) == 0) {
            return;
        }
        at = desc.next;
        if (at >= n) {
            violate(dev, "a chain that leaves its table");
            return;
        }
    }
}

static void transmit(struct model_device *dev, uint16_t head)
{
    static uint8_t bytes[VIRTIO_NET_GSO_MAX_BYTES + VIRTIO_NET_HDR_MAX_BYTES];
    struct walk walk = {.dev = dev,
                        .q = &dev->q[MODEL_TX],
                        .bytes = bytes,
                        .capacity = sizeof(bytes),
                        .piece = gather};
    struct virtio_net_hdr hdr;

    walk_table(&walk, walk.q->desc, walk.q->size, head, false);
    if (walk.n_bytes < sizeof(hdr) + ETH_HEADER_BYTES) {
        violate(dev, "a frame of %u bytes", walk.n_bytes);
        return;
    }
    memcpy(&hdr, bytes, sizeof(hdr));
    if (hdr.num_buffers != 0) {
        violate(dev, "NET-DRV-TX-02: num_buffers %u", hdr.num_buffers);
    }
    if (hdr.flags != 0 && !accepted(dev, VIRTIO_NET_F_CSUM)) {
        violate(dev, "NET-DRV-TX-03: flags %u", hdr.flags);
    }
    if (dev->on_frame != NULL) {
        dev->on_frame(dev->ctx, &hdr, bytes + sizeof(hdr), walk.n_bytes - (uint32_t)sizeof(hdr));
    }
}

unsigned model_complete(struct model_device *dev, unsigned n)
{
    struct model_queue *q = &dev->q[MODEL_TX];
    unsigned done = 0;

    while (done < n && q->n_held != 0) {
        uint16_t head = pick(dev, q);
        transmit(dev, head);
        model_use_raw(dev, MODEL_TX, head, 0);
        done++;
        if (dev->opt.batch != 0 && done % dev->opt.batch == 0) {
            model_publish(dev, MODEL_TX);
        }
    }
    if (done != 0) {
        model_publish(dev, MODEL_TX);
    }
    return done;
}

void model_serve(struct model_device *dev)
{
    model_take(dev, MODEL_RX);
    while (model_take(dev, MODEL_TX) != 0) {
        model_complete(dev, UINT32_MAX);
    }
}

static uint32_t rx_capacity(struct model_device *dev, uint16_t head)
{
    return dev->q[MODEL_RX].desc[head].len;
}

bool model_receive(struct model_device *dev, struct virtio_net_hdr hdr, const void *frame,
                   uint32_t len_bytes)
{
    struct model_queue *q = &dev->q[MODEL_RX];
    uint32_t total = len_bytes + (uint32_t)sizeof(hdr);
    uint32_t room = 0;
    unsigned n = 0;

    model_take(dev, MODEL_RX);
    while (n < q->n_held && room < total && (n == 0 || accepted(dev, VIRTIO_NET_F_MRG_RXBUF))) {
        room += rx_capacity(dev, q->held[n++]);
    }
    if (room < total) {
        return false;
    }
    uint8_t *bytes = malloc(sizeof(hdr) + (size_t)len_bytes);
    if (bytes == NULL) {
        abort();
    }
    hdr.num_buffers = hdr.num_buffers != 0 ? hdr.num_buffers : (uint16_t)n;
    memcpy(bytes, &hdr, sizeof(hdr));
    memcpy(bytes + sizeof(hdr), frame, len_bytes);
    struct walk walk = {
        .dev = dev, .q = q, .writable = true, .bytes = bytes, .capacity = total, .piece = scatter};
    while (n-- > 0) {
        uint16_t head = q->held[0];
        uint32_t before = walk.n_bytes;
        memmove(&q->held[0], &q->held[1], --q->n_held * sizeof(q->held[0]));
        q->mine[head] = false;
        walk.n_segs = 0;
        walk_table(&walk, q->desc, q->size, head, false);
        model_use_raw(dev, MODEL_RX, head, walk.n_bytes - before);
    }
    free(bytes);
    model_publish(dev, MODEL_RX);
    return true;
}

/* ---- events ---- */

static void mmio_write(void *ctx, uint64_t phys, unsigned bytes, uint32_t value)
{
    struct model_device *dev = ctx;
    unsigned queue = (unsigned)((phys - DOORBELL_PHYS) / DOORBELL_BYTES);

    if (queue >= 2 || bytes != 2 || value != queue ||
        (dev->status & VIRTIO_STATUS_DRIVER_OK) == 0) {
        violate(dev, "PCI-DRV-NTY-03: kick %u at %#llx", value, (unsigned long long)phys);
        return;
    }
    if (dev->drop_kicks) {
        return;
    }
    dev->q[queue].kicks++;
    if (dev->opt.serve && !dev->serving) {
        dev->serving = true;
        if (model_take(dev, queue) != 0 && queue == MODEL_TX) {
            model_complete(dev, UINT32_MAX);
        }
        dev->serving = false;
    }
}

static void shared(void *ctx, const volatile void *addr, unsigned bytes, bool is_store)
{
    struct model_device *dev = ctx;

    (void)bytes;
    if (dev->on_access != NULL && !dev->serving) {
        dev->serving = true;
        dev->on_access(dev->ctx, addr, is_store);
        dev->serving = false;
    }
}

static void relax(void *ctx)
{
    struct model_device *dev = ctx;

    model_take(dev, MODEL_TX);
    model_complete(dev, 1);
}

void model_set_link(struct model_device *dev, bool up)
{
    dev->link_status = up ? VIRTIO_NET_S_LINK_UP : 0;
    dev->generation++;
    if (dev->base.config_line != NULL) {
        dev->base.config_line->count++;
    }
}

void model_needs_reset(struct model_device *dev)
{
    dev->status |= VIRTIO_STATUS_NEEDS_RESET;
    if (dev->base.config_line != NULL) {
        dev->base.config_line->count++;
    }
}

void model_options_default(struct model_options *opt)
{
    *opt = (struct model_options){
        .features = FEATURE(VIRTIO_F_VERSION_1) | FEATURE(VIRTIO_F_INDIRECT_DESC) |
                    FEATURE(VIRTIO_F_EVENT_IDX) | FEATURE(VIRTIO_NET_F_CSUM) |
                    FEATURE(VIRTIO_NET_F_GUEST_CSUM) | FEATURE(VIRTIO_NET_F_HOST_TSO4) |
                    FEATURE(VIRTIO_NET_F_GUEST_TSO4) | FEATURE(VIRTIO_NET_F_MRG_RXBUF) |
                    FEATURE(VIRTIO_NET_F_MAC) | FEATURE(VIRTIO_NET_F_STATUS),
        .size_descs = {64, 64},
        .mac = {0x52, 0x54, 0, 1, 2, 3},
        .mtu_bytes = 1500,
        .link_up = true,
        .config_bytes = 12,
    };
}

void model_init(struct model_device *dev, const struct model_options *opt)
{
    struct seam_hooks hooks = {
        .ctx = dev, .mmio_write = mmio_write, .shared = shared, .relax = relax};

    seam_reset();
    seam_hook(&hooks);
    memset(dev, 0, sizeof(*dev));
    dev->opt = *opt;
    dev->base.ops = &model_ops;
    dev->base.config_bytes = opt->config_bytes;
    dev->link_status = opt->link_up ? VIRTIO_NET_S_LINK_UP : 0;
    dev->status = VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER; /* firmware used it before */
    if (!opt->no_msix) {
        dev->base.config_line = &dev->lines[0];
        dev->base.queue_line[MODEL_RX] = &dev->lines[opt->one_vector ? 0 : 1];
        dev->base.queue_line[MODEL_TX] = &dev->lines[opt->one_vector ? 0 : 2];
    }
}
