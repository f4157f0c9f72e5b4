/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/device/snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "drivers/virtio_net_impl.h"
#include "tests/device/seams.h"

void snapshot_add(struct snapshot *snapshot, void *at, size_t bytes)
{
    void *copy = malloc(bytes);

    if (copy == NULL || snapshot->n == SNAPSHOT_BLOCKS) {
        abort();
    }
    memcpy(copy, at, bytes);
    snapshot->blocks[snapshot->n].at = at;
    snapshot->blocks[snapshot->n].copy = copy;
    snapshot->blocks[snapshot->n++].bytes = bytes;
}

static void add_queue(struct snapshot *snapshot, const struct virtqueue *vq)
{
    const struct vq_memory *memory = &vq->memory;

    snapshot_add(snapshot, memory->ring, vq_ring_bytes(vq->size));
    snapshot_add(snapshot, memory->slots, vq->size * sizeof(struct vq_slot));
    if (memory->indirect != NULL) {
        snapshot_add(snapshot, memory->indirect,
                     (size_t)vq->size * memory->indirect_descs * sizeof(struct vq_desc));
    }
}

void snapshot_take(struct snapshot *snapshot, struct virtio_net *dev)
{
    *snapshot = (struct snapshot){.now_ns = seam_now_ns()};
    snapshot_add(snapshot, dev, sizeof(*dev));
    add_queue(snapshot, &dev->rx.vq);
    add_queue(snapshot, &dev->tx.vq);
    snapshot_add(snapshot, dev->tx.hdrs, dev->tx.vq.size * sizeof(struct virtio_net_hdr));
    snapshot_add(snapshot, dev->rx.bufs, dev->rx.n_bufs * sizeof(struct rx_buf));
}

void snapshot_restore(const struct snapshot *snapshot)
{
    for (unsigned i = 0; i < snapshot->n; i++) {
        memcpy(snapshot->blocks[i].at, snapshot->blocks[i].copy, snapshot->blocks[i].bytes);
    }
    seam_advance_ns(snapshot->now_ns - seam_now_ns());
}

void snapshot_free(struct snapshot *snapshot)
{
    while (snapshot->n != 0) {
        free(snapshot->blocks[--snapshot->n].copy);
    }
}
