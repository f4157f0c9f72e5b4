/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A network device on a PCI bus that takes every clause at its word. The driver's register accesses
 * come in as they are made, its memory is read through a translation, and what it does wrong is
 * counted under the clause that it violates. How the device behaves, and what it does wrong itself,
 * are data: struct strict_options, struct strict_faults.
 */
#ifndef SLUICE_TESTS_STRICT_DEVICE_H
#define SLUICE_TESTS_STRICT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/device/strict_net.h"
#include "tests/device/strict_report.h"
#include "tests/device/strict_ring.h"

#define STRICT_QUEUES      3u /* receive, transmit, and one that only CTRL_VQ would use */
#define STRICT_VECTORS_MAX 2048u

/* Where firmware put the device's windows. */
#define STRICT_BAR_MSIX_PHYS   0xfebc0000ull
#define STRICT_BAR_MAIN_PHYS   0x380000000000ull
#define STRICT_BAR_SECOND_PHYS 0xfeb00000ull
#define STRICT_BAR_MSIX_BYTES  0x10000u
#define STRICT_BAR_MAIN_BYTES  0x40000u

enum strict_order { STRICT_IN_ORDER, STRICT_REVERSED, STRICT_RANDOM };

enum strict_pace {
    STRICT_IMMEDIATE,  /* serves at each kick, as part of it */
    STRICT_LAZY,       /* serves when stepped, whether kicked or not */
    STRICT_ONLY_KICKED /* serves when stepped, and only queues that were kicked */
};

/* What else is in the list of capabilities. */
enum strict_decoy {
    STRICT_CAPS_RESERVED_TYPES = 1,
    STRICT_CAPS_RESERVED_BARS = 2,
    STRICT_CAPS_TWICE = 4,
    STRICT_CAPS_LONGER = 8,
    STRICT_CAPS_HUGE = 16, /* lengths up to the end of the BAR */
    STRICT_CAPS_VENDOR = 32,
    STRICT_CAPS_NONE = 64, /* no virtio capability at all: a legacy device */
    STRICT_CAPS_LOOP = 128,
    STRICT_CAPS_SHORT = 256,  /* the common structure is too short to hold its registers */
    STRICT_CAPS_WRAP = 512,   /* offset + length beyond 2^32 */
    STRICT_CAPS_GIANT = 1024, /* lengths of 4 GiB - 1, in a BAR of 256 KiB */
};

struct strict_options {
    uint64_t offered;
    uint32_t offered_beyond; /* in each word above bit 63 */
    uint16_t queue_max_descs[STRICT_QUEUES];
    uint16_t vectors; /* MSI-X table entries, 0: no capability */
    uint32_t notify_multiplier;
    uint16_t notify_off[STRICT_QUEUES];
    uint16_t config_bytes;
    uint8_t mac[6];
    uint16_t mtu_bytes;
    bool link_up;
    uint16_t pci_device_id;
    uint8_t revision;
    unsigned decoys; /* enum strict_decoy */
    enum strict_order order;
    enum strict_pace pace;
    uint32_t batch;    /* buffers used before the index is published, 0: all there are */
    uint32_t per_step; /* most buffers of a queue served in one step, 0: no limit */
    uint32_t slow;     /* serves in one of so many steps, 0: in each */
    bool polls;        /* asks for no kicks (but serves when stepped) */
    uint32_t max_chain_descs;
    uint64_t seed;
};

/*
 * Each hostile or broken act; all off by default. Those with a number happen once in so many.
 *
 * Of kicks only losing them is the device's to do. One that is early, for nothing or doubled is an
 * act of the driver; the device's share in it, a look that no kick called for and a second one, is
 * STRICT_LAZY, and strict_watch.eager for a look between any two accesses.
 */
