/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What each stop/wake policy costs on a device that completes one chain at a time: the driver's own
 * objects on the model device, in process, the same at every run.
 *
 *     stopwake_model PACKETS
 *
 *     frames --> [driver, policy] --> ring of 256 --> model device: one completion, then the driver
 *                                                     looks if it was interrupted
 *
 * Three of four frames are TSO frames of 18 pieces, the fourth is a small datagram. At one arming
 * in 64, by a fixed sequence, the device completes all that it has just before the driver's store
 * becomes visible: the moment that the look after arming is there for. Prints one JSON array with
 * one row for each policy, with and without INDIRECT_DESC and EVENT_IDX.
 */
#include <stdio.h>
#include <stdlib.h>

#include "boot/clock.h"
#include "tests/device/rig.h"
#include "tests/device/seams.h"

#define QUEUE          0u
#define RING_DESCS     256u
#define RACE_ONE_IN    64u
#define SMALL_EVERY    4u
#define RECLAIM_BUDGET RING_DESCS
#define MAX_PACKETS    10000000u
#define WATCHDOG_NS    150000000ull /* above the period of the driver's safety timer */
#define MAX_STALLS     100000u

struct run {
    struct rig *rig;
    uint32_t wanted, sent;
    uint64_t stalls;
    uint32_t random;
};

/* The driver is about to ask for an interrupt: now and then the device was faster. */
static void race(void *ctx, const volatile void *addr, bool is_store)
{
    struct run *run = ctx;
    struct virtqueue *vq = &run->rig->dev->tx.vq;
    const volatile void *armed_at = vq->event_idx ? (const volatile void *)vq->used_event
                                                  : (const volatile void *)&vq->avail->flags;

    if (!is_store || addr != armed_at || !vq->armed) {
        return;
    }
    run->random = run->random * 1664525u + 1013904223u;
    if ((run->random >> 16) % RACE_ONE_IN != 0) {
        return;
    }
    model_take(&run->rig->device, MODEL_TX);
    model_complete(&run->rig->device, RING_DESCS);
}

static void send_all(struct run *run)
{
    while (run->sent < run->wanted && !virtio_net_tx_stopped(run->rig->dev, QUEUE)) {
        bool small = run->sent % SMALL_EVERY == SMALL_EVERY - 1;
        enum virtio_net_result result =
            small ? rig_send(run->rig, 1, true) : rig_send_tso(run->rig, VIRTIO_NET_TX_MAX_PIECES);
        if (result != VIRTIO_NET_OK) {
            return; /* not taken: it comes again after the wake */
        }
        run->sent++;
    }
}

/* Sleeps until an interrupt. A device with nothing left to do never sends one: a stall, which only
 * the safety timer ends. */
static bool sleep_until_interrupt(struct run *run)
{
    struct virtio_net *dev = run->rig->dev;

    while (!virtio_net_irq_pending(dev)) {
        model_take(&run->rig->device, MODEL_TX);
        if (model_complete(&run->rig->device, 1) != 0) {
            continue;
        }
        if (++run->stalls > MAX_STALLS) {
            return false;
        }
        seam_advance_ns(WATCHDOG_NS);
        break;
    }
    virtio_net_disarm(dev);
    virtio_net_poll(dev, clock_now_ns());
    return true;
}

static bool drive(struct run *run)
{
    struct virtio_net *dev = run->rig->dev;

    for (;;) {
        send_all(run);
        virtio_net_tx_flush(dev, QUEUE);
        if (virtio_net_tx_reclaim(dev, QUEUE, RECLAIM_BUDGET) != 0) {
            continue;
        }
        if (run->sent == run->wanted && virtio_net_tx_in_flight(dev, QUEUE) == 0) {
            return true;
        }
        if (virtio_net_arm(dev, run->sent < run->wanted) && !sleep_until_interrupt(run)) {
            return false;
        }
    }
}

static void print_row(const struct run *run, const struct virtio_net_tx_stats *tx, bool balanced)
{
    const struct virtio_net_info *info = virtio_net_info(run->rig->dev);

    printf("{\"device\":\"model\",\"policy\":\"%s\",\"indirect\":%s,\"event_idx\":%s,",
           virtio_net_policy_names[tx->policy], info->indirect ? "true" : "false",
           info->event_idx ? "true" : "false");
    printf("\"packets\":%llu,\"requeues\":%llu,\"drops\":%llu,\"unexpected_full\":%llu,",
           (unsigned long long)tx->packets, (unsigned long long)tx->requeues,
           (unsigned long long)tx->drops[VIRTIO_NET_TX_DROP_POLICY],
           (unsigned long long)tx->unexpected_full);
    printf(
        "\"stops\":%llu,\"wakes\":%llu,\"interrupts\":%llu,\"kicks\":%llu,\"recheck_hits\":%llu,",
        (unsigned long long)tx->stops, (unsigned long long)tx->wakes,
        (unsigned long long)tx->interrupts, (unsigned long long)tx->kicks,
        (unsigned long long)tx->recheck_hits);
    printf("\"stalls\":%llu,\"ledger_ok\":%s}", (unsigned long long)run->stalls,
           balanced ? "true" : "false");
}

static bool measure(enum virtio_net_policy policy, bool indirect, bool event_idx, uint32_t packets)
{
    struct run run = {.rig = rig_new(), .wanted = packets};
    struct rig *rig = run.rig;

    rig->opt.size_descs[MODEL_TX] = RING_DESCS;
    rig->config.policy = policy;
    rig->config.refuse.indirect = !indirect;
    rig->config.refuse.event_idx = !event_idx;
    if (!rig_open(rig)) {
        fprintf(stderr, "stopwake_model: %s\n", rig->why);
        return false;
    }
    rig->device.ctx = &run;
    rig->device.on_access = race;
    bool done = drive(&run);
    struct virtio_net_tx_stats tx = rig_tx(rig);
    bool balanced = done && tx.submitted == tx.completed + tx.aborted && tx.held == 0 &&
                    tx.stops == tx.wakes && rig->done + rig->aborted == packets &&
                    rig->device.violations == 0;
    print_row(&run, &tx, balanced);
    virtio_net_close(rig->dev);
    rig_free(rig);
    return true;
}

int main(int argc, char **argv)
{
    long packets = argc == 2 ? strtol(argv[1], NULL, 10) : 0;

    if (packets < 1 || packets > (long)MAX_PACKETS) {
        fprintf(stderr, "usage: stopwake_model PACKETS (1 to %u)\n", MAX_PACKETS);
        return 1;
    }
    printf("[");
    for (unsigned policy = 0; policy < VIRTIO_NET_POLICIES; policy++) {
        for (unsigned bits = 0; bits < 4; bits++) {
            printf("%s", policy + bits != 0 ? ",\n" : "\n");
            if (!measure((enum virtio_net_policy)policy, (bits & 1) != 0, (bits & 2) != 0,
                         (uint32_t)packets)) {
                return 1;
            }
        }
    }
    printf("\n]\n");
    return 0;
}
