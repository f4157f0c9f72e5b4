/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One row of a table for each key: where its value goes, what it may be, and how a person is told
 * so.
 */
#include "apps/config.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "apps/config_value.h"

#define NS_PER_S 1000000000ull

/* Longest word, its end included; more is an error, not a cut. */
#define WORD_BYTES 256u

enum kind {
    KIND_COUNT,     /* uint32_t */
    KIND_SIZE,      /* uint32_t */
    KIND_RATE,      /* uint64_t */
    KIND_TIME,      /* uint64_t, ns */
    KIND_SWITCH,    /* bool */
    KIND_REFUSE,    /* bool, true for "off" */
    KIND_NAME,      /* uint32_t, index into names */
    KIND_IP,        /* uint32_t */
    KIND_IP_PREFIX, /* uint32_t, the netmask in the next one */
    KIND_IP_PORT,   /* uint32_t, the port in the next one */
    KIND_MAC,       /* uint8_t[6], then a bool */
};

struct key {
    const char *name;
    enum kind kind;
    size_t offset;
    const char *allowed;
    uint64_t min, max;        /* of numbers, in the unit that is stored */
    const char *const *names; /* of KIND_NAME, up to NULL */
    const char *none;         /* a word that stands for 0, or NULL */
};

const char *const config_test_names[] = {"serve", "udp", "tcp", "selftest", NULL};
static const char *const selftest_names[] = {"none", "panic",  "pagefault", "stack", "wx",
                                             "nx",   "printf", "clock",     "heap",  NULL};
static const char *const trace_names[] = {"none", "ring", NULL};
static const char *const policy_names[] = {"threshold", "wake-on-one", "drop",
                                           "spin",      "no-recheck",  NULL};

static_assert(sizeof policy_names / sizeof *policy_names == VIRTIO_NET_POLICIES + 1,
              "a policy of the driver has no name here");
static_assert(offsetof(struct config, port) == offsetof(struct config, server_ip) + 4,
              "KIND_IP_PORT stores two neighbours");

#define KEY(key, form, field, text, ...)                                                           \
    {                                                                                              \
        .name = key, .kind = form, .offset = offsetof(struct config, field), .allowed = text,      \
        __VA_ARGS__                                                                                \
    }
#define RANGE(low, high) .min = (low), .max = (high)

