/* SPDX-License-Identifier: BSD-2-Clause
 *
 * sock.h and net.h on the sockets of Linux: apps/ runs unchanged as an ordinary program, so that
 * its side of a protocol is tried against a real peer without image, driver or stack in between.
 *
 *     apps/      ->  sock.h, net.h  ->  host_sock.c, host_net.c  ->  poll(2), loopback
 */
#ifndef SLUICE_TESTS_HOST_SOCK_H
#define SLUICE_TESTS_HOST_SOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Waits at most until deadline_ns for any socket, then calls back. */
void host_sock_poll(uint64_t deadline_ns);

/* Environment: HOST_SOCK_AGAIN_EVERY=N, each Nth reserve answers AGAIN first; 0: none. */
void host_sock_init(void);

struct host_sock_totals {
    uint64_t datagrams, charged_bytes;
};
extern struct host_sock_totals host_sock_totals;

#endif
