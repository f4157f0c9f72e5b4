/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What streams have done, in one form for either direction and either protocol.
 */
#include "apps/blaster.h"

/* Greetings are the first that a socket sent, and so the first that the device consumed. */
static uint64_t without_greeting(uint64_t count, uint64_t greeting)
{
    return count > greeting ? count - greeting : 0;
}

static void tally_udp_sender(const struct stream *stream, uint64_t now_ns, struct tally *out)
{
    struct sock_udp_stats stats;
    sock_udp_stats(stream->sock, &stats);
    out->packets = without_greeting(stats.consumed, stream->greeting_packets);
    out->queued_packets = without_greeting(stats.queued, stream->greeting_packets);
    out->bytes = out->packets * stream->plan->size_bytes;
    out->blocked_ns = stream->blocked_ns;
    if (stream->blocked && now_ns > stream->blocked_since_ns) {
        out->blocked_ns += now_ns - stream->blocked_since_ns;
    }
    out->again = stats.again;
    out->writable = stats.writable;
    out->aborted = stats.aborted;
    out->send_errors = stats.send_errors;
}

static void tally_udp_receiver(const struct stream *stream, struct tally *out)
{
    out->packets = stream->seq.unique;
    out->bytes = stream->received_bytes;
    out->lost_packets = seq_lost(&stream->seq);
    out->out_of_order = stream->seq.out_of_order;
    out->duplicates = stream->seq.duplicates;
    out->malformed = stream->seq.malformed;
    out->jitter_ns = seq_jitter_ns(&stream->seq);
}

static void tally_tcp(const struct stream *stream, struct tally *out)
{
    out->bytes = stream->received_bytes;
    if (stream->sends) {
        out->bytes = without_greeting(sock_tcp_bytes_acked(stream->sock), stream->greeting_bytes);
        out->retransmits = sock_tcp_retransmits(stream->sock);
    }
}

void stream_tally(const struct stream *stream, uint64_t now_ns, struct tally *out)
{
    *out = (struct tally){0};
    if (stream->sock == NULL) {
        *out = stream->closed_tally;
    } else if (!stream->plan->udp) {
        tally_tcp(stream, out);
    } else if (stream->sends) {
        tally_udp_sender(stream, now_ns, out);
    } else {
        tally_udp_receiver(stream, out);
    }
    out->skipped_ns = stream->pacer.skipped_ns;
}

void tally_add(struct tally *sum, const struct tally *one)
{
    sum->bytes += one->bytes;
    sum->packets += one->packets;
    sum->queued_packets += one->queued_packets;
    sum->blocked_ns += one->blocked_ns;
    sum->again += one->again;
    sum->writable += one->writable;
    sum->aborted += one->aborted;
    sum->send_errors += one->send_errors;
    sum->lost_packets += one->lost_packets;
    sum->out_of_order += one->out_of_order;
    sum->duplicates += one->duplicates;
    sum->malformed += one->malformed;
    sum->jitter_ns = sum->jitter_ns > one->jitter_ns ? sum->jitter_ns : one->jitter_ns;
    sum->retransmits += one->retransmits;
    sum->skipped_ns += one->skipped_ns;
}

/* Loss may shrink when what was taken for lost comes late; an interval then shows none. */
static uint64_t grown(uint64_t now, uint64_t before)
{
    return now > before ? now - before : 0;
}

void tally_since(const struct tally *now, const struct tally *before, struct tally *out)
{
    *out = (struct tally){
        .bytes = grown(now->bytes, before->bytes),
        .packets = grown(now->packets, before->packets),
        .queued_packets = grown(now->queued_packets, before->queued_packets),
        .blocked_ns = grown(now->blocked_ns, before->blocked_ns),
        .again = grown(now->again, before->again),
        .writable = grown(now->writable, before->writable),
        .aborted = grown(now->aborted, before->aborted),
        .send_errors = grown(now->send_errors, before->send_errors),
        .lost_packets = grown(now->lost_packets, before->lost_packets),
        .out_of_order = grown(now->out_of_order, before->out_of_order),
        .duplicates = grown(now->duplicates, before->duplicates),
        .malformed = grown(now->malformed, before->malformed),
        .jitter_ns = now->jitter_ns,
        .retransmits = grown(now->retransmits, before->retransmits),
        .skipped_ns = grown(now->skipped_ns, before->skipped_ns),
    };
}
