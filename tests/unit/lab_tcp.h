/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A TCP peer at the other end of the lab's wire: it connects and accepts, acknowledges what came in
 * order, keeps the stream, and counts what came twice.
 */
#ifndef SLUICE_TESTS_LAB_TCP_H
#define SLUICE_TESTS_LAB_TCP_H

#include "tests/unit/net_lab.h"

#define LAB_FIN 1u
#define LAB_SYN 2u
#define LAB_RST 4u
#define LAB_PSH 8u
#define LAB_ACK 16u

#define LAB_TCP_BYTES 20u /* of a header without options */

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

/* A header without options at the place of a frame's; its sum is still to be filled in. */
static inline uint8_t *lab_tcp_header(const struct lab_tcp *tcp, uint8_t *frame, uint32_t seq,
                                      uint8_t flags)
{
    uint8_t *at = frame + L4_AT;
    memset(at, 0, LAB_TCP_BYTES);
    put16(at, tcp->peer_port);
    put16(at + 2, tcp->guest_port);
    put32(at + 4, seq);
    put32(at + 8, tcp->rcv_nxt);
    at[12] = LAB_TCP_BYTES / 4 << 4;
    at[13] = flags;
    put16(at + 14, tcp->window);
    return at;
}

/* Makes a segment of any length whose sum is that of its first `summed` bytes. */
static inline uint32_t lab_tcp_segment(const struct lab_tcp *tcp, uint8_t *frame, uint32_t seq,
                                       const void *payload, uint32_t len, uint32_t summed)
{
    uint8_t *at = lab_tcp_header(tcp, frame, seq, LAB_ACK | LAB_PSH);
    memcpy(at + LAB_TCP_BYTES, payload, len);
    uint32_t total = lab_ip(frame, 6, LAB_TCP_BYTES + len);
    put16(at + 16, 0xffffu & ~wire_l4_sum(frame, summed));
    return total;
}

static inline void lab_tcp_send(struct lab_tcp *tcp, uint8_t flags, const void *payload,
                                uint32_t len)
{
    uint8_t frame[2048];
    uint8_t *at = lab_tcp_header(tcp, frame, tcp->snd_nxt, flags);
    /* SYN carries an MSS of 1460 and a window scale of 7. */
    uint32_t options = (flags & LAB_SYN) != 0 ? 8 : 0;
    static const uint8_t syn_options[8] = {2, 4, 5, 180, 3, 3, 7, 1};
    at[12] = (uint8_t)((20 + options) / 4 << 4);
    memcpy(at + 20, syn_options, options);
    if (len != 0) {
        memcpy(at + 20 + options, payload, len);
    }
    uint32_t total = lab_ip(frame, 6, 20 + options + len);
    put16(at + 16, 0xffffu & ~wire_l4_sum(frame, 20 + options + len));
    tcp->snd_nxt += len + ((flags & (LAB_SYN | LAB_FIN)) != 0 ? 1 : 0);
    lab_inject(frame, total);
}

static inline void lab_tcp_payload(struct lab_tcp *tcp, uint32_t seq, const uint8_t *data,
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

static inline void lab_tcp_frame(struct lab_tcp *tcp, const struct lab_frame *frame)
{
    const uint8_t *at = frame->bytes + L4_AT;
    if (frame->bytes[23] != 6 || get16(at + 2) != tcp->peer_port) {
        return;
    }
    uint32_t hdr = (uint32_t)(at[12] >> 4) * 4, seq = get32(at + 4);
    uint32_t len = get16(frame->bytes + 16) - 20u - hdr;
    uint8_t flags = at[13];
    tcp->resets += (flags & LAB_RST) != 0;
    tcp->last_ack = get32(at + 8);
    if ((flags & LAB_SYN) != 0) {
        tcp->guest_port = get16(at);
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
static inline void lab_tcp_look(struct lab_tcp *tcp)
{
    for (; tcp->seen_frames < lab.n_frames; tcp->seen_frames++) {
        lab_tcp_frame(tcp, &lab.frames[tcp->seen_frames]);
    }
}

/* The peer's side of a connection that the guest opens to peer_port. The window is that of the SYN
 * as well, where it is not scaled. */
static inline void lab_tcp_accept_with(struct lab_tcp *tcp, uint16_t peer_port, uint16_t window)
{
    *tcp = (struct lab_tcp){.peer_port = peer_port, .snd_nxt = 1000, .window = window};
    tcp->seen_frames = 0;
    lab_serve();
    lab_tcp_look(tcp);
    assert_true(tcp->synchronised);
    lab_tcp_send(tcp, LAB_SYN | LAB_ACK, NULL, 0);
    lab_serve();
    lab_tcp_look(tcp);
}

static inline void lab_tcp_accept(struct lab_tcp *tcp, uint16_t peer_port)
{
    lab_tcp_accept_with(tcp, peer_port, 8192);
}

static inline void lab_tcp_ack(struct lab_tcp *tcp)
{
    lab_tcp_send(tcp, LAB_ACK, NULL, 0);
}

/* Device and peer work until nothing moves, or `rounds` are over. */
static inline void lab_tcp_run(struct lab_tcp *tcp, unsigned rounds)
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

static inline void lab_tcp_free(struct lab_tcp *tcp)
{
    free(tcp->stream);
    tcp->stream = NULL;
}

#endif
