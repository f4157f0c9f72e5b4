/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The split virtqueue alone: wrap, kicks, events, what a device may answer, chains.
 *
 *     test -> [virtqueue] <- a device of a few lines
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "boot/cpu.h"
#include "boot/mem.h"
#include "drivers/virtqueue.h"
#include "tests/device/seams.h"

#define DOORBELL_PHYS 0x1000u

struct bench {
    struct virtqueue vq;
    unsigned kicks;
    uint16_t avail_seen, used_idx;
    bool held[VQ_MAX_SIZE_DESCS];
    uint16_t order[VQ_MAX_SIZE_DESCS];
    unsigned n_held;
    /* The device publishes what is in its used ring when this shared word is read next. */
    const volatile void *publish_when_read;
};

static void on_kick(void *ctx, uint64_t phys, unsigned bytes, uint32_t value)
{
    struct bench *b = ctx;
    assert_int_equal(phys, DOORBELL_PHYS);
    assert_int_equal(bytes, 2);
    assert_int_equal(value, 1);
    b->kicks++;
}

static void device_publish(struct bench *b)
{
    b->vq.used->idx = b->used_idx;
}

static void on_shared(void *ctx, const volatile void *addr, unsigned bytes, bool is_store)
{
    struct bench *b = ctx;
    (void)bytes;
    if (!is_store && addr == b->publish_when_read) {
        device_publish(b);
    }
}

static void bench_init(struct bench *b, uint16_t size, bool event_idx, uint16_t indirect_descs)
{
    struct seam_hooks hooks = {.ctx = b, .mmio_write = on_kick, .shared = on_shared};
    struct vq_memory memory = {.indirect_descs = indirect_descs};

    seam_reset();
    seam_hook(&hooks);
    memset(b, 0, sizeof(*b));
    memory.ring = mem_alloc(vq_ring_bytes(size), 4096);
    memory.ring_dma = mem_dma_addr(memory.ring);
    memory.slots = mem_alloc(size * sizeof(struct vq_slot), 64);
    if (indirect_descs != 0) {
        memory.indirect = mem_alloc((size_t)size * indirect_descs * sizeof(struct vq_desc), 64);
        memory.indirect_dma = mem_dma_addr(memory.indirect);
    }
    vq_init(&b->vq, size, event_idx, &memory);
    b->vq.doorbell = (struct vq_doorbell){mem_map_mmio(DOORBELL_PHYS, 2), 1};
}

static void *cookie(uint32_t n)
{
    return (void *)(uintptr_t)(n + 1);
}

static uint16_t add(struct bench *b, uint16_t n_segs, uint32_t number)
{
    struct vq_seg segs[32];
    for (uint16_t i = 0; i < n_segs; i++) {
        segs[i] = (struct vq_seg){0x10000u + number * 64ull + i, 100u + i};
    }
    return vq_add(&b->vq, segs, n_segs, 0, cookie(number));
}

/* Takes what is available; checks that each head is new to the device. */
static void device_take(struct bench *b)
{
    while (b->avail_seen != b->vq.avail->idx) {
        uint16_t head = b->vq.avail->ring[b->avail_seen & b->vq.mask];
        assert_in_range(head, 0, b->vq.size - 1);
        assert_false(b->held[head]);
        b->held[head] = true;
        b->order[b->n_held++] = head;
        b->avail_seen++;
    }
}

static void device_use(struct bench *b, uint32_t id, uint32_t len)
{
    b->vq.used->ring[b->used_idx & b->vq.mask] = (struct vq_used_elem){id, len};
    b->used_idx++;
}

/* Uses the n-th of the heads it holds. */
static void device_use_nth(struct bench *b, unsigned nth)
{
    uint16_t head = b->order[nth];
    memmove(&b->order[nth], &b->order[nth + 1], (b->n_held - nth - 1) * sizeof(b->order[0]));
    b->n_held--;
    b->held[head] = false;
    device_use(b, head, 0);
}

static void set_avail_event(struct bench *b, uint16_t event)
{
    memcpy((void *)(uintptr_t)b->vq.avail_event, &event, sizeof(event));
}

/* 2.7: alignment of the three parts, and no line shared between driver's and device's part. Field
 * case 16: at each size they do not overlap. */
