/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Is the server still there, and the path to it? Asked for on the control connection as long as it
 * stands, because a sender of datagrams hears nothing by itself.
 *
 * A question may be lost like any packet: a flood without backpressure loses nine of ten in the
 * queue that it fills. After some silence the questions therefore come fast, so that all of them
 * being lost means something.
 */
#ifndef SLUICE_APPS_HEARTBEAT_H
#define SLUICE_APPS_HEARTBEAT_H

#include "apps/blaster.h"

/* Silence that is a failure: longer than several retransmission timeouts, and told well within 10
 * s. */
#define HEARTBEAT_DEAD_NS (7 * CLOCK_NS_PER_S)

struct heartbeat {
    /* Set by the owner. */
    struct sock *control;
    const struct stream *streams;
    unsigned n_streams;
    /* Nothing was heard for HEARTBEAT_DEAD_NS. taking: the device still took what was sent. */
    void (*dead)(void *arg, bool taking);
    void *arg;

    uint64_t begun_ns;
    uint64_t last_taken, last_taken_ns; /* frames that the device took */
    uint64_t probes;
    struct net_timer timer;
};

void heartbeat_start(struct heartbeat *heartbeat, uint64_t now_ns);
void heartbeat_cancel(struct heartbeat *heartbeat);

#endif
