/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Interrupt: a used buffer is seen by the driver although the driver halts whenever it may.
 *
 * Sections 2.7.7.1 and 2.7.14. Stands for
 *     drivers/virtqueue_split.c: vq_pending, vq_reclaim, vq_arm, vq_arm_unchecked, vq_disarm
 *     drivers/virtio_net_poll.c: virtio_net_arm, virtio_net_disarm, virtio_net_irq_pending
 *     net/net.c: idle
 *
 * The device polls the available ring here (kicks are in kick.pml), completes in any order and in batches
 * of any size, interrupts late, or without need, and stops at any time, for ever: no later completion
 * comes to the rescue. The driver gives every buffer back to the device.
 */
#define ENTRIES
#include "split.pml"
#include "device.pml"
#include "irq.pml"

inline reclaim_entry()
{
    assert(own[id] == USED); /* never completed twice, never unasked */
    own[id] = FREE;
    last_used = INC(last_used, 1)
}

/* Takes one used buffer and gives it back, or leaves the loop it stands in. */
inline vq_reclaim()
{
#ifdef KO_READ_ORDER
    /* The compiler moves the load of the entry above the load of the index. */
    id = mem[USED_RING + last_used % Q];
    if
    :: atomic { mem[USED_IDX] == last_used -> id = 0; break }
    :: atomic { mem[USED_IDX] != last_used -> reclaim_entry() }
    fi
#else
    if
    :: atomic { mem[USED_IDX] == last_used -> break }
    :: atomic { mem[USED_IDX] != last_used -> assert(SUB(mem[USED_IDX], last_used) <= Q) }
    fi;
    atomic { id = mem[USED_RING + last_used % Q]; reclaim_entry() }
#endif
}

inline vq_add()
{
    atomic { sb_drv!AVAIL_RING + avail % Q, id -> own[id] = QUEUED; id = 0; avail = INC(avail, 1) }
}

active proctype driver()
{
    byte id;
    d_step {
        do
        :: id < Q -> own[id] = QUEUED; mem[AVAIL_RING + id] = id; id++
        :: else -> break
        od;
        id = 0;
        avail = Q;
        mem[AVAIL_IDX] = Q
    };
poll:
    do
    :: vq_reclaim();
       vq_add();
       sb_drv!AVAIL_IDX, avail
    od;
    atomic { WATCH_EARLY; armed_after = 1 };
    vq_arm();
    IDLE_HALT();
    vq_disarm();
    goto poll
}

active proctype device()
{
    byte id, n_taken;
    do
    :: do
       :: atomic { mem[AVAIL_IDX] != taken -> assert(SUB(mem[AVAIL_IDX], taken) <= Q) };
          atomic {
              id = mem[AVAIL_RING + taken % Q];
              assert(own[id] == QUEUED);
              own[id] = TAKEN;
              id = 0;
              n_taken++;
              taken = INC(taken, 1)
          }
       :: n_taken > 0 -> break
       od;
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
          :: sb_dev!USED_IDX, used;
             if
             :: DEV_INTERRUPT()
             :: n_taken > 0
             fi
          :: n_taken > 0
          fi
       :: n_taken == 0 -> break
       od
    :: break
    od
}

ltl used_is_seen { []<>(own[0] != USED) && []<>(own[1] != USED) }
