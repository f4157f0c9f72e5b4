/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The TX ring's memory: made at open, emptied after a reset.
 */
#include "drivers/virtio_net_impl.h"

#include "boot/cpu.h"
#include "boot/mem.h"

static bool allocate_tables(struct virtio_net *dev, uint16_t size)
{
    struct tx_queue *tx = &dev->tx;
    struct vq_memory memory = {0};

    memory.ring = mem_alloc(vq_ring_bytes(size), MEM_PAGE_BYTES);
    memory.slots = mem_alloc(size * sizeof(struct vq_slot), CPU_CACHE_LINE_BYTES);
    tx->hdrs = mem_alloc(size * sizeof(struct virtio_net_hdr), CPU_CACHE_LINE_BYTES);
    if (memory.ring == NULL || memory.slots == NULL || tx->hdrs == NULL) {
        return false;
    }
    memory.ring_dma = mem_dma_addr(memory.ring);
    tx->hdrs_dma = mem_dma_addr(tx->hdrs);
    if (dev->info.indirect) {
        /* 2.7.5.3.1: a table may not be longer than the queue. */
        memory.indirect_descs = size < TX_MAX_SEGS ? size : TX_MAX_SEGS;
        memory.indirect = mem_alloc((size_t)size * memory.indirect_descs * sizeof(struct vq_desc),
                                    CPU_CACHE_LINE_BYTES);
        if (memory.indirect == NULL) {
            return false;
        }
        memory.indirect_dma = mem_dma_addr(memory.indirect);
    }
    vq_init(&tx->vq, size, dev->info.event_idx, &memory);
    return true;
}

bool tx_allocate(struct virtio_net *dev, const struct virtio_net_config *config, uint16_t size,
                 const char **why)
{
    struct tx_queue *tx = &dev->tx;
    struct tx_form form = {
        .size_descs = size,
        .indirect = dev->info.indirect,
        .tso = dev->info.can_tso,
        .mtu_bytes = dev->info.mtu_bytes,
        .max_datagram_bytes = config->max_datagram_bytes,
    };
    struct tx_thresholds thresholds;

    if (!tx_thresholds(&form, &thresholds)) {
        *why = "the transmit ring cannot hold one frame and the reserve: choose a larger tx.size";
        return false;
    }
    if (dev->info.can_tso && !thresholds.tso) {
        dev->info.can_tso = false;
        features_refuse(&dev->info, "HOST_TSO4", "negotiated but not used: the ring is too small");
    }
    dev->info.max_datagram_bytes = thresholds.max_datagram_bytes;
    dev->info.tx_max_segs = thresholds.max_segs;
    tx->policy = &tx_policies[config->policy];
    tx->stop = thresholds.stop;
    tx->wake = thresholds.wake;
    tx->stats = (struct virtio_net_tx_stats){
        .size_descs = size,
        .unit_descs = thresholds.unit,
        .reserve_descs = thresholds.reserve,
        .stop_descs = thresholds.stop,
        .wake_descs = thresholds.wake,
        .policy = config->policy,
    };
    if (!allocate_tables(dev, size)) {
        *why = "no memory for the transmit ring";
        return false;
    }
    return true;
}

/* After a reset: nothing that was in the ring will be heard of again. Leaves an empty ring. */
void tx_abort(struct virtio_net *dev)
{
    struct tx_queue *tx = &dev->tx;
    uint16_t cursor = 0;
    void *cookie;

    while ((cookie = vq_abort(&tx->vq, &cursor)) != NULL) {
        tx->stats.aborted++;
        dev->ops->tx_done(dev->ctx, VIRTIO_NET_PAIR, cookie, true);
    }
    if (tx->holder.occupied) {
        tx->holder.occupied = false;
        tx->stats.held = 0;
        tx->stats.aborted++;
        dev->ops->tx_done(dev->ctx, VIRTIO_NET_PAIR, tx->holder.frame.cookie, true);
    }
    tx->rekick = (struct rekick){0};
    vq_init(&tx->vq, tx->vq.size, tx->vq.event_idx, &tx->vq.memory);
}
