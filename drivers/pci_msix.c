/* SPDX-License-Identifier: BSD-2-Clause
 *
 * MSI-X: a table of messages in a BAR, one for each vector (PCI Local Bus 3.0, 6.8.2).
 */
#include "drivers/pci.h"

#include <stddef.h>

#include "boot/cpu.h"
#include "boot/mem.h"

#define MSIX_CONTROL      2u
#define MSIX_TABLE        4u
#define MSIX_CONTROL_SIZE 0x07ffu
#define MSIX_CONTROL_MASK 0x4000u
#define MSIX_CONTROL_ON   0x8000u
#define MSIX_BAR_MASK     0x7u

#define ENTRY_BYTES   16u
#define ENTRY_ADDRESS 0u
#define ENTRY_DATA    8u
#define ENTRY_CONTROL 12u
#define ENTRY_MASKED  1u

void pci_msix_open(const struct pci_function *f, struct pci_msix *msix)
{
    uint64_t phys, bytes;

    *msix = (struct pci_msix){.capability = pci_next_capability(f, PCI_CAP_ID_MSIX, 0)};
    if (msix->capability == 0) {
        return;
    }
    uint32_t place = pci_read32(f, (uint16_t)(msix->capability + MSIX_TABLE));
    uint16_t control = pci_read16(f, (uint16_t)(msix->capability + MSIX_CONTROL));
    uint32_t n = (control & MSIX_CONTROL_SIZE) + 1u;
    uint64_t offset = place & ~MSIX_BAR_MASK;

    if (!pci_memory_bar(f, place & MSIX_BAR_MASK, &phys, &bytes) || offset > bytes ||
        (uint64_t)n * ENTRY_BYTES > bytes - offset) {
        return;
    }
    msix->table = mem_map_mmio(phys + offset, (size_t)n * ENTRY_BYTES);
    if (msix->table == NULL) {
        return;
    }
    msix->n_vectors = (uint16_t)n;
}

void pci_msix_set(struct pci_msix *msix, uint16_t vector, uint64_t msg_addr, uint32_t msg_data)
{
    volatile uint8_t *entry = msix->table + (size_t)vector * ENTRY_BYTES;

    /* Never a half-written message: the vector is masked while it changes (6.8.3.5). */
    mmio_write32(entry + ENTRY_CONTROL, ENTRY_MASKED);
    mmio_write32(entry + ENTRY_ADDRESS, (uint32_t)msg_addr);
    mmio_write32(entry + ENTRY_ADDRESS + 4, (uint32_t)(msg_addr >> 32));
    mmio_write32(entry + ENTRY_DATA, msg_data);
    mmio_write32(entry + ENTRY_CONTROL, 0);
}

void pci_msix_enable(const struct pci_function *f, const struct pci_msix *msix, bool on)
{
    uint16_t at = (uint16_t)(msix->capability + MSIX_CONTROL);
    uint16_t control = pci_read16(f, at);

    control &= (uint16_t) ~(MSIX_CONTROL_MASK | MSIX_CONTROL_ON);
    pci_write16(f, at, on ? (uint16_t)(control | MSIX_CONTROL_ON) : control);
}
