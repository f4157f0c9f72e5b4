/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One queue of a device as a machine whose turns are one shared access each: what a backend such as
 * vhost does, with every place where it can be overtaken.
 *
 *     asleep -kick-> look -> fetch -> read -> write entry -> write index -> look at event ->
 * interrupt |  <-----------------------------------------------------'
 *                     '-nothing-> ask for a kick -> look again -nothing-> asleep
 */
#ifndef SLUICE_TESTS_INTERLEAVE_QUEUE_H
#define SLUICE_TESTS_INTERLEAVE_QUEUE_H

#include "tests/device/interleave.h"
#include "tests/device/model_device.h"

#define INTERLEAVE_RING_DESCS 4u

enum interleave_at {
    AT_SLEEP,
    AT_WAKE, /* without EVENT_IDX: asks for no more kicks */
    AT_LOOK,
    AT_FETCH,
    AT_READ,
    AT_ENTRY,
    AT_INDEX,
    AT_EVENT,
    AT_INTERRUPT,
    AT_ASK,
    AT_LOOK_AGAIN,
};

struct interleave_queue {
    struct vq_desc *desc;
    struct vq_avail *avail;
    struct vq_used *used;
    struct irq_line *line;
    uint16_t size;
    bool event_idx;
    bool receives;
    unsigned frames_left; /* to be received; for transmit without meaning */
    unsigned batch;       /* entries to one index */

    enum interleave_at at;
    bool kicked;
    uint16_t avail_idx; /* as last seen */
    uint16_t seen, head, used_idx, signalled;
    bool mine[INTERLEAVE_RING_DESCS];
    unsigned taken;
    const char *wrong; /* what the driver did against the rules */
};

/* A queue that the driver has set up on the model device. */
void interleave_queue_init(struct interleave_queue *q, const struct model_device *dev,
                           unsigned queue, unsigned batch);
void interleave_queue_kick(struct interleave_queue *q);
struct interleave_device interleave_queue_side(struct interleave_queue *q);

#endif
