/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The network that a guest wakes up in: a DHCP server, neighbours and peers that send whatever the
 * input says, into the whole stack on the model device.
 *
 *     net_open, echo over UDP and TCP  <->  [rings]  <->  model device  <->  peer <- input
 */
#include <stdio.h>
#include <stdlib.h>

#include "net_internal.h"
#include "netmem.h"

#include "lwip/timeouts.h"
#include "net/sock.h"
#include "tests/device/model_device.h"
#include "tests/device/seams.h"
#include "tests/fuzz/net_peer.h"

#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))

#define MS               1000000ull
#define DHCP_DEADLINE_NS (8000 * MS)
#define SNDBUF_BYTES     65536u
#define MAX_SERVED       16u
#define FRAMES_EACH      8u         /* that answer one of the guest at most */
#define SETTLE_NS        (250 * MS) /* no timer of the stack runs more often */
#define SETTLE_STEPS     32u        /* longer than a fragment is kept */
#define RX_DESCS         16u        /* few buffers: each input makes its pool anew */

static struct model_device device;
static struct input in;
static uint64_t time_ns;
static uint8_t frame[FRAME_MAX_BYTES];
static struct sock *served[MAX_SERVED];

static _Noreturn void fail(int line, const char *what)
{
    fprintf(stderr, "fuzz_dhcp.c:%d: does not hold: %s\n", line, what);
    abort();
}

/* ---- the peer ---- */

static void send_one(void)
{
    uint8_t kind = in8(&in);
    struct virtio_net_hdr hdr = {.flags = (kind & 0x80) != 0 ? 0 : VIRTIO_NET_HDR_F_DATA_VALID};
    uint32_t len = peer_frame(&in, kind & 0x7fu, frame);

    (void)model_receive(&device, hdr, frame, len);
}

static void on_frame(void *ctx, const struct virtio_net_hdr *hdr, const uint8_t *bytes,
                     uint32_t len)
{
    (void)ctx;
    (void)hdr;
    if (peer_hears(bytes, len)) {
        wire_arp_answer(frame, bytes, peer_mac);
        (void)model_receive(&device, (struct virtio_net_hdr){0}, frame, ARP_BYTES);
    }
    for (unsigned n = 0; n < FRAMES_EACH && in.left != 0 && (in8(&in) & 1u) != 0; n++) {
        send_one();
    }
}

/* ---- the guest's applications ---- */

static void echo(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                 size_t total, uint32_t from_ip, uint16_t from_port)
{
    uint8_t *payload;
    bool fresh;

    (void)total;
    if (from_port == 0 || arg != NULL) {
        (void)sock_tcp_write(sock, data, len, true);
    } else if (offset == 0 && len != 0 &&
               sock_udp_reserve(sock, len, &payload, &fresh) == SOCK_OK) {
        memcpy(payload, data, len);
        (void)sock_udp_commit_to(sock, from_ip, from_port);
    }
}

static void ignore(struct sock *sock, void *arg)
{
    (void)sock;
    (void)arg;
}

static void gone(struct sock *sock, void *arg, enum sock_error error)
{
    (void)error;
    for (unsigned i = 0; arg != NULL && i < MAX_SERVED; i++) {
        if (served[i] == sock) {
            served[i] = NULL;
            sock_close(sock, false);
        }
    }
}

static const struct sock_ops sock_ops = {
    .writable = ignore, .connected = ignore, .received = echo, .error = gone};

static bool accept_any(void *arg, struct sock *fresh, const struct sock_ops **ops, void **sock_arg)
{
    (void)arg;
    for (unsigned i = 0; i < MAX_SERVED; i++) {
        if (served[i] == NULL) {
            served[i] = fresh;
            *ops = &sock_ops;
            *sock_arg = &device;
            return true;
        }
    }
    return false;
}

/* ---- one input ---- */

