/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Frames of a peer whose contents are the fuzzer's input, under headers that get them far: right
 * addresses, lengths and checksums, the transaction that the guest asked about, the numbers of its
 * connection.
 */
#ifndef SLUICE_TESTS_FUZZ_NET_PEER_H
#define SLUICE_TESTS_FUZZ_NET_PEER_H

#include <stdbool.h>

#include "tests/device/wire.h"
#include "tests/fuzz/input.h"

#define PEER_IP          0x0a000001u
#define GUEST_IP         0x0a000002u
#define DHCP_FIXED_BYTES 240u /* with the cookie */
#define FRAME_MAX_BYTES  1514u
#define ECHO_PORT        5201u

static const uint8_t guest_mac[6] = {0x52, 0x54, 0, 0x12, 0x34, 0x56};
static const uint8_t peer_mac[6] = {2, 0, 0, 0, 0, 1};

/* What the guest said last. */
static struct {
    uint8_t dhcp[DHCP_FIXED_BYTES]; /* of its last message to a server */
    uint16_t tcp_port;              /* its end of the connection that it last spoke on */
    uint32_t tcp_next;              /* the number after its last segment */
    uint32_t tcp_sent;              /* ours */
    bool arp_answered;
} peer;

static uint32_t ethernet(uint8_t *frame, uint16_t type)
{
    wire_ethernet(frame, guest_mac, peer_mac, type);
    return IP_AT;
}

/* l4_len bytes are in their place. fragment: flags and offset as on the wire. */
static uint32_t ip(uint8_t *frame, uint8_t protocol, uint32_t l4_len, uint16_t fragment)
{
    uint8_t *at = frame + ethernet(frame, 0x0800);
    wire_ip(at, protocol, l4_len, PEER_IP, GUEST_IP);
    put16(at + 4, 1);
    put16(at + 6, fragment);
    wire_ip_sum(at);
    return L4_AT + l4_len;
}

/* Up to n bytes of the input. */
static uint32_t take(struct input *in, uint8_t *to, uint32_t n)
{
    uint32_t part = n < in->left ? n : (uint32_t)in->left;
    memcpy(to, in->at, part);
    in->at += part;
    in->left -= part;
    return part;
}

/* An answer to what the guest asked last: addresses, then options. */
static uint32_t peer_dhcp(struct input *in, uint8_t *frame)
{
    uint8_t *udp = frame + L4_AT, *dhcp = udp + 8;
    uint8_t form = in8(in);

    memcpy(dhcp, peer.dhcp, DHCP_FIXED_BYTES);
    dhcp[0] = 2;
    put32(dhcp + 16, (form & 1u) != 0 ? in32(in) : GUEST_IP);
    put32(dhcp + 20, (form & 2u) != 0 ? in32(in) : PEER_IP);
    if ((form & 4u) != 0) {
        take(in, dhcp + 44, in8(in) % 193u); /* sname, file */
    }
    uint32_t len = DHCP_FIXED_BYTES;
    if ((form & 8u) == 0) {
        static const uint8_t usual[] = {53, 1, 2, 54, 4, 10, 0,   0,   1,   51, 4,
                                        0,  0, 1, 0,  1, 4,  255, 255, 255, 0};
        memcpy(dhcp + len, usual, sizeof(usual));
        dhcp[len + 2] = (form & 16u) != 0 ? 5 : 2; /* ACK or OFFER */
        len += (uint32_t)sizeof(usual);
    }
    len += take(in, dhcp + len, in8(in));
    dhcp[len++] = (form & 32u) != 0 ? 0 : 255;
    put16(udp, 67);
    put16(udp + 2, 68);
    put16(udp + 4, 8 + len);
    put16(udp + 6, 0);
    return ip(frame, 17, 8 + len, 0);
}

static uint32_t peer_arp(struct input *in, uint8_t *frame)
{
    uint8_t *arp = frame + ethernet(frame, 0x0806);
    static const uint8_t head[] = {0, 1, 8, 0, 6, 4, 0, 2};
    uint8_t form = in8(in);

    memcpy(arp, head, sizeof(head));
    arp[7] = (form & 1u) != 0 ? 1 : 2;
    memcpy(arp + 8, peer_mac, 6);
    put32(arp + 14, (form & 2u) != 0 ? in32(in) : PEER_IP);
    memcpy(arp + 18, guest_mac, 6);
    put32(arp + 24, (form & 4u) != 0 ? in32(in) : GUEST_IP);
    if ((form & 8u) != 0) {
        take(in, arp + in8(in) % 24u, 4);
    }
    return ARP_BYTES - ((form & 16u) != 0 ? in8(in) % 28u : 0);
}

