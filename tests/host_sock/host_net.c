/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Loop, timers and the parts of driver and machine that a report asks for.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "boot/boot_info.h"
#include "boot/clock.h"
#include "boot/machine.h"
#include "boot/panic.h"
#include "net/net.h"
#include "tests/host_sock/host_sock.h"

static struct net_timer *timers;
static struct virtio_net_info device_info = {.mtu_bytes = 65535, .link_up = true};

/* ---- machine ---- */

uint64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * CLOCK_NS_PER_S + (uint64_t)now.tv_nsec;
}

const char *clock_source(void)
{
    return "host";
}

uint64_t clock_tsc_hz(void)
{
    return CLOCK_NS_PER_S;
}

uint32_t machine_random32(void)
{
    return (uint32_t)random() ^ (uint32_t)clock_now_ns();
}

const char *machine_hypervisor(void)
{
    return "";
}

void panic(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    abort();
}

/* ---- net.h ---- */

bool net_open(const struct net_config *config, const char **why)
{
    (void)config;
    (void)why;
    host_sock_init();
    return true;
}

void net_close(void)
{
}

void net_timer_clear(struct net_timer *timer)
{
    for (struct net_timer **at = &timers; *at != NULL; at = &(*at)->next) {
        if (*at == timer) {
            *at = timer->next;
            break;
        }
    }
    timer->active = false;
}

void net_timer_set(struct net_timer *timer, uint64_t at_ns, void (*fire)(void *arg), void *arg)
{
    net_timer_clear(timer);
    *timer = (struct net_timer){
        .next = timers, .at_ns = at_ns, .fire = fire, .arg = arg, .active = true};
    timers = timer;
}

void net_timer_set_patient(struct net_timer *timer, uint64_t at_ns, void (*fire)(void *arg),
                           void *arg)
{
    net_timer_set(timer, at_ns, fire, arg);
}

uint64_t net_awake_ns(void)
{
    return clock_now_ns();
}

void net_defer(struct net_timer *timer, void (*fn)(void *arg), void *arg)
{
    net_timer_set(timer, clock_now_ns(), fn, arg);
}

/* Each timer that is due now, once; what they set anew waits for the next pass. */
static uint64_t run_timers(void)
{
    struct net_timer *due[1024];
    unsigned n = 0;
    uint64_t now_ns = clock_now_ns();
    uint64_t next_ns = now_ns + CLOCK_NS_PER_S;
    for (struct net_timer *timer = timers; timer != NULL; timer = timer->next) {
        if (timer->at_ns <= now_ns && n < 1024) {
            due[n++] = timer;
        }
    }
    for (unsigned i = 0; i < n; i++) {
        if (due[i]->active && due[i]->at_ns <= now_ns) {
            net_timer_clear(due[i]);
            due[i]->fire(due[i]->arg);
        }
    }
    for (struct net_timer *timer = timers; timer != NULL; timer = timer->next) {
        next_ns = timer->at_ns < next_ns ? timer->at_ns : next_ns;
    }
    return next_ns;
}

bool net_poll(void)
{
    host_sock_poll(0);
    run_timers();
    return true;
}

void net_run(const bool *done)
{
    while (!*(const volatile bool *)done) {
        host_sock_poll(run_timers());
    }
}

static struct net_timer soon;
static void (*soon_done)(void *arg, bool ok);
static void *soon_arg;
static bool soon_ok;

static void on_soon(void *arg)
{
    (void)arg;
    soon_done(soon_arg, soon_ok);
}

static void later(void (*done)(void *arg, bool ok), void *arg, bool ok)
{
    soon_done = done;
    soon_arg = arg;
    soon_ok = ok;
    net_defer(&soon, on_soon, NULL);
}

void net_resolve(uint32_t ip, uint64_t deadline_ns, void (*done)(void *arg, bool ok), void *arg)
{
    (void)ip;
    (void)deadline_ns;
    later(done, arg, getenv("HOST_SOCK_NO_ARP") == NULL);
}

void net_ping(uint32_t ip, uint64_t deadline_ns, void (*done)(void *arg, bool ok), void *arg)
{
    (void)ip;
    (void)deadline_ns;
    later(done, arg, getenv("HOST_SOCK_NO_ECHO") == NULL);
}

void net_on_link(void (*changed)(void *arg, bool up), void *arg)
{
    (void)changed;
    (void)arg;
}

void net_on_stall(void (*told)(const struct virtio_net_stall *stall))
{
    (void)told;
}

unsigned net_tx_in_flight(void)
{
    return 0;
}

uint32_t net_ip(void)
{
    return 0x7f000001;
}

uint16_t net_mtu(void)
{
    return device_info.mtu_bytes;
}

const uint8_t *net_mac(void)
{
    return device_info.mac;
}

struct virtio_net *net_device(void)
{
    return NULL;
}

void net_stats(struct net_stats *out)
{
    memset(out, 0, sizeof *out);
}

void net_ledger(struct net_ledger *out)
{
    *out = (struct net_ledger){.ok = true,
                               .submitted = host_sock_totals.datagrams,
                               .completed = host_sock_totals.datagrams,
                               .charged_bytes = host_sock_totals.charged_bytes,
                               .credited_bytes = host_sock_totals.charged_bytes};
}

/* ---- what a report asks of the driver ---- */

const char *const virtio_net_policy_names[VIRTIO_NET_POLICIES] = {"host", "", "", "", ""};
const char *const virtio_net_tx_drop_names[VIRTIO_NET_TX_DROPS] = {"", "", ""};
const char *const virtio_net_rx_drop_names[VIRTIO_NET_RX_DROPS] = {"", "", "", ""};
const char *const virtio_net_fault_names[VIRTIO_NET_FAULTS] = {""};

const struct virtio_net_info *virtio_net_info(const struct virtio_net *dev)
{
    (void)dev;
    return &device_info;
}

void virtio_net_tx_stats(const struct virtio_net *dev, unsigned pair,
                         struct virtio_net_tx_stats *out)
{
    (void)dev;
    (void)pair;
    memset(out, 0, sizeof *out);
}

void virtio_net_rx_stats(const struct virtio_net *dev, unsigned pair,
                         struct virtio_net_rx_stats *out)
{
    (void)dev;
    (void)pair;
    memset(out, 0, sizeof *out);
}

const uint64_t *virtio_net_device_faults(const struct virtio_net *dev)
{
    static const uint64_t none[VIRTIO_NET_FAULTS];
    (void)dev;
    return none;
}

uint64_t virtio_net_first_kick_ns(const struct virtio_net *dev)
{
    (void)dev;
    return 0;
}

unsigned virtio_net_tx_in_flight(const struct virtio_net *dev, unsigned pair)
{
    (void)dev;
    (void)pair;
    return 0;
}

int main(int argc, char **argv)
{
    static struct boot_info info;
    static char words[BOOT_CMDLINE_BYTES];
    size_t used = 0;
    for (int i = 1; i < argc; i++) {
        used += (size_t)snprintf(words + used, sizeof words - used, "%s ", argv[i]);
        if (used >= sizeof words) {
            fprintf(stderr, "sluice: error: more than %u bytes of words\n", BOOT_CMDLINE_BYTES - 1);
            return SLUICE_EXIT_USAGE;
        }
    }
    info.cmdline = words;
    return sluice_main(&info);
}
