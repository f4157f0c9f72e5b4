/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Receiving: buffers posted, taken back, checked, handed up in pieces. VIRTIO 1.x 5.1.6.3, 5.1.6.4.
 *
 * Nothing in a used buffer is believed before it was compared with what the driver knows itself,
 * and each field is read once: the device may go on writing.
 */
#include "drivers/virtio_net_impl.h"

#include "boot/cpu.h"
#include "boot/mem.h"
#include "boot/panic.h"

/* Twice the ring: a whole ring can be with the stack (waiting for a segment in order, or to be
 * read) while a whole ring is posted. */
#define RX_POOL_PER_RING  2u
#define RX_RING_MAX_DESCS 1024u

/* Half a page holds a frame of 1500 bytes; with segments joined by the device, 64 KiB then take 17
 * pages and not 33 halves. */
#define RX_BUF_MERGE_BYTES 2048u
#define RX_BUF_LRO_BYTES   4096u
/* 5.1.6.3.1: without merging a buffer holds the largest packet alone, at least 1526 bytes. */
#define RX_BUF_SINGLE_MIN_BYTES 1526u
/* A VLAN tag that the device left in. */
#define RX_TAG_BYTES 4u

_Static_assert(VIRTIO_NET_RX_MAX_PIECES *RX_BUF_MERGE_BYTES > VIRTIO_NET_GSO_MAX_BYTES + 12u,
               "the largest packet in the smallest buffers");

static uint32_t buffer_bytes(const struct virtio_net *dev)
{
    uint32_t whole = dev->info.hdr_bytes + RX_TAG_BYTES + dev->rx.packet_bytes;

    if (dev->info.guest_tso) {
        return RX_BUF_LRO_BYTES;
    }
    if (dev->info.mrg_rxbuf) {
        return RX_BUF_MERGE_BYTES;
    }
    whole = whole < RX_BUF_SINGLE_MIN_BYTES ? RX_BUF_SINGLE_MIN_BYTES : whole;
    return (whole + CPU_CACHE_LINE_BYTES - 1) & ~(CPU_CACHE_LINE_BYTES - 1);
}

static void free_push(struct rx_queue *rx, struct rx_buf *buf)
{
    buf->state = RX_BUF_FREE;
    buf->next_free = rx->free;
    rx->free = buf;
    rx->n_free++;
}

static bool allocate_pool(struct virtio_net *dev)
{
    struct rx_queue *rx = &dev->rx;

    rx->buf_bytes = buffer_bytes(dev);
    rx->n_bufs = rx->vq.size * RX_POOL_PER_RING;
    rx->bufs = mem_alloc(rx->n_bufs * sizeof(struct rx_buf), CPU_CACHE_LINE_BYTES);
    uint8_t *data = mem_alloc((size_t)rx->n_bufs * rx->buf_bytes, MEM_PAGE_BYTES);
    if (rx->bufs == NULL || data == NULL) {
        return false;
    }
    for (uint32_t i = rx->n_bufs; i-- > 0;) {
        rx->bufs[i].addr = data + (size_t)i * rx->buf_bytes;
        rx->bufs[i].dma_addr = mem_dma_addr(rx->bufs[i].addr);
        free_push(rx, &rx->bufs[i]);
    }
    return true;
}

bool rx_allocate(struct virtio_net *dev, uint16_t size, const char **why)
{
    struct rx_queue *rx = &dev->rx;
    struct vq_memory memory = {0};

    /* 2.7: a driver may use less of a ring than the device offers. */
    size = size > RX_RING_MAX_DESCS ? RX_RING_MAX_DESCS : size;
    *why = "no memory for the receive ring and its buffers";
    memory.ring = mem_alloc(vq_ring_bytes(size), MEM_PAGE_BYTES);
    memory.slots = mem_alloc(size * sizeof(struct vq_slot), CPU_CACHE_LINE_BYTES);
    if (memory.ring == NULL || memory.slots == NULL) {
        return false;
    }
    memory.ring_dma = mem_dma_addr(memory.ring);
    vq_init(&rx->vq, size, dev->info.event_idx, &memory);
    rx->stats.size_descs = size;
    return allocate_pool(dev);
}

