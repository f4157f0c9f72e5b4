/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The rows of a test: what is in each, and that all of them add up to what was sent.
 */
#include "tests/unit/net_lab.h"

#include "apps/measure.h"
#include "boot/clock.h"

#define STREAMS      4u
#define SIZE_BYTES   1000u
#define CREDIT_BYTES 4000u
#define ROW_MS       500u
#define MOST_LATE_MS 10u /* two steps of lab_elapse */

static struct config config;
static struct outcome outcome;
static struct measure measure;
static struct stream streams[STREAMS];
static unsigned overs;

static void on_failed(struct stream *stream, enum sock_error error)
{
    fail_msg("stream %u failed: %s", stream->id, sock_error_text(error));
}

static const struct stream_owner owner = {.failed = on_failed};
static const struct stream_plan plan = {.udp = true,
                                        .ip = LAB_PEER_IP,
                                        .port = 5000,
                                        .size_bytes = SIZE_BYTES,
                                        .sndbuf_bytes = CREDIT_BYTES};

static void on_over(void *arg)
{
    (void)arg;
    overs++;
}

static void on_stalled(void *arg)
{
    (void)arg;
    fail_msg("stalled");
}

/* Learns the peer's address, then opens the streams. */
static void open_all(uint64_t time_ms, uint64_t omit_ms)
{
    struct model_options opt = lab_options();
    struct stream first;
    lab_open(&opt, NULL);
    assert_true(stream_open(&first, &plan, &owner, 99, true));
    while (stream_greet(&first, "x", 1) != SOCK_OK) {
        lab_serve();
    }
    lab_serve();
    stream_close(&first, false);
    config = (struct config){.test = CONFIG_TEST_UDP,
                             .time_ns = time_ms * LAB_MS,
                             .omit_ns = omit_ms * LAB_MS,
                             .interval_ns = ROW_MS * LAB_MS,
                             .size_bytes = SIZE_BYTES,
                             .parallel = STREAMS};
    memset(&outcome, 0, sizeof outcome);
    memset(&measure, 0, sizeof measure);
    outcome.config = &config;
    measure.outcome = &outcome;
    measure.streams = streams;
    measure.n_streams = STREAMS;
    measure.over = on_over;
    measure.stalled = on_stalled;
    overs = 0;
    for (unsigned i = 0; i < STREAMS; i++) {
        assert_true(stream_open(&streams[i], &plan, &owner, i + 1, true));
    }
}

static void begin(void)
{
    uint64_t now_ns = clock_now_ns();
    for (unsigned i = 0; i < STREAMS; i++) {
        stream_start(&streams[i], now_ns);
    }
    measure_start(&measure, now_ns);
}

/* Device serves or not; what it sent is not looked at. */
static void elapse(uint64_t ms, bool serve)
{
    for (uint64_t i = 0; i < ms; i += 5) {
        lab_elapse(5, serve);
        lab_forget_frames();
    }
}

static void close_all(void)
{
    measure_cancel(&measure);
    for (unsigned i = 0; i < STREAMS; i++) {
        stream_close(&streams[i], false);
    }
    lab_serve();
    lab_assert_ledger();
    lab_close();
}

static uint64_t measured_packets(void)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < STREAMS; i++) {
        struct tally now;
        stream_tally(&streams[i], clock_now_ns(), &now);
        assert_true(now.packets == now.queued_packets);
        sum += now.packets - measure.base[i].packets;
    }
    return sum;
}

/* Rows without a gap, none blocked for longer than it sent, all that was measured in them. */
static void assert_rows(unsigned expected)
{
    uint64_t packets = 0;
    assert_int_equal(outcome.n_intervals, expected);
    for (unsigned i = 0; i < expected; i++) {
        const struct interval *row = &outcome.intervals[i];
        bool first = i == 0 || outcome.intervals[i - 1].omitted != row->omitted;
        assert_true(row->start_ns == (first ? 0 : outcome.intervals[i - 1].end_ns));
        assert_true(row->forward.blocked_ns <= STREAMS * row->sending_ns);
        assert_true(row->sending_ns <= row->end_ns - row->start_ns);
        packets += row->omitted ? 0 : row->forward.packets;
    }
    assert_true(packets == measured_packets());
}

