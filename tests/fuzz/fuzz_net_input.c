/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a peer may send: the whole stack over a driver that has no device, fed with frames, segments
 * around the edges of a real connection, fragments, stops of the queue and time. Nothing may end us
 * but our own bugs.
 *
 *     bytes -> steps -> rx of the glue -> net/ + lwIP -> frames, taken and completed when a step
 * says so
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <sanitizer/asan_interface.h>

#include "net/net.h"
#include "net/sock.h"
#include "tests/device/driver_stub.h"
#include "tests/device/seams.h"
#include "tests/device/wire.h"

#define MS          1000000ull
#define GUEST_IP    0x0a000002u
#define PEER_IP     0x0a000001u
#define MAX_FLIGHT  256u
#define STOP_FLIGHT 200u

static struct {
    void *cookies[MAX_FLIGHT];
    unsigned n, rx_out;
    uint16_t guest_port; /* of the connection that the guest opened */
    uint32_t guest_seq, peer_seq;
    bool answer_syn, answer_arp, tunnel;
} fake;

/* ---- the driver ---- */

static void complete(unsigned n)
{
    while (n-- > 0 && fake.n > 0) {
        void *cookie = fake.cookies[0];
        memmove(fake.cookies, fake.cookies + 1, --fake.n * sizeof(fake.cookies[0]));
        stub.config.ops->tx_done(stub.config.ctx, 0, cookie, false);
    }
}

void virtio_net_close(struct virtio_net *dev)
{
    (void)dev;
    complete(MAX_FLIGHT);
}

uint16_t virtio_net_tx_cost_descs(const struct virtio_net *dev, uint16_t n_segs, bool in_headroom)
{
    (void)dev;
    (void)n_segs;
    (void)in_headroom;
    return 1;
}

enum virtio_net_result virtio_net_tx_add(struct virtio_net *dev, unsigned pair,
                                         const struct virtio_net_tx_frame *frame)
{
    const uint8_t *bytes = frame->segs[0].addr;
    (void)dev;
    (void)pair;
    if (fake.n == MAX_FLIGHT) {
        return VIRTIO_NET_AGAIN;
    }
    /* Every byte of the frame can be read: the sanitizer is asked, and looks where it cannot. */
    for (unsigned i = 0; i < frame->n_segs; i++) {
        void *seg = (void *)(uintptr_t)frame->segs[i].addr;
        const volatile uint8_t *bad = __asan_region_is_poisoned(seg, frame->segs[i].len_bytes);
        if (bad != NULL) {
            (void)*bad;
            abort();
        }
    }
    if (frame->segs[0].len_bytes >= 54 && bytes[12] == 8 && bytes[13] == 0 && bytes[23] == 6 &&
        (bytes[47] & 2) != 0) {
        fake.guest_port = (uint16_t)(bytes[34] << 8 | bytes[35]);
        fake.guest_seq = get32(bytes + 38) + 1;
        fake.answer_syn = (bytes[47] & 16) == 0;
    }
    fake.answer_arp |= bytes[12] == 8 && bytes[13] == 6 && bytes[21] == 1;
    fake.cookies[fake.n++] = frame->cookie;
    stub.stopped |= fake.n >= STOP_FLIGHT;
    return VIRTIO_NET_OK;
}

void virtio_net_tx_flush(struct virtio_net *dev, unsigned pair)
{
    (void)dev;
    (void)pair;
}

unsigned virtio_net_tx_reclaim(struct virtio_net *dev, unsigned pair, unsigned budget)
{
    (void)dev;
    (void)pair;
    (void)budget;
    return 0;
}

unsigned virtio_net_tx_in_flight(const struct virtio_net *dev, unsigned pair)
{
    (void)dev;
    (void)pair;
    return fake.n;
}

static void receive(const uint8_t *frame, uint32_t len, uint32_t piece, bool vouched);

