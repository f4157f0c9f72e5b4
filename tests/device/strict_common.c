/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The common configuration structure (4.1.4.3), the start-up that is driven through it (3.1.1), and
 * the device's own configuration space (2.5, 5.1.4).
 */
#include <string.h>

#include "tests/device/strict_device.h"

#define S_ACKNOWLEDGE 1u
#define S_DRIVER      2u
#define S_DRIVER_OK   4u
#define S_FEATURES_OK 8u
#define S_NEEDS_RESET 64u
#define S_FAILED      128u
#define NO_VECTOR     0xffffu

enum register_offset {
    R_DEVICE_FEATURE_SELECT = 0x00,
    R_DEVICE_FEATURE = 0x04,
    R_DRIVER_FEATURE_SELECT = 0x08,
    R_DRIVER_FEATURE = 0x0c,
    R_CONFIG_VECTOR = 0x10,
    R_NUM_QUEUES = 0x12,
    R_STATUS = 0x14,
    R_GENERATION = 0x15,
    R_QUEUE_SELECT = 0x16,
    R_QUEUE_SIZE = 0x18,
    R_QUEUE_VECTOR = 0x1a,
    R_QUEUE_ENABLE = 0x1c,
    R_QUEUE_NOTIFY_OFF = 0x1e,
    R_QUEUE_DESC = 0x20,
    R_QUEUE_DRIVER = 0x28,
    R_QUEUE_DEVICE = 0x30,
    R_END = 0x38,
};

/* Width in bytes of the field that an offset lies in, and where that field begins; 64-bit fields
 * are two of 32 (4.1.3.1). */
static unsigned field_bytes(uint32_t offset)
{
    if (offset == R_STATUS || offset == R_GENERATION) {
        return 1;
    }
    return offset < R_CONFIG_VECTOR || (offset >= R_QUEUE_DESC && offset < R_END) ? 4 : 2;
}

static bool check_width(struct strict_device *dev, uint32_t offset, unsigned bytes, unsigned want)
{
    const enum strict_clause clause = want == 1   ? PCI_DRV_LAY_01
                                      : want == 2 ? PCI_DRV_LAY_02
                                                  : PCI_DRV_LAY_03;
    return STRICT_CHECK(&dev->report, clause, bytes == want && offset % want == 0,
                        "access of %u bytes at %#x", bytes, offset);
}

static struct strict_queue_regs *selected(struct strict_device *dev)
{
    return dev->queue_select < STRICT_QUEUES ? &dev->regs[dev->queue_select] : NULL;
}

/* Each access: a reset that was asked for must be over before anything but the status is touched,
 * and a run of config reads ends with a look at the generation. */
void strict_note_access(struct strict_device *dev, bool is_status)
{
    if (!is_status && dev->status_written) {
        STRICT_CHECK(&dev->report, CORE_DRV_RST_01, !dev->reset_pending,
                     "register access before the reset was seen to be over");
        STRICT_CHECK(&dev->report, PCI_DRV_COM_09, !dev->reset_pending,
                     "register access before the reset was seen to be over");
    }
    STRICT_CHECK(&dev->report, CORE_DRV_CFG_03, dev->config_reads_open == 0,
                 "%u config reads that no look at the generation follows", dev->config_reads_open);
    dev->config_reads_open = 0;
    dev->generation_fresh = false;
}

static uint8_t read_status(struct strict_device *dev)
{
    if (dev->reset_pending) {
        if (dev->fault.reset_never) {
            return S_ACKNOWLEDGE;
        }
        if (dev->reset_reads_left > 0) {
            dev->reset_reads_left--;
            return S_ACKNOWLEDGE;
        }
        dev->reset_pending = false;
        dev->reset_confirmed = true;
    }
    dev->features_ok_read |= (dev->status & S_FEATURES_OK) != 0 || dev->bring_up_failed;
    return dev->status;
}

static void start_reset(struct strict_device *dev)
{
    dev->status_written = true;
    dev->reset_pending = true;
    dev->reset_reads_left = dev->fault.reset_reads;
    dev->resets++;
    strict_device_reset(dev);
}

