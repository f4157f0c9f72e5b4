/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver's objects and a device on two real cores, with the machine's own memory order: one or
 * a few frames go out, each comes back, and both sides sleep whenever they may. No timer helps:
 * what is lost is waited for until the test gives up.
 *
 *     main thread: driver -> [rings in memory] <- device thread
 *          asleep until a line is raised            asleep until a doorbell is rung
 *
 * FIELD_RING_ROUNDS=N runs N rounds of each form (10^7 take minutes); by default as many as fit
 * into a second and a half.
 *
 * Whether that could fail at all is tried beside it: with the full barriers of one place left out,
 * a wake-up must get lost. On two cores with five programs running it was in each of 36 trials,
 * after 46 to 2,528 rounds; the test has 8,000 and more there. Where none is lost, because there
 * is one core or too little of two, the trial is skipped: such a run says nothing.
 *
 * Three things are needed for it. Each thread has a core of its own: who is woken is else put
 * beside who wakes him. A store must be late, so others that miss the cache stand in front of it.
 * And the program is built without sanitizers, whose checks take longer than a store stays in its
 * buffer: with them no interrupt is lost in 100,000 rounds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "tests/device/bell.h"
#include "tests/device/rig.h"
#include "tests/device/seams.h"

#define PAIR         0u
#define FORM_MS      1500u
#define FORM_ROUNDS  2000u /* although the machine is busy */
#define TRIAL_MS     4000u
#define TRIAL_ROUNDS 200000u
#define RX_DESCS     8u
#define TX_DESCS     16u
#define MAX_BURST    4u
#define SPINS_MAX    4000u
#define SLOW_LINES   8u

/*
 * How long a side looks before it sleeps. What matters is the moment at which one side goes to
 * sleep while the other publishes: it looks longer when it slept too early, and shorter when there
 * was work before it slept, and so stays near that moment however fast the machine is.
 */
struct patience {
    uint32_t looks, random;
};

/* Which full barriers the driver has to do without, to see whether the test notices. */
enum barriers { NONE, OF_KICKS, OF_ARMING };

struct table {
    struct rig *rig;
    struct bell doorbell, line;
    uint32_t owed; /* frames taken from TX and not yet put into RX */
    uint32_t numbers[64], number_at, number_end;
    bool stop;
    struct patience patience; /* of the driver */
    uint64_t sleeps, kicks;
    bool arming;
    enum barriers left_out;
    uint8_t slow[SLOW_LINES][64] __attribute__((aligned(64))); /* a line of cache each */
};

static struct table table;
static cpu_set_t cpus; /* that the program was given */

static unsigned any(uint32_t *random, unsigned below)
{
    *random = *random * 1664525u + 1013904223u;
    return (*random >> 8) % below;
}

static unsigned looks(struct patience *patience)
{
    return patience->looks + any(&patience->random, patience->looks / 8 + 16);
}

static void learn(struct patience *patience, bool too_early)
{
    uint32_t step = patience->looks / 32 + 1;

    if (too_early && patience->looks < SPINS_MAX) {
        patience->looks += step;
    } else if (!too_early && patience->looks > step) {
        patience->looks -= step;
    }
}

/* ---- the driver's machine: plain loads and stores, and a fence where it asks for one ---- */

static uint64_t plain_load(void *ctx, const volatile void *addr, unsigned bytes)
{
    (void)ctx;
    switch (bytes) {
    case 1:
        return __atomic_load_n((const volatile uint8_t *)addr, __ATOMIC_RELAXED);
    case 2:
        return __atomic_load_n((const volatile uint16_t *)addr, __ATOMIC_RELAXED);
    case 4:
        return __atomic_load_n((const volatile uint32_t *)addr, __ATOMIC_RELAXED);
    default:
        return __atomic_load_n((const volatile uint64_t *)addr, __ATOMIC_RELAXED);
    }
}

static void plain_store(void *ctx, volatile void *addr, unsigned bytes, uint64_t value)
{
    (void)ctx;
    switch (bytes) {
    case 1:
        __atomic_store_n((volatile uint8_t *)addr, (uint8_t)value, __ATOMIC_RELAXED);
        break;
    case 2:
        __atomic_store_n((volatile uint16_t *)addr, (uint16_t)value, __ATOMIC_RELAXED);
        break;
    case 4:
        __atomic_store_n((volatile uint32_t *)addr, (uint32_t)value, __ATOMIC_RELAXED);
        break;
    default:
        __atomic_store_n((volatile uint64_t *)addr, value, __ATOMIC_RELAXED);
    }
}

