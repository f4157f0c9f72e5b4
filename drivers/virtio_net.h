/* SPDX-License-Identifier: BSD-2-Clause
 *
 * virtio-net as its user sees it: open, send, reclaim, receive, arm, close. VIRTIO 1.x section 5.1.
 *
 * The driver knows segments (address, length) and cookies; no type of a network stack and no
 * socket. Events come up only through the functions handed down at open, and only from inside the
 * calls of this file, never from an interrupt. One caller, one core: no function here may be
 * entered from two contexts.
 *
 * `pair` is the number of a receive queue and the transmit queue that belongs to it, here as in the
 * callbacks. The driver uses the first pair, 0, of any device.
 *
 * Sending in four lines:
 *
 *     if (virtio_net_tx_stopped(dev, pair))  // false: room for a whole unit plus the reserve
 *         wait for tx_wake                   // true promises that it comes
 *     virtio_net_tx_add(dev, pair, &frame)   // cannot fail now; may stop the queue for the next
 * one virtio_net_tx_flush(dev, pair)         // once a batch: publish, and kick if it is wanted
 */
#ifndef SLUICE_DRIVERS_VIRTIO_NET_H
#define SLUICE_DRIVERS_VIRTIO_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* struct virtio_net_hdr with num_buffers, the longest form that is negotiated (5.1.6). */
#define VIRTIO_NET_HDR_MAX_BYTES 12u

/* Most segments one frame may have, the header's own not counted. A TSO frame costs as many
 * descriptors in a ring without INDIRECT_DESC. */
#define VIRTIO_NET_TX_MAX_PIECES 18u

/* Longest Ethernet frame handed over for segmentation: an IP packet of 65,535 bytes and its header.
 */
#define VIRTIO_NET_GSO_MAX_BYTES (65535u + 14u)

/* Most RX buffers that one received packet may span: 64 KiB in buffers of one page half. */
#define VIRTIO_NET_RX_MAX_PIECES 64u

struct virtio_net;
struct ring_trace;

enum virtio_net_result {
    VIRTIO_NET_OK = 0,
    VIRTIO_NET_AGAIN = -1, /* nothing was taken; a wake follows */
    VIRTIO_NET_FATAL = -2, /* nothing was taken, nor ever will: the device is gone or broken, or the
                              frame is malformed (counted) */
};

enum virtio_net_gso {
    VIRTIO_NET_TX_PLAIN = 0,
    VIRTIO_NET_TX_TSO4 = 1,
};

struct virtio_net_seg {
    const void *addr; /* DMA-able; unchanged until tx_done(cookie) */
    uint32_t len_bytes;
};

/*
 * One frame to send, Ethernet header first, no CRC. The struct and the array are read during the
 * call only. The memory of the segments and the cookie belong to the driver from a call that
 * answered OK until tx_done(cookie).
 */
struct virtio_net_tx_frame {
    const struct virtio_net_seg *segs;
    uint16_t n_segs;         /* 1..VIRTIO_NET_TX_MAX_PIECES */
    uint16_t headroom_bytes; /* writable before segs[0].addr: with at least virtio_net_hdr_bytes()
                                the net header goes there and costs no descriptor */
    bool control;            /* may use the reserve while stopped: ARP, ICMP, pure ACK */
    bool csum_partial;   /* the field at csum_start + csum_offset holds the pseudo header's sum */
    uint16_t csum_start; /* from the start of the Ethernet header, bytes */
    uint16_t csum_offset;
    enum virtio_net_gso gso;
    uint16_t gso_size_bytes; /* payload of each segment that the device makes */
    uint16_t hdr_len_bytes;  /* Ethernet + IP + TCP headers, with gso */
    void *cookie;            /* not NULL */
};

/* What one received packet is made of. pieces[i].buf is the handle to give back with
 * virtio_net_rx_return. */
struct virtio_net_rx_piece {
    void *buf;
    uint8_t *addr; /* the first piece begins with the Ethernet header */
    uint32_t len_bytes;
};

