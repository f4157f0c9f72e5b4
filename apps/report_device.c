/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What driver and stack counted, for the `sluice` object.
 */
#include "apps/ip_text.h"
#include "apps/report.h"

#include <stdio.h>

#include "apps/json_number.h"
#include "boot/machine.h"

static bool add_hex(cJSON *object, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "0x%" PRIx64, value);
    return json_add_text(object, key, text);
}

static bool add_mac(cJSON *sluice, const uint8_t *mac)
{
    char text[24];
    snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3],
             mac[4], mac[5]);
    return json_add_text(sluice, "mac", text);
}

static bool add_ip(cJSON *sluice, uint32_t ip)
{
    return json_add_text(sluice, "ip", ip_text(ip).text);
}

/* {name: count} of those that happened. */
static bool add_counts(cJSON *object, const char *key, const char *const *names,
                       const uint64_t *counts, unsigned n)
{
    cJSON *map = cJSON_AddObjectToObject(object, key);
    bool ok = map != NULL;
    for (unsigned i = 0; ok && i < n; i++) {
        ok = counts[i] == 0 || json_add_u64(map, names[i], counts[i]);
    }
    return ok;
}

static bool add_features(cJSON *sluice, const struct virtio_net_info *info)
{
    cJSON *features = cJSON_AddObjectToObject(sluice, "features");
    bool ok = features != NULL && add_hex(features, "offered", info->features_offered) &&
              add_hex(features, "accepted", info->features_accepted);
    cJSON *refused = ok ? cJSON_AddArrayToObject(features, "refused") : NULL;
    ok = refused != NULL;
    for (unsigned i = 0; ok && i < info->n_refused; i++) {
        cJSON *item = cJSON_CreateObject();
        ok = cJSON_AddItemToArray(refused, item) &&
             json_add_text(item, "name", info->refused[i].name) &&
             json_add_text(item, "reason", info->refused[i].reason);
    }
    return ok;
}

static bool add_tx(cJSON *sluice, const struct virtio_net *device)
{
    struct virtio_net_tx_stats tx;
    virtio_net_tx_stats(device, 0, &tx);
    cJSON *array = cJSON_AddArrayToObject(sluice, "tx");
    cJSON *item = cJSON_CreateObject();
    return array != NULL && cJSON_AddItemToArray(array, item) &&
           json_add_u64(item, "size_descs", tx.size_descs) &&
           json_add_u64(item, "unit_descs", tx.unit_descs) &&
           json_add_u64(item, "reserve_descs", tx.reserve_descs) &&
           json_add_u64(item, "stop_descs", tx.stop_descs) &&
           json_add_u64(item, "wake_descs", tx.wake_descs) &&
           json_add_text(item, "policy", virtio_net_policy_names[tx.policy]) &&
           json_add_u64(item, "packets", tx.packets) && json_add_u64(item, "bytes", tx.bytes) &&
           json_add_u64(item, "stops", tx.stops) && json_add_u64(item, "wakes", tx.wakes) &&
           json_add_u64(item, "kicks", tx.kicks) &&
           json_add_u64(item, "kicks_suppressed", tx.kicks_suppressed) &&
           json_add_u64(item, "interrupts", tx.interrupts) &&
           json_add_u64(item, "spurious_interrupts", tx.spurious_interrupts) &&
           json_add_u64(item, "recheck_hits", tx.recheck_hits) &&
           json_add_u64(item, "full_ns", tx.full_ns) &&
           json_add_u64(item, "unexpected_full", tx.unexpected_full) &&
           json_add_u64(item, "requeues", tx.requeues) &&
           json_add_u64(item, "timer_reaps", tx.timer_reaps) &&
           json_add_u64(item, "in_flight", virtio_net_tx_in_flight(device, 0)) &&
           add_counts(item, "drops", virtio_net_tx_drop_names, tx.drops, VIRTIO_NET_TX_DROPS);
}

