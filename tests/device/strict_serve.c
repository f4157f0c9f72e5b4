/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The device at work: frames out of the transmit queue, frames into the receive queue, used
 * buffers, interrupts; and each hostile way to do these.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/device/strict_device.h"

static uint32_t choose(struct strict_device *dev, const struct strict_queue *q)
{
    switch (dev->opt.order) {
    case STRICT_REVERSED:
        return q->n_pending - 1;
    case STRICT_RANDOM:
        return (uint32_t)(strict_random(dev) % q->n_pending);
    case STRICT_IN_ORDER:
        break;
    }
    return 0;
}

static void publish(struct strict_device *dev, struct strict_queue *q)
{
    if (strict_once_in(dev, dev->fault.early_interrupts, dev->n_used)) {
        strict_device_raise_spurious(dev, q->index);
    }
    q->moved_ns = dev->now_ns;
    if (strict_queue_publish(q)) {
        strict_device_raise(dev, q->index);
    }
}

static void publish_batch(struct strict_device *dev, struct strict_queue *q)
{
    if (dev->opt.batch != 0 && (uint16_t)(q->used_next - q->used_idx) >= dev->opt.batch) {
        publish(dev, q);
    }
}

/* Used entries that name no buffer of the device. */
static void be_hostile(struct strict_device *dev, struct strict_queue *q, uint16_t last_head)
{
    const uint32_t n = dev->n_used++;
    if (strict_once_in(dev, dev->fault.used_id_range, n)) {
        strict_queue_use_raw(q, q->size_descs + (uint32_t)(strict_random(dev) % 1000000u), 60);
    }
    if (strict_once_in(dev, dev->fault.used_twice, n)) {
        strict_queue_use_raw(q, last_head, 60);
    }
    if (strict_once_in(dev, dev->fault.used_id_idle, n)) {
        for (uint32_t id = 0; id < q->size_descs; id++) {
            if (q->owner[id] == 0 && id != last_head) {
                strict_queue_use_raw(q, id, 60);
                break;
            }
        }
    }
    if (strict_once_in(dev, dev->fault.idx_jump, n)) {
        q->used_next = (uint16_t)(q->used_next + q->size_descs + 3u);
    }
}

/* ---- transmit ---- */

static void transmit(struct strict_device *dev, const struct strict_chain *chain)
{
    uint32_t at = 0;
    if (chain->malformed || chain->readable_bytes > STRICT_NET_HDR_BYTES + STRICT_NET_FRAME_BYTES) {
        return;
    }
    for (uint32_t i = 0; i < chain->n_segs; i++) {
        memcpy(dev->scratch + at, chain->segs[i].ptr, chain->segs[i].len_bytes);
        at += chain->segs[i].len_bytes;
    }
    if (dev->wire != NULL) {
        dev->wire(dev->ctx, dev->scratch, at);
    }
    if (!strict_net_check_tx(&dev->net, dev->scratch, at)) {
        return;
    }
    dev->tx_frames++;
    dev->tx_bytes += at - STRICT_NET_HDR_BYTES;
    if (dev->sink != NULL) {
        struct strict_net_hdr hdr;
        memcpy(&hdr, dev->scratch, sizeof(hdr));
        dev->sink(dev->ctx, &hdr, dev->scratch + STRICT_NET_HDR_BYTES, at - STRICT_NET_HDR_BYTES);
    }
}

static void serve_transmit(struct strict_device *dev, struct strict_queue *q)
{
    uint32_t left = dev->opt.per_step != 0 ? dev->opt.per_step : UINT32_MAX;
    while (left > 0) {
        if (q->n_pending == 0 && strict_queue_look(q, dev->now_ns) == 0) {
            break;
        }
        struct strict_chain *chain = strict_queue_take(q, choose(dev, q));
        dev->descs += chain->n_segs;
        transmit(dev, chain);
        strict_queue_use(q, chain, 0);
        be_hostile(dev, q, chain->head);
        publish_batch(dev, q);
        left--;
    }
    dev->unfinished[q->index] = left == 0 && q->n_pending > 0;
}

/* ---- receive ---- */

static void note_stock(struct strict_device *dev, struct strict_queue *q)
{
    if (dev->rx_stock_checked) {
        return;
    }
    dev->rx_stock_checked = true;
    for (uint32_t i = 0; i < q->n_pending; i++) {
        const uint16_t head = q->fifo[(q->fifo_head + i) & (q->size_descs - 1)];
        dev->rx_stock_bytes += q->chains[head].writable_bytes;
    }
    strict_net_check_rx_stock(&dev->net, dev->rx_stock_bytes);
}

/* Copies into the chain from `from` on; returns the bytes written. */
static uint32_t fill(const struct strict_chain *chain, const uint8_t *from, uint32_t n)
{
    uint32_t done = 0;
    for (uint32_t i = 0; i < chain->n_segs && done < n; i++) {
        uint32_t piece = chain->segs[i].len_bytes;
        piece = piece < n - done ? piece : n - done;
        memcpy(chain->segs[i].ptr, from + done, piece);
        done += piece;
    }
    return done;
}

