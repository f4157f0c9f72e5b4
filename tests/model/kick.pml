/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kick: a queued buffer is taken by the device although the device sleeps whenever it may.
 *
 * Sections 2.7.13 (order of exposing) and 2.7.10 (suppression). Completions are polled here; interrupts are in
 * interrupt.pml. Stands for
 *     drivers/virtqueue_split.c: vq_add, vq_publish, vq_kick, device_wants_kick, vq_pending, vq_reclaim
 *
 * The device polls with notifications suppressed or not, takes any number, completes in any order, shows
 * completions in batches of any size, moves avail_event early or late, then enables notifications, fence,
 * looks again, and sleeps until a kick, or polls again by itself. The application stops at any time, for
 * ever: no later buffer comes to the rescue.
 */
#define ENTRIES
#include "split.pml"

byte n_inflight;

inline vq_add()
{
    atomic {
        if
        :: own[0] == FREE -> id = 0
        :: own[1] == FREE -> id = 1
        fi;
        own[id] = QUEUED;
        n_inflight++;
        assert(n_inflight <= Q)
    };
    atomic { sb_drv!AVAIL_RING + avail % Q, id -> id = 0; avail = INC(avail, 1) }
}

inline vq_publish()
{
    sb_drv!AVAIL_IDX, avail
}

/* The decision covers everything published since the last decision, not only the last batch. */
#ifdef KO_KICK_OLD
#define KICK_OLD old
#else
#define KICK_OLD kicked
#endif

inline vq_kick()
{
    if
    :: atomic { KICK_FENCE && KICK_WANTED(mem[DEV_EVT], avail, KICK_OLD) -> kicked = avail };
       sb_drv!KICK, 1
    :: atomic { KICK_FENCE && !KICK_WANTED(mem[DEV_EVT], avail, KICK_OLD) -> kicked = avail }
    fi
}

inline vq_reclaim()
{
    /* A load is never reordered with a later load, so reading the entry here is the earliest there is. */
    id = mem[USED_RING + last_used % Q];
    assert(own[id] == USED); /* never completed twice, never unasked */
    own[id] = FREE;
    n_inflight--;
    last_used = INC(last_used, 1);
    id = 0
}

active proctype driver()
{
    byte id;
#ifdef KO_KICK_OLD
    byte old;
#endif
end:
    do
    :: atomic { mem[USED_IDX] != last_used -> vq_reclaim() }
    :: n_inflight < Q ->
       do
       ::
#ifdef KO_KICK_OLD
          old = avail;
#endif
#ifdef KO_PUBLISH_ORDER
          /* The compiler moves the index store above the entry store. */
          sb_drv!AVAIL_IDX, INC(avail, 1);
          vq_add();
#else
          vq_add();
          do
          :: n_inflight < Q -> vq_add()
          :: true -> break
          od;
          vq_publish();
#endif
          if
          :: n_inflight < Q /* publish again before the kick */
          :: true -> break
          fi
       od;
       vq_kick()
    :: break
    od
}

#include "device.pml"

active proctype device()
{
    byte id, n_taken;
    do
    :: DEV_SUPPRESS();
       /* Take: any number of what is there, at least one if there is any. */
       do
       :: atomic { mem[AVAIL_IDX] != taken -> assert(SUB(mem[AVAIL_IDX], taken) <= Q) };
          atomic {
              id = mem[AVAIL_RING + taken % Q];
              assert(own[id] == QUEUED); /* the entry was visible before the index */
              own[id] = TAKEN;
              id = 0;
              n_taken++;
              taken = INC(taken, 1)
          };
#if EVENT_IDX
          if
          :: true
          :: sb_dev!DEV_EVT, taken
          fi
#else
          skip
#endif
       :: atomic { mem[AVAIL_IDX] == taken || n_taken > 0 -> break }
       od;
       /* Complete: in any order, the index after each or after the last. */
       do
       :: n_taken > 0 ->
          atomic {
              if
              :: own[0] == TAKEN -> id = 0
              :: own[1] == TAKEN -> id = 1
              fi
          };
          atomic {
              sb_dev!USED_RING + used % Q, id ->
              own[id] = USED;
              id = 0;
              n_taken--;
              used = INC(used, 1)
          };
          if
          :: sb_dev!USED_IDX, used
          :: n_taken > 0
          fi
       :: n_taken == 0 -> break
       od;
       DEV_SLEEP(taken)
    od
}

ltl queued_is_sent { []<>(own[0] != QUEUED) && []<>(own[1] != QUEUED) }
