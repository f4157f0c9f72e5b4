/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Opens the streams of an iperf3 test, one after the other: the server pairs them with its own in
 * the order in which they arrive. A connection is greeted with the cookie and not answered. A
 * datagram stream is greeted with a hello, which the server answers; both may be lost, so the hello
 * is repeated.
 */
#ifndef SLUICE_APPS_IPERF3_OPEN_H
#define SLUICE_APPS_IPERF3_OPEN_H

#include <stdbool.h>

#include "apps/blaster.h"

struct opener {
    /* Set by the owner. */
    struct stream *streams;
    unsigned n_streams;
    unsigned n_senders; /* the first of them */
    const struct stream_plan *plan;
    char cookie[IPERF3_COOKIE_BYTES];
    void (*opened)(void *arg);
    void (*failed)(void *arg, const char *what, enum sock_error error);
    void *arg;

    struct stream_owner owner;
    unsigned at; /* the one that is being opened */
    unsigned hellos;
    struct net_timer timer;
    bool active;
};

void opener_start(struct opener *opener);
void opener_cancel(struct opener *opener);

/* The server has all its streams: an answer that is still missing was lost. False: streams are
 * missing here. */
bool opener_server_is_ready(struct opener *opener);

#endif
