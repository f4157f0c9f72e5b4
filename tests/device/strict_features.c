/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The accepted features against the offer: subset, dependencies, what must and must not be taken.
 * VIRTIO 1.x sections 2.2, 5.1.3.1 and 6.
 */
#include "tests/device/strict_net.h"

#define ANY(a, b) (1ull << (a) | 1ull << (b))

/* A bit, and sets of which each must have a member in the accepted features. */
struct dependency {
    enum strict_clause clause;
    enum strict_feature bit;
    uint64_t needs[4];
};

#define ONE(bit) (1ull << (bit))

static const struct dependency dependencies[] = {
    {NET_DRV_DEP_01, F_GUEST_TSO4, {ONE(F_GUEST_CSUM)}},
    {NET_DRV_DEP_02, F_GUEST_TSO6, {ONE(F_GUEST_CSUM)}},
    {NET_DRV_DEP_03, F_GUEST_ECN, {ANY(F_GUEST_TSO4, F_GUEST_TSO6)}},
    {NET_DRV_DEP_04, F_GUEST_UFO, {ONE(F_GUEST_CSUM)}},
    {NET_DRV_DEP_05, F_GUEST_USO4, {ONE(F_GUEST_CSUM)}},
    {NET_DRV_DEP_06, F_GUEST_USO6, {ONE(F_GUEST_CSUM)}},
    {NET_DRV_DEP_07,
     F_GUEST_UDP_TUNNEL_GSO,
     {ONE(F_GUEST_TSO4), ONE(F_GUEST_TSO6), ONE(F_GUEST_USO4), ONE(F_GUEST_USO6)}},
    {NET_DRV_DEP_08, F_GUEST_UDP_TUNNEL_GSO_CSUM, {ONE(F_GUEST_UDP_TUNNEL_GSO)}},
    {NET_DRV_DEP_09, F_HOST_TSO4, {ONE(F_CSUM)}},
    {NET_DRV_DEP_10, F_HOST_TSO6, {ONE(F_CSUM)}},
    {NET_DRV_DEP_11, F_HOST_ECN, {ANY(F_HOST_TSO4, F_HOST_TSO6)}},
    {NET_DRV_DEP_12, F_HOST_UFO, {ONE(F_CSUM)}},
    {NET_DRV_DEP_13, F_HOST_USO, {ONE(F_CSUM)}},
    {NET_DRV_DEP_14, F_HOST_UDP_TUNNEL_GSO, {ONE(F_HOST_TSO4), ONE(F_HOST_TSO6), ONE(F_HOST_USO)}},
    {NET_DRV_DEP_15, F_HOST_UDP_TUNNEL_GSO_CSUM, {ONE(F_HOST_UDP_TUNNEL_GSO)}},
    {NET_DRV_DEP_16, F_CTRL_RX, {ONE(F_CTRL_VQ)}},
    {NET_DRV_DEP_17, F_CTRL_VLAN, {ONE(F_CTRL_VQ)}},
    {NET_DRV_DEP_18, F_GUEST_ANNOUNCE, {ONE(F_CTRL_VQ)}},
    {NET_DRV_DEP_19, F_MQ, {ONE(F_CTRL_VQ)}},
    {NET_DRV_DEP_20, F_CTRL_MAC_ADDR, {ONE(F_CTRL_VQ)}},
    {NET_DRV_DEP_21, F_NOTF_COAL, {ONE(F_CTRL_VQ)}},
    {NET_DRV_DEP_22, F_RSC_EXT, {ANY(F_HOST_TSO4, F_HOST_TSO6)}},
    {NET_DRV_DEP_23, F_RSS, {ONE(F_CTRL_VQ)}},
    {NET_DRV_DEP_24, F_VQ_NOTF_COAL, {ONE(F_CTRL_VQ)}},
    {NET_DRV_DEP_25, F_HASH_TUNNEL, {ONE(F_CTRL_VQ), ANY(F_RSS, F_HASH_REPORT)}},
    {NET_DRV_CFG_14, F_HASH_REPORT, {ONE(F_CTRL_VQ)}},
    {NET_DRV_CFG_15, F_CTRL_RX_EXTRA, {ONE(F_CTRL_VQ)}},
};

/* Bits whose offer a driver is asked to take. */
static const struct {
    enum strict_clause clause;
    enum strict_feature bit;
} wanted[] = {
    {CORE_DRV_RFB_01, F_VERSION_1},
    {CORE_DRV_RFB_03, F_ACCESS_PLATFORM},
    {CORE_DRV_RFB_07, F_ORDER_PLATFORM},
    {NET_DRV_TX_44, F_GUEST_HDRLEN},
    {NET_DRV_CFG_02, F_MAC},
    {NET_DRV_CFG_07, F_MTU},
};

/* Bits 24 to 41 are the transport's and the rings', the rest the device type's (2.2). */
#define RING_BITS     (ANY(F_INDIRECT_DESC, F_EVENT_IDX) | 0x3ffull << 32 | 1ull << 43)
#define NET_LOW_BITS  0x00ffffffull
#define UNASSIGNED    (1ull << 4 | 0xfull << 24 | 3ull << 30 | 3ull << 44 | 1ull << 58)
#define NOT_FOR_A_NET (1ull << 4)

