/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A host of few words: ARP, ping, and UDP to the guest's echo port.
 */
#include "tests/vhost-user/peer.h"

#include <string.h>

#define ETH_HDR_BYTES  14u
#define ARP_BYTES      28u
#define IP_AT          14u
#define L4_AT          34u
#define UDP_PAYLOAD_AT 42u
#define PROTO_ICMP     1u
#define PROTO_TCP      6u
#define PROTO_UDP      17u
#define ECHO_PORT      7u
#define OUR_PORT       40007u
#define ASK_PERIOD_NS  500000000ull
#define GIVE_UP_NS     700000000ull /* of one datagram: above what a lost kick may cost */

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static void put16(uint8_t *p, uint32_t value)
{
    p[0] = (uint8_t)(value >> 8);
    p[1] = (uint8_t)value;
}

static void transmit(struct peer *peer, const uint8_t *frame, uint32_t len)
{
    const struct strict_net_hdr plain = {0};
    strict_device_send(peer->dev, &plain, frame, len);
}

static void ethernet(const struct peer *peer, uint8_t *frame, const uint8_t *to, uint16_t type)
{
    memcpy(frame, to, 6);
    memcpy(frame + 6, peer->mac, 6);
    put16(frame + 12, type);
}

static void arp(struct peer *peer, const uint8_t *to_mac, const uint8_t *to_ip, uint16_t operation)
{
    uint8_t frame[ETH_HDR_BYTES + ARP_BYTES + 18] = {0};
    ethernet(peer, frame, to_mac, 0x0806);
    uint8_t *a = frame + ETH_HDR_BYTES;
    memcpy(a, (const uint8_t[]){0, 1, 8, 0, 6, 4}, 6);
    put16(a + 6, operation);
    memcpy(a + 8, peer->mac, 6);
    memcpy(a + 14, peer->ip, 4);
    if (operation == 2) {
        memcpy(a + 18, to_mac, 6);
    }
    memcpy(a + 24, to_ip, 4);
    transmit(peer, frame, sizeof(frame));
}

static void learn(struct peer *peer, const uint8_t *mac, const uint8_t *ip)
{
    if (memcmp(ip, peer->guest_ip, 4) == 0) {
        memcpy(peer->guest_mac, mac, 6);
        peer->guest_known = true;
    }
}

static void on_arp(struct peer *peer, const uint8_t *frame, uint32_t len)
{
    const uint8_t *a = frame + ETH_HDR_BYTES;
    if (len < ETH_HDR_BYTES + ARP_BYTES) {
        return;
    }
    learn(peer, a + 8, a + 14);
    if (get16(a + 6) == 1 && memcmp(a + 24, peer->ip, 4) == 0) {
        peer->arp_answered++;
        arp(peer, a + 8, a + 14, 2);
    }
}

static void on_ping(struct peer *peer, const uint8_t *frame, uint32_t len)
{
    uint8_t answer[2048];
    if (len > sizeof(answer) || frame[L4_AT] != 8) {
        return;
    }
    memcpy(answer, frame, len);
    ethernet(peer, answer, frame + 6, 0x0800);
    memcpy(answer + IP_AT + 12, frame + IP_AT + 16, 4);
    memcpy(answer + IP_AT + 16, frame + IP_AT + 12, 4);
    answer[L4_AT] = 0;
    put16(answer + L4_AT + 2, 0);
    const uint32_t n = get16(frame + IP_AT + 2) - 20u;
    put16(answer + L4_AT + 2, (uint16_t)~strict_sum(answer + L4_AT, n, 0));
    peer->ping_answered++;
    transmit(peer, answer, len);
}

static uint8_t pattern(uint32_t sequence, uint32_t at)
{
    return (uint8_t)(sequence * 13u + at);
}

