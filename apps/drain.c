/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/drain.h"

#include <inttypes.h>
#include <stdio.h>

#include "boot/clock.h"

/* A wait of whole seconds is said, or it looks like a hang. */
#define SAY_NS CLOCK_NS_PER_S

#define LOOK_NS (CLOCK_NS_PER_S / 1000)

/* Many streams with full send buffers on a slow link take their time, so it is progress that
 * counts. */
#define NO_PROGRESS_NS (5 * CLOCK_NS_PER_S)

/* Three echoes: one may be lost at a queue that is still full, and none is answered by a host that
 * ignores them. */
#define ECHO_DEADLINE_NS CLOCK_NS_PER_S
#define ECHO_TRIES       3u

static void quiet_is_over(void *arg)
{
    struct drain *drain = arg;
    drain->done(drain->arg);
}

static void be_quiet(struct drain *drain)
{
    uint64_t now_ns = clock_now_ns();
    drain->waited_ns = now_ns - drain->start_ns;
    net_timer_set(&drain->timer, now_ns + drain->quiet_ns, quiet_is_over, drain);
}

static void on_echo(void *arg, bool answered)
{
    struct drain *drain = arg;
    if (drain->cancelled) {
        return;
    }
    drain->echo_answered = answered;
    if (answered || ++drain->echoes == ECHO_TRIES) {
        be_quiet(drain);
        return;
    }
    net_ping(drain->ip, ECHO_DEADLINE_NS, on_echo, drain);
}

static bool has_settled(struct drain *drain)
{
    uint64_t left = drain->outstanding(drain->arg);
    if (drain->ring_must_empty) {
        left += net_tx_in_flight();
    }
    if (left != drain->last_outstanding) {
        drain->last_outstanding = left;
        drain->last_progress_ns = net_awake_ns();
    }
    return left == 0;
}

static void say_progress(struct drain *drain, uint64_t now_ns)
{
    if (now_ns - drain->last_said_ns >= SAY_NS) {
        drain->last_said_ns = now_ns;
        printf("sluice: draining: %" PRIu64 " %s still on their way\n", drain->last_outstanding,
               drain->unit);
        fflush(stdout);
    }
}

static void look(void *arg)
{
    struct drain *drain = arg;
    uint64_t now_ns = clock_now_ns();
    drain->in_flight_zero = has_settled(drain);
    if (!drain->in_flight_zero && net_awake_ns() - drain->last_progress_ns < NO_PROGRESS_NS &&
        now_ns - drain->start_ns < drain->longest_ns) {
        say_progress(drain, now_ns);
        net_timer_set(&drain->timer, now_ns + LOOK_NS, look, drain);
        return;
    }
    drain->settled_ns = now_ns;
    net_ping(drain->ip, ECHO_DEADLINE_NS, on_echo, drain);
}

void drain_start(struct drain *drain, uint64_t now_ns)
{
    drain->start_ns = now_ns;
    drain->last_progress_ns = net_awake_ns();
    drain->last_said_ns = now_ns;
    look(drain);
}

void drain_cancel(struct drain *drain)
{
    drain->cancelled = true;
    net_timer_clear(&drain->timer);
}
