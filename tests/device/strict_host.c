/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Seams bound to the strict device, and a user of the driver that checks what comes out at either
 * end.
 */
#include "tests/device/strict_host.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/device/seams.h"
#include "tests/device/strict_frames.h"

#define CONFIG_ADDRESS_PORT 0xcf8u
#define CONFIG_DATA_PORT    0xcfcu
#define SLOT_OF_DEVICE      3u
#define SLEEP_STEP_NS       20000u
#define BUDGET              64u

/* ---- seams ---- */

static struct strict_host *host_of(void *ctx)
{
    struct strict_host *host = ctx;
    host->now_ns = seam_now_ns();
    host->dev.now_ns = host->now_ns;
    return host;
}

static void on_shared(void *ctx, const volatile void *addr, unsigned bytes, bool is_store)
{
    strict_watch_shared(host_of(ctx), addr, bytes, is_store);
}

static void on_barrier(void *ctx, bool full)
{
    strict_watch_barrier(host_of(ctx), full);
}

static uint32_t on_mmio_read(void *ctx, uint64_t phys, unsigned bytes)
{
    struct strict_host *host = host_of(ctx);
    strict_watch_settle(host);
    return strict_mmio_hit(phys) ? strict_mmio_read(&host->dev, phys, bytes) : 0xffffffffu;
}

static void on_mmio_write(void *ctx, uint64_t phys, unsigned bytes, uint32_t value)
{
    struct strict_host *host = host_of(ctx);
    strict_watch_settle(host);
    if (strict_mmio_hit(phys)) {
        strict_mmio_write(&host->dev, phys, bytes, value);
    }
}

static void on_mapped(void *ctx, uint64_t phys, uint64_t len_bytes)
{
    strict_device_mapped(&host_of(ctx)->dev, phys, len_bytes);
}

static bool addresses_device(const struct strict_host *host)
{
    return (host->config_address & 0x80ffff00u) == (0x80000000u | SLOT_OF_DEVICE << 11);
}

static uint32_t on_io_in(void *ctx, uint16_t port, unsigned bytes)
{
    struct strict_host *host = host_of(ctx);
    if (port < CONFIG_DATA_PORT || port > CONFIG_DATA_PORT + 3 || !addresses_device(host)) {
        return 0xffffffffu;
    }
    return strict_pci_read(&host->dev, (host->config_address & 0xfcu) + (port & 3u), bytes);
}

static void on_io_out(void *ctx, uint16_t port, unsigned bytes, uint32_t value)
{
    struct strict_host *host = host_of(ctx);
    if (port == CONFIG_ADDRESS_PORT) {
        host->config_address = value;
    } else if (port >= CONFIG_DATA_PORT && port <= CONFIG_DATA_PORT + 3 && addresses_device(host)) {
        strict_pci_write(&host->dev, (host->config_address & 0xfcu) + (port & 3u), bytes, value);
    }
}

static bool is_mapped(const uint8_t *ptr)
{
    static uintptr_t last; /* most accesses stay within a page */
    const uintptr_t page = (uintptr_t)ptr & ~(uintptr_t)4095;
    unsigned char in_core;
    if (page != last && mincore((void *)page, 1, &in_core) != 0) {
        return false;
    }
    last = page;
    return true;
}

/* An address that was never turned into the device's lands where nothing is. */
static uint8_t *on_memory(void *ctx, uint64_t addr, uint64_t len_bytes)
{
    uint8_t *ptr = (uint8_t *)(uintptr_t)(addr - SEAM_DMA_OFFSET);
    (void)ctx;
    if (addr < SEAM_DMA_OFFSET || !is_mapped(ptr) ||
        (len_bytes > 0 && !is_mapped(ptr + len_bytes - 1))) {
        return NULL;
    }
    return seam_ram(addr, len_bytes);
}

static void on_interrupt(void *ctx, uint64_t msg_addr, uint32_t msg_data)
{
    (void)ctx;
    (void)seam_interrupt(msg_addr, msg_data);
}

/* ---- what comes out of the device ---- */

