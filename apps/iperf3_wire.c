/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/iperf3_wire.h"

#include <stdlib.h>
#include <string.h>

#define ERROR_BYTES 8u /* two numbers of four bytes */

void iperf3_wire_init(struct iperf3_wire *wire, const struct iperf3_wire_ops *ops, void *arg)
{
    *wire = (struct iperf3_wire){.ops = ops, .arg = arg, .expect = WIRE_STATE};
}

void iperf3_wire_free(struct iperf3_wire *wire)
{
    free(wire->text);
    wire->text = NULL;
}

void iperf3_wire_expect_json(struct iperf3_wire *wire)
{
    if (wire->expect == WIRE_STATE) {
        wire->expect = WIRE_LENGTH;
        wire->have = 0;
    }
}

static void break_off(struct iperf3_wire *wire, const char *why)
{
    wire->expect = WIRE_BROKEN;
    wire->ops->malformed(wire->arg, why);
}

static void take_state(struct iperf3_wire *wire, uint8_t byte)
{
    /* NOLINTNEXTLINE(bugprone-signed-char-misuse): iperf3 sends a signed char */
    int state = (int8_t)byte;
    if (state == IPERF3_SERVER_ERROR) {
        wire->expect = WIRE_ERROR;
        wire->have = 0;
        return;
    }
    wire->ops->state(wire->arg, state);
}

static void take_error(struct iperf3_wire *wire)
{
    wire->expect = WIRE_BROKEN;
    wire->ops->server_error(wire->arg, iperf3_get_length(wire->head),
                            iperf3_get_length(wire->head + 4));
}

static void take_length(struct iperf3_wire *wire)
{
    wire->text_len = iperf3_get_length(wire->head);
    wire->have = 0;
    if (wire->text_len == 0 || wire->text_len > IPERF3_MAX_JSON_BYTES) {
        break_off(wire, "the length of a JSON text is 0 or absurd");
        return;
    }
    wire->text = malloc(wire->text_len);
    if (wire->text == NULL) {
        break_off(wire, "there is no memory for a JSON text");
        return;
    }
    wire->expect = WIRE_JSON;
}

static void take_json(struct iperf3_wire *wire)
{
    char *text = wire->text;
    wire->text = NULL;
    wire->expect = WIRE_STATE;
    wire->ops->json(wire->arg, text, wire->text_len);
    free(text);
}

/* Moves what is missing of want bytes into where; true when complete. */
static bool gather(struct iperf3_wire *wire, void *where, size_t want, const uint8_t **data,
                   size_t *len)
{
    size_t missing = want - wire->have;
    size_t part = missing < *len ? missing : *len;
    memcpy((char *)where + wire->have, *data, part);
    wire->have += part;
    *data += part;
    *len -= part;
    return wire->have == want;
}

void iperf3_wire_feed(struct iperf3_wire *wire, const uint8_t *data, size_t len)
{
    while (len != 0) {
        switch (wire->expect) {
        case WIRE_STATE:
            len--;
            take_state(wire, *data++);
            break;
        case WIRE_ERROR:
            if (gather(wire, wire->head, ERROR_BYTES, &data, &len)) {
                take_error(wire);
            }
            break;
        case WIRE_LENGTH:
            if (gather(wire, wire->head, IPERF3_FRAME_LENGTH_BYTES, &data, &len)) {
                take_length(wire);
            }
            break;
        case WIRE_JSON:
            if (gather(wire, wire->text, wire->text_len, &data, &len)) {
                take_json(wire);
            }
            break;
        case WIRE_BROKEN:
            return;
        }
    }
}