struct strict_faults {
    uint32_t used_id_range, used_id_idle, used_twice, idx_jump;
    uint32_t rx_len_short, rx_len_long;
    uint32_t num_buffers;       /* once in so many packets ... */
    uint16_t num_buffers_value; /* ... this value */
    uint32_t rx_header;         /* once in so many packets the header below instead */
    struct strict_net_hdr rx_header_value;
    bool reread; /* each word that the driver reads once is another when it reads again */
    uint32_t config_unstable; /* so many of the next config reads change it under the reader */
    bool config_never_stable;
    uint32_t reset_reads; /* status reads until a reset is over */
    bool reset_never;
    bool needs_reset; /* raise it at the next step, with a configuration interrupt */
    bool refuse_features;
    bool refuse_queue_enable; /* a queue stays off; told by NEEDS_RESET, at DRIVER_OK (2.1.2) */
    uint32_t refuse_vector;   /* the n-th mapping, counted from 1 */
    uint32_t lose_interrupts, lose_kicks, double_interrupts, spurious_interrupts;
    uint32_t early_interrupts;  /* before the index is published */
    uint32_t late_steps;        /* interrupts come so many steps later */
    bool scribble_unused_event; /* write the suppression words that were not negotiated */
};

/* The frame that the driver sent, after the device completed its checksum; memory of the device. */
typedef void strict_sink(void *ctx, const struct strict_net_hdr *hdr, const uint8_t *frame,
                         uint32_t len_bytes);

struct strict_frame {
    struct strict_frame *next;
    uint32_t len_bytes;
    struct strict_net_hdr hdr;
    uint8_t bytes[];
};

struct strict_queue_regs {
    uint16_t size_descs, vector;
    uint64_t desc, avail, used;
    bool enabled, vector_unread, size_read, refused;
};

struct strict_device {
    struct strict_report report;
    struct strict_options opt;
    struct strict_faults fault;
    struct strict_net net;
    struct strict_queue queue[STRICT_QUEUES];
    struct strict_memory memory;
    /* One message signalled interrupt; or, without PCI around it, an interrupt of a queue. */
    void (*interrupt)(void *ctx, uint64_t msg_addr, uint32_t msg_data);
    void (*queue_interrupt)(void *ctx, unsigned queue);
    strict_sink *sink;
    /* Header and frame as they were sent, before the device's part of the checksum. */
    void (*wire)(void *ctx, const uint8_t *hdr_and_frame, uint32_t len_bytes);
    void *ctx;

    uint8_t pci[256];
    uint8_t pci_cap_type[256]; /* cfg_type + 1 of the virtio capability that a byte belongs to */
    uint32_t msix_table[STRICT_VECTORS_MAX * 4];
    uint64_t msix_pending[STRICT_VECTORS_MAX / 64];

    struct strict_queue_regs regs[STRICT_QUEUES];
    uint8_t status, isr, generation;
    uint8_t config[64];
    uint32_t feature_select, driver_feature_select;
    uint32_t feature_words_read; /* bit n: word n */
    uint64_t driver_features;
    uint32_t driver_features_high; /* words beyond the second, or-ed */
    uint16_t queue_select, config_vector;
    bool config_vector_unread;
    uint32_t vector_maps;

    /* What the checks of the start-up remember. */
    bool status_written, reset_pending, reset_confirmed;
    uint32_t reset_reads_left;
    bool features_read, features_written, features_ok_read, select_written;
    bool bring_up_failed; /* a fault was injected: nothing may follow but FAILED or a reset */
    bool failed_seen, was_live;
    uint32_t config_reads_open, generation_reads;
    bool generation_fresh;
    uint64_t rx_stock_bytes;
    bool rx_stock_checked;

    /* Work. */
    struct strict_frame *to_driver, **to_driver_tail;
    uint32_t n_to_driver;
    bool kicked[STRICT_QUEUES];
    uint32_t kicks_missing[STRICT_QUEUES]; /* asleep, so many kicks in a row were lost */
    bool unfinished[STRICT_QUEUES];        /* per_step ended the last round */
    bool rx_dry; /* frames wait, and it knew of too few buffers at its last look */
    bool serving;
    uint64_t steps, now_ns, random;
    uint32_t n_packets, n_used, n_interrupts, n_kicks;
    struct {
        uint64_t due_step;
        unsigned queue;
    } late[64];
    unsigned n_late;
    bool interrupt_sent[STRICT_QUEUES];       /* since the driver last looked at that used ring */
    uint16_t driver_saw_used[STRICT_QUEUES];  /* used index as the driver last loaded it */
    uint16_t driver_next_used[STRICT_QUEUES]; /* used entries that it loaded */