static void check_status_order(struct strict_device *dev, uint8_t value)
{
    struct strict_report *r = &dev->report;
    const uint8_t old = dev->status & (uint8_t)~S_NEEDS_RESET;
    const uint8_t added = (uint8_t)(value & ~old & ~S_NEEDS_RESET);
    STRICT_CHECK(r, CORE_DRV_INIT_01, dev->status_written,
                 "the first write of the status is %#x, not a reset", value);
    STRICT_CHECK(r, CORE_DRV_STAT_02, (value & dev->status) == dev->status,
                 "status from %#x to %#x", dev->status, value);
    STRICT_CHECK(r, CORE_DRV_STAT_03, (old & S_FAILED) == 0 || (added == 0),
                 "status %#x after FAILED, without a reset", value);
    if ((added & S_FAILED) != 0 || added == 0) {
        return;
    }
    const uint8_t next = old == 0                            ? S_ACKNOWLEDGE
                         : old == S_ACKNOWLEDGE              ? S_DRIVER
                         : old == (S_ACKNOWLEDGE | S_DRIVER) ? S_FEATURES_OK
                         : (old & S_FEATURES_OK) != 0        ? S_DRIVER_OK
                                                             : 0;
    const enum strict_clause clause = next == S_ACKNOWLEDGE   ? CORE_DRV_INIT_02
                                      : next == S_DRIVER      ? CORE_DRV_INIT_03
                                      : next == S_FEATURES_OK ? CORE_DRV_INIT_07
                                                              : CORE_DRV_STAT_01;
    STRICT_CHECK(r, clause, added == next, "status from %#x to %#x", old, value);
    STRICT_CHECK(r, CORE_DRV_STAT_01, added == next, "status from %#x to %#x", old, value);
}

static void on_features_ok(struct strict_device *dev)
{
    struct strict_report *r = &dev->report;
    STRICT_CHECK(r, CORE_DRV_INIT_04, dev->features_read && dev->features_written,
                 "FEATURES_OK: offer read: %d, subset written: %d", dev->features_read,
                 dev->features_written);
    dev->net.offered = dev->opt.offered;
    dev->net.accepted = dev->driver_features;
    strict_net_check_features(&dev->net);
    STRICT_CHECK(r, NET_DRV_DEP_26, dev->driver_features_high == 0, "words beyond the second: %#x",
                 dev->driver_features_high);
    STRICT_CHECK(r, CORE_DRV_FEAT_05, dev->driver_features_high == 0,
                 "words beyond the second: %#x", dev->driver_features_high);
    STRICT_CHECK(r, LEG_DRV_FEAT_01, strict_has(dev->opt.offered, F_VERSION_1),
                 "FEATURES_OK on a device without VERSION_1");
    dev->features_ok_read = false;
    if (dev->fault.refuse_features || (dev->driver_features & ~dev->opt.offered) != 0 ||
        !strict_has(dev->driver_features, F_VERSION_1)) {
        dev->faults_done++;
        dev->bring_up_failed = true;
        return;
    }
    dev->status |= S_FEATURES_OK;
}

/* Acts that no driver may do are counted as checked where all start-up lies behind it. */
static const enum strict_clause never_done[] = {
    CORE_DRV_INIT_06, CORE_DRV_CFG_06, NET_DRV_CFG_01, PCI_DRV_CAP_08,
    PCI_DRV_PCFG_01,  PCI_DRV_PCFG_02, PCI_DRV_VND_02,
};

