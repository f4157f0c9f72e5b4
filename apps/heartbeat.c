/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/heartbeat.h"

#include "boot/clock.h"

/* What an idle connection is asked for. */
#define SLOW_NS    (CLOCK_NS_PER_S / 2)
#define SILENCE_NS CLOCK_NS_PER_S

/* From here on fast: 800 questions before the end; with 99 of 100 lost, one of 3000 such seconds
 * would be misjudged. */
#define ALARM_NS (3 * CLOCK_NS_PER_S)
#define FAST_NS  (5 * CLOCK_NS_PER_S / 1000)

static uint64_t min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Data from the server is a sign of life too; in a flood of it, answers to questions are lost. */
static uint64_t silent_ns(const struct heartbeat *heartbeat, uint64_t now_ns)
{
    uint64_t silent = min(sock_tcp_silent_ns(heartbeat->control), now_ns - heartbeat->begun_ns);
    for (unsigned i = 0; i < heartbeat->n_streams; i++) {
        uint64_t arrival_ns = heartbeat->streams[i].last_arrival_ns;
        if (arrival_ns != 0) {
            silent = min(silent, now_ns > arrival_ns ? now_ns - arrival_ns : 0);
        }
    }
    return silent;
}

/* While the device takes nothing, fast questions would only pile up in what the ring keeps for
 * acknowledgements. */
static bool device_takes(struct heartbeat *heartbeat, uint64_t now_ns)
{
    struct virtio_net_tx_stats stats;
    virtio_net_tx_stats(net_device(), 0, &stats);
    if (stats.completed != heartbeat->last_taken || net_tx_in_flight() == 0) {
        heartbeat->last_taken = stats.completed;
        heartbeat->last_taken_ns = now_ns;
    }
    return now_ns - heartbeat->last_taken_ns < SLOW_NS;
}

static void beat(void *arg)
{
    struct heartbeat *heartbeat = arg;
    uint64_t now_ns = clock_now_ns();
    uint64_t silent = silent_ns(heartbeat, now_ns);
    bool taking = device_takes(heartbeat, now_ns);
    if (silent >= HEARTBEAT_DEAD_NS) {
        heartbeat->dead(heartbeat->arg, taking);
        return;
    }
    if (silent >= SILENCE_NS) {
        sock_tcp_probe(heartbeat->control);
        heartbeat->probes++;
    }
    uint64_t wait_ns = silent >= ALARM_NS && taking ? FAST_NS : SLOW_NS;
    net_timer_set(&heartbeat->timer, now_ns + wait_ns, beat, heartbeat);
}

void heartbeat_start(struct heartbeat *heartbeat, uint64_t now_ns)
{
    heartbeat->begun_ns = now_ns;
    heartbeat->last_taken_ns = now_ns;
    net_timer_set(&heartbeat->timer, now_ns + SLOW_NS, beat, heartbeat);
}

void heartbeat_cancel(struct heartbeat *heartbeat)
{
    net_timer_clear(&heartbeat->timer);
}