static bool add_rx(cJSON *sluice, const struct virtio_net *device)
{
    struct virtio_net_rx_stats rx;
    virtio_net_rx_stats(device, 0, &rx);
    cJSON *array = cJSON_AddArrayToObject(sluice, "rx");
    cJSON *item = cJSON_CreateObject();
    return array != NULL && cJSON_AddItemToArray(array, item) &&
           json_add_u64(item, "size_descs", rx.size_descs) &&
           json_add_u64(item, "packets", rx.packets) && json_add_u64(item, "bytes", rx.bytes) &&
           json_add_u64(item, "interrupts", rx.interrupts) &&
           json_add_u64(item, "spurious_interrupts", rx.spurious_interrupts) &&
           json_add_u64(item, "recheck_hits", rx.recheck_hits) &&
           json_add_u64(item, "kicks", rx.kicks) &&
           json_add_u64(item, "kicks_suppressed", rx.kicks_suppressed) &&
           json_add_u64(item, "refill_fail", rx.refill_fail) &&
           add_counts(item, "drops", virtio_net_rx_drop_names, rx.drops, VIRTIO_NET_RX_DROPS);
}

static bool add_net(cJSON *sluice)
{
    struct net_stats stats;
    net_stats(&stats);
    cJSON *net = cJSON_AddObjectToObject(sluice, "net");
    return net != NULL && json_add_u64(net, "csum_bad", stats.csum_bad) &&
           json_add_u64(net, "arp_queue_drop", stats.arp_queue_drop) &&
           json_add_u64(net, "tso_frames", stats.tso_frames) &&
           json_add_u64(net, "tso_segments", stats.tso_segments) &&
           json_add_u64(net, "lro_frames", stats.lro_frames) &&
           json_add_u64(net, "tcp_retransmits", stats.tcp_retransmits) &&
           json_add_u64(net, "tx_refused", stats.tx_refused) &&
           json_add_u64(net, "ip_fragments", stats.ip_fragments) &&
           json_add_u64(net, "udp_frames_out", stats.udp_frames_out) &&
           json_add_u64(net, "udp_frames_in", stats.udp_frames_in) &&
           json_add_u64(net, "rx_no_pbuf", stats.rx_no_pbuf) &&
           json_add_u64(net, "tx_no_route", stats.tx_no_route) &&
           json_add_u64(net, "tx_link_down", stats.tx_link_down) &&
           json_add_u64(net, "stood_still_ns", stats.stood_still_ns) &&
           json_add_u64(net, "vxlan_encapsulated", stats.vxlan_encapsulated) &&
           json_add_u64(net, "vxlan_decapsulated", stats.vxlan_decapsulated) &&
           json_add_u64(net, "vxlan_unknown_vni", stats.vxlan_unknown_vni) &&
           json_add_u64(net, "vxlan_malformed", stats.vxlan_malformed);
}

static bool add_ledger(cJSON *sluice)
{
    struct net_ledger ledger;
    net_ledger(&ledger);
    cJSON *item = cJSON_AddObjectToObject(sluice, "ledger");
    return item != NULL && json_add_bool(item, "ok", ledger.ok) &&
           json_add_u64(item, "submitted", ledger.submitted) &&
           json_add_u64(item, "completed", ledger.completed) &&
           json_add_u64(item, "aborted", ledger.aborted) &&
           json_add_u64(item, "charged_bytes", ledger.charged_bytes) &&
           json_add_u64(item, "credited_bytes", ledger.credited_bytes) &&
           json_add_u64(item, "pool_bufs", ledger.pool_bufs) &&
           json_add_u64(item, "pool_free", ledger.pool_free) &&
           json_add_u64(item, "held", ledger.held);
}

bool report_device(cJSON *sluice)
{
    const struct virtio_net *device = net_device();
    const struct virtio_net_info *info = virtio_net_info(device);
    return json_add_u64(sluice, "first_frame_ns", virtio_net_first_kick_ns(device)) &&
           json_add_text(sluice, "accel_hint", machine_hypervisor()) &&
           add_features(sluice, info) && json_add_u64(sluice, "mtu", net_mtu()) &&
           add_mac(sluice, net_mac()) && add_ip(sluice, net_ip()) && add_tx(sluice, device) &&
           add_rx(sluice, device) && add_net(sluice) &&
           add_counts(sluice, "device_faults", virtio_net_fault_names,
                      virtio_net_device_faults(device), VIRTIO_NET_FAULTS) &&
           add_ledger(sluice);
}
