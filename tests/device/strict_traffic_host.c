/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Frames into the driver, and the loop that a user of it runs.
 */
#include <stdlib.h>

#include "tests/device/seams.h"
#include "tests/device/strict_frames.h"
#include "tests/device/strict_host.h"

#define SLEEP_STEP_NS 20000u
#define BUDGET        64u
/* Without progress for so long, of model time or of turns, none will come. */
#define GIVE_UP_NS    3000000000ull
#define GIVE_UP_TURNS 20000u

static struct host_frame *free_frame(struct strict_host *host)
{
    for (unsigned i = 0; i < HOST_FRAMES; i++) {
        struct host_frame *frame = &host->frames[host->next_frame++ % HOST_FRAMES];
        if (!frame->out) {
            return frame;
        }
    }
    return NULL;
}

static enum virtio_net_result submit(struct strict_host *host, struct host_frame *frame,
                                     struct virtio_net_tx_frame tx, uint32_t len, uint16_t n_segs)
{
    struct virtio_net_seg segs[VIRTIO_NET_TX_MAX_PIECES];
    uint32_t at = 0;
    for (uint16_t i = 0; i < n_segs; i++) {
        const uint32_t n = i + 1 == n_segs ? len - at : len / n_segs;
        segs[i] = (struct virtio_net_seg){frame->memory + HOST_HEADROOM_BYTES + at, n};
        at += n;
    }
    tx.segs = segs;
    tx.n_segs = n_segs;
    tx.cookie = frame;
    frame->out = true;
    const enum virtio_net_result result = virtio_net_tx_add(host->net, 0, &tx);
    if (result == VIRTIO_NET_OK) {
        host->tx_sequence++;
        return result;
    }
    frame->out = false;
    free(frame->memory);
    frame->memory = NULL;
    if (result == VIRTIO_NET_AGAIN) {
        host->tx_again++;
    } else {
        host->tx_fatal++;
    }
    return result;
}

static struct host_frame *prepare(struct strict_host *host, uint32_t bytes)
{
    struct host_frame *frame = free_frame(host);
    if (frame == NULL || (frame->memory = malloc(HOST_HEADROOM_BYTES + bytes)) == NULL) {
        abort();
    }
    frame->sequence = host->tx_sequence;
    host->by_sequence[frame->sequence % HOST_FRAMES] = (uint16_t)(frame - host->frames);
    return frame;
}

enum virtio_net_result host_send(struct strict_host *host, uint32_t payload_bytes, uint16_t n_segs,
                                 bool headroom, bool partial)
{
    struct host_frame *frame = prepare(host, FRAMES_UDP_PAYLOAD_AT + payload_bytes);
    const uint32_t len =
        frames_udp(frame->memory + HOST_HEADROOM_BYTES, virtio_net_info(host->net)->mac,
                   payload_bytes, host->tx_sequence, partial);
    struct virtio_net_tx_frame tx = {
        .headroom_bytes = headroom ? HOST_HEADROOM_BYTES : 0,
        .csum_partial = partial,
        .csum_start = partial ? FRAMES_L4_AT : 0,
        .csum_offset = partial ? 6 : 0,
    };
    return submit(host, frame, tx, len, n_segs);
}

enum virtio_net_result host_send_tso(struct strict_host *host, uint32_t payload_bytes,
                                     uint16_t n_segs, uint16_t gso_size)
{
    struct host_frame *frame = prepare(host, FRAMES_TCP_PAYLOAD_AT + payload_bytes);
    const uint32_t len =
        frames_tcp(frame->memory + HOST_HEADROOM_BYTES, virtio_net_info(host->net)->mac,
                   payload_bytes, host->tx_sequence);
    struct virtio_net_tx_frame tx = {
        .headroom_bytes = HOST_HEADROOM_BYTES,
        .csum_partial = true,
        .csum_start = FRAMES_L4_AT,
        .csum_offset = 16,
        .gso = VIRTIO_NET_TX_TSO4,
        .gso_size_bytes = gso_size,
        .hdr_len_bytes = FRAMES_TCP_PAYLOAD_AT,
    };
    return submit(host, frame, tx, len, n_segs);
}

