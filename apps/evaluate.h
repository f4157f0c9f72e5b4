/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From what both ends counted to what was sent, received and lost in each direction.
 */
#ifndef SLUICE_APPS_EVALUATE_H
#define SLUICE_APPS_EVALUATE_H

#include "apps/measure.h"

/* The times at which the guest's own sending was over, as later stations of the path saw it. */
struct evaluate_times {
    uint64_t settled_ns; /* consumed by the device, or acknowledged */
    uint64_t arrived_ns; /* an echo came back behind the last datagram */
};

/* peer NULL: the server never said. Fills the flows of the outcome, and fails it when they
 * contradict each other. */
void evaluate(struct outcome *outcome, const struct measure *measure,
              const struct iperf3_results *peer, const struct evaluate_times *times);

/* What the server says it sent on a stream and this end has not got: datagrams, or bytes of a
 * connection. */
uint64_t evaluate_missing(const struct measure *measure, unsigned i,
                          const struct iperf3_results *peer);

/* What this end tells the server. */
void evaluate_own_results(const struct outcome *outcome, const struct measure *measure,
                          struct iperf3_results *results);

#endif
