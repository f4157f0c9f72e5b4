/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Configuration words: each key takes what it should, and says what is wrong with all else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "apps/config.h"
#include "apps/config_value.h"

#define NS 1000000000ull

static struct config parse(const char *words)
{
    struct config config;
    char error[CONFIG_ERROR_BYTES] = "";
    if (!config_parse(words, &config, error)) {
        fail_msg("'%s' was refused: %s", words, error);
    }
    return config;
}

static void refuse(const char *words, const char *part1, const char *part2, const char *part3)
{
    struct config config;
    char error[CONFIG_ERROR_BYTES] = "";
    if (config_parse(words, &config, error)) {
        fail_msg("'%s' was taken", words);
    }
    if (strstr(error, part1) == NULL || strstr(error, part2) == NULL ||
        strstr(error, part3) == NULL || strchr(error, '\n') != NULL) {
        fail_msg("'%s': error '%s' lacks '%s', '%s' or '%s'", words, error, part1, part2, part3);
    }
}

static void test_defaults(void **state)
{
    struct config c = parse("");
    (void)state;
    assert_int_equal(c.test, CONFIG_TEST_SERVE);
    assert_int_equal(c.port, 5201);
    assert_true(c.time_ns == 10 * NS && c.omit_ns == 0 && c.drain_ns == NS / 2);
    assert_true(c.interval_ns == NS && c.rate_bits == 0);
    assert_int_equal(c.parallel, 1);
    assert_int_equal(c.sndbuf_bytes, 212992);
    assert_int_equal(c.net.ip, 0);
    assert_int_equal(c.vxlan.port, 4789);
    assert_int_equal(c.tx_policy, VIRTIO_NET_POLICY_THRESHOLD);
    assert_false(c.refuse.indirect || c.refuse.event_idx || c.vxlan.on || c.reverse || c.bidir);
    assert_int_equal(parse("test=udp server=10.0.0.1").size_bytes, 1024);
    assert_int_equal(parse("test=tcp server=10.0.0.1").size_bytes, 131072);
}

static void test_every_key(void **state)
{
    (void)state;
    struct config c =
        parse("test=udp server=192.0.2.9:7777 time=2.5 omit=3 size=1472 rate=1.5m parallel=8\n"
              "bidir=on peer_window=8M sndbuf=1M drain=1 interval=0.5\t ip=10.0.0.2/24 gw=10.0.0.1 "
              "mac=02:00:5e:00:53:ff mtu=9000 tx.policy=wake-on-one tx.size=64 virtio.indirect=off "
              "virtio.event_idx=off virtio.csum=off virtio.guest_csum=off virtio.tso=off "
              "virtio.guest_tso=off virtio.mrg=off vxlan.vni=42 vxlan.remote=10.0.0.9 "
              "vxlan.local=10.0.0.3 vxlan.ip=172.16.0.1/16 vxlan.mtu=1400 vxlan.csum=on "
              "vxlan.port=8472 trace=ring");
    static const uint8_t mac[6] = {0x02, 0x00, 0x5e, 0x00, 0x53, 0xff};
    assert_int_equal(c.test, CONFIG_TEST_UDP);
    assert_int_equal(c.server_ip, 0xc0000209);
    assert_int_equal(c.port, 7777);
    assert_true(c.time_ns == 2500000000 && c.omit_ns == 3 * NS && c.drain_ns == NS);
    assert_true(c.interval_ns == NS / 2 && c.rate_bits == 1500000);
    assert_int_equal(c.size_bytes, 1472);
    assert_int_equal(c.parallel, 8);
    assert_true(c.bidir && !c.reverse);
    assert_int_equal(c.peer_window_bytes, 8 << 20);
    assert_int_equal(c.sndbuf_bytes, 1 << 20);
    assert_int_equal(c.net.ip, 0x0a000002);
    assert_int_equal(c.net.netmask, 0xffffff00);
    assert_int_equal(c.net.gateway, 0x0a000001);
    assert_true(c.net.mac_set);
    assert_memory_equal(c.net.mac, mac, 6);
    assert_int_equal(c.net.mtu_bytes, 9000);
    assert_int_equal(c.tx_policy, VIRTIO_NET_POLICY_WAKE_ON_ONE);
    assert_int_equal(c.tx_size_descs, 64);
    assert_true(c.refuse.indirect && c.refuse.event_idx && c.refuse.csum && c.refuse.guest_csum);
    assert_true(c.refuse.host_tso && c.refuse.guest_tso && c.refuse.mrg_rxbuf);
    assert_true(c.vxlan.on && c.vxlan.csum);
    assert_int_equal(c.vxlan.vni, 42);
    assert_int_equal(c.vxlan.remote_ip, 0x0a000009);
    assert_int_equal(c.vxlan.local_ip, 0x0a000003);
    assert_int_equal(c.vxlan.ip, 0xac100001);
    assert_int_equal(c.vxlan.netmask, 0xffff0000);
    assert_int_equal(c.vxlan.mtu_bytes, 1400);
    assert_int_equal(c.vxlan.port, 8472);
    assert_int_equal(c.trace_ring, 1);
    assert_int_equal(parse("test=tcp server=1.2.3.4 window=256K").window_bytes, 256 << 10);
    assert_true(parse("test=tcp server=1.2.3.4 reverse=on").reverse);
    assert_int_equal(parse("server=1.2.3.4 port=99").port, 99);
    assert_int_equal(parse("test=selftest selftest=heap").selftest, CONFIG_SELFTEST_HEAP);
}