static void on_driver_ok(struct strict_device *dev)
{
    struct strict_report *r = &dev->report;
    for (unsigned i = 0; i < sizeof(never_done) / sizeof(never_done[0]); i++) {
        r->checked[never_done[i]]++;
    }
    const bool refused = dev->regs[0].refused || dev->regs[1].refused;
    STRICT_CHECK(r, CORE_DRV_INIT_11, refused || (dev->regs[0].enabled && dev->regs[1].enabled),
                 "DRIVER_OK with queue 0 %s, queue 1 %s", dev->regs[0].enabled ? "on" : "off",
                 dev->regs[1].enabled ? "on" : "off");
    STRICT_CHECK(r, CORE_DRV_INIT_09, (dev->status & S_FEATURES_OK) != 0 && dev->features_ok_read,
                 "DRIVER_OK without FEATURES_OK having been read back");
    STRICT_CHECK(r, CORE_DRV_INIT_13, !dev->bring_up_failed, "DRIVER_OK after a fault");
    if (strict_msix_enabled(dev)) {
        bool unread = dev->config_vector_unread;
        for (unsigned i = 0; i < STRICT_QUEUES; i++) {
            unread |= dev->regs[i].vector_unread;
        }
        STRICT_CHECK(r, PCI_DRV_MSX_05, !unread, "a vector was not read back before DRIVER_OK");
    }
    dev->status |= S_DRIVER_OK;
    if (refused) {
        /* Nothing before has told the driver: no clause has him read queue_enable back. */
        dev->status |= S_NEEDS_RESET;
        dev->bring_up_failed = true;
        return;
    }
    dev->was_live = true;
    for (unsigned i = 0; i < STRICT_QUEUES; i++) {
        if (dev->regs[i].enabled) {
            strict_queue_look(&dev->queue[i], dev->now_ns);
        }
    }
}

static void write_status(struct strict_device *dev, uint8_t value)
{
    if (value == 0) {
        start_reset(dev);
        return;
    }
    strict_note_access(dev, dev->reset_pending ? false : true);
    check_status_order(dev, value);
    const uint8_t added = (uint8_t)(value & ~dev->status);
    dev->status |= added & (S_ACKNOWLEDGE | S_DRIVER | S_FAILED);
    dev->failed_seen |= (added & S_FAILED) != 0;
    if ((added & S_FEATURES_OK) != 0) {
        on_features_ok(dev);
    }
    if ((added & S_DRIVER_OK) != 0) {
        on_driver_ok(dev);
    }
}

static void note_feature_access(struct strict_device *dev)
{
    /* 3.1.1 step 4 lies between DRIVER and FEATURES_OK; before that reset state may be looked at.
     */
    STRICT_CHECK(&dev->report, CORE_DRV_INIT_04,
                 (dev->status & S_DRIVER) != 0 && (dev->status & S_DRIVER_OK) == 0,
                 "feature access at status %#x", dev->status);
    STRICT_CHECK(&dev->report, CORE_DRV_STAT_01, (dev->status & S_DRIVER) != 0,
                 "feature access at status %#x", dev->status);
}

static uint32_t word_of(uint64_t features, uint32_t select)
{
    return select < 2 ? (uint32_t)(features >> (32 * select)) : 0;
}

static uint32_t read_queue(struct strict_device *dev, uint32_t offset)
{
    struct strict_queue_regs *q = selected(dev);
    STRICT_CHECK(&dev->report, PCI_DRV_GEN_02, dev->select_written,
                 "queue register %#x before any queue was selected", offset);
    if (q == NULL) {
        return 0;
    }
    const uint64_t address = offset < R_QUEUE_DRIVER   ? q->desc
                             : offset < R_QUEUE_DEVICE ? q->avail
                                                       : q->used;
    switch (offset) {
    case R_QUEUE_SIZE:
        q->size_read = true;
        return q->size_descs;
    case R_QUEUE_VECTOR:
        q->vector_unread = false;
        return q->vector;
    case R_QUEUE_ENABLE:
        return q->enabled;
    case R_QUEUE_NOTIFY_OFF:
        return dev->opt.notify_off[dev->queue_select];
    default:
        return (uint32_t)(address >> (8 * (offset & 4)));
    }
}

uint32_t strict_common_read(struct strict_device *dev, uint32_t offset, unsigned bytes)
{
    if (offset >= R_END || !check_width(dev, offset, bytes, field_bytes(offset))) {
        return 0;
    }
    if (offset == R_GENERATION) {
        const uint8_t generation = dev->generation;
        dev->config_reads_open = 0;
        strict_note_access(dev, false);
        dev->generation_reads++;
        dev->generation_fresh = true;
        return generation;
    }
    strict_note_access(dev, offset == R_STATUS);
    switch (offset) {
    case R_DEVICE_FEATURE_SELECT:
        return dev->feature_select;
    case R_DEVICE_FEATURE:
        note_feature_access(dev);
        dev->features_read = true;
        dev->feature_words_read |= 1u << (dev->feature_select < 31 ? dev->feature_select : 31);
        return dev->feature_select < 2 ? word_of(dev->opt.offered, dev->feature_select)
                                       : dev->opt.offered_beyond;
    case R_DRIVER_FEATURE_SELECT:
        return dev->driver_feature_select;
    case R_DRIVER_FEATURE:
        return word_of(dev->driver_features, dev->driver_feature_select);
    case R_CONFIG_VECTOR:
        dev->config_vector_unread = false;
        return dev->config_vector;
    case R_NUM_QUEUES:
        return strict_has(dev->opt.offered, F_CTRL_VQ) ? 3 : 2;
    case R_STATUS:
        return read_status(dev);
    case R_QUEUE_SELECT:
        return dev->queue_select;
    default:
        return read_queue(dev, offset);
    }
}

