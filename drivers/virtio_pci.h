/* SPDX-License-Identifier: BSD-2-Clause
 *
 * virtio over PCI, modern interface. VIRTIO 1.x section 4.1.
 */
#ifndef SLUICE_DRIVERS_VIRTIO_PCI_H
#define SLUICE_DRIVERS_VIRTIO_PCI_H

#include "drivers/virtio_transport.h"

/* The n-th virtio network device on the machine's PCI buses, memory and bus mastering on, legacy
 * interrupts off. NULL with *why when there is none, or it cannot be used. */
struct virtio_transport *virtio_pci_open(unsigned nth, const char **why);

/* How many virtio network devices the buses have. */
unsigned virtio_pci_count(void);

#endif
