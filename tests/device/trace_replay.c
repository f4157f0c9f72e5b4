/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver's objects, driven through a recorded run. The calls and the device's side come from
 * the trace, the decisions from the driver, which records again; the two records must be the same.
 *
 *     recorded events -> call -> driver -> [ring memory] <- device's words, before the load that
 * saw |                        them then
 *                                  +-> recorded again, compared after each call
 */
#include "tests/device/trace.h"

#include <ctype.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/model_device.h"
#include "tests/device/seams.h"

#define HEADROOM_BYTES 64u
/* The driver may record more than was recorded then, and is to be seen doing it. */
#define SPARE_EVENTS 4096u
#define TCP_HEADERS  54u

struct replay {
    struct trace *want;
    struct ring_trace *got;
    uint32_t compared;
    struct model_device device;
    struct virtio_net *dev;
    uint64_t wakes, done;
    bool failed;
    uint8_t frame[HEADROOM_BYTES + VIRTIO_NET_GSO_MAX_BYTES];
};

static bool fail(struct replay *replay, const struct ring_event *event, const char *why)
{
    if (!replay->failed) {
        trace_fail(replay->want, event, "%s", why);
    }
    replay->failed = true;
    return false;
}

/* The next event that the driver has to record; NULL at the end. */
static const struct ring_event *next_event(const struct replay *replay)
{
    uint32_t n = replay->got != NULL ? replay->got->n : 0;
    return n < replay->want->n ? &replay->want->events[n] : NULL;
}

/* ---- the device's side ---- */

/* The used entries that the driver took back after it saw this index, and the headers of what was
 * received with them. */
static void write_used(struct replay *replay, const struct ring_event *event)
{
    struct model_queue *q = &replay->device.q[event->queue];
    const struct ring_event *end = replay->want->events + replay->want->n;
    const struct virtqueue *vq =
        event->queue == MODEL_TX ? &replay->dev->tx.vq : &replay->dev->rx.vq;
    /* What an earlier index has shown and is not taken back yet is in the ring already. */
    uint16_t there = vq_wrap(q->used_idx - vq->used_seen);

    for (const struct ring_event *at = event; at < end && q->used_idx != event->a; at++) {
        if (at->kind != RING_RECLAIM || at->queue != event->queue || there != 0) {
            there = vq_wrap(there - (at->kind == RING_RECLAIM && at->queue == event->queue));
            continue;
        }
        q->used->ring[q->used_idx++ % q->size] = (struct vq_used_elem){at->a, at->b};
        if (event->queue == MODEL_RX && at->a < q->size) {
            bool first = at + 1 < end && at[1].queue == MODEL_RX && at[1].kind == RING_NUM_BUFFERS;
            struct virtio_net_hdr hdr = {.num_buffers = first ? at[1].a : 1};
            void *buffer = seam_ram(q->desc[at->a].addr, sizeof(hdr));
            if (buffer != NULL) {
                memcpy(buffer, &hdr, sizeof(hdr));
            }
        }
    }
    q->used_idx = event->a;
    q->used->idx = event->a;
}

/* What the device would see in the ring now is what the driver's last event said it wrote. */
static void look_at_ring(struct replay *replay, struct model_queue *q, unsigned queue)
{
    const struct ring_event *last = &replay->got->events[replay->got->n - 1];

    if (replay->got->n == 0 || last->queue != queue) {
        return;
    }
    if (last->kind == RING_PUBLISH && q->avail->idx != last->a) {
        fail(replay, next_event(replay), "the published index is not in the ring");
    }
    bool event_idx = (replay->want->features & FEATURE(VIRTIO_F_EVENT_IDX)) != 0;
    if (last->kind == RING_ARM &&
        (event_idx ? q->avail->ring[q->size] != last->c : q->avail->flags != 0)) {
        fail(replay, next_event(replay), "the event armed is not in the ring");
    }
}

/* Before a load of the driver: the device's words, if this load is the one that saw them. */
static void on_access(void *ctx, const volatile void *addr, bool is_store)
{
    struct replay *replay = ctx;
    const struct ring_event *event = next_event(replay);

    for (unsigned i = 0; i < 2 && !is_store; i++) {
        struct model_queue *q = &replay->device.q[i];
        if (q->used == NULL || (addr != &q->used->idx && addr != &q->used->flags &&
                                addr != (const void *)&q->used->ring[q->size])) {
            continue;
        }
        look_at_ring(replay, q, i);
        if (event == NULL || event->queue != i) {
            return;
        }
        if (event->kind == RING_USED_IDX && addr == &q->used->idx && replay->dev != NULL) {
            write_used(replay, event);
        } else if (event->kind == RING_KICK || event->kind == RING_REKICK) {
            memcpy(&q->used->ring[q->size], &event->c, sizeof(event->c));
            q->used->flags = (uint16_t)(event->a != 0 ? 0 : VQ_USED_F_NO_NOTIFY);
        }
    }
}