static void test_layout(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= VQ_MAX_SIZE_DESCS; size *= 2) {
        size_t avail = vq_avail_offset_bytes((uint16_t)size);
        size_t used = vq_used_offset_bytes((uint16_t)size);
        assert_true(avail >= 16 * size && avail % CPU_CACHE_LINE_BYTES == 0);
        assert_true(used >= avail + 6 + 2 * size && used % CPU_CACHE_LINE_BYTES == 0);
        assert_true(vq_ring_bytes((uint16_t)size) >= used + 6 + 8 * size);
    }
}

/* Every index passes every position of small rings, in batches of every length, and in any order of
 * completion: nothing is lost, doubled, or given to the device while it still has it. */
static void wrap_once(struct bench *b, uint16_t size, bool event_idx, uint16_t n_segs,
                      uint16_t indirect_descs, unsigned reversed)
{
    uint32_t added = 0, done = 0;
    static bool outstanding[200000];
    uint32_t random = 1;

    bench_init(b, size, event_idx, indirect_descs);
    memset(outstanding, 0, sizeof(outstanding));
    while (done < 66000 + 2u * size) {
        random = random * 1664525u + 1013904223u;
        uint32_t batch = 1 + (random >> 16) % size;
        while (batch-- > 0 && vq_free_descs(&b->vq) >= vq_cost_descs(&b->vq, n_segs)) {
            outstanding[added] = true;
            add(b, n_segs, added++);
        }
        vq_publish(&b->vq);
        vq_kick(&b->vq);
        device_take(b);
        uint32_t complete = 1 + (random >> 8) % size;
        while (complete-- > 0 && b->n_held != 0) {
            device_use_nth(b, reversed ? b->n_held - 1 : 0);
        }
        device_publish(b);
        struct vq_done d;
        while (vq_reclaim(&b->vq, &d)) {
            uint32_t number = (uint32_t)(uintptr_t)d.cookie - 1;
            assert_true(number < added && outstanding[number]);
            outstanding[number] = false;
            done++;
        }
        assert_int_equal(b->vq.fault, VQ_FAULT_NONE);
        assert_int_equal(vq_in_flight(&b->vq), added - done);
        assert_int_equal(b->n_held, added - done);
    }
}

static void test_wrap(void **state)
{
    struct bench *b = *state;
    for (uint16_t size = 1; size <= 64; size = (uint16_t)(size * 2)) {
        wrap_once(b, size, false, 1, 0, 0);
        wrap_once(b, size, true, 1, 0, 1);
    }
    wrap_once(b, 16, true, 3, 0, 1);
    wrap_once(b, 16, true, 3, 4, 1);
    wrap_once(b, 1024, true, 1, 0, 0);
    wrap_once(b, 256, false, 5, 0, 1);
}

/* A chain in the table and one in an indirect table, as the device sees them (2.7.5, 2.7.5.3). */
static void test_chains(void **state)
{
    struct bench *b = *state;

    bench_init(b, 8, true, 0);
    uint16_t head = add(b, 3, 7);
    assert_int_equal(vq_free_descs(&b->vq), 5);
    for (unsigned i = 0; i < 3; i++) {
        struct vq_desc *desc = &b->vq.desc[head];
        assert_int_equal(desc->addr, 0x10000 + 7 * 64 + i);
        assert_int_equal(desc->len, 100 + i);
        assert_int_equal(desc->flags, i < 2 ? VQ_DESC_F_NEXT : 0);
        head = desc->next;
    }
    bench_init(b, 8, true, 4);
    head = add(b, 3, 9);
    assert_int_equal(vq_free_descs(&b->vq), 7);
    assert_int_equal(b->vq.desc[head].flags, VQ_DESC_F_INDIRECT);
    assert_int_equal(b->vq.desc[head].len, 3 * 16);
    struct vq_desc *table = seam_ram(b->vq.desc[head].addr, 3 * 16);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(table[i].len, 100 + i);
        assert_int_equal(table[i].flags, i < 2 ? VQ_DESC_F_NEXT : 0);
        assert_int_equal(table[i].next, i < 2 ? i + 1 : 0);
    }
    /* One segment never pays for a table; what the device writes comes after what it reads. */
    head = add(b, 1, 1);
    assert_int_equal(b->vq.desc[head].flags, 0);
    struct vq_seg both[3] = {{1, 10}, {2, 20}, {3, 30}};
    head = vq_add(&b->vq, both, 1, 2, cookie(5));
    table = seam_ram(b->vq.desc[head].addr, 3 * 16);
    assert_int_equal(table[0].flags, VQ_DESC_F_NEXT);
    assert_int_equal(table[1].flags, VQ_DESC_F_NEXT | VQ_DESC_F_WRITE);
    assert_int_equal(table[2].flags, VQ_DESC_F_WRITE);
    assert_int_equal(b->vq.slots[head].out_bytes, 10);
    assert_int_equal(b->vq.slots[head].in_bytes, 50);
}

