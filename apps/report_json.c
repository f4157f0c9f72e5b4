/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The results of a run as one JSON object: iperf3's keys where iperf3 has one, all else under
 * `sluice`.
 */
#include "apps/ip_text.h"
#include "apps/report.h"

#include <stdio.h>

#include "apps/json_number.h"
#include "boot/clock.h"

#define REPORT_VERSION "sluice 1"

static double seconds(uint64_t ns)
{
    return (double)ns / (double)CLOCK_NS_PER_S;
}

static double bits_per_second(uint64_t bytes, uint64_t ns)
{
    return ns != 0 ? (double)bytes * 8 / seconds(ns) : 0;
}

static double percent_of(uint64_t part, uint64_t whole)
{
    return whole != 0 ? 100 * (double)part / (double)whole : 0;
}

static bool is_client(const struct config *config)
{
    return config->test == CONFIG_TEST_UDP || config->test == CONFIG_TEST_TCP;
}

static bool add_start(cJSON *root, const struct outcome *outcome)
{
    const struct config *config = outcome->config;
    cJSON *start = cJSON_AddObjectToObject(root, "start");
    bool ok = start != NULL && json_add_text(start, "version", REPORT_VERSION) &&
              json_add_u64(start, "timestamp_ns", clock_now_ns());
    if (!ok || !is_client(config)) {
        return ok;
    }
    struct ip_text host = ip_text(config->server_ip);
    cJSON *peer = cJSON_AddObjectToObject(start, "connecting_to");
    cJSON *test = cJSON_AddObjectToObject(start, "test_start");
    return peer != NULL && test != NULL && json_add_text(peer, "host", host.text) &&
           json_add_u64(peer, "port", config->port) &&
           json_add_text(test, "protocol", config->test == CONFIG_TEST_UDP ? "UDP" : "TCP") &&
           json_add_u64(test, "num_streams", config->parallel) &&
           json_add_u64(test, "blksize", config->size_bytes) &&
           json_add_double(test, "omit", seconds(config->omit_ns)) &&
           json_add_double(test, "duration", seconds(config->time_ns)) &&
           json_add_u64(test, "reverse", config->reverse) &&
           json_add_u64(test, "bidir", config->bidir) &&
           json_add_u64(test, "target_bitrate", config->rate_bits);
}

static bool add_interval_sum(cJSON *parent, const char *key, const struct interval *interval,
                             const struct tally *tally, bool sender, bool udp)
{
    uint64_t end_ns = sender ? interval->end_ns : interval->back_end_ns;
    uint64_t ns = end_ns - interval->start_ns;
    cJSON *sum = cJSON_AddObjectToObject(parent, key);
    bool ok =
        sum != NULL && json_add_double(sum, "start", seconds(interval->start_ns)) &&
        json_add_double(sum, "end", seconds(end_ns)) &&
        json_add_double(sum, "seconds", seconds(ns)) && json_add_u64(sum, "bytes", tally->bytes) &&
        json_add_double(sum, "bits_per_second", bits_per_second(tally->bytes, ns)) &&
        json_add_bool(sum, "omitted", interval->omitted) && json_add_bool(sum, "sender", sender);
    if (ok && udp) {
        ok = json_add_u64(sum, "packets", tally->packets);
        if (!sender) {
            uint64_t total = tally->packets + tally->lost_packets;
            ok = ok && json_add_double(sum, "jitter_ms", (double)tally->jitter_ns / 1e6) &&
                 json_add_u64(sum, "lost_packets", tally->lost_packets) &&
                 json_add_double(sum, "lost_percent", percent_of(tally->lost_packets, total));
        }
    } else if (ok && sender) {
        ok = json_add_u64(sum, "retransmits", tally->retransmits);
    }
    return ok && (!sender || json_add_u64(sum, "stops", interval->stops));
}

static bool add_intervals(cJSON *root, const struct outcome *outcome)
{
    const struct config *config = outcome->config;
    bool udp = config->test == CONFIG_TEST_UDP;
    cJSON *array = cJSON_AddArrayToObject(root, "intervals");
    bool ok = array != NULL;
    for (unsigned i = 0; ok && i < outcome->n_intervals; i++) {
        const struct interval *interval = &outcome->intervals[i];
        cJSON *item = cJSON_CreateObject();
        ok = cJSON_AddItemToArray(array, item) &&
             add_interval_sum(item, "sum", interval,
                              config->reverse ? &interval->back : &interval->forward,
                              !config->reverse, udp) &&
             (!config->bidir ||
              add_interval_sum(item, "sum_bidir_reverse", interval, &interval->back, false, udp));
    }
    return ok;
}

static bool add_known(cJSON *object, const char *key, int64_t value)
{
    return value >= 0 ? json_add_i64(object, key, value)
                      : cJSON_AddNullToObject(object, key) != NULL;
}

static bool add_flow(cJSON *parent, const char *key, const struct flow *flow, bool udp)
{
    if (!flow->known) {
        return true;
    }
    cJSON *sum = cJSON_AddObjectToObject(parent, key);
    bool ok = sum != NULL && json_add_double(sum, "seconds", seconds(flow->ns)) &&
              json_add_u64(sum, "bytes", flow->bytes) &&
              json_add_double(sum, "bits_per_second", bits_per_second(flow->bytes, flow->ns));
    if (!udp) {
        return ok && add_known(sum, "retransmits", flow->retransmits);
    }
    return ok && json_add_u64(sum, "packets", flow->packets) &&
           json_add_u64(sum, "lost_packets", flow->lost_packets) &&
           json_add_double(sum, "lost_percent",
                           percent_of(flow->lost_packets, flow->packets + flow->lost_packets)) &&
           add_known(sum, "out_of_order", flow->out_of_order) &&
           json_add_u64(sum, "duplicates", flow->duplicates) &&
           json_add_double(sum, "jitter_ms", (double)flow->jitter_ns / 1e6);
}