/* ---- the calls ---- */

static void step(struct replay *replay, const struct ring_event *event);

/* From a callback: what was called from there, as far as that may be; the rest is done later, which
 * is the same to the driver. */
static void nested(struct replay *replay, bool returns)
{
    const struct ring_event *event;

    while (!replay->failed && (event = next_event(replay)) != NULL &&
           (event->queue == MODEL_TX ? strchr("APKCVZ", event->kind) != NULL
                                     : returns && event->kind == RING_CALL_RETURN)) {
        step(replay, event);
    }
}

static void on_done(void *ctx, unsigned pair, void *cookie, bool aborted)
{
    struct replay *replay = ctx;
    (void)pair;
    replay->done += cookie == replay && !aborted;
}

static void on_wake(void *ctx, unsigned pair)
{
    struct replay *replay = ctx;
    (void)pair;
    replay->wakes++;
    nested(replay, false);
}

static void on_rx(void *ctx, unsigned pair, const struct virtio_net_rx_packet *packet)
{
    (void)pair;
    (void)packet;
    nested(ctx, true);
}

static void on_link(void *ctx, bool up)
{
    (void)ctx;
    (void)up;
}

/* A frame of as many bytes that costs as many descriptors. */
static void send_frame(struct replay *replay, const struct ring_event *event)
{
    struct virtio_net_seg segs[VIRTIO_NET_TX_MAX_PIECES];
    struct virtio_net_tx_frame frame = {.segs = segs, .cookie = replay};
    uint32_t bytes = event->b - (uint32_t)sizeof(struct virtio_net_hdr);
    uint16_t n = event->c;

    frame.headroom_bytes = n <= VIRTIO_NET_TX_MAX_PIECES ? HEADROOM_BYTES : 0;
    frame.n_segs = frame.headroom_bytes != 0 ? n : (uint16_t)(n - 1);
    if (n == 0 || frame.n_segs > VIRTIO_NET_TX_MAX_PIECES || bytes < n ||
        bytes > VIRTIO_NET_GSO_MAX_BYTES) {
        fail(replay, event, "no frame is like that");
        return;
    }
    for (uint16_t i = 0; i < frame.n_segs; i++) {
        uint32_t rest = bytes - i;
        segs[i].addr = replay->frame + HEADROOM_BYTES + i;
        segs[i].len_bytes = i + 1 == frame.n_segs ? rest : 1;
    }
    if (bytes > replay->want->mtu_bytes + ETH_HEADER_BYTES) {
        frame.csum_partial = true;
        frame.gso = VIRTIO_NET_TX_TSO4;
        frame.gso_size_bytes = 1;
        frame.hdr_len_bytes = TCP_HEADERS;
    }
    (void)virtio_net_tx_add(replay->dev, 0, &frame);
}

static void return_buffer(struct replay *replay, const struct ring_event *event)
{
    if (event->a < replay->dev->rx.n_bufs) {
        virtio_net_rx_return(replay->dev, &replay->dev->rx.bufs[event->a]);
    }
}

static void call(struct replay *replay, const struct ring_event *event)
{
    struct virtio_net *dev = replay->dev;

    switch ((enum ring_event_kind)event->kind) {
    case RING_CALL_POLL:
        (void)(event->queue == MODEL_TX ? virtio_net_tx_reclaim(dev, 0, event->a)
                                        : virtio_net_rx_poll(dev, 0, event->a));
        break;
    case RING_CALL_ARM:
        (void)virtio_net_arm(dev, event->a != 0);
        break;
    case RING_CALL_DISARM:
        virtio_net_disarm(dev);
        break;
    case RING_CALL_SAFETY:
        (void)virtio_net_poll(dev, dev->safety_at_ns);
        break;
    case RING_CALL_RETURN:
        return_buffer(replay, event);
        break;
    case RING_CALL_RESERVE:
        (void)virtio_net_tx_reserve(dev, 0, event->a);
        break;
    case RING_CALL_UNRESERVE:
        virtio_net_tx_unreserve(dev, 0, event->a);
        break;
    case RING_ADD:
        send_frame(replay, event);
        break;
    case RING_PUBLISH:
    case RING_KICK:
        virtio_net_tx_flush(dev, 0);
        break;
    default:
        break;
    }
}