struct virtio_net_rx_packet {
    const struct virtio_net_rx_piece *pieces;
    uint16_t n_pieces;
    uint32_t len_bytes;  /* of all pieces */
    bool csum_valid;     /* the device says that the checksum is right (DATA_VALID) */
    bool csum_partial;   /* the checksum is still to be filled in, the packet never was on a wire
                            (NEEDS_CSUM);   wins over csum_valid */
    uint16_t csum_start; /* checked against the packet's length */
    uint16_t csum_offset;
    bool coalesced; /* several segments joined by the device */
    uint16_t gso_size_bytes;
};

/* A queue as the safety timer found it, where an interrupt or a kick turned out to be missing. */
struct virtio_net_stall {
    const char *fault; /* a name of virtio_net_fault_names */
    unsigned queue;    /* of the pair: 0 receives, 1 transmits */
    uint16_t avail_idx, used_idx, used_seen;
    uint16_t event; /* of the device: avail_event as last read, 0 without EVENT_IDX */
    uint32_t interrupts;
};

struct virtio_net_ops {
    /* The device is done with the frame, or it was aborted by a reset. The slots are free already.
     * Adds nothing itself. With a fault policy also from inside virtio_net_tx_add. */
    void (*tx_done)(void *ctx, unsigned pair, void *cookie, bool aborted);
    /* The queue was stopped and has room for a whole unit again. Once for each stop, at the end of
     * a reclaim batch. */
    void (*tx_wake)(void *ctx, unsigned pair);
    /* One packet. The pieces belong to the callee, who gives each back. The array is the driver's.
     */
    void (*rx)(void *ctx, unsigned pair, const struct virtio_net_rx_packet *packet);
    /* Link state: after a configuration interrupt or a reset, from virtio_net_poll. Down for
     * good when the device is given up: info.lost. */
    void (*link)(void *ctx, bool up);
    /* The first interrupt or kick that got lost; by now the queue moves again. May be NULL. */
    void (*stall)(void *ctx, const struct virtio_net_stall *stall);
};

/* Stop/wake policies: rows of a table, the first is the correct one, the others show historical
 * faults. */
enum virtio_net_policy {
    VIRTIO_NET_POLICY_THRESHOLD = 0,
    VIRTIO_NET_POLICY_WAKE_ON_ONE,
    VIRTIO_NET_POLICY_DROP,
    VIRTIO_NET_POLICY_SPIN,
    VIRTIO_NET_POLICY_NO_RECHECK,
    VIRTIO_NET_POLICIES,
};

/* Features that a user may refuse although they are offered. All false: take what is understood. */
struct virtio_net_refuse {
    bool indirect, event_idx, csum, guest_csum, host_tso, guest_tso, mrg_rxbuf;
};

struct virtio_net_config {
    const struct virtio_net_ops *ops;
    void *ctx;
    enum virtio_net_policy policy;
    struct virtio_net_refuse refuse;
    uint16_t tx_size_descs;      /* 0: what the device offers; else a power of two not above it */
    uint32_t max_datagram_bytes; /* largest UDP payload the gate must admit whole; the unit follows
                                    from it */
    uint16_t mtu_bytes;          /* wanted IP MTU, 0: the device's, or 1500 */
    struct ring_trace *trace;    /* where to record, NULL: nowhere; outlives the device */
};

/* Why a feature that this driver knows was not accepted; NULL-terminated name list in the report.
 */
struct virtio_net_feature_refusal {
    const char *name;
    const char *reason;
};

#define VIRTIO_NET_MAX_REFUSALS 32u

struct virtio_net_info {
    uint64_t features_offered, features_accepted;
    struct virtio_net_feature_refusal refused[VIRTIO_NET_MAX_REFUSALS];
    unsigned n_refused;
    uint8_t mac[6];
    bool mac_from_device;
    unsigned n_devices; /* of this kind on the buses, this one included */
    uint16_t mtu_bytes;
    bool link_up;
    const char *lost;   /* why the device was given up, one line; NULL: it was not */
    uint16_t hdr_bytes; /* 10 or 12 */
    bool can_csum;      /* csum_partial may be set on frames to send */
    bool can_tso;       /* VIRTIO_NET_TX_TSO4 may be set */
    bool rx_csum;       /* GUEST_CSUM was negotiated */
    bool indirect, event_idx, mrg_rxbuf, guest_tso;
    uint32_t max_datagram_bytes; /* largest UDP payload admitted whole; a small ring lowers it */
    uint16_t tx_max_segs;        /* of a plain data frame that is sure to fit after a positive room
                                    check; more are to be copied together */
};

