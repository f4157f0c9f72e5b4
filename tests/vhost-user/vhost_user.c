/* SPDX-License-Identifier: BSD-2-Clause
 *
 * vhost-user, as in QEMU's docs/interop/vhost-user.rst: only what a network backend of one queue
 * pair needs.
 */
#include "tests/vhost-user/vhost_user.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum request {
    GET_FEATURES = 1,
    SET_FEATURES = 2,
    SET_OWNER = 3,
    RESET_OWNER = 4,
    SET_MEM_TABLE = 5,
    SET_VRING_NUM = 8,
    SET_VRING_ADDR = 9,
    SET_VRING_BASE = 10,
    GET_VRING_BASE = 11,
    SET_VRING_KICK = 12,
    SET_VRING_CALL = 13,
    SET_VRING_ERR = 14,
    GET_PROTOCOL_FEATURES = 15,
    SET_PROTOCOL_FEATURES = 16,
    GET_QUEUE_NUM = 17,
    SET_VRING_ENABLE = 18,
};

#define F_PROTOCOL_FEATURES   (1ull << 30)
#define PROTOCOL_F_REPLY_ACK  (1ull << 3)
#define FLAG_VERSION          1u
#define FLAG_REPLY            4u
#define FLAG_NEED_REPLY       8u
#define VRING_INDEX_MASK      0xffu
#define VRING_NO_FD           0x100u
#define VRING_USED_ADDR_GUEST 0u
#define MAX_FDS               VHOST_REGIONS_MAX
#define NO_FD                 (-1)

struct message {
    uint32_t request, flags, bytes;
    union {
        uint64_t u64;
        struct {
            uint32_t index, number;
        } state;
        struct {
            uint32_t index, flags;
            uint64_t desc, used, avail, log;
        } address;
        struct {
            uint32_t n, padding;
            struct {
                uint64_t guest_addr, bytes, user_addr, offset;
            } region[VHOST_REGIONS_MAX];
        } memory;
        uint8_t raw[512];
    } u;
} __attribute__((packed));

#define HEADER_BYTES offsetof(struct message, u)

_Static_assert(HEADER_BYTES == 12, "vhost-user.rst, Header");

/* ---- the socket ---- */

static bool receive(int fd, struct message *m, int fds[MAX_FDS], unsigned *n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = m, .iov_len = HEADER_BYTES};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    *n_fds = 0;
    ssize_t n;
    do {
        n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)HEADER_BYTES || m->bytes > sizeof(m->u)) {
        return false;
    }
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            *n_fds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds, CMSG_DATA(c), *n_fds * sizeof(int));
        }
    }
    memset(&m->u, 0, sizeof(m->u));
    return m->bytes == 0 || recv(fd, &m->u, m->bytes, MSG_WAITALL) == (ssize_t)m->bytes;
}

static bool reply(struct vhost_backend *b, struct message *m, uint32_t bytes)
{
    m->flags = FLAG_VERSION | FLAG_REPLY;
    m->bytes = bytes;
    return send(b->socket, m, HEADER_BYTES + bytes, MSG_NOSIGNAL) ==
           (ssize_t)(HEADER_BYTES + bytes);
}

/* ---- memory ---- */

uint8_t *vhost_memory(void *backend, uint64_t guest_addr, uint64_t len_bytes)
{
    const struct vhost_backend *b = backend;
    for (unsigned i = 0; i < b->n_regions; i++) {
        const struct vhost_region *r = &b->regions[i];
        const uint64_t at = guest_addr - r->guest_addr;
        if (guest_addr >= r->guest_addr && at < r->bytes && len_bytes <= r->bytes - at) {
            return r->ptr + at;
        }
    }
    return NULL;
}

static uint64_t guest_of_user(const struct vhost_backend *b, uint64_t user_addr)
{
    for (unsigned i = 0; i < b->n_regions; i++) {
        const struct vhost_region *r = &b->regions[i];
        if (user_addr >= r->user_addr && user_addr - r->user_addr < r->bytes) {
            return user_addr - r->user_addr + r->guest_addr;
        }
    }
    return UINT64_MAX;
}

