/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The ring trace as text (docs/trace.md).
 */
#include <inttypes.h>
#include <stdio.h>

#include "apps/report.h"
#include "drivers/ring_trace.h"
#include "net/net.h"

#define TRACE_FORMAT_VERSION 1

void report_trace(const struct ring_trace *trace)
{
    const struct virtio_net_info *info = virtio_net_info(net_device());
    struct virtio_net_tx_stats tx;
    struct virtio_net_rx_stats rx;
    char line[RING_TRACE_LINE_BYTES];
    uint32_t cursor = 0;

    virtio_net_tx_stats(net_device(), 0, &tx);
    virtio_net_rx_stats(net_device(), 0, &rx);
    printf("trace: version=%d events=%" PRIu32 " lost=%" PRIu64 " features=0x%" PRIx64
           " mtu=%u datagram=%" PRIu32 " policy=%s tx.size=%u tx.stop=%u tx.wake=%u rx.size=%u\n",
           TRACE_FORMAT_VERSION, trace->n, trace->lost, info->features_accepted, info->mtu_bytes,
           info->max_datagram_bytes, virtio_net_policy_names[tx.policy], tx.size_descs,
           tx.stop_descs, tx.wake_descs, rx.size_descs);
    while (ring_trace_line(trace, &cursor, line)) {
        printf("trace:%s\n", line);
    }
    fflush(stdout);
}