/* Empties the ring after a reset: what was posted is the driver's again. */
void rx_take_back(struct virtio_net *dev)
{
    struct rx_queue *rx = &dev->rx;
    struct rx_buf *buf;
    uint16_t cursor = 0;

    while ((buf = vq_abort(&rx->vq, &cursor)) != NULL) {
        free_push(rx, buf);
    }
    for (uint16_t i = 0; i < rx->partial.n_have; i++) {
        free_push(rx, rx->partial.pieces[i].buf);
    }
    rx->partial.n_wanted = 0;
    rx->partial.n_have = 0;
    rx->rekick = (struct rekick){0};
    vq_init(&rx->vq, rx->vq.size, rx->vq.event_idx, &rx->vq.memory);
}

void rx_refill(struct virtio_net *dev)
{
    struct rx_queue *rx = &dev->rx;

    while (vq_free_descs(&rx->vq) != 0 && rx->free != NULL) {
        struct rx_buf *buf = rx->free;
        struct vq_seg seg = {.dma_addr = buf->dma_addr, .len_bytes = rx->buf_bytes};
        rx->free = buf->next_free;
        rx->n_free--;
        buf->state = RX_BUF_POSTED;
        vq_add(&rx->vq, &seg, 0, 1, buf);
    }
    if (vq_free_descs(&rx->vq) != 0) {
        rx->stats.refill_fail++;
    }
    vq_publish(&rx->vq);
}

void rx_kick(struct virtio_net *dev)
{
    struct rx_queue *rx = &dev->rx;

    if (rx->vq.unkicked == 0) {
        return;
    }
    if (vq_kick(&rx->vq)) {
        rx->stats.kicks++;
    } else {
        rx->stats.kicks_suppressed++;
    }
}

void virtio_net_rx_return(struct virtio_net *dev, void *handle)
{
    struct rx_queue *rx = &dev->rx;
    struct rx_buf *buf = handle;

    invariant(buf >= rx->bufs && buf < rx->bufs + rx->n_bufs && buf->state == RX_BUF_OUT);
    vq_note(&rx->vq, RING_CALL_RETURN, (unsigned)(buf - rx->bufs), 0, 0);
    free_push(rx, buf);
    /*
     * rx_poll refills at the end of each pass; this is for a ring that ran short while the stack
     * sat on the buffers. Not below a quarter of a ring at a time, unless the device has none left.
     */
    uint16_t missing = vq_free_descs(&rx->vq);
    bool live = (dev->status & VIRTIO_STATUS_DRIVER_OK) != 0;
    if (live && missing > rx->vq.size / 2 &&
        (rx->n_free > rx->vq.size / 4 || missing == rx->vq.size)) {
        rx_refill(dev);
        rx_kick(dev);
    }
}

/* ---- one packet ---- */

static void drop_partial(struct rx_queue *rx)
{
    for (uint16_t i = 0; i < rx->partial.n_have; i++) {
        free_push(rx, rx->partial.pieces[i].buf);
    }
    rx->partial.n_wanted = 0;
    rx->partial.n_have = 0;
    rx->stats.drops[rx->partial.reason]++;
}

/* The header as it was at one moment. Nothing of it is read from the buffer again. */
static struct virtio_net_hdr read_header(const uint8_t *at)
{
    return (struct virtio_net_hdr){
        .flags = shared_load8(at + offsetof(struct virtio_net_hdr, flags)),
        .gso_type = shared_load8(at + offsetof(struct virtio_net_hdr, gso_type)),
        .gso_size = shared_load16(at + offsetof(struct virtio_net_hdr, gso_size)),
        .csum_start = shared_load16(at + offsetof(struct virtio_net_hdr, csum_start)),
        .csum_offset = shared_load16(at + offsetof(struct virtio_net_hdr, csum_offset)),
        .num_buffers = shared_load16(at + offsetof(struct virtio_net_hdr, num_buffers)),
    };
}

