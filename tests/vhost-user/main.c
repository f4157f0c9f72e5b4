/* SPDX-License-Identifier: BSD-2-Clause
 *
 * strict-backend: the strict device behind QEMU's virtio-net-pci. QEMU fronts registers and
 * configuration space; rings, headers, kicks and interrupts are this program's.
 *
 *     guest driver <-> QEMU (virtio-net-pci)          registers, configuration space
 *          |             | vhost-user socket: memory, rings, eventfds
 *          +-- rings --- strict-backend --- peer of its own, or a tap
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tests/vhost-user/options.h"
#include "tests/vhost-user/peer.h"
#include "tests/vhost-user/vhost_user.h"

#define NS_PER_S        1000000000ull
#define TICK_MS         10
#define BUSY_TICK_MS    1
#define KICK_OVERDUE_NS 500000000ull /* an emulated processor may be away for long */
/* A kick that comes only with the driver's safety timer. One or two may be the processor's doing,
 * since it can be taken away between the index and the kick; not so many. */
#define KICK_LATE_NS     50000000ull
#define KICK_LATE_MIN    5u
#define KICK_LATE_ONE_IN 20u
#define STALL_NS         3000000000ull
#define TAP_QUEUE_FRAMES 256u
#define ACCEPT_MS        30000

struct backend {
    struct vhost_backend vhost;
    struct strict_device device;
    struct peer peer;
    int tap;
    uint64_t tap_in, tap_out, tap_full;
    uint64_t longest_kick_ns, kicks[VHOST_QUEUES], late_kicks[VHOST_QUEUES];
};

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* ---- frames ---- */

static void on_sink(void *ctx, const struct strict_net_hdr *hdr, const uint8_t *frame, uint32_t len)
{
    struct vhost_backend *vhost = ctx;
    struct backend *b = (struct backend *)(void *)vhost;
    (void)hdr;
    if (b->tap < 0) {
        peer_frame(&b->peer, frame, len);
    }
}

static void on_wire(void *ctx, const uint8_t *hdr_and_frame, uint32_t len)
{
    struct vhost_backend *vhost = ctx;
    struct backend *b = (struct backend *)(void *)vhost;
    if (b->tap < 0) {
        return;
    }
    if (write(b->tap, hdr_and_frame, len) == (ssize_t)len) {
        b->tap_out++;
    } else {
        b->tap_full++;
    }
}

static void read_tap(struct backend *b)
{
    static uint8_t buffer[STRICT_NET_HDR_BYTES + STRICT_NET_FRAME_BYTES];
    while (b->device.n_to_driver < TAP_QUEUE_FRAMES) {
        const ssize_t n = read(b->tap, buffer, sizeof(buffer));
        if (n <= (ssize_t)STRICT_NET_HDR_BYTES) {
            return;
        }
        struct strict_net_hdr hdr;
        memcpy(&hdr, buffer, sizeof(hdr));
        strict_device_send(&b->device, &hdr, buffer + STRICT_NET_HDR_BYTES,
                           (uint32_t)n - STRICT_NET_HDR_BYTES);
        b->tap_in++;
    }
}

/* ---- kicks ---- */

static void take_kick(struct backend *b, unsigned index)
{
    struct strict_queue *q = &b->device.queue[index];
    uint64_t count;
    if (read(b->vhost.queue[index].kick_fd, &count, sizeof(count)) != (ssize_t)sizeof(count) ||
        !b->vhost.queue[index].started) {
        return;
    }
    strict_queue_look(q, b->device.now_ns);
    if (q->kick_owed) {
        const uint64_t took_ns = b->device.now_ns - q->kick_owed_ns;
        b->longest_kick_ns = took_ns > b->longest_kick_ns ? took_ns : b->longest_kick_ns;
        b->late_kicks[index] += took_ns > KICK_LATE_NS;
    }
    b->kicks[index]++;
    strict_queue_kicked(q);
    if (strict_once_in(&b->device, b->device.fault.lose_kicks, b->device.n_kicks++)) {
        b->device.kicks_lost++;
        return;
    }
    b->device.kicked[index] = true;
}

/* What the driver exposed and never announced, although it was asked to. */
static void look_for_lost_kicks(struct backend *b)
{
    for (unsigned i = 0; i < VHOST_QUEUES; i++) {
        struct strict_queue *q = &b->device.queue[i];
        if (!b->vhost.queue[i].started) {
            continue;
        }
        strict_queue_look(q, b->device.now_ns);
        if (q->kick_owed && b->device.now_ns - q->kick_owed_ns > KICK_OVERDUE_NS) {
            strict_queue_kick_overdue(q, "within 500 ms");
            b->device.kicked[i] = true;
        }
    }
}

