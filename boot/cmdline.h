/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From a configuration file's text to a command line. Used by the EFI loader, before the image
 * runs.
 */
#ifndef SLUICE_BOOT_CMDLINE_H
#define SLUICE_BOOT_CMDLINE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Appends `text` to the NUL-terminated `line` of `line_bytes`: control characters and blanks become
 * one blank, '#' and what follows it in its text line is left out. False: it does not fit; `line`
 * is then unchanged.
 */
bool cmdline_append(char *line, size_t line_bytes, const char *text, size_t text_bytes);

#endif
