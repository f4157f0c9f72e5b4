/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/measure.h"

#include "apps/report.h"
#include "boot/clock.h"

static void sum_streams(const struct measure *measure, uint64_t now_ns, struct tally *forward,
                        struct tally *back)
{
    *forward = (struct tally){0};
    *back = (struct tally){0};
    for (unsigned i = 0; i < measure->n_streams; i++) {
        struct tally one;
        stream_tally(&measure->streams[i], now_ns, &one);
        tally_add(measure->streams[i].sends ? forward : back, &one);
    }
}

static uint64_t tx_stops(void)
{
    struct virtio_net_tx_stats stats;
    virtio_net_tx_stats(net_device(), 0, &stats);
    return stats.stops;
}

static uint64_t idle_ns(void)
{
    struct net_stats stats;
    net_stats(&stats);
    return stats.idle_ns;
}

/* Without a warm-up before it, what has come already belongs to the test: data may overtake the
 * server's word that it runs. */
static void begin_rows(struct measure *measure, uint64_t now_ns, bool after_warm_up)
{
    measure->row_open = true;
    measure->row_start_ns = now_ns;
    measure->row_stops = tx_stops();
    measure->row_forward = measure->row_back = (struct tally){0};
    if (after_warm_up) {
        sum_streams(measure, now_ns, &measure->row_forward, &measure->row_back);
    }
}

/* A row this much shorter than the others says nothing. */
static uint64_t shortest_row_ns(const struct measure *measure)
{
    return measure->outcome->config->interval_ns / 10;
}

/* Up to now_ns; the way back up to back_end_ns. */
static void end_row(struct measure *measure, uint64_t now_ns, uint64_t back_end_ns)
{
    struct tally forward;
    struct tally back;
    uint64_t origin_ns = measure->warming_up ? measure->begun_ns : measure->start_ns;
    uint64_t sent_until_ns = measure->end_ns != 0 ? measure->end_ns : now_ns;
    uint64_t stops = tx_stops();
    struct interval interval = {
        .start_ns = measure->row_start_ns - origin_ns,
        .end_ns = now_ns - origin_ns,
        .back_end_ns = back_end_ns - origin_ns,
        .omitted = measure->warming_up,
        .stops = stops - measure->row_stops,
        .sending_ns = sent_until_ns - measure->row_start_ns,
    };
    sum_streams(measure, now_ns, &forward, &back);
    tally_since(&forward, &measure->row_forward, &interval.forward);
    tally_since(&back, &measure->row_back, &interval.back);
    outcome_add_interval(measure->outcome, &interval);
    report_row(measure->outcome, &interval);
    measure->row_start_ns = now_ns;
    measure->row_stops = stops;
    measure->row_forward = forward;
    measure->row_back = back;
}

static void on_row(void *arg)
{
    struct measure *measure = arg;
    uint64_t now_ns = clock_now_ns();
    /* Too little is left for a row of its own: it belongs to this one. */
    if (now_ns + shortest_row_ns(measure) > measure->phase.at_ns) {
        return;
    }
    end_row(measure, now_ns, now_ns);
    /* From the deadline, not from now: rows do not drift. Deadlines that passed while the host
     * stood still are left out, and their time is in this row. */
    uint64_t interval_ns = measure->outcome->config->interval_ns;
    uint64_t passed = (now_ns - measure->row.at_ns) / interval_ns;
    net_timer_set(&measure->row, measure->row.at_ns + (passed + 1) * interval_ns, on_row, measure);
}

