/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The values that configuration words may have, each strictly: all of the text, or nothing. False
 * leaves *out alone.
 */
#ifndef SLUICE_APPS_CONFIG_VALUE_H
#define SLUICE_APPS_CONFIG_VALUE_H

#include <stdbool.h>
#include <stdint.h>

/* "1024", "64K", "1.5M": 1024 based, either case. */
bool value_size(const char *text, uint64_t *bytes);

/* "0", "10000", "100m", "1.5g", "100mbit", "100mbps": 1000 based, either case. */
bool value_rate(const char *text, uint64_t *bits_per_second);

/* "10", "0.5": seconds, at most nine decimals. */
bool value_time(const char *text, uint64_t *ns);

/* Decimal digits only. */
bool value_count(const char *text, uint64_t *count);

/* "192.0.2.1", to host byte order. */
bool value_ipv4(const char *text, uint32_t *ip);

/* "192.0.2.1/24" */
bool value_ipv4_prefix(const char *text, uint32_t *ip, uint32_t *netmask);

/* "192.0.2.1" or "192.0.2.1:5201"; *port is left alone without one. */
bool value_ipv4_port(const char *text, uint32_t *ip, uint32_t *port);

/* "02:00:00:00:00:01"; refuses group addresses and all zeros. */
bool value_mac(const char *text, uint8_t mac[6]);

bool value_switch(const char *text, bool *on);

#endif
