/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A driver on a device whose acts are the fuzzer's input, and a user that checks what the driver
 * promises whatever the device does.
 *
 *     input -> acts of the user   -> driver -> [rings of 16] -> acts of the device <- input
 *
 * Drivers of several forms are opened once; an input begins with one of them as it was after
 * opening. It ends with everything given back, a reset, traffic both ways as on the first day, and
 * a close after which all balances.
 */
#ifndef SLUICE_TESTS_FUZZ_RING_RIG_H
#define SLUICE_TESTS_FUZZ_RING_RIG_H

#include "tests/device/snapshot.h"
#include "tests/fuzz/ring_device.h"

#define MAX_ACTS     256u
#define MAX_VARIANTS 8u

struct rig_variant {
    uint64_t features;
    enum virtio_net_policy policy;
    uint32_t max_datagram_bytes;
};

typedef void rig_act(struct rig *rig, struct input *in);

/* Where all segments lie, behind room for a header. Nobody reads what is in there. */
static uint8_t rig_memory[HEADROOM_BYTES + SEG_BYTES];

/* ---- what the driver tells ---- */

static bool within(const volatile void *addr, const void *from, size_t bytes)
{
    return (uintptr_t)addr - (uintptr_t)from < bytes;
}

static void rig_tx_done(void *ctx, unsigned pair, void *cookie, bool aborted)
{
    struct rig *rig = ctx;
    enum rig_frame *frame = cookie;
    CHECK(pair == PAIR);
    CHECK(within(frame, rig->frames, sizeof(rig->frames)));
    CHECK(*frame == SHOWN_TO_DEVICE || (*frame == ADDED && aborted));
    rig->n_added -= *frame == ADDED;
    *frame = AT_USER;
    rig->n_out--;
    rig->done += !aborted;
    rig->aborted += aborted;
}

static void rig_tx_wake(void *ctx, unsigned pair)
{
    struct rig *rig = ctx;
    rig->wakes++;
    CHECK(pair == PAIR && !virtio_net_tx_stopped(rig->dev, pair));
}

static void rig_rx(void *ctx, unsigned pair, const struct virtio_net_rx_packet *packet)
{
    struct rig *rig = ctx;
    uint32_t bytes = 0;

    CHECK(pair == PAIR);
    CHECK(packet->n_pieces >= 1 && packet->n_pieces <= RING_DESCS);
    rig->rx_packets++;
    for (unsigned i = 0; i < packet->n_pieces; i++) {
        const struct virtio_net_rx_piece *piece = &packet->pieces[i];
        const struct rx_buf *buf = piece->buf;
        uint32_t offset = (uint32_t)(piece->addr - buf->addr);
        CHECK(offset == (i == 0 ? rig->dev->info.hdr_bytes : 0));
        CHECK(piece->len_bytes != 0 && offset + piece->len_bytes <= rig->dev->rx.buf_bytes);
        bytes += piece->len_bytes;
        if (rig->keep_rx && rig->n_kept < 2 * RING_DESCS) {
            rig->kept[rig->n_kept++] = piece->buf;
        } else {
            virtio_net_rx_return(rig->dev, piece->buf);
        }
    }
    CHECK(bytes == packet->len_bytes && bytes >= ETH_HEADER_BYTES);
    CHECK(!packet->csum_partial ||
          (uint32_t)packet->csum_start + packet->csum_offset + 2u <= packet->len_bytes);
    CHECK(rig->dev->info.rx_csum || (!packet->csum_partial && !packet->csum_valid));
    CHECK(!packet->coalesced || (rig->dev->info.guest_tso && packet->gso_size_bytes != 0));
}

static void rig_link(void *ctx, bool up)
{
    struct rig *rig = ctx;
    CHECK(up == rig->dev->info.link_up);
    rig->link_told = up;
}

static const struct virtio_net_ops rig_ops = {
    .tx_done = rig_tx_done, .tx_wake = rig_tx_wake, .rx = rig_rx, .link = rig_link};

/* ---- one input ---- */

/* What is believed of the used index is no more than what the device was given. */
static bool rig_believes_little(const struct virtqueue *vq)
{
    return vq_wrap(vq->used_known - vq->used_seen) <= vq_wrap(vq->published_idx - vq->used_seen);
}

/* What holds after each call. */
static void rig_check(const struct rig *rig)
{
    const struct rx_queue *rx = &rig->dev->rx;
    const struct tx_queue *tx = &rig->dev->tx;
    unsigned descs = tx->vq.n_free;

    for (unsigned i = 0; i < RING_DESCS; i++) {
        descs += tx->vq.slots[i].n_descs;
    }
    CHECK(descs == RING_DESCS);
    CHECK(rig_believes_little(&rx->vq) && rig_believes_little(&tx->vq));
    CHECK(rx->partial.n_wanted <= RING_DESCS); /* more buffers never come */
    CHECK(rig->n_out == vq_in_flight(&tx->vq) + (tx->holder.occupied ? 1u : 0u));
    CHECK(rx->n_free + vq_in_flight(&rx->vq) + rig->n_kept + rx->partial.n_have == rx->n_bufs);
    CHECK(tx->stats.submitted == tx->stats.completed + tx->stats.aborted + rig->n_out);
    CHECK(tx->stats.stops == tx->stats.wakes + tx->stopped && tx->stats.wakes == rig->wakes);
    CHECK(tx->stopped || !tx->policy->stops || tx->policy->wake_on_one || tx_room(tx) >= tx->stop);
    CHECK(rig->link_told == rig->dev->info.link_up);
    /* Of a device that was given up everything has come back. */
    CHECK(!rig->dev->dead || rx->n_free + rig->n_kept == rx->n_bufs);
    CHECK(!rig->dev->dead || rig->refused || rig->resets > RESETS_BEFORE_DEATH);
}

