/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/device/interleave_queue.h"

#include <string.h>

#include "tests/device/seams.h"

#define FRAME_BYTES 60u

/* Words that the driver may write in between; each turn makes one such access. */
static uint16_t load(const volatile uint16_t *at)
{
    return *at;
}

static void store(volatile uint16_t *at, uint16_t value)
{
    *at = value;
}

static bool wrong(struct interleave_queue *q, bool is, const char *what)
{
    if (is && q->wrong == NULL) {
        q->wrong = what;
    }
    return is;
}

static void fetch(struct interleave_queue *q)
{
    q->head = load(&q->avail->ring[q->seen % q->size]);
    if (wrong(q, q->head >= q->size, "a head beyond the ring") ||
        wrong(q, q->mine[q->head], "a chain that the device still has")) {
        return;
    }
    q->mine[q->head] = true;
    q->seen++;
    q->at = AT_READ;
}

static void read_chain(struct interleave_queue *q)
{
    const struct vq_desc *desc = &q->desc[q->head];
    uint8_t *bytes = seam_ram(desc->addr, desc->len);

    if (wrong(q, desc->len == 0 || bytes == NULL, "a descriptor that is no memory") ||
        wrong(q, (desc->flags & VQ_DESC_F_WRITE) != (q->receives ? VQ_DESC_F_WRITE : 0),
              "a descriptor for the other direction")) {
        return;
    }
    if (q->receives) {
        struct virtio_net_hdr hdr = {.num_buffers = 1};
        memcpy(bytes, &hdr, sizeof(hdr));
        q->frames_left--;
    }
    q->at = AT_ENTRY;
}

static void write_entry(struct interleave_queue *q)
{
    uint32_t len = q->receives ? FRAME_BYTES + (uint32_t)sizeof(struct virtio_net_hdr) : 0;

    q->used->ring[q->used_idx % q->size] = (struct vq_used_elem){q->head, len};
    q->used_idx++;
    q->mine[q->head] = false;
    q->taken++;
    /* More of what is already known to be there goes to the same index. */
    bool more = (uint16_t)(q->used_idx - q->signalled) < q->batch && q->seen != q->avail_idx &&
                (!q->receives || q->frames_left != 0);
    q->at = more ? AT_FETCH : AT_INDEX;
}

/* 2.7.7.2, 2.7.10: the word of the driver that tells whether it wants an interrupt. The device's
 * own barrier stands before it. */
static void look_at_event(struct interleave_queue *q)
{
    bool wanted;

    if (q->event_idx) {
        wanted = vq_need_event(load(&q->avail->ring[q->size]), q->used_idx, q->signalled);
    } else {
        wanted = (load(&q->avail->flags) & VQ_AVAIL_F_NO_INTERRUPT) == 0;
    }
    q->signalled = q->used_idx;
    q->at = wanted ? AT_INTERRUPT : AT_LOOK;
}

static void ask(struct interleave_queue *q, bool kicks)
{
    if (!q->event_idx) {
        store(&q->used->flags, (uint16_t)(kicks ? 0u : VQ_USED_F_NO_NOTIFY));
    } else if (kicks) {
        memcpy(&q->used->ring[q->size], &q->seen, sizeof(q->seen));
    }
}

static void look(struct interleave_queue *q)
{
    q->avail_idx = load(&q->avail->idx);
    bool some = q->avail_idx != q->seen;

    if (q->at == AT_LOOK) {
        q->at = some ? AT_FETCH : AT_ASK;
    } else {
        q->at = some ? AT_WAKE : AT_SLEEP;
    }
}

static void turn(void *ctx)
{
    struct interleave_queue *q = ctx;

    switch (q->at) {
    case AT_SLEEP:
        q->kicked = false;
        q->at = q->event_idx ? AT_LOOK : AT_WAKE;
        break;
    case AT_WAKE:
        ask(q, false);
        q->at = AT_LOOK;
        break;
    case AT_LOOK:
    case AT_LOOK_AGAIN:
        look(q);
        break;
    case AT_FETCH:
        fetch(q);
        break;
    case AT_READ:
        read_chain(q);
        break;
    case AT_ENTRY:
        write_entry(q);
        break;
    case AT_INDEX:
        store(&q->used->idx, q->used_idx);
        q->at = AT_EVENT;
        break;
    case AT_EVENT:
        look_at_event(q);
        break;
    case AT_INTERRUPT:
        q->line->count++;
        q->at = AT_LOOK;
        break;
    case AT_ASK:
        ask(q, true);
        q->at = AT_LOOK_AGAIN;
        break;
    }
}

/* A queue that receives does nothing while there is nothing to be received. */
static bool can(void *ctx)
{
    const struct interleave_queue *q = ctx;

    if (q->wrong != NULL || (q->at == AT_SLEEP && !q->kicked)) {
        return false;
    }
    return !q->receives || q->frames_left != 0 || (q->at != AT_LOOK && q->at != AT_SLEEP);
}

void interleave_queue_init(struct interleave_queue *q, const struct model_device *dev,
                           unsigned queue, unsigned batch)
{
    const struct model_queue *from = &dev->q[queue];

    *q = (struct interleave_queue){
        .desc = from->desc,
        .avail = from->avail,
        .used = from->used,
        .line = dev->base.queue_line[queue],
        .size = from->size,
        .event_idx = (dev->accepted & FEATURE(VIRTIO_F_EVENT_IDX)) != 0,
        .receives = queue == MODEL_RX,
        .batch = batch,
        .at = AT_SLEEP,
        .kicked = queue == MODEL_RX, /* at the end of the start-up */
    };
}

void interleave_queue_kick(struct interleave_queue *q)
{
    q->kicked = true;
}

struct interleave_device interleave_queue_side(struct interleave_queue *q)
{
    return (struct interleave_device){can, turn, q};
}
