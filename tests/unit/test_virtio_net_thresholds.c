/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The thresholds for every ring size and form: order, bounds, and that a small ring gives up first
 * segmentation, then the large datagram, and never one frame. And on the real queue: stopped means
 * what it says for every size.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/device/rig.h"

static const uint32_t datagrams[] = {16, 1024, 1472, 1473, 9000, 32768, 65507};

static uint32_t frames_of(uint32_t payload, uint16_t mtu)
{
    return payload + 28 <= mtu ? 1 : (payload + 8 + ((mtu - 20u) & ~7u) - 1) / ((mtu - 20u) & ~7u);
}

static void check_form(const struct tx_form *form)
{
    struct tx_thresholds t;

    if (!tx_thresholds(form, &t)) {
        /* Refused only if not even a frame of two pieces and one for control fit. */
        assert_true(form->size_descs < (form->indirect ? 2 : 3));
        return;
    }
    uint32_t frames = frames_of(t.max_datagram_bytes, form->mtu_bytes);
    uint32_t datagram_descs = frames * (form->indirect ? 1 : frames > 1 ? 2 : 1);
    assert_in_range(t.reserve, 1, 16);
    assert_int_equal(t.stop, t.unit + t.reserve);
    assert_in_range(t.stop, 2, form->size_descs);
    assert_in_range(t.wake, t.stop, form->size_descs);
    assert_true(t.unit >= datagram_descs);
    assert_true(t.unit >= (t.tso ? (form->indirect ? 1 : VIRTIO_NET_TX_MAX_PIECES + 1) : 1));
    assert_true(t.max_segs >= 1 && (form->indirect || t.max_segs <= t.unit));
    assert_true(t.max_datagram_bytes <= form->max_datagram_bytes ||
                form->max_datagram_bytes <= form->mtu_bytes - 28u);
    if (form->size_descs >= 256 && form->mtu_bytes >= 1500) {
        assert_true(t.tso == form->tso);
        assert_int_equal(t.max_datagram_bytes, form->max_datagram_bytes);
    }
    /* What was given up was given up for a reason. */
    if (form->tso && !t.tso) {
        assert_true(VIRTIO_NET_TX_MAX_PIECES + 1u + t.reserve > form->size_descs);
    }
    if (t.max_datagram_bytes < form->max_datagram_bytes) {
        uint32_t one_more = (frames + 1) * (form->indirect ? 1 : 2);
        assert_true(2 * one_more + t.reserve > form->size_descs);
        uint32_t whole = frames_of(form->max_datagram_bytes, form->mtu_bytes);
        assert_true(whole * (form->indirect ? 1 : 2) + t.reserve > form->size_descs);
    }
}

static void test_every_size(void **state)
{
    static const uint16_t mtus[] = {68, 576, 1280, 1500, 9000, 65535};

    (void)state;
    for (uint32_t size = 1; size <= 32768; size *= 2) {
        for (unsigned m = 0; m < 6; m++) {
            for (unsigned d = 0; d < 7; d++) {
                for (unsigned bits = 0; bits < 4; bits++) {
                    struct tx_form form = {.size_descs = (uint16_t)size,
                                           .indirect = (bits & 1) != 0,
                                           .tso = (bits & 2) != 0,
                                           .mtu_bytes = mtus[m],
                                           .max_datagram_bytes = datagrams[d]};
                    check_form(&form);
                }
            }
        }
    }
}

/* The numbers of docs/thresholds.md. */
static void test_examples(void **state)
{
    struct tx_thresholds t;
    struct tx_form form = {.size_descs = 256,
                           .indirect = true,
                           .tso = true,
                           .mtu_bytes = 1500,
                           .max_datagram_bytes = 65507};

    (void)state;
    assert_true(tx_thresholds(&form, &t));
    assert_int_equal(t.unit, 45);
    assert_int_equal(t.stop, 61);
    assert_int_equal(t.wake, 158);
    form.indirect = false;
    assert_true(tx_thresholds(&form, &t));
    assert_int_equal(t.unit, 90);
    assert_int_equal(t.stop, 106);
    assert_int_equal(t.wake, 181);
    form.max_datagram_bytes = 1024;
    assert_true(tx_thresholds(&form, &t));
    assert_int_equal(t.unit, VIRTIO_NET_TX_MAX_PIECES + 1);
    form.size_descs = 16;
    assert_true(tx_thresholds(&form, &t));
    assert_false(t.tso);
    assert_int_equal(t.unit, 3);
}

/* One unit as the gate admits it: fragments of two pieces, or a TSO frame, or one frame. */
static void send_unit(struct rig *rig, uint32_t frames)
{
    const struct virtio_net_info *info = virtio_net_info(rig->dev);

    if (info->can_tso && rig->next_frame % 3 == 0) {
        assert_int_equal(rig_send_tso(rig, VIRTIO_NET_TX_MAX_PIECES), VIRTIO_NET_OK);
        return;
    }
    for (uint32_t i = 0; i < frames; i++) {
        uint16_t n_segs = frames > 1 ? 2 : info->tx_max_segs < 3 ? info->tx_max_segs : 3;
        assert_int_equal(rig_send(rig, n_segs, true), VIRTIO_NET_OK);
    }
}

/* Not stopped means that a whole unit goes in, and then still a control frame; on a device that
 * completes a few at a time, for thousands of units. */
static void run_size(struct rig *rig, uint32_t frames)
{
    for (unsigned round = 0; round < 600u + 8u * rig_tx(rig).size_descs; round++) {
        while (!virtio_net_tx_stopped(rig->dev, 0)) {
            send_unit(rig, frames);
            assert_int_equal(rig_send_control(rig), VIRTIO_NET_OK);
        }
        virtio_net_tx_flush(rig->dev, 0);
        model_take(&rig->device, MODEL_TX);
        model_complete(&rig->device, 1 + round % 7);
        virtio_net_tx_reclaim(rig->dev, 0, 64);
    }
    virtio_net_tx_flush(rig->dev, 0);
    model_serve(&rig->device);
    virtio_net_tx_reclaim(rig->dev, 0, UINT32_MAX);
    assert_int_equal(rig_tx(rig).unexpected_full, 0);
    assert_int_equal(rig_tx(rig).drops[VIRTIO_NET_TX_DROP_RESERVE_EXHAUSTED], 0);
    assert_true(rig_tx(rig).stops > 10);
    assert_true(rig_at_rest(rig));
}

static void test_promise_on_the_queue(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 1024; size *= 2) {
        for (unsigned bits = 0; bits < 8; bits++) {
            for (unsigned d = 1; d < 7; d += 5) {
                struct rig *rig = rig_new();
                rig->opt.size_descs[MODEL_TX] = (uint16_t)size;
                rig->opt.order = (enum model_order)(bits % 3);
                rig->config.refuse.indirect = (bits & 1) != 0;
                rig->config.refuse.event_idx = (bits & 2) != 0;
                rig->config.refuse.host_tso = (bits & 4) != 0;
                rig->config.max_datagram_bytes = datagrams[d];
                if (!rig_open(rig)) {
                    assert_true(size == 2 && rig->config.refuse.indirect);
                    assert_non_null(rig->why);
                    assert_int_equal(rig->device.status, 0); /* reset, not left half alive */
                } else {
                    uint32_t datagram = virtio_net_info(rig->dev)->max_datagram_bytes;
                    run_size(rig, frames_of(datagram, 1500));
                }
                rig_free(rig);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_size),
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_promise_on_the_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
