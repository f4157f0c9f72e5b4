/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The words of iperf3: what is said is what 3.12 says, and nothing that a server says does harm.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cJSON.h>

#include "apps/iperf3_proto.h"
#include "apps/iperf3_wire.h"

/* ---- what is said ---- */

static uint32_t counter;

static uint32_t next_random(void)
{
    return counter++ * 2654435761u;
}

static void test_cookie(void **state)
{
    char cookie[IPERF3_COOKIE_BYTES];
    (void)state;
    iperf3_make_cookie(cookie, next_random);
    assert_int_equal(strlen(cookie), 36);
    assert_int_equal(strspn(cookie, "abcdefghijklmnopqrstuvwxyz234567"), 36);
}

static void test_stream_ids(void **state)
{
    (void)state;
    assert_int_equal(iperf3_stream_id(0), 1);
    assert_int_equal(iperf3_stream_id(1), 3);
    assert_int_equal(iperf3_stream_id(2), 4);
    assert_int_equal(iperf3_stream_id(255), 257);
}

static void test_params(void **state)
{
    struct iperf3_params params = {.udp = true,
                                   .time_s = 10,
                                   .parallel = 4,
                                   .size_bytes = 1024,
                                   .rate_bits = 12345678901234,
                                   .bidir = true,
                                   .window_bytes = 425984};
    (void)state;
    char *text = iperf3_params_text(&params);
    assert_string_equal(text, "{\"udp\":true,\"omit\":0,\"time\":10,\"num\":0,\"blockcount\":0,"
                              "\"parallel\":4,\"bidirectional\":true,\"window\":425984,"
                              "\"len\":1024,\"bandwidth\":12345678901234,\"pacing_timer\":1000,"
                              "\"udp_counters_64bit\":true,\"client_version\":\"3.12\"}");
    free(text);
    params = (struct iperf3_params){
        .time_s = 1, .omit_s = 2, .parallel = 1, .size_bytes = 131072, .reverse = true};
    text = iperf3_params_text(&params);
    assert_string_equal(text, "{\"tcp\":true,\"omit\":2,\"time\":1,\"num\":0,\"blockcount\":0,"
                              "\"parallel\":1,\"reverse\":true,\"len\":131072,"
                              "\"pacing_timer\":1000,\"client_version\":\"3.12\"}");
    free(text);
}

static void test_results_round_trip(void **state)
{
    static struct iperf3_results said, heard;
    const char *why;
    (void)state;
    said = (struct iperf3_results){
        .cpu_total = 12.5, .sender_has_retransmits = -1, .n_streams = 2 * IPERF3_MAX_STREAMS};
    for (unsigned i = 0; i < said.n_streams; i++) {
        said.streams[i] = (struct iperf3_stream_result){.id = iperf3_stream_id(i),
                                                        .bytes = 9007199254740991 - i,
                                                        .retransmits = -1,
                                                        .jitter_s = 0.25,
                                                        .errors = i,
                                                        .packets = 5000000000ull + i,
                                                        .omitted_errors = 1,
                                                        .omitted_packets = 2,
                                                        .end_s = 10.5};
    }
    char *text = iperf3_results_text(&said);
    /* Both or neither: some servers refuse one without the other. */
    assert_non_null(strstr(text, "\"omitted_errors\":1"));
    assert_non_null(strstr(text, "\"omitted_packets\":2"));
    assert_true(strlen(text) < IPERF3_MAX_JSON_BYTES);
    assert_true(iperf3_results_parse(text, strlen(text), said.n_streams, &heard, &why));
    assert_memory_equal(said.streams, heard.streams, sizeof said.streams);
    free(text);
}

static void test_udp_header(void **state)
{
    static const uint8_t wire[16] = {0, 0, 3, 0x22, 0, 4, 0x55, 0xce, 0, 0, 0, 1, 0, 0, 0, 2};
    uint8_t payload[16];
    uint64_t seq, sent_ns;
    (void)state;
    iperf3_put_udp_header(payload, 0x100000002, 802284110999);
    assert_memory_equal(payload, wire, 16);
    iperf3_get_udp_header(payload, &seq, &sent_ns);
    assert_true(seq == 0x100000002 && sent_ns == 802284110000);
    memset(payload, 0xff, 16);
    iperf3_get_udp_header(payload, &seq, &sent_ns);
    assert_true(seq == UINT64_MAX);
}

static void test_udp_answer(void **state)
{
    (void)state;
    assert_memory_equal(iperf3_udp_hello, "9876", 4);
    assert_true(iperf3_is_udp_answer((const uint8_t *)"6789", 4));
    assert_true(iperf3_is_udp_answer((const uint8_t *)"\xb1\x68\xde\x3a", 4));
    assert_false(iperf3_is_udp_answer((const uint8_t *)"9876", 4));
    assert_false(iperf3_is_udp_answer((const uint8_t *)"67890", 5));
    assert_false(iperf3_is_udp_answer((const uint8_t *)"678", 3));
}

