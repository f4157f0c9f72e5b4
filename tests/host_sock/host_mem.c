/* SPDX-License-Identifier: BSD-2-Clause
 *
 * boot/mem.h on Linux: memory that is zeroed, aligned and never freed.
 */
#include "boot/mem.h"

#include <stdlib.h>
#include <string.h>

void *mem_alloc(size_t bytes, size_t align)
{
    size_t rounded = (bytes + align - 1) / align * align;
    void *memory = aligned_alloc(align, rounded);
    return memory == NULL ? NULL : memset(memory, 0, rounded);
}