static bool add_streams(cJSON *end, const struct outcome *outcome, bool udp)
{
    cJSON *array = cJSON_AddArrayToObject(end, "streams");
    bool ok = array != NULL;
    for (unsigned i = 0; ok && i < outcome->n_streams; i++) {
        const struct stream_outcome *stream = &outcome->streams[i];
        cJSON *item = cJSON_CreateObject();
        ok = cJSON_AddItemToArray(array, item) && json_add_u64(item, "id", stream->id) &&
             json_add_bool(item, "from_guest", stream->from_guest) &&
             add_flow(item, "sender", &stream->sent, udp) &&
             add_flow(item, "receiver", &stream->received, udp);
    }
    return ok;
}

static bool add_end(cJSON *root, const struct outcome *outcome)
{
    const struct config *config = outcome->config;
    bool udp = config->test == CONFIG_TEST_UDP;
    cJSON *end = cJSON_AddObjectToObject(root, "end");
    if (end == NULL || !outcome->measured) {
        return end != NULL;
    }
    const struct flow *sent = config->reverse ? &outcome->back_sent : &outcome->sent;
    const struct flow *received = config->reverse ? &outcome->back_received : &outcome->received;
    return add_streams(end, outcome, udp) && add_flow(end, "sum_sent", sent, udp) &&
           add_flow(end, "sum_received", received, udp) &&
           (!config->bidir ||
            (add_flow(end, "sum_sent_bidir_reverse", &outcome->back_sent, udp) &&
             add_flow(end, "sum_received_bidir_reverse", &outcome->back_received, udp)));
}

static bool add_sender(cJSON *sluice, const struct outcome *outcome)
{
    const struct tally *sender = &outcome->sender;
    cJSON *udp = cJSON_AddObjectToObject(sluice, "udp");
    cJSON *peer = cJSON_AddObjectToObject(sluice, "peer");
    return udp != NULL && peer != NULL && json_add_u64(udp, "queued", sender->queued_packets) &&
           json_add_u64(udp, "sent", sender->packets) &&
           json_add_u64(udp, "aborted", sender->aborted) &&
           json_add_u64(udp, "blocked_ns", sender->blocked_ns) &&
           json_add_u64(udp, "again", sender->again) &&
           json_add_u64(udp, "writable", sender->writable) &&
           json_add_u64(udp, "send_errors", sender->send_errors) &&
           json_add_u64(udp, "skipped_ns", sender->skipped_ns) &&
           json_add_u64(udp, "arrived", outcome->totals.arrived) &&
           json_add_u64(udp, "back_sent", outcome->totals.back_sent) &&
           json_add_u64(udp, "back_arrived", outcome->totals.back_arrived) &&
           json_add_u64(peer, "bytes", outcome->peer.bytes) &&
           json_add_u64(peer, "packets", outcome->peer.packets) &&
           json_add_u64(peer, "errors", outcome->peer.errors);
}

static bool add_drain(cJSON *sluice, const struct outcome *outcome)
{
    if (!outcome->drained) {
        return true;
    }
    cJSON *drain = cJSON_AddObjectToObject(sluice, "drain");
    return drain != NULL && json_add_bool(drain, "in_flight_zero", outcome->drain_in_flight_zero) &&
           json_add_bool(drain, "echo_answered", outcome->drain_echo_answered) &&
           json_add_u64(drain, "waited_ns", outcome->drain_waited_ns) &&
           json_add_u64(drain, "quiet_ns", outcome->drain_quiet_ns);
}

static bool add_sluice(cJSON *root, const struct outcome *outcome)
{
    cJSON *sluice = cJSON_AddObjectToObject(root, "sluice");
    bool passed = outcome->exit_code == SLUICE_EXIT_PASS;
    bool ok = sluice != NULL && json_add_u64(sluice, "exit_code", (uint64_t)outcome->exit_code) &&
              json_add_text(sluice, "reason", passed ? "pass" : outcome->reason) &&
              json_add_text(sluice, "test", config_test_names[outcome->config->test]) &&
              json_add_text(sluice, "clock", clock_source()) &&
              json_add_u64(sluice, "tsc_hz", clock_tsc_hz()) &&
              json_add_u64(sluice, "boot_ns", outcome->boot_ns) &&
              json_add_u64(sluice, "idle_ns", outcome->idle_ns) &&
              json_add_u64(sluice, "run_ns", outcome->run_ns) &&
              json_add_u64(sluice, "link_losses", outcome->link_losses);
    if (ok && outcome->measured) {
        ok = add_sender(sluice, outcome) && add_drain(sluice, outcome);
    }
    return ok && (!outcome->net_is_open || report_device(sluice));
}

char *report_json_text(const struct outcome *outcome)
{
    cJSON *root = cJSON_CreateObject();
    bool ok =
        root != NULL && add_start(root, outcome) && add_intervals(root, outcome) &&
        add_end(root, outcome) &&
        (outcome->exit_code == SLUICE_EXIT_PASS || json_add_text(root, "error", outcome->reason)) &&
        add_sluice(root, outcome);
    char *text = ok ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}
