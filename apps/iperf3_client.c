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
 *     (what is still coming is read)       <-
 *     DONE, close                          ->
 *
 * Each phase but the data has a deadline, each failure one text and one exit code; the first one
 * stands. A dead server or path is found by the heartbeat on the control connection, data that does
 * not move although all live by the watchdog of measure.c, a dead device by its link state.
 */
#include "apps/ip_text.h"
#include "apps/iperf3_client.h"

#include <stdio.h>
#include <string.h>

#include "apps/iperf3_session.h"
#include "boot/clock.h"
#include "boot/machine.h"

#define RESOLVE_DEADLINE_NS (3 * CLOCK_NS_PER_S)

/* A server of iperf3 gives up 40 s after the time it was told. Of datagrams each must be accounted
 * for; of a connection it is the acknowledged bytes that count, and what many of them hold in their
 * send buffers may be left. */
#define UDP_DRAIN_LONGEST_NS (30 * CLOCK_NS_PER_S)
#define TCP_DRAIN_LONGEST_NS (10 * CLOCK_NS_PER_S)

/* What has not come this long after the last arrival was lost. */
#define TAIL_QUIET_NS (CLOCK_NS_PER_S / 5)
#define TAIL_LOOK_NS  (CLOCK_NS_PER_S / 1000)
/* Many connections of a server hold more in their send buffers than anybody waits for. */
#define TAIL_LONGEST_NS (2 * CLOCK_NS_PER_S)

/* One test at a time, and too large for the stack. */
static struct session session;

static void say_params(struct session *c)
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
    session_enter(c, PHASE_PARAMS, SESSION_ANSWER_DEADLINE_NS);
    session_say_json(c, iperf3_params_text(&params));
}

/* ---- data ---- */

static uint64_t outstanding(void *arg)
{
    struct session *c = arg;
    uint64_t sum = 0;
    for (unsigned i = 0; i < c->measure.n_streams; i++) {
        sum += stream_outstanding(&c->streams[i]);
    }
    return sum;
}

static void end_test(struct session *c)
{
    session_enter(c, PHASE_END, SESSION_ANSWER_DEADLINE_NS);
    session_say_state(c, IPERF3_TEST_END);
}

static void on_drained(void *arg)
{
    struct session *c = arg;
    struct outcome *outcome = c->outcome;
    outcome->drained = true;
    outcome->drain_in_flight_zero = c->drain.in_flight_zero;
    outcome->drain_echo_answered = c->drain.echo_answered;
    outcome->drain_waited_ns = c->drain.waited_ns;
    outcome->drain_quiet_ns = c->drain.quiet_ns;
    if (!c->drain.in_flight_zero && c->plan.udp) {
        outcome_fail(
            outcome, SLUICE_EXIT_INVALID,
            "what was sent did not all leave: %llu still under way %.1f s after the end of "
            "sending",
            (unsigned long long)outstanding(c), (double)c->drain.waited_ns / 1e9);
    }
    if (!c->drain.echo_answered) {
        printf(
            "sluice: the server's host answers no echo: the queues before it may not be empty\n");
    }
    end_test(c);
}

static void on_sending_over(void *arg)
{
    struct session *c = arg;
    if (c->config->reverse) {
        end_test(c);
        return;
    }
    session_enter(c, PHASE_DRAIN, 0);
    c->drain.ip = c->config->server_ip;
    c->drain.quiet_ns = c->config->drain_ns;
    c->drain.longest_ns = c->plan.udp ? UDP_DRAIN_LONGEST_NS : TCP_DRAIN_LONGEST_NS;
    c->drain.ring_must_empty = c->plan.udp;
    c->drain.outstanding = outstanding;
    c->drain.unit = c->plan.udp ? "datagrams" : "bytes";
    c->drain.done = on_drained;
    c->drain.arg = c;
    drain_start(&c->drain, clock_now_ns());
}

static void on_stalled(void *arg)
{
    struct session *c = arg;
    session_fail(c, SLUICE_EXIT_PEER,
                 "nothing moves any more for %llu s: the path is blocked (%u in flight)",
                 MEASURE_STALL_NS / CLOCK_NS_PER_S, net_tx_in_flight());
}

static void on_test_running(struct session *c)
{
    uint64_t now_ns = clock_now_ns();
    session_enter(c, PHASE_DATA, 0);
    for (unsigned i = 0; i < c->measure.n_streams; i++) {
        stream_start(&c->streams[i], now_ns);
    }
    measure_start(&c->measure, now_ns);
}

static void on_opened(void *arg)
{
    struct session *c = arg;
    session_enter(c, PHASE_WAIT_START, SESSION_ANSWER_DEADLINE_NS);
}

static void on_stream_failed(void *arg, const char *what, enum sock_error error)
{
    struct session *c = arg;
    /* At the end the server closes its streams before this end does. */
    if (c->over || c->phase > PHASE_DRAIN) {
        return;
    }
    session_fail(c, SLUICE_EXIT_PEER, "%s %s: %s", what, session_phase_text(c),
                 sock_error_text(error));
}

static void open_streams(struct session *c)
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
    session_enter(c, PHASE_OPEN, 0);
    opener_start(&c->opener);
}