static uint64_t latest(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

void measure_close(struct measure *measure, uint64_t settled_ns)
{
    uint64_t end_ns = latest(measure->end_ns, measure->row_start_ns);
    uint64_t back_end_ns = end_ns;
    if (!measure->row_open) {
        return;
    }
    measure->row_open = false;
    for (unsigned i = 0; i < measure->n_streams; i++) {
        const struct stream *stream = &measure->streams[i];
        if (stream->sends) {
            end_ns = latest(end_ns, settled_ns);
        } else {
            back_end_ns = latest(back_end_ns, stream->last_arrival_ns);
        }
    }
    end_row(measure, end_ns, back_end_ns);
}

static void on_end(void *arg)
{
    struct measure *measure = arg;
    measure->end_ns = clock_now_ns();
    for (unsigned i = 0; i < measure->n_streams; i++) {
        stream_stop(&measure->streams[i], measure->end_ns);
    }
    net_timer_clear(&measure->row);
    measure->outcome->run_ns = measure->end_ns - measure->start_ns;
    measure->outcome->idle_ns = idle_ns() - measure->idle_at_start_ns;
    measure->over(measure->arg);
}

static void begin_measuring(struct measure *measure, uint64_t now_ns)
{
    const struct config *config = measure->outcome->config;
    bool after_warm_up = measure->warming_up;
    measure->warming_up = false;
    measure->start_ns = now_ns;
    measure->idle_at_start_ns = idle_ns();
    for (unsigned i = 0; i < measure->n_streams; i++) {
        measure->base[i] = (struct tally){0};
        if (after_warm_up) {
            stream_tally(&measure->streams[i], now_ns, &measure->base[i]);
        }
    }
    begin_rows(measure, now_ns, after_warm_up);
    net_timer_set(&measure->row, now_ns + config->interval_ns, on_row, measure);
    net_timer_set(&measure->phase, now_ns + config->time_ns, on_end, measure);
}

static void on_warm(void *arg)
{
    struct measure *measure = arg;
    uint64_t now_ns = clock_now_ns();
    end_row(measure, now_ns, now_ns);
    begin_measuring(measure, now_ns);
}

/* A stream that is paced slower than the stall limit may rest for a while. */
static uint64_t stall_ns(const struct measure *measure)
{
    uint64_t longest_gap_ns = 0;
    const struct config *config = measure->outcome->config;
    if (config->rate_bits != 0) {
        longest_gap_ns = config->size_bytes * 8ull * CLOCK_NS_PER_S / config->rate_bits;
    }
    return MEASURE_STALL_NS + longest_gap_ns;
}

static void on_watchdog(void *arg)
{
    struct measure *measure = arg;
    struct tally forward;
    struct tally back;
    uint64_t now_ns = clock_now_ns();
    sum_streams(measure, now_ns, &forward, &back);
    uint64_t progress = forward.bytes + back.bytes + forward.duplicates + back.duplicates;
    bool expected = measure->end_ns == 0;
    if (progress != measure->last_progress || !expected) {
        measure->last_progress = progress;
        measure->last_progress_ns = net_awake_ns();
    } else if (net_awake_ns() - measure->last_progress_ns >= stall_ns(measure)) {
        measure->stalled(measure->arg);
        return;
    }
    net_timer_set(&measure->watchdog, now_ns + CLOCK_NS_PER_S / 2, on_watchdog, measure);
}

void measure_start(struct measure *measure, uint64_t now_ns)
{
    const struct config *config = measure->outcome->config;
    measure->outcome->measured = true;
    measure->begun_ns = now_ns;
    measure->last_progress_ns = net_awake_ns();
    net_timer_set(&measure->watchdog, now_ns + CLOCK_NS_PER_S / 2, on_watchdog, measure);
    report_row_header(measure->outcome);
    if (config->omit_ns == 0) {
        begin_measuring(measure, now_ns);
        return;
    }
    measure->warming_up = true;
    begin_rows(measure, now_ns, false);
    net_timer_set(&measure->row, now_ns + config->interval_ns, on_row, measure);
    net_timer_set(&measure->phase, now_ns + config->omit_ns, on_warm, measure);
}

void measure_cancel(struct measure *measure)
{
    net_timer_clear(&measure->row);
    net_timer_clear(&measure->phase);
    net_timer_clear(&measure->watchdog);
}
