/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * RX refill: a packet that waits at the device gets a buffer, and what was received is seen, although
 * the stack may hold every buffer there is for as long as it likes.
 *
 *    pool --refill, publish, kick--> ring --device--> used --poll--> held by the stack --return--> pool
 *
 * Stands for
 *     drivers/virtio_net_rx.c: virtio_net_rx_poll, rx_refill, rx_kick, virtio_net_rx_return
 *     drivers/virtio_net_poll.c: virtio_net_arm, virtio_net_disarm, virtio_net_irq_pending
 *     drivers/virtqueue_split.c: vq_add, vq_publish, vq_kick, vq_reclaim, vq_arm, vq_disarm
 *     net/net.c: net_poll, idle
 *
 * The pool holds exactly one ring of buffers here, so the stack can empty it. A stack that holds buffers
 * has a timer or a reader that gives them back at some time; nothing else wakes the halted driver but an
 * interrupt. The network falls silent at any time, for ever.
 */
#include "split.pml"
#include "device.pml"
/* A reader comes back in the end, with a timer of its own. */
#define TIMER atomic { halted && held > 0 -> held--; halted = false }
byte held; /* buffers with the stack */
#include "irq.pml"

bool packet; /* ghost: one waits at the device */

#define POSTED SUB(avail, last_used)
#define POOL (Q - POSTED - held)

inline rx_refill()
{
    if
    :: d_step { POOL > 0 -> avail = INC(avail, POOL) };
       assert(POSTED <= Q);
       sb_drv!AVAIL_IDX, avail;
#ifndef KO_REFILL_KICK
       if
       :: atomic { KICK_FENCE && KICK_WANTED(mem[DEV_EVT], avail, kicked) -> kicked = avail };
          sb_drv!KICK, 1
       :: atomic { KICK_FENCE && !KICK_WANTED(mem[DEV_EVT], avail, kicked) -> kicked = avail }
       fi
#endif
    :: POOL == 0
    fi
}

active proctype driver()
{
    bool work;
poll:
    atomic {
        work = mem[USED_IDX] != last_used;
        do
        :: mem[USED_IDX] != last_used ->
           assert(last_used != avail); /* never completed twice, never unasked */
           last_used = INC(last_used, 1);
           held++
        :: else -> break
        od;
        do
        :: held > 0 -> held--
        :: break
        od
    };
#ifdef KO_REFILL_ON_RETURN
    if
    :: atomic { work -> work = false }; rx_refill()
    :: !work
    fi;
#else
    work = false;
    rx_refill();
#endif
    if
    :: POSTED > 0 ->
       atomic { WATCH_EARLY; armed_after = 1 };
       vq_arm();
       IDLE_HALT();
       vq_disarm()
    :: atomic { POSTED == 0 -> WATCH_EARLY }; /* nothing can come, so nothing is armed */
       IDLE_HALT()
    fi;
    goto poll
}

active proctype device()
{
    do
    :: packet = true;
       DEV_SUPPRESS();
       if
       :: atomic {
              mem[AVAIL_IDX] != used ->
              assert(SUB(mem[AVAIL_IDX], used) <= Q);
              packet = false;
              do
              :: mem[AVAIL_IDX] != used -> used = INC(used, 1)
              :: used != signalled -> break
              od
          };
          sb_dev!USED_IDX, used;
          DEV_INTERRUPT()
       :: mem[AVAIL_IDX] == used -> DEV_SLEEP(used)
       fi
    :: !packet -> break
    od
}

ltl rx { []<>!packet && []<>(mem[USED_IDX] == last_used) }