static void on_udp(struct peer *peer, const uint8_t *frame, uint32_t len)
{
    peer->udp_in++;
    if (get16(frame + L4_AT) != ECHO_PORT || get16(frame + L4_AT + 2) != OUR_PORT) {
        return;
    }
    uint32_t sequence;
    const uint32_t n = get16(frame + L4_AT + 4) - 8u;
    bool right = n == peer->size_bytes && UDP_PAYLOAD_AT + n <= len;
    if (right) {
        memcpy(&sequence, frame + UDP_PAYLOAD_AT, 4);
        for (uint32_t i = 4; i < n; i++) {
            right &= frame[UDP_PAYLOAD_AT + i] == pattern(sequence, i);
        }
        right &= sequence < peer->sent && peer->sent - sequence <= PEER_WINDOW;
    }
    if (!right) {
        peer->wrong++;
    } else if (peer->seen[sequence % PEER_WINDOW] || peer->sent - peer->echoed == peer->lost) {
        peer->duplicate++;
    } else {
        peer->seen[sequence % PEER_WINDOW] = true;
        peer->echoed++;
        peer->last_progress_ns = peer->dev->now_ns;
    }
}

void peer_frame(struct peer *peer, const uint8_t *frame, uint32_t len)
{
    peer->bytes_in += len;
    const uint16_t type = get16(frame + 12);
    if (type == 0x0806) {
        on_arp(peer, frame, len);
    } else if (type == 0x0800 && len >= L4_AT + 8 && frame[IP_AT] == 0x45) {
        learn(peer, frame + 6, frame + IP_AT + 12);
        const uint8_t protocol = frame[IP_AT + 9];
        if (protocol == PROTO_ICMP) {
            on_ping(peer, frame, len);
        } else if (protocol == PROTO_UDP) {
            on_udp(peer, frame, len);
        } else if (protocol == PROTO_TCP) {
            peer->tcp_in++;
        }
    } else {
        peer->other++;
    }
}

static void send_datagram(struct peer *peer)
{
    static uint8_t frame[STRICT_NET_FRAME_BYTES];
    const uint32_t udp_bytes = 8 + peer->size_bytes;
    ethernet(peer, frame, peer->guest_mac, 0x0800);
    uint8_t *ip = frame + IP_AT;
    memset(ip, 0, 20);
    ip[0] = 0x45;
    put16(ip + 2, 20 + udp_bytes);
    ip[8] = 64;
    ip[9] = PROTO_UDP;
    memcpy(ip + 12, peer->ip, 4);
    memcpy(ip + 16, peer->guest_ip, 4);
    put16(ip + 10, (uint16_t)~strict_sum(ip, 20, 0));
    uint8_t *udp = frame + L4_AT;
    put16(udp, OUR_PORT);
    put16(udp + 2, ECHO_PORT);
    put16(udp + 4, udp_bytes);
    put16(udp + 6, 0);
    memcpy(udp + 8, &peer->sent, 4);
    for (uint32_t i = 4; i < peer->size_bytes; i++) {
        udp[8 + i] = pattern(peer->sent, i);
    }
    const uint16_t sum = (uint16_t)~strict_sum(udp, udp_bytes, strict_pseudo_sum(ip, udp_bytes));
    put16(udp + 6, sum == 0 ? 0xffff : sum);
    peer->seen[peer->sent % PEER_WINDOW] = false;
    peer->sent++;
    transmit(peer, frame, L4_AT + udp_bytes);
}

void peer_step(struct peer *peer, uint64_t now_ns)
{
    static const uint8_t broadcast[6] = {255, 255, 255, 255, 255, 255};
    if (peer->count == 0) {
        return;
    }
    if (!peer->guest_known) {
        if (now_ns - peer->last_ask_ns > ASK_PERIOD_NS) {
            peer->last_ask_ns = now_ns;
            arp(peer, broadcast, peer->guest_ip, 1);
        }
        peer->last_progress_ns = now_ns;
        return;
    }
    uint32_t waiting = peer->sent - peer->echoed - peer->lost;
    if (waiting > 0 && now_ns - peer->last_progress_ns > GIVE_UP_NS) {
        peer->lost += waiting;
        peer->last_progress_ns = now_ns;
        waiting = 0;
    }
    while (peer->sent < peer->count && waiting++ < peer->window) {
        send_datagram(peer);
    }
}

bool peer_finished(const struct peer *peer)
{
    return peer->count != 0 && peer->echoed + peer->lost >= peer->count;
}
