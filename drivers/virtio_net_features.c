/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Which features are taken, and for each that is not, why. VIRTIO 1.x sections 2.2, 5.1.3, 6.
 *
 * Negotiation starts from what is understood and takes away: what is not offered, what the user
 * switched off, what lacks a feature that it depends on (5.1.3.1). Bits that are in no list here
 * are ignored, whatever they are.
 */
#include "drivers/virtio_net_impl.h"

struct feature_name {
    uint8_t bit;
    const char *name;
};

static const struct feature_name names[] = {
    {0, "CSUM"},
    {1, "GUEST_CSUM"},
    {2, "CTRL_GUEST_OFFLOADS"},
    {3, "MTU"},
    {5, "MAC"},
    {7, "GUEST_TSO4"},
    {8, "GUEST_TSO6"},
    {9, "GUEST_ECN"},
    {10, "GUEST_UFO"},
    {11, "HOST_TSO4"},
    {12, "HOST_TSO6"},
    {13, "HOST_ECN"},
    {14, "HOST_UFO"},
    {15, "MRG_RXBUF"},
    {16, "STATUS"},
    {17, "CTRL_VQ"},
    {18, "CTRL_RX"},
    {19, "CTRL_VLAN"},
    {20, "CTRL_RX_EXTRA"},
    {21, "GUEST_ANNOUNCE"},
    {22, "MQ"},
    {23, "CTRL_MAC_ADDR"},
    {28, "INDIRECT_DESC"},
    {29, "EVENT_IDX"},
    {34, "RING_PACKED"},
    {35, "IN_ORDER"},
    {37, "SR_IOV"},
    {38, "NOTIFICATION_DATA"},
    {39, "NOTIF_CONFIG_DATA"},
    {40, "RING_RESET"},
    {52, "VQ_NOTF_COAL"},
    {53, "NOTF_COAL"},
    {54, "GUEST_USO4"},
    {55, "GUEST_USO6"},
    {56, "HOST_USO"},
    {57, "HASH_REPORT"},
    {59, "GUEST_HDRLEN"},
    {60, "RSS"},
    {61, "RSC_EXT"},
    {62, "STANDBY"},
    {63, "SPEED_DUPLEX"},
};

#define UNDERSTOOD                                                                                 \
    (FEATURE(VIRTIO_NET_F_CSUM) | FEATURE(VIRTIO_NET_F_GUEST_CSUM) | FEATURE(VIRTIO_NET_F_MTU) |   \
     FEATURE(VIRTIO_NET_F_MAC) | FEATURE(VIRTIO_NET_F_GUEST_TSO4) |                                \
     FEATURE(VIRTIO_NET_F_HOST_TSO4) | FEATURE(VIRTIO_NET_F_MRG_RXBUF) |                           \
     FEATURE(VIRTIO_NET_F_STATUS) | FEATURE(VIRTIO_NET_F_GUEST_HDRLEN) |                           \
     FEATURE(VIRTIO_F_INDIRECT_DESC) | FEATURE(VIRTIO_F_EVENT_IDX) | FEATURE(VIRTIO_F_VERSION_1) | \
     FEATURE(VIRTIO_F_ACCESS_PLATFORM) | FEATURE(VIRTIO_F_ORDER_PLATFORM))

static const char switched_off[] = "switched off by configuration";

static const char *name_of(unsigned bit)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].bit == bit) {
            return names[i].name;
        }
    }
    return NULL;
}

void features_refuse(struct virtio_net_info *info, const char *name, const char *reason)
{
    if (info->n_refused < VIRTIO_NET_MAX_REFUSALS) {
        info->refused[info->n_refused++] = (struct virtio_net_feature_refusal){name, reason};
    }
}

/* Takes a bit out of the set, once, with the reason. */
static void drop(struct virtio_net_info *info, uint64_t *set, unsigned bit, const char *reason)
{
    if ((*set & FEATURE(bit)) != 0) {
        *set &= ~FEATURE(bit);
        features_refuse(info, name_of(bit), reason);
    }
}

static void drop_unless(struct virtio_net_info *info, uint64_t *set, unsigned bit, unsigned needed,
                        const char *reason)
{
    if ((*set & FEATURE(needed)) == 0) {
        drop(info, set, bit, reason);
    }
}

uint64_t features_negotiate(const struct virtio_net_config *config, uint64_t offered,
                            bool mtu_usable, bool mac_usable, struct virtio_net_info *info)
{
    const struct virtio_net_refuse *refuse = &config->refuse;
    const struct {
        bool off;
        uint8_t bit;
    } switches[] = {
        {refuse->indirect, VIRTIO_F_INDIRECT_DESC},  {refuse->event_idx, VIRTIO_F_EVENT_IDX},
        {refuse->csum, VIRTIO_NET_F_CSUM},           {refuse->guest_csum, VIRTIO_NET_F_GUEST_CSUM},
        {refuse->host_tso, VIRTIO_NET_F_HOST_TSO4},  {refuse->guest_tso, VIRTIO_NET_F_GUEST_TSO4},
        {refuse->mrg_rxbuf, VIRTIO_NET_F_MRG_RXBUF},
    };
    uint64_t set = offered & UNDERSTOOD;

    info->features_offered = offered;
    info->n_refused = 0;
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        if (switches[i].off) {
            drop(info, &set, switches[i].bit, switched_off);
        }
    }
    if (!mtu_usable) {
        drop(info, &set, VIRTIO_NET_F_MTU, "the device's value is below 68 or out of its reach");
    }
    if (!mac_usable) {
        drop(info, &set, VIRTIO_NET_F_MAC,
             "the device's address is out of its reach or never stable");
    }
    drop_unless(info, &set, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_CSUM, "needs CSUM");
    drop_unless(info, &set, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_CSUM, "needs GUEST_CSUM");
    drop_unless(info, &set, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_MRG_RXBUF,
                "without MRG_RXBUF every receive buffer would have to hold 64 KiB");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if ((offered & ~UNDERSTOOD & FEATURE(names[i].bit)) != 0) {
            features_refuse(info, names[i].name, "not used by this driver");
        }
    }
    info->features_accepted = set;
    info->can_csum = (set & FEATURE(VIRTIO_NET_F_CSUM)) != 0;
    info->can_tso = (set & FEATURE(VIRTIO_NET_F_HOST_TSO4)) != 0;
    info->rx_csum = (set & FEATURE(VIRTIO_NET_F_GUEST_CSUM)) != 0;
    info->indirect = (set & FEATURE(VIRTIO_F_INDIRECT_DESC)) != 0;
    info->event_idx = (set & FEATURE(VIRTIO_F_EVENT_IDX)) != 0;
    info->mrg_rxbuf = (set & FEATURE(VIRTIO_NET_F_MRG_RXBUF)) != 0;
    info->guest_tso = (set & FEATURE(VIRTIO_NET_F_GUEST_TSO4)) != 0;
    return set;
}
