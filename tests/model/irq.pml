/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The interrupt as the driver's core sees it: pending in the interrupt controller (mem[IRQ]) until it is
 * delivered; the handler sets a flag and returns; hlt ends with any interrupt.
 *
 * Instructions between cli and sti;hlt are one step: that is what "interrupts off" means on one core.
 * Stands for
 *     drivers/virtio_net_poll.c: virtio_net_arm, virtio_net_irq_pending
 *     net/net.c: idle
 */
bool irq_flag;
bool watching; /* interrupts count: from the clearing of irq_flag to the end of the halt */
bool halted;

active proctype isr()
{
end:
    do
    :: atomic { mem[IRQ] -> mem[IRQ] = 0; irq_flag = watching; halted = false }
#ifdef TIMER
    :: TIMER
#endif
    od
}

/* virtio_net_arm: interrupts count from here, before any is asked for. */
#define WATCH irq_flag = false; watching = true
#ifdef KO_CLEAR_LATE
#define WATCH_EARLY skip
#else
#define WATCH_EARLY WATCH
#endif

/* Interrupts off, look once more, enable and halt in one step (sti; hlt). */
inline IDLE_HALT()
{
#ifdef KO_CLEAR_LATE
    atomic { WATCH };
#endif
#if defined(KO_HALT_LOOK)
    atomic { halted = true };
#elif defined(KO_HALT_SPLIT)
    /* The look happens with interrupts on, or an instruction separates sti from hlt. */
    if
    :: irq_flag
    :: !irq_flag -> atomic { halted = true }
    fi;
#else
    if
    :: irq_flag
    :: atomic { !irq_flag -> halted = true }
    fi;
#endif
    atomic { !halted -> irq_flag = false; watching = false }
}

/*
 * Arming, one protocol for every queue: ask for an interrupt after armed_after more completions, full barrier,
 * look again; if they are there, withdraw the request and go on. Stands for
 *     drivers/virtqueue_split.c: vq_arm, vq_arm_unchecked, vq_disarm
 */
byte armed_after;

inline vq_arm_unchecked()
{
    sb_drv!DRV_EVT, (EVENT_IDX -> INC(last_used, armed_after - 1) : 0)
}

/* The look again: one step with the fence before it (see tso.pml). */
#ifdef KO_ARM_LOOK
#define ARM_PROGRESS (ARM_FENCE && false)
#define ARM_SETTLED (ARM_FENCE)
#else
#define ARM_PROGRESS (ARM_FENCE && SUB(mem[USED_IDX], last_used) >= armed_after)
#define ARM_SETTLED (ARM_FENCE && SUB(mem[USED_IDX], last_used) < armed_after)
#endif

/*
 * With the event index the request moves half the index space away. The driver skips this when nothing is
 * armed; here it is called only when something is.
 */
inline vq_disarm()
{
    sb_drv!DRV_EVT, (EVENT_IDX -> INC(last_used, M / 2) : 1)
}

/* The request and the look, as the poll loop does it before idling. */
inline vq_arm()
{
    vq_arm_unchecked();
    if
    :: atomic { ARM_PROGRESS -> armed_after = 0; irq_flag = false; watching = false };
       vq_disarm();
       goto poll
    :: atomic { ARM_SETTLED -> armed_after = 0 }
    fi
}
