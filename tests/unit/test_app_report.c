/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From counts to flows, and from flows to the line of JSON.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cJSON.h>

#include "apps/evaluate.h"
#include "apps/report.h"

#define NS 1000000000ull

static struct config config;
static struct outcome outcome;
static struct measure measure;
static struct iperf3_results peer;
static struct stream streams[4];
static struct stream_plan plan;
static const struct evaluate_times times = {.settled_ns = 12 * NS, .arrived_ns = 13 * NS};

static int set_up(void **state)
{
    (void)state;
    memset(&outcome, 0, sizeof outcome);
    memset(&measure, 0, sizeof measure);
    memset(&peer, 0, sizeof peer);
    memset(streams, 0, sizeof streams);
    config = (struct config){.test = CONFIG_TEST_UDP,
                             .server_ip = 0x0a000001,
                             .port = 5201,
                             .time_ns = 10 * NS,
                             .size_bytes = 1000,
                             .parallel = 1};
    plan = (struct stream_plan){.udp = true, .size_bytes = 1000};
    outcome.config = &config;
    outcome.measured = true;
    measure.outcome = &outcome;
    measure.streams = streams;
    measure.n_streams = 1;
    measure.start_ns = 2 * NS;
    measure.end_ns = 12 * NS;
    peer.n_streams = 1;
    peer.streams[0].id = 1;
    streams[0] = (struct stream){.plan = &plan, .id = 1, .sends = true};
    return 0;
}

static void sender_did(unsigned i, uint64_t packets)
{
    streams[i].closed_tally = (struct tally){.packets = packets, .bytes = packets * 1000};
}

/* ---- evaluation ---- */

static void test_all_arrived(void **state)
{
    (void)state;
    sender_did(0, 5000);
    peer.streams[0].packets = 5000;
    peer.streams[0].bytes = 5000000;
    evaluate(&outcome, &measure, &peer, &times);
    assert_int_equal(outcome.exit_code, SLUICE_EXIT_PASS);
    assert_true(outcome.sent.packets == 5000 && outcome.received.packets == 5000);
    assert_true(outcome.received.lost_packets == 0 && outcome.received.bytes == 5000000);
    /* Each on the time at which it was over. */
    assert_true(outcome.sent.ns == 10 * NS && outcome.received.ns == 11 * NS);
}

static void test_gaps_and_tail_are_lost(void **state)
{
    (void)state;
    sender_did(0, 5000);
    peer.streams[0].packets = 4990; /* the last ten never came */
    peer.streams[0].errors = 40;
    evaluate(&outcome, &measure, &peer, &times);
    assert_true(outcome.received.packets == 4950 && outcome.received.lost_packets == 50);
    assert_true(outcome.sent.packets == outcome.received.packets + outcome.received.lost_packets);
}

static void test_warm_up_of_3_12(void **state)
{
    (void)state;
    /* 1000 in the warm-up, of which 100 were lost; 5000 measured, of which 20 were lost. 3.12
     * counts all. */
    sender_did(0, 6000);
    measure.base[0] = (struct tally){.packets = 1000, .bytes = 1000000};
    peer.streams[0].packets = 6000;
    peer.streams[0].errors = 120;
    evaluate(&outcome, &measure, &peer, &times);
    assert_true(outcome.sent.packets == 5000 && outcome.received.lost_packets == 120);
    assert_true(outcome.received.packets == 4880);
    /* Later versions say what belongs to the warm-up. */
    set_up(NULL);
    sender_did(0, 6000);
    measure.base[0] = (struct tally){.packets = 1000, .bytes = 1000000};
    peer.streams[0].packets = 6000;
    peer.streams[0].errors = 120;
    peer.streams[0].omitted_errors = 100;
    evaluate(&outcome, &measure, &peer, &times);
    assert_true(outcome.received.lost_packets == 20 && outcome.received.packets == 4980);
}

