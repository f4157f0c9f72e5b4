/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A device whose acts are the fuzzer's input, as the driver meets it: a transport that may refuse
 * each step of a start, memory that only the one or the other side may write, and a ring that is
 * answered with anything. It checks what the driver puts there.
 *
 *     driver -> [transport, rings of 16, doorbell] -> acts of the device <- input
 */
#ifndef SLUICE_TESTS_FUZZ_RING_DEVICE_H
#define SLUICE_TESTS_FUZZ_RING_DEVICE_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "boot/mem.h"
#include "drivers/virtio_net_impl.h"
#include "tests/device/seams.h"
#include "tests/fuzz/input.h"

#define RING_DESCS     16u
#define FRAMES         64u
#define SEG_BYTES      4096u
#define HEADROOM_BYTES 64u
#define DOORBELL_PHYS  0xfeb00000ull
#define RX             0u
#define TX             1u
#define PAIR           0u
/* Resets without a completion between them that a device may cost before it is given up. */
#define RESETS_BEFORE_DEATH 8u
/* Each is a reset and a new start, which begins with one. Beside those: the last one, after a start
 * that was refused, at opening, at the end of an input, at closing. */
#define RESETS_BESIDE 7u

#define CHECK(holds)                                                                               \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #holds);             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Where a frame is. */
enum rig_frame { AT_USER, ADDED, SHOWN_TO_DEVICE };

struct rig_queue {
    struct vq_desc *desc;
    struct vq_avail *avail;
    struct vq_used *used;
    uint16_t size, avail_seen, used_idx;
    uint16_t held[RING_DESCS];
    unsigned n_held;
    bool mine[RING_DESCS];
};

struct rig_area {
    uintptr_t from;
    size_t bytes;
};

/* What the device answers at the next start. */
struct rig_answers {
    bool reset_never, refuse_features, refuse_queue, refuse_vectors, needs_reset;
    uint8_t reset_reads, config_changes;
    uint64_t features_gone;
};

struct rig {
    struct virtio_transport base;
    struct irq_line lines[3];
    uint64_t features;
    uint8_t status, generation;
    uint16_t link_status;
    unsigned resets, reset_reads_left;
    unsigned fruitless; /* resets since something was completed */
    uint64_t done_at_reset;
    bool link_told;
    bool refused; /* a restart was refused by the device */
    bool tainted; /* a nonsense since the last reset: what the device has is unknown */
    struct rig_answers say;
    struct rig_queue q[2];
    uint16_t scribble_in; /* loads of the driver until one finds another value, 0: none */
    uint32_t scribble;
    /* What the driver shares, as it was opened: rings and tables to write, rings and buffers to
     * read. Kept by the rig, since it is asked at each access. */
    struct rig_area writable[3], readable[3];

    struct virtio_net *dev;
    enum rig_frame frames[FRAMES];
    unsigned n_out, n_added;
    uint64_t done, aborted, wakes, rx_packets;
    bool keep_rx;
    struct rx_buf *kept[2 * RING_DESCS];
    unsigned n_kept;
    uint16_t set_aside;
};

/* ---- the device as a transport ---- */

static struct rig *rig_of(struct virtio_transport *transport)
{
    return (struct rig *)transport;
}

static uint8_t rig_status(struct virtio_transport *transport)
{
    struct rig *rig = rig_of(transport);
    if (rig->reset_reads_left != 0) {
        rig->reset_reads_left--;
        return VIRTIO_STATUS_ACKNOWLEDGE;
    }
    return rig->status;
}

static void rig_set_status(struct virtio_transport *transport, uint8_t value)
{
    struct rig *rig = rig_of(transport);
    if (value == 0) {
        uint64_t done = rig->done + rig->rx_packets;
        rig->fruitless = done == rig->done_at_reset ? rig->fruitless + 1 : 1;
        rig->done_at_reset = done;
        CHECK(rig->fruitless <= 2 * RESETS_BEFORE_DEATH + RESETS_BESIDE);
        rig->resets++;
        rig->reset_reads_left = rig->say.reset_reads;
        rig->refused |= rig->say.reset_reads != 0; /* it may take too long */
        rig->tainted = false;
        memset(rig->q, 0, sizeof(rig->q));
        rig->status = rig->say.reset_never ? rig->status : 0;
        rig->refused |= rig->say.reset_never;
        return;
    }
    if ((value & VIRTIO_STATUS_FEATURES_OK) != 0 && rig->say.refuse_features) {
        value &= (uint8_t)~VIRTIO_STATUS_FEATURES_OK;
        rig->refused = true;
    }
    if ((value & VIRTIO_STATUS_DRIVER_OK) != 0 && rig->say.needs_reset) {
        value |= VIRTIO_STATUS_NEEDS_RESET;
        rig->refused = true;
    }
    rig->status = value;
}

