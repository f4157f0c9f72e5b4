/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The rules that every trace keeps. Written from the specification and from docs/tx-path.md, with
 * nothing of the driver but the event predicate.
 */
#include "tests/device/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/virtio_transport.h"
#include "drivers/virtqueue.h"

#define EVENT_IDX (1ull << VIRTIO_F_EVENT_IDX)

/* One queue, as far as the events have told. */
struct side {
    uint16_t size, n_free; /* descriptors */
    uint16_t added, published, known, seen;
    uint32_t unkicked;
    bool armed;
    uint16_t armed_after;              /* of the arming whose outcome is not known yet, 0: none */
    uint16_t descs[VQ_MAX_SIZE_DESCS]; /* of the chain in flight with this head, 0: none */
    uint16_t index[VQ_MAX_SIZE_DESCS]; /* where it stands in the available ring */
};

struct judge {
    struct trace *trace;
    struct side side[2];
    uint16_t set_aside;
    bool stopped;
    bool stop_due; /* the next event of the transmit queue is the stop */
    bool arm_due;  /* and behind that come publish, kick and this */
    bool correct;  /* the policy promises the rules of stop and wake */
};

#define RULE(holds, ...)                                                                           \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            return trace_fail(judge->trace, event, __VA_ARGS__);                                   \
        }                                                                                          \
    } while (0)

static uint16_t room(const struct judge *judge)
{
    uint16_t n_free = judge->side[1].n_free;
    return n_free > judge->set_aside ? (uint16_t)(n_free - judge->set_aside) : 0;
}

static bool add(struct judge *judge, struct side *side, const struct ring_event *event)
{
    RULE(event->a < side->size && side->descs[event->a] == 0, "the head is in flight already");
    RULE(event->c != 0 && event->c <= side->n_free, "%u descriptors are free", side->n_free);
    side->descs[event->a] = event->c;
    side->index[event->a] = side->added++;
    side->n_free = vq_wrap(side->n_free - event->c);
    return true;
}

static bool reclaim(struct judge *judge, struct side *side, const struct ring_event *event)
{
    RULE(side->seen != side->known, "the used index shows no entry more");
    RULE(event->a < side->size && side->descs[event->a] != 0, "the head is not in flight");
    RULE(vq_wrap(side->published - 1 - side->index[event->a]) < 0x8000, "it was not published");
    side->n_free = vq_wrap(side->n_free + side->descs[event->a]);
    side->descs[event->a] = 0;
    side->seen++;
    return true;
}

static bool kick(struct judge *judge, struct side *side, const struct ring_event *event)
{
    uint32_t n = event->kind == RING_KICK ? side->unkicked : vq_wrap(side->published - side->seen);
    uint16_t before = vq_wrap(side->published - (int)n);

    RULE(event->b == n, "%" PRIu32 " chains are in question", n);
    if ((judge->trace->features & EVENT_IDX) != 0 && n != 0) {
        bool wanted = n > UINT16_MAX || vq_need_event(event->c, side->published, before);
        RULE(wanted == event->a, "the event lies %s the %" PRIu32 " new ones before %u",
             wanted ? "among" : "outside", n, side->published);
    }
    side->unkicked = event->kind == RING_KICK ? 0 : side->unkicked;
    return true;
}

static bool arm(struct judge *judge, struct side *side, const struct ring_event *event)
{
    uint16_t out = vq_wrap(side->published - side->seen);

    RULE(side->added == side->published && side->unkicked == 0, "a wait for what is not out yet");
    RULE(event->a != 0 && event->a <= out, "%u chains are out", out);
    RULE(event->c == vq_wrap(side->seen + event->a - 1), "the event for that is another");
    RULE(event->queue == 0 || !judge->stopped || room(judge) < judge->trace->tx_wake,
         "a wait although the wake is due");
    side->armed_after = event->a;
    side->armed = true;
    return true;
}

/* What the look after arming made of it shows in the queue's next event but for the used index. */
static bool armed_outcome(struct judge *judge, struct side *side, const struct ring_event *event)
{
    bool there = vq_wrap(side->known - side->seen) >= side->armed_after;

    if (side->armed_after == 0 || event->kind == RING_USED_IDX || !judge->correct) {
        return true;
    }
    side->armed_after = 0;
    RULE(!there || event->kind == RING_DISARM, "a wait for what is there already");
    /* The receive queue's is also withdrawn for what the transmit queue found. */
    RULE(there || event->kind != RING_DISARM || event->queue == 0, "withdrawn without a reason");
    return true;
}

static bool stop_or_wake(struct judge *judge, const struct ring_event *event)
{
    const struct trace *trace = judge->trace;
    bool stops = event->kind == RING_STOP;

    RULE(judge->stopped != stops, "it is %s", stops ? "stopped" : "awake");
    RULE(event->a == room(judge), "%u are free", room(judge));
    RULE(!judge->correct || (stops ? event->a < trace->tx_stop : event->a >= trace->tx_wake),
         "stops below %u, wakes at %u", trace->tx_stop, trace->tx_wake);
    judge->stopped = stops;
    judge->arm_due = stops && judge->correct && judge->side[1].added != judge->side[1].seen;
    return true;
}

