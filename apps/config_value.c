/* SPDX-License-Identifier: BSD-2-Clause */
#include "apps/config_value.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#define VALUE_MAX_DECIMALS 9u

static const uint64_t powers_of_ten[VALUE_MAX_DECIMALS + 1] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000,
};

struct decimal {
    uint64_t whole;
    uint64_t fraction; /* in 10^-decimals */
    unsigned decimals;
};

/* Digits, then at most one point with digits behind it. Returns what follows, NULL when no number.
 */
static const char *decimal_read(const char *text, struct decimal *out)
{
    *out = (struct decimal){0};
    if (!isdigit((unsigned char)*text)) {
        return NULL;
    }
    for (; isdigit((unsigned char)*text); text++) {
        if (__builtin_mul_overflow(out->whole, 10u, &out->whole) ||
            __builtin_add_overflow(out->whole, (uint64_t)(*text - '0'), &out->whole)) {
            return NULL;
        }
    }
    if (*text != '.') {
        return text;
    }
    text++;
    for (; isdigit((unsigned char)*text); text++) {
        if (out->decimals == VALUE_MAX_DECIMALS) {
            return NULL;
        }
        out->fraction = out->fraction * 10 + (uint64_t)(*text - '0');
        out->decimals++;
    }
    return out->decimals != 0 ? text : NULL;
}

/* number * unit; false when it does not fit. The fraction is below 10^9 and the unit at most 2^30,
 * so their product fits. */
static bool decimal_times(const struct decimal *number, uint64_t unit, uint64_t *out)
{
    uint64_t whole;
    if (__builtin_mul_overflow(number->whole, unit, &whole)) {
        return false;
    }
    uint64_t part = number->fraction * unit / powers_of_ten[number->decimals];
    return !__builtin_add_overflow(whole, part, out);
}

/* The unit that a suffix of one letter means; *rest is what follows it. 0: another letter. */
static uint64_t suffix_unit(const char *text, uint64_t base, const char **rest)
{
    *rest = *text == '\0' ? text : text + 1;
    switch (tolower((unsigned char)*text)) {
    case '\0':
        return 1;
    case 'k':
        return base;
    case 'm':
        return base * base;
    case 'g':
        return base * base * base;
    default:
        return 0;
    }
}

bool value_size(const char *text, uint64_t *bytes)
{
    struct decimal number;
    const char *suffix = decimal_read(text, &number);
    if (suffix == NULL) {
        return false;
    }
    uint64_t unit = suffix_unit(suffix, 1024, &suffix);
    if (unit == 0 || *suffix != '\0' || (unit == 1 && number.decimals != 0)) {
        return false;
    }
    return decimal_times(&number, unit, bytes);
}

bool value_rate(const char *text, uint64_t *bits_per_second)
{
    struct decimal number;
    const char *suffix = decimal_read(text, &number);
    if (suffix == NULL) {
        return false;
    }
    const char *word = suffix;
    uint64_t unit = suffix_unit(suffix, 1000, &word);
    if (unit == 0) {
        unit = 1; /* a 'b' of "bit" or "bps", or wrong: seen below */
        word = suffix;
    }
    if (*word != '\0' && strcasecmp(word, "bit") != 0 && strcasecmp(word, "bps") != 0) {
        return false;
    }
    return decimal_times(&number, unit, bits_per_second);
}

bool value_time(const char *text, uint64_t *ns)
{
    struct decimal number;
    const char *rest = decimal_read(text, &number);
    return rest != NULL && *rest == '\0' && decimal_times(&number, 1000000000u, ns);
}

bool value_count(const char *text, uint64_t *count)
{
    struct decimal number;
    const char *rest = decimal_read(text, &number);
    if (rest == NULL || *rest != '\0' || number.decimals != 0) {
        return false;
    }
    *count = number.whole;
    return true;
}

/* One to three digits of at most limit. Returns what follows, NULL when none. */
static const char *small_number(const char *text, unsigned limit, unsigned *out)
{
    unsigned value = 0;
    unsigned digits = 0;
    for (; isdigit((unsigned char)*text); text++) {
        value = value * 10 + (unsigned)(*text - '0');
        if (++digits > 3 || value > limit) {
            return NULL;
        }
    }
    *out = value;
    return digits != 0 ? text : NULL;
}

static const char *ipv4_read(const char *text, uint32_t *ip)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned byte;
        if (i != 0 && *text++ != '.') {
            return NULL;
        }
        text = small_number(text, 255, &byte);
        if (text == NULL) {
            return NULL;
        }
        value = value << 8 | byte;
    }
    *ip = value;
    return text;
}

bool value_ipv4(const char *text, uint32_t *ip)
{
    uint32_t value;
    const char *rest = ipv4_read(text, &value);
    if (rest == NULL || *rest != '\0') {
        return false;
    }
    *ip = value;
    return true;
}

bool value_ipv4_prefix(const char *text, uint32_t *ip, uint32_t *netmask)
{
    uint32_t value;
    unsigned prefix;
    const char *rest = ipv4_read(text, &value);
    if (rest == NULL || *rest != '/') {
        return false;
    }
    rest = small_number(rest + 1, 32, &prefix);
    if (rest == NULL || *rest != '\0' || prefix == 0) {
        return false;
    }
    *ip = value;
    *netmask = UINT32_MAX << (32 - prefix);
    return true;
}

bool value_ipv4_port(const char *text, uint32_t *ip, uint32_t *port)
{
    uint32_t value;
    uint64_t number = *port;
    const char *rest = ipv4_read(text, &value);
    if (rest == NULL) {
        return false;
    }
    if (*rest != '\0' &&
        (*rest != ':' || !value_count(rest + 1, &number) || number < 1 || number > UINT16_MAX)) {
        return false;
    }
    *ip = value;
    *port = (uint32_t)number;
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool value_mac(const char *text, uint8_t mac[6])
{
    static const uint8_t zeros[6];
    uint8_t bytes[6];
    if (strlen(text) != 17) {
        return false;
    }
    for (unsigned i = 0; i < 6; i++, text += 3) {
        int high = hex_digit(text[0]);
        int low = hex_digit(text[1]);
        if (high < 0 || low < 0 || text[2] != (i == 5 ? '\0' : ':')) {
            return false;
        }
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    if ((bytes[0] & 1) != 0 || memcmp(bytes, zeros, sizeof bytes) == 0) {
        return false;
    }
    memcpy(mac, bytes, sizeof bytes);
    return true;
}

bool value_switch(const char *text, bool *on)
{
    if (strcmp(text, "on") == 0) {
        *on = true;
        return true;
    }
    if (strcmp(text, "off") == 0) {
        *on = false;
        return true;
    }
    return false;
}
