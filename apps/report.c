/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "boot/clock.h"

/* "94.23 Mbit/s", "11.21 MiB": the unit that leaves one to three digits before the point. */
static const char *scaled(char text[24], double value, double base, const char *const units[])
{
    unsigned i = 0;
    while (value >= base && units[i + 1] != NULL) {
        value /= base;
        i++;
    }
    snprintf(text, 24, "%6.2f %s", value, units[i]);
    return text;
}

static const char *bytes_text(char text[24], uint64_t bytes)
{
    static const char *const units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", NULL};
    return scaled(text, (double)bytes, 1024, units);
}

static const char *rate_text(char text[24], uint64_t bytes, uint64_t ns)
{
    static const char *const units[] = {"bit/s ", "kbit/s", "Mbit/s", "Gbit/s", NULL};
    double seconds = (double)ns / (double)CLOCK_NS_PER_S;
    return scaled(text, seconds > 0 ? (double)bytes * 8 / seconds : 0, 1000, units);
}

static double seconds(uint64_t ns)
{
    return (double)ns / (double)CLOCK_NS_PER_S;
}

static bool sends(const struct config *config)
{
    return !config->reverse;
}

static bool receives(const struct config *config)
{
    return config->reverse || config->bidir;
}

static bool is_udp(const struct outcome *outcome)
{
    return outcome->config->test == CONFIG_TEST_UDP;
}

void report_row_header(const struct outcome *outcome)
{
    printf("dir  %13s  %12s  %14s", "seconds", "transfer", "bitrate");
    if (is_udp(outcome)) {
        printf("  %8s", "kpps");
    }
    if (receives(outcome->config) && is_udp(outcome)) {
        printf("  %20s  %10s", "lost/total", "jitter");
    }
    if (sends(outcome->config)) {
        printf("  %7s  %8s", "stops", is_udp(outcome) ? "blocked" : "retrans");
    }
    printf("\n");
}

static void print_amounts(const struct outcome *outcome, const char *dir, uint64_t start_ns,
                          uint64_t end_ns, const struct tally *tally)
{
    char bytes[24];
    char rate[24];
    printf("%-4s %6.2f-%-6.2f  %12s  %14s", dir, seconds(start_ns), seconds(end_ns),
           bytes_text(bytes, tally->bytes), rate_text(rate, tally->bytes, end_ns - start_ns));
    if (is_udp(outcome)) {
        double kilo_packets = (double)tally->packets / 1000;
        printf("  %8.2f", end_ns > start_ns ? kilo_packets / seconds(end_ns - start_ns) : 0);
    }
}

static void print_loss(const struct tally *tally)
{
    char loss[32];
    uint64_t total = tally->packets + tally->lost_packets;
    double percent = total != 0 ? 100 * (double)tally->lost_packets / (double)total : 0;
    snprintf(loss, sizeof loss, "%" PRIu64 "/%" PRIu64 " (%.2g%%)", tally->lost_packets, total,
             percent);
    printf("  %20s  %7.3f ms", loss, (double)tally->jitter_ns / 1e6);
}

void report_row(const struct outcome *outcome, const struct interval *interval)
{
    const char *note = interval->omitted ? "  (omitted)" : "";
    if (sends(outcome->config)) {
        const struct tally *forward = &interval->forward;
        print_amounts(outcome, "tx", interval->start_ns, interval->end_ns, forward);
        if (is_udp(outcome) && receives(outcome->config)) {
            printf("  %20s  %10s", "", "");
        }
        printf("  %7" PRIu64, interval->stops);
        if (is_udp(outcome)) {
            double stream_ns = (double)interval->sending_ns * outcome->config->parallel;
            printf("  %7.1f%%", stream_ns > 0 ? 100 * (double)forward->blocked_ns / stream_ns : 0);
        } else {
            printf("  %8" PRIu64, forward->retransmits);
        }
        printf("%s\n", note);
    }
    if (receives(outcome->config)) {
        print_amounts(outcome, "rx", interval->start_ns, interval->back_end_ns, &interval->back);
        if (is_udp(outcome)) {
            print_loss(&interval->back);
        }
        printf("%s\n", note);
    }
    fflush(stdout);
}

static void print_flow(const struct outcome *outcome, const char *who, const struct flow *flow)
{
    char bytes[24];
    char rate[24];
    if (!flow->known) {
        printf("%-24s not known\n", who);
        return;
    }
    printf("%-24s %9.3f s  %12s  %14s", who, seconds(flow->ns), bytes_text(bytes, flow->bytes),
           rate_text(rate, flow->bytes, flow->ns));
    if (is_udp(outcome)) {
        printf("  %10" PRIu64 " datagrams", flow->packets);
    } else if (flow->retransmits >= 0) {
        printf("  %" PRId64 " retransmits", flow->retransmits);
    }
    printf("\n");
}

static void print_pair(const struct outcome *outcome, const char *sent_by, const struct flow *sent,
                       const char *received_by, const struct flow *received)
{
    print_flow(outcome, sent_by, sent);
    print_flow(outcome, received_by, received);
    if (is_udp(outcome) && sent->known && received->known) {
        double percent =
            sent->packets != 0 ? 100 * (double)received->lost_packets / (double)sent->packets : 0;
        printf("%-24s %" PRIu64 " of %" PRIu64 " datagrams (%.3g%%), jitter %.3f ms\n", "lost",
               received->lost_packets, sent->packets, percent, (double)received->jitter_ns / 1e6);
    }
}

void report_summary(const struct outcome *outcome)
{
    const struct config *config = outcome->config;
    if (!outcome->measured) {
        return;
    }
    printf("----\n");
    if (sends(config)) {
        print_pair(outcome, "guest sent", &outcome->sent, "server received", &outcome->received);
    }
    if (receives(config)) {
        print_pair(outcome, "server sent", &outcome->back_sent, "guest received",
                   &outcome->back_received);
    }
    if (sends(config) && is_udp(outcome)) {
        printf("%-24s %.3f s in all streams, %" PRIu64 " times\n", "waited for room",
               seconds(outcome->sender.blocked_ns), outcome->sender.again);
    }
}

void report_json(const struct outcome *outcome)
{
    char *text = report_json_text(outcome);
    if (text == NULL) {
        printf(
            "{\"start\":{},\"error\":\"no memory for the report\",\"sluice\":{\"exit_code\":%d}}\n",
            outcome->exit_code != 0 ? (int)outcome->exit_code : (int)SLUICE_EXIT_INVALID);
    } else {
        printf("%s\n", text);
    }
    free(text);
    fflush(stdout);
}
