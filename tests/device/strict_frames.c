/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/device/strict_frames.h"

#include <string.h>

#include "tests/device/strict_net.h"

uint32_t frames_read32(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

static uint8_t pattern(uint32_t sequence, uint32_t at)
{
    return (uint8_t)(sequence * 31u + at * 7u);
}

bool frames_payload_right(const uint8_t *payload, uint32_t n, uint32_t sequence)
{
    uint8_t wrong = 0;
    for (uint32_t i = 4; i < n; i++) {
        wrong |= payload[i] ^ pattern(sequence, i);
    }
    return n >= 4 && wrong == 0;
}

void frames_fill_payload(uint8_t *payload, uint32_t n, uint32_t sequence)
{
    for (uint32_t i = 4; i < n; i++) {
        payload[i] = pattern(sequence, i);
    }
    memcpy(payload, &sequence, sizeof(sequence));
}

static void put16(uint8_t *p, uint32_t value)
{
    p[0] = (uint8_t)(value >> 8);
    p[1] = (uint8_t)value;
}

static void build_ipv4(uint8_t *frame, const uint8_t *source_mac, uint8_t protocol,
                       uint32_t ip_bytes)
{
    static const uint8_t peer_mac[6] = {0x52, 0x54, 0, 0xaa, 0xbb, 0xcc};
    memcpy(frame, peer_mac, 6);
    memcpy(frame + 6, source_mac, 6);
    put16(frame + 12, 0x0800);
    uint8_t *ip = frame + FRAMES_IP_AT;
    memset(ip, 0, 20);
    ip[0] = 0x45;
    put16(ip + 2, ip_bytes);
    ip[8] = 64;
    ip[9] = protocol;
    memcpy(ip + 12, (const uint8_t[]){10, 0, 0, 2, 10, 0, 0, 1}, 8);
    put16(ip + 10, (uint16_t)~strict_sum(ip, 20, 0));
}

uint32_t frames_udp(uint8_t *frame, const uint8_t *mac, uint32_t payload_bytes, uint32_t sequence,
                    bool partial)
{
    const uint32_t udp_bytes = 8 + payload_bytes;
    build_ipv4(frame, mac, 17, 20 + udp_bytes);
    uint8_t *udp = frame + FRAMES_L4_AT;
    put16(udp, 4000);
    put16(udp + 2, 5001);
    put16(udp + 4, udp_bytes);
    put16(udp + 6, 0);
    frames_fill_payload(udp + 8, payload_bytes, sequence);
    const uint16_t pseudo = strict_pseudo_sum(frame + FRAMES_IP_AT, udp_bytes);
    const uint16_t sum = (uint16_t)~strict_sum(udp, udp_bytes, pseudo);
    put16(udp + 6, partial ? pseudo : sum == 0 ? 0xffff : sum);
    return FRAMES_L4_AT + udp_bytes;
}

uint32_t frames_tcp(uint8_t *frame, const uint8_t *mac, uint32_t payload_bytes, uint32_t sequence)
{
    const uint32_t tcp_bytes = 20 + payload_bytes;
    build_ipv4(frame, mac, 6, 20 + tcp_bytes);
    uint8_t *tcp = frame + FRAMES_L4_AT;
    memset(tcp, 0, 20);
    put16(tcp, 4000);
    put16(tcp + 2, 5001);
    tcp[12] = 5 << 4;
    tcp[13] = 0x10;
    put16(tcp + 14, 0xffff);
    frames_fill_payload(tcp + 20, payload_bytes, sequence);
    put16(tcp + 16, strict_pseudo_sum(frame + FRAMES_IP_AT, tcp_bytes));
    return FRAMES_L4_AT + tcp_bytes;
}
