/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Life of the strict device: defaults, reset, kicks, interrupts, what must not have happened.
 */
#include "tests/device/strict_device.h"

#include <stdlib.h>
#include <string.h>

#define S_DRIVER_OK   4u
#define S_FEATURES_OK 8u
#define NO_VECTOR     0xffffu
#define ISR_QUEUE     1u
/* Without a used buffer for so long, a driver may kick unasked. */
#define SILENCE_NS 50000000u

void strict_options_default(struct strict_options *opt)
{
    *opt = (struct strict_options){
        .offered = strict_bit(F_VERSION_1) | strict_bit(F_INDIRECT_DESC) | strict_bit(F_EVENT_IDX) |
                   strict_bit(F_CSUM) | strict_bit(F_GUEST_CSUM) | strict_bit(F_HOST_TSO4) |
                   strict_bit(F_GUEST_TSO4) | strict_bit(F_MRG_RXBUF) | strict_bit(F_MAC) |
                   strict_bit(F_STATUS) | strict_bit(F_MTU),
        .queue_max_descs = {256, 256, 256},
        .vectors = 3,
        .notify_multiplier = 4,
        .notify_off = {0, 1, 2},
        .config_bytes = 12,
        .mac = {0x52, 0x54, 0x00, 0x12, 0x34, 0x56},
        .mtu_bytes = 1500,
        .link_up = true,
        .pci_device_id = 0x1041,
        .revision = 1,
        .max_chain_descs = 20,
        .seed = 1,
    };
}

uint64_t strict_random(struct strict_device *dev)
{
    /* xorshift64*: repeatable, and each seed its own run. */
    uint64_t x = dev->random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    dev->random = x;
    return x * 0x2545f4914f6cdd1dull;
}

bool strict_once_in(struct strict_device *dev, uint32_t so_many, uint32_t count)
{
    if (so_many == 0 || count % so_many != so_many - 1) {
        return false;
    }
    dev->faults_done++;
    return true;
}

static void drop_frames(struct strict_device *dev)
{
    while (dev->to_driver != NULL) {
        struct strict_frame *frame = dev->to_driver;
        dev->to_driver = frame->next;
        free(frame);
    }
    dev->to_driver_tail = &dev->to_driver;
    dev->n_to_driver = 0;
}

void strict_device_reset(struct strict_device *dev)
{
    for (unsigned i = 0; i < STRICT_QUEUES; i++) {
        strict_queue_disable(&dev->queue[i]);
        dev->regs[i] = (struct strict_queue_regs){
            .size_descs =
                i < 2 || strict_has(dev->opt.offered, F_CTRL_VQ) ? dev->opt.queue_max_descs[i] : 0,
            .vector = NO_VECTOR,
        };
        dev->kicked[i] = dev->unfinished[i] = false;
        dev->kicks_missing[i] = 0;
        dev->interrupt_sent[i] = false;
        dev->driver_saw_used[i] = dev->driver_next_used[i] = 0;
    }
    dev->status = 0;
    dev->isr = 0;
    dev->driver_features = 0;
    dev->driver_features_high = 0;
    dev->feature_select = dev->driver_feature_select = 0;
    dev->queue_select = 0;
    dev->config_vector = NO_VECTOR;
    dev->config_vector_unread = false;
    dev->features_read = dev->features_written = dev->features_ok_read = false;
    dev->select_written = false;
    dev->bring_up_failed = false;
    dev->reset_confirmed = false;
    dev->rx_stock_bytes = 0;
    dev->rx_stock_checked = false;
    dev->rx_dry = false;
    dev->config_reads_open = 0;
    dev->n_late = 0;
    strict_config_fill(dev);
}

void strict_device_init(struct strict_device *dev, const struct strict_options *opt)
{
    memset(dev, 0, sizeof(*dev));
    dev->opt = *opt;
    dev->random = opt->seed * 0x9e3779b97f4a7c15ull + 1;
    dev->net.report = &dev->report;
    dev->net.check_source_mac = true;
    dev->to_driver_tail = &dev->to_driver;
    dev->scratch = malloc(STRICT_NET_HDR_BYTES + STRICT_NET_FRAME_BYTES);
    if (dev->scratch == NULL) {
        abort();
    }
    for (unsigned i = 0; i < STRICT_VECTORS_MAX; i++) {
        dev->msix_table[4 * i + 3] = 1; /* masked, as after a power on */
    }
    strict_pci_build(dev);
    strict_device_reset(dev);
    /* Somebody used the device before: the driver must not trust its state. */
    dev->status = 1 | 2 | S_FEATURES_OK;
}

void strict_device_fini(struct strict_device *dev)
{
    for (unsigned i = 0; i < STRICT_QUEUES; i++) {
        strict_queue_disable(&dev->queue[i]);
    }
    drop_frames(dev);
    free(dev->scratch);
    dev->scratch = NULL;
}