static void check_dependencies(struct strict_net *net)
{
    for (unsigned i = 0; i < sizeof(dependencies) / sizeof(dependencies[0]); i++) {
        const struct dependency *d = &dependencies[i];
        bool ok = true;
        for (unsigned k = 0; k < 4 && d->needs[k] != 0; k++) {
            ok &= (net->accepted & d->needs[k]) != 0;
        }
        ok |= !strict_has(net->accepted, d->bit);
        STRICT_CHECK(net->report, d->clause, ok, "bit %d of %#llx without what it needs", d->bit,
                     (unsigned long long)net->accepted);
        STRICT_CHECK(net->report, CORE_DRV_FEAT_02, ok, "bit %d of %#llx", d->bit,
                     (unsigned long long)net->accepted);
        /* Offered without its parents, the child must not be echoed: the driver must look. */
        bool closed = true;
        for (unsigned k = 0; k < 4 && d->needs[k] != 0; k++) {
            closed &= (net->offered & d->needs[k]) != 0;
        }
        if (strict_has(net->offered, d->bit) && !closed) {
            STRICT_CHECK(net->report, CORE_DRV_FEAT_03, !strict_has(net->accepted, d->bit),
                         "bit %d was offered without what it needs, and taken", d->bit);
        }
    }
}

void strict_net_check_features(struct strict_net *net)
{
    struct strict_report *r = net->report;
    const uint64_t accepted = net->accepted;
    const unsigned long long shown = accepted;
    STRICT_CHECK(r, CORE_DRV_FEAT_01, (accepted & ~net->offered) == 0, "accepted %#llx of %#llx",
                 shown, (unsigned long long)net->offered);
    STRICT_CHECK(r, CORE_DRV_FEAT_04, (accepted & UNASSIGNED) == 0, "accepted %#llx", shown);
    STRICT_CHECK(r, CORE_DRV_FEAT_05, (accepted & (3ull << 44)) == 0, "accepted %#llx", shown);
    STRICT_CHECK(r, CORE_DRV_FEAT_06, !strict_has(accepted, F_SR_IOV), "accepted %#llx", shown);
    STRICT_CHECK(r, CORE_DRV_FEAT_07, (accepted & NOT_FOR_A_NET) == 0, "accepted %#llx", shown);
    STRICT_CHECK(r, CORE_DRV_RFB_10, !strict_has(accepted, F_SR_IOV),
                 "accepted %#llx, the function has no SR-IOV capability", shown);
    STRICT_CHECK(r, CORE_DRV_SUSP_02,
                 !strict_has(accepted, F_SUSPEND) || strict_has(net->offered, F_SUSPEND),
                 "accepted %#llx", shown);
    STRICT_CHECK(r, LEG_DRV_NET_10,
                 (accepted & (1ull << F_GSO | 1ull << F_ADMIN_VQ | 1ull << F_RSC_42)) == 0,
                 "accepted %#llx", shown);
    for (unsigned i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        STRICT_CHECK(r, wanted[i].clause,
                     !strict_has(net->offered, wanted[i].bit) ||
                         strict_has(accepted, wanted[i].bit),
                     "bit %d was offered and not taken", wanted[i].bit);
    }
    check_dependencies(net);
}

/* Commands of the control queue and the feature that each needs (5.1.6.5). */
static const struct {
    uint8_t class;
    uint8_t command;
    bool whole_class;
    enum strict_feature bit;
    enum strict_clause clause;
} commands[] = {
    {0, 0, false, F_CTRL_RX, NET_DRV_RXF_01},       {0, 1, false, F_CTRL_RX, NET_DRV_RXF_02},
    {0, 2, false, F_CTRL_RX_EXTRA, NET_DRV_RXF_03}, {0, 3, false, F_CTRL_RX_EXTRA, NET_DRV_RXF_04},
    {0, 4, false, F_CTRL_RX_EXTRA, NET_DRV_RXF_05}, {0, 5, false, F_CTRL_RX_EXTRA, NET_DRV_RXF_06},
    {1, 0, true, F_CTRL_RX, NET_DRV_MAC_01},        {4, 1, false, F_RSS, NET_DRV_RSS_01},
    {6, 0, false, F_NOTF_COAL, NET_DRV_COAL_02},    {6, 1, false, F_NOTF_COAL, NET_DRV_COAL_02},
    {6, 2, false, F_VQ_NOTF_COAL, NET_DRV_COAL_03}, {6, 3, false, F_VQ_NOTF_COAL, NET_DRV_COAL_03},
    {7, 0, true, F_HASH_TUNNEL, NET_DRV_IHH_01},
};

#define CLASS_RSS_CONTEXT 9u

void strict_net_check_command(struct strict_net *net, uint8_t class, uint8_t command)
{
    for (unsigned i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (commands[i].class == class &&
            (commands[i].whole_class || commands[i].command == command)) {
            STRICT_CHECK(net->report, commands[i].clause,
                         strict_has(net->accepted, F_CTRL_VQ) &&
                             strict_has(net->accepted, commands[i].bit),
                         "class %u command %u without bit %d", class, command, commands[i].bit);
        }
    }
    /* Bit 64, RSS_CONTEXT, lies beyond the words that this device offers. */
    STRICT_CHECK(net->report, NET_DRV_RCX_01, class != CLASS_RSS_CONTEXT, "class %u command %u",
                 class, command);
}