static void reset(struct judge *judge, struct side *side, const struct ring_event *event)
{
    *side = (struct side){.size = event->a, .n_free = event->a, .armed = true};
    judge->stop_due = judge->arm_due = false;
}

static bool publish(struct judge *judge, struct side *side, const struct ring_event *event)
{
    RULE(event->a == side->added && side->added != side->published, "added up to %u", side->added);
    side->unkicked += vq_wrap(side->added - side->published);
    side->published = side->added;
    return true;
}

static bool used(struct judge *judge, struct side *side, const struct ring_event *event)
{
    uint16_t n = vq_wrap(event->a - side->known);

    RULE(n != 0 && n <= vq_wrap(side->published - side->known), "from %u, with %u published",
         side->known, side->published);
    side->known = event->a;
    return true;
}

static bool disarm(struct judge *judge, struct side *side, const struct ring_event *event)
{
    RULE(side->armed, "it is not armed");
    RULE(event->a == vq_wrap(side->known - side->seen), "%u are there",
         vq_wrap(side->known - side->seen));
    side->armed = false;
    return true;
}

static bool set_aside(struct judge *judge, const struct ring_event *event)
{
    bool more = event->kind == RING_CALL_RESERVE;

    RULE(more || event->a <= judge->set_aside, "%u were set aside", judge->set_aside);
    judge->set_aside = (uint16_t)(judge->set_aside + (more ? event->a : -event->a));
    return true;
}

/* What the last events of the transmit queue made due. */
static bool what_is_due(struct judge *judge, const struct ring_event *event)
{
    RULE(!judge->stop_due || event->kind == RING_STOP, "%u are free and it does not stop",
         room(judge));
    RULE(!judge->arm_due || strchr("PKE", event->kind) != NULL, "stopped, and not armed");
    judge->stop_due = false;
    judge->arm_due = judge->arm_due && event->kind != RING_ARM;
    return true;
}

static bool apply(struct judge *judge, struct side *side, const struct ring_event *event)
{
    switch ((enum ring_event_kind)event->kind) {
    case RING_INIT:
        reset(judge, side, event);
        return true;
    case RING_CALL_RESERVE:
    case RING_CALL_UNRESERVE:
        return set_aside(judge, event);
    case RING_ADD:
        return add(judge, side, event);
    case RING_PUBLISH:
        return publish(judge, side, event);
    case RING_KICK:
    case RING_REKICK:
        return kick(judge, side, event);
    case RING_KICK_UNTOLD:
        RULE(event->a != 0 && event->a == vq_wrap(side->published - side->seen),
             "%u chains are out", vq_wrap(side->published - side->seen));
        return true;
    case RING_USED_IDX:
        return used(judge, side, event);
    case RING_RECLAIM:
        return reclaim(judge, side, event);
    case RING_ARM:
        return arm(judge, side, event);
    case RING_DISARM:
        return disarm(judge, side, event);
    case RING_STOP:
    case RING_WAKE:
        return stop_or_wake(judge, event);
    case RING_CALL_POLL:
    case RING_CALL_ARM:
    case RING_CALL_DISARM:
    case RING_CALL_SAFETY:
    case RING_CALL_RETURN:
    case RING_NUM_BUFFERS:
        return true;
    }
    return false;
}

static bool judge_event(struct judge *judge, const struct ring_event *event)
{
    struct side *side = &judge->side[event->queue];
    bool tx = event->queue == 1;

    if ((tx && !what_is_due(judge, event)) || !armed_outcome(judge, side, event) ||
        !apply(judge, side, event)) {
        return false;
    }
    /* Whatever takes the last room that the gate counts on stops the queue then and there. */
    judge->stop_due = tx && (event->kind == RING_ADD || event->kind == RING_CALL_RESERVE) &&
                      judge->correct && !judge->stopped && room(judge) < judge->trace->tx_stop;
    return true;
}

/* A run that was recorded whole comes to rest. */
static bool judge_end(const struct judge *judge)
{
    const struct side *tx = &judge->side[1];

    if (judge->trace->lost != 0) {
        return true;
    }
    if (judge->stopped || judge->stop_due || tx->n_free != tx->size || tx->unkicked != 0 ||
        judge->set_aside != 0) {
        return trace_fail(judge->trace, NULL,
                          "the end is no rest: %s, %u of %u free, %" PRIu32 " without a kick",
                          judge->stopped ? "stopped" : "awake", tx->n_free, tx->size, tx->unkicked);
    }
    return true;
}

bool trace_check(struct trace *trace)
{
    struct judge *judge = calloc(1, sizeof(*judge));
    bool ok = judge != NULL;

    if (ok) {
        judge->trace = trace;
        judge->correct = trace->policy == VIRTIO_NET_POLICY_THRESHOLD;
    }
    for (uint32_t i = 0; ok && i < trace->n; i++) {
        ok = judge_event(judge, &trace->events[i]);
    }
    ok = ok && judge_end(judge);
    free(judge);
    return ok;
}
