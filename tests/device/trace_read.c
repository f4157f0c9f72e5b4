/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/device/trace.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_PREFIX "trace: "
#define KINDS       "CMXYBVZURNIAPKGHEDSW"

bool trace_fail(struct trace *trace, const struct ring_event *event, const char *format, ...)
{
    va_list args;
    int n = 0;

    if (event != NULL) {
        n = snprintf(trace->error, sizeof(trace->error),
                     "event %td, `%c%u,%u,%" PRIu32 "`: ", event - trace->events,
                     event->queue == 0 ? tolower(event->kind) : event->kind, event->a, event->c,
                     event->b);
    }
    va_start(args, format);
    vsnprintf(trace->error + n, sizeof(trace->error) - (size_t)n, format, args);
    va_end(args);
    return false;
}

static bool read_header(struct trace *trace, const char *line)
{
    unsigned version;
    char policy[24];

    /* NOLINTNEXTLINE(cert-err34-c): a number that does not fit is one that the run does not have */
    if (sscanf(line,
               "version=%u events=%" SCNu32 " lost=%" SCNu64 " features=%" SCNx64
               " mtu=%hu datagram=%" SCNu32
               " policy=%23s tx.size=%hu tx.stop=%hu tx.wake=%hu rx.size=%hu",
               &version, &trace->n, &trace->lost, &trace->features, &trace->mtu_bytes,
               &trace->max_datagram_bytes, policy, &trace->tx_size, &trace->tx_stop,
               &trace->tx_wake, &trace->rx_size) != 11 ||
        version != 1 || trace->n > 1u << 24) {
        return trace_fail(trace, NULL, "no head of a trace of version 1: %.60s", line);
    }
    for (unsigned i = 0; i < VIRTIO_NET_POLICIES; i++) {
        if (strcmp(policy, virtio_net_policy_names[i]) == 0) {
            trace->policy = (enum virtio_net_policy)i;
        }
    }
    trace->events = calloc(trace->n + 1u, sizeof(struct ring_event));
    return trace->events != NULL;
}

/* One word of a line: a time, or an event. */
static bool read_word(struct trace *trace, const char *word, uint32_t *n, uint32_t *at_us)
{
    unsigned long numbers[3] = {0}; /* a, c, b */
    const char *at = word + 1;
    char *end = NULL;

    for (unsigned i = 0; i < 3; i++) {
        numbers[i] = strtoul(at, &end, 10);
        if (!isdigit((unsigned char)*at) ||
            numbers[i] > (i < 2 && word[0] != '+' ? UINT16_MAX : UINT32_MAX)) {
            end = NULL;
        }
        if (word[0] == '+' || end == NULL || *end != ',') {
            break;
        }
        at = end + 1;
    }
    if (end == NULL || *end != '\0') {
        return trace_fail(trace, NULL, "not an event: %.40s", word);
    }
    if (word[0] == '+') {
        *at_us += (uint32_t)numbers[0];
        return true;
    }
    if (strchr(KINDS, toupper((unsigned char)word[0])) == NULL || *n == trace->n) {
        return trace_fail(trace, NULL, "event %" PRIu32 " of %" PRIu32 ", `%.40s`, is none", *n,
                          trace->n, word);
    }
    trace->events[(*n)++] = (struct ring_event){
        .at_us = *at_us,
        .kind = (uint8_t)toupper((unsigned char)word[0]),
        .queue = isupper((unsigned char)word[0]) ? 1 : 0,
        .a = (uint16_t)numbers[0],
        .c = (uint16_t)numbers[1],
        .b = (uint32_t)numbers[2],
    };
    return true;
}

bool trace_read(struct trace *trace, const char *text)
{
    uint32_t n = 0, at_us = 0;
    const char *line = text;
    bool ok = true;

    memset(trace, 0, sizeof(*trace));
    for (; ok && (line = strstr(line, LINE_PREFIX)) != NULL;) {
        line += strlen(LINE_PREFIX);
        char *copy = strndup(line, strcspn(line, "\r\n"));
        char *rest = NULL;
        if (copy == NULL || trace->events == NULL) {
            ok = copy != NULL && read_header(trace, copy);
        } else {
            for (char *word = strtok_r(copy, " ", &rest); ok && word != NULL;
                 word = strtok_r(NULL, " ", &rest)) {
                ok = read_word(trace, word, &n, &at_us);
            }
        }
        free(copy);
    }
    if (ok && (trace->events == NULL || n != trace->n)) {
        return trace_fail(trace, NULL, "%" PRIu32 " events of %" PRIu32, n, trace->n);
    }
    return ok;
}

void trace_free(struct trace *trace)
{
    free(trace->events);
    trace->events = NULL;
}
