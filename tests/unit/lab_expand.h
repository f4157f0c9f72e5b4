/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The device's half of the offloads: what leaves it for a frame of the guest.
 *
 *     guest -> a frame with its sum open, or of many segments -> [lab_expand] -> frames
 */
#ifndef SLUICE_TESTS_LAB_EXPAND_H
#define SLUICE_TESTS_LAB_EXPAND_H

#include "tests/unit/lab_tcp.h"

/*
 * Finishes a frame as the device would: fills in the checksum that was asked for, and cuts what is
 * to be segmented. each() gets every resulting frame; checksums are verified here.
 */
static inline void lab_expand(const struct lab_frame *frame,
                              void (*each)(void *ctx, const uint8_t *bytes, uint32_t len),
                              void *ctx)
{
    static uint8_t out[70000];
    const uint8_t *tcp = frame->bytes + L4_AT;
    uint32_t hdr = L4_AT + (uint32_t)(tcp[12] >> 4) * 4;
    uint32_t payload = frame->len - hdr, step = payload;
    if (frame->hdr.gso_type != 0) {
        assert_int_equal(frame->hdr.gso_type, VIRTIO_NET_HDR_GSO_TCPV4);
        assert_int_equal(frame->hdr.hdr_len, hdr);
        step = frame->hdr.gso_size;
    }
    assert_int_equal(frame->hdr.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
    assert_int_equal(frame->hdr.csum_start, L4_AT);
    assert_int_equal(frame->hdr.csum_offset, 16);
    /* What stands in the field: the pseudo header's sum over the whole length. */
    uint32_t l4_len = frame->len - L4_AT;
    uint32_t pseudo = wire_sum(frame->bytes + 26, 8, 6 + l4_len);
    pseudo = (pseudo & 0xffffu) + (pseudo >> 16);
    assert_int_equal(get16(tcp + 16), pseudo);
    for (uint32_t at = 0; at < payload || at == 0; at += step) {
        uint32_t len = payload - at < step ? payload - at : step;
        bool last = at + len == payload;
        memcpy(out, frame->bytes, hdr);
        memcpy(out + hdr, frame->bytes + hdr + at, len);
        put16(out + 16, hdr - IP_AT + len);
        put32(out + 38, get32(tcp + 4) + at);
        if (!last) {
            out[47] = (uint8_t)(out[47] & ~(LAB_FIN | LAB_PSH));
        }
        /* The device's arithmetic: what the field holds, corrected by the difference in length. */
        uint32_t field = get16(tcp + 16) + (0xffffu & ~l4_len) + hdr - L4_AT + len;
        field = (field & 0xffffu) + (field >> 16);
        put16(out + 50, (field & 0xffffu) + (field >> 16));
        uint32_t sum = wire_sum(out + L4_AT, hdr - L4_AT + len, 0);
        put16(out + 50, 0xffffu & ~sum);
        assert_int_equal(wire_l4_sum(out, hdr - L4_AT + len), 0xffff);
        each(ctx, out, hdr + len);
        if (step == 0) {
            break;
        }
    }
}

#endif
