/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A fuzzer's input, read from front to back. Beyond its end everything is 0.
 */
#ifndef SLUICE_TESTS_FUZZ_INPUT_H
#define SLUICE_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct input {
    const uint8_t *at;
    size_t left;
};

static inline uint64_t in_bytes(struct input *in, size_t n)
{
    uint64_t value = 0;
    size_t part = n < in->left ? n : in->left;

    memcpy(&value, in->at, part);
    in->at += part;
    in->left -= part;
    return value;
}

/* Asked far more often than the others. */
static inline uint8_t in8(struct input *in)
{
    if (in->left == 0) {
        return 0;
    }
    in->left--;
    return *in->at++;
}

static inline uint16_t in16(struct input *in)
{
    return (uint16_t)in_bytes(in, 2);
}

static inline uint32_t in32(struct input *in)
{
    return (uint32_t)in_bytes(in, 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
