/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/cmdline.h"

bool cmdline_append(char *line, size_t line_bytes, const char *text, size_t text_bytes)
{
    size_t old = 0;
    while (line[old] != '\0') {
        old++;
    }
    size_t at = old;
    bool comment = false;
    bool blank = at > 0; /* one is owed before the next word */
    for (size_t i = 0; i < text_bytes; i++) {
        char c = text[i];
        if (c == '\n' || c == '\r') {
            comment = false;
        } else if (c == '#') {
            comment = true;
        }
        if (comment || (unsigned char)c <= ' ' || c == 0x7f) {
            blank = at > 0;
            continue;
        }
        size_t needed = (blank ? 1u : 0u) + 2; /* the blank, the character, the final NUL */
        if (line_bytes - at < needed) {
            line[old] = '\0';
            return false;
        }
        if (blank) {
            line[at++] = ' ';
            blank = false;
        }
        line[at++] = c;
    }
    line[at] = '\0';
    return true;
}