static void check_kick(struct strict_device *dev, uint32_t offset, unsigned bytes, uint32_t value)
{
    struct strict_report *r = &dev->report;
    STRICT_CHECK(r, CORE_DRV_INIT_14, (dev->status & S_DRIVER_OK) != 0, "kick at status %#x",
                 dev->status);
    STRICT_CHECK(r, CORE_DRV_INIT_13, !dev->bring_up_failed, "kick after a fault in start-up");
    STRICT_CHECK(r, PCI_DRV_NTY_01, bytes == 2, "kick of %u bytes", bytes);
    STRICT_CHECK(r, CORE_DRV_NTF_01, bytes == 2 || value >> 16 == 0, "kick with value %#x", value);
    const bool known = value < STRICT_QUEUES && dev->regs[value].enabled;
    STRICT_CHECK(r, PCI_DRV_NTY_03, known, "kick with value %#x", value);
    if (known) {
        STRICT_CHECK(r, PCI_DRV_GEN_01,
                     offset == dev->opt.notify_off[value] * dev->opt.notify_multiplier,
                     "queue %u kicked at offset %#x", value, offset);
    }
}

void strict_device_kick(struct strict_device *dev, uint32_t offset, unsigned bytes, uint32_t value)
{
    check_kick(dev, offset, bytes, value);
    strict_note_access(dev, false);
    if (value >= STRICT_QUEUES || !dev->queue[value].enabled || (dev->status & S_DRIVER_OK) == 0) {
        return;
    }
    struct strict_queue *q = &dev->queue[value];
    strict_queue_look(q, dev->now_ns);
    /* 2.7.10.1 says "should not": a driver's safety timer has a reason after such a silence. */
    if (!q->kick_justified && dev->now_ns - q->moved_ns >= SILENCE_NS) {
        q->kick_justified = true;
        q->kicks_after_silence++;
    }
    strict_queue_kicked(q);
    if (strict_once_in(dev, dev->fault.lose_kicks, dev->n_kicks++)) {
        dev->kicks_lost++;
        dev->kicks_missing[value] += !dev->kicked[value] && !dev->unfinished[value];
        return;
    }
    dev->kicked[value] = true;
    dev->kicks_missing[value] = 0;
    if (dev->opt.pace == STRICT_IMMEDIATE) {
        strict_device_serve(dev, value);
    }
}

static void raise_now(struct strict_device *dev, unsigned queue)
{
    if (dev->queue_interrupt != NULL) {
        dev->interrupts++;
        dev->queue_interrupt(dev->ctx, queue);
    } else {
        strict_msix_raise(dev, dev->regs[queue].vector);
    }
}

void strict_device_raise(struct strict_device *dev, unsigned queue)
{
    dev->isr |= ISR_QUEUE;
    dev->interrupt_sent[queue] = true;
    if (strict_once_in(dev, dev->fault.lose_interrupts, dev->n_interrupts++)) {
        dev->interrupts_lost++;
        return;
    }
    if (dev->fault.late_steps != 0 && dev->n_late < sizeof(dev->late) / sizeof(dev->late[0])) {
        dev->faults_done++;
        dev->late[dev->n_late].due_step = dev->steps + dev->fault.late_steps;
        dev->late[dev->n_late++].queue = queue;
        return;
    }
    raise_now(dev, queue);
    if (strict_once_in(dev, dev->fault.double_interrupts, dev->n_interrupts)) {
        raise_now(dev, queue);
    }
}

void strict_device_raise_spurious(struct strict_device *dev, unsigned queue)
{
    raise_now(dev, queue);
}

static void raise_late(struct strict_device *dev)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < dev->n_late; i++) {
        if (dev->late[i].due_step <= dev->steps) {
            raise_now(dev, dev->late[i].queue);
        } else {
            dev->late[kept++] = dev->late[i];
        }
    }
    dev->n_late = kept;
}

/* A queue that nobody kicked is left alone, unless its last round was cut short, or frames wait for
 * buffers that the device has already seen. */
static bool has_work(const struct strict_device *dev, unsigned i)
{
    return dev->opt.pace == STRICT_LAZY || dev->opt.polls || dev->kicked[i] || dev->unfinished[i] ||
           (i == 0 && dev->n_to_driver > 0 && dev->queue[0].n_pending > 0 && !dev->rx_dry);
}

void strict_device_step(struct strict_device *dev, uint64_t now_ns)
{
    dev->steps++;
    dev->now_ns = now_ns;
    raise_late(dev);
    if (dev->fault.needs_reset) {
        dev->fault.needs_reset = false;
        dev->faults_done++;
        dev->status |= 64;
        strict_config_interrupt(dev);
    }
    if ((dev->status & S_DRIVER_OK) == 0 || (dev->status & 64) != 0) {
        return;
    }
    if (strict_once_in(dev, dev->fault.spurious_interrupts, (uint32_t)dev->steps)) {
        strict_device_raise_spurious(dev, dev->steps / 7 % 2);
    }
    if (dev->opt.slow != 0 && dev->steps % dev->opt.slow != 0) {
        return;
    }
    for (unsigned i = 0; i < STRICT_QUEUES; i++) {
        if (dev->queue[i].enabled && has_work(dev, i)) {
            dev->kicked[i] = false;
            strict_device_serve(dev, i);
        }
    }
}