static bool compare(struct replay *replay)
{
    const struct ring_event *want = replay->want->events;

    for (; replay->compared < replay->got->n && replay->compared < replay->want->n;
         replay->compared++) {
        const struct ring_event *now = &replay->got->events[replay->compared];
        const struct ring_event *then = &want[replay->compared];
        if (now->kind != then->kind || now->queue != then->queue || now->a != then->a ||
            now->b != then->b || now->c != then->c) {
            trace_fail(replay->want, then, "this driver has `%c%u,%u,%" PRIu32 "` there",
                       now->queue == 0 ? tolower(now->kind) : now->kind, now->a, now->c, now->b);
            replay->failed = true;
            return false;
        }
    }
    /* What follows the end of a run that was recorded whole was not in it. */
    if (replay->got->n > replay->want->n && replay->want->lost == 0) {
        return fail(replay, NULL, "this driver does more after the end");
    }
    return true;
}

static void step(struct replay *replay, const struct ring_event *event)
{
    uint32_t before = replay->got->n;

    call(replay, event);
    if (compare(replay) && replay->got->n == before) {
        fail(replay, event, "no call makes this driver do that here");
    }
}

/* ---- the run ---- */

static const struct virtio_net_ops ops = {
    .tx_done = on_done, .tx_wake = on_wake, .rx = on_rx, .link = on_link};

static bool open_driver(struct replay *replay)
{
    const struct trace *want = replay->want;
    struct virtio_net_config config = {
        .ops = &ops,
        .ctx = replay,
        .policy = want->policy,
        .max_datagram_bytes = want->max_datagram_bytes,
        .mtu_bytes = want->mtu_bytes,
    };
    struct model_options opt;
    const char *why = NULL;

    model_options_default(&opt);
    opt.features = want->features;
    opt.mtu_bytes = want->mtu_bytes;
    opt.size_descs[MODEL_RX] = want->rx_size;
    opt.size_descs[MODEL_TX] = want->tx_size;
    model_init(&replay->device, &opt);
    config.trace = replay->got = ring_trace_new(want->n + SPARE_EVENTS);
    if (replay->got == NULL) {
        return fail(replay, NULL, "no memory");
    }
    replay->device.on_access = on_access;
    replay->device.ctx = replay;
    replay->dev = virtio_net_open_transport(&replay->device.base, &config, &why);
    if (replay->dev == NULL) {
        return fail(replay, NULL, why);
    }
    if (replay->dev->info.features_accepted != want->features ||
        replay->dev->tx.stop != want->tx_stop || replay->dev->tx.wake != want->tx_wake) {
        return fail(replay, NULL, "this driver takes other features or thresholds");
    }
    return compare(replay);
}

/* What reached the outside is what was recorded. */
static bool compare_effects(struct replay *replay)
{
    uint64_t kicks[2] = {0}, wakes = 0, done = 0;

    for (uint32_t i = 0; i < replay->got->n; i++) {
        const struct ring_event *event = &replay->got->events[i];
        kicks[event->queue] += event->a != 0 && strchr("KGH", event->kind) != NULL;
        wakes += event->kind == RING_WAKE;
        done += event->kind == RING_RECLAIM && event->queue == MODEL_TX;
    }
    if (kicks[0] != replay->device.q[0].kicks || kicks[1] != replay->device.q[1].kicks) {
        return fail(replay, NULL, "not every kick that was decided reached the device");
    }
    if (replay->want->lost == 0 && (wakes != replay->wakes || done != replay->done)) {
        return fail(replay, NULL, "not every wake or completion was told");
    }
    if (replay->device.violations != 0) {
        return fail(replay, NULL, "the model device saw a violation");
    }
    return !replay->failed;
}

static void run(struct replay *replay)
{
    const struct ring_event *event;

    if (!open_driver(replay)) {
        return;
    }
    while (!replay->failed && (event = next_event(replay)) != NULL) {
        step(replay, event);
    }
    if (!replay->failed) {
        (void)compare_effects(replay);
    }
}

bool trace_replay(struct trace *trace)
{
    static jmp_buf stopped;
    struct replay *volatile replay = calloc(1, sizeof(*replay));

    if (replay == NULL) {
        return trace_fail(trace, NULL, "no memory");
    }
    replay->want = trace;
    if (setjmp(stopped) == 0) {
        seam_expect_panic(&stopped);
        run(replay);
    } else {
        (void)fail(replay, next_event(replay), seam_panic_text());
    }
    bool ok = !replay->failed;
    seam_expect_panic(NULL);
    seam_reset();
    free(replay);
    return ok;
}
