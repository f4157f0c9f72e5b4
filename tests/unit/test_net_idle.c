/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The poll loop against a driver that only takes notes: the order within a pass, and what happens
 * around a halt.
 *
 *     net_run -> rx, reclaim, writable, flush, arm, last look, halt -> the notes
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "boot/clock.h"
#include "net/net.h"
#include "net/sock.h"
#include "tests/device/driver_stub.h"
#include "tests/device/seams.h"

#define MS 1000000ull

/* ---- the driver ---- */

static struct {
    char notes[4096];
    size_t n;
    bool arm_answer, irq_pending, wanted_tx;
    unsigned arms, disarms, idles, adds;
    void *cookies[64];
} fake;

static void note(char what)
{
    if (fake.n + 1 < sizeof(fake.notes)) {
        fake.notes[fake.n++] = what;
    }
}

void virtio_net_close(struct virtio_net *dev)
{
    (void)dev;
    for (unsigned i = 0; i < fake.adds; i++) {
        stub.config.ops->tx_done(stub.config.ctx, 0, fake.cookies[i], true);
    }
    fake.adds = 0;
}

uint16_t virtio_net_tx_cost_descs(const struct virtio_net *dev, uint16_t n_segs, bool in_headroom)
{
    (void)dev;
    (void)in_headroom;
    return n_segs;
}

enum virtio_net_result virtio_net_tx_add(struct virtio_net *dev, unsigned pair,
                                         const struct virtio_net_tx_frame *frame)
{
    (void)dev;
    (void)pair;
    note('a');
    assert_true(fake.adds < 64);
    assert_true(frame->headroom_bytes >= VIRTIO_NET_HDR_MAX_BYTES);
    fake.cookies[fake.adds++] = frame->cookie;
    return VIRTIO_NET_OK;
}

void virtio_net_tx_flush(struct virtio_net *dev, unsigned pair)
{
    (void)dev;
    (void)pair;
    note('f');
}

static unsigned reclaim_now;

unsigned virtio_net_tx_reclaim(struct virtio_net *dev, unsigned pair, unsigned budget)
{
    unsigned n = 0;
    (void)dev;
    (void)pair;
    note('t');
    for (; n < reclaim_now && n < budget && fake.adds > 0; n++) {
        stub.config.ops->tx_done(stub.config.ctx, 0, fake.cookies[--fake.adds], false);
    }
    reclaim_now = 0;
    return n;
}

unsigned virtio_net_tx_in_flight(const struct virtio_net *dev, unsigned pair)
{
    (void)dev;
    (void)pair;
    return fake.adds;
}

unsigned virtio_net_rx_poll(struct virtio_net *dev, unsigned pair, unsigned budget)
{
    (void)dev;
    (void)pair;
    (void)budget;
    note('r');
    return 0;
}

void virtio_net_rx_return(struct virtio_net *dev, void *rx_handle)
{
    (void)dev;
    (void)rx_handle;
}

bool virtio_net_poll(struct virtio_net *dev, uint64_t now_ns)
{
    (void)dev;
    (void)now_ns;
    note('p');
    return false;
}

bool virtio_net_arm(struct virtio_net *dev, bool want_tx)
{
    (void)dev;
    note('A');
    fake.arms++;
    fake.wanted_tx = want_tx;
    return fake.arm_answer;
}

void virtio_net_disarm(struct virtio_net *dev)
{
    (void)dev;
    note('D');
    fake.disarms++;
}

bool virtio_net_irq_pending(const struct virtio_net *dev)
{
    (void)dev;
    note('L');
    return fake.irq_pending;
}

/* ---- the machine ---- */

static bool done;
static uint64_t slept_ns;
static bool interrupt_ends_sleep;

static void on_idle(void *ctx)
{
    (void)ctx;
    note('I');
    fake.idles++;
    uint64_t before = seam_now_ns();
    if (interrupt_ends_sleep) {
        seam_advance_ns(MS);
        reclaim_now = 64;
    } else {
        seam_advance_ns(50 * MS);
    }
    slept_ns += seam_now_ns() - before;
}

static void finish(void *arg)
{
    (void)arg;
    note('!');
    done = true;
}

static void open_net(void)
{
    struct net_config config = {.ip = 0x0a000002u, .netmask = 0xffffff00u};
    const char *why = "";
    static uint64_t time_ns;
    struct seam_hooks hooks = {.idle = on_idle};
    time_ns += seam_now_ns();
    seam_reset();
    seam_advance_ns(time_ns + 10000 * MS);
    seam_hook(&hooks);
    memset(&fake, 0, sizeof(fake));
    stub.info.max_datagram_bytes = 1472;
    stub.info.tx_max_segs = 3;
    stub.pool_bufs = 128;
    fake.arm_answer = true;
    done = false;
    slept_ns = 0;
    interrupt_ends_sleep = false;
    assert_true(net_open(&config, &why));
    memset(fake.notes, 0, sizeof(fake.notes));
    fake.n = 0;
    fake.arms = fake.disarms = fake.idles = 0;
}