static uint16_t map_vector(struct strict_device *dev, uint32_t value)
{
    struct strict_report *r = &dev->report;
    STRICT_CHECK(r, PCI_DRV_MSX_04,
                 value == NO_VECTOR || (strict_msix_enabled(dev) && value < dev->opt.vectors),
                 "vector %#x, table of %u, MSI-X %s", value, dev->opt.vectors,
                 strict_msix_enabled(dev) ? "on" : "off");
    if (value == NO_VECTOR || value >= dev->opt.vectors) {
        return NO_VECTOR;
    }
    if (dev->fault.refuse_vector != 0 && ++dev->vector_maps == dev->fault.refuse_vector) {
        dev->faults_done++;
        return NO_VECTOR;
    }
    return (uint16_t)value;
}

static void enable_queue(struct strict_device *dev, struct strict_queue_regs *regs)
{
    struct strict_report *r = &dev->report;
    const uint16_t index = dev->queue_select;
    struct strict_queue *q = &dev->queue[index];
    STRICT_CHECK(r, PCI_DRV_GEN_02, regs->size_descs != 0 && regs->size_read,
                 "queue %u of size %u enabled, size %s", index, regs->size_descs,
                 regs->size_read ? "read" : "never read");
    STRICT_CHECK(r, PCI_DRV_COM_08, regs->desc != 0 && regs->avail != 0 && regs->used != 0,
                 "queue %u enabled with addresses %#llx %#llx %#llx", index,
                 (unsigned long long)regs->desc, (unsigned long long)regs->avail,
                 (unsigned long long)regs->used);
    STRICT_CHECK(r, NET_DRV_GEN_01, index < 2 || strict_has(dev->driver_features, F_CTRL_VQ),
                 "queue %u enabled without a feature that uses it", index);
    if (dev->fault.refuse_queue_enable) {
        dev->faults_done++;
        regs->refused = true;
        return;
    }
    memset(q, 0, sizeof(*q));
    q->report = r;
    q->memory = dev->memory;
    q->index = index;
    q->direction = index == 0   ? STRICT_DEVICE_WRITES
                   : index == 1 ? STRICT_DEVICE_READS
                                : STRICT_DEVICE_BOTH;
    q->size_descs = regs->size_descs;
    q->desc_addr = regs->desc;
    q->avail_addr = regs->avail;
    q->used_addr = regs->used;
    q->event_idx = strict_has(dev->driver_features, F_EVENT_IDX);
    q->indirect = strict_has(dev->driver_features, F_INDIRECT_DESC);
    q->exact = true;
    q->max_chain_descs = dev->opt.max_chain_descs;
    regs->enabled = strict_queue_enable(q, 0);
}

static void set_half(uint64_t *address, uint32_t offset, uint32_t value)
{
    const unsigned shift = 8 * (offset & 4);
    *address = (*address & ~(0xffffffffull << shift)) | (uint64_t)value << shift;
}

