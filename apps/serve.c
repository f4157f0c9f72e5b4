/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/ip_text.h"
#include "apps/serve.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/net.h"
#include "net/sock.h"

/* How far a peer may be ahead of what was sent back to it; one that does not read waits, for ever
 * if it likes. */
#define TCP_BACKLOG_BYTES (128u << 10)
#define TCP_MAX_ECHOES    8u

struct udp_echo {
    struct sock *sock;
    uint8_t *reply; /* reserved, while a datagram's pieces come in */
    uint64_t dropped;
};

struct tcp_echo {
    struct sock *sock; /* NULL: free */
    size_t at, end;    /* of what waits */
    bool peer_closed;
    uint8_t backlog[TCP_BACKLOG_BYTES];
};

static struct udp_echo udp_echo;
static struct tcp_echo *tcp_echoes[TCP_MAX_ECHOES];

/* ---- UDP: no room for the answer is no answer, as for any datagram server ---- */

static void udp_received(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                         size_t total, uint32_t from_ip, uint16_t from_port)
{
    struct udp_echo *echo = arg;
    bool fresh;
    if (offset == 0) {
        echo->reply = NULL;
        /* Not to another echo: two of them would answer each other for ever. */
        if (total == 0 || from_port == SERVE_ECHO_PORT ||
            sock_udp_reserve(sock, total, &echo->reply, &fresh) != SOCK_OK) {
            echo->reply = NULL;
            echo->dropped++;
        }
    }
    if (echo->reply == NULL) {
        return;
    }
    memcpy(echo->reply + offset, data, len);
    if (offset + len == total) {
        echo->reply = NULL;
        echo->dropped += sock_udp_commit_to(sock, from_ip, from_port) != SOCK_OK;
    }
}

static void udp_writable(struct sock *sock, void *arg)
{
    (void)sock;
    (void)arg;
}

static void udp_error(struct sock *sock, void *arg, enum sock_error error)
{
    (void)sock;
    (void)arg;
    (void)error; /* whoever asked is gone */
}

static const struct sock_ops udp_ops = {
    .writable = udp_writable, .received = udp_received, .error = udp_error};

/* ---- TCP ---- */

static void tcp_close(struct tcp_echo *echo, bool abort)
{
    sock_close(echo->sock, abort);
    echo->sock = NULL;
}

static void tcp_send(struct tcp_echo *echo)
{
    if (echo->at < echo->end) {
        int64_t taken =
            sock_tcp_write(echo->sock, echo->backlog + echo->at, echo->end - echo->at, true);
        if (taken < 0) {
            tcp_close(echo, true);
            return;
        }
        echo->at += (size_t)taken;
        sock_tcp_consumed(echo->sock, (size_t)taken);
    }
    if (echo->at == echo->end) {
        echo->at = 0;
        echo->end = 0;
        if (echo->peer_closed) {
            tcp_close(echo, false);
        }
    }
}

static void tcp_received(struct sock *sock, void *arg, const void *data, size_t len, size_t offset,
                         size_t total, uint32_t from_ip, uint16_t from_port)
{
    struct tcp_echo *echo = arg;
    (void)sock;
    (void)offset;
    (void)total;
    (void)from_ip;
    (void)from_port;
    if (echo->sock == NULL) {
        return;
    }
    if (len > TCP_BACKLOG_BYTES - echo->end) {
        memmove(echo->backlog, echo->backlog + echo->at, echo->end - echo->at);
        echo->end -= echo->at;
        echo->at = 0;
    }
    if (len > TCP_BACKLOG_BYTES - echo->end) {
        tcp_close(echo, true); /* beyond its window: no peer of ours does that */
        return;
    }
    memcpy(echo->backlog + echo->end, data, len);
    echo->end += len;
    tcp_send(echo);
}

static void tcp_writable(struct sock *sock, void *arg)
{
    struct tcp_echo *echo = arg;
    (void)sock;
    if (echo->sock != NULL) {
        tcp_send(echo);
    }
}

static void tcp_error(struct sock *sock, void *arg, enum sock_error error)
{
    struct tcp_echo *echo = arg;
    (void)sock;
    if (echo->sock == NULL) {
        return;
    }
    if (error == SOCK_ERR_CLOSED) {
        echo->peer_closed = true;
        tcp_send(echo);
    } else {
        tcp_close(echo, true);
    }
}

static void tcp_connected(struct sock *sock, void *arg)
{
    (void)sock;
    (void)arg;
}

static const struct sock_ops tcp_ops = {.writable = tcp_writable,
                                        .connected = tcp_connected,
                                        .received = tcp_received,
                                        .error = tcp_error};

static bool tcp_accept(void *arg, struct sock *fresh, const struct sock_ops **ops, void **sock_arg)
{
    (void)arg;
    for (unsigned i = 0; i < TCP_MAX_ECHOES; i++) {
        if (tcp_echoes[i] == NULL) {
            tcp_echoes[i] = calloc(1, sizeof *tcp_echoes[i]);
        }
        struct tcp_echo *echo = tcp_echoes[i];
        if (echo != NULL && echo->sock == NULL) {
            echo->sock = fresh;
            echo->at = 0;
            echo->end = 0;
            echo->peer_closed = false;
            sock_tcp_hold(fresh, TCP_BACKLOG_BYTES);
            *ops = &tcp_ops;
            *sock_arg = echo;
            return true;
        }
    }
    return false;
}

/* ---- the device's link ---- */

struct serve {
    struct outcome *outcome;
    bool over;
};

static void on_link(void *arg, bool up)
{
    struct serve *serve = arg;
    const char *lost = virtio_net_info(net_device())->lost;
    serve->outcome->link_losses += !up;
    printf("sluice: link %s\n", up ? "up" : "down");
    fflush(stdout);
    if (lost != NULL) {
        outcome_fail(serve->outcome, SLUICE_EXIT_PEER, "%s", lost);
        serve->over = true;
    }
}

void serve_run(struct outcome *outcome)
{
    static struct serve serve;
    uint32_t ip = net_ip();
    udp_echo.sock = sock_udp_open(&udp_ops, &udp_echo, outcome->config->sndbuf_bytes);
    if (udp_echo.sock == NULL || sock_udp_bind(udp_echo.sock, SERVE_ECHO_PORT) != SOCK_OK ||
        sock_tcp_listen(SERVE_ECHO_PORT, tcp_accept, NULL) == NULL) {
        outcome_fail(outcome, SLUICE_EXIT_INVALID, "the echo ports cannot be opened");
        return;
    }
    printf("sluice: serving at %s: ping, UDP and TCP echo on port %u\n", ip_text(ip).text,
           SERVE_ECHO_PORT);
    fflush(stdout);
    serve.outcome = outcome;
    net_on_link(on_link, &serve);
    net_run(&serve.over);
    net_on_link(NULL, NULL);
}
