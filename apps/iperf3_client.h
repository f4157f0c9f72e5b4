/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One iperf3 test against a server, from resolving its address to its results.
 */
#ifndef SLUICE_APPS_IPERF3_CLIENT_H
#define SLUICE_APPS_IPERF3_CLIENT_H

#include "apps/outcome.h"

/* Runs the network's loop until the test is over or has failed, which the outcome says. All sockets
 * are closed. */
void iperf3_client_run(struct outcome *outcome);

#endif
