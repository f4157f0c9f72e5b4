/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/iperf3_proto.h"

#include <math.h>
#include <string.h>

#include "apps/json_number.h"

/* Largest integer that a JSON number, a double at the peer, carries exactly. */
#define EXACT_MAX 9007199254740992.0

const uint8_t iperf3_udp_hello[IPERF3_HELLO_BYTES] = {'9', '8', '7', '6'};

static const uint8_t udp_answer[IPERF3_HELLO_BYTES] = {'6', '7', '8', '9'};
static const uint8_t udp_answer_before_3_12[IPERF3_HELLO_BYTES] = {0xb1, 0x68, 0xde, 0x3a};

const char *iperf3_state_name(int state)
{
    switch (state) {
    case IPERF3_TEST_START:
        return "TEST_START";
    case IPERF3_TEST_RUNNING:
        return "TEST_RUNNING";
    case IPERF3_TEST_END:
        return "TEST_END";
    case IPERF3_PARAM_EXCHANGE:
        return "PARAM_EXCHANGE";
    case IPERF3_CREATE_STREAMS:
        return "CREATE_STREAMS";
    case IPERF3_SERVER_TERMINATE:
        return "SERVER_TERMINATE";
    case IPERF3_CLIENT_TERMINATE:
        return "CLIENT_TERMINATE";
    case IPERF3_EXCHANGE_RESULTS:
        return "EXCHANGE_RESULTS";
    case IPERF3_DISPLAY_RESULTS:
        return "DISPLAY_RESULTS";
    case IPERF3_DONE:
        return "DONE";
    case IPERF3_ACCESS_DENIED:
        return "ACCESS_DENIED";
    case IPERF3_SERVER_ERROR:
        return "SERVER_ERROR";
    default:
        return "unknown state";
    }
}

void iperf3_make_cookie(char cookie[IPERF3_COOKIE_BYTES], uint32_t (*random32)(void))
{
    static const char alphabet[33] = "abcdefghijklmnopqrstuvwxyz234567";
    for (unsigned i = 0; i < IPERF3_COOKIE_BYTES - 1; i++) {
        cookie[i] = alphabet[random32() % 32];
    }
    cookie[IPERF3_COOKIE_BYTES - 1] = '\0';
}

unsigned iperf3_stream_id(unsigned index)
{
    return index == 0 ? 1 : index + 2;
}

bool iperf3_is_udp_answer(const uint8_t *data, size_t len)
{
    return len == IPERF3_HELLO_BYTES &&
           (memcmp(data, udp_answer, len) == 0 || memcmp(data, udp_answer_before_3_12, len) == 0);
}

void iperf3_put_length(uint8_t frame[IPERF3_FRAME_LENGTH_BYTES], uint32_t len)
{
    uint32_t wire = __builtin_bswap32(len);
    memcpy(frame, &wire, sizeof wire);
}

uint32_t iperf3_get_length(const uint8_t frame[IPERF3_FRAME_LENGTH_BYTES])
{
    uint32_t wire;
    memcpy(&wire, frame, sizeof wire);
    return __builtin_bswap32(wire);
}

static bool add_flag(cJSON *object, const char *key, bool on)
{
    return !on || cJSON_AddTrueToObject(object, key) != NULL;
}

char *iperf3_params_text(const struct iperf3_params *params)
{
    cJSON *json = cJSON_CreateObject();
    bool ok = json != NULL && add_flag(json, params->udp ? "udp" : "tcp", true) &&
              json_add_u64(json, "omit", params->omit_s) &&
              json_add_u64(json, "time", params->time_s) && json_add_u64(json, "num", 0) &&
              json_add_u64(json, "blockcount", 0) &&
              json_add_u64(json, "parallel", params->parallel) &&
              add_flag(json, "reverse", params->reverse) &&
              add_flag(json, "bidirectional", params->bidir) &&
              (params->window_bytes == 0 || json_add_u64(json, "window", params->window_bytes)) &&
              json_add_u64(json, "len", params->size_bytes) &&
              (params->rate_bits == 0 || json_add_u64(json, "bandwidth", params->rate_bits)) &&
              json_add_u64(json, "pacing_timer", 1000) &&
              add_flag(json, "udp_counters_64bit", params->udp) &&
              cJSON_AddStringToObject(json, "client_version", "3.12") != NULL;
    char *text = ok ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    return text;
}

static cJSON *stream_json(const struct iperf3_stream_result *stream)
{
    cJSON *json = cJSON_CreateObject();
    bool ok = json != NULL && json_add_u64(json, "id", stream->id) &&
              json_add_u64(json, "bytes", stream->bytes) &&
              json_add_i64(json, "retransmits", stream->retransmits) &&
              cJSON_AddNumberToObject(json, "jitter", stream->jitter_s) != NULL &&
              json_add_u64(json, "errors", stream->errors) &&
              json_add_u64(json, "omitted_errors", stream->omitted_errors) &&
              json_add_u64(json, "packets", stream->packets) &&
              json_add_u64(json, "omitted_packets", stream->omitted_packets) &&
              cJSON_AddNumberToObject(json, "start_time", stream->start_s) != NULL &&
              cJSON_AddNumberToObject(json, "end_time", stream->end_s) != NULL;
    if (!ok) {
        cJSON_Delete(json);
        return NULL;
    }
    return json;
}

