/* SPDX-License-Identifier: BSD-2-Clause
 *
 * An application on a socket of the lab's guest, which notes what it is told, and what such an
 * application does: connect to the peer, send a datagram.
 *
 *     test -> [app] -> socket -> net/ + lwIP -> ... -> lab_tcp.h, net_lab.h
 */
#ifndef SLUICE_TESTS_LAB_APP_H
#define SLUICE_TESTS_LAB_APP_H

#include "tests/unit/lab_tcp.h"

#define APP_RECEIVED_BYTES 200000u

struct app {
    struct sock *sock;
    unsigned connected, writable, drained, errors;
    unsigned order; /* of the last writable call among all apps */
    enum sock_error error;
    uint8_t received[APP_RECEIVED_BYTES]; /* one behind the other */
    size_t n_received;
    unsigned n_datagrams; /* whole ones */
};

static unsigned app_next_order;

/* Another shift, another pattern. */
static inline void fill_pattern(uint8_t *at, size_t len, unsigned shift)
{
    for (size_t i = 0; i < len; i++) {
        at[i] = (uint8_t)((i * 2654435761u) >> shift);
    }
}

/* ---- told by the socket; arg: the app ---- */

static inline void app_connected(struct sock *sock, void *arg)
{
    (void)sock;
    ((struct app *)arg)->connected++;
}

static inline void app_writable(struct sock *sock, void *arg)
{
    struct app *app = arg;
    assert_ptr_equal(sock, app->sock);
    app->writable++;
    app->order = ++app_next_order;
}

static inline void app_drained(struct sock *sock, void *arg)
{
    (void)sock;
    ((struct app *)arg)->drained++;
}

static inline void app_received(struct sock *sock, void *arg, const void *data, size_t len,
                                size_t offset, size_t total, uint32_t from_ip, uint16_t from_port)
{
    struct app *app = arg;
    (void)sock;
    (void)from_ip;
    (void)from_port;
    assert_true(app->n_received + len <= sizeof(app->received));
    memcpy(app->received + app->n_received, data, len);
    app->n_received += len;
    app->n_datagrams += offset + len == total;
}

static inline void app_error(struct sock *sock, void *arg, enum sock_error error)
{
    struct app *app = arg;
    (void)sock;
    app->errors++;
    app->error = error;
}

/* ---- what it does ---- */

/* Connects to the peer, whose end of the connection is `tcp`. */
static inline void app_connect(struct app *app, const struct sock_ops *ops, struct lab_tcp *tcp,
                               uint32_t window_bytes)
{
    app->sock = sock_tcp_connect(ops, app, LAB_PEER_IP, 5201, 5000 * LAB_MS, window_bytes);
    lab_tcp_accept(tcp, 5201);
    lab_tcp_ack(tcp);
    lab_serve();
    assert_int_equal(app->connected, 1);
}

/* A socket for datagrams to the peer, with credit for more than any ring holds. */
static inline struct sock *app_open_udp(struct app *app, const struct sock_ops *ops, uint16_t port)
{
    struct sock *sock = sock_udp_open(ops, app, 1 << 24);
    assert_int_equal(sock_udp_connect(sock, LAB_PEER_IP, port), SOCK_OK);
    return sock;
}

static inline void app_send(struct sock *sock, const void *data, size_t len)
{
    uint8_t *payload;
    bool fresh;
    assert_int_equal(sock_udp_reserve(sock, len, &payload, &fresh), SOCK_OK);
    memcpy(payload, data, len);
    assert_int_equal(sock_udp_commit(sock), SOCK_OK);
}

/* The end of a test whose datagrams are all sent: nothing is missing, at once. */
static inline void close_at_rest(struct sock *sock)
{
    sock_close(sock, false);
    lab_assert_ledger();
    lab_close();
}

/* Whatever moves has come to rest, and nothing of it is missing. */
static inline void close_balanced(void)
{
    lab_serve();
    lab_assert_ledger();
    lab_close();
}

#endif
