/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A network on a table, for the tests of net/: the real stack and driver on the model device, and
 * at the other end of the wire a peer that is a few functions here.
 *
 *     net/ + lwIP -> drivers/ -> [rings] -> model device -> wire -> peer 10.0.0.1
 *          10.0.0.2            <-        <-             <-      <-
 *
 * The test says when the device takes and completes frames. The peer answers ARP by itself. With
 * lab.tunnel the same happens inside a VXLAN tunnel between 10.1.0.2 and 10.1.0.1.
 */
#ifndef SLUICE_TESTS_NET_LAB_H
#define SLUICE_TESTS_NET_LAB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "net/net.h"
#include "net/sock.h"
#include "tests/device/model_device.h"
#include "tests/device/seams.h"
#include "tests/device/wire.h"

#define LAB_GUEST_IP       0x0a000002u
#define LAB_PEER_IP        0x0a000001u
#define LAB_OUTER_GUEST_IP 0x0a010002u
#define LAB_OUTER_PEER_IP  0x0a010001u
#define LAB_VNI            0x123456u
#define LAB_TUNNEL_BYTES   50u
#define LAB_MS             1000000ull
#define LAB_FRAMES         4096u

struct lab_frame {
    struct virtio_net_hdr hdr;
    uint32_t len;
    uint8_t *bytes;
    uint16_t outer_port; /* source port of the tunnel's datagram; 0: none */
};

struct lab {
    struct model_device dev;
    struct lab_frame frames[LAB_FRAMES]; /* as sent by the guest, in order */
    unsigned n_frames;
    bool mute; /* the peer does not answer ARP */
    uint8_t arp_reply[ARP_BYTES];
    bool arp_reply_due, arp_reply_inner;
    uint8_t guest_mac[6]; /* of the guest's end that the frames of the test are for */
    bool tunnel, outer_csum;
    uint32_t vni;
};

static struct lab lab;
static uint64_t lab_time_ns;
static const uint8_t lab_guest_mac[6] = {0x52, 0x54, 0, 0x12, 0x34, 0x56};
static const uint8_t lab_peer_mac[6] = {0x02, 0, 0, 0, 0, 0x01};

/* ---- the wire ---- */

/* The outer headers of a frame of the guest are as they must be; returns what is inside. */
static inline const uint8_t *lab_peel(struct virtio_net_hdr *hdr, const uint8_t *bytes,
                                      uint32_t *len, uint16_t *port)
{
    uint32_t udp_len = *len - L4_AT;
    assert_int_equal(wire_sum(bytes + 14, 20, 0), 0xffff);
    assert_int_equal(bytes[23], 17);
    assert_int_equal(get32(bytes + 26), LAB_OUTER_GUEST_IP);
    assert_int_equal(get32(bytes + 30), LAB_OUTER_PEER_IP);
    assert_int_equal(get16(bytes + 36), 4789);
    assert_int_equal(get16(bytes + 38), udp_len);
    assert_int_equal(get32(bytes + 42), 0x08000000u);
    assert_int_equal(get32(bytes + 46), LAB_VNI << 8);
    *port = get16(bytes + 34);
    assert_true(*port >= 49152);
    if (!lab.outer_csum) {
        assert_int_equal(get16(bytes + 40), 0);
    } else if (hdr->flags == 0) {
        assert_int_equal(wire_l4_sum(bytes, udp_len), 0xffff);
    } else {
        assert_int_equal(hdr->csum_start, L4_AT);
        assert_int_equal(hdr->csum_offset, 6);
        hdr->flags = 0; /* spent on the outer datagram */
    }
    if (hdr->flags != 0) {
        hdr->csum_start = (uint16_t)(hdr->csum_start - LAB_TUNNEL_BYTES);
    }
    *len -= LAB_TUNNEL_BYTES;
    return bytes + LAB_TUNNEL_BYTES;
}

