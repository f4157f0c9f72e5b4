/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/iperf3_session.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/clock.h"

#define NOTICE_NS (2 * CLOCK_NS_PER_S)

#define CONNECT_DEADLINE_NS (5 * CLOCK_NS_PER_S)

/* The stack's own keepalive only ends a connection that everybody has forgotten; who is dead, and
 * when, is heartbeat.c's to say. */
#define KEEPALIVE_IDLE_S     1u
#define KEEPALIVE_INTERVAL_S 1u
#define KEEPALIVE_PROBES     30u

/* A link that flaps comes back sooner. */
#define LINK_GRACE_NS (3 * CLOCK_NS_PER_S)

static const char *const phase_texts[] = {
    [PHASE_RESOLVE] = "while resolving its address",
    [PHASE_CONNECT] = "while connecting",
    [PHASE_COOKIE] = "before it answered the cookie",
    [PHASE_PARAMS] = "after the parameters",
    [PHASE_OPEN] = "while opening the streams",
    [PHASE_WAIT_START] = "before the test began",
    [PHASE_DATA] = "in mid-test",
    [PHASE_DRAIN] = "while draining",
    [PHASE_END] = "after the end of the test",
    [PHASE_RESULTS] = "while exchanging results",
    [PHASE_DISPLAY] = "after the results",
    [PHASE_TAIL] = "after the results",
    [PHASE_OVER] = "after the test",
};

/* ---- the end, good or bad ---- */

void session_finish(struct session *c)
{
    c->over = true;
    net_timer_clear(&c->deadline);
    net_timer_clear(&c->notice);
    net_timer_clear(&c->tail);
    net_timer_clear(&c->link_grace);
    net_on_link(NULL, NULL);
    opener_cancel(&c->opener);
    measure_cancel(&c->measure);
    drain_cancel(&c->drain);
    heartbeat_cancel(&c->heartbeat);
    for (unsigned i = 0; i < c->measure.n_streams; i++) {
        stream_stop(&c->streams[i], clock_now_ns());
    }
}

