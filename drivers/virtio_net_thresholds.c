/* SPDX-License-Identifier: BSD-2-Clause
 *
 * When a TX queue stops and when it wakes, as a pure function of the ring and of what one unit of
 * the gate may be. docs/thresholds.md has each formula with its reason.
 */
#include "drivers/virtio_net_impl.h"

#define IPV4_HEADER_BYTES 20u
#define UDP_HEADER_BYTES  8u
#define UDP_MAX_PAYLOAD   65507u

/* Control frames get a sixteenth of the ring: enough for a burst of ACKs, never the ring. */
#define RESERVE_FRACTION  16u
#define RESERVE_MAX_DESCS 16u

/* Pieces of a plain frame: a header buffer and payload by reference, which in TCP may cross from
 * one write to the next. A ring too small for three takes two. */
#define FRAME_PIECES     3u
#define FRAME_PIECES_MIN 2u

/* Beyond this many freed descriptors a later wake only adds latency. */
#define HYSTERESIS_MAX_DESCS 256u

/* Payload bytes of a fragment are a multiple of 8 (RFC 791). */
static uint32_t fragment_payload_bytes(uint16_t mtu_bytes)
{
    return (mtu_bytes - IPV4_HEADER_BYTES) & ~7u;
}

static uint32_t datagram_frames(uint32_t payload_bytes, uint16_t mtu_bytes)
{
    uint32_t ip_payload = payload_bytes + UDP_HEADER_BYTES;
    uint32_t each = fragment_payload_bytes(mtu_bytes);
    if (ip_payload + IPV4_HEADER_BYTES <= mtu_bytes) {
        return 1;
    }
    return (ip_payload + each - 1) / each;
}

/* Largest payload that goes into so many frames. */
static uint32_t datagram_payload_bytes(uint32_t n_frames, uint16_t mtu_bytes)
{
    uint32_t bytes = mtu_bytes - IPV4_HEADER_BYTES - UDP_HEADER_BYTES;
    if (n_frames > 1) {
        bytes = n_frames * fragment_payload_bytes(mtu_bytes) - UDP_HEADER_BYTES;
    }
    return bytes < UDP_MAX_PAYLOAD ? bytes : UDP_MAX_PAYLOAD;
}

static uint32_t clamp(uint32_t value, uint32_t low, uint32_t high)
{
    return value < low ? low : value > high ? high : value;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

bool tx_thresholds(const struct tx_form *form, struct tx_thresholds *out)
{
    uint32_t size = form->size_descs;
    uint32_t reserve = clamp(size / RESERVE_FRACTION, 1, RESERVE_MAX_DESCS);
    uint32_t room = size > reserve ? size - reserve : 0;
    uint32_t pieces = room >= FRAME_PIECES ? FRAME_PIECES : FRAME_PIECES_MIN;
    uint32_t frame = form->indirect ? 1 : pieces;
    uint32_t fragment = form->indirect ? 1 : FRAME_PIECES_MIN;
    /* A chain is never longer than the ring, an indirect one neither (2.7.5.3.1). */
    uint32_t tso = form->indirect ? 1 : TX_MAX_SEGS;
    bool tso_fits = form->tso && size >= TX_MAX_SEGS && tso <= room;
    uint32_t datagram = form->max_datagram_bytes;
    uint32_t frames = datagram_frames(datagram, form->mtu_bytes);

    if (frame > room) {
        return false;
    }
    if (frames > 1 && frames * fragment > room) {
        /* It cannot be whole, so it need not take the ring either: while one half is sent, the
         * other is filled. */
        frames = larger(room / 2 / fragment, 1);
        datagram = datagram_payload_bytes(frames, form->mtu_bytes);
    }
    uint32_t unit = larger(frame, tso_fits ? tso : 0);
    unit = larger(unit, frames > 1 ? frames * fragment : frame);
    uint32_t stop = unit + reserve;
    uint32_t hysteresis = clamp((size - stop) / 2, 0, HYSTERESIS_MAX_DESCS);

    *out = (struct tx_thresholds){
        .unit = (uint16_t)unit,
        .reserve = (uint16_t)reserve,
        .stop = (uint16_t)stop,
        .wake = (uint16_t)(stop + hysteresis),
        .tso = tso_fits,
        .max_datagram_bytes = datagram,
        .max_segs =
            (uint16_t)(form->indirect ? clamp(size - 1, 1, VIRTIO_NET_TX_MAX_PIECES) : frame),
    };
    return true;
}