/* What the counters along the path have seen has no warm-up taken off, in either direction. */
static void test_totals_count_the_warm_up(void **state)
{
    (void)state;
    measure.n_streams = peer.n_streams = 2;
    sender_did(0, 6000);
    measure.base[0] = (struct tally){.packets = 1000, .bytes = 1000000};
    peer.streams[0].packets = 6000;
    peer.streams[0].errors = 120;
    streams[1] = (struct stream){.plan = &plan, .id = 3};
    streams[1].closed_tally = (struct tally){.packets = 8000, .lost_packets = 50};
    measure.base[1] = (struct tally){.packets = 2000, .lost_packets = 40};
    peer.streams[1] = (struct iperf3_stream_result){.id = 3, .packets = 8060};
    evaluate(&outcome, &measure, &peer, &times);
    assert_true(outcome.sender.packets == 6000 && outcome.totals.arrived == 5880);
    assert_true(outcome.totals.back_sent == 8060 && outcome.totals.back_arrived == 8000);
    assert_true(outcome.back_sent.packets == 6020 && outcome.back_received.packets == 6000);
    char *text = report_json_text(&outcome);
    assert_non_null(text);
    assert_non_null(strstr(text, "\"arrived\":5880,\"back_sent\":8060,\"back_arrived\":8000"));
    free(text);
}

static void test_more_than_was_sent_is_not_valid(void **state)
{
    (void)state;
    sender_did(0, 5000);
    peer.streams[0].packets = 5001;
    evaluate(&outcome, &measure, &peer, &times);
    assert_int_equal(outcome.exit_code, SLUICE_EXIT_INVALID);
    assert_true(outcome.received.lost_packets == 0);
}

static void test_beyond_32_bits(void **state)
{
    uint64_t sent = 3000000000;
    (void)state;
    sender_did(0, sent);
    /* The peer's counters went around; its bytes did not. */
    peer.streams[0].packets = 0;
    peer.streams[0].bytes = (sent - 7) * 1000;
    evaluate(&outcome, &measure, &peer, &times);
    assert_int_equal(outcome.exit_code, SLUICE_EXIT_PASS);
    assert_true(outcome.received.lost_packets == 7);
}

static void test_server_never_said(void **state)
{
    (void)state;
    sender_did(0, 5000);
    evaluate(&outcome, &measure, NULL, &times);
    assert_true(outcome.sent.known && !outcome.received.known);
    assert_true(outcome.sent.packets == 5000);
}

static void test_both_directions(void **state)
{
    (void)state;
    config.bidir = true;
    measure.n_streams = 2;
    peer.n_streams = 2;
    sender_did(0, 5000);
    peer.streams[0].packets = 5000;
    streams[1] = (struct stream){.plan = &plan, .id = 3, .last_arrival_ns = 7 * NS};
    streams[1].closed_tally = (struct tally){
        .packets = 900, .bytes = 900000, .lost_packets = 90, .out_of_order = 4, .duplicates = 2};
    peer.streams[1] = (struct iperf3_stream_result){.id = 3, .packets = 1000, .bytes = 1000000};
    evaluate(&outcome, &measure, &peer, &times);
    assert_true(outcome.back_sent.packets == 1000 && outcome.back_received.packets == 900);
    assert_true(outcome.back_received.lost_packets == 100); /* 90 gaps and a tail of 10 */
    assert_true(outcome.back_received.out_of_order == 4 && outcome.back_received.duplicates == 2);
    assert_true(outcome.back_received.ns == 5 * NS);
    assert_true(outcome.sender.packets == 5000);
}

static void test_own_results(void **state)
{
    static struct iperf3_results own;
    (void)state;
    sender_did(0, 6000);
    measure.base[0] = (struct tally){.packets = 1000, .bytes = 1000000};
    outcome.run_ns = 10 * NS;
    outcome.idle_ns = 4 * NS;
    evaluate_own_results(&outcome, &measure, &own);
    assert_true(own.streams[0].packets == 6000 && own.streams[0].omitted_packets == 1000);
    assert_true(own.streams[0].bytes == 5000000 && own.streams[0].retransmits == -1);
    assert_true(own.cpu_total > 59.9 && own.cpu_total < 60.1);
}

/* ---- intervals ---- */

