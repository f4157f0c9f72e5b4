/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The words of iperf3's protocol, as version 3.12 speaks it; pure functions on bytes and text. The
 * order in which they are spoken is in iperf3_client.c.
 *
 * Control connection: a cookie of 37 bytes, then states of one signed byte, with JSON texts in
 * between that are framed by a length of four bytes, most significant first.
 */
#ifndef SLUICE_APPS_IPERF3_PROTO_H
#define SLUICE_APPS_IPERF3_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IPERF3_COOKIE_BYTES       37u /* 36 characters and a NUL */
#define IPERF3_MAX_STREAMS        128u
#define IPERF3_HELLO_BYTES        4u
#define IPERF3_UDP_HEADER_BYTES   16u
#define IPERF3_FRAME_LENGTH_BYTES 4u

/* Longest JSON text taken from a server: 256 streams (both directions of 128) of some 300 bytes
 * each, and as much again. */
#define IPERF3_MAX_JSON_BYTES (160u << 10)

enum iperf3_state {
    IPERF3_TEST_START = 1,
    IPERF3_TEST_RUNNING = 2,
    IPERF3_TEST_END = 4,
    IPERF3_PARAM_EXCHANGE = 9,
    IPERF3_CREATE_STREAMS = 10,
    IPERF3_SERVER_TERMINATE = 11,
    IPERF3_CLIENT_TERMINATE = 12,
    IPERF3_EXCHANGE_RESULTS = 13,
    IPERF3_DISPLAY_RESULTS = 14,
    IPERF3_DONE = 16,
    IPERF3_ACCESS_DENIED = -1,
    IPERF3_SERVER_ERROR = -2,
};

/* For messages; "unknown state" for others. */
const char *iperf3_state_name(int state);

void iperf3_make_cookie(char cookie[IPERF3_COOKIE_BYTES], uint32_t (*random32)(void));

/* Streams are numbered 1, 3, 4, 5, ... on both sides; index counts from 0. */
unsigned iperf3_stream_id(unsigned index);

/* ---- parameters ---- */

struct iperf3_params {
    bool udp;
    bool reverse, bidir;
    uint32_t omit_s, time_s;
    uint32_t parallel;
    uint32_t size_bytes;
    uint64_t rate_bits;    /* 0: not said, as fast as it goes */
    uint32_t window_bytes; /* 0: not said */
};

/* JSON text without a frame, to be freed by the caller; NULL: no memory. */
char *iperf3_params_text(const struct iperf3_params *params);

/* ---- results ---- */

struct iperf3_stream_result {
    uint32_t id;
    uint64_t bytes;
    int64_t retransmits; /* -1: not known */
    double jitter_s;
    uint64_t errors, packets;
    uint64_t omitted_errors, omitted_packets;
    double start_s, end_s;
};

struct iperf3_results {
    double cpu_total, cpu_user, cpu_system; /* percent */
    int64_t sender_has_retransmits;         /* -1: not a sender, or not known */
    unsigned n_streams;
    struct iperf3_stream_result streams[2 * IPERF3_MAX_STREAMS];
};

char *iperf3_results_text(const struct iperf3_results *results);

/* Reads a peer's results. False: *why is what is wrong with them, and *out holds nothing of use. A
 * stream's id must be one of the first n_streams; each may come once. */
bool iperf3_results_parse(const char *text, size_t len, unsigned n_streams,
                          struct iperf3_results *out, const char **why);

/* ---- datagrams ---- */

/* What opens a UDP stream, and its answer; before 3.12 both had other values, and an answer of that
 * kind is taken too. */
extern const uint8_t iperf3_udp_hello[IPERF3_HELLO_BYTES];
bool iperf3_is_udp_answer(const uint8_t *data, size_t len);

/* Header of each datagram: seconds, microseconds, 64-bit number, all most significant byte first.
 */
static inline void iperf3_put_udp_header(uint8_t *payload, uint64_t seq, uint64_t now_ns)
{
    uint64_t us = now_ns / 1000;
    uint32_t second_us[2] = {__builtin_bswap32((uint32_t)(us / 1000000)),
                             __builtin_bswap32((uint32_t)(us % 1000000))};
    uint64_t number = __builtin_bswap64(seq);
    __builtin_memcpy(payload, second_us, 8);
    __builtin_memcpy(payload + 8, &number, 8);
}

static inline void iperf3_get_udp_header(const uint8_t *payload, uint64_t *seq, uint64_t *sent_ns)
{
    uint32_t second_us[2];
    uint64_t number;
    __builtin_memcpy(second_us, payload, 8);
    __builtin_memcpy(&number, payload + 8, 8);
    *seq = __builtin_bswap64(number);
    *sent_ns =
        __builtin_bswap32(second_us[0]) * 1000000000ull + __builtin_bswap32(second_us[1]) * 1000ull;
}

/* ---- frames ---- */

void iperf3_put_length(uint8_t frame[IPERF3_FRAME_LENGTH_BYTES], uint32_t len);
uint32_t iperf3_get_length(const uint8_t frame[IPERF3_FRAME_LENGTH_BYTES]);

#endif
