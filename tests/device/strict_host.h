/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver's objects on the strict device, in one process: seams bound to the device, every
 * shared access and barrier of the driver watched, and a small user of the driver that knows what
 * it sent and what it ought to receive.
 */
#ifndef SLUICE_TESTS_STRICT_HOST_H
#define SLUICE_TESTS_STRICT_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "drivers/virtio_net.h"
#include "tests/device/strict_device.h"

#define HOST_FRAMES         2048u /* that can be out at once */
#define HOST_HEADROOM_BYTES 64u
#define HOST_FRAME_BYTES    2048u

/* What the watcher remembers between two accesses of the driver (strict_watch.c). */
struct strict_watch {
    struct {
        const volatile uint16_t *arm_word; /* a store to it is still to be looked at */
        uint16_t ring_stores;    /* available entries written since the last index store */
        bool unordered_stores;   /* descriptors or entries, and no barrier since */
        bool unfenced_idx;       /* available index stored, and no full barrier since */
        bool unfenced_arm;       /* interrupts asked for, and no full barrier since */
        bool unordered_used_idx; /* used index loaded, and no barrier since */
        uint16_t stored_idx;     /* available index before the last store */
    } q[2];
    const volatile void *stored, *loaded; /* the access before this one */
    unsigned loaded_bytes;
    uint32_t eager; /* the device may run at one of so many accesses, 0: at none */
};

struct host_frame {
    bool out;
    bool control;
    uint32_t sequence;
    uint8_t *memory; /* headroom, then the frame */
};

struct strict_host {
    struct strict_device dev;
    struct strict_watch watch;
    struct virtio_net *net;
    const char *why;
    uint32_t config_address; /* port 0xcf8 */
    uint64_t now_ns;

    struct host_frame frames[HOST_FRAMES];
    uint32_t next_frame;
    uint16_t by_sequence[HOST_FRAMES]; /* the frame that has a number, by the number's low bits */
    uint32_t tx_sequence, tx_done, tx_aborted, tx_again, tx_fatal, tx_wakes;
    uint32_t tx_seen;  /* frames that came out of the device, and were what was sent */
    uint32_t tx_wrong; /* and were not */
    uint32_t rx_sent, rx_got, rx_wrong, rx_dropped_ok;
    uint32_t rx_partial, rx_valid, rx_gso;
    bool check_rx_order;
    bool hold_rx; /* keep the buffers instead of giving them back */
    void *held[4096];
    uint32_t n_held;
    uint32_t link_changes;
    bool link_up;
    bool idle;       /* the last arm allowed to sleep */
    bool every_step; /* sleep step by step, also while none does anything */
    uint64_t stopped_since_ns, longest_stop_ns;
    /* Losses that only the safety timer ended: of kicks by queue. */
    uint64_t kicks_mended[2], interrupts_mended;
    uint64_t rx_period_ns, rx_next_ns; /* while the driver sleeps a frame comes so often, 0: none */
};

/* Resets the seams and puts a device on the bus. host->dev.fault is free to be set after it. */
void host_init(struct strict_host *host, const struct strict_options *opt);
void host_fini(struct strict_host *host);

/* Opens the driver. False: it refused, host->why says why. */
bool host_open(struct strict_host *host, const struct virtio_net_config *config);
void host_config_default(struct strict_host *host, struct virtio_net_config *config);
void host_close(struct strict_host *host);

/* One UDP frame of payload_bytes in n_segs pieces, with or without its checksum left to the device.
 */
enum virtio_net_result host_send(struct strict_host *host, uint32_t payload_bytes, uint16_t n_segs,
                                 bool headroom, bool partial);

/* One TCP frame for segmentation. */
enum virtio_net_result host_send_tso(struct strict_host *host, uint32_t payload_bytes,
                                     uint16_t n_segs, uint16_t gso_size);

/* Gives the device a UDP frame for the driver. */
void host_receive(struct strict_host *host, uint32_t payload_bytes);

/* One turn of a poll loop: poll, reclaim, receive, arm; and the device's step. True if it slept. */
bool host_turn(struct strict_host *host);

/* Turns until nothing is out and nothing waits, at most so many. True when it came to rest. */
bool host_settle(struct strict_host *host, unsigned max_turns);

/* Sends and receives so many frames of mixed sizes, then settles. True if all balanced. */
bool host_traffic(struct strict_host *host, uint32_t n_tx, uint32_t n_rx);

void strict_watch_shared(struct strict_host *host, const volatile void *addr, unsigned bytes,
                         bool is_store);
void strict_watch_barrier(struct strict_host *host, bool full);
/* What the driver's last access did, before anything else happens. */
void strict_watch_settle(struct strict_host *host);

#endif
