/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/host_sock/host_sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "boot/clock.h"
#include "boot/panic.h"
#include "net/sock.h"

#define MAX_SOCKS  600
#define READ_BYTES (256u << 10)

struct sock {
    const struct sock_ops *ops;
    void *arg;
    int fd;
    bool udp, connecting, dead, eof;
    bool want_write, again_now;
    bool reserved;
    size_t reserved_len, last_len;
    uint64_t deadline_ns, written;
    int connect_errno;
    uint64_t reserves;
    struct sock_udp_stats stats;
    uint8_t buffer[65536];
};

struct host_sock_totals host_sock_totals;
static struct sock *socks[MAX_SOCKS];
static unsigned again_every;

void host_sock_init(void)
{
    const char *text = getenv("HOST_SOCK_AGAIN_EVERY");
    again_every = text != NULL ? (unsigned)strtoul(text, NULL, 10) : 0;
}

static struct sock *sock_new(const struct sock_ops *ops, void *arg, int type)
{
    for (unsigned i = 0; i < MAX_SOCKS; i++) {
        if (socks[i] == NULL) {
            struct sock *s = calloc(1, sizeof *s);
            s->ops = ops;
            s->arg = arg;
            s->udp = type == SOCK_DGRAM;
            s->fd = socket(AF_INET, type | SOCK_NONBLOCK, 0);
            socks[i] = s;
            return s;
        }
    }
    return NULL;
}

static struct sockaddr_in address(uint32_t ip, uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ip)};
}

const char *sock_error_text(enum sock_error error)
{
    static const char *const texts[] = {
        [SOCK_ERR_NONE] = "no error",     [SOCK_ERR_CLOSED] = "closed by the peer",
        [SOCK_ERR_RESET] = "reset",       [SOCK_ERR_ABORTED] = "aborted",
        [SOCK_ERR_TIMEOUT] = "no answer", [SOCK_ERR_ROUTE] = "no route",
        [SOCK_ERR_REFUSED] = "refused",
    };
    return texts[error];
}

static enum sock_error from_errno(int number)
{
    switch (number) {
    case ECONNREFUSED:
        return SOCK_ERR_REFUSED;
    case ECONNRESET:
    case EPIPE:
        return SOCK_ERR_RESET;
    case ETIMEDOUT:
        return SOCK_ERR_TIMEOUT;
    case EHOSTUNREACH:
    case ENETUNREACH:
        return SOCK_ERR_ROUTE;
    default:
        return SOCK_ERR_ABORTED;
    }
}

/* ---- UDP ---- */

