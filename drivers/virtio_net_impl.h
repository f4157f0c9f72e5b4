/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the parts of the virtio-net driver share with each other and with nobody else.
 */
#ifndef SLUICE_DRIVERS_VIRTIO_NET_IMPL_H
#define SLUICE_DRIVERS_VIRTIO_NET_IMPL_H

#include "drivers/virtio_net.h"
#include "drivers/virtio_transport.h"
#include "drivers/virtqueue.h"

/* Feature bits of the network device (5.1.3). */
#define VIRTIO_NET_F_CSUM         0
#define VIRTIO_NET_F_GUEST_CSUM   1
#define VIRTIO_NET_F_MTU          3
#define VIRTIO_NET_F_MAC          5
#define VIRTIO_NET_F_GUEST_TSO4   7
#define VIRTIO_NET_F_HOST_TSO4    11
#define VIRTIO_NET_F_MRG_RXBUF    15
#define VIRTIO_NET_F_STATUS       16
#define VIRTIO_NET_F_GUEST_HDRLEN 59
#define FEATURE(bit)              (1ull << (bit))

/* Configuration space (5.1.4). */
#define VIRTIO_NET_CFG_MAC    0u
#define VIRTIO_NET_CFG_STATUS 6u
#define VIRTIO_NET_CFG_MTU    10u
#define VIRTIO_NET_S_LINK_UP  1u

/* The only pair in use, and the numbers of its queues (5.1.2). */
#define VIRTIO_NET_PAIR     0u
#define VIRTIO_NET_RX_QUEUE 0u
#define VIRTIO_NET_TX_QUEUE 1u

/* Header flags and segmentation types (5.1.6). */
#define VIRTIO_NET_HDR_F_NEEDS_CSUM 1u
#define VIRTIO_NET_HDR_F_DATA_VALID 2u
#define VIRTIO_NET_HDR_GSO_NONE     0u
#define VIRTIO_NET_HDR_GSO_TCPV4    1u

#define ETH_HEADER_BYTES 14u

/* Of a network device's header in its form since 1.0 without further features. */
struct virtio_net_hdr {
    uint8_t flags;
    uint8_t gso_type;
    uint16_t hdr_len;
    uint16_t gso_size;
    uint16_t csum_start;
    uint16_t csum_offset;
    uint16_t num_buffers;
};
_Static_assert(sizeof(struct virtio_net_hdr) == VIRTIO_NET_HDR_MAX_BYTES, "5.1.6");
_Static_assert(offsetof(struct virtio_net_hdr, num_buffers) == 10, "5.1.6");

/* Every number below has its formula and reason in docs/thresholds.md. */

/* A device that does not end a reset in this time is broken. */
#define RESET_TIMEOUT_NS 1000000000ull
/* The safety timer's period: what a lost interrupt or kick may cost at most. Two looks of it, since
 * only what was in flight at the look before and is so still may be called stalled. */
#define SAFETY_PERIOD_NS 100000000ull
#define SAFETY_LOOK_NS   (SAFETY_PERIOD_NS / 2)
/* A kick given again was the missing one if something moves this soon after it. */
#define LOST_KICK_WINDOW_NS 5000000ull
/* The status register is read once in so many looks, whatever moves: who only receives notices no
 * other way that nobody is there any more. */
#define STATUS_LOOKS 20u
/* An interrupt may come this much later than the used index that it is for. */
#define LATE_INTERRUPT_NS 5000000ull
/* A receive queue may be silent because nobody sends: this many kicks, then silence is believed. */
#define RX_REKICKS_MAX 3u
/* Resets without one completed buffer between them, before the device is given up. */
#define MAX_FRUITLESS_RESETS 8u
/* Tries to read a configuration that changes under the reader. */
#define CONFIG_READ_TRIES 16u

/* One segment more than the caller's for a header that has no headroom. */
#define TX_MAX_SEGS (VIRTIO_NET_TX_MAX_PIECES + 1u)
/* Smallest and largest IP MTU (5.1.4.1; IPv4 asks for 68). */
#define MTU_MIN_BYTES     68u
#define MTU_DEFAULT_BYTES 1500u

