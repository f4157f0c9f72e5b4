/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The client's side of the dialogue, in the order of its phases:
 *
 *     guest                                    server
 *     who has its address? (before any clock)
 *     connect, cookie                      ->
 *                                          <-  PARAM_EXCHANGE
 *     parameters                           ->
 *                                          <-  CREATE_STREAMS
 *     each stream greets (iperf3_open.c)   ->
 *                                          <-  TEST_START, TEST_RUNNING
 *     data (blaster.c), timed (measure.c)  <->
 *     drain (drain.c), TEST_END            ->
 *                                          <-  EXCHANGE_RESULTS
 *     results                              ->
 *                                          <-  results, DISPLAY_RESULTS
 *     DONE, close                          ->
 *
 * Each phase but the data has a deadline, each failure one text and one exit code; the first one
 * stands. While data flows, a dead peer is found by keepalive on the control connection, a dead
 * path also by the watchdog, and a dead device by its link state.
 */
#include "apps/iperf3_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/drain.h"
#include "apps/evaluate.h"
#include "apps/heartbeat.h"
#include "apps/iperf3_open.h"
#include "apps/iperf3_wire.h"
#include "boot/clock.h"
#include "boot/machine.h"

#define RESOLVE_DEADLINE_NS (3 * CLOCK_NS_PER_S)
#define CONNECT_DEADLINE_NS (5 * CLOCK_NS_PER_S)

/* For each answer of the server. It takes one read of its own loop, unless data stands in front of
 * it in a slow queue. */
#define ANSWER_DEADLINE_NS (8 * CLOCK_NS_PER_S)

/* The stack's own keepalive only ends a connection that everybody has forgotten; who is dead, and
 * when, is heartbeat.c's to say. */
#define KEEPALIVE_IDLE_S     1u
#define KEEPALIVE_INTERVAL_S 1u
#define KEEPALIVE_PROBES     30u

/* A link that flaps comes back sooner. */
#define LINK_GRACE_NS (3 * CLOCK_NS_PER_S)

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
    PHASE_OVER,
};

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
    [PHASE_OVER] = "after the test",
};

struct client {
    struct outcome *outcome;
    const struct config *config;
    enum phase phase;
    bool over;
    struct sock *control;
    struct iperf3_wire wire;
    struct net_timer deadline, link_grace;
    struct stream_plan plan;
    struct opener opener;
    struct measure measure;
    struct drain drain;
    struct heartbeat heartbeat;
    struct iperf3_results own, peer;
    bool peer_said;
    struct stream streams[2 * IPERF3_MAX_STREAMS];
};

/* One test at a time, and too large for the stack. */
static struct client client;

/* ---- the end, good or bad ---- */

static void finish(struct client *c)
{
    c->over = true;
    net_timer_clear(&c->deadline);
    net_timer_clear(&c->link_grace);
    net_on_link(NULL, NULL);
    opener_cancel(&c->opener);
    measure_cancel(&c->measure);
    drain_cancel(&c->drain);
    heartbeat_cancel(&c->heartbeat);
    for (unsigned i = 0; i < c->measure.n_streams; i++) {
        stream_stop(&c->streams[i]);
    }
}

#define fail(c, code, ...)                                                                         \
    do {                                                                                           \
        outcome_fail((c)->outcome, code, __VA_ARGS__);                                             \
        finish(c);                                                                                 \
    } while (0)

static void on_deadline(void *arg)
{
    struct client *c = arg;
    fail(c, SLUICE_EXIT_PEER, "the server does not answer within %llu s %s",
         ANSWER_DEADLINE_NS / CLOCK_NS_PER_S, phase_texts[c->phase]);
}

static void enter(struct client *c, enum phase phase, uint64_t deadline_ns)
{
    c->phase = phase;
    net_timer_clear(&c->deadline);
    if (deadline_ns != 0) {
        net_timer_set(&c->deadline, clock_now_ns() + deadline_ns, on_deadline, c);
    }
}

/* ---- speaking ---- */

static void say(struct client *c, const void *data, size_t len)
{
    if (!c->over && sock_tcp_write(c->control, data, len, true) != (int64_t)len) {
        fail(c, SLUICE_EXIT_PEER, "the control connection takes no more %s", phase_texts[c->phase]);
    }
}

static void say_state(struct client *c, enum iperf3_state state)
{
    uint8_t byte = (uint8_t)state;
    say(c, &byte, 1);
}