static void on_sink(void *ctx, const struct strict_net_hdr *hdr, const uint8_t *frame,
                    uint32_t len_bytes)
{
    struct strict_host *host = ctx;
    const uint32_t at = hdr->gso_type == 0 ? FRAMES_UDP_PAYLOAD_AT : FRAMES_TCP_PAYLOAD_AT;
    bool right = len_bytes >= at + 4;
    if (right) {
        const uint32_t sequence = frames_read32(frame + at);
        bool out = false;
        for (unsigned i = 0; i < HOST_FRAMES; i++) {
            out |= host->frames[i].out && host->frames[i].sequence == sequence;
        }
        right = out && frames_payload_right(frame + at, len_bytes - at, sequence);
    }
    if (right) {
        host->tx_seen++;
    } else {
        host->tx_wrong++;
    }
}

/* ---- what the driver tells ---- */

static void on_tx_done(void *ctx, unsigned queue, void *cookie, bool aborted)
{
    struct strict_host *host = ctx;
    struct host_frame *frame = cookie;
    (void)queue;
    if (frame < host->frames || frame >= host->frames + HOST_FRAMES || !frame->out) {
        abort(); /* a cookie that was never given, or given back before */
    }
    frame->out = false;
    free(frame->memory);
    frame->memory = NULL;
    if (aborted) {
        host->tx_aborted++;
        strict_device_buffer_withdrawn(&host->dev);
    } else {
        host->tx_done++;
    }
}

static void on_tx_wake(void *ctx, unsigned queue)
{
    struct strict_host *host = ctx;
    (void)queue;
    host->tx_wakes++;
    if (virtio_net_tx_stopped(host->net, 0)) {
        abort(); /* the wake promises room */
    }
}

static void give_back(struct strict_host *host, const struct virtio_net_rx_packet *packet)
{
    for (unsigned i = 0; i < packet->n_pieces; i++) {
        if (host->hold_rx && host->n_held < sizeof(host->held) / sizeof(host->held[0])) {
            host->held[host->n_held++] = packet->pieces[i].buf;
        } else {
            virtio_net_rx_return(host->net, packet->pieces[i].buf);
        }
    }
}

static void on_rx(void *ctx, unsigned queue, const struct virtio_net_rx_packet *packet)
{
    struct strict_host *host = ctx;
    static uint8_t whole[STRICT_NET_FRAME_BYTES];
    uint32_t at = 0;
    (void)queue;
    for (unsigned i = 0; i < packet->n_pieces; i++) {
        if (at + packet->pieces[i].len_bytes <= sizeof(whole)) {
            memcpy(whole + at, packet->pieces[i].addr, packet->pieces[i].len_bytes);
        }
        at += packet->pieces[i].len_bytes;
    }
    host->rx_partial += packet->csum_partial;
    host->rx_valid += packet->csum_valid;
    host->rx_gso += packet->coalesced;
    const bool right =
        at == packet->len_bytes && at >= FRAMES_UDP_PAYLOAD_AT + 4 && at <= sizeof(whole) &&
        frames_payload_right(whole + FRAMES_UDP_PAYLOAD_AT, at - FRAMES_UDP_PAYLOAD_AT,
                             frames_read32(whole + FRAMES_UDP_PAYLOAD_AT)) &&
        strict_sum(whole + FRAMES_IP_AT, 20, 0) == 0xffff;
    if (right &&
        (!host->check_rx_order || frames_read32(whole + FRAMES_UDP_PAYLOAD_AT) == host->rx_got)) {
        host->rx_got++;
    } else {
        host->rx_wrong++;
    }
    give_back(host, packet);
}

static void on_link(void *ctx, bool up)
{
    struct strict_host *host = ctx;
    host->link_changes++;
    host->link_up = up;
}

static const struct virtio_net_ops ops = {
    .tx_done = on_tx_done,
    .tx_wake = on_tx_wake,
    .rx = on_rx,
    .link = on_link,
};

/* ---- life ---- */

