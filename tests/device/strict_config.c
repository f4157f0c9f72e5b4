/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The device's own configuration space (2.5, 5.1.4).
 */
#include <string.h>

#include "tests/device/strict_device.h"

#define CFG_STATUS_AT 6u
#define CFG_PAIRS_AT  8u
#define CFG_MTU_AT    10u
#define CFG_SPEED_AT  12u
#define CFG_DUPLEX_AT 16u
#define CFG_RSS_AT    17u
#define CFG_END       28u
#define S_FEATURES_OK 8u
#define ISR_CONFIG    2u

/* The fields, the feature that must have been offered for each to be there. */
static const struct {
    uint32_t at, bytes, width;
    uint64_t gate;
} fields[] = {
    {0, 6, 1, 1ull << F_MAC},
    {CFG_STATUS_AT, 2, 2, 1ull << F_STATUS},
    {CFG_PAIRS_AT, 2, 2, 1ull << F_MQ | 1ull << F_RSS},
    {CFG_MTU_AT, 2, 2, 1ull << F_MTU},
    {CFG_SPEED_AT, 4, 4, 1ull << F_SPEED_DUPLEX},
    {CFG_DUPLEX_AT, 1, 1, 1ull << F_SPEED_DUPLEX},
    {CFG_RSS_AT, 11, 1, 1ull << F_RSS | 1ull << F_HASH_REPORT},
};

static void fill(struct strict_device *dev)
{
    memcpy(dev->config, dev->opt.mac, 6);
    dev->config[CFG_STATUS_AT] = dev->opt.link_up ? 1 : 0;
    dev->config[CFG_MTU_AT] = (uint8_t)dev->opt.mtu_bytes;
    dev->config[CFG_MTU_AT + 1] = (uint8_t)(dev->opt.mtu_bytes >> 8);
    dev->config[CFG_PAIRS_AT] = 8;
    memcpy(dev->net.mac, dev->opt.mac, 6);
    dev->net.mtu_bytes = dev->opt.mtu_bytes;
}

static void check_field(struct strict_device *dev, uint32_t offset, unsigned bytes)
{
    struct strict_report *r = &dev->report;
    const unsigned n = sizeof(fields) / sizeof(fields[0]);
    unsigned i = 0;
    while (i < n && offset >= fields[i].at + fields[i].bytes) {
        i++;
    }
    if (i == n || offset + bytes > dev->opt.config_bytes) {
        STRICT_CHECK(r, CORE_DRV_CFG_06, false, "config read of %u bytes at %u, there are %u",
                     bytes, offset, dev->opt.config_bytes);
        return;
    }
    STRICT_CHECK(r, CORE_DRV_CFG_06, true, "%u", offset);
    STRICT_CHECK(r, CORE_DRV_CFG_04, (dev->opt.offered & fields[i].gate) != 0,
                 "config field at %u is read, its feature was not offered", fields[i].at);
    const enum strict_clause clause = fields[i].width == 1   ? PCI_DRV_LAY_01
                                      : fields[i].width == 2 ? PCI_DRV_LAY_02
                                                             : PCI_DRV_LAY_03;
    STRICT_CHECK(r, clause, bytes == fields[i].width && offset % bytes == 0,
                 "config read of %u bytes at %u", bytes, offset);
    STRICT_CHECK(r, CORE_DRV_CFG_03, dev->generation_fresh || dev->config_reads_open > 0,
                 "config read at %u with no look at the generation before it", offset);
}

/* Another address, whole, under a new generation: whoever mixes the two has neither. */
static void change_under_reader(struct strict_device *dev)
{
    for (unsigned i = 1; i < 6; i++) {
        dev->opt.mac[i] = (uint8_t)(dev->opt.mac[i] ^ 0xff);
    }
    fill(dev);
    dev->generation++;
    dev->faults_done++;
}

uint32_t strict_config_read(struct strict_device *dev, uint32_t offset, unsigned bytes)
{
    uint32_t value = 0;
    const bool fresh = dev->generation_fresh;
    const uint32_t open = dev->config_reads_open;
    dev->config_reads_open = 0;
    strict_note_access(dev, false);
    dev->generation_fresh = fresh;
    dev->config_reads_open = open;
    check_field(dev, offset, bytes);
    dev->config_reads_open++;
    if (offset + bytes <= sizeof(dev->config)) {
        memcpy(&value, dev->config + offset, bytes);
    }
    if (dev->fault.config_never_stable) {
        change_under_reader(dev);
    } else if (dev->fault.config_unstable > 0) {
        dev->fault.config_unstable--;
        change_under_reader(dev);
    }
    return value;
}

void strict_config_write(struct strict_device *dev, uint32_t offset, unsigned bytes)
{
    strict_note_access(dev, false);
    STRICT_CHECK(&dev->report, NET_DRV_CFG_01, false, "config write of %u bytes at %u", bytes,
                 offset);
    STRICT_CHECK(&dev->report, CORE_DRV_INIT_06, (dev->status & S_FEATURES_OK) != 0,
                 "config write of %u bytes at %u during negotiation", bytes, offset);
}

void strict_config_interrupt(struct strict_device *dev)
{
    dev->isr |= ISR_CONFIG;
    strict_msix_raise(dev, dev->config_vector);
}

void strict_device_set_link(struct strict_device *dev, bool up)
{
    dev->opt.link_up = up;
    dev->generation++;
    fill(dev);
    strict_config_interrupt(dev);
}

void strict_config_fill(struct strict_device *dev)
{
    fill(dev);
}