void host_receive(struct strict_host *host, uint32_t payload_bytes)
{
    static uint8_t frame[STRICT_NET_FRAME_BYTES];
    static const uint8_t peer_mac[6] = {0x52, 0x54, 0, 0xaa, 0xbb, 0xcc};
    const struct strict_net_hdr plain = {0};
    const uint32_t len = frames_udp(frame, peer_mac, payload_bytes, host->rx_sent, false);
    host->rx_sent++;
    strict_device_send(&host->dev, &plain, frame, len);
}

/* ---- the loop ---- */

/* As many steps as are left until then, if none of them could be told from no step. */
static void sleep_through(struct strict_host *host, uint64_t until_ns)
{
    const uint64_t now = seam_now_ns();
    if (now < until_ns && !host->every_step && strict_device_quiet(&host->dev)) {
        const uint64_t n = (until_ns - now + SLEEP_STEP_NS - 1) / SLEEP_STEP_NS;
        host->dev.steps += n;
        seam_advance_ns(n * SLEEP_STEP_NS);
    }
}

static void sleep_until_interrupt(struct strict_host *host)
{
    const uint64_t deadline = virtio_net_next_deadline_ns(host->net, seam_now_ns());
    const uint64_t lost = host->dev.interrupts_lost;
    host->idle = true;
    strict_device_driver_idles(&host->dev);
    while (!virtio_net_irq_pending(host->net) && seam_now_ns() < deadline) {
        if (host->rx_period_ns != 0 && seam_now_ns() >= host->rx_next_ns) {
            host->rx_next_ns = seam_now_ns() + host->rx_period_ns;
            host_receive(host, 100);
        }
        strict_device_step(&host->dev, seam_now_ns());
        if (virtio_net_irq_pending(host->net)) {
            break;
        }
        if (deadline == UINT64_MAX) {
            break;
        }
        seam_advance_ns(SLEEP_STEP_NS);
        sleep_through(host, host->rx_period_ns != 0 && host->rx_next_ns < deadline
                                ? host->rx_next_ns
                                : deadline);
    }
    host->interrupts_mended +=
        host->dev.interrupts_lost != lost && !virtio_net_irq_pending(host->net);
}

/* The device sleeps before work for want of one kick: a receive queue only if it ran dry. When the
 * kick that is given again gets lost too, the driver cannot tell that from a slow device. */
static bool kick_missed(const struct strict_device *dev, unsigned i)
{
    return dev->kicks_missing[i] == 1 && (i != 0 || dev->rx_dry);
}

/* The driver's poll, in which its safety timer runs. */
static bool poll_driver(struct strict_host *host)
{
    struct strict_device *dev = &host->dev;
    const bool missed[] = {kick_missed(dev, 0), kick_missed(dev, 1)};
    const bool did = virtio_net_poll(host->net, seam_now_ns());
    for (unsigned i = 0; i < 2; i++) {
        host->kicks_mended[i] += missed[i] && dev->kicks_missing[i] == 0;
    }
    return did;
}

/* Before each turn, in which a stop that the last frame caused may end, and after it. */
static void note_stop(struct strict_host *host)
{
    const uint64_t now = seam_now_ns();
    const uint64_t since = host->stopped_since_ns;
    if (since != 0 && now - since > host->longest_stop_ns) {
        host->longest_stop_ns = now - since;
    }
    if (!virtio_net_tx_stopped(host->net, 0)) {
        host->stopped_since_ns = 0;
    } else if (since == 0) {
        host->stopped_since_ns = now;
    }
}