static uint64_t rig_features(struct virtio_transport *transport)
{
    struct rig *rig = rig_of(transport);
    rig->refused |= (rig->features & rig->say.features_gone) != 0;
    return rig->features & ~rig->say.features_gone;
}

static void rig_set_features(struct virtio_transport *transport, uint64_t features)
{
    CHECK((features & ~rig_of(transport)->features) == 0);
    CHECK((rig_of(transport)->status & VIRTIO_STATUS_FEATURES_OK) == 0);
}

static bool rig_setup_interrupts(struct virtio_transport *transport)
{
    rig_of(transport)->refused |= rig_of(transport)->say.refuse_vectors;
    return !rig_of(transport)->say.refuse_vectors;
}

static uint16_t rig_queue_size(struct virtio_transport *transport, uint16_t queue)
{
    (void)transport;
    return queue < 2 ? RING_DESCS : 0;
}

static bool rig_queue_enable(struct virtio_transport *transport, uint16_t queue,
                             const struct virtio_queue_setup *setup, struct vq_doorbell *doorbell)
{
    struct rig *rig = rig_of(transport);
    struct rig_queue *q = &rig->q[queue];

    CHECK(setup->size_descs == RING_DESCS && (rig->status & VIRTIO_STATUS_DRIVER_OK) == 0);
    if (rig->say.refuse_queue) {
        rig->refused = true;
        return false;
    }
    *q = (struct rig_queue){.size = setup->size_descs};
    q->desc = seam_ram(setup->desc_dma, sizeof(struct vq_desc) * q->size);
    q->avail = seam_ram(setup->avail_dma, 6u + 2u * q->size);
    q->used = seam_ram(setup->used_dma, 6u + 8u * q->size);
    CHECK(q->desc != NULL && q->avail != NULL && q->used != NULL);
    *doorbell = (struct vq_doorbell){mem_map_mmio(DOORBELL_PHYS + 4ull * queue, 2), queue};
    return true;
}

static uint32_t rig_config_read(struct virtio_transport *transport, uint32_t offset, unsigned bytes)
{
    struct rig *rig = rig_of(transport);
    uint8_t space[12] = {0x52, 0x54, 0, 1, 2, 3};
    uint32_t value = 0;

    memcpy(space + VIRTIO_NET_CFG_STATUS, &rig->link_status, 2);
    if (rig->say.config_changes != 0) {
        rig->say.config_changes--;
        rig->generation++;
        rig->refused = true;
    }
    CHECK(offset + bytes <= sizeof(space));
    memcpy(&value, space + offset, bytes);
    return value;
}

static uint32_t rig_generation(struct virtio_transport *transport)
{
    return rig_of(transport)->generation;
}

static void rig_closed(struct virtio_transport *transport)
{
    (void)transport;
}

static const struct virtio_transport_ops rig_transport = {
    .status = rig_status,
    .set_status = rig_set_status,
    .device_features = rig_features,
    .set_driver_features = rig_set_features,
    .setup_interrupts = rig_setup_interrupts,
    .queue_size = rig_queue_size,
    .queue_enable = rig_queue_enable,
    .config_read = rig_config_read,
    .config_generation = rig_generation,
    .close = rig_closed,
};

/* ---- seams ---- */

/* Asked a thousand times for each input, of nothing but the rig's own: unsanitized. */
#define UNSANITIZED __attribute__((no_sanitize("address", "undefined")))

UNSANITIZED static inline bool in_area(const struct rig_area areas[3], const volatile void *addr,
                                       unsigned bytes)
{
    for (unsigned i = 0; i < 3; i++) {
        size_t offset = (uintptr_t)addr - areas[i].from;
        if (offset < areas[i].bytes && areas[i].bytes - offset >= bytes) {
            return true;
        }
    }
    return false;
}

static void rig_note_areas(struct rig *rig)
{
    const struct vq_memory *rx = &rig->dev->rx.vq.memory, *tx = &rig->dev->tx.vq.memory;
    const struct rx_queue *bufs = &rig->dev->rx;
    size_t used = vq_used_offset_bytes(RING_DESCS);
    size_t used_bytes = sizeof(struct vq_used) + sizeof(struct vq_used_elem) * RING_DESCS + 2u;
    size_t indirect = (size_t)RING_DESCS * tx->indirect_descs * sizeof(struct vq_desc);

    rig->writable[0] = (struct rig_area){(uintptr_t)tx->ring, vq_ring_bytes(RING_DESCS)};
    rig->writable[1] = (struct rig_area){(uintptr_t)rx->ring, vq_ring_bytes(RING_DESCS)};
    rig->writable[2] = (struct rig_area){(uintptr_t)tx->indirect, indirect};
    rig->readable[0] = (struct rig_area){(uintptr_t)tx->ring + used, used_bytes};
    rig->readable[1] = (struct rig_area){(uintptr_t)rx->ring + used, used_bytes};
    rig->readable[2] =
        (struct rig_area){(uintptr_t)bufs->bufs[0].addr, (size_t)bufs->n_bufs * bufs->buf_bytes};
}