void session_fail(struct session *c, enum sluice_exit code, const char *format, ...)
{
    char text[OUTCOME_REASON_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    outcome_fail(c->outcome, code, "%s", text);
    session_finish(c);
}

const char *session_phase_text(const struct session *c)
{
    return phase_texts[c->phase];
}

static void on_deadline(void *arg)
{
    struct session *c = arg;
    session_fail(c, SLUICE_EXIT_PEER, "the server does not answer within %llu s %s",
                 SESSION_ANSWER_DEADLINE_NS / CLOCK_NS_PER_S, session_phase_text(c));
}

/* A wait of seconds is said, or it looks like a hang. */
static void on_notice(void *arg)
{
    struct session *c = arg;
    printf("sluice: waiting for the server %s\n", session_phase_text(c));
    fflush(stdout);
    net_timer_set(&c->notice, clock_now_ns() + NOTICE_NS, on_notice, c);
}

void session_enter(struct session *c, enum phase phase, uint64_t deadline_ns)
{
    c->phase = phase;
    net_timer_clear(&c->deadline);
    net_timer_clear(&c->notice);
    if (deadline_ns != 0) {
        net_timer_set(&c->notice, clock_now_ns() + NOTICE_NS, on_notice, c);
        net_timer_set_patient(&c->deadline, clock_now_ns() + deadline_ns, on_deadline, c);
    }
}

/* ---- speaking ---- */

void session_say(struct session *c, const void *data, size_t len)
{
    if (!c->over && sock_tcp_write(c->control, data, len, true) != (int64_t)len) {
        session_fail(c, SLUICE_EXIT_PEER, "the control connection takes no more %s",
                     session_phase_text(c));
    }
}

void session_say_state(struct session *c, enum iperf3_state state)
{
    uint8_t byte = (uint8_t)state;
    session_say(c, &byte, 1);
}

void session_say_json(struct session *c, char *text)
{
    uint8_t frame[IPERF3_FRAME_LENGTH_BYTES];
    if (text == NULL) {
        session_fail(c, SLUICE_EXIT_INVALID, "there is no memory for the control connection");
        return;
    }
    iperf3_put_length(frame, (uint32_t)strlen(text));
    session_say(c, frame, sizeof frame);
    session_say(c, text, strlen(text));
    free(text);
}

/* ---- the device's link ---- */

static void on_link_grace_over(void *arg)
{
    struct session *c = arg;
    const char *lost = virtio_net_info(net_device())->lost;
    if (lost != NULL) {
        session_fail(c, SLUICE_EXIT_PEER, "%s %s", lost, session_phase_text(c));
        return;
    }
    session_fail(c, SLUICE_EXIT_PEER, "the link of the network device went down %s",
                 session_phase_text(c));
}

static void on_link(void *arg, bool up)
{
    struct session *c = arg;
    if (up) {
        net_timer_clear(&c->link_grace);
        printf("sluice: link up\n");
        return;
    }
    c->outcome->link_losses++;
    printf("sluice: link down\n");
    /* A device that is gone does not come back. From a timer: the driver is still in its call. */
    uint64_t grace_ns = virtio_net_info(net_device())->lost != NULL ? 0 : LINK_GRACE_NS;
    net_timer_set_patient(&c->link_grace, clock_now_ns() + grace_ns, on_link_grace_over, c);
}

void session_watch_link(struct session *c)
{
    net_on_link(on_link, c);
}

/* ---- control connection ---- */

static void on_dead(void *arg, bool taking)
{
    struct session *c = arg;
    if (taking) {
        session_fail(c, SLUICE_EXIT_PEER,
                     "the server or the path to it is dead %s: nothing was heard for %llu s",
                     session_phase_text(c), HEARTBEAT_DEAD_NS / CLOCK_NS_PER_S);
    } else {
        session_fail(
            c, SLUICE_EXIT_PEER,
            "the path is blocked %s: the device takes no frames (%u wait in its ring), and "
            "nothing was heard for %llu s",
            session_phase_text(c), net_tx_in_flight(), HEARTBEAT_DEAD_NS / CLOCK_NS_PER_S);
    }
}

static void on_control_connected(struct sock *sock, void *arg)
{
    struct session *c = arg;
    sock_tcp_nodelay(sock, true);
    sock_tcp_keepalive(sock, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES);
    c->heartbeat.control = sock;
    c->heartbeat.streams = c->streams;
    c->heartbeat.n_streams = sizeof c->streams / sizeof *c->streams;
    c->heartbeat.dead = on_dead;
    c->heartbeat.arg = c;
    heartbeat_start(&c->heartbeat, clock_now_ns());
    session_enter(c, PHASE_COOKIE, SESSION_ANSWER_DEADLINE_NS);
    session_say(c, c->opener.cookie, sizeof c->opener.cookie);
}

static void on_control_received(struct sock *sock, void *arg, const void *data, size_t len,
                                size_t offset, size_t total, uint32_t from_ip, uint16_t from_port)
{
    struct session *c = arg;
    (void)sock;
    (void)offset;
    (void)total;
    (void)from_ip;
    (void)from_port;
    iperf3_wire_feed(&c->wire, data, len);
}

static void on_control_error(struct sock *sock, void *arg, enum sock_error error)
{
    struct session *c = arg;
    (void)sock;
    if (c->over) {
        return;
    }
    session_fail(c, SLUICE_EXIT_PEER, "%s %s: %s",
                 c->phase == PHASE_CONNECT ? "cannot connect to the server"
                                           : "the control connection was lost",
                 c->phase == PHASE_CONNECT ? "(is iperf3 -s running there?)"
                                           : session_phase_text(c),
                 sock_error_text(error));
}

static void on_control_writable(struct sock *sock, void *arg)
{
    (void)sock;
    (void)arg;
}

static const struct sock_ops control_ops = {
    .writable = on_control_writable,
    .connected = on_control_connected,
    .received = on_control_received,
    .error = on_control_error,
};

void session_connect(struct session *c)
{
    session_enter(c, PHASE_CONNECT, 0);
    c->control = sock_tcp_connect(&control_ops, c, c->config->server_ip, (uint16_t)c->config->port,
                                  CONNECT_DEADLINE_NS, 0);
    if (c->control == NULL) {
        session_fail(c, SLUICE_EXIT_INVALID, "there is no memory for the control connection");
    }
}