char *iperf3_results_text(const struct iperf3_results *results)
{
    cJSON *json = cJSON_CreateObject();
    bool ok = json != NULL &&
              cJSON_AddNumberToObject(json, "cpu_util_total", results->cpu_total) != NULL &&
              cJSON_AddNumberToObject(json, "cpu_util_user", results->cpu_user) != NULL &&
              cJSON_AddNumberToObject(json, "cpu_util_system", results->cpu_system) != NULL &&
              json_add_i64(json, "sender_has_retransmits", results->sender_has_retransmits);
    cJSON *streams = ok ? cJSON_AddArrayToObject(json, "streams") : NULL;
    ok = streams != NULL;
    for (unsigned i = 0; ok && i < results->n_streams; i++) {
        ok = cJSON_AddItemToArray(streams, stream_json(&results->streams[i]));
    }
    char *text = ok ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    return text;
}

/* ---- what a peer says, which may be anything ---- */

static bool get_double(const cJSON *object, const char *key, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)) {
        return false;
    }
    *out = item->valuedouble;
    return true;
}

static bool get_count(const cJSON *object, const char *key, uint64_t *out)
{
    double value;
    if (!get_double(object, key, &value) || value < 0 || value > EXACT_MAX) {
        return false;
    }
    *out = (uint64_t)value;
    return true;
}

/* Some versions print -1 as an unsigned number. */
static bool get_count_or_unknown(const cJSON *object, const char *key, int64_t *out)
{
    double value;
    if (!get_double(object, key, &value)) {
        return false;
    }
    *out = value < 0 || value > EXACT_MAX ? -1 : (int64_t)value;
    return true;
}

static const char *read_stream(const cJSON *json, struct iperf3_stream_result *out)
{
    uint64_t id;
    *out = (struct iperf3_stream_result){0};
    if (!get_count(json, "id", &id) || id == 0 || id > 2 * IPERF3_MAX_STREAMS + 1) {
        return "a stream has no proper id";
    }
    out->id = (uint32_t)id;
    if (!get_count(json, "bytes", &out->bytes) || !get_count(json, "errors", &out->errors) ||
        !get_count(json, "packets", &out->packets)) {
        return "bytes, errors or packets of a stream are missing or not counts";
    }
    if (!get_count_or_unknown(json, "retransmits", &out->retransmits) ||
        !get_double(json, "jitter", &out->jitter_s) || out->jitter_s < 0) {
        return "retransmits or jitter of a stream are missing or not numbers";
    }
    bool errors = get_count(json, "omitted_errors", &out->omitted_errors);
    bool packets = get_count(json, "omitted_packets", &out->omitted_packets);
    if (errors != packets) {
        return "omitted_errors and omitted_packets do not come together";
    }
    if (!get_double(json, "start_time", &out->start_s) ||
        !get_double(json, "end_time", &out->end_s) || out->end_s < out->start_s) {
        out->start_s = 0;
        out->end_s = 0;
    }
    return NULL;
}

static bool id_is_taken(const struct iperf3_results *results, uint32_t id)
{
    for (unsigned i = 0; i < results->n_streams; i++) {
        if (results->streams[i].id == id) {
            return true;
        }
    }
    return false;
}

static const char *read_streams(const cJSON *array, unsigned n_streams, struct iperf3_results *out)
{
    const cJSON *item;
    if (!cJSON_IsArray(array)) {
        return "streams is missing";
    }
    cJSON_ArrayForEach(item, array)
    {
        if (out->n_streams == n_streams) {
            return "there are more streams than were opened";
        }
        struct iperf3_stream_result *stream = &out->streams[out->n_streams];
        const char *wrong = read_stream(item, stream);
        if (wrong != NULL) {
            return wrong;
        }
        if (stream->id > iperf3_stream_id(n_streams - 1) || stream->id == 2 ||
            id_is_taken(out, stream->id)) {
            return "a stream's id was not opened, or comes twice";
        }
        out->n_streams++;
    }
    return out->n_streams == n_streams ? NULL : "a stream is missing";
}

bool iperf3_results_parse(const char *text, size_t len, unsigned n_streams,
                          struct iperf3_results *out, const char **why)
{
    memset(out, 0, sizeof *out);
    if (n_streams == 0 || n_streams > 2 * IPERF3_MAX_STREAMS) {
        *why = "no streams were opened";
        return false;
    }
    cJSON *json = cJSON_ParseWithLength(text, len);
    *why = "they are not a JSON object";
    if (cJSON_IsObject(json)) {
        *why = NULL;
        if (!get_double(json, "cpu_util_total", &out->cpu_total) ||
            !get_double(json, "cpu_util_user", &out->cpu_user) ||
            !get_double(json, "cpu_util_system", &out->cpu_system) ||
            !get_count_or_unknown(json, "sender_has_retransmits", &out->sender_has_retransmits)) {
            *why = "cpu_util_* or sender_has_retransmits are missing";
        } else {
            *why = read_streams(cJSON_GetObjectItemCaseSensitive(json, "streams"), n_streams, out);
        }
    }
    cJSON_Delete(json);
    return *why == NULL;
}
