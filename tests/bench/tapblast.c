/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The native ceiling: writes UDP frames to a tap as fast as the host takes them, with no guest in
 * between.
 *
 *     tapblast TAP SECONDS SIZE_BYTES SNDBUF_BYTES|none SRC_MAC DST_MAC SRC_IP DST_IP DST_PORT
 *
 * The frames are those that a guest sends: Ethernet, IPv4, UDP, an iperf3 header with its sequence
 * number, behind a virtio_net_hdr that leaves the checksum to the host, as QEMU hands them over. At
 * EAGAIN (the send buffer limit) it polls for room, as QEMU does. Prints one line of JSON: frames,
 * bytes, seconds, eagain.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <netinet/ether.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum {
    ETH_BYTES = 14,
    IP_BYTES = 20,
    UDP_BYTES = 8,
    MAX_PAYLOAD_BYTES = 1472,
    CLOCK_EVERY_FRAMES = 64,
    POLL_MS = 100,
};

struct frame {
    struct virtio_net_hdr hdr;
    uint8_t bytes[ETH_BYTES + IP_BYTES + UDP_BYTES + MAX_PAYLOAD_BYTES];
} __attribute__((packed));

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "tapblast: %s: %s\n", what, strerror(errno));
    exit(2);
}

static unsigned long number(const char *text, unsigned long most)
{
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value > most) {
        fprintf(stderr, "tapblast: not a number up to %lu: %s\n", most, text);
        exit(1);
    }
    return value;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint32_t sum16(const uint8_t *p, size_t n, uint32_t sum)
{
    for (size_t i = 0; i + 1 < n; i += 2) {
        sum += (uint32_t)(p[i] << 8 | p[i + 1]);
    }
    return sum;
}

static uint16_t fold(uint32_t sum)
{
    while (sum >> 16) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return (uint16_t)sum;
}

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
    put16(p, v >> 16);
    put16(p + 2, v & 0xffff);
}

static int tap_open(const char *name, const char *sndbuf)
{
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (fd < 0) {
        fail("/dev/net/tun");
    }
    struct ifreq ifr = {0};
    snprintf(ifr.ifr_name, sizeof ifr.ifr_name, "%s", name);
    ifr.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(fd, TUNSETIFF, &ifr) < 0) {
        fail(name);
    }
    int bytes = strcmp(sndbuf, "none") == 0 ? INT32_MAX : (int)number(sndbuf, INT32_MAX);
    if (ioctl(fd, TUNSETSNDBUF, &bytes) < 0) {
        fail("TUNSETSNDBUF");
    }
    return fd;
}

static void mac_parse(const char *text, uint8_t *mac)
{
    const struct ether_addr *address = ether_aton(text);
    if (address == NULL) {
        fprintf(stderr, "tapblast: not a hardware address: %s\n", text);
        exit(1);
    }
    memcpy(mac, address, sizeof *address);
}

static size_t frame_build(struct frame *f, size_t size, char **arg)
{
    uint8_t *eth = f->bytes, *ip = eth + ETH_BYTES, *udp = ip + IP_BYTES;
    memset(f, 0, sizeof *f);
    mac_parse(arg[1], eth);
    mac_parse(arg[0], eth + 6);
    put16(eth + 12, 0x0800);
    ip[0] = 0x45;
    put16(ip + 2, (uint32_t)(IP_BYTES + UDP_BYTES + size));
    ip[8] = 64;
    ip[9] = 17;
    if (inet_pton(AF_INET, arg[2], ip + 12) != 1 || inet_pton(AF_INET, arg[3], ip + 16) != 1) {
        fprintf(stderr, "tapblast: not an address: %s %s\n", arg[2], arg[3]);
        exit(1);
    }
    put16(ip + 10, (uint16_t)~fold(sum16(ip, IP_BYTES, 0)));
    put16(udp, 40000);
    put16(udp + 2, (uint32_t)number(arg[4], UINT16_MAX));
    put16(udp + 4, (uint32_t)(UDP_BYTES + size));
    put16(udp + 6, fold(sum16(ip + 12, 8, 17 + (uint32_t)(UDP_BYTES + size))));
    f->hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    f->hdr.csum_start = ETH_BYTES + IP_BYTES;
    f->hdr.csum_offset = 6;
    return sizeof f->hdr + ETH_BYTES + IP_BYTES + UDP_BYTES + size;
}

int main(int argc, char **argv)
{
    static struct frame frame;
    if (argc != 10) {
        fprintf(stderr, "usage: tapblast TAP SECONDS SIZE SNDBUF|none SRC_MAC DST_MAC SRC_IP "
                        "DST_IP DST_PORT\n");
        return 1;
    }
    char *end = NULL;
    double seconds = strtod(argv[2], &end);
    size_t size = number(argv[3], MAX_PAYLOAD_BYTES);
    if (*end != '\0' || !(seconds > 0 && seconds <= 60) || size < 16 || size > MAX_PAYLOAD_BYTES) {
        fprintf(stderr, "tapblast: SECONDS is in (0, 60], SIZE in 16..%d\n", MAX_PAYLOAD_BYTES);
        return 1;
    }
    int fd = tap_open(argv[1], argv[4]);
    size_t len = frame_build(&frame, size, argv + 5);
    uint8_t *sequence = frame.bytes + ETH_BYTES + IP_BYTES + UDP_BYTES + 8;

    uint64_t frames = 0, eagain = 0;
    double start = now_s(), now = start;
    while (now - start < seconds) {
        for (int i = 0; i < CLOCK_EVERY_FRAMES; i++) {
            put32(sequence, (uint32_t)(frames + 1));
            if (write(fd, &frame, len) == (ssize_t)len) {
                frames++;
            } else if (errno == EAGAIN) {
                struct pollfd p = {.fd = fd, .events = POLLOUT};
                eagain++;
                poll(&p, 1, POLL_MS);
            } else if (errno != EIO) { /* EIO: the device is not up yet */
                fail("write");
            }
        }
        now = now_s();
    }
    printf("{\"frames\":%llu,\"bytes\":%llu,\"seconds\":%.6f,\"frames_per_second\":%.0f,"
           "\"eagain\":%llu}\n",
           (unsigned long long)frames, (unsigned long long)frames * size, now - start,
           (double)frames / (now - start), (unsigned long long)eagain);
    return 0;
}