/* Takes the text. */
static void say_json(struct client *c, char *text)
{
    uint8_t frame[IPERF3_FRAME_LENGTH_BYTES];
    if (text == NULL) {
        fail(c, SLUICE_EXIT_INVALID, "there is no memory for the control connection");
        return;
    }
    iperf3_put_length(frame, (uint32_t)strlen(text));
    say(c, frame, sizeof frame);
    say(c, text, strlen(text));
    free(text);
}

static void say_params(struct client *c)
{
    const struct config *config = c->config;
    const struct iperf3_params params = {
        .udp = c->plan.udp,
        .reverse = config->reverse,
        .bidir = config->bidir,
        .omit_s = (uint32_t)(config->omit_ns / CLOCK_NS_PER_S),
        .time_s = (uint32_t)((config->time_ns + CLOCK_NS_PER_S - 1) / CLOCK_NS_PER_S),
        .parallel = config->parallel,
        .size_bytes = config->size_bytes,
        .rate_bits = config->rate_bits,
        .window_bytes = config->peer_window_bytes,
    };
    enter(c, PHASE_PARAMS, ANSWER_DEADLINE_NS);
    say_json(c, iperf3_params_text(&params));
}

/* ---- data ---- */

static bool all_settled(void *arg)
{
    struct client *c = arg;
    for (unsigned i = 0; i < c->measure.n_streams; i++) {
        if (!stream_is_settled(&c->streams[i])) {
            return false;
        }
    }
    return true;
}

static void end_test(struct client *c)
{
    enter(c, PHASE_END, ANSWER_DEADLINE_NS);
    say_state(c, IPERF3_TEST_END);
}

static void on_drained(void *arg)
{
    struct client *c = arg;
    struct outcome *outcome = c->outcome;
    outcome->drained = true;
    outcome->drain_in_flight_zero = c->drain.in_flight_zero;
    outcome->drain_echo_answered = c->drain.echo_answered;
    outcome->drain_waited_ns = c->drain.waited_ns;
    outcome->drain_quiet_ns = c->drain.quiet_ns;
    if (!c->drain.in_flight_zero) {
        outcome_fail(outcome, SLUICE_EXIT_INVALID,
                     "what was sent did not leave the ring within 5 s after the end of sending");
    }
    if (!c->drain.echo_answered) {
        printf(
            "sluice: the server's host answers no echo: the queues before it may not be empty\n");
    }
    end_test(c);
}

static void on_sending_over(void *arg)
{
    struct client *c = arg;
    if (c->config->reverse) {
        end_test(c);
        return;
    }
    enter(c, PHASE_DRAIN, 0);
    c->drain.ip = c->config->server_ip;
    c->drain.quiet_ns = c->config->drain_ns;
    c->drain.ring_must_empty = c->plan.udp;
    c->drain.settled = all_settled;
    c->drain.done = on_drained;
    c->drain.arg = c;
    drain_start(&c->drain, clock_now_ns());
}

static void on_stalled(void *arg)
{
    struct client *c = arg;
    fail(c, SLUICE_EXIT_PEER,
         "nothing moves any more for %llu s: the path is blocked (%u in flight)",
         MEASURE_STALL_NS / CLOCK_NS_PER_S, net_tx_in_flight());
}

static void on_test_running(struct client *c)
{
    uint64_t now_ns = clock_now_ns();
    enter(c, PHASE_DATA, 0);
    for (unsigned i = 0; i < c->measure.n_streams; i++) {
        stream_start(&c->streams[i], now_ns);
    }
    measure_start(&c->measure, now_ns);
}

static void on_opened(void *arg)
{
    struct client *c = arg;
    enter(c, PHASE_WAIT_START, ANSWER_DEADLINE_NS);
}

static void on_stream_failed(void *arg, const char *what, enum sock_error error)
{
    struct client *c = arg;
    /* At the end the server closes its streams before this end does. */
    if (c->over || c->phase > PHASE_DRAIN) {
        return;
    }
    fail(c, SLUICE_EXIT_PEER, "%s %s: %s", what, phase_texts[c->phase], sock_error_text(error));
}

static void open_streams(struct client *c)
{
    const struct config *config = c->config;
    c->opener.streams = c->streams;
    c->opener.n_streams = config->parallel * (config->bidir ? 2 : 1);
    c->opener.n_senders = config->reverse ? 0 : config->parallel;
    c->opener.plan = &c->plan;
    c->opener.opened = on_opened;
    c->opener.failed = on_stream_failed;
    c->opener.arg = c;
    c->measure.outcome = c->outcome;
    c->measure.streams = c->streams;
    c->measure.n_streams = c->opener.n_streams;
    c->measure.over = on_sending_over;
    c->measure.stalled = on_stalled;
    c->measure.arg = c;
    enter(c, PHASE_OPEN, 0);
    opener_start(&c->opener);
}