/* The driver's stores are watched, so what it exposed before it slept is known already. */
static bool queue_quiet(const struct strict_device *dev, unsigned i)
{
    const struct strict_queue *q = &dev->queue[i];
    const bool waits = i != 0 ? q->n_pending > 0 : dev->n_to_driver > 0 && q->n_pending > 0;
    return !dev->kicked[i] && !waits;
}

bool strict_device_quiet(const struct strict_device *dev)
{
    if (dev->n_late > 0 || dev->fault.needs_reset || dev->fault.spurious_interrupts != 0 ||
        dev->fault.scribble_unused_event) {
        return false;
    }
    for (unsigned i = 0; i < STRICT_QUEUES; i++) {
        if (dev->queue[i].enabled && has_work(dev, i) && !queue_quiet(dev, i)) {
            return false;
        }
    }
    return true;
}

void strict_device_send(struct strict_device *dev, const struct strict_net_hdr *hdr,
                        const uint8_t *frame, uint32_t len_bytes)
{
    struct strict_frame *copy = malloc(sizeof(*copy) + len_bytes);
    if (copy == NULL) {
        abort();
    }
    copy->next = NULL;
    copy->len_bytes = len_bytes;
    copy->hdr = *hdr;
    memcpy(copy->bytes, frame, len_bytes);
    *dev->to_driver_tail = copy;
    dev->to_driver_tail = &copy->next;
    dev->n_to_driver++;
}

/* Sleeping is right only when what the driver waits for will be announced (2.7.7, 2.7.14). */
static void check_sleep(struct strict_device *dev, unsigned index)
{
    struct strict_queue *q = &dev->queue[index];
    const uint16_t saw = dev->driver_saw_used[index];
    const uint16_t outstanding = (uint16_t)(q->seen_idx - q->used_idx);
    if (q->event_idx) {
        const uint16_t event = *strict_used_event(q);
        STRICT_CHECK(&dev->report, SPL_DRV_GEN_04,
                     dev->interrupt_sent[index] || q->used_idx == saw ||
                         !strict_event_covered(event, saw, q->used_idx),
                     "queue %u: asleep, used index %u seen to %u, event %u passed", index,
                     q->used_idx, saw, event);
        STRICT_CHECK(&dev->report, SPL_DRV_GEN_04,
                     dev->interrupt_sent[index] || outstanding == 0 ||
                         (uint16_t)(event - q->used_idx) < outstanding,
                     "queue %u: asleep, event %u outside the %u buffers from %u", index, event,
                     outstanding, q->used_idx);
    } else {
        const bool suppressed = (*strict_avail_flags(q) & 1) != 0;
        STRICT_CHECK(&dev->report, SPL_DRV_GEN_04,
                     dev->interrupt_sent[index] ||
                         (suppressed ? outstanding == 0 : q->used_idx == saw),
                     "queue %u: asleep, used index %u seen to %u, interrupts %s", index,
                     q->used_idx, saw, suppressed ? "off" : "on");
    }
}

void strict_device_driver_idles(struct strict_device *dev)
{
    if ((dev->status & S_DRIVER_OK) == 0) {
        return;
    }
    for (unsigned i = 0; i < 2; i++) {
        if (dev->queue[i].enabled) {
            strict_queue_kick_overdue(&dev->queue[i], "before idling");
            /* Without a vector there is nothing to be woken by: the driver looks by the clock. */
            if (strict_msix_enabled(dev) && dev->regs[i].vector != NO_VECTOR) {
                check_sleep(dev, i);
            }
        }
    }
}

void strict_device_buffer_withdrawn(struct strict_device *dev)
{
    STRICT_CHECK(&dev->report, CORE_DRV_CLN_02, dev->status == 0 && !dev->reset_pending,
                 "a buffer is withdrawn at status %#x, reset %s", dev->status,
                 dev->reset_pending ? "not confirmed" : "not asked for");
}

void strict_device_expect_failed(struct strict_device *dev)
{
    STRICT_CHECK(&dev->report, CORE_DRV_INIT_12, dev->failed_seen, "FAILED was not raised");
    STRICT_CHECK(&dev->report, CORE_DRV_FEAT_09, dev->failed_seen, "FAILED was not raised");
    STRICT_CHECK(&dev->report, CORE_DRV_INIT_13, !dev->was_live, "the device was made live");
    STRICT_CHECK(&dev->report, CORE_DRV_INIT_09, !dev->was_live, "the device was made live");
}