static void rig_expect_traffic(struct rig *rig)
{
    struct virtio_net_seg seg = {rig_memory + HEADROOM_BYTES, 60};
    struct virtio_net_tx_frame frame = {.segs = &seg, .n_segs = 1, .cookie = &rig->frames[0]};
    struct virtio_net_hdr hdr = {.num_buffers = 1};
    uint64_t done = rig->done, packets = rig->rx_packets;

    CHECK(!virtio_net_tx_stopped(rig->dev, PAIR));
    rig->frames[0] = ADDED;
    rig->n_added++;
    rig->n_out++;
    CHECK(virtio_net_tx_add(rig->dev, PAIR, &frame) == VIRTIO_NET_OK);
    virtio_net_tx_flush(rig->dev, PAIR);
    rig_take(rig, TX);
    rig_take(rig, RX);
    CHECK(rig->q[TX].n_held == 1 && rig->q[RX].n_held == RING_DESCS);
    rig_use(rig, TX, rig->q[TX].held[0], 0);
    rig_publish(rig, TX);
    uint16_t head = rig->q[RX].held[0];
    memcpy(seam_ram(rig->q[RX].desc[head].addr, sizeof(hdr)), &hdr, sizeof(hdr));
    rig_use(rig, RX, head, sizeof(hdr) + 60);
    rig_publish(rig, RX);
    CHECK(virtio_net_tx_reclaim(rig->dev, PAIR, 64) == 1 &&
          virtio_net_rx_poll(rig->dev, PAIR, 64) == 1);
    CHECK(rig->done == done + 1 && rig->rx_packets == packets + 1);
}

static void rig_end(struct rig *rig)
{
    rig->say = (struct rig_answers){0};
    rig->scribble_in = 0;
    rig->keep_rx = false;
    while (rig->n_kept != 0) {
        virtio_net_rx_return(rig->dev, rig->kept[--rig->n_kept]);
    }
    virtio_net_tx_unreserve(rig->dev, PAIR, rig->set_aside);
    if (!rig->dev->dead) {
        rig->status |= VIRTIO_STATUS_NEEDS_RESET;
        rig->lines[0].count++;
        virtio_net_poll(rig->dev, seam_now_ns());
        rig_check(rig);
    }
    if (!rig->dev->dead) {
        rig_expect_traffic(rig);
        rig_check(rig);
    }
    virtio_net_close(rig->dev);
    CHECK(rig->n_out == 0 && rig->dev->rx.n_free == rig->dev->rx.n_bufs);
    CHECK(rig->dev->tx.stats.submitted == rig->done + rig->aborted);
}

static void rig_hook(struct rig *rig)
{
    seam_hook(&(struct seam_hooks){
        .ctx = rig, .shared = rig_shared, .mmio_write = rig_kick, .relax = rig_relax});
}

static void rig_open(struct rig *rig, struct snapshot *snapshot, const struct rig_variant *variant)
{
    struct virtio_net_config config = {.ops = &rig_ops,
                                       .ctx = rig,
                                       .policy = variant->policy,
                                       .max_datagram_bytes = variant->max_datagram_bytes};
    const char *why = "";

    *rig = (struct rig){.features = variant->features | FEATURE(VIRTIO_F_VERSION_1) |
                                    FEATURE(VIRTIO_NET_F_STATUS) | FEATURE(VIRTIO_NET_F_MAC)};
    rig->base = (struct virtio_transport){
        &rig_transport, 12, &rig->lines[0], {&rig->lines[1], &rig->lines[2]}};
    rig->link_status = VIRTIO_NET_S_LINK_UP;
    rig->link_told = true;
    seam_hook(&(struct seam_hooks){.ctx = rig, .mmio_write = rig_kick, .relax = rig_relax});
    rig->dev = virtio_net_open_transport(&rig->base, &config, &why);
    CHECK(rig->dev != NULL);
    rig_note_areas(rig);
    snapshot_take(snapshot, rig->dev);
    snapshot_add(snapshot, rig, sizeof(*rig));
}

/* The first byte chooses the form, each act begins with one. */
static int rig_run(const uint8_t *data, size_t size, const struct rig_variant *variants,
                   unsigned n_variants, rig_act *const acts[], unsigned n_acts)
{
    static struct rig rigs[MAX_VARIANTS];
    static struct snapshot snapshots[MAX_VARIANTS];
    struct input in = {data, size};
    unsigned form = in8(&in) % n_variants;
    struct rig *rig = &rigs[form];

    if (rig->dev == NULL) {
        rig_open(rig, &snapshots[form], &variants[form]);
    }
    snapshot_restore(&snapshots[form]);
    rig_hook(rig);
    for (unsigned i = 0; i < MAX_ACTS && in.left != 0; i++) {
        acts[in8(&in) % n_acts](rig, &in);
        rig_check(rig);
    }
    rig_end(rig);
    return 0;
}

#endif