static void plain_barrier(void *ctx, bool full)
{
    const struct table *t = ctx;

    if (full && t->left_out != (t->arming ? OF_ARMING : OF_KICKS)) {
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    }
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Flushed and stored to: until the lines are back, no later store of this core is seen. */
static void store_slowly(struct table *t)
{
    for (unsigned i = 0; i < SLOW_LINES; i++) {
        __asm__ volatile("clflush %0" : "+m"(t->slow[i]));
    }
    for (unsigned i = 0; i < SLOW_LINES; i++) {
        __atomic_store_n(&t->slow[i][0], 1, __ATOMIC_RELAXED);
    }
}

static void plain_doorbell(void *ctx, uint64_t phys, unsigned bytes, uint32_t value)
{
    struct table *t = ctx;

    (void)phys;
    (void)bytes;
    (void)value;
    t->kicks++;
    bell_ring(&t->doorbell);
}

/* ---- the device, as vhost does it ---- */

static bool event_idx_of(const struct table *t)
{
    return (t->rig->device.accepted & FEATURE(VIRTIO_F_EVENT_IDX)) != 0;
}

static uint16_t load16(const uint16_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static bool has_buffers(const struct model_queue *q)
{
    return load16(&q->avail->idx) != q->avail_seen;
}

static void ask_for_kicks(const struct table *t, struct model_queue *q, bool on)
{
    if (!event_idx_of(t)) {
        __atomic_store_n(&q->used->flags, (uint16_t)(on ? 0 : VQ_USED_F_NO_NOTIFY),
                         __ATOMIC_RELAXED);
    } else if (on) {
        __atomic_store_n((uint16_t *)(void *)&q->used->ring[q->size], q->avail_seen,
                         __ATOMIC_RELAXED);
    }
}

static void publish(struct table *t, unsigned queue)
{
    struct model_queue *q = &t->rig->device.q[queue];
    uint16_t old = q->signalled;

    if (q->used_idx == old) {
        return;
    }
    __atomic_store_n(&q->used->idx, q->used_idx, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    q->signalled = q->used_idx;
    bool wanted = event_idx_of(t)
                      ? vq_need_event(load16(&q->avail->ring[q->size]), q->used_idx, old)
                      : (load16(&q->avail->flags) & VQ_AVAIL_F_NO_INTERRUPT) == 0;
    if (wanted) {
        t->rig->device.base.queue_line[queue]->count++;
        bell_ring(&t->line);
    }
}

static void take_sent(struct table *t)
{
    struct model_queue *q = &t->rig->device.q[MODEL_TX];

    while (has_buffers(q) && t->number_end - t->number_at < 64) {
        uint16_t head = q->avail->ring[q->avail_seen++ % q->size];
        const uint8_t *bytes = seam_ram(q->desc[head].addr, q->desc[head].len);
        memcpy(&t->numbers[t->number_end++ % 64],
               bytes + sizeof(struct virtio_net_hdr) + ETH_HEADER_BYTES, sizeof(uint32_t));
        q->used->ring[q->used_idx++ % q->size] = (struct vq_used_elem){head, 0};
    }
}

static void give_back(struct table *t)
{
    struct model_queue *q = &t->rig->device.q[MODEL_RX];
    struct virtio_net_hdr hdr = {.num_buffers = 1};

    while (t->number_at != t->number_end && has_buffers(q)) {
        uint16_t head = q->avail->ring[q->avail_seen++ % q->size];
        uint8_t *bytes = seam_ram(q->desc[head].addr, 100);
        memcpy(bytes, &hdr, sizeof(hdr));
        memcpy(bytes + sizeof(hdr) + ETH_HEADER_BYTES, &t->numbers[t->number_at++ % 64],
               sizeof(uint32_t));
        q->used->ring[q->used_idx++ % q->size] = (struct vq_used_elem){head, 100};
    }
}

static bool device_has_work(const struct table *t)
{
    return has_buffers(&t->rig->device.q[MODEL_TX]) ||
           (t->number_at != t->number_end && has_buffers(&t->rig->device.q[MODEL_RX]));
}

/* Asks for kicks, looks again, and only then sleeps. */
static void device_sleep(struct table *t)
{
    struct model_queue *q = t->rig->device.q;
    uint32_t seen = bell_rung(&t->doorbell);

    ask_for_kicks(t, &q[MODEL_TX], true);
    if (t->number_at != t->number_end) {
        ask_for_kicks(t, &q[MODEL_RX], true);
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    /* The bell is read before the flag, which is set before the last ring. */
    if (!device_has_work(t) && !__atomic_load_n(&t->stop, __ATOMIC_ACQUIRE)) {
        t->sleeps++;
        (void)bell_wait(&t->doorbell, seen, NULL);
    }
    ask_for_kicks(t, &q[MODEL_TX], false);
    ask_for_kicks(t, &q[MODEL_RX], false);
}

static void *device_thread(void *ctx)
{
    struct table *t = ctx;
    struct patience patience = {.random = 77};
    bool woken = false; /* what is there now, it was woken for */

    while (!__atomic_load_n(&t->stop, __ATOMIC_ACQUIRE)) {
        unsigned n = looks(&patience);
        while (n > 0 && !device_has_work(t)) {
            n--;
        }
        if (device_has_work(t)) {
            take_sent(t);
            give_back(t);
            publish(t, MODEL_TX);
            publish(t, MODEL_RX);
            if (!woken) {
                learn(&patience, false);
            }
            woken = false;
            continue;
        }
        uint64_t sleeps = t->sleeps;
        device_sleep(t);
        woken = true;
        learn(&patience, t->sleeps != sleeps);
    }
    return NULL;
}

/* ---- the driver's side ---- */

/* Until all that was sent has come back. False: an interrupt or a kick got lost. */
static bool collect(struct table *t, uint64_t until)
{
    struct virtio_net *dev = t->rig->dev;

    while (t->rig->rx_packets < until || virtio_net_tx_in_flight(dev, PAIR) != 0) {
        for (volatile unsigned n = looks(&t->patience); n > 0; n--) {
        }
        uint32_t seen = bell_rung(&t->line);
        t->arming = true;
        store_slowly(t);
        bool armed = virtio_net_arm(dev, false);
        t->arming = false;
        if (!armed) {
            learn(&t->patience, false);
        } else {
            learn(&t->patience, !virtio_net_irq_pending(dev));
            while (!virtio_net_irq_pending(dev)) {
                if (!bell_wait(&t->line, seen, &t->doorbell)) {
                    return false;
                }
                seen = bell_rung(&t->line);
            }
            virtio_net_disarm(dev);
        }
        while (virtio_net_tx_reclaim(dev, PAIR, 64) + virtio_net_rx_poll(dev, PAIR, 64) != 0) {
        }
    }
    return true;
}

/* Or whoever wakes the other one pulls it over to its own core, and the two take turns there. */
static void keep_apart(pthread_t device)
{
    const pthread_t threads[] = {pthread_self(), device};
    unsigned n = 0;

    for (size_t cpu = 0; cpu < CPU_SETSIZE && n < 2 && CPU_COUNT(&cpus) > 1; cpu++) {
        if (CPU_ISSET(cpu, &cpus)) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            (void)pthread_setaffinity_np(threads[n++], sizeof(one), &one);
        }
    }
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* Rounds until the time is up, there are enough, or a wake-up is lost. Returns whether one was. */
static bool echo(struct table *t, uint64_t most, uint64_t ms, uint64_t *rounds)
{
    const uint64_t end_ms = now_ms() + ms;
    uint64_t sent = 0;
    uint32_t random = 5;

    for (*rounds = 0; *rounds < most; ++*rounds) {
        if (*rounds >= FORM_ROUNDS && (*rounds & 255) == 0 && now_ms() >= end_ms) {
            break;
        }
        for (unsigned n = 1 + any(&random, 8) / 7 * any(&random, MAX_BURST); n > 0; n--, sent++) {
            assert_int_equal(rig_send(t->rig, 1, true), VIRTIO_NET_OK);
        }
        store_slowly(t);
        virtio_net_tx_flush(t->rig->dev, PAIR);
        if (!collect(t, sent)) {
            return true;
        }
        uint32_t number;
        memcpy(&number, t->rig->rx_copy + ETH_HEADER_BYTES, sizeof(number));
        assert_int_equal(number, (uint32_t)sent);
    }
    return false;
}

/* One run of both threads. What the table holds afterwards is what they left. */
static bool both_threads(bool event_idx, enum barriers left_out, uint64_t most, uint64_t ms,
                         uint64_t *rounds)
{
    struct table *t = &table;
    pthread_t device;

    memset(t, 0, sizeof(*t));
    t->left_out = left_out;
    bell_init(&t->doorbell);
    bell_init(&t->line);
    t->rig = rig_new();
    t->rig->config.refuse.event_idx = !event_idx;
    t->rig->opt.size_descs[MODEL_RX] = RX_DESCS;
    t->rig->opt.size_descs[MODEL_TX] = TX_DESCS;
    assert_true(rig_open(t->rig));
    seam_hook(&(struct seam_hooks){.ctx = t,
                                   .load = plain_load,
                                   .store = plain_store,
                                   .barrier = plain_barrier,
                                   .mmio_write = plain_doorbell});
    assert_int_equal(pthread_create(&device, NULL, device_thread, t), 0);
    keep_apart(device);
    const bool lost = echo(t, most, ms, rounds);
    const bool kick = lost && device_has_work(t); /* both are asleep: nothing changes it */
    __atomic_store_n(&t->stop, true, __ATOMIC_SEQ_CST);
    bell_ring(&t->doorbell);
    assert_int_equal(pthread_join(device, NULL), 0);
    print_message("%s: %s after %llu rounds, %llu sleeps of the device, %llu kicks\n",
                  event_idx ? "event index" : "flags",
                  !lost  ? "nothing lost"
                  : kick ? "a kick lost"
                         : "an interrupt lost",
                  (unsigned long long)*rounds, (unsigned long long)t->sleeps,
                  (unsigned long long)t->kicks);
    return lost;
}

static void nothing_is_lost(bool event_idx)
{
    const char *text = getenv("FIELD_RING_ROUNDS");
    struct table *t = &table;
    uint64_t rounds;

    assert_false(both_threads(event_idx, NONE, text ? strtoull(text, NULL, 10) : UINT64_MAX,
                              text ? INT64_MAX : FORM_MS, &rounds));
    /* Both slept and were woken, many times: else nothing was tried. */
    assert_true(rounds > 1000 && t->sleeps > 100 && t->kicks > 100);
    assert_true(rig_tx(t->rig).interrupts + rig_rx(t->rig).interrupts > 100);
    assert_int_equal(rig_tx(t->rig).submitted, rig_tx(t->rig).completed);
    assert_true(rig_at_rest(t->rig));
    rig_free(t->rig);
}

/* Without these barriers a wake-up gets lost: else the machine, or the test, cannot show it. */
static void something_is_lost(bool event_idx, enum barriers left_out)
{
    uint64_t rounds;

    if (CPU_COUNT(&cpus) < 2) {
        print_message("one core: the two threads never run at once\n");
        skip();
    }
    const bool lost = both_threads(event_idx, left_out, TRIAL_ROUNDS, TRIAL_MS, &rounds);
    rig_free(table.rig);
    if (!lost) {
        print_message("not seen in %llu rounds: the two threads hardly ran at once\n",
                      (unsigned long long)rounds);
        skip();
    }
}

/*
 * Field case 3: with the event index, two real threads share the rings: the wanted position is read
 * after the index was made visible, so that no kick, and no interrupt, is ever missed.
 */
static void test_two_threads_event_idx(void **state)
{
    (void)state;
    nothing_is_lost(true);
}

/* Field case 4: the same by flags, for a device that does not offer the event index. */
static void test_two_threads_flags(void **state)
{
    (void)state;
    nothing_is_lost(false);
}

static void test_no_barrier_of_kicks_event_idx(void **state)
{
    (void)state;
    something_is_lost(true, OF_KICKS);
}

static void test_no_barrier_of_kicks_flags(void **state)
{
    (void)state;
    something_is_lost(false, OF_KICKS);
}

static void test_no_barrier_of_arming_event_idx(void **state)
{
    (void)state;
    something_is_lost(true, OF_ARMING);
}

static void test_no_barrier_of_arming_flags(void **state)
{
    (void)state;
    something_is_lost(false, OF_ARMING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_threads_event_idx),
        cmocka_unit_test(test_two_threads_flags),
        cmocka_unit_test(test_no_barrier_of_kicks_event_idx),
        cmocka_unit_test(test_no_barrier_of_kicks_flags),
        cmocka_unit_test(test_no_barrier_of_arming_event_idx),
        cmocka_unit_test(test_no_barrier_of_arming_flags),
    };
    (void)sched_getaffinity(0, sizeof(cpus), &cpus);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