static void test_later_overrides_and_comments(void **state)
{
    (void)state;
    struct config c = parse("# a comment test=bad\n port=1 port=2 # rest time=abc\nport=3 #");
    assert_int_equal(c.port, 3);
    assert_int_equal(parse("port=2 ip=10.0.0.1/8 ip=dhcp").net.ip, 0);
    assert_int_equal(parse("  \t\r\n ").port, 5201);
}

static void test_bad_values_name_key_value_and_allowed(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *allowed;
    } bad[] = {
        {"test", "ping", "serve"},
        {"server", "10.0.0", "address"},
        {"server", "10.0.0.256", "address"},
        {"server", "10.0.0.1:0", "1..65535"},
        {"server", "10.0.0.1:65536", "1..65535"},
        {"server", "0.0.0.0", "address"},
        {"server", "host.example", "address"},
        {"port", "0", "1..65535"},
        {"port", "65536", "1..65535"},
        {"port", "5201x", "1..65535"},
        {"port", "-1", "1..65535"},
        {"port", "", "1..65535"},
        {"port", "4294972497", "1..65535"}, /* 5201 modulo 2^32 */
        {"port", "18446744073709551617", "1..65535"},
        {"time", "0.09", "0.1..86400"},
        {"time", "86400.1", "0.1..86400"},
        {"time", "1s", "0.1..86400"},
        {"time", "1e3", "0.1..86400"},
        {"time", "nan", "0.1..86400"},
        {"time", ".5", "0.1..86400"},
        {"time", "1.", "0.1..86400"},
        {"omit", "61", "0..60"},
        {"size", "abc", "16..65507"},
        {"size", "0", "16..65507"},
        {"size", "1.5", "16..65507"},
        {"size", "2M", "1048576"},
        {"size", "0x400", "16..65507"},
        {"rate", "10q", "k, m or g"},
        {"rate", "10mx", "k, m or g"},
        {"rate", "2000g", "1000g"},
        {"rate", "99999999999999999999", "1000g"},
        {"parallel", "0", "1..128"},
        {"parallel", "129", "1..128"},
        {"reverse", "yes", "on, off"},
        {"bidir", "1", "on, off"},
        {"window", "4095", "4K..16M"},
        {"window", "17M", "4K..16M"},
        {"peer_window", "1", "4K..1G"},
        {"sndbuf", "0", "4K..64M"},
        {"sndbuf", "65M", "4K..64M"},
        {"drain", "0.4", "0.5..60"},
        {"interval", "0", "0.1..60"},
        {"ip", "10.0.0.1", "address/prefix"},
        {"ip", "10.0.0.1/33", "address/prefix"},
        {"ip", "10.0.0.1/0", "address/prefix"},
        {"ip", "10.0.0.1/24x", "address/prefix"},
        {"gw", "gateway", "IPv4"},
        {"mac", "02:00:00:00:00", "six hex"},
        {"mac", "01:00:5e:00:00:01", "six hex"},
        {"mac", "00:00:00:00:00:00", "six hex"},
        {"mac", "02-00-00-00-00-01", "six hex"},
        {"mac", "02:00:00:00:00:0g", "six hex"},
        {"mtu", "575", "576..65535"},
        {"mtu", "65536", "576..65535"},
        {"tx.policy", "best", "threshold"},
        {"tx.size", "1", "power of two"},
        {"tx.size", "65536", "power of two"},
        {"virtio.tso", "no", "on, off"},
        {"selftest", "everything", "panic"},
        {"vxlan.vni", "16777216", "16777215"},
        {"vxlan.remote", "x", "IPv4"},
        {"vxlan.ip", "10.0.0.1", "prefix"},
        {"vxlan.mtu", "1", "576"},
        {"vxlan.csum", "maybe", "on, off"},
        {"vxlan.port", "0", "1..65535"},
        {"trace", "all", "ring"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char word[128];
        snprintf(word, sizeof word, "%s=%s", bad[i].key, bad[i].value);
        refuse(word, bad[i].key, bad[i].value, bad[i].allowed);
    }
}