static uint32_t peer_udp(struct input *in, uint8_t *frame)
{
    uint8_t *udp = frame + L4_AT;
    uint32_t len = 8 + take(in, udp + 8, in8(in));

    put16(udp, 7);
    put16(udp + 2, ECHO_PORT);
    put16(udp + 4, len);
    put16(udp + 6, 0);
    return ip(frame, 17, len, 0);
}

/* Any protocol, any fragment. */
static uint32_t peer_ip(struct input *in, uint8_t *frame)
{
    static const uint8_t protocols[] = {1, 6, 17, 2};
    uint8_t form = in8(in);
    uint16_t fragment = (form & 4u) != 0 ? in16(in) & 0x3fffu : 0;
    uint32_t len = take(in, frame + L4_AT, in8(in));
    uint32_t total = ip(frame, (form & 8u) != 0 ? in8(in) : protocols[form & 3u], len, fragment);

    if ((form & 16u) != 0) { /* lengths and options that are not so */
        frame[IP_AT] = in8(in);
        put16(frame + IP_AT + 2, in16(in));
        put16(frame + IP_AT + 10, 0);
        size_t header = (size_t)(frame[IP_AT] & 15u) * 4u;
        put16(frame + IP_AT + 10, 0xffffu & ~wire_sum(frame + IP_AT, header, 0));
    }
    return total;
}

static uint32_t peer_tcp(struct input *in, uint8_t *frame)
{
    uint8_t *tcp = frame + L4_AT;
    uint8_t form = in8(in), flags = in8(in);
    uint32_t options = (form & 1u) != 0 ? take(in, tcp + 20, 4u * (in8(in) % 11u)) & ~3u : 0;
    uint32_t payload = take(in, tcp + 20 + options, in8(in));

    memset(tcp, 0, 20);
    put16(tcp, 40000);
    put16(tcp + 2, ECHO_PORT);
    put32(tcp + 4, peer.tcp_sent + ((form & 2u) != 0 ? (uint32_t)(int8_t)in8(in) : 0u));
    put32(tcp + 8, peer.tcp_next + ((form & 4u) != 0 ? (uint32_t)(int8_t)in8(in) : 0u));
    tcp[12] = (uint8_t)((20 + options) / 4 << 4);
    tcp[13] = flags;
    put16(tcp + 14, (form & 8u) != 0 ? in16(in) : 8192);
    if ((form & 16u) == 0) {
        peer.tcp_sent += payload + ((flags & 3u) != 0 ? 1 : 0);
    }
    return ip(frame, 6, 20 + options + payload, 0);
}

static uint32_t peer_raw(struct input *in, uint8_t *frame)
{
    uint32_t at = ethernet(frame, in16(in));
    if (in8(in) % 4 == 0) {
        memset(frame, 0xff, 6);
    }
    return at + take(in, frame + at, in8(in));
}

/* One frame of any kind; its length. */
static inline uint32_t peer_frame(struct input *in, uint8_t kind, uint8_t *frame)
{
    static uint32_t (*const kinds[])(struct input *, uint8_t *) = {
        peer_dhcp, peer_dhcp, peer_arp, peer_udp, peer_ip, peer_tcp, peer_tcp, peer_raw};

    memset(frame, 0, FRAME_MAX_BYTES);
    return kinds[kind % (sizeof(kinds) / sizeof(kinds[0]))](in, frame);
}

/* What the guest sent. True: it asks for the peer's address. */
static inline bool peer_hears(const uint8_t *frame, uint32_t len)
{
    if (len >= ARP_BYTES && get16(frame + 12) == 0x0806) {
        peer.arp_answered |= frame[21] == 2;
        return frame[21] == 1 && get32(frame + 38) == PEER_IP;
    }
    if (len < L4_AT + 20 || get16(frame + 12) != 0x0800) {
        return false;
    }
    if (frame[23] == 6) {
        const uint8_t *tcp = frame + L4_AT;
        uint32_t header = (uint32_t)(tcp[12] >> 4) * 4, bytes = get16(frame + 16) - IP_BYTES;
        peer.tcp_port = (uint16_t)get16(tcp);
        peer.tcp_next = get32(tcp + 4) + bytes - header + ((tcp[13] & 3u) != 0 ? 1 : 0);
    }
    if (frame[23] == 17 && get16(frame + L4_AT + 2) == 67 && len >= L4_AT + 8 + DHCP_FIXED_BYTES) {
        memcpy(peer.dhcp, frame + L4_AT + 8, DHCP_FIXED_BYTES);
    }
    return false;
}

#endif