static void pass(uint64_t ns)
{
    seam_advance_ns(ns);
    model_serve(&device);
    net_poll();
    net_poll();
}

/* Nothing hostile is left: the guest answers whoever asks for its address, and all comes to rest.
 */
static void expect_sanity(void)
{
    static const uint8_t request[] = {0, 1, 8, 0, 6, 4, 0, 1};

    for (unsigned i = 0; i < SETTLE_STEPS; i++) {
        seam_advance_ns(SETTLE_NS);
        model_serve(&device);
        net_poll();
    }
    if (net_ip() != 0) {
        memset(frame, 0, sizeof(frame));
        memset(frame, 0xff, 6);
        memcpy(frame + 6, peer_mac, 6);
        put16(frame + 12, 0x0806);
        memcpy(frame + 14, request, sizeof(request));
        memcpy(frame + 22, peer_mac, 6);
        /* The lease may be the server's own address, and a question from there is a claim. */
        put32(frame + 28, net_ip() == PEER_IP ? PEER_IP + 2 : PEER_IP);
        put32(frame + 38, net_ip());
        peer.arp_answered = false;
        CHECK(model_receive(&device, (struct virtio_net_hdr){0}, frame, 60));
        pass(MS);
        pass(MS);
        CHECK(peer.arp_answered);
    }
    CHECK(virtio_net_tx_in_flight(net_device(), 0) == 0);
}

static void talk(void)
{
    struct sock *udp = sock_udp_open(&sock_ops, NULL, SNDBUF_BYTES);
    struct sock *tcp = sock_tcp_listen(ECHO_PORT, accept_any, NULL);

    CHECK(udp != NULL && tcp != NULL && sock_udp_bind(udp, ECHO_PORT) == SOCK_OK);
    while (in.left != 0) {
        uint8_t step = in8(&in);
        send_one();
        pass((step & 1u) != 0 ? (uint64_t)step * MS : MS / 10);
    }
    expect_sanity();
    sock_close(udp, true);
    sock_close(tcp, true);
    for (unsigned i = 0; i < MAX_SERVED; i++) {
        if (served[i] != NULL) {
            sock_close(served[i], true);
            served[i] = NULL;
        }
    }
}

static void one_input(const uint8_t *data, size_t size)
{
    struct model_options opt;
    struct net_config config = {.ip = GUEST_IP,
                                .netmask = 0xffffff00u,
                                .gateway = PEER_IP,
                                .link_deadline_ns = 100 * MS,
                                .dhcp_deadline_ns = DHCP_DEADLINE_NS};
    const char *why = NULL;

    model_options_default(&opt);
    memcpy(opt.mac, guest_mac, 6);
    opt.serve = true;
    opt.size_descs[MODEL_RX] = RX_DESCS;
    model_init(&device, &opt);
    seam_advance_ns(time_ns); /* the stack's timers lie in the past */
    device.on_frame = on_frame;
    memset(&peer, 0, sizeof(peer));
    in = (struct input){data, size};
    config.dhcp = (in8(&in) & 1u) == 0;
    config.transport = &device.base;
    config.driver.refuse.guest_tso = true;
    if (net_open(&config, &why)) {
        talk();
        net_close();
    } else {
        CHECK(config.dhcp && why != NULL);
    }
    seam_advance_ns(1000 * MS);
    sys_check_timeouts(); /* TCP's timer ends when it finds no connection */
    CHECK(device.violations == 0);
    CHECK(net.charged_bytes == net.credited_bytes && net.tx_bufs == net.tx_bufs_free);
    time_ns = seam_now_ns();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t quiet[] = {1};
    static uint64_t rest_bytes;

    if (time_ns == 0) {
        one_input(quiet, sizeof(quiet)); /* what the stack makes once and keeps */
        rest_bytes = netmem_used_bytes();
    }
    one_input(data, size);
    CHECK(netmem_used_bytes() <= rest_bytes);
    return 0;
}
