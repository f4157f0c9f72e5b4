/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Reset under load: a device that asks for it at any time, answers the new start as it likes, and
 * changes its configuration meanwhile; traffic both ways around it.
 */
#include "tests/fuzz/ring_acts.h"

static const struct rig_variant variants[] = {
    {.features = FEATURE(VIRTIO_F_INDIRECT_DESC) | FEATURE(VIRTIO_F_EVENT_IDX) |
                 FEATURE(VIRTIO_NET_F_MRG_RXBUF),
     .max_datagram_bytes = 1024},
    {.features = 0, .max_datagram_bytes = 4000},
    {.features = 0, .policy = VIRTIO_NET_POLICY_WAKE_ON_ONE, .max_datagram_bytes = 1024},
};

static rig_act *const acts[] = {
    act_needs_reset, act_answers, act_link,     act_poll,   act_poll,     act_sleep,
    act_send,        act_flush,   act_tx_serve, act_rx_use, act_rx_poll,  act_keep,
    act_reclaim,     act_jump,    act_reserve,  act_add,    act_scribble, act_interrupt,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return rig_run(data, size, variants, sizeof(variants) / sizeof(variants[0]), acts,
                   sizeof(acts) / sizeof(acts[0]));
}
