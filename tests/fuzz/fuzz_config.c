/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Configuration words: any text gives a configuration within its bounds, or one line that says what
 * is wrong; and said twice it means the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/config.h"
#include "apps/iperf3_proto.h"
#include "tests/fuzz/input.h"

#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))
#define NS_PER_DAY   86400000000000ull

static _Noreturn void fail(int line, const char *what)
{
    fprintf(stderr, "fuzz_config.c:%d: does not hold: %s\n", line, what);
    abort();
}

static void check_bounds(const struct config *config)
{
    CHECK(config->test <= CONFIG_TEST_SELFTEST && config->selftest <= CONFIG_SELFTEST_HEAP);
    CHECK(config->port <= 65535 && config->vxlan.port <= 65535);
    CHECK(config->parallel >= 1 && config->parallel <= IPERF3_MAX_STREAMS);
    CHECK(config->size_bytes <= 1u << 20 && config->interval_ns != 0);
    CHECK(config->time_ns <= NS_PER_DAY && config->omit_ns <= NS_PER_DAY);
    CHECK(config->vxlan.vni < 1u << 24 && config->vxlan.mtu_bytes <= 65535);
    CHECK(config->net.mtu_bytes <= 65535 && config->tx_policy < VIRTIO_NET_POLICIES);
    CHECK(config->tx_size_descs <= 32768);
    CHECK((config->tx_size_descs & (config->tx_size_descs - 1)) == 0);
    CHECK(!config->net.mac_set || (config->net.mac[0] & 1u) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct config once, twice;
    char error[CONFIG_ERROR_BYTES] = "", again[CONFIG_ERROR_BYTES] = "";
    char *words = malloc(size + 1), *doubled = malloc(2 * size + 2);

    CHECK(words != NULL && doubled != NULL);
    memcpy(words, data, size);
    words[size] = '\0';
    snprintf(doubled, 2 * size + 2, "%s\n%s", words, words);
    if (config_parse(words, &once, error)) {
        check_bounds(&once);
        CHECK(config_parse(doubled, &twice, again));
        /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): both with the defaults' padding */
        CHECK(memcmp(&once, &twice, sizeof(once)) == 0);
    } else {
        size_t len = strnlen(error, sizeof(error));
        CHECK(len != 0 && len < sizeof(error) && strchr(error, '\n') == NULL);
        CHECK(!config_parse(doubled, &twice, again) && again[0] != '\0');
    }
    free(doubled);
    free(words);
    return 0;
}
