/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Both ends count differently: this one from the start of the measured phase, by subtraction;
 * iperf3 3.12 resets bytes after its own warm-up but keeps counting packets and errors from the
 * first datagram on. Loss is therefore always taken from totals, warm-up included, and what was
 * received from what was sent less the loss.
 */
#include "apps/evaluate.h"

#include <inttypes.h>

#include "boot/clock.h"

/* Peers before 3.14 keep packets and errors in 32 bits with a sign. */
#define PEER_COUNT_MAX ((1ull << 31) - 1)

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static const struct iperf3_stream_result *find_peer(const struct iperf3_results *peer, unsigned id)
{
    for (unsigned i = 0; peer != NULL && i < peer->n_streams; i++) {
        if (peer->streams[i].id == id) {
            return &peer->streams[i];
        }
    }
    return NULL;
}

uint64_t evaluate_missing(const struct measure *measure, unsigned i,
                          const struct iperf3_results *peer)
{
    const struct stream *stream = &measure->streams[i];
    const struct iperf3_stream_result *said = find_peer(peer, stream->id);
    struct tally now;
    if (said == NULL) {
        return 0;
    }
    stream_tally(stream, clock_now_ns(), &now);
    return stream->plan->udp ? less(said->packets, now.packets)
                             : less(said->bytes, now.bytes - measure->base[i].bytes);
}

static uint64_t seconds_to_ns(double seconds)
{
    return seconds > 0 && seconds < 1e6 ? (uint64_t)(seconds * (double)CLOCK_NS_PER_S) : 0;
}

/* Datagrams of the guest that the server got. total: all that the device took. */
static uint64_t arrived_forward(struct outcome *outcome, const struct stream *stream,
                                const struct iperf3_stream_result *peer, uint64_t total,
                                uint64_t measured)
{
    uint64_t arrived = less(peer->packets, peer->errors);
    if (total > PEER_COUNT_MAX) {
        arrived = peer->bytes / stream->plan->size_bytes + total - measured;
    }
    if (arrived > total) {
        outcome_fail(outcome, SLUICE_EXIT_INVALID,
                     "the server counts %" PRIu64 " datagrams of stream %u, but %" PRIu64
                     " were sent",
                     arrived, stream->id, total);
    }
    return arrived < total ? arrived : total;
}

static void forward_udp(struct outcome *outcome, const struct stream *stream,
                        const struct tally *total, const struct tally *measured,
                        const struct iperf3_stream_result *peer, struct stream_outcome *out)
{
    out->sent.packets = measured->packets;
    if (peer == NULL) {
        return;
    }
    uint64_t arrived = arrived_forward(outcome, stream, peer, total->packets, measured->packets);
    uint64_t lost = less(total->packets - arrived, peer->omitted_errors);
    lost = lost < measured->packets ? lost : measured->packets;
    out->sent.lost_packets = lost;
    out->received.lost_packets = lost;
    out->received.packets = measured->packets - lost;
    out->received.bytes = out->received.packets * stream->plan->size_bytes;
    out->received.jitter_ns = seconds_to_ns(peer->jitter_s);
    outcome->peer.bytes += peer->bytes;
    outcome->peer.packets += peer->packets;
    outcome->peer.errors += peer->errors;
    outcome->totals.arrived += arrived;
}

static void forward(struct outcome *outcome, const struct stream *stream, const struct tally *total,
                    const struct tally *measured, const struct iperf3_stream_result *peer,
                    struct stream_outcome *out)
{
    out->sent.bytes = measured->bytes;
    if (peer != NULL) {
        out->received.bytes = peer->bytes;
    }
    if (stream->plan->udp) {
        forward_udp(outcome, stream, total, measured, peer, out);
    } else {
        out->sent.retransmits = (int64_t)measured->retransmits;
        outcome->peer.bytes += out->received.bytes;
    }
}

