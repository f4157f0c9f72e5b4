/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Command line of the strict backend. Behaviours and faults are key=value words.
 */
#include "tests/vhost-user/options.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { KIND_BOOL, KIND_U8, KIND_U16, KIND_U32 };

#define FAULT(field, kind)                                                                         \
    {                                                                                              \
#field, kind, true, offsetof(struct strict_faults, field)                                  \
    }
#define BEHAVIOR(field, kind)                                                                      \
    {                                                                                              \
#field, kind, false, offsetof(struct strict_options, field)                                \
    }

/* The header that comes once in so many packets. */
#define HEADER(field, kind)                                                                        \
    {                                                                                              \
        "rx_header_" #field, kind, true, offsetof(struct strict_faults, rx_header_value.field)     \
    }

/* Numbers of faults are "once in so many". Not here is what needs the registers, which are QEMU's,
 * and `reread`, which needs to see each load of the driver. */
static const struct word {
    const char *name;
    enum kind kind;
    bool is_fault;
    size_t offset;
} words[] = {
    BEHAVIOR(batch, KIND_U32),
    BEHAVIOR(per_step, KIND_U32),
    BEHAVIOR(slow, KIND_U32),
    BEHAVIOR(polls, KIND_BOOL),
    BEHAVIOR(max_chain_descs, KIND_U32),
    FAULT(used_id_range, KIND_U32),
    FAULT(used_id_idle, KIND_U32),
    FAULT(used_twice, KIND_U32),
    FAULT(idx_jump, KIND_U32),
    FAULT(rx_len_short, KIND_U32),
    FAULT(rx_len_long, KIND_U32),
    FAULT(num_buffers, KIND_U32),
    FAULT(num_buffers_value, KIND_U16),
    FAULT(rx_header, KIND_U32),
    HEADER(flags, KIND_U8),
    HEADER(gso_type, KIND_U8),
    HEADER(gso_size, KIND_U16),
    HEADER(csum_start, KIND_U16),
    HEADER(csum_offset, KIND_U16),
    FAULT(scribble_unused_event, KIND_BOOL),
    FAULT(lose_interrupts, KIND_U32),
    FAULT(lose_kicks, KIND_U32),
    FAULT(double_interrupts, KIND_U32),
    FAULT(spurious_interrupts, KIND_U32),
    FAULT(early_interrupts, KIND_U32),
    FAULT(late_steps, KIND_U32),
};

static const struct {
    const char *name;
    enum strict_feature bit;
} features[] = {
    {"csum", F_CSUM},           {"guest_csum", F_GUEST_CSUM},
    {"host_tso4", F_HOST_TSO4}, {"guest_tso4", F_GUEST_TSO4},
    {"mrg_rxbuf", F_MRG_RXBUF}, {"indirect", F_INDIRECT_DESC},
    {"event_idx", F_EVENT_IDX},
};

void options_usage(FILE *out)
{
    fputs("usage: strict-backend --socket PATH [--tap NAME] [--report FILE] [--seconds N]\n"
          "         [--mac MAC] [--guest-ip IP --ip IP --echo COUNT,BYTES,WINDOW]\n"
          "         [--without FEATURE] [--order in|reversed|random] [--pace kicked|lazy]\n"
          "         [--seed N] [--set KEY=VALUE]...\n"
          "A vhost-user network backend that judges the driver by every clause that it can see.\n"
          "Keys:",
          out);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        fprintf(out, " %s", words[i].name);
    }
    fputs("\nFeatures:", out);
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
        fprintf(out, " %s", features[i].name);
    }
    fputc('\n', out);
}

static bool bad(const char *name, const char *value)
{
    fprintf(stderr, "strict-backend: %s cannot be \"%s\"\n", name, value);
    return false;
}

/* Numbers in a row and nothing else, each at most `most`; base 0 takes hexadecimal with 0x, too. */
static bool numbers(const char *name, const char *value, int base, char between, unsigned n,
                    unsigned long most, unsigned long *out)
{
    const char *at = value;
    for (unsigned i = 0; i < n; i++) {
        char *end = NULL;
        errno = 0;
        out[i] = strtoul(at, &end, base);
        if (!isxdigit((unsigned char)*at) || errno != 0 || out[i] > most ||
            *end != (i + 1 < n ? between : '\0')) {
            return bad(name, value);
        }
        at = end + 1;
    }
    return true;
}

static bool number(const char *name, const char *value, uint32_t *out)
{
    unsigned long found;
    if (!numbers(name, value, 0, '\0', 1, UINT32_MAX, &found)) {
        return false;
    }
    *out = (uint32_t)found;
    return true;
}

