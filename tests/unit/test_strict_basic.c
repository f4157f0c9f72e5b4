/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver on the strict device: it starts, passes traffic both ways and stops, and violates no
 * clause while it does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/device/strict_host.h"

static void one_run(void **state)
{
    static struct strict_host host;
    struct strict_options opt;
    (void)state;
    strict_options_default(&opt);
    host_init(&host, &opt);
    host.dev.report.loud = true;
    if (!host_open(&host, NULL)) {
        fail_msg("%s", host.why);
    }
    assert_true(host_traffic(&host, 3000, 3000));
    assert_int_equal(host.tx_seen, 3000);
    assert_int_equal(host.rx_got, 3000);
    host_close(&host);
    strict_report_print(&host.dev.report, stderr);
    assert_int_equal(host.dev.report.violations, 0);
    fprintf(stderr, "%u clauses checked, interrupts %lu\n", strict_report_checked(&host.dev.report),
            host.dev.interrupts);
    host_fini(&host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