/* ---- hearing ---- */

static void on_server_error(void *arg, uint32_t number, uint32_t os_number)
{
    struct client *c = arg;
    fail(c, SLUICE_EXIT_PEER, "the server reports error %u (errno %u) %s", (unsigned)number,
         (unsigned)os_number, phase_texts[c->phase]);
}

static void on_malformed(void *arg, const char *why)
{
    struct client *c = arg;
    fail(c, SLUICE_EXIT_PEER, "the server's control connection makes no sense: %s", why);
}

static void on_json(void *arg, const char *text, size_t len)
{
    struct client *c = arg;
    const char *why;
    if (c->over) {
        return;
    }
    if (!iperf3_results_parse(text, len, c->measure.n_streams, &c->peer, &why)) {
        fail(c, SLUICE_EXIT_PEER, "the server's results cannot be used: %s", why);
        return;
    }
    c->peer_said = true;
    enter(c, PHASE_DISPLAY, ANSWER_DEADLINE_NS);
}

static void exchange_results(struct client *c)
{
    enter(c, PHASE_RESULTS, ANSWER_DEADLINE_NS);
    iperf3_wire_expect_json(&c->wire);
    evaluate_own_results(c->outcome, &c->measure, &c->own);
    say_json(c, iperf3_results_text(&c->own));
}

/* States that the dialogue has at this point. False: this one has no place here. */
static bool follow(struct client *c, int state)
{
    switch (state) {
    case IPERF3_PARAM_EXCHANGE:
        if (c->phase == PHASE_COOKIE) {
            say_params(c);
            return true;
        }
        return false;
    case IPERF3_CREATE_STREAMS:
        if (c->phase == PHASE_PARAMS) {
            open_streams(c);
            return true;
        }
        return false;
    case IPERF3_TEST_START:
        return (c->phase == PHASE_OPEN || c->phase == PHASE_WAIT_START) &&
               opener_server_is_ready(&c->opener);
    case IPERF3_TEST_RUNNING:
        if (c->phase == PHASE_WAIT_START) {
            on_test_running(c);
            return true;
        }
        return false;
    case IPERF3_EXCHANGE_RESULTS:
        if (c->phase == PHASE_END) {
            exchange_results(c);
            return true;
        }
        return false;
    case IPERF3_DISPLAY_RESULTS:
        if (c->phase == PHASE_DISPLAY) {
            say_state(c, IPERF3_DONE);
            c->phase = PHASE_OVER;
            finish(c);
            return true;
        }
        return false;
    default:
        return false;
    }
}

static void on_state(void *arg, int state)
{
    struct client *c = arg;
    if (c->over) {
        return;
    }
    if (state == IPERF3_ACCESS_DENIED) {
        fail(c, SLUICE_EXIT_PEER, "the server is busy with another test");
    } else if (state == IPERF3_SERVER_TERMINATE) {
        fail(c, SLUICE_EXIT_PEER, "the server was stopped %s", phase_texts[c->phase]);
    } else if (!follow(c, state)) {
        fail(c, SLUICE_EXIT_PEER, "the server says %s (%d) %s, where it has no place",
             iperf3_state_name(state), state, phase_texts[c->phase]);
    }
}

static const struct iperf3_wire_ops wire_ops = {
    .state = on_state,
    .server_error = on_server_error,
    .json = on_json,
    .malformed = on_malformed,
};

/* ---- control connection ---- */

static void on_dead(void *arg, bool taking)
{
    struct client *c = arg;
    if (taking) {
        fail(c, SLUICE_EXIT_PEER,
             "the server or the path to it is dead %s: nothing was heard for %llu s",
             phase_texts[c->phase], HEARTBEAT_DEAD_NS / CLOCK_NS_PER_S);
    } else {
        fail(c, SLUICE_EXIT_PEER,
             "the path is blocked %s: the device takes no frames (%u wait in its ring), and "
             "nothing was heard for %llu s",
             phase_texts[c->phase], net_tx_in_flight(), HEARTBEAT_DEAD_NS / CLOCK_NS_PER_S);
    }
}

