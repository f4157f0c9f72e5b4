/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What every device process does around its work (sections 2.7.10.2 and 2.7.7.2), in the widest form
 * that the specification admits.
 *
 * A decision "poll without being kicked" is taken before sleeping: a device that wakes by itself later
 * is the same device, delayed. The decision to sleep is final, so weak fairness cannot wake it.
 */

/* May suppress notifications. With the event index that is leaving avail_event where it is. */
inline DEV_SUPPRESS()
{
#if EVENT_IDX
    skip
#else
    if
    :: sb_dev!DEV_EVT, 1
    :: true
    fi
#endif
}

#ifdef DEV_KO_ENABLE_RECHECK
#define DEV_LOOK(taken) (taken)
#else
#define DEV_LOOK(taken) mem[AVAIL_IDX]
#endif

/* Enable notifications, fence, look again, sleep until kicked. */
inline DEV_SLEEP(taken)
{
    if
    :: true /* poll again: a batch limit, a timer */
    :: sb_dev!DEV_EVT, (EVENT_IDX -> taken : 0);
       if
       :: DEV_ENABLE_FENCE && DEV_LOOK(taken) != taken
       :: DEV_ENABLE_FENCE && DEV_LOOK(taken) == taken;
          atomic { mem[KICK] -> mem[KICK] = 0 }
       fi
    fi
}

/* After the used index is exposed: fence, read the driver's wish, interrupt. Spurious ones are allowed. */
inline DEV_INTERRUPT()
{
    if
    :: atomic { DEV_IRQ_FENCE -> signalled = used };
       sb_dev!IRQ, 1
    :: atomic { DEV_IRQ_FENCE && !IRQ_WANTED(mem[DRV_EVT], used, signalled) -> signalled = used }
    fi
}