/* ---- what a server may say ---- */

#define HEAD                                                                                       \
    "{\"cpu_util_total\":1,\"cpu_util_user\":0,\"cpu_util_system\":1,"                             \
    "\"sender_has_retransmits\":18446744073709551615,\"streams\":["
#define STREAM(id)                                                                                 \
    "{\"id\":" id ",\"bytes\":1000,\"retransmits\":18446744073709551615,\"jitter\":3e-05,"         \
    "\"errors\":1,\"packets\":5,\"start_time\":0,\"end_time\":1.04}"

static bool parse(const char *text, unsigned n_streams, struct iperf3_results *out)
{
    const char *why = NULL;
    /* Exactly as long as it is, so that the sanitizer sees a read beyond. */
    size_t len = strlen(text);
    char *copy = malloc(len != 0 ? len : 1);
    memcpy(copy, text, len);
    bool ok = iperf3_results_parse(copy, len, n_streams, out, &why);
    free(copy);
    assert_true(ok == (why == NULL));
    return ok;
}

static void test_results_of_3_12(void **state)
{
    static struct iperf3_results out;
    (void)state;
    assert_true(parse(HEAD STREAM("1") "," STREAM("3") "]}", 2, &out));
    assert_int_equal(out.n_streams, 2);
    assert_true(out.sender_has_retransmits == -1 && out.streams[1].retransmits == -1);
    assert_true(out.streams[1].id == 3 && out.streams[1].bytes == 1000);
    assert_true(out.streams[0].omitted_packets == 0);
    /* Order is the server's own affair. */
    assert_true(parse(HEAD STREAM("4") "," STREAM("1") "," STREAM("3") "]}", 3, &out));
}

static void test_hostile_results(void **state)
{
    static struct iperf3_results out;
    static const struct {
        const char *text;
        unsigned n_streams;
    } bad[] = {
        {"", 1},
        {"{", 1},
        {"null", 1},
        {"[]", 1},
        {"\"x\"", 1},
        {"{}", 1},
        {"{\"streams\":[]}", 1},
        {HEAD "]}", 1},
        {HEAD STREAM("1") "]", 1},
        {HEAD STREAM("2") "]}", 1},
        {HEAD STREAM("0") "]}", 1},
        {HEAD STREAM("3") "]}", 1},
        {HEAD STREAM("-1") "]}", 1},
        {HEAD STREAM("1.5e300") "]}", 1},
        {HEAD STREAM("\"1\"") "]}", 1},
        {HEAD STREAM("1") "," STREAM("1") "]}", 2},
        {HEAD STREAM("1") "," STREAM("3") "]}", 1},
        {HEAD STREAM("1") "]}", 2},
        {HEAD "7]}", 1},
        {HEAD "null]}", 1},
        {HEAD "{\"id\":1,\"bytes\":-5,\"retransmits\":0,\"jitter\":0,\"errors\":0,\"packets\":0}]}",
         1},
        {HEAD "{\"id\":1,\"bytes\":1e300,\"retransmits\":0,\"jitter\":0,\"errors\":0,"
              "\"packets\":0}]}",
         1},
        {HEAD "{\"id\":1,\"bytes\":1e999,\"retransmits\":0,\"jitter\":0,\"errors\":0,"
              "\"packets\":0}]}",
         1},
        {HEAD "{\"id\":1,\"bytes\":0,\"retransmits\":0,\"jitter\":-1,\"errors\":0,\"packets\":0}]}",
         1},
        {HEAD "{\"id\":1,\"bytes\":0,\"retransmits\":0,\"jitter\":0,\"errors\":true,"
              "\"packets\":0}]}",
         1},
        {HEAD "{\"id\":1,\"bytes\":0,\"retransmits\":0,\"jitter\":0,\"errors\":0,\"packets\":0,"
              "\"omitted_errors\":0}]}",
         1},
        {HEAD "{\"id\":1,\"bytes\":0,\"errors\":0,\"packets\":0}]}", 1},
        {HEAD STREAM("1") "]}", 0},
        {HEAD STREAM("1") "]}", 257},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(bad[i].text, bad[i].n_streams, &out)) {
            fail_msg("taken: %s", bad[i].text);
        }
    }
}

static void test_deep_and_cut_results(void **state)
{
    static struct iperf3_results out;
    static const char whole[] = HEAD STREAM("1") "]}";
    char deep[20001];
    (void)state;
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    assert_false(parse(deep, 1, &out));
    for (size_t len = 0; len < sizeof whole - 1; len++) {
        char cut[sizeof whole];
        memcpy(cut, whole, len);
        cut[len] = '\0';
        assert_false(parse(cut, 1, &out));
    }
    /* One byte changed, every byte, several values: never more than a refusal or a parse. */
    for (size_t at = 0; at < sizeof whole - 1; at++) {
        for (int value = 1; value < 256; value += 17) {
            char changed[sizeof whole];
            memcpy(changed, whole, sizeof whole);
            changed[at] = (char)value;
            parse(changed, 1, &out);
        }
    }
}

