/* SPDX-License-Identifier: BSD-2-Clause
 *
 * PCI configuration space: finding functions, capabilities, BARs, MSI-X. PCI Local Bus 3.0.
 */
#ifndef SLUICE_DRIVERS_PCI_H
#define SLUICE_DRIVERS_PCI_H

#include <stdbool.h>
#include <stdint.h>

#define PCI_VENDOR_ID     0x00u
#define PCI_DEVICE_ID     0x02u
#define PCI_COMMAND       0x04u
#define PCI_STATUS        0x06u
#define PCI_CLASS         0x0au /* class and subclass, 16 bits */
#define PCI_HEADER_TYPE   0x0eu
#define PCI_BAR0          0x10u
#define PCI_SECONDARY_BUS 0x19u
#define PCI_CAPABILITIES  0x34u

#define PCI_COMMAND_MEMORY  0x0002u
#define PCI_COMMAND_MASTER  0x0004u
#define PCI_COMMAND_NO_INTX 0x0400u
#define PCI_STATUS_CAPS     0x0010u
#define PCI_CAP_ID_VENDOR   0x09u
#define PCI_CAP_ID_MSIX     0x11u
#define PCI_BARS            6u

struct pci_function {
    uint8_t bus;
    uint8_t slot_function; /* slot in the upper five bits */
    uint16_t vendor_id, device_id;
};

uint8_t pci_read8(const struct pci_function *f, uint16_t offset);
uint16_t pci_read16(const struct pci_function *f, uint16_t offset);
uint32_t pci_read32(const struct pci_function *f, uint16_t offset);
void pci_write16(const struct pci_function *f, uint16_t offset, uint16_t value);
void pci_write32(const struct pci_function *f, uint16_t offset, uint32_t value);

/*
 * The n-th function, in the order of a walk from bus 0 through its bridges, for which wanted()
 * answers true. False: there are not so many. Finds out first which way of access the machine has,
 * so it comes before all other functions here.
 */
bool pci_find(unsigned nth, bool (*wanted)(const struct pci_function *f), struct pci_function *out);

/* How many there are. */
unsigned pci_count(bool (*wanted)(const struct pci_function *f));

/* Offset of the next capability with this id after `after` (0: from the start), 0: none. Follows
 * at most as many links as fit, so a list that bites its tail ends. */
uint8_t pci_next_capability(const struct pci_function *f, uint8_t id, uint8_t after);

/* A memory BAR's place and size, wherever in 64 bits it lies. False: no such BAR, an I/O BAR, or
 * one without an address. The function must not be in use: decoding is off for a moment. */
bool pci_memory_bar(const struct pci_function *f, unsigned bar, uint64_t *phys, uint64_t *bytes);

/* Sets and clears bits of the command register. */
void pci_command(const struct pci_function *f, uint16_t set, uint16_t clear);

/* ---- MSI-X (6.8.2) ---- */

struct pci_msix {
    uint8_t capability;
    uint16_t n_vectors; /* of the table, 0: no usable MSI-X */
    volatile uint8_t *table;
};

/* Maps the table; all vectors masked. n_vectors is 0 when the function has none, or its table does
 * not lie where it says. */
void pci_msix_open(const struct pci_function *f, struct pci_msix *msix);
/* What vector n sends, and lets it. */
void pci_msix_set(struct pci_msix *msix, uint16_t vector, uint64_t msg_addr, uint32_t msg_data);
void pci_msix_enable(const struct pci_function *f, const struct pci_msix *msix, bool on);

#endif