static inline void lab_on_frame(void *ctx, const struct virtio_net_hdr *hdr, const uint8_t *bytes,
                                uint32_t len)
{
    struct virtio_net_hdr header = *hdr;
    uint16_t port = 0;
    (void)ctx;
    if (lab.tunnel && get16(bytes + 12) == 0x0800) {
        bytes = lab_peel(&header, bytes, &len, &port);
        memcpy(lab.guest_mac, bytes + 6, 6);
    }
    if (get16(bytes + 12) == 0x0806) {
        uint32_t wanted = lab.tunnel && port == 0 ? LAB_OUTER_PEER_IP : LAB_PEER_IP;
        if (bytes[21] == 1 && get32(bytes + 38) == wanted && !lab.mute) {
            wire_arp_answer(lab.arp_reply, bytes, lab_peer_mac);
            lab.arp_reply_due = true;
            lab.arp_reply_inner = port != 0;
        }
        return;
    }
    assert_true(lab.n_frames < LAB_FRAMES);
    struct lab_frame *frame = &lab.frames[lab.n_frames++];
    frame->hdr = header;
    frame->outer_port = port;
    frame->len = len;
    frame->bytes = malloc(len);
    memcpy(frame->bytes, bytes, len);
}

static inline void lab_forget_frames(void)
{
    for (unsigned i = 0; i < lab.n_frames; i++) {
        free(lab.frames[i].bytes);
    }
    lab.n_frames = 0;
}

static inline void lab_inject_raw(struct virtio_net_hdr hdr, const uint8_t *frame, uint32_t len)
{
    model_take(&lab.dev, MODEL_RX);
    assert_true(model_receive(&lab.dev, hdr, frame, len));
}

/* Inside the tunnel when there is one, with no outer checksum. */
static inline void lab_inject_hdr(struct virtio_net_hdr hdr, const uint8_t *frame, uint32_t len)
{
    static uint8_t outer[70000];
    if (!lab.tunnel) {
        lab_inject_raw(hdr, frame, len);
        return;
    }
    wire_ethernet(outer, lab_guest_mac, lab_peer_mac, 0x0800);
    wire_ip(outer + IP_AT, 17, 16 + len, LAB_OUTER_PEER_IP, LAB_OUTER_GUEST_IP);
    memset(outer + L4_AT, 0, 16);
    put16(outer + 34, 50000);
    put16(outer + 36, 4789);
    put16(outer + 38, 16 + len);
    outer[42] = 8;
    put32(outer + 46, lab.vni << 8);
    memcpy(outer + LAB_TUNNEL_BYTES, frame, len);
    if (hdr.flags == VIRTIO_NET_HDR_F_NEEDS_CSUM) {
        hdr.csum_start = (uint16_t)(hdr.csum_start + LAB_TUNNEL_BYTES);
    }
    lab_inject_raw(hdr, outer, len + LAB_TUNNEL_BYTES);
}

static inline void lab_inject(const uint8_t *frame, uint32_t len)
{
    struct virtio_net_hdr hdr = {0};
    lab_inject_hdr(hdr, frame, len);
}

/* One pass of the stack; the device does nothing. */
static inline void lab_pass(void)
{
    net_poll();
    if (lab.arp_reply_due) {
        struct virtio_net_hdr hdr = {0};
        lab.arp_reply_due = false;
        if (lab.arp_reply_inner) {
            lab_inject(lab.arp_reply, ARP_BYTES);
        } else {
            lab_inject_raw(hdr, lab.arp_reply, ARP_BYTES);
        }
        net_poll();
    }
}

/* The device takes and completes everything, then a pass; twice, so that answers get out. */
static inline void lab_serve(void)
{
    for (unsigned i = 0; i < 3; i++) {
        lab_pass();
        model_serve(&lab.dev);
    }
    lab_pass();
}

/* Time goes by in steps in which timers run; the device serves or stands still. */
static inline void lab_elapse(uint64_t ms, bool serve)
{
    for (uint64_t i = 0; i < ms; i += 5) {
        seam_advance_ns(5 * LAB_MS);
        if (serve) {
            model_serve(&lab.dev);
        }
        lab_pass();
    }
}

/* ---- open, close ---- */