static const struct key keys[] = {
    KEY("test", KIND_NAME, test, "udp, tcp, serve, selftest", .names = config_test_names),
    KEY("server", KIND_IP_PORT, server_ip, "an IPv4 address, or address:port with port 1..65535"),
    KEY("port", KIND_COUNT, port, "1..65535", RANGE(1, 65535)),
    KEY("time", KIND_TIME, time_ns, "0.1..86400 seconds", RANGE(NS_PER_S / 10, 86400 * NS_PER_S)),
    KEY("omit", KIND_TIME, omit_ns, "0..60 whole seconds", RANGE(0, 60 * NS_PER_S)),
    KEY("size", KIND_SIZE, size_bytes, "udp 16..65507, tcp 1..1048576 bytes", RANGE(1, 1048576)),
    KEY("rate", KIND_RATE, rate_bits,
        "bits per second with k, m or g, at most 1000g; 0 is as fast as it goes",
        RANGE(0, 1000000000000)),
    KEY("parallel", KIND_COUNT, parallel, "1..128", RANGE(1, 128)),
    KEY("reverse", KIND_SWITCH, reverse, "on, off"),
    KEY("bidir", KIND_SWITCH, bidir, "on, off"),
    KEY("window", KIND_SIZE, window_bytes, "0, or 4K..16M bytes", RANGE(4096, 16u << 20),
        .none = "0"),
    KEY("peer_window", KIND_SIZE, peer_window_bytes, "0, or 4K..1G bytes", RANGE(4096, 1u << 30),
        .none = "0"),
    KEY("sndbuf", KIND_SIZE, sndbuf_bytes, "4K..64M bytes", RANGE(4096, 64u << 20)),
    KEY("drain", KIND_TIME, drain_ns, "0.5..60 seconds", RANGE(NS_PER_S / 2, 60 * NS_PER_S)),
    KEY("interval", KIND_TIME, interval_ns, "0.1..60 seconds", RANGE(NS_PER_S / 10, 60 * NS_PER_S)),
    KEY("ip", KIND_IP_PREFIX, net.ip, "dhcp, or address/prefix with prefix 1..32", .none = "dhcp"),
    KEY("gw", KIND_IP, net.gateway, "none, or an IPv4 address", .none = "none"),
    KEY("mac", KIND_MAC, net.mac, "six hex bytes with ':', the first one even"),
    KEY("mtu", KIND_COUNT, net.mtu_bytes, "0, or 576..65535 bytes", RANGE(576, 65535), .none = "0"),
    KEY("tx.policy", KIND_NAME, tx_policy, "threshold, wake-on-one, drop, spin, no-recheck",
        .names = policy_names),
    KEY("tx.size", KIND_COUNT, tx_size_descs, "a power of two 2..32768", RANGE(2, 32768)),
    KEY("virtio.indirect", KIND_REFUSE, refuse.indirect, "on, off"),
    KEY("virtio.event_idx", KIND_REFUSE, refuse.event_idx, "on, off"),
    KEY("virtio.csum", KIND_REFUSE, refuse.csum, "on, off"),
    KEY("virtio.guest_csum", KIND_REFUSE, refuse.guest_csum, "on, off"),
    KEY("virtio.tso", KIND_REFUSE, refuse.host_tso, "on, off"),
    KEY("virtio.guest_tso", KIND_REFUSE, refuse.guest_tso, "on, off"),
    KEY("virtio.mrg", KIND_REFUSE, refuse.mrg_rxbuf, "on, off"),
    KEY("selftest", KIND_NAME, selftest, "panic, pagefault, stack, wx, nx, printf, clock, heap",
        .names = selftest_names),
    KEY("vxlan.vni", KIND_COUNT, vxlan.vni, "0..16777215", RANGE(0, 16777215)),
    KEY("vxlan.remote", KIND_IP, vxlan.remote_ip, "an IPv4 address"),
    KEY("vxlan.local", KIND_IP, vxlan.local_ip, "an IPv4 address"),
    KEY("vxlan.ip", KIND_IP_PREFIX, vxlan.ip, "address/prefix with prefix 1..32"),
    KEY("vxlan.mtu", KIND_COUNT, vxlan.mtu_bytes, "0, or 576..65535 bytes", RANGE(576, 65535),
        .none = "0"),
    KEY("vxlan.csum", KIND_SWITCH, vxlan.csum, "on, off"),
    KEY("vxlan.port", KIND_COUNT, vxlan.port, "1..65535", RANGE(1, 65535)),
    KEY("trace", KIND_NAME, trace_ring, "none, ring", .names = trace_names),
};

#define N_KEYS (sizeof keys / sizeof *keys)

static const struct config defaults = {
    .port = 5201,
    .time_ns = 10 * NS_PER_S,
    .drain_ns = NS_PER_S / 2,
    .interval_ns = NS_PER_S,
    .parallel = 1,
    .sndbuf_bytes = 212992,
    .vxlan.port = 4789,
};

static const uint32_t default_size_bytes[] = {
    [CONFIG_TEST_SERVE] = 0,
    [CONFIG_TEST_UDP] = 1024,
    [CONFIG_TEST_TCP] = 131072,
    [CONFIG_TEST_SELFTEST] = 0,
};

