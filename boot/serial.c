/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/serial.h"

#include <stdbool.h>

#include "boot/cpu.h"
#include "boot/x86.h"

#define PORT                 0x3f8
#define REG_DATA             (PORT + 0)
#define REG_INTERRUPT_ENABLE (PORT + 1)
#define REG_DIVISOR_LOW      (PORT + 0)
#define REG_DIVISOR_HIGH     (PORT + 1)
#define REG_FIFO             (PORT + 2)
#define REG_LINE_CONTROL     (PORT + 3)
#define REG_MODEM_CONTROL    (PORT + 4)
#define REG_LINE_STATUS      (PORT + 5)

#define LINE_8N1              0x03
#define LINE_DIVISOR_ACCESS   0x80
#define DIVISOR_115200        1
#define FIFO_ENABLE_AND_CLEAR 0x07
#define MODEM_DTR_RTS         0x03
#define STATUS_HOLDING_EMPTY  0x20
#define STATUS_ALL_SENT       0x40

/* A 16550A takes this many bytes whenever it says empty: one status read pays for all of them. */
#define FIFO_BYTES 16u

/*
 * The longest wait for an empty FIFO. 16 bytes at 115,200 bit/s take 1.4 ms; a console whose reader
 * is slow may hold the port for longer. In TSC ticks, as the clock is not calibrated yet when the
 * first line is written: 0.1 s at 5 GHz, 0.5 s at 1 GHz.
 */
#define WAIT_TICKS 500000000ull

static bool stuck; /* the last wait ended by the bound */
static unsigned fifo_room;
static uint64_t dropped;

static bool wait_for(uint8_t status)
{
    if (io_in8(REG_LINE_STATUS) & status) {
        return true;
    }
    if (stuck) {
        return false;
    }
    uint64_t start = x86_rdtsc();
    while (x86_rdtsc() - start < WAIT_TICKS) {
        if (io_in8(REG_LINE_STATUS) & status) {
            return true;
        }
        cpu_relax();
    }
    return false;
}

static void put(char byte)
{
    if (fifo_room == 0) {
        stuck = !wait_for(STATUS_HOLDING_EMPTY);
        if (stuck) {
            dropped++;
            return;
        }
        fifo_room = FIFO_BYTES;
    }
    io_out8(REG_DATA, (uint8_t)byte);
    fifo_room--;
}

void console_write(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\n') {
            put('\r');
        }
        put(text[i]);
    }
}

void console_flush(void)
{
    (void)wait_for(STATUS_ALL_SENT);
}

uint64_t console_dropped_bytes(void)
{
    return dropped;
}

void console_init(void)
{
    io_out8(REG_INTERRUPT_ENABLE, 0);
    io_out8(REG_LINE_CONTROL, LINE_DIVISOR_ACCESS);
    io_out8(REG_DIVISOR_LOW, DIVISOR_115200);
    io_out8(REG_DIVISOR_HIGH, 0);
    io_out8(REG_LINE_CONTROL, LINE_8N1);
    io_out8(REG_FIFO, FIFO_ENABLE_AND_CLEAR);
    io_out8(REG_MODEM_CONTROL, MODEM_DTR_RTS);
}
