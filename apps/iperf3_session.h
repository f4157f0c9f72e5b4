/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One client session: its parts, its control connection, and every way in which it can fail. What
 * is said and heard on the connection, and when, is in iperf3_client.c.
 */
#ifndef SLUICE_APPS_IPERF3_SESSION_H
#define SLUICE_APPS_IPERF3_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "apps/drain.h"
#include "apps/evaluate.h"
#include "apps/heartbeat.h"
#include "apps/iperf3_open.h"
#include "apps/iperf3_wire.h"
#include "apps/measure.h"
#include "apps/outcome.h"

/* For each answer of the server. It takes one read of its own loop, unless data stands in front of
 * it in a slow queue. */
#define SESSION_ANSWER_DEADLINE_NS (7 * CLOCK_NS_PER_S)

enum phase {
    PHASE_RESOLVE,
    PHASE_CONNECT,
    PHASE_COOKIE,
    PHASE_PARAMS,
    PHASE_OPEN,
    PHASE_WAIT_START,
    PHASE_DATA,
    PHASE_DRAIN,
    PHASE_END,
    PHASE_RESULTS,
    PHASE_DISPLAY,
    PHASE_TAIL,
    PHASE_OVER,
};

struct session {
    struct outcome *outcome;
    const struct config *config;
    enum phase phase;
    bool over;
    struct sock *control;
    struct iperf3_wire wire;
    struct net_timer deadline, notice, link_grace;
    struct stream_plan plan;
    struct opener opener;
    struct measure measure;
    struct drain drain;
    struct heartbeat heartbeat;
    struct net_timer tail;
    uint64_t tail_begun_ns;
    struct iperf3_results own, peer;
    bool peer_said;
    struct stream streams[2 * IPERF3_MAX_STREAMS];
};

/* The first failure ends the session; what comes later is its consequence. */
void session_fail(struct session *c, enum sluice_exit code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Stops all that could still call back, and net_run() with it. */
void session_finish(struct session *c);

/* The next phase; the server has until the deadline to end it. 0: something else watches over it.
 */
void session_enter(struct session *c, enum phase phase, uint64_t deadline_ns);

/* "in mid-test", for messages. */
const char *session_phase_text(const struct session *c);

/* Watches the device's link from now on. */
void session_watch_link(struct session *c);

/* Connects, greets with the cookie, and hands what the server says to the wire's ops. */
void session_connect(struct session *c);

void session_say(struct session *c, const void *data, size_t len);
void session_say_state(struct session *c, enum iperf3_state state);
/* Takes the text, which cJSON made; NULL: there was no memory for it. */
void session_say_json(struct session *c, char *text);

#endif