static void write_queue(struct strict_device *dev, uint32_t offset, uint32_t value)
{
    struct strict_report *r = &dev->report;
    struct strict_queue_regs *q = selected(dev);
    const bool open = (dev->status & S_FEATURES_OK) != 0 && (dev->status & S_DRIVER_OK) == 0;
    STRICT_CHECK(r, CORE_DRV_INIT_10, open, "queue register %#x at status %#x", offset,
                 dev->status);
    STRICT_CHECK(r, CORE_DRV_INIT_09, dev->features_ok_read,
                 "queue register %#x before FEATURES_OK was read back", offset);
    STRICT_CHECK(r, PCI_DRV_GEN_02, dev->select_written && q != NULL,
                 "queue register %#x of queue %u", offset, dev->queue_select);
    if (q == NULL || !open) {
        return;
    }
    if (offset != R_QUEUE_ENABLE) {
        STRICT_CHECK(r, PCI_DRV_COM_08, !q->enabled, "queue register %#x of an enabled queue",
                     offset);
    }
    if (offset == R_QUEUE_SIZE) {
        STRICT_CHECK(r, PCI_DRV_COM_07, value != 0 && (value & (value - 1)) == 0, "size %u", value);
        STRICT_CHECK(r, PCI_DRV_GEN_02, value <= dev->opt.queue_max_descs[dev->queue_select],
                     "size %u of at most %u", value, dev->opt.queue_max_descs[dev->queue_select]);
        q->size_descs = (uint16_t)value;
    } else if (offset == R_QUEUE_VECTOR) {
        q->vector = map_vector(dev, value);
        q->vector_unread = value != NO_VECTOR;
    } else if (offset == R_QUEUE_ENABLE) {
        if (STRICT_CHECK(r, PCI_DRV_COM_10, value == 1, "queue_enable is written with %u", value)) {
            enable_queue(dev, q);
        }
    } else if (offset >= R_QUEUE_DEVICE) {
        set_half(&q->used, offset, value);
    } else if (offset >= R_QUEUE_DRIVER) {
        set_half(&q->avail, offset, value);
    } else if (offset >= R_QUEUE_DESC) {
        set_half(&q->desc, offset, value);
    }
}

static bool check_writable(struct strict_device *dev, uint32_t offset)
{
    struct strict_report *r = &dev->report;
    STRICT_CHECK(r, PCI_DRV_COM_01, offset != R_DEVICE_FEATURE, "write of device_feature");
    STRICT_CHECK(r, PCI_DRV_COM_02, offset != R_NUM_QUEUES, "write of num_queues");
    STRICT_CHECK(r, PCI_DRV_COM_03, offset != R_GENERATION, "write of config_generation");
    STRICT_CHECK(r, PCI_DRV_COM_04, offset != R_QUEUE_NOTIFY_OFF, "write of queue_notify_off");
    return offset != R_DEVICE_FEATURE && offset != R_NUM_QUEUES && offset != R_GENERATION &&
           offset != R_QUEUE_NOTIFY_OFF;
}

static void write_driver_feature(struct strict_device *dev, uint32_t value)
{
    note_feature_access(dev);
    STRICT_CHECK(&dev->report, CORE_DRV_INIT_08, (dev->status & S_FEATURES_OK) == 0,
                 "features written after FEATURES_OK");
    dev->features_written = true;
    if (dev->driver_feature_select < 2) {
        const unsigned shift = 32 * dev->driver_feature_select;
        dev->driver_features = (dev->driver_features & ~(0xffffffffull << shift)) | (uint64_t)value
                                                                                        << shift;
    } else {
        dev->driver_features_high |= value;
    }
}

void strict_common_write(struct strict_device *dev, uint32_t offset, unsigned bytes, uint32_t value)
{
    if (offset >= R_END || !check_width(dev, offset, bytes, field_bytes(offset)) ||
        !check_writable(dev, offset)) {
        return;
    }
    if (offset == R_STATUS) {
        write_status(dev, (uint8_t)value);
        return;
    }
    strict_note_access(dev, false);
    switch (offset) {
    case R_DEVICE_FEATURE_SELECT:
        dev->feature_select = value;
        break;
    case R_DRIVER_FEATURE_SELECT:
        dev->driver_feature_select = value;
        break;
    case R_DRIVER_FEATURE:
        write_driver_feature(dev, value);
        break;
    case R_CONFIG_VECTOR:
        dev->config_vector = map_vector(dev, value);
        dev->config_vector_unread = value != NO_VECTOR;
        break;
    case R_QUEUE_SELECT:
        dev->queue_select = (uint16_t)value;
        dev->select_written = true;
        break;
    default:
        write_queue(dev, offset, value);
    }
}