/* The driver reads what the device writes, and writes what the device reads. */
UNSANITIZED static void rig_shared(void *ctx, const volatile void *addr, unsigned bytes,
                                   bool is_store)
{
    struct rig *rig = ctx;

    if (is_store) {
        CHECK(in_area(rig->writable, addr, bytes));
        for (unsigned i = 0; rig->n_added != 0 && addr == &rig->dev->tx.vq.avail->idx; i++) {
            CHECK(i < FRAMES);
            rig->n_added -= rig->frames[i] == ADDED;
            rig->frames[i] += rig->frames[i] == ADDED;
        }
        return;
    }
    CHECK(in_area(rig->readable, addr, bytes));
    if (rig->scribble_in != 0 && --rig->scribble_in == 0) {
        uint32_t value = 0;
        memcpy(&value, (const void *)(uintptr_t)addr, bytes);
        value ^= rig->scribble;
        memcpy((void *)(uintptr_t)addr, &value, bytes);
        rig->tainted = true;
    }
}

static void rig_kick(void *ctx, uint64_t phys, unsigned bytes, uint32_t value)
{
    struct rig *rig = ctx;
    CHECK(bytes == 2 && value < 2 && phys == DOORBELL_PHYS + 4ull * value);
    CHECK((rig->status & VIRTIO_STATUS_DRIVER_OK) != 0);
}

/* A wait for the device ends by its limit, soon. */
static void rig_relax(void *ctx)
{
    (void)ctx;
    seam_advance_ns(RESET_TIMEOUT_NS / 8);
}

/* ---- acts of the device ---- */

/* A chain as the driver may write it: inside the ring, of memory, and no longer than the ring. */
static void rig_walk(const struct rig *rig, unsigned queue, uint16_t head)
{
    const struct vq_desc *table = rig->q[queue].desc;
    unsigned n = 0, limit = rig->q[queue].size, at = head;

    if ((table[head].flags & VQ_DESC_F_INDIRECT) != 0) {
        CHECK(queue == TX && table[head].flags == VQ_DESC_F_INDIRECT);
        limit = table[head].len / (unsigned)sizeof(*table);
        table = seam_ram(table[head].addr, table[head].len);
        at = 0;
        CHECK(table != NULL && limit >= 1 && limit <= RING_DESCS);
    }
    do {
        CHECK(at < limit && n++ < limit);
        CHECK(table[at].len != 0 && seam_ram(table[at].addr, 1) != NULL);
        CHECK(((table[at].flags & VQ_DESC_F_WRITE) != 0) == (queue == RX));
        CHECK((table[at].flags & VQ_DESC_F_INDIRECT) == 0);
    } while ((table[at].flags & VQ_DESC_F_NEXT) != 0 && (at = table[at].next, true));
}

static void rig_take(struct rig *rig, unsigned queue)
{
    struct rig_queue *q = &rig->q[queue];

    while (q->size != 0 && q->avail_seen != q->avail->idx) {
        uint16_t head = q->avail->ring[q->avail_seen++ % q->size];
        CHECK(head < q->size && (rig->tainted || !q->mine[head]));
        rig_walk(rig, queue, head);
        if (!q->mine[head] && q->n_held < q->size) {
            q->mine[head] = true;
            q->held[q->n_held++] = head;
        }
    }
}

static void rig_use(struct rig *rig, unsigned queue, uint32_t id, uint32_t len)
{
    struct rig_queue *q = &rig->q[queue];

    q->used->ring[q->used_idx++ % q->size] = (struct vq_used_elem){id, len};
    if (id < q->size && q->mine[id]) {
        unsigned at = 0;
        while (q->held[at] != id) {
            at++;
        }
        q->mine[id] = false;
        memmove(&q->held[at], &q->held[at + 1], (--q->n_held - at) * sizeof(q->held[0]));
    } else {
        rig->tainted = true;
    }
}

static void rig_publish(struct rig *rig, unsigned queue)
{
    rig->q[queue].used->idx = rig->q[queue].used_idx;
    rig->lines[1 + queue].count++;
}

#endif
