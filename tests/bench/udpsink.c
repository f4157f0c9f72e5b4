/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The receiver of the native ceiling: reads datagrams one by one, as iperf3's server does, until a
 * second has passed without one.
 *
 *     udpsink PORT SOCKET_BUFFER_BYTES
 *
 * Prints "ready", then at the end one line of JSON: datagrams, bytes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    FIRST_WAIT_MS = 20000,
    QUIET_MS = 1000,
    MAX_DATAGRAM_BYTES = 65536,
};

int main(int argc, char **argv)
{
    static char data[MAX_DATAGRAM_BYTES];
    char *port_end = NULL, *bytes_end = NULL;
    unsigned long port = argc == 3 ? strtoul(argv[1], &port_end, 10) : 0;
    unsigned long buffer_bytes = argc == 3 ? strtoul(argv[2], &bytes_end, 10) : 0;
    if (port == 0 || port > UINT16_MAX || *port_end != '\0' || buffer_bytes == 0 ||
        buffer_bytes > INT32_MAX || *bytes_end != '\0') {
        fprintf(stderr, "usage: udpsink PORT SOCKET_BUFFER_BYTES\n");
        return 1;
    }
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    int bytes = (int)buffer_bytes;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) < 0 ||
        bind(fd, (struct sockaddr *)&at, sizeof at) < 0) {
        fprintf(stderr, "udpsink: port %s: %s\n", argv[1], strerror(errno));
        return 2;
    }
    puts("ready");
    fflush(stdout);
    uint64_t datagrams = 0, total = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, datagrams == 0 ? FIRST_WAIT_MS : QUIET_MS) > 0) {
        ssize_t n;
        while ((n = recv(fd, data, sizeof data, MSG_DONTWAIT)) >= 0) {
            datagrams++;
            total += (uint64_t)n;
        }
    }
    printf("{\"datagrams\":%llu,\"bytes\":%llu}\n", (unsigned long long)datagrams,
           (unsigned long long)total);
    return 0;
}
