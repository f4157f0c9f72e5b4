/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The long run: very many descriptors and stop/wake cycles through the driver on the strict device,
 * with and without interrupts and kicks that are lost. Optimised, without sanitizers.
 *
 *     strict-long [MILLIONS of descriptors, 1000] [THOUSANDS of stop/wake cycles, 1000]
 *
 * Prints one line for each part, and how far it is once a minute; exit code 1 when a clause is
 * violated, a frame is lost, a queue is stopped for longer than it may be, or a loss is not
 * counted.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/device/seams.h"
#include "tests/device/strict_host.h"

#define SAFETY_PERIOD_NS 100000000ull
#define SLACK_NS         5000000ull
#define STOP_LIMIT_NS    1000000ull /* where nothing is lost: none that only the safety timer ends */
#define ROUND_FRAMES     20000u
#define TELL_SECONDS     60

static struct strict_host host;

static bool fail(const char *what)
{
    printf("FAIL %s: sent %u done %u received %u of %u, longest stop %" PRIu64 " ns\n", what,
           host.tx_sequence, host.tx_done, host.rx_got, host.rx_sent, host.longest_stop_ns);
    strict_report_print(&host.dev.report, stdout);
    return false;
}

static void tell(const char *what, uint64_t done, uint64_t want)
{
    static time_t started, told;
    const time_t now = time(NULL);
    if (told == 0) {
        started = told = now;
    } else if (now - told >= TELL_SECONDS) {
        told = now;
        printf("     %" PRIu64 " of %" PRIu64 " %s after %ld s\n", done, want, what,
               (long)(now - started));
    }
}

static bool balanced(const char *what)
{
    struct virtio_net_tx_stats tx;
    virtio_net_tx_stats(host.net, 0, &tx);
    if (host.dev.report.violations != 0 || host.tx_wrong != 0 || host.rx_wrong != 0 ||
        host.tx_done != host.tx_sequence || host.rx_got != host.rx_sent ||
        tx.unexpected_full != 0 || tx.stops != tx.wakes) {
        return fail(what);
    }
    return true;
}

/* Where nothing is lost and the device is sound, the driver finds no fault with it. */
static bool faultless(const char *what)
{
    const uint64_t *faults = virtio_net_device_faults(host.net);
    for (unsigned i = 0; i < VIRTIO_NET_FAULTS; i++) {
        if (faults[i] != 0) {
            printf("%" PRIu64 " times %s\n", faults[i], virtio_net_fault_names[i]);
            return fail(what);
        }
    }
    return balanced(what);
}

static void start(unsigned form, uint16_t size, uint64_t seed)
{
    struct strict_options opt;
    strict_options_default(&opt);
    opt.seed = seed;
    opt.order = form & 4 ? STRICT_RANDOM : STRICT_IN_ORDER;
    opt.pace = form & 2 ? STRICT_ONLY_KICKED : STRICT_LAZY;
    opt.offered &= form & 1 ? ~strict_bit(F_EVENT_IDX) : ~0ull;
    opt.offered &= form & 8 ? ~strict_bit(F_INDIRECT_DESC) : ~0ull;
    opt.offered &= ~strict_bit(F_HOST_TSO4);
    opt.queue_max_descs[0] = opt.queue_max_descs[1] = size;
    opt.mtu_bytes = 96; /* the ring is what is run, not memory */
    host_init(&host, &opt);
    host.check_rx_order = opt.order == STRICT_IN_ORDER;
    if (!host_open(&host, NULL)) {
        printf("FAIL open: %s\n", host.why);
        exit(1);
    }
}

static void end(void)
{
    host_close(&host);
    host_fini(&host);
}

/* Every form of ring and device in turn until so many descriptors have passed. */
static bool descriptors(uint64_t want)
{
    static const uint16_t sizes[] = {8, 64, 256, 1024, 32768};
    uint64_t done = 0, laps = 0;
    for (unsigned round = 0; done < want; round++) {
        start(round % 16, sizes[round % 5], round + 1);
        const uint64_t share = want / 80 + 1;
        while (host.dev.descs < share && done + host.dev.descs < want) {
            if (!host_traffic(&host, ROUND_FRAMES, ROUND_FRAMES / 2) || !faultless("descriptors")) {
                return false;
            }
            tell("descriptors", done + host.dev.descs, want);
        }
        done += host.dev.descs;
        laps += host.dev.queue[1].exposed >> 16;
        laps += host.dev.queue[0].exposed >> 16;
        end();
    }
    printf("ok   %" PRIu64 " descriptors, %" PRIu64 " laps of a 16-bit index\n", done, laps);
    return true;
}