/* What a full ring does to a frame. */
enum tx_on_full {
    TX_FULL_UNEXPECTED, /* cannot happen after a positive room check; counted if it does */
    TX_FULL_HOLD,       /* one frame waits in front of the ring, as a queueing discipline would */
    TX_FULL_DROP,
    TX_FULL_SPIN, /* wait for room inside the send call */
};

struct tx_policy {
    bool stops;       /* at the stop threshold; else never */
    bool wake_on_one; /* at one free descriptor; else at the wake threshold */
    bool recheck;     /* look again after arming */
    enum tx_on_full on_full;
};

extern const struct tx_policy tx_policies[VIRTIO_NET_POLICIES];

/* Thresholds of one TX ring, in descriptors. A pure function of what is in tx_form. */
struct tx_form {
    uint16_t size_descs;
    bool indirect;
    bool tso;
    uint16_t mtu_bytes;
    uint32_t max_datagram_bytes;
};

struct tx_thresholds {
    uint16_t unit, reserve, stop, wake;
    bool tso;                    /* false: the ring is too small for it */
    uint32_t max_datagram_bytes; /* what the gate admits whole */
    uint16_t max_segs;           /* of a plain frame, that always fit */
};

/* False: the ring cannot hold one frame of MTU size and the reserve. */
bool tx_thresholds(const struct tx_form *form, struct tx_thresholds *out);

/* One interrupt source as a queue sees it. */
struct irq_watch {
    const struct irq_line *line; /* NULL: polled */
    uint32_t counted;            /* already in the statistics */
    uint32_t at_arm;
    bool shared; /* with another queue: an interrupt without work may be the other's */
};

/* An interrupt that should have ended a wait and did not: lost, unless it still comes. */
struct irq_suspect {
    bool suspected;
    uint32_t count; /* of the line, then */
    uint64_t at_ns;
};

/* Kicks given again by the safety timer, since the last progress of the queue. */
struct rekick {
    bool busy;     /* something was in flight at the timer's last look */
    uint16_t seen; /* used_seen then */
    uint16_t given;
    bool shows_loss; /* if something moves now, the kick before these was lost */
    uint64_t first_at_ns;
};

/* The fault policies' requeue holder: one frame, the array of segments copied. */
struct tx_holder {
    bool occupied;
    struct virtio_net_tx_frame frame;
    struct virtio_net_seg segs[VIRTIO_NET_TX_MAX_PIECES];
};

struct tx_queue {
    struct virtqueue vq;
    const struct tx_policy *policy;
    uint16_t stop, wake;
    uint16_t set_aside; /* for a frame that is still being joined */
    bool stopped;
    uint64_t stopped_at_ns;
    struct virtio_net_hdr *hdrs; /* by head, for frames without headroom */
    uint64_t hdrs_dma;
    struct irq_watch irq;
    struct irq_suspect suspect;
    struct rekick rekick;
    struct tx_holder holder;
    struct virtio_net_tx_stats stats;
};

enum rx_buf_state {
    RX_BUF_FREE = 0,
    RX_BUF_POSTED,
    RX_BUF_PARTIAL, /* part of a packet whose other buffers are not used yet */
    RX_BUF_OUT,     /* with the callee of ops->rx */
};

struct rx_buf {
    struct rx_buf *next_free;
    uint8_t *addr;
    uint64_t dma_addr;
    enum rx_buf_state state;
};

/* A packet that is being put together from its buffers. */
struct rx_partial {
    uint16_t n_wanted; /* 0: none */
    uint16_t n_have;
    bool bad; /* to be dropped whole, for this reason */
    enum virtio_net_rx_drop reason;
    struct virtio_net_rx_packet packet;
    struct virtio_net_rx_piece pieces[VIRTIO_NET_RX_MAX_PIECES];
};