static void test_intervals_are_joined_when_full(void **state)
{
    uint64_t n = OUTCOME_MAX_INTERVALS * 5 + 3;
    uint64_t bytes = 0;
    uint64_t sending_ns = 0;
    (void)state;
    for (uint64_t i = 0; i < n; i++) {
        struct interval interval = {.start_ns = i * NS,
                                    .end_ns = (i + 1) * NS,
                                    .back_end_ns = (i + 1) * NS,
                                    .sending_ns = NS,
                                    .forward.bytes = i,
                                    .stops = 1};
        outcome_add_interval(&outcome, &interval);
    }
    assert_true(outcome.n_intervals <= OUTCOME_MAX_INTERVALS);
    assert_true(outcome.intervals[0].start_ns == 0);
    for (unsigned i = 0; i < outcome.n_intervals; i++) {
        bytes += outcome.intervals[i].forward.bytes;
        assert_true(i == 0 || outcome.intervals[i].start_ns == outcome.intervals[i - 1].end_ns);
        sending_ns += outcome.intervals[i].sending_ns;
    }
    assert_true(outcome.intervals[outcome.n_intervals - 1].end_ns == n * NS);
    assert_true(outcome.intervals[outcome.n_intervals - 1].back_end_ns == n * NS);
    assert_true(bytes == n * (n - 1) / 2);
    assert_true(sending_ns == n * NS);
}

/* What report_row prints. */
static const char *row_text(const struct interval *interval)
{
    static char text[512];
    FILE *file = tmpfile();
    assert_non_null(file);
    (void)fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
    report_row(&outcome, interval);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    (void)close(saved);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    return text;
}

/* The share of the time in which the streams sent, whatever the row's last datagram took to leave.
 */
static void test_text_of_a_row(void **state)
{
    struct interval interval = {.start_ns = NS, .end_ns = 3 * NS, .sending_ns = NS};
    (void)state;
    config.parallel = 4;
    assert_non_null(strstr(row_text(&interval), " 0.00 bit/s "));
    assert_non_null(strstr(row_text(&interval), "  0.0%\n"));
    interval.forward = (struct tally){.bytes = 250000, .packets = 250, .blocked_ns = 4 * NS};
    assert_non_null(strstr(row_text(&interval), " 1.00 Mbit/s "));
    assert_non_null(strstr(row_text(&interval), " 100.0%\n"));
    interval.forward.blocked_ns = NS;
    assert_non_null(strstr(row_text(&interval), "  25.0%\n"));
    interval = (struct interval){.start_ns = NS, .end_ns = NS};
    assert_non_null(strstr(row_text(&interval), "  0.0%\n"));
}

/* ---- JSON ---- */

static double number(const cJSON *object, const char *path)
{
    char copy[80];
    strncpy(copy, path, sizeof copy - 1);
    copy[sizeof copy - 1] = '\0';
    for (char *key = strtok(copy, "."); key != NULL; key = strtok(NULL, ".")) {
        object = cJSON_GetObjectItemCaseSensitive(object, key);
        if (object == NULL) {
            fail_msg("%s is missing", path);
            return 0;
        }
    }
    return object->valuedouble;
}

static cJSON *report(void)
{
    char *text = report_json_text(&outcome);
    assert_non_null(text);
    assert_true(strncmp(text, "{\"start\":", 9) == 0 && strchr(text, '\n') == NULL);
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    free(text);
    return json;
}

static void test_json_of_a_pass(void **state)
{
    (void)state;
    sender_did(0, 5000);
    peer.streams[0].packets = 4998;
    evaluate(&outcome, &measure, &peer, &times);
    struct interval interval = {.end_ns = NS, .forward = {.bytes = 1000, .packets = 1}, .stops = 3};
    outcome_add_interval(&outcome, &interval);
    outcome.drained = true;
    cJSON *json = report();
    assert_true(number(json, "end.sum_sent.packets") == 5000);
    assert_true(number(json, "end.sum_received.packets") == 4998);
    assert_true(number(json, "end.sum_received.lost_packets") == 2);
    assert_true(number(json, "end.sum_sent.bits_per_second") == 4000000);
    assert_true(number(json, "sluice.exit_code") == 0);
    assert_true(number(json, "sluice.udp.sent") == 5000);
    assert_true(number(json, "sluice.peer.packets") == 4998);
    assert_true(number(json, "start.test_start.blksize") == 1000);
    assert_null(cJSON_GetObjectItem(json, "error"));
    cJSON *sum =
        cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "intervals"), 0), "sum");
    assert_true(number(sum, "bytes") == 1000 && number(sum, "stops") == 3);
    cJSON *sent = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "end"), "sum_sent");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(sent, "out_of_order")));
    cJSON_Delete(json);
}