unsigned virtio_net_rx_poll(struct virtio_net *dev, unsigned pair, unsigned budget)
{
    static const uint8_t reply[42] = {0x52, 0x54, 0, 0, 0,    1,    2, 0, 0, 0, 0,  1, 8, 6,
                                      0,    1,    8, 0, 6,    4,    0, 2, 2, 0, 0,  0, 0, 1,
                                      10,   0,    0, 1, 0x52, 0x54, 0, 0, 0, 1, 10, 0, 0, 2};
    (void)dev;
    (void)pair;
    (void)budget;
    if (!fake.answer_arp) {
        return 0;
    }
    fake.answer_arp = false;
    receive(reply, sizeof(reply), 2048, false);
    return 1;
}

void virtio_net_rx_return(struct virtio_net *dev, void *rx_handle)
{
    (void)dev;
    fake.rx_out--;
    free(rx_handle);
}

bool virtio_net_poll(struct virtio_net *dev, uint64_t now_ns)
{
    (void)dev;
    (void)now_ns;
    return false;
}

bool virtio_net_arm(struct virtio_net *dev, bool want_tx)
{
    (void)dev;
    (void)want_tx;
    return false;
}

void virtio_net_disarm(struct virtio_net *dev)
{
    (void)dev;
}

bool virtio_net_irq_pending(const struct virtio_net *dev)
{
    (void)dev;
    return false;
}

/* ---- the applications ---- */

static struct sock *stream, *listener, *datagrams, *served[4];
static unsigned n_served;
static uint8_t pattern[65536];

static void on_error(struct sock *sock, void *arg, enum sock_error error)
{
    (void)arg;
    if (error == SOCK_ERR_CLOSED) {
        return;
    }
    for (unsigned i = 0; i < n_served; i++) {
        if (served[i] == sock) {
            served[i] = served[--n_served];
            sock_close(sock, true);
            return;
        }
    }
}

static void on_received(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                        size_t total, uint32_t from_ip, uint16_t from_port)
{
    (void)sock;
    (void)arg;
    (void)data;
    (void)from_ip;
    (void)from_port;
    if (offset + len > total) {
        abort();
    }
}

static const struct sock_ops ops = {.received = on_received, .error = on_error};

static bool on_accept(void *arg, struct sock *fresh, const struct sock_ops **fresh_ops,
                      void **sock_arg)
{
    if (n_served == 4) {
        return false;
    }
    served[n_served++] = fresh;
    *fresh_ops = &ops;
    *sock_arg = arg;
    return true;
}

/* ---- frames ---- */

/* In pieces of a size that the input chooses, each in its own block of exactly its length. */
static void receive(const uint8_t *frame, uint32_t len, uint32_t piece, bool vouched)
{
    struct virtio_net_rx_piece pieces[VIRTIO_NET_RX_MAX_PIECES];
    struct virtio_net_rx_packet packet = {
        .pieces = pieces, .len_bytes = len, .csum_valid = vouched, .coalesced = len > 1514};
    piece = piece < 64 ? 64 : piece;
    piece = piece < len / VIRTIO_NET_RX_MAX_PIECES + 1 ? len / VIRTIO_NET_RX_MAX_PIECES + 1 : piece;
    for (uint32_t at = 0; at < len;) {
        uint32_t n = len - at < piece ? len - at : piece;
        uint8_t *block = malloc(n);
        memcpy(block, frame + at, n);
        pieces[packet.n_pieces++] = (struct virtio_net_rx_piece){block, block, n};
        fake.rx_out++;
        at += n;
    }
    stub.config.ops->rx(stub.config.ctx, 0, &packet);
}

static uint32_t ip_frame(uint8_t *frame, uint8_t protocol, uint32_t l4_len)
{
    static const uint8_t peer[6] = {2, 0, 0, 0, 0, 1};
    wire_ethernet(frame, stub.info.mac, peer, 0x0800);
    wire_ip(frame + IP_AT, protocol, l4_len, PEER_IP, GUEST_IP);
    return L4_AT + l4_len;
}

/* ---- steps ---- */

