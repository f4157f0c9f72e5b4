/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/device/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/seams.h"

#define RIG_PAIR 0u

static void tx_done(void *ctx, unsigned pair, void *cookie, bool aborted)
{
    struct rig *rig = ctx;
    struct rig_frame *frame = cookie;

    rig->wrong_pairs += pair != RIG_PAIR;
    if (frame < rig->frames || frame >= rig->frames + RIG_FRAMES || !frame->in_use) {
        rig->unknown_cookies++;
        return;
    }
    /* 3.3.1: what the device may still touch is not taken back. A frame that never was in the ring
     * is given back at any time. */
    rig->taken_alive += aborted && rig->device.status != 0 && !rig->device.off_bus &&
                        rig->dev != NULL && rig->dev->tx.policy->on_full != TX_FULL_DROP;
    frame->in_use = false;
    rig->done += !aborted;
    rig->aborted += aborted;
}

static void tx_wake(void *ctx, unsigned pair)
{
    struct rig *rig = ctx;

    rig->wrong_pairs += pair != RIG_PAIR;
    rig->wakes++;
    if (rig->on_wake != NULL) {
        rig->on_wake(rig);
    }
}

static void rx(void *ctx, unsigned pair, const struct virtio_net_rx_packet *packet)
{
    struct rig *rig = ctx;
    uint32_t at = 0;

    rig->wrong_pairs += pair != RIG_PAIR;
    rig->rx_packets++;
    rig->rx_bytes += packet->len_bytes;
    rig->rx_last = *packet;
    for (uint16_t i = 0; i < packet->n_pieces; i++) {
        const struct virtio_net_rx_piece *piece = &packet->pieces[i];
        memcpy(rig->rx_copy + at, piece->addr, piece->len_bytes);
        at += piece->len_bytes;
        if (rig->rx_keep) {
            rig->rx_kept[rig->n_rx_kept++] = piece->buf;
        } else {
            virtio_net_rx_return(rig->dev, piece->buf);
        }
    }
}

static void link_changed(void *ctx, bool up)
{
    struct rig *rig = ctx;

    rig->links++;
    rig->link_up = up;
}

static void stalled(void *ctx, const struct virtio_net_stall *stall)
{
    struct rig *rig = ctx;

    rig->stalls++;
    rig->stall = *stall;
}

static const struct virtio_net_ops ops = {
    .tx_done = tx_done, .tx_wake = tx_wake, .rx = rx, .link = link_changed, .stall = stalled};

struct rig *rig_new(void)
{
    struct rig *rig = calloc(1, sizeof(*rig));

    if (rig == NULL || (rig->frames = calloc(RIG_FRAMES, sizeof(struct rig_frame))) == NULL) {
        abort();
    }
    model_options_default(&rig->opt);
    rig->config.ops = &ops;
    rig->config.ctx = rig;
    rig->config.max_datagram_bytes = 1024;
    return rig;
}

bool rig_open(struct rig *rig)
{
    model_init(&rig->device, &rig->opt);
    rig->why = NULL;
    rig->dev = virtio_net_open_transport(&rig->device.base, &rig->config, &rig->why);
    return rig->dev != NULL;
}

void rig_free(struct rig *rig)
{
    seam_reset();
    free(rig->frames);
    free(rig);
}

static struct rig_frame *new_frame(struct rig *rig)
{
    for (uint32_t tries = 0; tries < RIG_FRAMES; tries++) {
        struct rig_frame *frame = &rig->frames[rig->next_frame++ % RIG_FRAMES];
        if (!frame->in_use) {
            frame->in_use = true;
            frame->number = rig->next_frame;
            memcpy(frame->bytes + ETH_HEADER_BYTES, &frame->number, sizeof(frame->number));
            return frame;
        }
    }
    abort();
}

