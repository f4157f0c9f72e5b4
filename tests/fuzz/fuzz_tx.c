/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Transmit: frames sound and not, at any time; completions in any order, of anything, or of
 * nothing.
 *
 *     add, reserve, flush, reclaim, arm  ->  [ring of 16]  ->  use, jump, scribble
 */
#include "tests/fuzz/ring_acts.h"

#define FULL                                                                                       \
    (FEATURE(VIRTIO_F_INDIRECT_DESC) | FEATURE(VIRTIO_F_EVENT_IDX) | FEATURE(VIRTIO_NET_F_CSUM) |  \
     FEATURE(VIRTIO_NET_F_HOST_TSO4))

static const struct rig_variant variants[] = {
    {.features = FULL, .max_datagram_bytes = 1024},
    {.features = 0, .max_datagram_bytes = 1024},
    {.features = FEATURE(VIRTIO_F_EVENT_IDX), .max_datagram_bytes = 4000},
    {.features = FULL & ~FEATURE(VIRTIO_F_EVENT_IDX), .max_datagram_bytes = 65507},
    {.features = FULL, .policy = VIRTIO_NET_POLICY_WAKE_ON_ONE, .max_datagram_bytes = 1024},
    {.features = 0, .policy = VIRTIO_NET_POLICY_WAKE_ON_ONE, .max_datagram_bytes = 1024},
    {.features = 0, .policy = VIRTIO_NET_POLICY_DROP, .max_datagram_bytes = 1024},
    {.features = FULL, .policy = VIRTIO_NET_POLICY_NO_RECHECK, .max_datagram_bytes = 1024},
};

static rig_act *const acts[] = {
    act_send,  act_send,     act_add,     act_reserve,   act_flush, act_reclaim,
    act_sleep, act_poll,     act_tx_use,  act_tx_serve,  act_jump,  act_tx_use_len,
    act_event, act_scribble, act_publish, act_interrupt,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return rig_run(data, size, variants, sizeof(variants) / sizeof(variants[0]), acts,
                   sizeof(acts) / sizeof(acts[0]));
}