/* Mappings of an older table stay: rings that run point into them, and it is the same memory. */
static bool set_memory(struct vhost_backend *b, const struct message *m, const int *fds,
                       unsigned n_fds)
{
    if (m->u.memory.n > VHOST_REGIONS_MAX || n_fds < m->u.memory.n) {
        return false;
    }
    b->n_regions = 0;
    for (unsigned i = 0; i < m->u.memory.n; i++) {
        const uint64_t bytes = m->u.memory.region[i].bytes;
        const uint64_t offset = m->u.memory.region[i].offset;
        void *at = mmap(NULL, bytes + offset, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
        close(fds[i]);
        if (at == MAP_FAILED) {
            perror("mmap of guest memory");
            return false;
        }
        b->regions[b->n_regions++] = (struct vhost_region){
            .guest_addr = m->u.memory.region[i].guest_addr,
            .bytes = bytes,
            .user_addr = m->u.memory.region[i].user_addr,
            .ptr = (uint8_t *)at + offset,
        };
    }
    return true;
}

/* ---- rings ---- */

static void stop_queue(struct vhost_backend *b, unsigned index)
{
    struct vhost_queue *vq = &b->queue[index];
    if (vq->started) {
        vq->base = b->dev->queue[index].used_next;
        strict_queue_disable(&b->dev->queue[index]);
        vq->started = false;
    }
    /* A stopped ring starts again with a kick descriptor of its own, not by being enabled. */
    if (vq->kick_fd != NO_FD) {
        close(vq->kick_fd);
        vq->kick_fd = NO_FD;
    }
    b->dev->regs[index].enabled = false;
    b->dev->unfinished[index] = b->dev->kicked[index] = false;
    if (!b->queue[0].started && !b->queue[1].started) {
        b->dev->status = 0;
    }
}

static void start_queue(struct vhost_backend *b, unsigned index)
{
    struct vhost_queue *vq = &b->queue[index];
    struct strict_device *dev = b->dev;
    struct strict_queue *q = &dev->queue[index];
    if (vq->started || !vq->enabled || vq->kick_fd == NO_FD || b->n_regions == 0) {
        return;
    }
    memset(q, 0, sizeof(*q));
    q->report = &dev->report;
    q->memory = dev->memory;
    q->index = index;
    q->direction = index == 0 ? STRICT_DEVICE_WRITES : STRICT_DEVICE_READS;
    q->size_descs = vq->size_descs;
    q->desc_addr = guest_of_user(b, vq->desc_user);
    q->avail_addr = guest_of_user(b, vq->avail_user);
    q->used_addr = guest_of_user(b, vq->used_user);
    q->event_idx = strict_has(b->features, F_EVENT_IDX);
    q->indirect = strict_has(b->features, F_INDIRECT_DESC);
    q->max_chain_descs = dev->opt.max_chain_descs;
    if (!strict_queue_enable(q, vq->base)) {
        fprintf(stderr, "queue %u: rings cannot be taken into use\n", index);
        return;
    }
    vq->started = true;
    b->starts++;
    dev->regs[index].enabled = true;
    dev->rx_stock_checked = false;
    dev->rx_stock_bytes = 0;
    dev->status = 1 | 2 | 4 | 8;
    /* What was made available before the start was exposed without a kick to us. */
    dev->kicked[index] = true;
}

static void set_fd(int *slot, const struct message *m, const int *fds, unsigned n_fds)
{
    if (*slot != NO_FD) {
        close(*slot);
    }
    *slot = (m->u.u64 & VRING_NO_FD) == 0 && n_fds > 0 ? fds[0] : NO_FD;
}

static void set_features(struct vhost_backend *b, uint64_t features)
{
    b->features = features & ~F_PROTOCOL_FEATURES;
    b->features_changed = true;
    b->dev->net.offered = b->dev->opt.offered;
    /* MAC and the like are between QEMU and the driver and not told to a backend. */
    b->dev->net.accepted = b->features;
    b->dev->driver_features = b->features;
    STRICT_CHECK(&b->dev->report, CORE_DRV_FEAT_01, (b->features & ~b->dev->opt.offered) == 0,
                 "accepted %#llx of %#llx", (unsigned long long)b->features,
                 (unsigned long long)b->dev->opt.offered);
    if (strict_has(features, F_VERSION_1)) {
        strict_net_check_features(&b->dev->net);
    }
    b->dev->net.accepted |= b->dev->net.check_source_mac ? strict_bit(F_MAC) : 0;
}

/* ---- messages ---- */

static bool ring_message(struct vhost_backend *b, const struct message *m, const int *fds,
                         unsigned n_fds)
{
    const uint32_t index = m->u.state.index & VRING_INDEX_MASK;
    if (index >= VHOST_QUEUES) {
        return false;
    }
    struct vhost_queue *vq = &b->queue[index];
    switch (m->request) {
    case SET_VRING_NUM:
        vq->size_descs = m->u.state.number;
        STRICT_CHECK(&b->dev->report, PCI_DRV_COM_07,
                     vq->size_descs != 0 && (vq->size_descs & (vq->size_descs - 1)) == 0, "size %u",
                     vq->size_descs);
        break;
    case SET_VRING_ADDR:
        vq->desc_user = m->u.address.desc;
        vq->used_user = m->u.address.used;
        vq->avail_user = m->u.address.avail;
        break;
    case SET_VRING_BASE:
        vq->base = (uint16_t)m->u.state.number;
        break;
    case SET_VRING_KICK:
        set_fd(&vq->kick_fd, m, fds, n_fds);
        start_queue(b, index);
        break;
    case SET_VRING_CALL:
        set_fd(&vq->call_fd, m, fds, n_fds);
        break;
    case SET_VRING_ENABLE:
        vq->enabled = m->u.state.number != 0;
        start_queue(b, index);
        break;
    default:
        break;
    }
    return true;
}

static bool dispatch(struct vhost_backend *b, struct message *m, const int *fds, unsigned n_fds,
                     bool *replied)
{
    *replied = true;
    switch (m->request) {
    case GET_FEATURES:
        m->u.u64 = b->dev->opt.offered | F_PROTOCOL_FEATURES;
        return reply(b, m, sizeof(m->u.u64));
    case GET_PROTOCOL_FEATURES:
        m->u.u64 = PROTOCOL_F_REPLY_ACK;
        return reply(b, m, sizeof(m->u.u64));
    case GET_QUEUE_NUM:
        m->u.u64 = 1;
        return reply(b, m, sizeof(m->u.u64));
    case GET_VRING_BASE: {
        const uint32_t index = m->u.state.index;
        if (index >= VHOST_QUEUES) {
            return false;
        }
        stop_queue(b, index);
        m->u.state.number = b->queue[index].base;
        return reply(b, m, sizeof(m->u.state));
    }
    default:
        *replied = false;
        break;
    }
    switch (m->request) {
    case SET_FEATURES:
        set_features(b, m->u.u64);
        return true;
    case SET_PROTOCOL_FEATURES:
        b->protocol_features = m->u.u64;
        return true;
    case SET_OWNER:
    case RESET_OWNER:
    case SET_VRING_ERR:
        return true;
    case SET_MEM_TABLE:
        return set_memory(b, m, fds, n_fds);
    default:
        return ring_message(b, m, fds, n_fds);
    }
}

bool vhost_message(struct vhost_backend *b)
{
    struct message m;
    int fds[MAX_FDS];
    unsigned n_fds;
    bool replied;
    if (!receive(b->socket, &m, fds, &n_fds)) {
        return false;
    }
    if (m.request == SET_VRING_ERR && n_fds > 0) {
        close(fds[0]);
    }
    const bool need_reply = (m.flags & FLAG_NEED_REPLY) != 0;
    const bool ok = dispatch(b, &m, fds, n_fds, &replied);
    if (!replied && need_reply && (b->protocol_features & PROTOCOL_F_REPLY_ACK) != 0) {
        m.u.u64 = ok ? 0 : 1;
        return reply(b, &m, sizeof(m.u.u64)) && ok;
    }
    return ok;
}

void vhost_interrupt(void *backend, unsigned queue)
{
    struct vhost_backend *b = backend;
    const uint64_t one = 1;
    if (b->queue[queue].call_fd != NO_FD &&
        write(b->queue[queue].call_fd, &one, sizeof(one)) != (ssize_t)sizeof(one)) {
        perror("interrupt");
    }
}