/*
 * Opens the n-th virtio-net device on the machine's PCI bus (drivers/pci.c): the full start-up
 * of 3.1.1, rings filled, DRIVER_OK, RX kicked. NULL on failure, with *why a static one-line text
 * that names cause and mend. The device is owned by the caller until virtio_net_close.
 */
struct virtio_net *virtio_net_open(unsigned nth, const struct virtio_net_config *config,
                                   const char **why);

/* The same on a transport given (tests, other buses). */
struct virtio_transport;
struct virtio_net *virtio_net_open_transport(struct virtio_transport *transport,
                                             const struct virtio_net_config *config,
                                             const char **why);

/* Resets the device first (2.4, 3.3), then aborts what is in flight: tx_done(aborted) for each. */
void virtio_net_close(struct virtio_net *dev);

const struct virtio_net_info *virtio_net_info(const struct virtio_net *dev);

/* ---- transmit ---- */

/* Descriptors that a frame of n_segs segments costs in the negotiated form, its header included. */
uint16_t virtio_net_tx_cost_descs(const struct virtio_net *dev, uint16_t n_segs,
                                  bool header_in_headroom);

/*
 * True: do not add data; tx_wake comes. False promises that a whole unit (all fragments of one
 * datagram of max_datagram_bytes, or one TSO frame) and the reserve fit. The fault policies break
 * the promise on purpose.
 */
bool virtio_net_tx_stopped(const struct virtio_net *dev, unsigned pair);

/*
 * For the joining glue: a frame that is still being joined counts as in the ring. Reserves descs
 * for it (true when they were free beyond the reserve), gives them back just before the add.
 */
bool virtio_net_tx_reserve(struct virtio_net *dev, unsigned pair, uint16_t descs);
void virtio_net_tx_unreserve(struct virtio_net *dev, unsigned pair, uint16_t descs);

/*
 * Places one frame in the ring. OK: the driver owns it. AGAIN: not taken. After a positive room
 * check a data frame gets AGAIN never (unexpected_full counts it); a control frame gets AGAIN when
 * it found the reserve empty (reserve_exhausted counts it, the caller drops the frame). Stops the
 * queue when fewer than the stop threshold are free: publish, kick, arm, full barrier, look again.
 */
enum virtio_net_result virtio_net_tx_add(struct virtio_net *dev, unsigned pair,
                                         const struct virtio_net_tx_frame *frame);

/* Publishes what was added and kicks if the device wants it. Once a batch. */
void virtio_net_tx_flush(struct virtio_net *dev, unsigned pair);

/* Takes back what the device has used, at most budget frames; tx_done for each, tx_wake at the end
 * of the batch. Returns the number of frames. */
unsigned virtio_net_tx_reclaim(struct virtio_net *dev, unsigned pair, unsigned budget);

/* Frames that are in the ring and not reclaimed. */
unsigned virtio_net_tx_in_flight(const struct virtio_net *dev, unsigned pair);

/* ---- receive ---- */

/* Hands up at most budget packets, refills, kicks once. Returns the number of packets. */
unsigned virtio_net_rx_poll(struct virtio_net *dev, unsigned pair, unsigned budget);

/* Gives a piece's buffer back. Refills the ring if it ran short. */
void virtio_net_rx_return(struct virtio_net *dev, void *handle);

/* ---- both ---- */

/* Configuration changes, device errors, safety timer. Cheap when nothing happened. Returns true if
 * something did. */
bool virtio_net_poll(struct virtio_net *dev, uint64_t now_ns);

/*
 * Before idling: arms the RX interrupt, and the TX interrupt if want_tx or a queue is stopped or
 * anything is in flight; full barrier; looks again. True: nothing to do, the caller may idle until
 * an interrupt. False: there is progress, armed undone, go on.
 */
bool virtio_net_arm(struct virtio_net *dev, bool want_tx);

/* After waking: suppress interrupts again while polling. */
void virtio_net_disarm(struct virtio_net *dev);

/* True if an interrupt came since the last arm. Called with interrupts off, as the last look before
 * the halt. */
bool virtio_net_irq_pending(const struct virtio_net *dev);

/* When the safety timer wants virtio_net_poll next; UINT64_MAX when nothing is outstanding. */
uint64_t virtio_net_next_deadline_ns(const struct virtio_net *dev, uint64_t now_ns);