static void on_control_connected(struct sock *sock, void *arg)
{
    struct client *c = arg;
    sock_tcp_nodelay(sock, true);
    sock_tcp_keepalive(sock, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES);
    c->heartbeat.control = sock;
    c->heartbeat.streams = c->streams;
    c->heartbeat.n_streams = sizeof c->streams / sizeof *c->streams;
    c->heartbeat.dead = on_dead;
    c->heartbeat.arg = c;
    heartbeat_start(&c->heartbeat, clock_now_ns());
    enter(c, PHASE_COOKIE, ANSWER_DEADLINE_NS);
    say(c, c->opener.cookie, sizeof c->opener.cookie);
}

static void on_control_received(struct sock *sock, void *arg, const void *data, size_t len,
                                size_t offset, size_t total, uint32_t from_ip, uint16_t from_port)
{
    struct client *c = arg;
    (void)sock;
    (void)offset;
    (void)total;
    (void)from_ip;
    (void)from_port;
    iperf3_wire_feed(&c->wire, data, len);
}

static void on_control_error(struct sock *sock, void *arg, enum sock_error error)
{
    struct client *c = arg;
    (void)sock;
    if (c->over) {
        return;
    }
    fail(c, SLUICE_EXIT_PEER, "%s %s: %s",
         c->phase == PHASE_CONNECT ? "cannot connect to the server"
                                   : "the control connection was lost",
         c->phase == PHASE_CONNECT ? "(is iperf3 -s running there?)" : phase_texts[c->phase],
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

static void on_resolved(void *arg, bool ok)
{
    struct client *c = arg;
    if (c->over) {
        return;
    }
    if (!ok) {
        fail(c, SLUICE_EXIT_PEER,
             "the next hop towards the server does not answer ARP: wrong server=, ip= or gw=, or "
             "the path is down");
        return;
    }
    enter(c, PHASE_CONNECT, 0);
    c->control = sock_tcp_connect(&control_ops, c, c->config->server_ip, (uint16_t)c->config->port,
                                  CONNECT_DEADLINE_NS, 0);
    if (c->control == NULL) {
        fail(c, SLUICE_EXIT_INVALID, "there is no memory for the control connection");
    }
}

/* ---- the device's link ---- */

static void on_link_grace_over(void *arg)
{
    struct client *c = arg;
    fail(c, SLUICE_EXIT_PEER, "the link of the network device went down %s", phase_texts[c->phase]);
}

static void on_link(void *arg, bool up)
{
    struct client *c = arg;
    if (up) {
        net_timer_clear(&c->link_grace);
        printf("sluice: link up\n");
        return;
    }
    c->outcome->link_losses++;
    printf("sluice: link down\n");
    net_timer_set(&c->link_grace, clock_now_ns() + LINK_GRACE_NS, on_link_grace_over, c);
}

/* ---- all of it ---- */

static void plan_streams(struct client *c)
{
    const struct config *config = c->config;
    c->plan = (struct stream_plan){
        .udp = config->test == CONFIG_TEST_UDP,
        .ip = config->server_ip,
        .port = (uint16_t)config->port,
        .size_bytes = config->size_bytes,
        .rate_bits = config->rate_bits,
        .sndbuf_bytes = config->sndbuf_bytes,
        .window_bytes = config->window_bytes,
    };
}

static void close_all(struct client *c)
{
    bool abort = c->outcome->exit_code != SLUICE_EXIT_PASS;
    for (unsigned i = 0; i < c->measure.n_streams; i++) {
        /* The server has closed its ends; what is still coming in a reverse test is of no use. */
        stream_close(&c->streams[i], true);
    }
    if (c->control != NULL) {
        sock_close(c->control, abort);
    }
    iperf3_wire_free(&c->wire);
}

static void conclude(struct client *c)
{
    uint64_t drain_ns = c->drain.start_ns != 0 ? c->drain.waited_ns : 0;
    const struct evaluate_times times = {
        .settled_ns = c->drain.settled_ns != 0 ? c->drain.settled_ns : clock_now_ns(),
        .arrived_ns = c->drain.start_ns + drain_ns,
    };
    evaluate(c->outcome, &c->measure, c->peer_said ? &c->peer : NULL, &times);
}

void iperf3_client_run(struct outcome *outcome)
{
    struct client *c = &client;
    memset(c, 0, sizeof *c);
    c->outcome = outcome;
    c->config = outcome->config;
    plan_streams(c);
    iperf3_make_cookie(c->opener.cookie, machine_random32);
    iperf3_wire_init(&c->wire, &wire_ops, c);
    net_on_link(on_link, c);
    enter(c, PHASE_RESOLVE, 0);
    net_resolve(c->config->server_ip, RESOLVE_DEADLINE_NS, on_resolved, c);
    net_run(&c->over);
    conclude(c);
    close_all(c);
}