    /* What came of it. */
    uint64_t tx_frames, tx_bytes, rx_packets, rx_bytes, rx_buffers, descs;
    uint64_t interrupts, interrupts_lost, kicks_lost, resets, faults_done;
    uint8_t *scratch; /* header and longest frame */
};

/* A sane modern device with everything that the driver knows, queues of 256, three vectors. */
void strict_options_default(struct strict_options *opt);

/* Zeroes the device and builds its registers. report stays for the caller to read. */
void strict_device_init(struct strict_device *dev, const struct strict_options *opt);
void strict_device_fini(struct strict_device *dev);

/* PCI configuration space of the only function, and its memory windows. */
uint32_t strict_pci_read(struct strict_device *dev, uint32_t offset, unsigned bytes);
void strict_pci_write(struct strict_device *dev, uint32_t offset, unsigned bytes, uint32_t value);
void strict_pci_build(struct strict_device *dev);
void strict_msix_raise(struct strict_device *dev, uint16_t vector);
bool strict_msix_enabled(const struct strict_device *dev);
bool strict_mmio_hit(uint64_t phys);
uint32_t strict_mmio_read(struct strict_device *dev, uint64_t phys, unsigned bytes);
void strict_mmio_write(struct strict_device *dev, uint64_t phys, unsigned bytes, uint32_t value);
void strict_device_mapped(struct strict_device *dev, uint64_t phys, uint64_t len_bytes);

/* Registers (strict_common.c): offset in the common structure. */
uint32_t strict_common_read(struct strict_device *dev, uint32_t offset, unsigned bytes);
void strict_common_write(struct strict_device *dev, uint32_t offset, unsigned bytes,
                         uint32_t value);
uint32_t strict_config_read(struct strict_device *dev, uint32_t offset, unsigned bytes);
void strict_config_write(struct strict_device *dev, uint32_t offset, unsigned bytes);
void strict_device_reset(struct strict_device *dev);
void strict_note_access(struct strict_device *dev, bool is_status);

/* The driver rang the doorbell at this offset of the notification structure. */
void strict_device_kick(struct strict_device *dev, uint32_t offset, unsigned bytes, uint32_t value);

/* Hands the device a frame for the driver. hdr->num_buffers is the device's to fill in. */
void strict_device_send(struct strict_device *dev, const struct strict_net_hdr *hdr,
                        const uint8_t *frame, uint32_t len_bytes);

/* Lets the device work. now_ns is model time. */
void strict_device_step(struct strict_device *dev, uint64_t now_ns);

/* True: while the driver sleeps, no step would do anything but count. */
bool strict_device_quiet(const struct strict_device *dev);

/* Link state as the device reports it, with the configuration interrupt. */
void strict_device_set_link(struct strict_device *dev, bool up);
void strict_config_interrupt(struct strict_device *dev);

/* The driver said that it has nothing to do: does it owe a kick, has it missed a completion? */
void strict_device_driver_idles(struct strict_device *dev);

/* The driver took a buffer back that the device never returned: only after a reset. */
void strict_device_buffer_withdrawn(struct strict_device *dev);

/* Everything that a driver which refused or failed must not have done. */
void strict_device_expect_failed(struct strict_device *dev);

/* Parts of the device for each other. */
void strict_config_fill(struct strict_device *dev);
void strict_device_serve(struct strict_device *dev, unsigned index);
void strict_device_raise(struct strict_device *dev, unsigned queue);
void strict_device_raise_spurious(struct strict_device *dev, unsigned queue);

uint64_t strict_random(struct strict_device *dev);

/* True once in every so many calls of this kind, never for 0. */
bool strict_once_in(struct strict_device *dev, uint32_t so_many, uint32_t count);

#endif