static void test_json_keeps_64_bits(void **state)
{
    (void)state;
    sender_did(0, 1);
    evaluate(&outcome, &measure, NULL, &times);
    outcome.sent.bytes = UINT64_MAX;
    outcome.sender.blocked_ns = 9007199254740993; /* 2^53 + 1 */
    char *text = report_json_text(&outcome);
    assert_non_null(strstr(text, "\"bytes\":18446744073709551615,"));
    assert_non_null(strstr(text, "\"blocked_ns\":9007199254740993,"));
    free(text);
}

static void test_json_of_failures(void **state)
{
    (void)state;
    outcome.measured = false;
    outcome_fail(&outcome, SLUICE_EXIT_PEER, "the \"server\" is\tbusy");
    outcome_fail(&outcome, SLUICE_EXIT_INVALID, "a consequence");
    cJSON *json = report();
    assert_string_equal(cJSON_GetObjectItem(json, "error")->valuestring, "the \"server\" is\tbusy");
    assert_true(number(json, "sluice.exit_code") == 2);
    assert_null(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "end"), "sum_sent"));
    cJSON_Delete(json);
    /* A run that was cut off says what it sent, and not what arrived. */
    outcome.measured = true;
    sender_did(0, 10);
    evaluate(&outcome, &measure, NULL, &times);
    json = report();
    assert_true(number(json, "end.sum_sent.packets") == 10);
    assert_null(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "end"), "sum_received"));
    cJSON_Delete(json);
}

static void test_which_failure_stands(void **state)
{
    (void)state;
    outcome_fail(&outcome, SLUICE_EXIT_PEER, "the cause");
    outcome_fail(&outcome, SLUICE_EXIT_INVALID, "its consequence");
    assert_string_equal(outcome.reason, "the cause");
    outcome_fail(&outcome, SLUICE_EXIT_INVARIANT, "the ledger");
    assert_int_equal(outcome.exit_code, SLUICE_EXIT_INVARIANT);
    assert_string_equal(outcome.reason, "the ledger");
}

static void test_json_of_bidir_and_tcp(void **state)
{
    (void)state;
    config.test = CONFIG_TEST_TCP;
    config.bidir = true;
    plan.udp = false;
    measure.n_streams = 2;
    peer.n_streams = 2;
    sender_did(0, 1);
    streams[0].closed_tally.retransmits = 5;
    streams[1] = (struct stream){.plan = &plan, .id = 3, .last_arrival_ns = 12 * NS};
    streams[1].closed_tally.bytes = 77;
    peer.streams[0].bytes = 1000;
    peer.streams[1] = (struct iperf3_stream_result){.id = 3, .bytes = 77, .retransmits = 6};
    evaluate(&outcome, &measure, &peer, &times);
    struct interval interval = {.end_ns = NS, .back_end_ns = 2 * NS};
    outcome_add_interval(&outcome, &interval);
    cJSON *json = report();
    assert_true(number(json, "end.sum_sent.retransmits") == 5);
    assert_true(number(json, "end.sum_received.bytes") == 1000);
    assert_true(number(json, "end.sum_sent_bidir_reverse.retransmits") == 6);
    assert_true(number(json, "end.sum_received_bidir_reverse.bytes") == 77);
    const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "intervals"), 0);
    assert_true(number(row, "sum.end") == 1 && number(row, "sum_bidir_reverse.end") == 2);
    cJSON_Delete(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_all_arrived, set_up),
        cmocka_unit_test_setup(test_gaps_and_tail_are_lost, set_up),
        cmocka_unit_test_setup(test_warm_up_of_3_12, set_up),
        cmocka_unit_test_setup(test_totals_count_the_warm_up, set_up),
        cmocka_unit_test_setup(test_more_than_was_sent_is_not_valid, set_up),
        cmocka_unit_test_setup(test_beyond_32_bits, set_up),
        cmocka_unit_test_setup(test_server_never_said, set_up),
        cmocka_unit_test_setup(test_both_directions, set_up),
        cmocka_unit_test_setup(test_own_results, set_up),
        cmocka_unit_test_setup(test_intervals_are_joined_when_full, set_up),
        cmocka_unit_test_setup(test_text_of_a_row, set_up),
        cmocka_unit_test_setup(test_json_of_a_pass, set_up),
        cmocka_unit_test_setup(test_json_keeps_64_bits, set_up),
        cmocka_unit_test_setup(test_json_of_failures, set_up),
        cmocka_unit_test_setup(test_which_failure_stands, set_up),
        cmocka_unit_test_setup(test_json_of_bidir_and_tcp, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
