/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The network behind the strict device: either a host of its own that answers ARP and ping, sends
 * numbered datagrams to the guest's echo port and checks what comes back; or a tap.
 */
#ifndef SLUICE_TESTS_VHOST_PEER_H
#define SLUICE_TESTS_VHOST_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/device/strict_device.h"

#define PEER_WINDOW 4096u /* datagrams whose echo may still come */

struct peer {
    struct strict_device *dev;
    uint8_t ip[4], mac[6];
    uint8_t guest_ip[4], guest_mac[6];
    bool guest_known;
    /* Datagrams to the guest's port 7: how many, of what size, how many at most without an echo. */
    uint32_t count, size_bytes, window;
    uint32_t sent, echoed, lost, wrong, duplicate;
    uint64_t arp_answered, ping_answered, other, bytes_in;
    uint64_t udp_in, tcp_in;
    uint64_t last_progress_ns, last_ask_ns;
    bool seen[PEER_WINDOW];
};

/* A frame from the guest. */
void peer_frame(struct peer *peer, const uint8_t *frame, uint32_t len_bytes);

/* Sends what the window allows; asks for the guest's address first. */
void peer_step(struct peer *peer, uint64_t now_ns);

/* True when all datagrams were sent, and each came back or is given up. */
bool peer_finished(const struct peer *peer);

/* Opens the tap of this network namespace with a header of 12 bytes in front of each frame. -1 with
 * errno. offloads: enum strict_feature bits that the guest accepted. */
int tap_open(const char *name);
bool tap_set_offloads(int fd, uint64_t features);

#endif
