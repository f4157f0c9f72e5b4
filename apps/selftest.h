/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The machine below the program, tried from inside: what must work, and what must end in a panic.
 */
#ifndef SLUICE_APPS_SELFTEST_H
#define SLUICE_APPS_SELFTEST_H

#include "apps/outcome.h"

/* Returns when the test is one that can pass; the outcome says whether it did. The others panic,
 * and fail by returning. */
void selftest_run(struct outcome *outcome);

#endif
