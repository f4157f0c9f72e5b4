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

#define LAB_GUEST_IP       0x0a000002u
#define LAB_PEER_IP        0x0a000001u
#define LAB_OUTER_GUEST_IP 0x0a010002u
#define LAB_OUTER_PEER_IP  0x0a010001u
#define LAB_VNI            0x123456u
#define LAB_TUNNEL_BYTES   50u
#define LAB_MS             1000000ull
#define LAB_FRAMES         4096u
#define LAB_IP_OFFSET      14u
#define LAB_L4_OFFSET      34u

#define LAB_FIN 1u
#define LAB_SYN 2u
#define LAB_RST 4u
#define LAB_PSH 8u
#define LAB_ACK 16u

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
    uint8_t arp_reply[42];
    bool arp_reply_due, arp_reply_inner;
    uint8_t guest_mac[6]; /* of the guest's end that the frames of the test are for */
    bool tunnel, outer_csum;
    uint32_t vni;
};

static struct lab lab;
static uint64_t lab_time_ns;
static const uint8_t lab_guest_mac[6] = {0x52, 0x54, 0, 0x12, 0x34, 0x56};
static const uint8_t lab_peer_mac[6] = {0x02, 0, 0, 0, 0, 0x01};

#define LAB_UNUSED __attribute__((unused))

/* ---- bytes ---- */

static LAB_UNUSED void lab_put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static LAB_UNUSED void lab_put32(uint8_t *at, uint32_t value)
{
    lab_put16(at, value >> 16);
    lab_put16(at + 2, value & 0xffffu);
}

static LAB_UNUSED uint16_t lab_get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static LAB_UNUSED uint32_t lab_get32(const uint8_t *at)
{
    return (uint32_t)lab_get16(at) << 16 | lab_get16(at + 2);
}

/* The Internet checksum the slow and obvious way, not complemented. */
static LAB_UNUSED uint32_t lab_sum(const uint8_t *at, size_t len, uint32_t sum)
{
    for (size_t i = 0; i < len; i++) {
        sum += (i & 1) != 0 ? at[i] : (uint32_t)at[i] << 8;
        sum = (sum & 0xffffu) + (sum >> 16);
    }
    return sum;
}

/* Of transport header and payload at frame + LAB_L4_OFFSET with its pseudo header; 0xffff: right.
 */
static LAB_UNUSED uint32_t lab_l4_sum(const uint8_t *frame, size_t l4_len)
{
    uint32_t sum = lab_sum(frame + 26, 8, 0);
    sum += frame[23] + (uint32_t)l4_len;
    sum = (sum & 0xffffu) + (sum >> 16);
    return lab_sum(frame + LAB_L4_OFFSET, l4_len, sum);
}

/* ---- the wire ---- */

static LAB_UNUSED void lab_answer_arp(const uint8_t *request)
{
    uint8_t *reply = lab.arp_reply;
    memcpy(reply, request, 42);
    memcpy(reply, request + 6, 6);
    memcpy(reply + 6, lab_peer_mac, 6);
    reply[21] = 2;
    memcpy(reply + 22, lab_peer_mac, 6);
    memcpy(reply + 28, request + 38, 4);
    memcpy(reply + 32, request + 22, 10);
    lab.arp_reply_due = true;
}

