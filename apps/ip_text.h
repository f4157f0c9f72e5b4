/* SPDX-License-Identifier: BSD-2-Clause
 *
 * An IPv4 address (host byte order) in words: `ip_text(ip).text`, good until the end of the
 * expression.
 */
#ifndef SLUICE_APPS_IP_TEXT_H
#define SLUICE_APPS_IP_TEXT_H

#include <stdint.h>
#include <stdio.h>

struct ip_text {
    char text[16]; /* 255.255.255.255 and its end */
};

static inline struct ip_text ip_text(uint32_t ip)
{
    struct ip_text t;
    snprintf(t.text, sizeof t.text, "%u.%u.%u.%u", (unsigned)(ip >> 24),
             (unsigned)(ip >> 16 & 0xff), (unsigned)(ip >> 8 & 0xff), (unsigned)(ip & 0xff));
    return t;
}

#endif