static bool set_word(struct backend_options *opt, const char *text)
{
    const char *equals = strchr(text, '=');
    for (size_t i = 0; equals != NULL && i < sizeof(words) / sizeof(words[0]); i++) {
        const struct word *w = &words[i];
        if (strlen(w->name) != (size_t)(equals - text) ||
            strncmp(w->name, text, (size_t)(equals - text)) != 0) {
            continue;
        }
        char *base = w->is_fault ? (char *)&opt->faults : (char *)&opt->device;
        static const unsigned long most[] = {[KIND_BOOL] = 1,
                                             [KIND_U8] = UINT8_MAX,
                                             [KIND_U16] = UINT16_MAX,
                                             [KIND_U32] = UINT32_MAX};
        unsigned long value;
        if (!numbers("--set", equals + 1, 0, '\0', 1, most[w->kind], &value)) {
            return false;
        }
        if (w->kind == KIND_BOOL) {
            *(bool *)(void *)(base + w->offset) = value != 0;
        } else if (w->kind == KIND_U8) {
            *(uint8_t *)(base + w->offset) = (uint8_t)value;
        } else if (w->kind == KIND_U16) {
            *(uint16_t *)(void *)(base + w->offset) = (uint16_t)value;
        } else {
            *(uint32_t *)(void *)(base + w->offset) = (uint32_t)value;
        }
        return true;
    }
    return bad("--set", text);
}

static bool without(struct backend_options *opt, const char *name)
{
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
        if (strcmp(features[i].name, name) == 0) {
            opt->device.offered &= ~strict_bit(features[i].bit);
            return true;
        }
    }
    return bad("--without", name);
}

static bool choose(const char *name, const char *value, const char *const *names, unsigned n,
                   unsigned *out)
{
    for (unsigned i = 0; i < n; i++) {
        if (strcmp(names[i], value) == 0) {
            *out = i;
            return true;
        }
    }
    return bad(name, value);
}

static bool parse_mac(const char *value, uint8_t mac[6])
{
    unsigned long b[6];
    if (!numbers("--mac", value, 16, ':', 6, 0xff, b)) {
        return false;
    }
    for (unsigned i = 0; i < 6; i++) {
        mac[i] = (uint8_t)b[i];
    }
    return true;
}

static bool parse_echo(struct backend_options *opt, const char *value)
{
    unsigned long echo[3];
    if (!numbers("--echo", value, 10, ',', 3, UINT32_MAX, echo)) {
        return false;
    }
    opt->echo_count = (uint32_t)echo[0];
    opt->echo_bytes = (uint32_t)echo[1];
    opt->echo_window = (uint32_t)echo[2];
    return true;
}

static bool parse_one(struct backend_options *opt, const char *name, const char *value)
{
    static const char *const orders[] = {"in", "reversed", "random"};
    static const char *const paces[] = {"kicked", "lazy"};
    unsigned chosen;
    if (strcmp(name, "--socket") == 0) {
        opt->socket = value;
    } else if (strcmp(name, "--tap") == 0) {
        opt->tap = value;
    } else if (strcmp(name, "--report") == 0) {
        opt->report = value;
    } else if (strcmp(name, "--seconds") == 0) {
        return number(name, value, &opt->seconds);
    } else if (strcmp(name, "--seed") == 0) {
        unsigned long seed;
        if (!numbers(name, value, 0, '\0', 1, ULONG_MAX, &seed)) {
            return false;
        }
        opt->device.seed = seed;
    } else if (strcmp(name, "--mac") == 0) {
        opt->mac_given = true;
        return parse_mac(value, opt->mac);
    } else if (strcmp(name, "--guest-ip") == 0) {
        return inet_pton(AF_INET, value, opt->guest_ip) == 1 || bad(name, value);
    } else if (strcmp(name, "--ip") == 0) {
        return inet_pton(AF_INET, value, opt->ip) == 1 || bad(name, value);
    } else if (strcmp(name, "--echo") == 0) {
        return parse_echo(opt, value);
    } else if (strcmp(name, "--without") == 0) {
        return without(opt, value);
    } else if (strcmp(name, "--set") == 0) {
        return set_word(opt, value);
    } else if (strcmp(name, "--order") == 0) {
        if (!choose(name, value, orders, 3, &chosen)) {
            return false;
        }
        opt->device.order = (enum strict_order)chosen;
    } else if (strcmp(name, "--pace") == 0) {
        if (!choose(name, value, paces, 2, &chosen)) {
            return false;
        }
        opt->device.pace = chosen == 0 ? STRICT_ONLY_KICKED : STRICT_LAZY;
    } else {
        return bad("an option", name);
    }
    return true;
}

bool options_parse(struct backend_options *opt, int argc, char *argv[])
{
    memset(opt, 0, sizeof(*opt));
    strict_options_default(&opt->device);
    /* What belongs to configuration space is QEMU's to offer. */
    opt->device.offered &= ~(strict_bit(F_MAC) | strict_bit(F_STATUS) | strict_bit(F_MTU));
    opt->device.pace = STRICT_ONLY_KICKED;
    opt->seconds = 60;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc) {
            return bad(argv[i], "nothing");
        }
        if (!parse_one(opt, argv[i], argv[i + 1])) {
            return false;
        }
    }
    if (opt->socket == NULL) {
        return bad("--socket", "missing");
    }
    return true;
}
