/* SPDX-License-Identifier: BSD-2-Clause */
#include "drivers/virtio_transport.h"

#include "boot/clock.h"
#include "boot/cpu.h"

bool virtio_reset(struct virtio_transport *transport, uint64_t timeout_ns)
{
    uint64_t start_ns = clock_now_ns();

    transport->ops->set_status(transport, 0);
    while (transport->ops->status(transport) != 0) {
        if (clock_now_ns() - start_ns > timeout_ns) {
            /* It may still write: off the bus before anyone takes back what it was lent. */
            transport->ops->close(transport);
            return false;
        }
        cpu_relax();
    }
    return true;
}