/* ---- the loop ---- */

static bool has_unfinished(const struct backend *b)
{
    const struct strict_device *dev = &b->device;
    return dev->opt.pace == STRICT_LAZY || dev->opt.polls || dev->unfinished[0] ||
           dev->unfinished[1] || dev->kicked[0] || dev->kicked[1] || dev->n_late > 0;
}

static bool turn(struct backend *b)
{
    enum { SOCKET, KICK0, KICK1, TAP, N_FDS };
    const bool tap_wanted = b->tap >= 0 && b->device.n_to_driver < TAP_QUEUE_FRAMES;
    struct pollfd fds[N_FDS] = {
        [SOCKET] = {.fd = b->vhost.socket, .events = POLLIN},
        [KICK0] = {.fd = b->vhost.queue[0].kick_fd, .events = POLLIN},
        [KICK1] = {.fd = b->vhost.queue[1].kick_fd, .events = POLLIN},
        [TAP] = {.fd = tap_wanted ? b->tap : -1, .events = POLLIN},
    };
    if (poll(fds, N_FDS, has_unfinished(b) ? BUSY_TICK_MS : TICK_MS) < 0 && errno != EINTR) {
        return false;
    }
    b->device.now_ns = now_ns();
    if (fds[SOCKET].revents != 0 && !vhost_message(&b->vhost)) {
        return false;
    }
    if (b->vhost.features_changed && b->tap >= 0) {
        b->vhost.features_changed = false;
        (void)tap_set_offloads(b->tap, b->vhost.features);
    }
    for (unsigned i = 0; i < VHOST_QUEUES; i++) {
        if ((fds[KICK0 + i].revents & POLLIN) != 0) {
            take_kick(b, i);
        }
    }
    if (b->tap >= 0) {
        read_tap(b);
    } else if (b->vhost.queue[0].started) {
        peer_step(&b->peer, b->device.now_ns);
    }
    strict_device_step(&b->device, b->device.now_ns);
    look_for_lost_kicks(b);
    return true;
}

static void print_queue(const struct strict_queue *q, const char *name, FILE *out)
{
    fprintf(out,
            ",\"%s\":{\"size_descs\":%u,\"exposed\":%llu,\"completed\":%llu,\"kicks\":%llu,"
            "\"lost_kicks\":%llu,\"interrupts_wanted\":%llu,\"interrupts_suppressed\":%llu}",
            name, q->size_descs, (unsigned long long)q->exposed, (unsigned long long)q->completed,
            (unsigned long long)q->kicks, (unsigned long long)q->lost_kicks,
            (unsigned long long)q->interrupts_wanted, (unsigned long long)q->interrupts_suppressed);
}

static void print_report(const struct backend *b, const char *ended, FILE *out)
{
    const struct strict_device *dev = &b->device;
    const struct peer *p = &b->peer;
    fprintf(out, "{\"ended\":\"%s\",\"violations_total\":%llu,", ended,
            (unsigned long long)dev->report.violations);
    strict_report_json(&dev->report, out);
    fprintf(out, ",\"features\":\"%#llx\",\"starts\":%llu,\"faults_done\":%llu",
            (unsigned long long)b->vhost.features, (unsigned long long)b->vhost.starts,
            (unsigned long long)dev->faults_done);
    fprintf(
        out,
        ",\"tx_frames\":%llu,\"tx_bytes\":%llu,\"tx_gso\":%llu,\"tx_csum\":%llu,"
        "\"rx_packets\":%llu,\"rx_bytes\":%llu,\"rx_buffers\":%llu,\"interrupts\":%llu,"
        "\"interrupts_lost\":%llu,\"kicks_lost\":%llu,\"longest_kick_ns\":%llu,\"late_kicks\":%llu",
        (unsigned long long)dev->tx_frames, (unsigned long long)dev->tx_bytes,
        (unsigned long long)dev->net.tx_gso, (unsigned long long)dev->net.tx_csum,
        (unsigned long long)dev->rx_packets, (unsigned long long)dev->rx_bytes,
        (unsigned long long)dev->rx_buffers, (unsigned long long)dev->interrupts,
        (unsigned long long)dev->interrupts_lost, (unsigned long long)dev->kicks_lost,
        (unsigned long long)b->longest_kick_ns,
        (unsigned long long)b->late_kicks[0] + b->late_kicks[1]);
    print_queue(&dev->queue[0], "rx", out);
    print_queue(&dev->queue[1], "tx", out);
    fprintf(out,
            ",\"peer\":{\"sent\":%u,\"echoed\":%u,\"lost\":%u,\"wrong\":%u,\"duplicate\":%u,"
            "\"arp_answered\":%llu,\"ping_answered\":%llu},"
            "\"tap\":{\"in\":%llu,\"out\":%llu,\"full\":%llu}}\n",
            p->sent, p->echoed, p->lost, p->wrong, p->duplicate,
            (unsigned long long)p->arp_answered, (unsigned long long)p->ping_answered,
            (unsigned long long)b->tap_in, (unsigned long long)b->tap_out,
            (unsigned long long)b->tap_full);
}