/* ---- counters ---- */

enum virtio_net_tx_drop {
    VIRTIO_NET_TX_DROP_RESERVE_EXHAUSTED,
    VIRTIO_NET_TX_DROP_POLICY,    /* the fault policy "drop" */
    VIRTIO_NET_TX_DROP_MALFORMED, /* frame too long, no segment */
    VIRTIO_NET_TX_DROPS,
};

enum virtio_net_rx_drop {
    VIRTIO_NET_RX_DROP_SHORT,       /* shorter than header and Ethernet header */
    VIRTIO_NET_RX_DROP_LONG,        /* length above what the buffers hold */
    VIRTIO_NET_RX_DROP_NUM_BUFFERS, /* 0, or more than there were */
    VIRTIO_NET_RX_DROP_BAD_HEADER,  /* offsets outside the packet, unknown or not negotiated gso */
    VIRTIO_NET_RX_DROPS,
};

/* What the driver saw the device do wrong. */
enum virtio_net_device_fault {
    VIRTIO_NET_FAULT_USED_ID_RANGE,
    VIRTIO_NET_FAULT_USED_ID_NOT_IN_FLIGHT,
    VIRTIO_NET_FAULT_USED_LEN,
    VIRTIO_NET_FAULT_USED_IDX_JUMP,
    VIRTIO_NET_FAULT_NUM_BUFFERS,
    VIRTIO_NET_FAULT_HEADER,
    VIRTIO_NET_FAULT_UNNEGOTIATED_FLAG,
    VIRTIO_NET_FAULT_CONFIG_UNSTABLE,
    VIRTIO_NET_FAULT_NEEDS_RESET,
    VIRTIO_NET_FAULT_STATUS_LOST,    /* DRIVER_OK is gone: reset by somebody else, or removed */
    VIRTIO_NET_FAULT_LOST_INTERRUPT, /* found by the safety timer */
    VIRTIO_NET_FAULT_LOST_KICK,
    VIRTIO_NET_FAULTS,
};

extern const char *const virtio_net_policy_names[VIRTIO_NET_POLICIES];
extern const char *const virtio_net_tx_drop_names[VIRTIO_NET_TX_DROPS];
extern const char *const virtio_net_rx_drop_names[VIRTIO_NET_RX_DROPS];
extern const char *const virtio_net_fault_names[VIRTIO_NET_FAULTS];

struct virtio_net_tx_stats {
    uint16_t size_descs, unit_descs, reserve_descs, stop_descs, wake_descs;
    enum virtio_net_policy policy;
    uint64_t packets; /* frames that the device has used */
    uint64_t bytes;   /* of those, Ethernet header to end of payload */
    uint64_t submitted, completed, aborted;
    uint64_t stops, wakes;
    uint64_t kicks, kicks_suppressed;
    uint64_t interrupts, spurious_interrupts;
    uint64_t recheck_hits; /* progress found by the look after arming */
    uint64_t full_ns;      /* time stopped */
    uint64_t unexpected_full;
    uint64_t requeues;    /* fault policies only */
    uint64_t held;        /* in the requeue holder now */
    uint64_t timer_reaps; /* batches that only the safety timer found */
    uint64_t drops[VIRTIO_NET_TX_DROPS];
};

struct virtio_net_rx_stats {
    uint16_t size_descs;
    uint64_t packets, bytes;
    uint64_t kicks, kicks_suppressed;
    uint64_t interrupts, spurious_interrupts, recheck_hits;
    uint64_t refill_fail; /* times that no buffer was there to refill with */
    uint64_t pool_bufs, pool_free, posted;
    uint64_t drops[VIRTIO_NET_RX_DROPS];
};

void virtio_net_tx_stats(const struct virtio_net *dev, unsigned pair,
                         struct virtio_net_tx_stats *out);
void virtio_net_rx_stats(const struct virtio_net *dev, unsigned pair,
                         struct virtio_net_rx_stats *out);
const uint64_t *virtio_net_device_faults(const struct virtio_net *dev);

/* Time of the first kick after open on the TX queue, 0 while there was none. clock_now_ns scale. */
uint64_t virtio_net_first_kick_ns(const struct virtio_net *dev);

#endif
