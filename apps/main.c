/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The program: read what is wanted, bring the network up, run it, say what was found.
 */
#include <inttypes.h>
#include <stdio.h>

#include "apps/iperf3_client.h"
#include "apps/report.h"
#include "apps/selftest.h"
#include "apps/serve.h"
#include "boot/boot_info.h"
#include "boot/clock.h"
#include "drivers/ring_trace.h"
#include "net/net.h"

#define LINK_DEADLINE_NS (5 * CLOCK_NS_PER_S)
#define DHCP_DEADLINE_NS (20 * CLOCK_NS_PER_S)

/* For what was still under way when the program ended: closing segments, the last completions. */
#define REST_DEADLINE_NS (2 * CLOCK_NS_PER_S)
/* After a failure the path is dead as a rule, and what is in the ring stays there. */
#define REST_FAILED_DEADLINE_NS (CLOCK_NS_PER_S / 4)
#define REST_LOOK_NS            (CLOCK_NS_PER_S / 1000)

/* Largest datagram that an echo is asked for; the transmit thresholds follow from it. */
#define SERVE_MAX_DATAGRAM_BYTES 65507u

/* 1 MiB: some 20,000 frames, each added, used and taken back. */
#define TRACE_EVENTS 65536u

static struct config config;
static struct ring_trace *trace;
static struct outcome outcome;

static void print_stall(const struct virtio_net_stall *stall)
{
    printf("sluice: %s queue: %s, found by the safety timer at available %u, used %u, taken back "
           "%u, event %u, after %" PRIu32 " interrupts; it goes on\n",
           stall->queue == 0 ? "receive" : "transmit", stall->fault, (unsigned)stall->avail_idx,
           (unsigned)stall->used_idx, (unsigned)stall->used_seen, (unsigned)stall->event,
           stall->interrupts);
    fflush(stdout);
}

static bool open_net(void)
{
    const char *why = "";
    bool udp = config.test == CONFIG_TEST_UDP;
    bool serve = config.test == CONFIG_TEST_SERVE;
    struct net_config net = {
        .dhcp = config.net.ip == 0,
        .ip = config.net.ip,
        .netmask = config.net.netmask,
        .gateway = config.net.gateway,
        .mac_set = config.net.mac_set,
        .dhcp_deadline_ns = DHCP_DEADLINE_NS,
        .link_deadline_ns = LINK_DEADLINE_NS,
        .vxlan =
            {
                .on = config.vxlan.on,
                .vni = config.vxlan.vni,
                .remote_ip = config.vxlan.remote_ip,
                .local_ip = config.vxlan.local_ip,
                .ip = config.vxlan.ip,
                .netmask = config.vxlan.netmask,
                .mtu_bytes = (uint16_t)config.vxlan.mtu_bytes,
                .csum = config.vxlan.csum,
                .port = (uint16_t)config.vxlan.port,
            },
        .driver =
            {
                .policy = (enum virtio_net_policy)config.tx_policy,
                .refuse = config.refuse,
                .tx_size_descs = (uint16_t)config.tx_size_descs,
                .max_datagram_bytes = udp     ? config.size_bytes
                                      : serve ? SERVE_MAX_DATAGRAM_BYTES
                                              : 0,
                .mtu_bytes = (uint16_t)config.net.mtu_bytes,
                .trace = trace,
            },
    };
    for (unsigned i = 0; i < sizeof net.mac; i++) {
        net.mac[i] = config.net.mac[i];
    }
    net_on_stall(print_stall);
    if (!net_open(&net, &why)) {
        outcome_fail(&outcome, SLUICE_EXIT_PEER, "no network: %s", why);
        return false;
    }
    outcome.net_is_open = true;
    outcome.boot_ns = clock_now_ns();
    return true;
}