/* The outer headers of a frame of the guest are as they must be; returns what is inside. */
static LAB_UNUSED const uint8_t *lab_peel(struct virtio_net_hdr *hdr, const uint8_t *bytes,
                                          uint32_t *len, uint16_t *port)
{
    uint32_t udp_len = *len - LAB_L4_OFFSET;
    assert_int_equal(lab_sum(bytes + 14, 20, 0), 0xffff);
    assert_int_equal(bytes[23], 17);
    assert_int_equal(lab_get32(bytes + 26), LAB_OUTER_GUEST_IP);
    assert_int_equal(lab_get32(bytes + 30), LAB_OUTER_PEER_IP);
    assert_int_equal(lab_get16(bytes + 36), 4789);
    assert_int_equal(lab_get16(bytes + 38), udp_len);
    assert_int_equal(lab_get32(bytes + 42), 0x08000000u);
    assert_int_equal(lab_get32(bytes + 46), LAB_VNI << 8);
    *port = lab_get16(bytes + 34);
    assert_true(*port >= 49152);
    if (!lab.outer_csum) {
        assert_int_equal(lab_get16(bytes + 40), 0);
    } else if (hdr->flags == 0) {
        assert_int_equal(lab_l4_sum(bytes, udp_len), 0xffff);
    } else {
        assert_int_equal(hdr->csum_start, LAB_L4_OFFSET);
        assert_int_equal(hdr->csum_offset, 6);
        hdr->flags = 0; /* spent on the outer datagram */
    }
    if (hdr->flags != 0) {
        hdr->csum_start = (uint16_t)(hdr->csum_start - LAB_TUNNEL_BYTES);
    }
    *len -= LAB_TUNNEL_BYTES;
    return bytes + LAB_TUNNEL_BYTES;
}