/* A ring that is always full. */
static bool cycles(uint64_t want)
{
    uint64_t done = 0;
    uint64_t longest = 0;
    for (unsigned round = 0; done < want; round++) {
        start(round % 16, 16, round + 77);
        host.dev.opt.per_step = 1 + round % 3;
        host.dev.opt.slow = 2 + round % 3; /* time passes only while the driver waits */
        for (unsigned i = 0; i < 10 && done + host.tx_wakes < want; i++) {
            if (!host_traffic(&host, ROUND_FRAMES, 100) || !faultless("stop/wake cycles")) {
                return false;
            }
            tell("stop/wake cycles", done + host.tx_wakes, want);
        }
        if (host.longest_stop_ns == 0 || host.longest_stop_ns > STOP_LIMIT_NS) {
            return fail("a stop lasts too long, or no time");
        }
        longest = host.longest_stop_ns > longest ? host.longest_stop_ns : longest;
        done += host.tx_wakes;
        end();
    }
    printf("ok   %" PRIu64 " stop/wake cycles, longest stop %" PRIu64 " us of model time\n", done,
           longest / 1000);
    return true;
}

struct losses {
    uint64_t lost, mended, counted;
};

static void add_losses(struct losses *sum, uint64_t lost, uint64_t mended, uint64_t counted)
{
    sum->lost += lost;
    sum->mended += mended;
    sum->counted += counted;
}

/*
 * One in a thousand interrupts and kicks is lost: each stall ends with the safety timer. A loss
 * that something else made up for in time (the next kick, the look after arming) is no stall and is
 * not counted; each other one is, and nothing else.
 */
static bool losses(uint64_t frames)
{
    struct losses kicks = {0}, interrupts = {0};
    uint64_t longest = 0;
    for (unsigned form = 0; form < 4; form++) {
        start(form | 2, 16, form + 5);
        host.dev.opt.slow = 3;
        host.dev.fault.lose_interrupts = form & 2 ? 1000 : 0;
        host.dev.fault.lose_kicks = form & 2 ? 0 : 1000;
        for (uint64_t sent = 0; sent < frames; sent += ROUND_FRAMES) {
            if (!host_traffic(&host, ROUND_FRAMES, 0) || !balanced("with losses")) {
                return false;
            }
            tell("frames with losses", sent + ROUND_FRAMES, frames);
        }
        if (!host_settle(&host, 1000)) { /* or the last one may still be late */
            return fail("no rest after losses");
        }
        const uint64_t *faults = virtio_net_device_faults(host.net);
        add_losses(&kicks, host.dev.kicks_lost, host.kicks_mended[1],
                   faults[VIRTIO_NET_FAULT_LOST_KICK]);
        add_losses(&interrupts, host.dev.interrupts_lost, host.interrupts_mended,
                   faults[VIRTIO_NET_FAULT_LOST_INTERRUPT]);
        longest = host.longest_stop_ns > longest ? host.longest_stop_ns : longest;
        if (host.longest_stop_ns > SAFETY_PERIOD_NS + SLACK_NS) {
            return fail("a loss stalls for too long");
        }
        if (kicks.counted != kicks.mended || interrupts.counted != interrupts.mended) {
            return fail("losses are counted that were none, or not those that were");
        }
        end();
    }
    const bool some = kicks.counted > 0 && interrupts.counted > 0;
    printf("%s kicks: %" PRIu64 " lost, %" PRIu64 " of them felt, %" PRIu64 " counted; ",
           some ? "ok  " : "FAIL", kicks.lost, kicks.mended, kicks.counted);
    printf("interrupts: %" PRIu64 " lost, %" PRIu64 " felt, %" PRIu64
           " counted; longest stop %" PRIu64 " us\n",
           interrupts.lost, interrupts.mended, interrupts.counted, longest / 1000);
    return some;
}

int main(int argc, char *argv[])
{
    const uint64_t millions = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    const uint64_t thousands = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    setvbuf(stdout, NULL, _IOLBF, 0);
    bool ok = descriptors(millions * 1000000u);
    ok &= cycles(thousands * 1000u);
    ok &= losses(thousands * 1000u);
    return ok ? 0 : 1;
}
