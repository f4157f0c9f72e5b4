/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Receive: used entries, ids, lengths, buffer counts, headers, and words that change between two
 * looks; buffers that the user keeps.
 *
 *     rx_poll, return, arm  <-  [ring of 16]  <-  use, jump, scribble
 */
#include "tests/fuzz/ring_acts.h"

#define MERGE FEATURE(VIRTIO_NET_F_MRG_RXBUF)
#define CSUM  FEATURE(VIRTIO_NET_F_GUEST_CSUM)

static const struct rig_variant variants[] = {
    {.features = MERGE | CSUM | FEATURE(VIRTIO_NET_F_GUEST_TSO4) | FEATURE(VIRTIO_F_EVENT_IDX)},
    {.features = 0},
    {.features = MERGE | FEATURE(VIRTIO_F_EVENT_IDX)},
    {.features = CSUM},
};

static rig_act *const acts[] = {
    act_rx_use, act_rx_use,   act_rx_use,  act_rx_poll,   act_rx_poll, act_keep, act_jump,
    act_event,  act_scribble, act_publish, act_interrupt, act_sleep,   act_poll, act_needs_reset,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return rig_run(data, size, variants, sizeof(variants) / sizeof(variants[0]), acts,
                   sizeof(acts) / sizeof(acts[0]));
}