static LAB_UNUSED void lab_on_frame(void *ctx, const struct virtio_net_hdr *hdr,
                                    const uint8_t *bytes, uint32_t len)
{
    struct virtio_net_hdr header = *hdr;
    uint16_t port = 0;
    (void)ctx;
    if (lab.tunnel && lab_get16(bytes + 12) == 0x0800) {
        bytes = lab_peel(&header, bytes, &len, &port);
        memcpy(lab.guest_mac, bytes + 6, 6);
    }
    if (lab_get16(bytes + 12) == 0x0806) {
        uint32_t wanted = lab.tunnel && port == 0 ? LAB_OUTER_PEER_IP : LAB_PEER_IP;
        if (bytes[21] == 1 && lab_get32(bytes + 38) == wanted && !lab.mute) {
            lab_answer_arp(bytes);
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

static LAB_UNUSED void lab_forget_frames(void)
{
    for (unsigned i = 0; i < lab.n_frames; i++) {
        free(lab.frames[i].bytes);
    }
    lab.n_frames = 0;
}

static LAB_UNUSED void lab_inject_raw(struct virtio_net_hdr hdr, const uint8_t *frame, uint32_t len)
{
    model_take(&lab.dev, MODEL_RX);
    assert_true(model_receive(&lab.dev, hdr, frame, len));
}

/* Inside the tunnel when there is one, with no outer checksum. */
static LAB_UNUSED void lab_inject_hdr(struct virtio_net_hdr hdr, const uint8_t *frame, uint32_t len)
{
    static uint8_t outer[70000];
    if (!lab.tunnel) {
        lab_inject_raw(hdr, frame, len);
        return;
    }
    memcpy(outer, lab_guest_mac, 6);
    memcpy(outer + 6, lab_peer_mac, 6);
    lab_put16(outer + 12, 0x0800);
    memset(outer + 14, 0, 36);
    outer[14] = 0x45;
    lab_put16(outer + 16, 36 + len);
    outer[22] = 64;
    outer[23] = 17;
    lab_put32(outer + 26, LAB_OUTER_PEER_IP);
    lab_put32(outer + 30, LAB_OUTER_GUEST_IP);
    lab_put16(outer + 24, 0xffffu & ~lab_sum(outer + 14, 20, 0));
    lab_put16(outer + 34, 50000);
    lab_put16(outer + 36, 4789);
    lab_put16(outer + 38, 16 + len);
    outer[42] = 8;
    lab_put32(outer + 46, lab.vni << 8);
    memcpy(outer + LAB_TUNNEL_BYTES, frame, len);
    if (hdr.flags == VIRTIO_NET_HDR_F_NEEDS_CSUM) {
        hdr.csum_start = (uint16_t)(hdr.csum_start + LAB_TUNNEL_BYTES);
    }
    lab_inject_raw(hdr, outer, len + LAB_TUNNEL_BYTES);
}

static LAB_UNUSED void lab_inject(const uint8_t *frame, uint32_t len)
{
    struct virtio_net_hdr hdr = {0};
    lab_inject_hdr(hdr, frame, len);
}

/* One pass of the stack; the device does nothing. */
static LAB_UNUSED void lab_pass(void)
{
    net_poll();
    if (lab.arp_reply_due) {
        struct virtio_net_hdr hdr = {0};
        lab.arp_reply_due = false;
        if (lab.arp_reply_inner) {
            lab_inject(lab.arp_reply, 42);
        } else {
            lab_inject_raw(hdr, lab.arp_reply, 42);
        }
        net_poll();
    }
}

/* The device takes and completes everything, then a pass; twice, so that answers get out. */
static LAB_UNUSED void lab_serve(void)
{
    for (unsigned i = 0; i < 3; i++) {
        lab_pass();
        model_serve(&lab.dev);
    }
    lab_pass();
}

/* Time goes by in steps in which timers run; the device serves or stands still. */
static LAB_UNUSED void lab_elapse(uint64_t ms, bool serve)
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

static LAB_UNUSED void lab_answer_at_once(void *ctx, const volatile void *addr, bool is_store)
{
    struct virtio_net_hdr hdr = {0};
    (void)ctx;
    (void)addr;
    (void)is_store;
    if (lab.arp_reply_due) {
        lab.arp_reply_due = false;
        lab_inject_raw(hdr, lab.arp_reply, 42);
    }
}

static LAB_UNUSED void lab_open(struct model_options *opt, struct net_config *config)
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

static LAB_UNUSED struct model_options lab_options(void)
{
    struct model_options opt;
    model_options_default(&opt);
    memcpy(opt.mac, lab_guest_mac, 6);
    return opt;
}

static LAB_UNUSED void lab_assert_ledger(void)
{
    struct net_ledger ledger;
    net_ledger(&ledger);
    assert_int_equal(ledger.submitted, ledger.completed + ledger.aborted);
    assert_int_equal(ledger.charged_bytes, ledger.credited_bytes);
    assert_int_equal(ledger.pool_bufs, ledger.pool_free);
    assert_int_equal(ledger.held, 0);
    assert_true(ledger.ok);
}

static LAB_UNUSED void lab_close(void)
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

/* IPv4 header for l4_len bytes that stand at frame + LAB_L4_OFFSET. */
static LAB_UNUSED uint32_t lab_ip(uint8_t *frame, uint8_t protocol, uint32_t l4_len)
{
    memcpy(frame, lab.guest_mac, 6);
    memcpy(frame + 6, lab_peer_mac, 6);
    lab_put16(frame + 12, 0x0800);
    uint8_t *ip = frame + LAB_IP_OFFSET;
    memset(ip, 0, 20);
    ip[0] = 0x45;
    lab_put16(ip + 2, 20 + l4_len);
    ip[8] = 64;
    ip[9] = protocol;
    lab_put32(ip + 12, LAB_PEER_IP);
    lab_put32(ip + 16, LAB_GUEST_IP);
    lab_put16(ip + 10, 0xffffu & ~lab_sum(ip, 20, 0));
    return LAB_L4_OFFSET + l4_len;
}

static LAB_UNUSED uint32_t lab_udp(uint8_t *frame, uint16_t src, uint16_t dst, const void *payload,
                                   uint32_t len)
{
    uint8_t *udp = frame + LAB_L4_OFFSET;
    uint32_t total = lab_ip(frame, 17, 8 + len);
    lab_put16(udp, src);
    lab_put16(udp + 2, dst);
    lab_put16(udp + 4, 8 + len);
    lab_put16(udp + 6, 0);
    memcpy(udp + 8, payload, len);
    uint32_t sum = 0xffffu & ~lab_l4_sum(frame, 8 + len);
    lab_put16(udp + 6, sum == 0 ? 0xffffu : sum);
    return total;
}

/* ---- a TCP peer ---- */

struct lab_tcp {
    uint16_t guest_port, peer_port;
    uint32_t snd_nxt, rcv_nxt; /* of the peer */
    uint16_t window;
    unsigned seen_frames; /* of lab.frames */
    uint8_t *stream;      /* what arrived in order */
    uint32_t stream_len, stream_cap;
    unsigned repeated, acks, resets; /* segments of the guest: already had; without payload; RST */
    bool synchronised, finished;
    uint32_t last_ack; /* that the guest sent */
};

static LAB_UNUSED void lab_tcp_send(struct lab_tcp *tcp, uint8_t flags, const void *payload,
                                    uint32_t len)
{
    uint8_t frame[2048];
    uint8_t *at = frame + LAB_L4_OFFSET;
    /* SYN carries an MSS of 1460 and a window scale of 7. */
    uint32_t options = (flags & LAB_SYN) != 0 ? 8 : 0;
    static const uint8_t syn_options[8] = {2, 4, 5, 180, 3, 3, 7, 1};
    memset(at, 0, 20);
    lab_put16(at, tcp->peer_port);
    lab_put16(at + 2, tcp->guest_port);
    lab_put32(at + 4, tcp->snd_nxt);
    lab_put32(at + 8, tcp->rcv_nxt);
    at[12] = (uint8_t)((20 + options) / 4 << 4);
    at[13] = flags;
    lab_put16(at + 14, tcp->window);
    memcpy(at + 20, syn_options, options);
    if (len != 0) {
        memcpy(at + 20 + options, payload, len);
    }
    uint32_t total = lab_ip(frame, 6, 20 + options + len);
    lab_put16(at + 16, 0xffffu & ~lab_l4_sum(frame, 20 + options + len));
    tcp->snd_nxt += len + ((flags & (LAB_SYN | LAB_FIN)) != 0 ? 1 : 0);
    lab_inject(frame, total);
}

static LAB_UNUSED void lab_tcp_payload(struct lab_tcp *tcp, uint32_t seq, const uint8_t *data,
                                       uint32_t len)
{
    uint32_t have = tcp->rcv_nxt - seq;
    if ((int32_t)have < 0) {
        return; /* a hole: not kept */
    }
    if (have >= len) {
        tcp->repeated++;
        return;
    }
    if (tcp->stream == NULL || tcp->stream_len + len - have > tcp->stream_cap) {
        tcp->stream_cap = (tcp->stream_cap + len) * 2;
        tcp->stream = realloc(tcp->stream, tcp->stream_cap);
        if (tcp->stream == NULL) {
            abort();
        }
    }
    memcpy(tcp->stream + tcp->stream_len, data + have, len - have);
    tcp->stream_len += len - have;
    tcp->rcv_nxt += len - have;
}

static LAB_UNUSED void lab_tcp_frame(struct lab_tcp *tcp, const struct lab_frame *frame)
{
    const uint8_t *at = frame->bytes + LAB_L4_OFFSET;
    if (frame->bytes[23] != 6 || lab_get16(at + 2) != tcp->peer_port) {
        return;
    }
    uint32_t hdr = (uint32_t)(at[12] >> 4) * 4, seq = lab_get32(at + 4);
    uint32_t len = lab_get16(frame->bytes + 16) - 20u - hdr;
    uint8_t flags = at[13];
    tcp->resets += (flags & LAB_RST) != 0;
    tcp->last_ack = lab_get32(at + 8);
    if ((flags & LAB_SYN) != 0) {
        tcp->guest_port = lab_get16(at);
        tcp->rcv_nxt = seq + 1;
        tcp->synchronised = true;
        return;
    }
    if (len == 0) {
        tcp->acks++;
    } else {
        lab_tcp_payload(tcp, seq, at + hdr, len);
    }
    if ((flags & LAB_FIN) != 0 && seq + len == tcp->rcv_nxt) {
        tcp->rcv_nxt++;
        tcp->finished = true;
    }
}

/* The peer looks at what came since it last looked. */
static LAB_UNUSED void lab_tcp_look(struct lab_tcp *tcp)
{
    for (; tcp->seen_frames < lab.n_frames; tcp->seen_frames++) {
        lab_tcp_frame(tcp, &lab.frames[tcp->seen_frames]);
    }
}

/* The peer's side of a connection that the guest opens to peer_port. */
static LAB_UNUSED void lab_tcp_accept(struct lab_tcp *tcp, uint16_t peer_port)
{
    *tcp = (struct lab_tcp){.peer_port = peer_port, .snd_nxt = 1000, .window = 8192};
    tcp->seen_frames = 0;
    lab_serve();
    lab_tcp_look(tcp);
    assert_true(tcp->synchronised);
    lab_tcp_send(tcp, LAB_SYN | LAB_ACK, NULL, 0);
    lab_serve();
    lab_tcp_look(tcp);
}

static LAB_UNUSED void lab_tcp_ack(struct lab_tcp *tcp)
{
    lab_tcp_send(tcp, LAB_ACK, NULL, 0);
}

/* Device and peer work until nothing moves, or `rounds` are over. */
static LAB_UNUSED void lab_tcp_run(struct lab_tcp *tcp, unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        uint32_t before = tcp->rcv_nxt;
        lab_serve();
        lab_tcp_look(tcp);
        if (tcp->rcv_nxt != before) {
            lab_tcp_ack(tcp);
        }
    }
    lab_serve();
}

static LAB_UNUSED void lab_tcp_free(struct lab_tcp *tcp)
{
    free(tcp->stream);
    tcp->stream = NULL;
}

/* ---- frames of the guest ---- */

/*
 * Finishes a frame as the device would: fills in the checksum that was asked for, and cuts what is
 * to be segmented. each() gets every resulting frame; checksums are verified here.
 */
static LAB_UNUSED void lab_expand(const struct lab_frame *frame,
                                  void (*each)(void *ctx, const uint8_t *bytes, uint32_t len),
                                  void *ctx)
{
    static uint8_t out[70000];
    const uint8_t *tcp = frame->bytes + LAB_L4_OFFSET;
    uint32_t hdr = LAB_L4_OFFSET + (uint32_t)(tcp[12] >> 4) * 4;
    uint32_t payload = frame->len - hdr, step = payload;
    if (frame->hdr.gso_type != 0) {
        assert_int_equal(frame->hdr.gso_type, VIRTIO_NET_HDR_GSO_TCPV4);
        assert_int_equal(frame->hdr.hdr_len, hdr);
        step = frame->hdr.gso_size;
    }
    assert_int_equal(frame->hdr.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
    assert_int_equal(frame->hdr.csum_start, LAB_L4_OFFSET);
    assert_int_equal(frame->hdr.csum_offset, 16);
    /* What stands in the field: the pseudo header's sum over the whole length. */
    uint32_t l4_len = frame->len - LAB_L4_OFFSET;
    uint32_t pseudo = lab_sum(frame->bytes + 26, 8, 6 + l4_len);
    pseudo = (pseudo & 0xffffu) + (pseudo >> 16);
    assert_int_equal(lab_get16(tcp + 16), pseudo);
    for (uint32_t at = 0; at < payload || at == 0; at += step) {
        uint32_t len = payload - at < step ? payload - at : step;
        bool last = at + len == payload;
        memcpy(out, frame->bytes, hdr);
        memcpy(out + hdr, frame->bytes + hdr + at, len);
        lab_put16(out + 16, hdr - LAB_IP_OFFSET + len);
        lab_put32(out + 38, lab_get32(tcp + 4) + at);
        if (!last) {
            out[47] = (uint8_t)(out[47] & ~(LAB_FIN | LAB_PSH));
        }
        /* The device's arithmetic: what the field holds, corrected by the difference in length. */
        uint32_t field = lab_get16(tcp + 16) + (0xffffu & ~l4_len) + hdr - LAB_L4_OFFSET + len;
        field = (field & 0xffffu) + (field >> 16);
        lab_put16(out + 50, (field & 0xffffu) + (field >> 16));
        uint32_t sum = lab_sum(out + LAB_L4_OFFSET, hdr - LAB_L4_OFFSET + len, 0);
        lab_put16(out + 50, 0xffffu & ~sum);
        assert_int_equal(lab_l4_sum(out, hdr - LAB_L4_OFFSET + len), 0xffff);
        each(ctx, out, hdr + len);
        if (step == 0) {
            break;
        }
    }
}

#endif