/* Without EVENT_IDX the flag alone decides (2.7.10.1). */
static void test_kick_by_flag(void **state)
{
    struct bench *b = *state;

    bench_init(b, 8, false, 0);
    set_avail_event(b, 0); /* means nothing */
    assert_false(vq_kick(&b->vq));
    add(b, 1, 0);
    assert_false(vq_kick(&b->vq)); /* nothing published yet */
    vq_publish(&b->vq);
    assert_true(vq_kick(&b->vq));
    assert_false(vq_kick(&b->vq)); /* once */
    b->vq.used->flags = VQ_USED_F_NO_NOTIFY;
    add(b, 1, 1);
    vq_publish(&b->vq);
    assert_false(vq_kick(&b->vq));
    assert_int_equal(b->kicks, 1);
}

/* With it, exactly when the batch covers the event; for all events around each index. */
static void test_kick_by_event(void **state)
{
    struct bench *b = *state;
    uint32_t number = 0;

    bench_init(b, 16, true, 0);
    b->vq.used->flags = VQ_USED_F_NO_NOTIFY; /* means nothing, 2.7.10.1 */
    for (unsigned lap = 0; lap < 66000; lap++) {
        unsigned batch = 1 + lap % 15;
        uint16_t old_idx = b->vq.published_idx;
        int offset = (int)(lap % 37) - 18;
        bool covered = offset >= 0 && offset < (int)batch;
        set_avail_event(b, (uint16_t)(old_idx + offset));
        for (unsigned i = 0; i < batch; i++) {
            add(b, 1, number++ & 0xffff);
        }
        vq_publish(&b->vq);
        assert_int_equal(vq_kick(&b->vq), covered);
        device_take(b);
        while (b->n_held != 0) {
            device_use_nth(b, 0);
        }
        device_publish(b);
        struct vq_done d;
        while (vq_reclaim(&b->vq, &d)) {
        }
    }
}

/* A driver that reclaims and adds without asking for a kick: after 2^15 and after 2^16 entries the
 * difference of two indices has forgotten the laps, the decision must not. */
static void test_kick_after_many(void **state)
{
    struct bench *b = *state;
    static const uint32_t counts[] = {1, 32767, 32768, 32769, 65535, 65536, 65537, 131072, 131073};

    for (unsigned c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        bench_init(b, 16, true, 0);
        set_avail_event(b, 0); /* waits for the very first */
        for (uint32_t i = 0; i < counts[c]; i++) {
            struct vq_done d;
            add(b, 1, i & 0xffff);
            vq_publish(&b->vq);
            device_take(b);
            device_use_nth(b, 0);
            device_publish(b);
            assert_true(vq_reclaim(&b->vq, &d));
        }
        assert_true(vq_kick(&b->vq));
    }
}

/* The safety timer's kick goes out only when the device says that it sleeps before a buffer that it
 * still has. */
static void test_kick_again(void **state)
{
    struct bench *b = *state;

    bench_init(b, 8, true, 0);
    assert_false(vq_kick_again(&b->vq));
    set_avail_event(b, 5);
    add(b, 1, 0);
    add(b, 1, 1);
    vq_publish(&b->vq);
    assert_false(vq_kick(&b->vq));
    assert_false(vq_kick_again(&b->vq));
    set_avail_event(b, 1);
    assert_true(vq_kick_again(&b->vq));
    device_take(b);
    device_use_nth(b, 0);
    device_use_nth(b, 0);
    device_publish(b);
    struct vq_done d;
    while (vq_reclaim(&b->vq, &d)) {
    }
    assert_false(vq_kick_again(&b->vq));
}

