/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the test programs on the strict device share. For inclusion after cmocka.h.
 */
#ifndef SLUICE_TESTS_STRICT_CASE_H
#define SLUICE_TESTS_STRICT_CASE_H

#include "tests/device/strict_host.h"

static struct strict_host host;

static inline void case_init(const struct strict_options *opt)
{
    host_init(&host, opt);
    host.dev.report.loud = true;
}

static inline void case_default(void)
{
    struct strict_options opt;
    strict_options_default(&opt);
    case_init(&opt);
}

static inline void case_open(const struct virtio_net_config *config)
{
    if (!host_open(&host, config)) {
        fail_msg("open: %s", host.why);
    }
}

static inline void case_clean(void)
{
    if (host.dev.report.violations != 0) {
        strict_report_print(&host.dev.report, stderr);
        fail_msg("%llu violations", (unsigned long long)host.dev.report.violations);
    }
    assert_int_equal(host.tx_wrong, 0);
    assert_int_equal(host.rx_wrong, 0);
}

/* Everything that was sent was seen and given back, everything for the driver arrived. */
static inline void case_balanced(void)
{
    struct virtio_net_tx_stats tx;
    virtio_net_tx_stats(host.net, 0, &tx);
    assert_int_equal(tx.submitted, tx.completed + tx.aborted);
    assert_int_equal(tx.unexpected_full, 0);
    assert_int_equal(tx.requeues, 0);
    assert_int_equal(host.tx_sequence, host.tx_done + host.tx_aborted);
    assert_int_equal(host.tx_seen, host.tx_done);
    assert_int_equal(host.tx_fatal, 0);
}

static inline void case_traffic(uint32_t n_tx, uint32_t n_rx)
{
    if (!host_traffic(&host, n_tx, n_rx)) {
        fail_msg("no rest: sent %u done %u, to receive %u got %u, stopped %d", host.tx_sequence,
                 host.tx_done, host.rx_sent, host.rx_got, virtio_net_tx_stopped(host.net, 0));
    }
    case_balanced();
    assert_int_equal(host.rx_got, host.rx_sent);
}

static inline void case_end(void)
{
    if (host.net != NULL) {
        host_close(&host);
    }
    case_clean();
    host_fini(&host);
}

static inline uint64_t case_fault(enum virtio_net_device_fault fault)
{
    return virtio_net_device_faults(host.net)[fault];
}

/* The device is sound, and the driver finds no fault with it. */
static inline void case_faultless(void)
{
    for (unsigned i = 0; i < VIRTIO_NET_FAULTS; i++) {
        if (case_fault((enum virtio_net_device_fault)i) != 0) {
            fail_msg("%llu times %s", (unsigned long long)case_fault(i), virtio_net_fault_names[i]);
        }
    }
}

/* Start, traffic both ways, end, no violation of either side. */
static inline void case_run(const struct strict_options *opt,
                            const struct virtio_net_config *config, uint32_t n_tx, uint32_t n_rx)
{
    case_init(opt);
    case_open(config);
    case_traffic(n_tx, n_rx);
    case_faultless();
    case_end();
}

#endif