static int listen_and_accept(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path)) {
        fprintf(stderr, "strict-backend: %s is too long for a socket\n", path);
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path));
    unlink(path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(fd, 1) < 0) {
        perror(path);
        return -1;
    }
    fprintf(stderr, "strict-backend: listening\n");
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    const int accepted = poll(&wait, 1, ACCEPT_MS) == 1 ? accept(fd, NULL, NULL) : -1;
    if (accepted < 0) {
        fprintf(stderr, "strict-backend: nobody came\n");
    }
    close(fd);
    return accepted;
}

static void set_up(struct backend *b, const struct backend_options *opt)
{
    strict_device_init(&b->device, &opt->device);
    b->device.status = 0;
    b->device.fault = opt->faults;
    b->device.report.loud = true;
    b->device.net.check_source_mac = opt->mac_given;
    memcpy(b->device.net.mac, opt->mac, 6);
    b->device.memory = (struct strict_memory){.at = vhost_memory, .ctx = &b->vhost};
    b->device.queue_interrupt = vhost_interrupt;
    b->device.sink = on_sink;
    b->device.wire = on_wire;
    b->device.ctx = &b->vhost;
    b->vhost.dev = &b->device;
    for (unsigned i = 0; i < VHOST_QUEUES; i++) {
        b->vhost.queue[i].kick_fd = b->vhost.queue[i].call_fd = -1;
    }
    b->peer = (struct peer){.dev = &b->device,
                            .mac = {0x52, 0x54, 0, 0x77, 0, 1},
                            .count = opt->echo_count,
                            .size_bytes = opt->echo_bytes,
                            .window = opt->echo_window};
    memcpy(b->peer.ip, opt->ip, 4);
    memcpy(b->peer.guest_ip, opt->guest_ip, 4);
    b->tap = -1;
}

/* Over the whole run: kicks that were not given, and made up for by a timer. */
static void judge_late_kicks(struct backend *b)
{
    for (unsigned i = 0; i < VHOST_QUEUES && b->device.fault.lose_kicks == 0; i++) {
        STRICT_CHECK(&b->device.report,
                     strict_has(b->vhost.features, F_EVENT_IDX) ? SPL_DRV_ANS_06 : SPL_DRV_ANS_04,
                     b->late_kicks[i] < KICK_LATE_MIN ||
                         b->late_kicks[i] * KICK_LATE_ONE_IN < b->kicks[i],
                     "queue %u: %llu of %llu kicks came more than 50 ms late", i,
                     (unsigned long long)b->late_kicks[i], (unsigned long long)b->kicks[i]);
    }
}

static const char *run(struct backend *b, const struct backend_options *opt)
{
    const uint64_t start = now_ns();
    while (!stopped) {
        if (!turn(b)) {
            return "disconnected";
        }
        if (peer_finished(&b->peer)) {
            return "finished";
        }
        if (now_ns() - start > opt->seconds * NS_PER_S) {
            return "time over";
        }
    }
    return "stopped";
}

int main(int argc, char *argv[])
{
    static struct backend b;
    struct backend_options opt;
    if (!options_parse(&opt, argc, argv)) {
        options_usage(stderr);
        return 1;
    }
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    set_up(&b, &opt);
    if (opt.tap != NULL && (b.tap = tap_open(opt.tap)) < 0) {
        perror(opt.tap);
        return 2;
    }
    if ((b.vhost.socket = listen_and_accept(opt.socket)) < 0) {
        return 2;
    }
    const char *ended = run(&b, &opt);
    judge_late_kicks(&b);
    FILE *out = opt.report != NULL ? fopen(opt.report, "w") : stdout;
    if (out == NULL) {
        perror(opt.report);
        return 2;
    }
    print_report(&b, ended, out);
    bool written = ferror(out) == 0;
    if (fclose(out) != 0 || !written) {
        perror(opt.report != NULL ? opt.report : "stdout");
        return 2;
    }
    return b.device.report.violations == 0 ? 0 : 5;
}