/* The chains that a packet of so many bytes takes, or 0 when there are not enough. */
static uint32_t gather(struct strict_device *dev, struct strict_queue *q, uint32_t bytes,
                       struct strict_chain *chains[], uint32_t max)
{
    uint64_t room = 0;
    uint32_t n = 0;
    if (!strict_has(dev->net.accepted, F_MRG_RXBUF)) {
        max = 1;
    }
    while (room < bytes && n < max && q->n_pending > 0) {
        chains[n] = strict_queue_take(q, choose(dev, q));
        strict_net_check_rx_buffer(&dev->net, chains[n]);
        room += chains[n++]->writable_bytes;
    }
    if (room >= bytes) {
        return n;
    }
    while (n > 0) {
        strict_queue_untake(q, chains[--n]);
    }
    return 0;
}

static uint32_t told_length(struct strict_device *dev, uint32_t written, uint32_t room)
{
    if (strict_once_in(dev, dev->fault.rx_len_short, dev->n_packets)) {
        return (uint32_t)(strict_random(dev) % (STRICT_NET_HDR_BYTES + 14));
    }
    if (strict_once_in(dev, dev->fault.rx_len_long, dev->n_packets)) {
        return room + 1 + (uint32_t)(strict_random(dev) & 0x7fffffff);
    }
    return written;
}

static struct strict_net_hdr header_for(struct strict_device *dev, const struct strict_frame *frame,
                                        uint32_t n_chains)
{
    struct strict_net_hdr hdr = frame->hdr;
    if (strict_once_in(dev, dev->fault.rx_header, dev->n_packets)) {
        hdr = dev->fault.rx_header_value;
    }
    hdr.num_buffers = (uint16_t)n_chains;
    if (strict_once_in(dev, dev->fault.num_buffers, dev->n_packets)) {
        hdr.num_buffers = dev->fault.num_buffers_value;
    }
    return hdr;
}

static void deliver(struct strict_device *dev, struct strict_queue *q, const struct strict_frame *f,
                    struct strict_chain *chains[], uint32_t n)
{
    const struct strict_net_hdr hdr = header_for(dev, f, n);
    const uint32_t total = STRICT_NET_HDR_BYTES + f->len_bytes;
    uint32_t at = 0;
    memcpy(dev->scratch, &hdr, sizeof(hdr));
    memcpy(dev->scratch + STRICT_NET_HDR_BYTES, f->bytes, f->len_bytes);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t written = fill(chains[i], dev->scratch + at, total - at);
        at += written;
        strict_queue_use(q, chains[i],
                         told_length(dev, written, (uint32_t)chains[i]->writable_bytes));
        dev->rx_buffers++;
        dev->descs += chains[i]->n_segs;
        be_hostile(dev, q, chains[i]->head);
    }
    dev->n_packets++;
    dev->rx_packets++;
    dev->rx_bytes += f->len_bytes;
    publish_batch(dev, q);
}

static void serve_receive(struct strict_device *dev, struct strict_queue *q)
{
    struct strict_chain *chains[64];
    uint32_t left = dev->opt.per_step != 0 ? dev->opt.per_step : UINT32_MAX;
    strict_queue_look(q, dev->now_ns);
    note_stock(dev, q);
    dev->rx_dry = false;
    while (dev->to_driver != NULL && left-- > 0) {
        struct strict_frame *frame = dev->to_driver;
        const uint32_t n = gather(dev, q, STRICT_NET_HDR_BYTES + frame->len_bytes, chains, 64);
        if (n == 0) {
            dev->rx_dry = true;
            break;
        }
        deliver(dev, q, frame, chains, n);
        dev->to_driver = frame->next;
        dev->n_to_driver--;
        if (dev->to_driver == NULL) {
            dev->to_driver_tail = &dev->to_driver;
        }
        free(frame);
    }
}

/* ---- anything else ---- */

static void serve_control(struct strict_device *dev, struct strict_queue *q)
{
    while (q->n_pending > 0 || strict_queue_look(q, dev->now_ns) > 0) {
        struct strict_chain *chain = strict_queue_take(q, 0);
        if (!chain->malformed && chain->n_segs > 0 && chain->segs[0].len_bytes >= 2) {
            strict_net_check_command(&dev->net, chain->segs[0].ptr[0], chain->segs[0].ptr[1]);
        }
        strict_queue_use(q, chain, 1);
    }
}

/* The suppression word that was not negotiated means nothing, so the device may use it as it likes.
 */
static void scribble(struct strict_device *dev, struct strict_queue *q)
{
    const uint16_t junk = (uint16_t)strict_random(dev);
    *(q->event_idx ? strict_used_flags(q) : strict_avail_event(q)) = q->event_idx ? junk & 1 : junk;
    dev->faults_done++;
}

void strict_device_serve(struct strict_device *dev, unsigned index)
{
    struct strict_queue *q = &dev->queue[index];
    if (dev->serving || !q->enabled) {
        return;
    }
    dev->serving = true;
    if (dev->fault.scribble_unused_event) {
        scribble(dev, q);
    }
    if (dev->opt.polls) {
        strict_queue_notify_off(q);
    }
    do {
        if (index == 0) {
            serve_receive(dev, q);
        } else if (index == 1) {
            serve_transmit(dev, q);
        } else {
            serve_control(dev, q);
        }
        if (q->used_next != q->used_idx) {
            publish(dev, q);
        }
        /* Ask to be told of more, and look once more (2.7.10.2): what came in between is served. */
    } while (!dev->opt.polls && strict_queue_notify_on(q, dev->now_ns) > 0 &&
             dev->opt.per_step == 0);
    dev->serving = false;
}
