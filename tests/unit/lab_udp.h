/* SPDX-License-Identifier: BSD-2-Clause
 *
 * An application that sends datagrams to the lab's peer, port 5000, and hears from there alone.
 */
#ifndef SLUICE_TESTS_LAB_UDP_H
#define SLUICE_TESTS_LAB_UDP_H

#include "tests/unit/lab_app.h"

static inline void udp_received(struct sock *sock, void *arg, const void *data, size_t len,
                                size_t offset, size_t total, uint32_t from_ip, uint16_t from_port)
{
    assert_int_equal(from_ip, LAB_PEER_IP);
    assert_int_equal(from_port, 5000);
    assert_true(offset + len <= total);
    app_received(sock, arg, data, len, offset, total, from_ip, from_port);
}

static const struct sock_ops udp_ops = {
    .writable = app_writable,
    .received = udp_received,
    .error = app_error,
};

static inline void app_open(struct app *app, uint32_t sndbuf)
{
    memset(app, 0, sizeof(*app));
    app->sock = sock_udp_open(&udp_ops, app, sndbuf);
    assert_non_null(app->sock);
    assert_int_equal(sock_udp_connect(app->sock, LAB_PEER_IP, 5000), SOCK_OK);
}

static inline enum sock_result send_filled(struct app *app, size_t len, uint8_t fill)
{
    uint8_t *payload;
    bool fresh;
    enum sock_result result = sock_udp_reserve(app->sock, len, &payload, &fresh);
    if (result != SOCK_OK) {
        return result;
    }
    memset(payload, fill, len);
    return sock_udp_commit(app->sock);
}

/* Learns the peer's address, so that the first datagram is not one that waits for it. */
static inline void resolve(void)
{
    struct app app;
    app_open(&app, 65536);
    assert_int_equal(send_filled(&app, 1, 0), SOCK_OK);
    lab_serve();
    sock_close(app.sock, false);
    lab_serve();
    lab_forget_frames();
}

static inline void open_default(void)
{
    struct model_options opt = lab_options();
    lab_open(&opt, NULL);
    resolve();
}

static inline void open_with(struct app *app, uint32_t sndbuf)
{
    open_default();
    app_open(app, sndbuf);
}

#endif