void host_init(struct strict_host *host, const struct strict_options *opt)
{
    memset(host, 0, sizeof(*host));
    seam_reset();
    strict_device_init(&host->dev, opt);
    host->dev.memory = (struct strict_memory){.at = on_memory, .ctx = host};
    host->dev.interrupt = on_interrupt;
    host->dev.sink = on_sink;
    host->dev.ctx = host;
    host->check_rx_order = true;
    seam_hook(&(struct seam_hooks){
        .ctx = host,
        .shared = on_shared,
        .barrier = on_barrier,
        .mmio_read = on_mmio_read,
        .mmio_write = on_mmio_write,
        .mapped = on_mapped,
        .io_in = on_io_in,
        .io_out = on_io_out,
    });
}

void host_fini(struct strict_host *host)
{
    seam_hook(&(struct seam_hooks){0});
    strict_device_fini(&host->dev);
    for (unsigned i = 0; i < HOST_FRAMES; i++) {
        free(host->frames[i].memory);
    }
    seam_reset();
}

void host_config_default(struct strict_host *host, struct virtio_net_config *config)
{
    *config = (struct virtio_net_config){
        .ops = &ops,
        .ctx = host,
        .max_datagram_bytes = 1472,
    };
}

bool host_open(struct strict_host *host, const struct virtio_net_config *config)
{
    struct virtio_net_config own;
    if (config == NULL) {
        host_config_default(host, &own);
        config = &own;
    }
    host->net = virtio_net_open(0, config, &host->why);
    strict_watch_settle(host);
    if (host->net != NULL) {
        memcpy(host->dev.net.local_mac, virtio_net_info(host->net)->mac, 6);
    }
    return host->net != NULL;
}

void host_close(struct strict_host *host)
{
    while (host->n_held > 0) {
        virtio_net_rx_return(host->net, host->held[--host->n_held]);
    }
    virtio_net_close(host->net);
    strict_watch_settle(host);
    host->net = NULL;
}

/* ---- traffic ---- */

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
                                     struct virtio_net_tx_frame *tx, uint32_t len, uint16_t n_segs)
{
    struct virtio_net_seg segs[VIRTIO_NET_TX_MAX_PIECES];
    uint32_t at = 0;
    for (uint16_t i = 0; i < n_segs; i++) {
        const uint32_t n = i + 1 == n_segs ? len - at : len / n_segs;
        segs[i] = (struct virtio_net_seg){frame->memory + HOST_HEADROOM_BYTES + at, n};
        at += n;
    }
    tx->segs = segs;
    tx->n_segs = n_segs;
    tx->cookie = frame;
    frame->out = true;
    const enum virtio_net_result result = virtio_net_tx_add(host->net, 0, tx);
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
    return submit(host, frame, &tx, len, n_segs);
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
    return submit(host, frame, &tx, len, n_segs);
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

static void sleep_until_interrupt(struct strict_host *host)
{
    const uint64_t deadline = virtio_net_next_deadline_ns(host->net, seam_now_ns());
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
    }
}

static void note_stop(struct strict_host *host)
{
    if (!virtio_net_tx_stopped(host->net, 0)) {
        host->stopped_since_ns = 0;
        return;
    }
    const uint64_t now = seam_now_ns();
    if (host->stopped_since_ns == 0) {
        host->stopped_since_ns = now;
    } else if (now - host->stopped_since_ns > host->longest_stop_ns) {
        host->longest_stop_ns = now - host->stopped_since_ns;
    }
}

bool host_turn(struct strict_host *host)
{
    bool did = virtio_net_poll(host->net, seam_now_ns());
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

bool host_settle(struct strict_host *host, unsigned max_turns)
{
    for (unsigned i = 0; i < max_turns; i++) {
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
    unsigned turns = 0;
    while (host->tx_sequence < tx_until || host->rx_sent < rx_until) {
        if (host->tx_sequence < tx_until) {
            send_some(host, tx_until);
        }
        while (host->rx_sent < rx_until && strict_random(&host->dev) % 4 != 0) {
            host_receive(host, 4 + (uint32_t)(strict_random(&host->dev) % (most - 4)));
        }
        host_turn(host);
        if (++turns > 64 * (n_tx + n_rx) + 100000) {
            return false;
        }
    }
    return host_settle(host, 100000);
}
