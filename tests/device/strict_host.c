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

/* Pages that were found mapped stay so for all that a test cares. */
static bool is_mapped(const uint8_t *ptr)
{
    static uintptr_t known[4096];
    const uintptr_t page = (uintptr_t)ptr >> 12;
    unsigned char in_core;
    if (known[page % 4096] == page) {
        return true;
    }
    if (mincore((void *)(page << 12), 1, &in_core) != 0) {
        return false;
    }
    known[page % 4096] = page;
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
        const struct host_frame *sent = &host->frames[host->by_sequence[sequence % HOST_FRAMES]];
        const bool out = sent->out && sent->sequence == sequence;
        right = out && frames_payload_right(frame + at, len_bytes - at, sequence);
    }
    if (right) {
        host->tx_seen++;
    } else {
        host->tx_wrong++;
    }
}

/* ---- what the driver tells ---- */

static void on_tx_done(void *ctx, unsigned pair, void *cookie, bool aborted)
{
    struct strict_host *host = ctx;
    struct host_frame *frame = cookie;
    (void)pair;
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

static void on_tx_wake(void *ctx, unsigned pair)
{
    struct strict_host *host = ctx;
    (void)pair;
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

static void on_rx(void *ctx, unsigned pair, const struct virtio_net_rx_packet *packet)
{
    struct strict_host *host = ctx;
    static uint8_t whole[STRICT_NET_FRAME_BYTES];
    uint32_t at = 0;
    (void)pair;
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
