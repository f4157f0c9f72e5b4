/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One-shot timers in a sorted list, and calls for the next pass.
 */
#include <stddef.h>

#include "net_internal.h"

static struct net_timer *pending;  /* by time */
static struct net_timer *deferred; /* for the next pass, in order */
static struct net_timer **deferred_tail = &deferred;
static struct net_timer *firing; /* due in this pass and not called yet */

static bool unlink_from(struct net_timer **list, struct net_timer *timer)
{
    for (struct net_timer **link = list; *link != NULL; link = &(*link)->next) {
        if (*link == timer) {
            *link = timer->next;
            return true;
        }
    }
    return false;
}

void net_timer_clear(struct net_timer *timer)
{
    if (!timer->active) {
        return;
    }
    timer->active = false;
    if (unlink_from(&pending, timer) || unlink_from(&firing, timer)) {
        return;
    }
    unlink_from(&deferred, timer);
    deferred_tail = &deferred;
    while (*deferred_tail != NULL) {
        deferred_tail = &(*deferred_tail)->next;
    }
}

void net_timer_set(struct net_timer *timer, uint64_t at_ns, void (*fire)(void *arg), void *arg)
{
    net_timer_clear(timer);
    timer->at_ns = at_ns;
    timer->fire = fire;
    timer->arg = arg;
    timer->active = true;
    timer->patient = false;
    struct net_timer **link = &pending;
    while (*link != NULL && (*link)->at_ns <= at_ns) {
        link = &(*link)->next;
    }
    timer->next = *link;
    *link = timer;
}

void net_timer_set_patient(struct net_timer *timer, uint64_t at_ns, void (*fire)(void *arg),
                           void *arg)
{
    net_timer_set(timer, at_ns, fire, arg);
    timer->patient = true;
    timer->stood_still_ns = net.stats.stood_still_ns;
}

void net_defer(struct net_timer *timer, void (*fn)(void *arg), void *arg)
{
    net_timer_clear(timer);
    timer->at_ns = 0;
    timer->fire = fn;
    timer->arg = arg;
    timer->active = true;
    timer->patient = false;
    timer->next = NULL;
    *deferred_tail = timer;
    deferred_tail = &timer->next;
}

bool net_timers_run(uint64_t now_ns)
{
    if (deferred == NULL && (pending == NULL || pending->at_ns > now_ns)) {
        return false;
    }
    /* What is due now is cut off first: a callback that sets itself again is for the next pass. */
    struct net_timer **tail = deferred_tail;
    firing = deferred;
    if (firing == NULL) {
        tail = &firing;
    }
    deferred = NULL;
    deferred_tail = &deferred;
    struct net_timer *due = pending;
    struct net_timer **link = &pending;
    while (*link != NULL && (*link)->at_ns <= now_ns) {
        link = &(*link)->next;
    }
    if (link != &pending) {
        pending = *link;
        *link = NULL;
        *tail = due;
    }
    while (firing != NULL) {
        struct net_timer *timer = firing;
        firing = timer->next;
        timer->active = false;
        uint64_t still_ns = net.stats.stood_still_ns - timer->stood_still_ns;
        if (timer->patient && still_ns != 0) {
            net_timer_set_patient(timer, timer->at_ns + still_ns, timer->fire, timer->arg);
            continue;
        }
        timer->fire(timer->arg);
    }
    return true;
}

uint64_t net_timers_next_ns(void)
{
    return deferred != NULL ? 0 : pending != NULL ? pending->at_ns : UINT64_MAX;
}

bool net_timers_deferred(void)
{
    return deferred != NULL;
}
