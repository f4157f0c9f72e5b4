/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The C library's names for copy.h, in the place of newlib's own: the linker takes these first.
 */
#include <string.h>

#include "boot/copy.h"

void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    copy_bytes(to, from, bytes);
    return to;
}

void *memset(void *to, int value, size_t bytes)
{
    fill_bytes(to, (uint8_t)value, bytes);
    return to;
}
