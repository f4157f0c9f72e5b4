/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The split virtqueue (virtio 1.2 section 2.7) for the models: words in memory, index arithmetic,
 * notification predicates, and the ghost state that the properties speak of.
 *
 * Real indices run modulo 65536; here modulo M. M >= 2 * Q holds for both (the largest ring has 32768
 * entries), and the event predicate depends on differences only (tests/unit/test_event_predicate.c
 * proves it), so a small M loses nothing but time. Every model runs for ever: the space holds any
 * number of index laps.
 */
#ifndef M
#define M 8
#endif
#ifndef Q
#define Q 2
#endif
#ifndef EVENT_IDX
#define EVENT_IDX 0
#endif

#define INC(x, n) (((x) + (n)) % M)
#define SUB(a, b) (((a) + M - (b)) % M)

/* Words of memory. DEV_EVT is used.flags or avail_event, DRV_EVT is avail.flags or used_event. */
#define AVAIL_IDX 0
#define USED_IDX 1
#define DEV_EVT 2
#define DRV_EVT 3
#define KICK 4
#define IRQ 5
#ifdef ENTRIES
#define AVAIL_RING 6
#define USED_RING (6 + Q)
#define MEM_WORDS (6 + 2 * Q)
#else
#define MEM_WORDS 6
#endif

#include "tso.pml"

/*
 * vq_need_event in drivers/virtqueue.h: was the entry at index event published in the step old -> new?
 * Knock-outs are two shipped faults: a comparison without wrap, and a test for equality that misses
 * an event inside a batch.
 */
#if defined(KO_PREDICATE_NO_WRAP)
#define NEED_EVENT(event, new, old) ((new) > (event))
#elif defined(KO_PREDICATE_EQUALITY)
#define NEED_EVENT(event, new, old) ((event) == SUB(new, 1))
#else
#define NEED_EVENT(event, new, old) (SUB(SUB(new, event), 1) < SUB(new, old))
#endif
#define DEVICE_NEED_EVENT(event, new, old) (SUB(SUB(new, event), 1) < SUB(new, old))

#if EVENT_IDX
#define KICK_WANTED(word, new, old) NEED_EVENT(word, new, old)
#define IRQ_WANTED(word, new, old) DEVICE_NEED_EVENT(word, new, old)
#else
#define KICK_WANTED(word, new, old) ((word) == 0)
#define IRQ_WANTED(word, new, old) ((word) == 0)
#endif

/* Barriers of the driver, each removable. FENCE is the guard in front of the load that it protects. */
#ifdef KO_KICK_BARRIER
#define KICK_FENCE true
#else
#define KICK_FENCE empty(sb_drv)
#endif
#ifdef KO_ARM_BARRIER
#define ARM_FENCE true
#else
#define ARM_FENCE empty(sb_drv)
#endif

/* Barriers of the device: part of the environment, removable to show what a faulty device costs. */
#ifdef DEV_KO_ENABLE_BARRIER
#define DEV_ENABLE_FENCE true
#else
#define DEV_ENABLE_FENCE empty(sb_dev)
#endif
#ifdef DEV_KO_IRQ_BARRIER
#define DEV_IRQ_FENCE true
#else
#define DEV_IRQ_FENCE empty(sb_dev)
#endif

/*
 * Ghost: who owns a descriptor id. With ENTRIES the rings carry ids, which come back in any order; without,
 * only indices are modelled: completion is in order and the indices tell who owns what.
 */
#define FREE 0   /* driver's                                     */
#define QUEUED 1 /* added by the driver, not yet taken by device */
#define TAKEN 2  /* device works on it                           */
#define USED 3   /* device has exposed it in the used ring       */
#ifdef ENTRIES
byte own[Q];
#endif

/* Private state of the driver (struct virtqueue). */
byte avail;     /* next index to fill              */
byte kicked;    /* avail at the last kick decision */
byte last_used; /* next used index to look at      */

/* Private state of the device. */
byte taken;     /* next avail index to take              */
byte used;      /* next used index to fill               */
byte signalled; /* used at the last interrupt decision   */