/* What the header says, as far as it was negotiated. False: the packet cannot be what it claims. */
static bool interpret_header(struct virtio_net *dev, const struct virtio_net_hdr *hdr,
                             struct virtio_net_rx_packet *packet)
{
    /* 5.1.6.4.1: other flag bits mean nothing; these two nothing unless GUEST_CSUM was taken. */
    uint8_t flags = hdr->flags & (VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID);

    if (flags != 0 && !dev->info.rx_csum) {
        dev->faults[VIRTIO_NET_FAULT_UNNEGOTIATED_FLAG]++;
        flags = 0;
    }
    if (hdr->gso_type != VIRTIO_NET_HDR_GSO_NONE) {
        if (hdr->gso_type != VIRTIO_NET_HDR_GSO_TCPV4 || !dev->info.guest_tso) {
            dev->faults[VIRTIO_NET_FAULT_UNNEGOTIATED_FLAG]++;
            return false;
        }
        packet->coalesced = true;
        packet->gso_size_bytes = hdr->gso_size;
    }
    packet->csum_partial = (flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) != 0;
    packet->csum_valid = (flags & VIRTIO_NET_HDR_F_DATA_VALID) != 0;
    if (packet->csum_partial) {
        packet->csum_start = hdr->csum_start;
        packet->csum_offset = hdr->csum_offset;
    }
    return true;
}

/* Checks that need the whole packet's length. */
static bool header_fits(struct virtio_net *dev, const struct virtio_net_rx_packet *packet)
{
    if (packet->csum_partial &&
        (uint32_t)packet->csum_start + packet->csum_offset + sizeof(uint16_t) > packet->len_bytes) {
        dev->faults[VIRTIO_NET_FAULT_HEADER]++;
        return false;
    }
    if (packet->coalesced && packet->gso_size_bytes == 0) {
        dev->faults[VIRTIO_NET_FAULT_HEADER]++;
        return false;
    }
    return true;
}

/* Adds one piece. */
static void take_piece(struct rx_queue *rx, struct rx_buf *buf, uint8_t *addr, uint32_t len)
{
    struct rx_partial *partial = &rx->partial;
    struct virtio_net_rx_piece *piece = &partial->pieces[partial->n_have++];

    buf->state = RX_BUF_PARTIAL;
    piece->buf = buf;
    piece->addr = addr;
    piece->len_bytes = len;
    partial->packet.len_bytes += len;
}

/*
 * The first buffer of a packet: header, and how many buffers follow. A count that cannot be is not
 * followed: the buffer is dropped and the next one is taken as a first one again (5.1.6.4).
 */
static void begin_packet(struct virtio_net *dev, struct rx_buf *buf, uint32_t used_bytes)
{
    struct rx_queue *rx = &dev->rx;
    struct rx_partial *partial = &rx->partial;
    uint32_t hdr_bytes = dev->info.hdr_bytes;

    if (used_bytes < hdr_bytes + ETH_HEADER_BYTES) {
        free_push(rx, buf);
        rx->stats.drops[VIRTIO_NET_RX_DROP_SHORT]++;
        return;
    }
    struct virtio_net_hdr hdr = read_header(buf->addr);
    uint16_t n_wanted = dev->info.mrg_rxbuf ? hdr.num_buffers : 1;
    if (n_wanted == 0 || n_wanted > VIRTIO_NET_RX_MAX_PIECES || n_wanted > rx->vq.size) {
        dev->faults[VIRTIO_NET_FAULT_NUM_BUFFERS]++;
        free_push(rx, buf);
        rx->stats.drops[VIRTIO_NET_RX_DROP_NUM_BUFFERS]++;
        return;
    }
    if (n_wanted != 1) {
        vq_note(&rx->vq, RING_NUM_BUFFERS, n_wanted, 0, 0);
    }
    partial->packet = (struct virtio_net_rx_packet){.pieces = partial->pieces};
    partial->n_wanted = n_wanted;
    partial->reason = VIRTIO_NET_RX_DROP_BAD_HEADER;
    partial->bad = !interpret_header(dev, &hdr, &partial->packet);
    take_piece(rx, buf, buf->addr + hdr_bytes, used_bytes - hdr_bytes);
}

