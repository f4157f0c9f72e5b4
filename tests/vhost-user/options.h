/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef SLUICE_TESTS_VHOST_OPTIONS_H
#define SLUICE_TESTS_VHOST_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/device/strict_device.h"

struct backend_options {
    const char *socket, *tap, *report;
    struct strict_options device;
    struct strict_faults faults;
    uint8_t mac[6], guest_ip[4], ip[4];
    bool mac_given;
    uint32_t echo_count, echo_bytes, echo_window;
    uint32_t seconds; /* at most so long after the guest connected */
};

/* False with a line on stderr: usage, or a value that cannot be. */
bool options_parse(struct backend_options *opt, int argc, char *argv[]);
void options_usage(FILE *out);

#endif