static void print_net(void)
{
    const struct virtio_net_info *info = virtio_net_info(net_device());
    struct virtio_net_tx_stats tx;
    uint32_t ip = net_ip();
    const uint8_t *mac = net_mac();
    virtio_net_tx_stats(net_device(), 0, &tx);
    printf("sluice: %02x:%02x:%02x:%02x:%02x:%02x, features offered 0x%" PRIx64
           ", accepted 0x%" PRIx64 "\n",
           mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], info->features_offered,
           info->features_accepted);
    printf("sluice: %u.%u.%u.%u, mtu %u, tx ring %u, stop below %u, wake at %u free (%s)%s%s%s, up "
           "after %.1f ms\n",
           (unsigned)(ip >> 24), (unsigned)(ip >> 16 & 0xff), (unsigned)(ip >> 8 & 0xff),
           (unsigned)(ip & 0xff), (unsigned)net_mtu(), (unsigned)tx.size_descs,
           (unsigned)tx.stop_descs, (unsigned)tx.wake_descs, virtio_net_policy_names[tx.policy],
           info->event_idx ? ", event_idx" : "", info->indirect ? ", indirect" : "",
           info->can_tso ? ", tso" : "", (double)outcome.boot_ns / 1e6);
    if (info->n_devices > 1) {
        printf("sluice: %u virtio network devices, the first on the bus is used\n",
               info->n_devices);
    }
    fflush(stdout);
}

/* ---- the end: at rest everything balances ---- */

struct rest {
    struct net_timer timer;
    uint64_t deadline_ns; /* by net_awake_ns() */
    bool over;
};

static void look_for_rest(void *arg)
{
    struct rest *rest = arg;
    struct net_ledger ledger;
    net_ledger(&ledger);
    rest->over = ledger.ok || net_awake_ns() >= rest->deadline_ns;
    if (!rest->over) {
        net_timer_set(&rest->timer, clock_now_ns() + REST_LOOK_NS, look_for_rest, rest);
    }
}

static void come_to_rest(void)
{
    bool failed = outcome.exit_code != SLUICE_EXIT_PASS;
    uint64_t patience_ns = failed ? REST_FAILED_DEADLINE_NS : REST_DEADLINE_NS;
    struct rest rest = {.deadline_ns = net_awake_ns() + patience_ns};
    net_defer(&rest.timer, look_for_rest, &rest);
    net_run(&rest.over);
}

static void judge_invariants(void)
{
    struct net_ledger ledger;
    struct virtio_net_tx_stats tx;
    net_ledger(&ledger);
    virtio_net_tx_stats(net_device(), 0, &tx);
    /* A fault that was asked for is not an invariant. */
    if (tx.policy == VIRTIO_NET_POLICY_THRESHOLD && (tx.unexpected_full != 0 || tx.requeues != 0)) {
        outcome_fail(&outcome, SLUICE_EXIT_INVARIANT,
                     "the ring was full after a positive room check %llu times, %llu requeues",
                     (unsigned long long)tx.unexpected_full, (unsigned long long)tx.requeues);
    } else if (!ledger.ok && net_tx_in_flight() == 0) {
        outcome_fail(&outcome, SLUICE_EXIT_INVARIANT,
                     "the ledger does not balance at rest (see sluice.ledger)");
    } else if (!ledger.ok) {
        /* The device keeps what it was given: its path is dead, and then the run has failed
         * already. */
        outcome_fail(&outcome, SLUICE_EXIT_INVALID,
                     "%u frames are still in the ring: the device does not take them",
                     net_tx_in_flight());
    }
}

static void run(void)
{
    if (config.test == CONFIG_TEST_SELFTEST) {
        selftest_run(&outcome);
        return;
    }
    if (config.trace_ring != 0 && (trace = ring_trace_new(TRACE_EVENTS)) == NULL) {
        outcome_fail(&outcome, SLUICE_EXIT_USAGE, "trace=ring: no memory for %u events",
                     TRACE_EVENTS);
        return;
    }
    if (!open_net()) {
        return;
    }
    print_net();
    if (config.test == CONFIG_TEST_SERVE) {
        serve_run(&outcome);
    } else {
        iperf3_client_run(&outcome);
    }
    come_to_rest();
    judge_invariants();
}

int sluice_main(const struct boot_info *info)
{
    char error[CONFIG_ERROR_BYTES];
    outcome.config = &config;
    if (config_parse(info->cmdline, &config, error)) {
        run();
    } else {
        outcome_fail(&outcome, SLUICE_EXIT_USAGE, "%s", error);
    }
    if (trace != NULL && outcome.net_is_open) {
        report_trace(trace);
    }
    report_summary(&outcome);
    report_json(&outcome);
    if (outcome.net_is_open) {
        net_close();
    }
    return (int)outcome.exit_code;
}