/* ---- the byte stream ---- */

struct heard {
    int states[32];
    unsigned n_states;
    uint32_t error, os_error;
    char json[64];
    unsigned n_json, n_malformed;
    struct iperf3_wire *wire;
};

static void hear_state(void *arg, int state)
{
    struct heard *heard = arg;
    heard->states[heard->n_states++] = state;
    if (state == IPERF3_EXCHANGE_RESULTS) {
        iperf3_wire_expect_json(heard->wire);
    }
}

static void hear_error(void *arg, uint32_t number, uint32_t os_number)
{
    struct heard *heard = arg;
    heard->error = number;
    heard->os_error = os_number;
}

static void hear_json(void *arg, const char *text, size_t len)
{
    struct heard *heard = arg;
    assert_true(len < sizeof heard->json);
    memcpy(heard->json, text, len);
    heard->json[len] = '\0';
    heard->n_json++;
}

static void hear_malformed(void *arg, const char *why)
{
    struct heard *heard = arg;
    assert_non_null(why);
    heard->n_malformed++;
}

static const struct iperf3_wire_ops wire_ops = {
    .state = hear_state,
    .server_error = hear_error,
    .json = hear_json,
    .malformed = hear_malformed,
};

static struct heard feed(const uint8_t *data, size_t len, size_t first, size_t second)
{
    struct iperf3_wire wire;
    struct heard heard = {.wire = &wire};
    iperf3_wire_init(&wire, &wire_ops, &heard);
    for (size_t at = 0, part = first; at < len; at += part) {
        part = at == 0 ? first : second;
        part = part < len - at ? part : len - at;
        part = part != 0 ? part : 1;
        uint8_t *copy = malloc(part);
        memcpy(copy, data + at, part);
        iperf3_wire_feed(&wire, copy, part);
        free(copy);
    }
    iperf3_wire_free(&wire);
    return heard;
}

static void test_split_anywhere(void **state)
{
    static const uint8_t dialogue[] = {9,   10,  1,   2,   13,  0,   0,   0, 7,
                                       '{', '"', 'a', '"', ':', '1', '}', 14};
    static const int wanted[] = {9, 10, 1, 2, 13, 14};
    (void)state;
    for (size_t first = 1; first <= sizeof dialogue; first++) {
        for (size_t second = 1; second <= sizeof dialogue; second++) {
            struct heard heard = feed(dialogue, sizeof dialogue, first, second);
            assert_int_equal(heard.n_states, 6);
            assert_memory_equal(heard.states, wanted, sizeof wanted);
            assert_string_equal(heard.json, "{\"a\":1}");
            assert_true(heard.n_json == 1 && heard.n_malformed == 0);
        }
    }
}

static void test_server_error_split_anywhere(void **state)
{
    static const uint8_t bytes[] = {9, 0xfe, 0, 0, 0, 140, 0, 0, 0, 98, 1, 2, 3};
    (void)state;
    for (size_t first = 1; first <= sizeof bytes; first++) {
        struct heard heard = feed(bytes, sizeof bytes, first, 3);
        assert_true(heard.error == 140 && heard.os_error == 98);
        assert_int_equal(heard.n_states, 1); /* nothing more is believed */
    }
}

static void test_negative_state(void **state)
{
    static const uint8_t denied[] = {0xff};
    (void)state;
    struct heard heard = feed(denied, 1, 1, 1);
    assert_int_equal(heard.states[0], IPERF3_ACCESS_DENIED);
}

static void test_absurd_lengths(void **state)
{
    static const uint8_t lengths[][4] = {
        {0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}, {0x80, 0, 0, 0}, {0, 2, 0x80, 1}};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        uint8_t bytes[40] = {13};
        memcpy(bytes + 1, lengths[i], 4);
        struct heard heard = feed(bytes, sizeof bytes, 1, 2);
        assert_true(heard.n_malformed == 1 && heard.n_json == 0);
    }
    /* A text that never ends leaks nothing when the connection does. */
    static const uint8_t half[] = {13, 0, 0, 0, 100, '{'};
    struct heard heard = feed(half, sizeof half, 6, 1);
    assert_true(heard.n_malformed == 0 && heard.n_json == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cookie),
        cmocka_unit_test(test_stream_ids),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_results_round_trip),
        cmocka_unit_test(test_udp_header),
        cmocka_unit_test(test_udp_answer),
        cmocka_unit_test(test_results_of_3_12),
        cmocka_unit_test(test_hostile_results),
        cmocka_unit_test(test_deep_and_cut_results),
        cmocka_unit_test(test_split_anywhere),
        cmocka_unit_test(test_server_error_split_anywhere),
        cmocka_unit_test(test_negative_state),
        cmocka_unit_test(test_absurd_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
