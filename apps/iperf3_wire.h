/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The control connection's byte stream taken apart: states, a server's error numbers, framed JSON.
 * Bytes may come in pieces of any size.
 */
#ifndef SLUICE_APPS_IPERF3_WIRE_H
#define SLUICE_APPS_IPERF3_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "apps/iperf3_proto.h"

struct iperf3_wire_ops {
    void (*state)(void *arg, int state);
    void (*server_error)(void *arg, uint32_t number, uint32_t os_number);
    void (*json)(void *arg, const char *text, size_t len); /* text is not NUL terminated */
    void (*malformed)(void *arg, const char *why);
};

struct iperf3_wire {
    const struct iperf3_wire_ops *ops;
    void *arg;
    enum { WIRE_STATE, WIRE_ERROR, WIRE_LENGTH, WIRE_JSON, WIRE_BROKEN } expect;
    uint8_t head[8];
    size_t have;
    char *text;
    size_t text_len;
};

void iperf3_wire_init(struct iperf3_wire *wire, const struct iperf3_wire_ops *ops, void *arg);
void iperf3_wire_free(struct iperf3_wire *wire);

/* What follows next is a JSON text, not a state. */
void iperf3_wire_expect_json(struct iperf3_wire *wire);

void iperf3_wire_feed(struct iperf3_wire *wire, const uint8_t *data, size_t len);

#endif
