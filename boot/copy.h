/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Copying and filling, for what a packet path copies: tens to thousands of bytes that are in the
 * cache and stay there. newlib's routines store past the cache from 256 bytes on, so that the next
 * reader, the device's side, finds nothing there, and go byte by byte at the ends, which costs most
 * of all when the processor is emulated.
 *
 * Words of 8 bytes in general registers, unaligned; the last ones overlap instead of a tail loop.
 * Vector registers would be twice as fast on a real processor and were measured at less than half
 * the speed on an emulated one.
 */
#ifndef SLUICE_BOOT_COPY_H
#define SLUICE_BOOT_COPY_H

#include <stddef.h>
#include <stdint.h>

#define COPY_WORD_BYTES  8u
#define COPY_BLOCK_BYTES 64u

/* One value of `type`, at any alignment and of whatever the memory holds. */
#define COPY_DEFINE_WORD(bits)                                                                     \
    typedef uint##bits##_t copy_u##bits __attribute__((aligned(1), may_alias));
COPY_DEFINE_WORD(16)
COPY_DEFINE_WORD(32)
COPY_DEFINE_WORD(64)

/* 0 to 7 bytes: two words that overlap in the middle, all loads first. */
static inline void copy_short(char *to, const char *from, size_t bytes)
{
    if (bytes >= 4) {
        uint32_t first = *(const copy_u32 *)from;
        uint32_t last = *(const copy_u32 *)(from + bytes - 4);
        *(copy_u32 *)to = first;
        *(copy_u32 *)(to + bytes - 4) = last;
    } else if (bytes >= 2) {
        uint16_t first = *(const copy_u16 *)from;
        /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): of fill_bytes()'s word */
        uint16_t last = *(const copy_u16 *)(from + bytes - 2);
        *(copy_u16 *)to = first;
        *(copy_u16 *)(to + bytes - 2) = last;
    } else if (bytes == 1) {
        *to = *from;
    }
}

/* The two ranges do not overlap. */
static inline void copy_bytes(char *to, const char *from, size_t bytes)
{
    if (bytes < COPY_WORD_BYTES) {
        copy_short(to, from, bytes);
        return;
    }
    const copy_u64 *in = (const copy_u64 *)from;
    copy_u64 *out = (copy_u64 *)to;
    copy_u64 *last_out = (copy_u64 *)(to + bytes - COPY_WORD_BYTES);
    uint64_t last = *(const copy_u64 *)(from + bytes - COPY_WORD_BYTES);
    for (; bytes >= COPY_BLOCK_BYTES; bytes -= COPY_BLOCK_BYTES) {
        uint64_t a = in[0], b = in[1], c = in[2], d = in[3];
        uint64_t e = in[4], f = in[5], g = in[6], h = in[7];
        out[0] = a;
        out[1] = b;
        out[2] = c;
        out[3] = d;
        out[4] = e;
        out[5] = f;
        out[6] = g;
        out[7] = h;
        in += 8;
        out += 8;
    }
    for (; bytes >= COPY_WORD_BYTES; bytes -= COPY_WORD_BYTES) {
        *out++ = *in++;
    }
    *last_out = last;
}

static inline void fill_bytes(char *to, uint8_t value, size_t bytes)
{
    uint64_t word = value * 0x0101010101010101ull;
    if (bytes < COPY_WORD_BYTES) {
        copy_short(to, (const char *)&word, bytes);
        return;
    }
    copy_u64 *out = (copy_u64 *)to;
    copy_u64 *last_out = (copy_u64 *)(to + bytes - COPY_WORD_BYTES);
    for (; bytes >= COPY_BLOCK_BYTES; bytes -= COPY_BLOCK_BYTES) {
        out[0] = word;
        out[1] = word;
        out[2] = word;
        out[3] = word;
        out[4] = word;
        out[5] = word;
        out[6] = word;
        out[7] = word;
        out += 8;
    }
    for (; bytes >= COPY_WORD_BYTES; bytes -= COPY_WORD_BYTES) {
        *out++ = word;
    }
    *last_out = word;
}

#endif
