/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A tap of this network namespace, with the virtio-net header in front of each frame.
 */
#include <fcntl.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/if_tun.h>

#include "tests/vhost-user/peer.h"

int tap_open(const char *name)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int header_bytes = STRICT_NET_HDR_BYTES;
    int little = 1;
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (ioctl(fd, TUNSETIFF, &request) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &header_bytes) < 0 ||
        ioctl(fd, TUNSETVNETLE, &little) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

bool tap_set_offloads(int fd, uint64_t features)
{
    unsigned offloads = 0;
    if (strict_has(features, F_GUEST_CSUM)) {
        offloads |= TUN_F_CSUM;
        offloads |= strict_has(features, F_GUEST_TSO4) ? TUN_F_TSO4 : 0;
    }
    return ioctl(fd, TUNSETOFFLOAD, (unsigned long)offloads) == 0;
}