struct input {
    const uint8_t *at;
    size_t left;
};

static uint32_t take(struct input *in, unsigned bytes)
{
    uint32_t value = 0;
    while (bytes-- > 0) {
        value = value << 8 | (in->left > 0 ? *in->at : 0);
        in->at += in->left > 0;
        in->left -= in->left > 0;
    }
    return value;
}

static uint8_t frame[66000];

/* Into the tunnel: its header, and any bytes as the frame inside. */
static void step_inside(struct input *in)
{
    uint8_t *udp = frame + 34;
    uint32_t len = take(in, 1), flags = take(in, 1);
    memset(udp, 0, 16);
    put16(udp, 50000);
    put16(udp + 2, 4789);
    put16(udp + 4, 16 + len);
    udp[8] = (uint8_t)((flags & 1) != 0 ? flags : 8);
    udp[14] = (flags & 6) != 6 ? 42 : 43;
    for (uint32_t i = 0; i < len; i++) {
        udp[16 + i] = (uint8_t)take(in, 1);
    }
    udp[16] |= (flags & 8) == 0 ? 1 : 0; /* for everybody, mostly */
    receive(frame, ip_frame(frame, 17, 16 + len), (flags & 16) != 0 ? 64 : 2048, false);
}

static void step_raw(struct input *in)
{
    if (fake.tunnel) {
        step_inside(in);
        return;
    }
    uint32_t len = 15 + take(in, 1);
    for (uint32_t i = 0; i < len; i++) {
        frame[i] = (uint8_t)take(in, 1);
    }
    if ((frame[0] & 0x80) != 0) {
        memcpy(frame, stub.info.mac, 6);
    }
    receive(frame, len, 2048, (frame[1] & 1) != 0);
}

static void step_segment(struct input *in)
{
    uint8_t *tcp = frame + 34;
    uint32_t flags = take(in, 1), where = take(in, 1);
    int16_t seq = (int16_t)take(in, 2);
    int8_t ack = (int8_t)take(in, 1);
    uint32_t options = take(in, 1) % 11 * 4;
    uint32_t len = take(in, 1) << (where & 7);
    bool to_listener = (where & 0x40) != 0;
    memset(tcp, 0, 20);
    put16(tcp, to_listener ? 7000 + (where >> 4 & 3) : 5201);
    put16(tcp + 2, to_listener ? 80 : fake.guest_port);
    put32(tcp + 4, fake.peer_seq + (uint32_t)(int32_t)seq);
    put32(tcp + 8, fake.guest_seq + (uint32_t)((int32_t)ack * 100));
    tcp[12] = (uint8_t)((20 + options) / 4 << 4);
    tcp[13] = (uint8_t)flags;
    put16(tcp + 14, take(in, 2));
    for (uint32_t i = 0; i < options; i++) {
        tcp[20 + i] = (uint8_t)take(in, 1);
    }
    memcpy(tcp + 20 + options, pattern, len);
    receive(frame, ip_frame(frame, 6, 20 + options + len), take(in, 2), true);
    if ((flags & 0x20) != 0) {
        fake.peer_seq += len; /* later segments go on from here */
    }
}

static void step_fragment(struct input *in)
{
    uint32_t id = take(in, 1), offset = take(in, 2), len = take(in, 2) % 3000;
    memcpy(frame + 34, pattern, len);
    put16(frame + 34, 5000);
    put16(frame + 36, 9);
    put16(frame + 38, take(in, 2));
    uint32_t total = ip_frame(frame, (id & 1) != 0 ? 17 : 1, len);
    put16(frame + 18, id);
    put16(frame + 20, offset);
    wire_ip_sum(frame + IP_AT);
    receive(frame, total, 1024, (id & 2) != 0);
}

static void step_datagram(struct input *in)
{
    uint8_t *payload;
    bool fresh;
    size_t len = 1 + take(in, 2) % 4000;
    if (sock_udp_reserve(datagrams, len, &payload, &fresh) == SOCK_OK) {
        memset(payload, 1, len);
        (void)sock_udp_commit(datagrams);
    }
}

