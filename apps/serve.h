/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the guest does without a test: it answers. ARP and ping are the stack's; UDP and TCP echo on
 * port 7 are here.
 */
#ifndef SLUICE_APPS_SERVE_H
#define SLUICE_APPS_SERVE_H

#include "apps/outcome.h"

#define SERVE_ECHO_PORT 7u

/* Serves until the machine is switched off; returns only when it cannot begin, which the outcome
 * says. */
void serve_run(struct outcome *outcome);

#endif
