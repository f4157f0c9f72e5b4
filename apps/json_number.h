/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Numbers in JSON text. cJSON keeps a number as a double, which is exact up to 2^53 only and prints
 * with an exponent above 10^15; counters are therefore added digit by digit. False: no memory.
 */
#ifndef SLUICE_APPS_JSON_NUMBER_H
#define SLUICE_APPS_JSON_NUMBER_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <cJSON.h>

static inline bool json_add_u64(cJSON *object, const char *key, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    return cJSON_AddRawToObject(object, key, digits) != NULL;
}

static inline bool json_add_i64(cJSON *object, const char *key, int64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRId64, value);
    return cJSON_AddRawToObject(object, key, digits) != NULL;
}

static inline bool json_add_bool(cJSON *object, const char *key, bool value)
{
    return cJSON_AddBoolToObject(object, key, value) != NULL;
}

static inline bool json_add_double(cJSON *object, const char *key, double value)
{
    return cJSON_AddNumberToObject(object, key, value) != NULL;
}

static inline bool json_add_text(cJSON *object, const char *key, const char *value)
{
    return cJSON_AddStringToObject(object, key, value) != NULL;
}

#endif