static void step_ring(struct input *in)
{
    uint32_t what = take(in, 1);
    complete(what & 63);
    if ((what & 0x40) != 0) {
        stub.stopped = true;
    } else if (stub.stopped && fake.n < STOP_FLIGHT / 2) {
        stub.stopped = false;
        stub.config.ops->tx_wake(stub.config.ctx, 0);
    }
}

static void answer_syn(void)
{
    static const uint8_t options[8] = {2, 4, 5, 180, 3, 3, 7, 1};
    uint8_t *tcp = frame + 34;
    fake.answer_syn = false;
    memset(tcp, 0, 20);
    put16(tcp, 5201);
    put16(tcp + 2, fake.guest_port);
    put32(tcp + 4, fake.peer_seq++);
    put32(tcp + 8, fake.guest_seq);
    tcp[12] = 0x70;
    tcp[13] = 0x12;
    put16(tcp + 14, 0xffff);
    memcpy(tcp + 20, options, 8);
    receive(frame, ip_frame(frame, 6, 28), 2048, true);
}

static void step(struct input *in)
{
    switch (take(in, 1) % 8) {
    case 0:
        step_raw(in);
        break;
    case 1:
    case 2:
    case 3:
        step_segment(in);
        break;
    case 4:
        step_fragment(in);
        break;
    case 5:
        step_datagram(in);
        break;
    case 6:
        step_ring(in);
        break;
    default:
        seam_advance_ns(take(in, 1) * (20 * MS));
        if (stream != NULL) {
            (void)sock_tcp_write(stream, pattern, take(in, 2) % 16384, (in->left & 1) != 0);
        }
        break;
    }
    net_poll();
    if (fake.answer_syn) {
        answer_syn();
        net_poll();
    }
}

static void open_all(bool tunnel)
{
    struct net_config config = {
        .ip = GUEST_IP,
        .netmask = 0xffffff00u,
        .vxlan =
            {
                .on = tunnel,
                .vni = 42,
                .remote_ip = PEER_IP,
                .ip = 0x0a020002u,
                .netmask = 0xffffff00u,
                .port = 4789,
            },
    };
    const char *why = "";
    memset(&fake, 0, sizeof(fake));
    stub.info.can_tso = true;
    stub.info.max_datagram_bytes = 65507;
    stub.info.tx_max_segs = 18;
    stub.pool_bufs = 64;
    stub.stopped = false;
    n_served = 0;
    fake.tunnel = tunnel;
    if (!net_open(&config, &why)) {
        abort();
    }
    fake.peer_seq = 1000;
    stream = sock_tcp_connect(&ops, NULL, PEER_IP, 5201, 5000 * MS, 0);
    listener = sock_tcp_listen(80, on_accept, NULL);
    datagrams = sock_udp_open(&ops, NULL, 65536);
    (void)sock_udp_bind(datagrams, 9);
    (void)sock_udp_connect(datagrams, PEER_IP, 5000);
    net_poll();
    net_poll();
    if (fake.answer_syn) {
        answer_syn();
    }
    net_poll();
}

static void close_all(void)
{
    struct net_ledger ledger;
    sock_close(stream, true);
    sock_close(listener, true);
    sock_close(datagrams, true);
    while (n_served > 0) {
        sock_close(served[--n_served], true);
    }
    complete(MAX_FLIGHT);
    for (unsigned i = 0; i < 20; i++) {
        /* What waits for fragments or an address is given up. */
        seam_advance_ns(1000 * MS);
        net_poll();
        complete(MAX_FLIGHT);
    }
    net_ledger(&ledger);
    if (!ledger.ok) {
        abort();
    }
    net_close();
    if (fake.rx_out != 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    open_all((take(&in, 1) & 1) != 0);
    while (in.left > 0) {
        step(&in);
    }
    close_all();
    return 0;
}
