/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A small network device for unit tests, at the level of struct virtio_transport: the test says
 * when it looks at a ring, what it completes, in which order, and what it answers wrong. What the
 * clauses say in full is the strict device's business; this one checks what every test relies on.
 *
 *     driver -> [virtqueue] -> model_take -> held -> model_complete -> [virtqueue] -> driver
 */
#ifndef SLUICE_TESTS_MODEL_DEVICE_H
#define SLUICE_TESTS_MODEL_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "drivers/virtio_net_impl.h"
#include "drivers/virtio_transport.h"

#define MODEL_RX 0u
#define MODEL_TX 1u

enum model_order { MODEL_IN_ORDER, MODEL_REVERSED, MODEL_RANDOM };

struct model_options {
    uint64_t features; /* offered */
    uint16_t size_descs[2];
    uint8_t mac[6];
    uint16_t mtu_bytes;
    bool link_up;
    bool no_msix;
    bool one_vector; /* all events on one line */
    enum model_order order;
    unsigned batch; /* completions between two publications of the used index, 0: all */
    bool serve;     /* at each kick takes that queue's buffers, and completes what was sent */
    /* Faults at start-up. */
    bool refuse_features, reset_never, refuse_vector, refuse_queue;
    unsigned config_changes; /* so many config reads find another generation after them */
    uint32_t config_bytes;
};

struct model_queue {
    bool enabled;
    uint16_t size;
    struct vq_desc *desc;
    struct vq_avail *avail;
    struct vq_used *used;
    uint16_t avail_seen, used_idx, signalled;
    bool mine[VQ_MAX_SIZE_DESCS];     /* heads that the device has */
    uint16_t held[VQ_MAX_SIZE_DESCS]; /* in order of arrival */
    unsigned n_held;
    bool notify_off; /* asks for no kicks */
    uint64_t kicks, interrupts, taken, completed;
};

struct model_device {
    struct virtio_transport base;
    struct model_options opt;
    struct irq_line lines[3];
    uint8_t status;
    bool off_bus; /* closed: may touch no memory */
    uint64_t accepted;
    uint8_t generation;
    struct model_queue q[2];
    uint64_t resets;
    uint32_t random;
    uint16_t link_status;
    bool serving;
    /* A frame as sent: header, then the frame in one piece. Valid during the call. */
    void (*on_frame)(void *ctx, const struct virtio_net_hdr *hdr, const uint8_t *frame,
                     uint32_t len_bytes);
    /* Before a shared access of the driver: where a test lets the device run in between. */
    void (*on_access)(void *ctx, const volatile void *addr, bool is_store);
    void *ctx;
    bool drop_kicks, drop_interrupts;
    unsigned violations; /* of what a device may expect of a driver; each is printed */
    uint64_t config_reads;
};

void model_options_default(struct model_options *opt);
/* Also hooks the device into the seams, which are reset. */
void model_init(struct model_device *dev, const struct model_options *opt);

/* Takes what the driver made available; returns how many buffers the device then has. */
unsigned model_take(struct model_device *dev, unsigned queue);
/* Completes so many TX buffers of those that it has; returns how many there were. */
unsigned model_complete(struct model_device *dev, unsigned n);
/* Takes and completes all. */
void model_serve(struct model_device *dev);
/* Sends the driver a frame; header as given, but num_buffers is right when it was 0. False: too few
 * buffers; nothing was used. */
bool model_receive(struct model_device *dev, struct virtio_net_hdr hdr, const void *frame,
                   uint32_t len_bytes);
/* Asks for kicks (the event at what it has seen), or for none. */
void model_notify(struct model_device *dev, unsigned queue, bool on);
/* Raw used entry and index. */
void model_use_raw(struct model_device *dev, unsigned queue, uint32_t id, uint32_t len_bytes);
void model_publish(struct model_device *dev, unsigned queue);
void model_set_link(struct model_device *dev, bool up);
void model_needs_reset(struct model_device *dev);

#endif