static inline void lab_answer_at_once(void *ctx, const volatile void *addr, bool is_store)
{
    struct virtio_net_hdr hdr = {0};
    (void)ctx;
    (void)addr;
    (void)is_store;
    if (lab.arp_reply_due) {
        lab.arp_reply_due = false;
        lab_inject_raw(hdr, lab.arp_reply, ARP_BYTES);
    }
}

static inline void lab_open(struct model_options *opt, struct net_config *config)
{
    struct net_config plain = {.ip = LAB_GUEST_IP, .netmask = 0xffffff00u};
    const char *why = "";
    memset(&lab, 0, sizeof(lab));
    model_init(&lab.dev, opt);
    /* The stack's timers of an earlier test lie in this one's past. */
    seam_advance_ns(lab_time_ns + 1000 * LAB_MS);
    lab.dev.on_frame = lab_on_frame;
    memcpy(lab.guest_mac, lab_guest_mac, 6);
    lab.vni = LAB_VNI;
    config = config != NULL ? config : &plain;
    config->transport = &lab.dev.base;
    config->link_deadline_ns = 100 * LAB_MS;
    lab.tunnel = config->vxlan.on;
    lab.outer_csum = config->vxlan.csum;
    /* Opening a tunnel waits for an answer: the device and the peer work meanwhile. */
    lab.dev.opt.serve = lab.tunnel;
    lab.dev.on_access = lab.tunnel ? lab_answer_at_once : NULL;
    if (!net_open(config, &why)) {
        fail_msg("net_open: %s", why);
    }
    lab.dev.opt.serve = false;
    lab.dev.on_access = NULL;
    lab_serve();
    lab_forget_frames();
}

static inline struct model_options lab_options(void)
{
    struct model_options opt;
    model_options_default(&opt);
    memcpy(opt.mac, lab_guest_mac, 6);
    return opt;
}

/* The guest as the end of a tunnel to the peer. */
static inline struct net_config lab_tunnel(void)
{
    return (struct net_config){
        .ip = LAB_OUTER_GUEST_IP,
        .netmask = 0xffffff00u,
        .vxlan =
            {
                .on = true,
                .vni = LAB_VNI,
                .remote_ip = LAB_OUTER_PEER_IP,
                .ip = LAB_GUEST_IP,
                .netmask = 0xffffff00u,
                .port = 4789,
            },
    };
}

static inline void lab_assert_ledger(void)
{
    struct net_ledger ledger;
    net_ledger(&ledger);
    assert_int_equal(ledger.submitted, ledger.completed + ledger.aborted);
    assert_int_equal(ledger.charged_bytes, ledger.credited_bytes);
    assert_int_equal(ledger.pool_bufs, ledger.pool_free);
    assert_int_equal(ledger.held, 0);
    assert_true(ledger.ok);
}

static inline void lab_close(void)
{
    struct virtio_net_tx_stats tx;
    virtio_net_tx_stats(net_device(), 0, &tx);
    assert_int_equal(tx.unexpected_full, 0);
    assert_int_equal(lab.dev.violations, 0);
    net_close();
    lab_time_ns = seam_now_ns();
    lab_forget_frames();
}

/* ---- frames of the peer ---- */

/* IPv4 header for l4_len bytes that stand at frame + L4_AT. */
static inline uint32_t lab_ip(uint8_t *frame, uint8_t protocol, uint32_t l4_len)
{
    wire_ethernet(frame, lab.guest_mac, lab_peer_mac, 0x0800);
    wire_ip(frame + IP_AT, protocol, l4_len, LAB_PEER_IP, LAB_GUEST_IP);
    return L4_AT + l4_len;
}

static inline uint32_t lab_udp(uint8_t *frame, uint16_t src, uint16_t dst, const void *payload,
                               uint32_t len)
{
    uint8_t *udp = frame + L4_AT;
    uint32_t total = lab_ip(frame, 17, 8 + len);
    put16(udp, src);
    put16(udp + 2, dst);
    put16(udp + 4, 8 + len);
    put16(udp + 6, 0);
    memcpy(udp + 8, payload, len);
    uint32_t sum = 0xffffu & ~wire_l4_sum(frame, 8 + len);
    put16(udp + 6, sum == 0 ? 0xffffu : sum);
    return total;
}

#endif
