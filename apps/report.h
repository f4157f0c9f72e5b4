/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a person reads while it runs, and the line of JSON at the end that a program reads
 * (docs/results.md).
 */
#ifndef SLUICE_APPS_REPORT_H
#define SLUICE_APPS_REPORT_H

#include "apps/outcome.h"

void report_row_header(const struct outcome *outcome);
void report_row(const struct outcome *outcome, const struct interval *interval);
void report_summary(const struct outcome *outcome);

/* What was recorded of the rings, while the network is still open. */
struct ring_trace;
void report_trace(const struct ring_trace *trace);

/* The last line. Also for a run that failed, as far as it got. */
void report_json(const struct outcome *outcome);

/* The same as text, to be freed by the caller; NULL: no memory. */
char *report_json_text(const struct outcome *outcome);

/* Fills the `sluice` object's parts that tell of driver and stack. False: no memory. */
struct cJSON;
bool report_device(struct cJSON *sluice);

#endif
