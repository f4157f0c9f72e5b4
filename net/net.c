/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The poll loop. One pass: receive, reclaim, TCP's business with the ring, timers, those who wait
 * to write, flush. Only a pass in which nothing at all happened is followed by arming and halting.
 */
#include "net/net.h"

#include "boot/clock.h"
#include "boot/cpu.h"
#include "net_internal.h"

#include "lwip/sys.h"
#include "lwip/timeouts.h"

/* Frames of one direction in one pass. Enough to share the cost of a pass, few enough that the
 * other side's ring does not run dry meanwhile. */
#define RX_BUDGET_PKTS 64u
#define TX_BUDGET_PKTS 1024u
/* lwIP's timers are looked at this often while polling; the finest of them has 50 ms. */
#define STACK_TIMER_NS 1000000ull
#define NS_PER_MS      1000000ull
#define MAX_SLEEP_NS   (1000 * NS_PER_MS)
/* A pass that is later than this was kept from running: longer than any pass or late alarm, and
 * short against every patience. */
#define STANDSTILL_NS (500 * NS_PER_MS)

static uint64_t stack_timers_ns;

/* lwIP's clock. */
u32_t sys_now(void)
{
    return (u32_t)(clock_now_ns() / NS_PER_MS);
}

/* ---- one pass ---- */

static bool run_stack_timers(uint64_t now_ns)
{
    if (now_ns < stack_timers_ns) {
        return false;
    }
    stack_timers_ns = now_ns + STACK_TIMER_NS;
    if (sys_timeouts_sleeptime() == 0) {
        tcp_gate_hold_timers();
        sys_check_timeouts();
        tcp_gate_acks();
        return true;
    }
    return false;
}

static void note_standstill(void)
{
    if (net.pass_due_ns != 0 && net.pass_ns > net.pass_due_ns + STANDSTILL_NS) {
        net.stats.stood_still_ns += net.pass_ns - net.pass_due_ns;
    }
    net.pass_due_ns = net.pass_ns;
}

uint64_t net_awake_ns(void)
{
    return net.pass_ns - net.stats.stood_still_ns;
}

bool net_poll(void)
{
    bool any = false;
    net.pass_ns = clock_now_ns();
    note_standstill();
    any |= virtio_net_rx_poll(net.dev, NET_PAIR, RX_BUDGET_PKTS) != 0;
    any |= virtio_net_tx_reclaim(net.dev, NET_PAIR, TX_BUDGET_PKTS) != 0;
    tcp_gate_acks();
    any |= virtio_net_poll(net.dev, net.pass_ns);
    if (net.tx_wake_pending) {
        tcp_gate_wake();
        any = true;
    }
    any |= run_stack_timers(net.pass_ns);
    any |= net_timers_run(net.pass_ns);
    any |= net_probe_poll(net.pass_ns);
    any |= sock_run_writable();
    offload_flush();
    virtio_net_tx_flush(net.dev, NET_PAIR);
    return any;
}

/* ---- sleep ---- */

static uint64_t next_deadline_ns(uint64_t now_ns)
{
    uint64_t next = now_ns + MAX_SLEEP_NS;
    uint32_t stack_ms = sys_timeouts_sleeptime();
    if (stack_ms != SYS_TIMEOUTS_SLEEPTIME_INFINITE) {
        next = LWIP_MIN(next, now_ns + stack_ms * NS_PER_MS);
    }
    next = LWIP_MIN(next, net_timers_next_ns());
    next = LWIP_MIN(next, net_probe_next_ns());
    return LWIP_MIN(next, virtio_net_next_deadline_ns(net.dev, now_ns));
}

static void idle(void)
{
    uint64_t now_ns = clock_now_ns();
    uint64_t deadline_ns = next_deadline_ns(now_ns);
    if (deadline_ns <= now_ns) {
        stack_timers_ns = 0; /* due now: the next pass looks, however recently it did */
        return;
    }
    /* Any socket that wants to write needs the completions, stopped or not: its credit comes with
     * them. */
    if (!virtio_net_arm(net.dev, sock_any_waiting())) {
        return;
    }
    /*
     * With interrupts off, the last look: an interrupt that came between arming and here has set
     * its flag; one that comes later stays pending until the halt and ends it. The alarm is set
     * inside for the same reason.
     */
    cpu_irq_disable();
    if (!virtio_net_irq_pending(net.dev)) {
        net.pass_due_ns = deadline_ns;
        clock_alarm_set(deadline_ns);
        cpu_idle();
        net.stats.idle_ns += clock_now_ns() - now_ns;
    }
    cpu_irq_enable();
    virtio_net_disarm(net.dev);
    stack_timers_ns = 0;
}

void net_run(const bool *done)
{
    while (!*done) {
        if (!net_poll() && !*done && !net_timers_deferred()) {
            idle();
        }
    }
}

static void nothing(void *arg)
{
    (void)arg;
}

bool net_run_until(bool (*reached)(void), uint64_t limit_ns)
{
    struct net_timer end = {0};
    net_timer_set_patient(&end, clock_now_ns() + limit_ns, nothing, NULL);
    while (!reached() && end.active) {
        if (!net_poll() && !reached()) {
            idle();
        }
    }
    net_timer_clear(&end);
    return reached();
}