static void test_bad_words(void **state)
{
    char words[600];
    (void)state;
    refuse("udp", "udp", "key=value", "");
    refuse("=5", "unknown key", "5", "test");
    memset(words, 'x', sizeof words - 1);
    words[sizeof words - 1] = '\0';
    refuse(words, "xxx", "255", "");
    memcpy(words, "server=", 7);
    refuse(words, "server", "255", "");
}

/* All of them, to the last letter of the last, whatever was wrong. */
static void test_unknown_key_lists_the_known(void **state)
{
    static const char *const known[] = {"test",
                                        "server",
                                        "port",
                                        "time",
                                        "omit",
                                        "size",
                                        "rate",
                                        "parallel",
                                        "reverse",
                                        "bidir",
                                        "window",
                                        "peer_window",
                                        "sndbuf",
                                        "drain",
                                        "interval",
                                        "ip",
                                        "gw",
                                        "mac",
                                        "mtu",
                                        "tx.policy",
                                        "tx.size",
                                        "virtio.indirect",
                                        "virtio.event_idx",
                                        "virtio.csum",
                                        "virtio.guest_csum",
                                        "virtio.tso",
                                        "virtio.guest_tso",
                                        "virtio.mrg",
                                        "selftest",
                                        "vxlan.vni",
                                        "vxlan.remote",
                                        "vxlan.local",
                                        "vxlan.ip",
                                        "vxlan.mtu",
                                        "vxlan.csum",
                                        "vxlan.port",
                                        "trace"};
    struct config config;
    char error[CONFIG_ERROR_BYTES] = "";
    char expected[2 * CONFIG_ERROR_BYTES] =
        "unknown key 'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk' (value "
        "'vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv'); allowed are";
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, " %s", known[i]);
    }
    assert_false(
        config_parse("kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk=vvvvvvvvvvvvvvvvvvvvvvvvvvvv"
                     "vvvvvvvvvvvvvvvvvvvvvvvvvvvv",
                     &config, error));
    assert_string_equal(error, expected);
    refuse("colour=red", "'colour' (value 'red')", "interval", " trace");
}

static void test_combinations_name_both_keys(void **state)
{
    (void)state;
    refuse("test=udp", "test=udp", "server=", "");
    refuse("test=tcp", "test=tcp", "server=", "");
    refuse("test=udp server=1.2.3.4 size=15", "size", "test=udp", "16..65507");
    refuse("test=udp server=1.2.3.4 size=65508", "size", "test=udp", "16..65507");
    refuse("test=tcp server=1.2.3.4 reverse=on bidir=on", "reverse", "bidir", "");
    refuse("test=udp server=1.2.3.4 window=64K", "window", "test=udp", "");
    refuse("test=tcp server=1.2.3.4 peer_window=64K", "peer_window", "udp", "");
    refuse("omit=1.5", "omit", "whole seconds", "");
    refuse("test=selftest", "test=selftest", "selftest=", "heap");
    refuse("selftest=heap", "selftest", "test=selftest", "");
    refuse("gw=10.0.0.1", "gw", "ip=dhcp", "");
    refuse("tx.size=48", "tx.size", "power of two", "");
    refuse("vxlan.ip=10.0.0.1/8", "vxlan.ip", "vxlan.vni", "");
    refuse("vxlan.vni=0", "vxlan.vni", "vxlan.remote", "");
}

static void test_values(void **state)
{
    uint64_t value = 7;
    (void)state;
    assert_true(value_size("64k", &value) && value == 65536);
    assert_true(value_size("1.5M", &value) && value == 1572864);
    assert_true(value_size("2G", &value) && value == 2147483648u);
    assert_false(value_size("1kb", &value) || value_size("k", &value) || value_size("", &value));
    assert_false(value_size("18446744073709551615K", &value));
    assert_true(value_rate("100mbit", &value) && value == 100000000);
    assert_true(value_rate("100Mbps", &value) && value == 100000000);
    assert_true(value_rate("9600bps", &value) && value == 9600);
    assert_true(value_rate("0", &value) && value == 0);
    assert_true(value_rate("2.5g", &value) && value == 2500000000u);
    assert_false(value_rate("100b", &value) || value_rate("100mbits", &value));
    assert_true(value_time("0.000000001", &value) && value == 1);
    assert_false(value_time("0.0000000001", &value));
    value = 7;
    assert_false(value_count("8 ", &value));
    assert_true(value == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_key),
        cmocka_unit_test(test_later_overrides_and_comments),
        cmocka_unit_test(test_bad_values_name_key_value_and_allowed),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_unknown_key_lists_the_known),
        cmocka_unit_test(test_combinations_name_both_keys),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