struct sock *sock_udp_open(const struct sock_ops *ops, void *arg, uint32_t sndbuf_bytes)
{
    int size = (int)sndbuf_bytes;
    int receive = 4 << 20;
    struct sock *s = sock_new(ops, arg, SOCK_DGRAM);
    setsockopt(s->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(s->fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof receive);
    return s;
}

enum sock_result sock_udp_bind(struct sock *s, uint16_t port)
{
    struct sockaddr_in at = address(0, port);
    return bind(s->fd, (struct sockaddr *)&at, sizeof at) == 0 ? SOCK_OK : SOCK_FATAL;
}

enum sock_result sock_udp_connect(struct sock *s, uint32_t ip, uint16_t port)
{
    struct sockaddr_in to = address(ip, port);
    return connect(s->fd, (struct sockaddr *)&to, sizeof to) == 0 ? SOCK_OK : SOCK_FATAL;
}

static enum sock_result again(struct sock *s)
{
    s->stats.again++;
    s->want_write = true;
    return SOCK_AGAIN;
}

enum sock_result sock_udp_reserve(struct sock *s, size_t len, uint8_t **payload, bool *fresh)
{
    struct pollfd pollfd = {.fd = s->fd, .events = POLLOUT};
    invariant(!s->reserved && !s->want_write);
    if (again_every != 0 && ++s->reserves % again_every == 0) {
        s->again_now = true;
        return again(s);
    }
    poll(&pollfd, 1, 0);
    if ((pollfd.revents & POLLOUT) == 0) {
        return again(s);
    }
    *payload = s->buffer;
    *fresh = s->last_len != len;
    s->last_len = len;
    s->reserved = true;
    s->reserved_len = len;
    return SOCK_OK;
}

static enum sock_result commit(struct sock *s, ssize_t sent)
{
    invariant(s->reserved);
    s->reserved = false;
    if (sent < 0 && errno == EAGAIN) {
        return again(s);
    }
    if (sent < 0 && errno != ECONNREFUSED) {
        return SOCK_FATAL;
    }
    s->stats.queued++;
    s->stats.consumed++;
    s->stats.charged_bytes += s->reserved_len;
    s->stats.credited_bytes += s->reserved_len;
    host_sock_totals.datagrams++;
    host_sock_totals.charged_bytes += s->reserved_len;
    return SOCK_OK;
}

enum sock_result sock_udp_commit(struct sock *s)
{
    return commit(s, send(s->fd, s->buffer, s->reserved_len, 0));
}

enum sock_result sock_udp_commit_to(struct sock *s, uint32_t ip, uint16_t port)
{
    struct sockaddr_in to = address(ip, port);
    return commit(s,
                  sendto(s->fd, s->buffer, s->reserved_len, 0, (struct sockaddr *)&to, sizeof to));
}

void sock_udp_cancel(struct sock *s)
{
    s->reserved = false;
}

void sock_udp_stats(const struct sock *s, struct sock_udp_stats *out)
{
    *out = s->stats;
}

/* ---- TCP ---- */

struct sock *sock_tcp_connect(const struct sock_ops *ops, void *arg, uint32_t ip, uint16_t port,
                              uint64_t deadline_ns, uint32_t window_bytes)
{
    struct sockaddr_in to = address(ip, port);
    struct sock *s = sock_new(ops, arg, SOCK_STREAM);
    int size = (int)window_bytes;
    if (size != 0) {
        setsockopt(s->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        setsockopt(s->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    }
    s->connecting = true;
    s->deadline_ns = clock_now_ns() + deadline_ns;
    if (connect(s->fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS) {
        s->connect_errno = errno; /* told from the poll: the caller has no socket yet */
    }
    return s;
}

struct sock *sock_tcp_listen(uint16_t port, sock_accept_fn accept_fn, void *arg)
{
    (void)port;
    (void)accept_fn;
    (void)arg;
    return NULL;
}

int64_t sock_tcp_write(struct sock *s, const void *data, size_t len, bool copy)
{
    (void)copy;
    ssize_t taken = send(s->fd, data, len, MSG_NOSIGNAL);
    if (taken < 0 && errno != EAGAIN) {
        return SOCK_FATAL;
    }
    if (taken < (ssize_t)len) {
        s->want_write = true;
    }
    s->written += taken > 0 ? (uint64_t)taken : 0;
    return taken > 0 ? taken : 0;
}

void sock_tcp_hold(struct sock *s, uint32_t window_bytes)
{
    (void)s;
    (void)window_bytes;
}

void sock_tcp_consumed(struct sock *s, size_t bytes)
{
    (void)s;
    (void)bytes;
}

void sock_tcp_nodelay(struct sock *s, bool on)
{
    int value = on;
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value);
}

void sock_tcp_keepalive(struct sock *s, unsigned idle_s, unsigned interval_s, unsigned count)
{
    int on = 1;
    int idle = (int)idle_s;
    int interval = (int)interval_s;
    int probes = (int)count;
    setsockopt(s->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static struct tcp_info tcp_info(const struct sock *s)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    return info;
}

/* Any segment that carried an acknowledgement; Linux probes by itself. */
uint64_t sock_tcp_silent_ns(const struct sock *s)
{
    return (uint64_t)tcp_info(s).tcpi_last_ack_recv * 1000000u;
}

void sock_tcp_probe(struct sock *s)
{
    (void)s;
}

uint64_t sock_tcp_retransmits(const struct sock *s)
{
    return tcp_info(s).tcpi_total_retrans;
}

/* glibc's struct ends before the kernel's count of acknowledged bytes; what is not in the queue any
 * more was. */
uint64_t sock_tcp_bytes_acked(const struct sock *s)
{
    struct tcp_info info = tcp_info(s);
    uint64_t waiting = (uint64_t)info.tcpi_unacked * info.tcpi_snd_mss;
    return info.tcpi_unacked == 0 ? s->written : s->written > waiting ? s->written - waiting : 0;
}

uint16_t sock_tcp_mss(const struct sock *s)
{
    return (uint16_t)tcp_info(s).tcpi_snd_mss;
}

/* ---- both ---- */

void sock_close(struct sock *s, bool abort_it)
{
    struct linger linger = {.l_onoff = 1};
    if (abort_it && !s->udp) {
        setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    }
    close(s->fd);
    s->dead = true;
}

uint16_t sock_local_port(const struct sock *s)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    getsockname(s->fd, (struct sockaddr *)&at, &len);
    return ntohs(at.sin_port);
}

/* ---- the loop's part ---- */

static void report_error(struct sock *s, enum sock_error error)
{
    s->eof = true;
    s->ops->error(s, s->arg, error);
}

static void finish_connect(struct sock *s)
{
    int number = s->connect_errno;
    socklen_t len = sizeof number;
    if (number == 0) {
        getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &number, &len);
    }
    s->connecting = false;
    if (number != 0) {
        report_error(s, from_errno(number));
    } else {
        s->ops->connected(s, s->arg);
    }
}

static void read_some(struct sock *s)
{
    static uint8_t bytes[READ_BYTES];
    for (unsigned n = 0; n < 32 && !s->dead && !s->eof; n++) {
        ssize_t got = recv(s->fd, bytes, sizeof bytes, 0);
        if (got < 0) {
            if (errno != EAGAIN) {
                report_error(s, from_errno(errno));
            }
            return;
        }
        if (got == 0 && !s->udp) {
            report_error(s, SOCK_ERR_CLOSED);
            return;
        }
        s->ops->received(s, s->arg, bytes, (size_t)got, 0, s->udp ? (size_t)got : 0, 0, 0);
    }
}

static void write_again(struct sock *s)
{
    s->want_write = false;
    s->again_now = false;
    s->stats.writable++;
    s->ops->writable(s, s->arg);
}

static void serve_one(struct sock *s, short events)
{
    if (s->connecting) {
        if ((events & (POLLOUT | POLLERR | POLLHUP)) != 0) {
            finish_connect(s);
        } else if (clock_now_ns() >= s->deadline_ns) {
            s->connecting = false;
            report_error(s, SOCK_ERR_TIMEOUT);
        }
        return;
    }
    if (!s->eof && (events & (POLLIN | POLLERR | POLLHUP)) != 0) {
        read_some(s);
    }
    if (!s->dead && s->want_write && (s->again_now || (events & POLLOUT) != 0)) {
        write_again(s);
    }
}

void host_sock_poll(uint64_t deadline_ns)
{
    struct pollfd pollfds[MAX_SOCKS];
    for (unsigned i = 0; i < MAX_SOCKS; i++) {
        struct sock *s = socks[i];
        pollfds[i] = (struct pollfd){.fd = -1};
        if (s != NULL && s->dead) {
            free(s);
            socks[i] = NULL;
        } else if (s != NULL && !(s->eof && !s->want_write)) {
            pollfds[i].fd = s->fd;
            pollfds[i].events =
                (short)(s->connecting ? POLLOUT : POLLIN | (s->want_write ? POLLOUT : 0));
            deadline_ns = s->again_now ? 0 : deadline_ns;
        }
    }
    uint64_t now_ns = clock_now_ns();
    int wait_ms = deadline_ns <= now_ns ? 0 : (int)((deadline_ns - now_ns) / 1000000) + 1;
    poll(pollfds, MAX_SOCKS, wait_ms < 100 ? wait_ms : 100);
    for (unsigned i = 0; i < MAX_SOCKS; i++) {
        if (socks[i] != NULL && !socks[i]->dead && pollfds[i].fd >= 0) {
            serve_one(socks[i], pollfds[i].revents);
        }
    }
}