static void backward(struct outcome *outcome, const struct stream *stream,
                     const struct tally *total, const struct tally *base,
                     const struct tally *measured, const struct iperf3_stream_result *peer,
                     struct stream_outcome *out)
{
    out->received.bytes = measured->bytes;
    out->received.packets = measured->packets;
    out->received.lost_packets = measured->lost_packets;
    out->received.duplicates = measured->duplicates;
    out->received.out_of_order = stream->plan->udp ? (int64_t)measured->out_of_order : -1;
    out->received.jitter_ns = measured->jitter_ns;
    if (peer == NULL) {
        return;
    }
    out->sent.bytes = peer->bytes;
    out->sent.retransmits = peer->retransmits;
    if (stream->plan->udp) {
        /* The tail, behind the highest number seen, is known from the sender alone. */
        uint64_t missing = less(peer->packets, total->packets);
        uint64_t lost = less(missing, base->lost_packets);
        outcome->totals.back_sent += total->packets + missing;
        outcome->totals.back_arrived += total->packets;
        out->received.lost_packets = lost;
        out->sent.lost_packets = lost;
        out->sent.packets = measured->packets + lost;
        out->sent.retransmits = -1;
    }
}

static void one_stream(struct outcome *outcome, const struct measure *measure, unsigned i,
                       const struct iperf3_results *peer, const struct evaluate_times *times)
{
    const struct stream *stream = &measure->streams[i];
    const struct iperf3_stream_result *from_peer = find_peer(peer, stream->id);
    struct stream_outcome *out = &outcome->streams[outcome->n_streams++];
    const struct flow unknown = {.out_of_order = -1, .retransmits = -1};
    struct tally now;
    struct tally measured;
    stream_tally(stream, clock_now_ns(), &now);
    tally_since(&now, &measure->base[i], &measured);
    *out = (struct stream_outcome){
        .id = stream->id, .from_guest = stream->sends, .sent = unknown, .received = unknown};
    out->sent.known = stream->sends || from_peer != NULL;
    out->received.known = !stream->sends || from_peer != NULL;
    if (stream->sends) {
        out->sent.ns = less(times->settled_ns, measure->start_ns);
        out->received.ns = less(times->arrived_ns, measure->start_ns);
        forward(outcome, stream, &now, &measured, from_peer, out);
        tally_add(&outcome->sender, &now);
        outcome->sender.blocked_ns -= measure->base[i].blocked_ns; /* it goes with run_ns */
    } else {
        out->received.ns = less(stream->last_arrival_ns, measure->start_ns);
        out->sent.ns = from_peer != NULL ? seconds_to_ns(from_peer->end_s - from_peer->start_s) : 0;
        if (out->sent.ns == 0) {
            out->sent.ns = less(measure->end_ns, measure->start_ns);
        }
        backward(outcome, stream, &now, &measure->base[i], &measured, from_peer, out);
    }
    flow_add(stream->sends ? &outcome->sent : &outcome->back_sent, &out->sent);
    flow_add(stream->sends ? &outcome->received : &outcome->back_received, &out->received);
}

void evaluate(struct outcome *outcome, const struct measure *measure,
              const struct iperf3_results *peer, const struct evaluate_times *times)
{
    if (measure->start_ns == 0) {
        return;
    }
    for (unsigned i = 0; i < measure->n_streams; i++) {
        one_stream(outcome, measure, i, peer, times);
    }
}

void evaluate_own_results(const struct outcome *outcome, const struct measure *measure,
                          struct iperf3_results *results)
{
    double run_ns = (double)outcome->run_ns;
    *results = (struct iperf3_results){.n_streams = measure->n_streams};
    results->cpu_total = run_ns > 0 ? 100 * (1 - (double)outcome->idle_ns / run_ns) : 0;
    results->cpu_system = results->cpu_total;
    results->sender_has_retransmits =
        measure->streams[0].plan->udp || !measure->streams[0].sends ? -1 : 1;
    for (unsigned i = 0; i < measure->n_streams; i++) {
        const struct stream *stream = &measure->streams[i];
        const struct tally *base = &measure->base[i];
        struct tally now;
        struct tally measured;
        stream_tally(stream, clock_now_ns(), &now);
        tally_since(&now, base, &measured);
        bool tcp_sender = stream->sends && !stream->plan->udp;
        results->streams[i] = (struct iperf3_stream_result){
            .id = stream->id,
            .bytes = measured.bytes,
            .retransmits = tcp_sender ? (int64_t)measured.retransmits : -1,
            .jitter_s = (double)now.jitter_ns / (double)CLOCK_NS_PER_S,
            .errors = now.lost_packets,
            .omitted_errors = base->lost_packets,
            .packets = now.packets + now.lost_packets,
            .omitted_packets = base->packets + base->lost_packets,
            .end_s = run_ns / (double)CLOCK_NS_PER_S,
        };
    }
}
