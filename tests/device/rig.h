/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A driver opened on the model device, with a user that notes what comes up. One at a time.
 *
 *     test -> rig_send -> driver -> [ring] -> model device
 */
#ifndef SLUICE_TESTS_RIG_H
#define SLUICE_TESTS_RIG_H

#include "tests/device/model_device.h"

#define RIG_FRAMES      4096u
#define RIG_FRAME_BYTES 2048u

/* A frame's memory; its address is the cookie. */
struct rig_frame {
    bool in_use;
    uint8_t headroom[64];
    uint8_t bytes[RIG_FRAME_BYTES];
    uint32_t number;
};

struct rig {
    struct model_options opt;
    struct virtio_net_config config;
    struct model_device device;
    struct virtio_net *dev;
    const char *why;
    struct rig_frame *frames;
    uint32_t next_frame;
    uint64_t done, aborted, wakes, unknown_cookies, wrong_pairs;
    uint64_t taken_alive; /* frames aborted while the device could still reach them */
    uint64_t rx_packets, rx_bytes;
    struct virtio_net_rx_packet rx_last;
    uint8_t rx_copy[70000];
    bool rx_keep; /* the callee keeps the pieces */
    void *rx_kept[8192];
    unsigned n_rx_kept;
    unsigned links;
    unsigned stalls;
    struct virtio_net_stall stall; /* the last one told */
    bool link_up;
    /* Called in tx_wake: a test that sends on from there. */
    void (*on_wake)(struct rig *rig);
};

/* Fills in defaults; opt and config may be changed before rig_open. */
struct rig *rig_new(void);
bool rig_open(struct rig *rig);
void rig_free(struct rig *rig);

/* Sends a frame of n_segs segments of equal length in all; the net header in headroom or not. */
enum virtio_net_result rig_send(struct rig *rig, uint16_t n_segs, bool headroom);
enum virtio_net_result rig_send_control(struct rig *rig);
enum virtio_net_result rig_send_tso(struct rig *rig, uint16_t n_segs);
void rig_return_kept(struct rig *rig);

struct virtio_net_tx_stats rig_tx(const struct rig *rig);
struct virtio_net_rx_stats rig_rx(const struct rig *rig);
uint64_t rig_fault(const struct rig *rig, enum virtio_net_device_fault fault);

/* True if everything balances: nothing in flight, submitted = completed + aborted, stops = wakes,
 * each frame's memory came back once, no violation seen by the device, the RX pool complete. */
bool rig_at_rest(struct rig *rig);

#endif