static bool store_number(const struct key *key, const char *value, void *field)
{
    uint64_t number;
    bool ok = key->kind == KIND_COUNT  ? value_count(value, &number)
              : key->kind == KIND_SIZE ? value_size(value, &number)
              : key->kind == KIND_RATE ? value_rate(value, &number)
                                       : value_time(value, &number);
    if (!ok || number < key->min || number > key->max) {
        return false;
    }
    if (key->kind == KIND_RATE || key->kind == KIND_TIME) {
        *(uint64_t *)field = number;
    } else {
        *(uint32_t *)field = (uint32_t)number;
    }
    return true;
}

static bool store_name(const struct key *key, const char *value, void *field)
{
    for (uint32_t i = 0; key->names[i] != NULL; i++) {
        if (strcmp(key->names[i], value) == 0) {
            *(uint32_t *)field = i;
            return true;
        }
    }
    return false;
}

static bool store_refuse(const char *value, bool *refuse)
{
    bool on;
    if (!value_switch(value, &on)) {
        return false;
    }
    *refuse = !on;
    return true;
}

static bool store(const struct key *key, const char *value, struct config *out)
{
    void *field = (char *)out + key->offset;
    uint32_t *word = field;
    if (key->none != NULL && strcmp(value, key->none) == 0) {
        *word = 0;
        return true;
    }
    switch (key->kind) {
    case KIND_COUNT:
    case KIND_SIZE:
    case KIND_RATE:
    case KIND_TIME:
        return store_number(key, value, field);
    case KIND_SWITCH:
        return value_switch(value, field);
    case KIND_REFUSE:
        return store_refuse(value, field);
    case KIND_NAME:
        return store_name(key, value, field);
    case KIND_IP:
        return value_ipv4(value, word) && *word != 0;
    case KIND_IP_PREFIX:
        return value_ipv4_prefix(value, word, word + 1) && *word != 0;
    case KIND_IP_PORT:
        return value_ipv4_port(value, word, word + 1) && *word != 0;
    case KIND_MAC:
        out->net.mac_set = value_mac(value, field);
        return out->net.mac_set;
    }
    return false;
}