struct rx_queue {
    struct virtqueue vq;
    struct rx_buf *bufs;
    struct rx_buf *free;
    uint32_t n_bufs, n_free;
    uint32_t buf_bytes;
    uint32_t packet_bytes; /* largest frame that is not joined by the device */
    struct irq_watch irq;
    struct irq_suspect suspect;
    struct rekick rekick;
    struct rx_partial partial;
    struct virtio_net_rx_stats stats;
};

struct virtio_net {
    struct virtio_transport *transport;
    const struct virtio_net_ops *ops;
    void *ctx;
    struct virtio_net_info info;
    struct tx_queue tx;
    struct rx_queue rx;
    struct irq_watch config_irq;
    uint8_t status; /* bits that the driver has set since the last reset; no DRIVER_OK: not live */
    bool dead;      /* given up: every call answers FATAL or nothing */
    bool reset_wanted; /* a ring or the device is broken; virtio_net_poll mends it */
    bool status_lost;  /* since the last start */
    unsigned fruitless_resets;
    uint64_t done_at_reset;
    uint64_t safety_at_ns;            /* next look of the safety timer */
    struct virtio_net_stall stall[2]; /* by queue, at the last suspicion */
    bool stall_told;
    unsigned looks;
    uint64_t first_kick_ns;
    uint64_t faults[VIRTIO_NET_FAULTS];
};

/* virtio_net_features.c */
uint64_t features_negotiate(const struct virtio_net_config *config, uint64_t offered,
                            bool mtu_usable, bool mac_usable, struct virtio_net_info *info);
void features_refuse(struct virtio_net_info *info, const char *name, const char *reason);

/* virtio_net_start.c */
bool device_start(struct virtio_net *dev, const struct virtio_net_config *config, const char **why);
bool device_restart(struct virtio_net *dev);
/* Every reset is this one. From here to DRIVER_OK the device is not live: what callees give back
 * meanwhile is posted by the next start. False: it does not end, and was closed. */
bool device_reset(struct virtio_net *dev);
bool config_status(struct virtio_net *dev, uint16_t *status);

/* virtio_net_tx_setup.c */
bool tx_allocate(struct virtio_net *dev, const struct virtio_net_config *config, uint16_t size,
                 const char **why);
void tx_abort(struct virtio_net *dev);

/* virtio_net_tx.c */
/* Descriptors for data: those of a frame that is still being joined are as good as used. */
static inline uint16_t tx_room(const struct tx_queue *tx)
{
    uint16_t n_free = vq_free_descs(&tx->vq);
    return n_free > tx->set_aside ? (uint16_t)(n_free - tx->set_aside) : 0;
}
bool tx_arm(struct virtio_net *dev, bool want_tx);
void tx_stop(struct virtio_net *dev);
void tx_stop_if_short(struct virtio_net *dev);
bool tx_wake_due(const struct tx_queue *tx);
void tx_wake_if_due(struct virtio_net *dev);
uint16_t tx_frame_cost(const struct virtio_net *dev, const struct virtio_net_tx_frame *frame);
/* Into the ring, without a look at the room. */
void tx_place(struct virtio_net *dev, const struct virtio_net_tx_frame *frame);

/* virtio_net_tx_full.c */
enum virtio_net_result tx_add_when_full(struct virtio_net *dev,
                                        const struct virtio_net_tx_frame *frame);
void tx_retry_held(struct virtio_net *dev);

/* virtio_net_rx.c */
bool rx_allocate(struct virtio_net *dev, uint16_t size, const char **why);
void rx_take_back(struct virtio_net *dev);
void rx_refill(struct virtio_net *dev);
void rx_kick(struct virtio_net *dev);

/* virtio_net_poll.c */
void note_ring_fault(struct virtio_net *dev, enum vq_fault fault);
/* Before an arming forgets the one before it. */
void judge_suspect(struct virtio_net *dev, struct virtqueue *vq, const struct irq_watch *irq,
                   struct irq_suspect *suspect);
/* Both once for each look at a ring; work: it found something. */
void irq_account(struct irq_watch *watch, bool work, uint64_t *interrupts, uint64_t *spurious);
void rekick_account(struct virtio_net *dev, struct rekick *rekick, bool work);

#endif