/* Nothing to do: one pass in order, then flush, arm, last look, halt, disarm. */
static void test_order(void **state)
{
    struct net_timer end = {0};
    (void)state;
    open_net();
    net_timer_set(&end, seam_now_ns() + 120 * MS, finish, NULL);
    net_run(&done);
    assert_memory_equal(fake.notes, "rtpfALID", 8);
    assert_true(fake.idles >= 2);
    assert_int_equal(fake.arms, fake.disarms);
    assert_false(fake.wanted_tx);
    struct net_stats stats;
    net_stats(&stats);
    assert_true(stats.idle_ns >= slept_ns);
    net_close();
}

/* Progress after arming: no halt. */
static void test_arm_finds_progress(void **state)
{
    struct net_timer end = {0};
    (void)state;
    open_net();
    fake.arm_answer = false;
    net_timer_set(&end, seam_now_ns() + 1 * MS, finish, NULL);
    net_run(&done);
    assert_true(fake.arms > 0);
    assert_int_equal(fake.idles, 0);
    net_close();
}

/* An interrupt between arming and the halt: no halt. */
static void test_last_look(void **state)
{
    struct net_timer end = {0};
    (void)state;
    open_net();
    fake.irq_pending = true;
    net_timer_set(&end, seam_now_ns() + 1 * MS, finish, NULL);
    net_run(&done);
    assert_true(fake.arms > 0);
    assert_int_equal(fake.arms, fake.disarms);
    assert_int_equal(fake.idles, 0);
    net_close();
}

/* ---- a socket that waits ---- */

static unsigned writable;

static void on_writable(struct sock *sock, void *arg)
{
    (void)sock;
    (void)arg;
    note('w');
    writable++;
    done = true;
}

static const struct sock_ops ops = {.writable = on_writable};

/* Blocked on credit while the ring is not stopped: the completions are asked for all the same, and
 * wake it. */
static void test_credit_wakes(void **state)
{
    uint8_t *payload;
    bool fresh;
    (void)state;
    open_net();
    struct sock *sock = sock_udp_open(&ops, NULL, 2000);
    /* A broadcast needs no address resolution. */
    assert_int_equal(sock_udp_connect(sock, 0x0a0000ffu, 9), SOCK_OK);
    while (sock_udp_reserve(sock, 1000, &payload, &fresh) == SOCK_OK) {
        assert_int_equal(sock_udp_commit(sock), SOCK_OK);
    }
    writable = 0;
    interrupt_ends_sleep = true;
    net_run(&done);
    assert_true(fake.wanted_tx);
    assert_int_equal(writable, 1);
    assert_int_equal(fake.idles, 1);
    /* Reclaim, then the socket, then the flush, in the pass after the halt. */
    assert_non_null(strstr(fake.notes, "IDrtpwf"));
    sock_close(sock, false);
    net_close();
}

/* What is put off is done in the next pass, and no halt lies between. */
static struct net_timer again;
static unsigned turns;

static void put_off(void *arg)
{
    note('d');
    if (++turns == 5) {
        done = true;
        return;
    }
    net_defer(&again, put_off, arg);
}

static void test_defer(void **state)
{
    (void)state;
    open_net();
    turns = 0;
    net_defer(&again, put_off, NULL);
    net_run(&done);
    assert_int_equal(turns, 5);
    assert_int_equal(fake.idles, 0);
    assert_memory_equal(fake.notes, "rtpdfrtpdfrtpdfrtpdfrtpdf", 25);
    net_close();
}

/* ---- timers ---- */

static struct net_timer timers[3];
static char fired[16];
static size_t n_fired;

static void on_timer(void *arg)
{
    fired[n_fired++] = *(const char *)arg;
}

static void clear_other(void *arg)
{
    on_timer(arg);
    net_timer_clear(&timers[2]);
}

static void test_timers(void **state)
{
    (void)state;
    open_net();
    n_fired = 0;
    uint64_t now = seam_now_ns();
    net_timer_set(&timers[0], now + 30 * MS, on_timer, "c");
    net_timer_set(&timers[1], now + 10 * MS, on_timer, "a");
    net_timer_set(&timers[2], now + 20 * MS, on_timer, "b");
    seam_advance_ns(40 * MS);
    net_poll();
    assert_memory_equal(fired, "abc", 3);
    n_fired = 0;
    now = seam_now_ns();
    net_timer_set(&timers[1], now + 10 * MS, clear_other, "a");
    net_timer_set(&timers[2], now + 11 * MS, on_timer,
                  "b"); /* due in the same pass, cleared in it */
    net_timer_set(&timers[0], now + 50 * MS, on_timer, "c");
    net_timer_set(&timers[0], now + 12 * MS, on_timer,
                  "c"); /* set again: once, at the later word */
    seam_advance_ns(100 * MS);
    net_poll();
    net_poll();
    assert_int_equal(n_fired, 2);
    assert_memory_equal(fired, "ac", 2);
    assert_false(timers[0].active);
    net_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),     cmocka_unit_test(test_arm_finds_progress),
        cmocka_unit_test(test_last_look), cmocka_unit_test(test_credit_wakes),
        cmocka_unit_test(test_defer),     cmocka_unit_test(test_timers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
