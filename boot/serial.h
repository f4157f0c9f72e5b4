/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The console: one 16550 at the first PC serial port. Standard output and error end here.
 */
#ifndef SLUICE_BOOT_SERIAL_H
#define SLUICE_BOOT_SERIAL_H

#include <stddef.h>
#include <stdint.h>

/*
 * Writes, with a carriage return before each line feed. Waits for the port, but a port that takes
 * nothing for some time, or is not there, costs that time once only: then bytes are dropped until
 * it takes some again.
 */
void console_write(const char *text, size_t bytes);

/* Waits, within the same bound, until the last byte has left. */
void console_flush(void);

/* Bytes that the port did not take. */
uint64_t console_dropped_bytes(void);

void console_init(void);

#endif