/* ---- hearing ---- */

static void on_server_error(void *arg, uint32_t number, uint32_t os_number)
{
    struct session *c = arg;
    session_fail(c, SLUICE_EXIT_PEER, "the server reports error %u (errno %u) %s", (unsigned)number,
                 (unsigned)os_number, session_phase_text(c));
}

static void on_malformed(void *arg, const char *why)
{
    struct session *c = arg;
    session_fail(c, SLUICE_EXIT_PEER, "the server's control connection makes no sense: %s", why);
}

static void on_json(void *arg, const char *text, size_t len)
{
    struct session *c = arg;
    const char *why;
    if (c->over) {
        return;
    }
    if (!iperf3_results_parse(text, len, c->measure.n_streams, &c->peer, &why)) {
        session_fail(c, SLUICE_EXIT_PEER, "the server's results cannot be used: %s", why);
        return;
    }
    c->peer_said = true;
    session_enter(c, PHASE_DISPLAY, SESSION_ANSWER_DEADLINE_NS);
}

static void exchange_results(struct session *c)
{
    session_enter(c, PHASE_RESULTS, SESSION_ANSWER_DEADLINE_NS);
    iperf3_wire_expect_json(&c->wire);
    evaluate_own_results(c->outcome, &c->measure, &c->own);
    session_say_json(c, iperf3_results_text(&c->own));
}

/* ---- the tail: what the server sent before the end may come behind its results ---- */

static bool tail_is_missing(const struct session *c, uint64_t now_ns)
{
    for (unsigned i = 0; i < c->measure.n_streams; i++) {
        const struct stream *stream = &c->streams[i];
        bool quiet = now_ns - stream->last_arrival_ns > TAIL_QUIET_NS;
        if (!stream->sends && !quiet && evaluate_missing(&c->measure, i, &c->peer) != 0) {
            return true;
        }
    }
    return false;
}

static void look_for_tail(void *arg)
{
    struct session *c = arg;
    uint64_t now_ns = clock_now_ns();
    if (tail_is_missing(c, now_ns) && now_ns - c->tail_begun_ns < TAIL_LONGEST_NS) {
        net_timer_set(&c->tail, now_ns + TAIL_LOOK_NS, look_for_tail, c);
        return;
    }
    session_say_state(c, IPERF3_DONE);
    session_enter(c, PHASE_OVER, 0);
    session_finish(c);
}

/* States that the dialogue has at this point. False: this one has no place here. */
static bool follow(struct session *c, int state)
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
            session_enter(c, PHASE_TAIL, 0);
            c->tail_begun_ns = clock_now_ns();
            look_for_tail(c);
            return true;
        }
        return false;
    default:
        return false;
    }
}

static void on_state(void *arg, int state)
{
    struct session *c = arg;
    if (c->over) {
        return;
    }
    if (state == IPERF3_ACCESS_DENIED) {
        session_fail(c, SLUICE_EXIT_PEER, "the server is busy with another test");
    } else if (state == IPERF3_SERVER_TERMINATE) {
        session_fail(c, SLUICE_EXIT_PEER, "the server was stopped %s", session_phase_text(c));
    } else if (!follow(c, state)) {
        session_fail(c, SLUICE_EXIT_PEER, "the server says %s (%d) %s, where it has no place",
                     iperf3_state_name(state), state, session_phase_text(c));
    }
}

static const struct iperf3_wire_ops wire_ops = {
    .state = on_state,
    .server_error = on_server_error,
    .json = on_json,
    .malformed = on_malformed,
};

static void on_resolved(void *arg, bool ok)
{
    struct session *c = arg;
    if (c->over) {
        return;
    }
    if (!ok) {
        session_fail(c, SLUICE_EXIT_PEER,
                     "the next hop towards the server %s does not answer ARP: wrong "
                     "server=, ip= or gw=, or the path is down",
                     ip_text(c->config->server_ip).text);
        return;
    }
    session_connect(c);
}

/* ---- all of it ---- */

static void plan_streams(struct session *c)
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

static void close_all(struct session *c)
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

static void conclude(struct session *c)
{
    uint64_t drain_ns = c->drain.start_ns != 0 ? c->drain.waited_ns : 0;
    const struct evaluate_times times = {
        .settled_ns = c->drain.settled_ns != 0 ? c->drain.settled_ns : clock_now_ns(),
        .arrived_ns = c->drain.start_ns + drain_ns,
    };
    measure_close(&c->measure, times.settled_ns);
    evaluate(c->outcome, &c->measure, c->peer_said ? &c->peer : NULL, &times);
}

void iperf3_client_run(struct outcome *outcome)
{
    struct session *c = &session;
    memset(c, 0, sizeof *c);
    c->outcome = outcome;
    c->config = outcome->config;
    plan_streams(c);
    iperf3_make_cookie(c->opener.cookie, machine_random32);
    iperf3_wire_init(&c->wire, &wire_ops, c);
    session_watch_link(c);
    session_enter(c, PHASE_RESOLVE, 0);
    net_resolve(c->config->server_ip, RESOLVE_DEADLINE_NS, on_resolved, c);
    net_run(&c->over);
    conclude(c);
    close_all(c);
}
