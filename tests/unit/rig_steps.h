/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Steps that tests of the driver on the model device have in common: open, frames both ways, a
 * buffer answered at will, a completion or a kick that gets lost. Each asserts what must hold
 * whatever the test is about.
 */
#ifndef SLUICE_TESTS_RIG_STEPS_H
#define SLUICE_TESTS_RIG_STEPS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "boot/clock.h"
#include "tests/device/rig.h"
#include "tests/device/seams.h"

#define PAIR            0u
#define RIG_SHORT_BYTES 60u

static const struct virtio_net_hdr plain = {0};
static const uint8_t short_frame[RIG_SHORT_BYTES];

/* ---- open ---- */

static inline struct rig *rig_on(bool event_idx, bool indirect)
{
    struct rig *rig = rig_new();
    rig->config.refuse.event_idx = !event_idx;
    rig->config.refuse.indirect = !indirect;
    return rig;
}

static inline struct rig *rig_opened(bool event_idx)
{
    struct rig *rig = rig_on(event_idx, true);
    assert_true(rig_open(rig));
    return rig;
}

/* ---- traffic ---- */

static inline bool poll_now(struct rig *rig)
{
    return virtio_net_poll(rig->dev, clock_now_ns());
}

/* Sends until the queue stops; how many frames that took. */
static inline unsigned fill(struct rig *rig)
{
    unsigned n = 0;
    while (!virtio_net_tx_stopped(rig->dev, PAIR)) {
        assert_int_equal(rig_send(rig, 1, true), VIRTIO_NET_OK);
        n++;
    }
    return n;
}

/* All that was sent is on its way, done and taken back. */
static inline void complete_sent(struct rig *rig)
{
    virtio_net_tx_flush(rig->dev, PAIR);
    model_serve(&rig->device);
    virtio_net_tx_reclaim(rig->dev, PAIR, 1000);
}

static inline void receive_short(struct rig *rig)
{
    assert_true(model_receive(&rig->device, plain, short_frame, sizeof(short_frame)));
}

/* Frames both ways, as after a fresh start. */
static inline void expect_frames(struct rig *rig, unsigned n)
{
    uint64_t done = rig->done;
    uint64_t packets = rig->rx_packets;

    for (unsigned i = 0; i < n; i++) {
        assert_false(virtio_net_tx_stopped(rig->dev, PAIR));
        assert_int_equal(rig_send(rig, 2, true), VIRTIO_NET_OK);
        complete_sent(rig);
        receive_short(rig);
        assert_int_equal(virtio_net_rx_poll(rig->dev, PAIR, 64), 1);
    }
    assert_int_equal(rig->done, done + n);
    assert_int_equal(rig->rx_packets, packets + n);
}

static inline void expect_traffic(struct rig *rig)
{
    expect_frames(rig, 200);
    assert_true(rig_at_rest(rig));
}

/* A used entry of any length for the first posted buffer, header as given. */
static inline void use_first(struct rig *rig, const struct virtio_net_hdr *hdr, uint32_t used_bytes)
{
    struct model_queue *q = &rig->device.q[MODEL_RX];

    model_take(&rig->device, MODEL_RX);
    assert_true(q->n_held > 0);
    uint16_t head = q->held[0];
    memmove(&q->held[0], &q->held[1], --q->n_held * sizeof(q->held[0]));
    q->mine[head] = false;
    if (hdr != NULL) {
        memcpy(seam_ram(q->desc[head].addr, sizeof(*hdr)), hdr, sizeof(*hdr));
    }
    model_use_raw(&rig->device, MODEL_RX, head, used_bytes);
    model_publish(&rig->device, MODEL_RX);
}

/* ---- what gets lost ---- */

/* The device is done with what it was sent, and its interrupt does not come. */
static inline void serve_unheard(struct rig *rig)
{
    rig->device.drop_interrupts = true;
    model_serve(&rig->device);
    rig->device.drop_interrupts = false;
}

/* One frame whose completion the driver armed for, for nothing. */
static inline void send_unheard(struct rig *rig)
{
    rig_send(rig, 1, true);
    assert_true(virtio_net_arm(rig->dev, true));
    serve_unheard(rig);
}

/* One frame whose kick does not reach the device. */
static inline void send_unkicked(struct rig *rig)
{
    rig->device.drop_kicks = true;
    rig_send(rig, 1, true);
    virtio_net_tx_flush(rig->dev, PAIR);
    rig->device.drop_kicks = false;
}

#endif