/* What no device may answer is noticed, and the ring stays out of use. */
static void test_bad_answers(void **state)
{
    struct bench *b = *state;
    struct vq_done d;
    static const struct {
        uint32_t id;
        unsigned entries;
        enum vq_fault fault;
    } acts[] = {
        {8, 1, VQ_FAULT_ID_RANGE},       {0xffffffff, 1, VQ_FAULT_ID_RANGE},
        {0x10000, 1, VQ_FAULT_ID_RANGE}, {5, 1, VQ_FAULT_NOT_IN_FLIGHT},
        {0, 2, VQ_FAULT_NOT_IN_FLIGHT},  {0, 4, VQ_FAULT_IDX_JUMP},
        {0, 0x8000, VQ_FAULT_IDX_JUMP},  {0, 0xffff, VQ_FAULT_IDX_JUMP},
        {1, 1, VQ_FAULT_NOT_IN_FLIGHT}, /* second descriptor of the first chain */
        {3, 1, VQ_FAULT_NOT_IN_FLIGHT}, /* added, not published */
    };

    for (unsigned i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
        bench_init(b, 8, true, 0);
        add(b, 2, 0); /* 0, 1 */
        add(b, 1, 1); /* 2 */
        vq_publish(&b->vq);
        add(b, 1, 2); /* 3 */
        for (unsigned n = 0; n < acts[i].entries; n++) {
            device_use(b, acts[i].id, 0);
        }
        device_publish(b);
        while (vq_reclaim(&b->vq, &d)) {
        }
        assert_int_equal(b->vq.fault, acts[i].fault);
        assert_false(vq_reclaim(&b->vq, &d));
        assert_int_equal(vq_pending(&b->vq), 0);
        assert_false(vq_arm(&b->vq, 1));
        vq_init(&b->vq, 8, true, &b->vq.memory);
        assert_int_equal(b->vq.fault, VQ_FAULT_NONE);
        assert_int_equal(vq_free_descs(&b->vq), 8);
    }
}

/* An index that goes back behind what it has covered, whether that was taken or not. */
static void test_index_goes_back(void **state)
{
    struct bench *b = *state;
    struct vq_done d;

    for (unsigned taken = 0; taken < 3; taken++) {
        bench_init(b, 8, true, 0);
        for (unsigned i = 0; i < 6; i++) {
            add(b, 1, i);
        }
        vq_publish(&b->vq);
        device_take(b);
        for (unsigned i = 0; i < 4; i++) {
            device_use_nth(b, 0);
        }
        device_publish(b);
        assert_int_equal(vq_pending(&b->vq), 4);
        for (unsigned i = 0; i < taken; i++) {
            assert_true(vq_reclaim(&b->vq, &d));
        }
        b->vq.used->idx = vq_wrap(b->vq.used->idx - 1);
        assert_int_equal(vq_pending(&b->vq), 0);
        assert_int_equal(b->vq.fault, VQ_FAULT_IDX_JUMP);
        assert_false(vq_reclaim(&b->vq, &d));
    }
}

/* The used element may change between two reads; it is read once. */
static unsigned reads_of_element;
static void count_reads(void *ctx, const volatile void *addr, unsigned bytes, bool is_store)
{
    struct bench *b = ctx;
    const uint8_t *ring = (const uint8_t *)&b->vq.used->ring[0];
    (void)bytes;
    if (!is_store && (const volatile uint8_t *)addr >= ring &&
        (const volatile uint8_t *)addr < ring + 8) {
        reads_of_element++;
        memset((void *)(uintptr_t)addr, 0xee, bytes); /* for the next time */
    }
}

static void test_read_once(void **state)
{
    struct bench *b = *state;
    struct vq_done d;
    struct seam_hooks hooks = {.ctx = b, .shared = count_reads};

    bench_init(b, 8, true, 0);
    add(b, 1, 4);
    vq_publish(&b->vq);
    device_use(b, 0, 3);
    device_publish(b);
    /* Words that a driver copies in one piece are restored between the two fields. */
    seam_hook(&hooks);
    reads_of_element = 0;
    b->vq.used->ring[0] = (struct vq_used_elem){0, 3};
    (void)vq_reclaim(&b->vq, &d);
    assert_int_equal(reads_of_element, 2);
}