/* The device stands still before the end of sending and goes on long after it: the last row has
 * what it then takes, and none of the waiting in which nobody wanted to send. */
static void test_rows_add_up(void **state)
{
    (void)state;
    open_all(2 * ROW_MS, 0);
    begin();
    elapse(ROW_MS + 100, true);
    elapse(ROW_MS, false);
    assert_int_equal(overs, 1);
    assert_true(outcome.n_intervals == 1);
    elapse(300, false);
    lab_serve();
    uint64_t settled_ns = clock_now_ns();
    elapse(100, true);
    measure_close(&measure, settled_ns);
    assert_rows(2);
    const struct interval *last = &outcome.intervals[1];
    assert_true(last->end_ns == settled_ns - measure.start_ns);
    assert_in_range(last->sending_ns, ROW_MS * LAB_MS - MOST_LATE_MS * LAB_MS,
                    (ROW_MS + MOST_LATE_MS) * LAB_MS);
    /* It stood still for the last 400 ms of sending, in all streams. */
    assert_in_range(last->forward.blocked_ns, STREAMS * 390 * LAB_MS, STREAMS * last->sending_ns);
    assert_true(last->back_end_ns == measure.end_ns - measure.start_ns);
    measure_close(&measure, settled_ns);
    assert_int_equal(outcome.n_intervals, 2);
    close_all();
}

/* Below a tenth of the interval what is left joins the last row, in the warm-up too. */
static void test_what_is_left(void **state)
{
    static const struct {
        uint64_t time_ms, omit_ms;
        unsigned rows;
    } cases[] = {{2 * ROW_MS, 0, 2},      {2 * ROW_MS + 40, 0, 2}, {2 * ROW_MS + 60, 0, 3},
                 {ROW_MS / 2, 0, 1},      {ROW_MS, ROW_MS, 2},     {ROW_MS, ROW_MS + 40, 2},
                 {ROW_MS, ROW_MS + 60, 3}};
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_all(cases[i].time_ms, cases[i].omit_ms);
        begin();
        elapse(cases[i].omit_ms + cases[i].time_ms + 2ull * MOST_LATE_MS, true);
        assert_int_equal(overs, 1);
        measure_close(&measure, clock_now_ns());
        assert_rows(cases[i].rows);
        close_all();
    }
}

/* A test that was cut off has a row of its last part too. */
static void test_cut_off(void **state)
{
    (void)state;
    open_all(4 * ROW_MS, 0);
    begin();
    elapse(ROW_MS + 100, true);
    measure_cancel(&measure);
    for (unsigned i = 0; i < STREAMS; i++) {
        stream_stop(&streams[i], clock_now_ns());
    }
    lab_serve();
    measure_close(&measure, clock_now_ns());
    assert_rows(2);
    assert_in_range(outcome.intervals[1].sending_ns, 90 * LAB_MS, 110 * LAB_MS);
    close_all();
}

/* To the nanosecond asked for, whenever it is asked; what a stop found is over. */
static void test_waits_are_clipped(void **state)
{
    struct tally before;
    struct tally after;
    (void)state;
    open_all(4 * ROW_MS, 0);
    begin();
    elapse(50, false);
    const struct stream *stream = &streams[0];
    assert_true(stream->blocked);
    uint64_t begun_ns = clock_now_ns();
    stream_tally(stream, begun_ns, &before);
    elapse(50, false);
    stream_tally(stream, begun_ns + 10 * LAB_MS, &after);
    assert_true(after.blocked_ns - before.blocked_ns == 10 * LAB_MS);
    stream_stop(&streams[0], begun_ns + 20 * LAB_MS);
    elapse(50, false);
    lab_serve();
    stream_tally(stream, clock_now_ns(), &after);
    assert_true(after.blocked_ns - before.blocked_ns == 20 * LAB_MS);
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_add_up),
        cmocka_unit_test(test_what_is_left),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_waits_are_clipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