/* Hands up a packet whose buffers are all there. */
static void finish_packet(struct virtio_net *dev)
{
    struct rx_queue *rx = &dev->rx;
    struct rx_partial *partial = &rx->partial;

    if (partial->bad || !header_fits(dev, &partial->packet)) {
        drop_partial(rx);
        return;
    }
    for (uint16_t i = 0; i < partial->n_have; i++) {
        ((struct rx_buf *)partial->pieces[i].buf)->state = RX_BUF_OUT;
    }
    partial->packet.n_pieces = partial->n_have;
    rx->stats.packets++;
    rx->stats.bytes += partial->packet.len_bytes;
    partial->n_wanted = 0;
    partial->n_have = 0;
    dev->ops->rx(dev->ctx, VIRTIO_NET_PAIR, &partial->packet);
}

/* A later buffer of the packet. One that cannot be spoils the packet, but not the count: the rest
 * of it must not be taken for a packet of its own. */
static void continue_packet(struct rx_queue *rx, struct rx_buf *buf, uint32_t used_bytes,
                            bool too_long)
{
    take_piece(rx, buf, buf->addr, used_bytes);
    if (too_long || used_bytes == 0) {
        rx->partial.bad = true;
        rx->partial.reason = too_long ? VIRTIO_NET_RX_DROP_LONG : VIRTIO_NET_RX_DROP_SHORT;
    }
}

/* One used buffer. True: a packet was handed up or dropped whole. */
static bool take_buffer(struct virtio_net *dev, const struct vq_done *done)
{
    struct rx_queue *rx = &dev->rx;
    struct rx_buf *buf = done->cookie;
    /* 2.7.8.2: it cannot have written there. What it did write is anyone's guess. */
    bool too_long = done->used_bytes > done->in_bytes;

    dev->faults[VIRTIO_NET_FAULT_USED_LEN] += too_long;
    if (rx->partial.n_wanted != 0) {
        continue_packet(rx, buf, too_long ? 0 : done->used_bytes, too_long);
    } else if (too_long) {
        free_push(rx, buf);
        rx->stats.drops[VIRTIO_NET_RX_DROP_LONG]++;
    } else {
        begin_packet(dev, buf, done->used_bytes);
    }
    if (rx->partial.n_wanted == 0) {
        return true;
    }
    if (rx->partial.n_have == rx->partial.n_wanted) {
        finish_packet(dev);
        return true;
    }
    return false;
}

unsigned virtio_net_rx_poll(struct virtio_net *dev, unsigned pair, unsigned budget)
{
    struct rx_queue *rx = &dev->rx;
    struct vq_done done;
    unsigned n_packets = 0;
    bool work = false;

    (void)pair;
    if (dev->dead) {
        return 0;
    }
    vq_note(&rx->vq, RING_CALL_POLL, budget, 0, 0);
    while (n_packets < budget && vq_reclaim(&rx->vq, &done)) {
        work = true;
        n_packets += take_buffer(dev, &done);
    }
    irq_account(&rx->irq, work, &rx->stats.interrupts, &rx->stats.spurious_interrupts);
    rekick_account(dev, &rx->rekick, work);
    if (rx->vq.fault != VQ_FAULT_NONE) {
        note_ring_fault(dev, rx->vq.fault);
        return n_packets;
    }
    if (work || (vq_free_descs(&rx->vq) != 0 && rx->free != NULL)) {
        rx_refill(dev);
        rx_kick(dev);
    }
    return n_packets;
}

void virtio_net_rx_stats(const struct virtio_net *dev, unsigned pair,
                         struct virtio_net_rx_stats *out)
{
    (void)pair;
    *out = dev->rx.stats;
    out->pool_bufs = dev->rx.n_bufs;
    out->pool_free = dev->rx.n_free;
    out->posted = vq_in_flight(&dev->rx.vq);
}