/* Arming: the event lies where it should, and progress between arming and looking is found. */
static void test_arm(void **state)
{
    struct bench *b = *state;
    struct vq_done d;

    for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
        bench_init(b, 8, event_idx != 0, 0);
        assert_int_equal(b->vq.avail->flags, event_idx ? 0 : VQ_AVAIL_F_NO_INTERRUPT);
        for (uint32_t i = 0; i < 4; i++) {
            add(b, 1, i);
        }
        vq_publish(&b->vq);
        device_take(b);
        assert_true(vq_arm(&b->vq, 3));
        assert_int_equal(b->vq.avail->flags, 0);
        if (event_idx) {
            assert_int_equal(*b->vq.used_event, 2);
        }
        /* One completion: enough without an event index, too few with one. */
        device_use_nth(b, 0);
        device_publish(b);
        assert_int_equal(vq_arm(&b->vq, 3), event_idx != 0);
        vq_disarm(&b->vq);
        assert_int_equal(b->vq.avail->flags, event_idx ? 0 : VQ_AVAIL_F_NO_INTERRUPT);
        /* Two more appear just as the driver looks again. */
        device_use_nth(b, 0);
        device_use_nth(b, 0);
        b->publish_when_read = &b->vq.used->idx;
        assert_false(vq_arm(&b->vq, 3));
        assert_false(b->vq.armed);
        b->publish_when_read = NULL;
        unsigned n = 0;
        while (vq_reclaim(&b->vq, &d)) {
            n++;
        }
        assert_int_equal(n, 3);
    }
}

/* A disarmed ring is not woken by the next 2^15 completions. */
static void test_disarmed_is_quiet(void **state)
{
    struct bench *b = *state;
    struct vq_done d;

    bench_init(b, 8, true, 0);
    add(b, 1, 0);
    vq_publish(&b->vq);
    assert_true(vq_arm(&b->vq, 1));
    vq_disarm(&b->vq);
    device_take(b);
    for (uint32_t i = 1; i < 32000; i++) {
        uint16_t old_idx = b->used_idx;
        device_use_nth(b, 0);
        device_publish(b);
        assert_false(vq_need_event(*b->vq.used_event, b->used_idx, old_idx));
        assert_true(vq_reclaim(&b->vq, &d));
        add(b, 1, i & 0xffff);
        vq_publish(&b->vq);
        device_take(b);
    }
}

/* Everything comes out of a dead ring once. */
static void test_abort(void **state)
{
    struct bench *b = *state;
    uint16_t cursor = 0;
    unsigned seen = 0;
    void *c;

    bench_init(b, 16, true, 0);
    for (uint32_t i = 0; i < 5; i++) {
        add(b, 3, i);
    }
    while ((c = vq_abort(&b->vq, &cursor)) != NULL) {
        seen |= 1u << ((uintptr_t)c - 1);
    }
    assert_int_equal(seen, 0x1f);
    assert_int_equal(vq_free_descs(&b->vq), 16);
}

/* Adding more than there is room for is a bug of the caller, and ends the program. */
static void test_overrun_panics(void **state)
{
    struct bench *b = *state;
    jmp_buf back;

    bench_init(b, 4, true, 0);
    add(b, 3, 0);
    seam_expect_panic(&back);
    if (setjmp(back) == 0) {
        add(b, 2, 1);
        fail_msg("an overrun was accepted");
    }
    seam_expect_panic(NULL);
}

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct bench));
    return *state == NULL;
}

static int teardown(void **state)
{
    seam_reset();
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_kick_by_flag),
        cmocka_unit_test(test_kick_by_event),
        cmocka_unit_test(test_kick_after_many),
        cmocka_unit_test(test_kick_again),
        cmocka_unit_test(test_bad_answers),
        cmocka_unit_test(test_index_goes_back),
        cmocka_unit_test(test_read_once),
        cmocka_unit_test(test_arm),
        cmocka_unit_test(test_disarmed_is_quiet),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_overrun_panics),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