static enum virtio_net_result send(struct rig *rig, struct virtio_net_tx_frame tx, uint16_t n_segs,
                                   bool headroom, uint32_t bytes)
{
    struct virtio_net_seg segs[VIRTIO_NET_TX_MAX_PIECES + 2];
    struct rig_frame *frame = new_frame(rig);
    uint32_t each = n_segs != 0 ? bytes / n_segs : 0;

    for (uint16_t i = 0; i < n_segs; i++) {
        segs[i] = (struct virtio_net_seg){frame->bytes + (size_t)i * each, each};
    }
    tx.segs = segs;
    tx.n_segs = n_segs;
    tx.headroom_bytes = headroom ? sizeof(frame->headroom) : 0;
    tx.cookie = frame;
    enum virtio_net_result result = virtio_net_tx_add(rig->dev, RIG_PAIR, &tx);
    if (result != VIRTIO_NET_OK) {
        frame->in_use = false;
    }
    return result;
}

enum virtio_net_result rig_send(struct rig *rig, uint16_t n_segs, bool headroom)
{
    struct virtio_net_tx_frame tx = {0};
    return send(rig, tx, n_segs, headroom, 1080);
}

enum virtio_net_result rig_send_control(struct rig *rig)
{
    struct virtio_net_tx_frame tx = {.control = true};
    return send(rig, tx, 1, true, 60);
}

enum virtio_net_result rig_send_tso(struct rig *rig, uint16_t n_segs)
{
    struct virtio_net_tx_frame tx = {
        .csum_partial = true,
        .csum_start = 34,
        .csum_offset = 16,
        .gso = VIRTIO_NET_TX_TSO4,
        .gso_size_bytes = 1000,
        .hdr_len_bytes = 54,
    };
    return send(rig, tx, n_segs, true, RIG_FRAME_BYTES);
}

void rig_return_kept(struct rig *rig)
{
    while (rig->n_rx_kept != 0) {
        virtio_net_rx_return(rig->dev, rig->rx_kept[--rig->n_rx_kept]);
    }
}

struct virtio_net_tx_stats rig_tx(const struct rig *rig)
{
    struct virtio_net_tx_stats stats;
    virtio_net_tx_stats(rig->dev, RIG_PAIR, &stats);
    return stats;
}

struct virtio_net_rx_stats rig_rx(const struct rig *rig)
{
    struct virtio_net_rx_stats stats;
    virtio_net_rx_stats(rig->dev, RIG_PAIR, &stats);
    return stats;
}

uint64_t rig_fault(const struct rig *rig, enum virtio_net_device_fault fault)
{
    return virtio_net_device_faults(rig->dev)[fault];
}

bool rig_at_rest(struct rig *rig)
{
    struct virtio_net_tx_stats tx = rig_tx(rig);
    struct virtio_net_rx_stats rx_stats = rig_rx(rig);
    unsigned in_use = 0;
    bool ok = true;

    for (uint32_t i = 0; i < RIG_FRAMES; i++) {
        in_use += rig->frames[i].in_use;
    }
    const struct {
        bool holds;
        const char *what;
    } rest[] = {
        {virtio_net_tx_in_flight(rig->dev, RIG_PAIR) == 0, "in flight"},
        {tx.submitted == tx.completed + tx.aborted, "submitted = completed + aborted"},
        {tx.completed == rig->done, "completed = told"},
        {tx.held == 0, "held"},
        {tx.stops == tx.wakes && tx.wakes == rig->wakes, "stops = wakes"},
        {!virtio_net_tx_stopped(rig->dev, RIG_PAIR), "stopped"},
        {in_use == 0, "each frame came back"},
        {rig->unknown_cookies == 0, "cookies"},
        {rig->wrong_pairs == 0, "told of the pair that was asked for"},
        {rig->device.violations == 0, "violations"},
        {rx_stats.pool_free + rx_stats.posted == rx_stats.pool_bufs, "RX pool"},
    };
    for (unsigned i = 0; i < sizeof(rest) / sizeof(rest[0]); i++) {
        if (!rest[i].holds) {
            fprintf(stderr, "not at rest: %s\n", rest[i].what);
            ok = false;
        }
    }
    return ok;
}