bool host_turn(struct strict_host *host)
{
    note_stop(host);
    bool did = poll_driver(host);
    did |= virtio_net_tx_reclaim(host->net, 0, BUDGET) > 0;
    did |= virtio_net_rx_poll(host->net, 0, BUDGET) > 0;
    strict_watch_settle(host);
    host->idle = false;
    if (!did && virtio_net_arm(host->net, virtio_net_tx_stopped(host->net, 0))) {
        strict_watch_settle(host);
        sleep_until_interrupt(host);
        virtio_net_disarm(host->net);
    } else {
        strict_device_step(&host->dev, seam_now_ns());
    }
    note_stop(host);
    return host->idle;
}

struct progress {
    uint64_t mark, since_ns;
    unsigned turns;
};

/* False: nothing has moved for too long. */
static bool moves(const struct strict_host *host, struct progress *progress)
{
    const struct strict_device *dev = &host->dev;
    const uint64_t mark = (uint64_t)host->tx_sequence + host->tx_done + host->tx_aborted +
                          host->rx_got + host->rx_wrong + dev->rx_packets + dev->tx_frames +
                          dev->resets;
    if (mark != progress->mark) {
        *progress = (struct progress){.mark = mark, .since_ns = seam_now_ns()};
    }
    return progress->turns++ < GIVE_UP_TURNS && seam_now_ns() - progress->since_ns < GIVE_UP_NS;
}

bool host_settle(struct strict_host *host, unsigned max_turns)
{
    struct progress progress = {.since_ns = seam_now_ns()};
    for (unsigned i = 0; i < max_turns && moves(host, &progress); i++) {
        virtio_net_tx_flush(host->net, 0);
        const bool rest = virtio_net_tx_in_flight(host->net, 0) == 0 && host->dev.n_to_driver == 0;
        if (host_turn(host) && rest && !virtio_net_tx_stopped(host->net, 0)) {
            return true;
        }
    }
    return false;
}

static void send_some(struct strict_host *host, uint32_t until)
{
    const struct virtio_net_info *info = virtio_net_info(host->net);
    struct strict_device *dev = &host->dev;
    const uint32_t burst = 1 + (uint32_t)(strict_random(dev) % 24);
    const uint32_t most = info->mtu_bytes - 28u;
    for (uint32_t i = 0; i < burst && host->tx_sequence < until; i++) {
        if (virtio_net_tx_stopped(host->net, 0)) {
            break;
        }
        const uint64_t dice = strict_random(dev);
        if (info->can_tso && dice % 8 == 0) {
            const uint16_t gso = (uint16_t)(info->mtu_bytes < 1488 ? info->mtu_bytes - 40 : 1448);
            (void)host_send_tso(host, 3000 + (uint32_t)(dice >> 32) % 20000,
                                (uint16_t)(1 + dice / 8 % 17), gso);
        } else {
            const uint16_t n = info->tx_max_segs > 1 ? (uint16_t)(1 + dice / 16 % 2) : 1;
            (void)host_send(host, 18 + (uint32_t)(dice >> 32) % (most - 18 + 1), n,
                            n == 1 || dice / 64 % 2 == 0, info->can_csum && dice / 128 % 2 == 0);
        }
    }
    virtio_net_tx_flush(host->net, 0);
    strict_watch_settle(host);
}

bool host_traffic(struct strict_host *host, uint32_t n_tx, uint32_t n_rx)
{
    const uint32_t tx_until = host->tx_sequence + n_tx;
    const uint32_t rx_until = host->rx_sent + n_rx;
    const uint32_t most = virtio_net_info(host->net)->mtu_bytes - 28u;
    struct progress progress = {.since_ns = seam_now_ns()};
    while (host->tx_sequence < tx_until || host->rx_sent < rx_until) {
        if (host->tx_sequence < tx_until) {
            send_some(host, tx_until);
        }
        while (host->rx_sent < rx_until && strict_random(&host->dev) % 4 != 0) {
            host_receive(host, 4 + (uint32_t)(strict_random(&host->dev) % (most - 4)));
        }
        host_turn(host);
        if (!moves(host, &progress)) {
            return false;
        }
    }
    return host_settle(host, 100000);
}
