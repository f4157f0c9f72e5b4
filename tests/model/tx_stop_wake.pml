/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * TX stop and wake: a stopped queue is woken, a queued frame is sent, a sent frame is reclaimed although
 * nothing more is sent; and after a positive room check adding never fails.
 *
 *    app -> gate (not stopped) -> add -> free < STOP: stop, publish, kick, arm, fence, look again
 *    poll loop: reclaim -> end of batch, stopped and free >= WAKE: wake -> app -> flush -> arm -> halt
 *
 * Stands for
 *     drivers/virtio_net_tx.c: virtio_net_tx_add, tx_stop_if_short, tx_stop, tx_arm, completions_to_wait_for
 *     drivers/virtio_net_tx.c: virtio_net_tx_flush, virtio_net_tx_reclaim, tx_wake_if_due
 *     drivers/virtio_net_poll.c: virtio_net_arm, virtio_net_disarm, virtio_net_irq_pending
 *     drivers/virtqueue_split.c: vq_add, vq_publish, vq_kick, vq_reclaim, vq_arm, vq_disarm
 *     net/net.c: net_poll, idle
 *
 * Both sides sleep here: the device needs kicks, the driver needs interrupts. The gate admits a unit of
 * one to UNIT frames (the fragments of a datagram); once admitted, the whole unit is added. The
 * application pauses at any time, for ever.
 */
#ifndef Q
#define Q 4
#endif
#define UNIT (Q / 2)
#define STOP UNIT /* fewer free than a unit */
#ifdef KO_WAKE_ON_ONE
#define WAKE 1
#else
#define WAKE (UNIT + 1) /* hysteresis of one */
#endif

#include "split.pml"
#include "device.pml"
#include "irq.pml"

#define N_FREE (Q - SUB(avail, last_used))

bool stopped;

/*
 * n: all that is in flight, or half of it when a socket waits for credit. Never beyond what is in flight;
 * without the event index the next one. Part of an atomic step.
 */
#define IN_FLIGHT SUB(avail, last_used)
inline completions_to_wait_for(n)
{
#if EVENT_IDX
    armed_after = n;
#ifdef KO_ARM_BEYOND
    armed_after = IN_FLIGHT + 1
#else
    if
    :: stopped && WAKE - N_FREE < armed_after -> armed_after = WAKE - N_FREE
    :: else
    fi
#endif
#else
    armed_after = 1
#endif
}

inline virtio_net_tx_flush()
{
    if
    :: avail != kicked ->
       sb_drv!AVAIL_IDX, avail;
       if
       :: atomic { KICK_FENCE && KICK_WANTED(mem[DEV_EVT], avail, kicked) -> kicked = avail };
          sb_drv!KICK, 1
       :: atomic { KICK_FENCE && !KICK_WANTED(mem[DEV_EVT], avail, kicked) -> kicked = avail }
       fi
    :: else
    fi
}

/* Takes back all that is used; wakes once at the end of the batch. Part of an atomic step. */
inline virtio_net_tx_reclaim()
{
    do
    :: mem[USED_IDX] != last_used ->
       assert(last_used != avail); /* never completed twice, never unasked */
       last_used = INC(last_used, 1)
    :: else -> break
    od;
    if
    :: stopped && N_FREE >= WAKE -> stopped = false
    :: else
    fi
}

/* Progress found here is left to the poll loop, which has not slept. */
inline tx_stop()
{
#ifndef KO_FLUSH
    virtio_net_tx_flush();
#endif
#ifndef KO_STOP_ARM
    atomic { true -> completions_to_wait_for((IN_FLIGHT + 1) / 2) };
    vq_arm_unchecked();
    if
    :: atomic { ARM_PROGRESS -> armed_after = 0 }; vq_disarm()
    :: atomic { ARM_SETTLED -> armed_after = 0 }
    fi
#endif
}

/* One pass of the poll loop up to the flush, or up to the add that left too little room. */
inline send_units()
{
    do
    :: unit == 0 && !stopped ->
       assert(N_FREE >= UNIT); /* the gate's promise */
#if Q > 2
       if
       :: unit = 1
       :: unit = UNIT
       fi
#else
       unit = UNIT
#endif
    :: unit > 0 ->
       assert(N_FREE > 0);
       avail = INC(avail, 1);
       unit--;
       if
       :: N_FREE < STOP && !stopped -> stopped = true; break
       :: else
       fi
    :: unit == 0 -> break
    od
}

active proctype driver()
{
    byte unit;
    bool was_stopped;
poll:
    atomic { true -> virtio_net_tx_reclaim() };
    /* The application and the stack above have no step that the device can see. */
    atomic { true -> was_stopped = stopped; send_units() };
    if
    :: atomic { stopped && !was_stopped -> was_stopped = false };
       tx_stop();
#if Q > 2
       atomic { true -> send_units() } /* the rest of the unit */
#else
       skip
#endif
    :: atomic { stopped == was_stopped -> was_stopped = false }
    fi;
#ifdef KO_FLUSH
    if
    :: stopped
    :: !stopped -> virtio_net_tx_flush()
    fi;
#else
    virtio_net_tx_flush();
#endif
    if
    :: IN_FLIGHT == 0 ->
end:
       if
       :: goto poll
       fi
    :: IN_FLIGHT > 0
    fi;
    atomic {
        WATCH_EARLY;
        if
        :: completions_to_wait_for(IN_FLIGHT)
        :: completions_to_wait_for((IN_FLIGHT + 1) / 2)
        fi
    };
#if defined(KO_IDLE_ARM)
    if
    :: stopped /* tx_stop has armed already */
    :: !stopped -> vq_arm()
    fi;
#elif defined(KO_ARM_STOPPED_ONLY)
    if
    :: stopped -> vq_arm()
    :: !stopped
    fi;
#else
    vq_arm();
#endif
    IDLE_HALT();
    vq_disarm();
    goto poll
}

/*
 * What the driver can see of a batch is the new used index, so a batch is one step: take any number, expose
 * them. Smaller batches and later looks at the available index are the same device polling again.
 */
active proctype device()
{
    do
    :: DEV_SUPPRESS();
       if
       :: atomic {
              mem[AVAIL_IDX] != used ->
              assert(SUB(mem[AVAIL_IDX], used) <= Q);
              do
              :: mem[AVAIL_IDX] != used -> used = INC(used, 1)
              :: used != signalled -> break
              od
          };
          sb_dev!USED_IDX, used;
          DEV_INTERRUPT()
       :: mem[AVAIL_IDX] == used
       fi;
       DEV_SLEEP(used)
    od
}

/*
 * A batch moves `used` by 1..Q of M >= 2 * Q, so if it moves for ever it is for ever again in either half; if
 * something is queued and it does not move, it stays in one.
 */
ltl stop_wake {
    []<>!stopped &&
    []<>(avail == used || used < M / 2) && []<>(avail == used || used >= M / 2) &&
    []<>(mem[USED_IDX] == last_used)
}
