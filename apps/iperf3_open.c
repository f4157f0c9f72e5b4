/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/iperf3_open.h"

#include "boot/clock.h"

/* Waits after the first, second and third hello. The first is long against any sane round trip,
 * because a hello that is repeated although it had arrived becomes a stray datagram of the stream.
 */
static const uint64_t hello_wait_ns[] = {CLOCK_NS_PER_S, 2 * CLOCK_NS_PER_S, 4 * CLOCK_NS_PER_S};

#define HELLOS (sizeof hello_wait_ns / sizeof *hello_wait_ns)

#define NO_ROOM_WAIT_NS (CLOCK_NS_PER_S / 1000)

static void open_next(struct opener *opener);

static void give_up(struct opener *opener, const char *what, enum sock_error error)
{
    opener_cancel(opener);
    opener->failed(opener->arg, what, error);
}

static void stream_is_open(struct opener *opener)
{
    net_timer_clear(&opener->timer);
    stream_greeted(&opener->streams[opener->at]);
    opener->at++;
    open_next(opener);
}

static void say_hello(void *arg)
{
    struct opener *opener = arg;
    if (opener->hellos == HELLOS) {
        give_up(opener, "the server does not answer the hello of a datagram stream",
                SOCK_ERR_TIMEOUT);
        return;
    }
    enum sock_result result =
        stream_greet(&opener->streams[opener->at], iperf3_udp_hello, sizeof iperf3_udp_hello);
    if (result == SOCK_FATAL) {
        give_up(opener, "a datagram stream cannot be opened", SOCK_ERR_ABORTED);
        return;
    }
    uint64_t wait_ns = result == SOCK_OK ? hello_wait_ns[opener->hellos++] : NO_ROOM_WAIT_NS;
    net_timer_set_patient(&opener->timer, clock_now_ns() + wait_ns, say_hello, opener);
}

static void on_connected(struct stream *stream)
{
    struct opener *opener = stream->owner->arg;
    if (!opener->active) {
        return;
    }
    if (stream_greet(stream, opener->cookie, sizeof opener->cookie) != SOCK_OK) {
        give_up(opener, "a stream's cookie cannot be sent", SOCK_ERR_ABORTED);
        return;
    }
    stream_is_open(opener);
}

static void on_greeted(struct stream *stream, const uint8_t *data, size_t len)
{
    struct opener *opener = stream->owner->arg;
    if (opener->active && stream == &opener->streams[opener->at] &&
        iperf3_is_udp_answer(data, len)) {
        stream_is_open(opener);
    }
}

static void on_failed(struct stream *stream, enum sock_error error)
{
    struct opener *opener = stream->owner->arg;
    opener_cancel(opener);
    opener->failed(opener->arg, "a stream broke", error);
}

static void open_next(struct opener *opener)
{
    if (opener->at == opener->n_streams) {
        opener->active = false;
        opener->opened(opener->arg);
        return;
    }
    struct stream *stream = &opener->streams[opener->at];
    opener->hellos = 0;
    if (!stream_open(stream, opener->plan, &opener->owner, iperf3_stream_id(opener->at),
                     opener->at < opener->n_senders)) {
        give_up(opener, "there is no memory for a stream", SOCK_ERR_ABORTED);
        return;
    }
    if (opener->plan->udp) {
        say_hello(opener);
    }
}

void opener_start(struct opener *opener)
{
    opener->owner = (struct stream_owner){
        .connected = on_connected,
        .greeted = on_greeted,
        .failed = on_failed,
        .arg = opener,
    };
    opener->active = true;
    open_next(opener);
}

void opener_cancel(struct opener *opener)
{
    opener->active = false;
    net_timer_clear(&opener->timer);
}

bool opener_server_is_ready(struct opener *opener)
{
    if (!opener->active) {
        return opener->at == opener->n_streams;
    }
    if (!opener->plan->udp || opener->at + 1 != opener->n_streams) {
        return false;
    }
    stream_is_open(opener);
    return true;
}