static const struct key *find_key(const char *name)
{
    for (size_t i = 0; i < N_KEYS; i++) {
        if (strcmp(keys[i].name, name) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

static bool fail_unknown(const char *name, const char *value, char *error)
{
    int used = snprintf(error, CONFIG_ERROR_BYTES,
                        "unknown key '%.40s' (value '%.40s'); allowed are", name, value);
    for (size_t i = 0; i < N_KEYS && used > 0 && (size_t)used < CONFIG_ERROR_BYTES; i++) {
        used += snprintf(error + used, CONFIG_ERROR_BYTES - (size_t)used, " %s", keys[i].name);
    }
    return false;
}

static bool parse_word(char *word, struct config *out, char *error)
{
    char *equals = strchr(word, '=');
    if (equals == NULL) {
        snprintf(error, CONFIG_ERROR_BYTES,
                 "'%.60s' is not of the form key=value; a word is, for example, test=udp", word);
        return false;
    }
    *equals = '\0';
    const char *value = equals + 1;
    const struct key *key = find_key(word);
    if (key == NULL) {
        return fail_unknown(word, value, error);
    }
    if (!store(key, value, out)) {
        snprintf(error, CONFIG_ERROR_BYTES, "%s=%.60s: allowed is %s", key->name, value,
                 key->allowed);
        return false;
    }
    if (strcmp(key->name, "vxlan.vni") == 0) {
        out->vxlan.on = true;
    }
    return true;
}

/* Copies the next word, past blanks and comments. Returns what follows, NULL at the end. A word
 * that is too long is cut; *fits says so. */
static const char *next_word(const char *at, char word[WORD_BYTES], bool *fits)
{
    while (isspace((unsigned char)*at) || *at == '#') {
        at += *at == '#' ? strcspn(at, "\n") : 1;
    }
    if (*at == '\0') {
        return NULL;
    }
    size_t len = strcspn(at, " \t\r\n\v\f");
    *fits = len < WORD_BYTES;
    size_t copied = *fits ? len : WORD_BYTES - 1;
    memcpy(word, at, copied);
    word[copied] = '\0';
    return at + len;
}

/* Values whose range depends on another key, or is no plain range: false with the first in error.
 */
static bool values_are_sound(const struct config *c, char error[CONFIG_ERROR_BYTES])
{
    const struct {
        bool broken;
        const char *key;
        uint64_t value;
        const char *text;
    } rules[] = {
        {c->test == CONFIG_TEST_UDP && (c->size_bytes < 16 || c->size_bytes > 65507), "size",
         c->size_bytes, "with test=udp allowed is 16..65507 bytes, what the protocol carries"},
        {(c->tx_size_descs & (c->tx_size_descs - 1)) != 0, "tx.size", c->tx_size_descs,
         "allowed is a power of two 2..32768"},
        {c->omit_ns % NS_PER_S != 0, "omit in ns", c->omit_ns, "allowed is 0..60 whole seconds"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (rules[i].broken) {
            snprintf(error, CONFIG_ERROR_BYTES, "%s=%" PRIu64 ": %s", rules[i].key, rules[i].value,
                     rules[i].text);
            return false;
        }
    }
    return true;
}

/* What two keys may not say together. The first that is broken is named, else NULL. */
static const char *broken_combination(const struct config *c)
{
    bool client = c->test == CONFIG_TEST_UDP || c->test == CONFIG_TEST_TCP;
    bool udp = c->test == CONFIG_TEST_UDP;
    const struct {
        bool broken;
        const char *text;
    } rules[] = {
        {client && c->server_ip == 0, "test=udp and test=tcp need server=, an IPv4 address"},
        {c->reverse && c->bidir, "reverse=on with bidir=on: allowed is one of the two"},
        {udp && c->window_bytes != 0, "window with test=udp: it is for test=tcp; udp has sndbuf"},
        {!udp && c->peer_window_bytes != 0, "peer_window without test=udp: it is for udp only"},
        {c->test == CONFIG_TEST_SELFTEST && c->selftest == CONFIG_SELFTEST_NONE,
         "test=selftest needs selftest=panic, pagefault, stack, wx, nx, printf, clock or heap"},
        {c->test != CONFIG_TEST_SELFTEST && c->selftest != CONFIG_SELFTEST_NONE,
         "selftest needs test=selftest"},
        {c->net.ip == 0 && c->net.gateway != 0,
         "gw with ip=dhcp: allowed is gw only with ip=address/prefix"},
        {!c->vxlan.on && (c->vxlan.remote_ip != 0 || c->vxlan.ip != 0 || c->vxlan.local_ip != 0),
         "vxlan.remote, vxlan.local and vxlan.ip need vxlan.vni"},
        {c->vxlan.on && (c->vxlan.remote_ip == 0 || c->vxlan.ip == 0),
         "vxlan.vni needs vxlan.remote and vxlan.ip"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (rules[i].broken) {
            return rules[i].text;
        }
    }
    return NULL;
}

bool config_parse(const char *words, struct config *out, char error[CONFIG_ERROR_BYTES])
{
    char word[WORD_BYTES];
    bool fits;
    *out = defaults;
    while ((words = next_word(words, word, &fits)) != NULL) {
        if (!fits) {
            snprintf(error, CONFIG_ERROR_BYTES, "'%.60s...': allowed is a word of at most %u bytes",
                     word, WORD_BYTES - 1);
            return false;
        }
        if (!parse_word(word, out, error)) {
            return false;
        }
    }
    if (out->size_bytes == 0) {
        out->size_bytes = default_size_bytes[out->test];
    }
    if (!values_are_sound(out, error)) {
        return false;
    }
    const char *broken = broken_combination(out);
    if (broken != NULL) {
        snprintf(error, CONFIG_ERROR_BYTES, "%s", broken);
        return false;
    }
    return true;
}
