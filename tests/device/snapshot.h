/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A driver put back to the moment after its opening, for tests that start from there thousands of
 * times a second: what it keeps in memory is copied once, and copied back.
 */
#ifndef SLUICE_TESTS_SNAPSHOT_H
#define SLUICE_TESTS_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#define SNAPSHOT_BLOCKS 12u

struct virtio_net;

struct snapshot {
    struct {
        void *at, *copy;
        size_t bytes;
    } blocks[SNAPSHOT_BLOCKS];
    unsigned n;
    uint64_t now_ns;
};

/* Model time, and all memory of the driver but for what received frames lie in. */
void snapshot_take(struct snapshot *snapshot, struct virtio_net *dev);
/* Memory of the test that goes back with it. */
void snapshot_add(struct snapshot *snapshot, void *at, size_t bytes);
void snapshot_restore(const struct snapshot *snapshot);
void snapshot_free(struct snapshot *snapshot);

#endif
