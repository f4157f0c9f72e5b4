/* SPDX-License-Identifier: BSD-2-Clause
 *
 * TCP across a stopped queue. lwIP sends by itself too, on acknowledgements and timers, past any
 * gate of an application; the glue refuses such segments while TX is stopped (netif_virtio.c).
 * Three things follow, each done outside of lwIP's input, where its lists are at rest:
 *
 * 1. a connection that was refused still acknowledges what it receives;
 * 2. its timers stand still: data that the device has not taken cannot have been lost, and a peer
 * that was not sent anything owes no answer;
 * 3. at the wake everything that was refused goes, in turns.
 */
#include <string.h>

#include "net_internal.h"
#include "sock_internal.h"

#include "lwip/priv/tcp_priv.h"
#include "lwip_hooks.h"

#define OPTION_END 0
#define OPTION_NOP 1

static unsigned
    first_to_wake; /* turns: else the first connection of the list would take the room each time */

void tcp_gate_acks(void)
{
    if (!net.tcp_refused) {
        return;
    }
    net.tcp_refused = false;
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb != NULL; pcb = pcb->next) {
        /* TF_ACK_DELAY too: the fast timer clears it after its own attempt, which is refused with
         * the data. */
        if (pcb->unsent != NULL && (pcb->flags & (TF_ACK_NOW | TF_ACK_DELAY)) != 0) {
            tcp_send_empty_ack(pcb);
        }
    }
}

/* The oldest unacknowledged segment is still referenced below: the device has not sent it. */
static bool at_device(const struct tcp_pcb *pcb)
{
    return pcb->unacked != NULL && pcb->unacked->p->ref != 1;
}

static bool data_left(const struct tcp_pcb *pcb)
{
    return (pcb->unacked != NULL && pcb->unacked->len != 0) ||
           (pcb->unsent != NULL && pcb->unsent->len != 0);
}

static bool free_acked_head(struct tcp_pcb *pcb)
{
    struct tcp_seg *head = pcb->unsent;
    if (head == NULL ||
        TCP_SEQ_GT(lwip_ntohl(head->tcphdr->seqno) + TCP_TCPLEN(head), pcb->lastack)) {
        return false;
    }
    pcb->unsent = head->next;
    pcb->snd_queuelen = (u16_t)(pcb->snd_queuelen - pbuf_clen(head->p));
    tcp_seg_free(head);
    return true;
}

/*
 * While a window does not hold the head of what is unsent, lwIP's timer cuts the head to it,
 * counted from the head's first byte. After a retransmission a part of the head may be acknowledged
 * already: what is cut off inside of that is neither sent nor freed, and the connection stands
 * still for good, with the timer on. Of a window above 64 KiB that takes 16 bits then, which may be
 * 0, and that it asserts against. So what is acknowledged goes, and the rest as far as the window
 * allows; a window that holds any segment ends the timer, whatever has left it on, and so does an
 * empty queue, which an acknowledgement of all of it leaves behind, and which the timer asserts
 * against too. Against data in flight it need not be kept: lwIP puts none there without ending the
 * timer.
 */
static void ease_persist(struct tcp_pcb *pcb)
{
    if (pcb->persist_backoff == 0) {
        return;
    }
    bool wide = pcb->snd_wnd > UINT16_MAX, freed = false;
    while (free_acked_head(pcb)) {
        freed = true;
    }
    if (wide || pcb->unsent == NULL) {
        pcb->persist_backoff = 0;
    }
    if (pcb->unsent == NULL) {
        pcb->unsent_oversize = 0;
    } else if (wide || freed) {
        tcp_output(pcb);
    }
}

void tcp_gate_hold_timers(void)
{
    bool stopped = virtio_net_tx_stopped(net.dev, NET_PAIR);
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb != NULL; pcb = pcb->next) {
        sock_tcp_note(pcb);
        ease_persist(pcb);
        if (pcb->rtime >= 0 && (at_device(pcb) || (stopped && pcb->unsent != NULL))) {
            pcb->rtime = 0;
            pcb->rttest = 0; /* a measured round trip would be that of the stop */
        }
        /* lwIP forgets a connection two MSL after both sides closed it, and ours is short, with
         * whatever it still has to send. The limit is meant for its FIN; data has that of
         * retransmissions. */
        if (pcb->state == LAST_ACK && data_left(pcb)) {
            pcb->tmr = tcp_ticks;
        }
        if (stopped) {
            pcb->persist_cnt = 0;
            pcb->keep_cnt_sent = 0;
            pcb->tmr = tcp_ticks;
        }
    }
}

static void wake_one(struct tcp_pcb *pcb)
{
    if (pcb->rtime > 0) {
        pcb->rtime = 0;
    }
    if ((pcb->flags & TF_NAGLEMEMERR) != 0) {
        pcb->rttest = 0; /* it would measure the stop */
    }
    tcp_output(pcb);
}

void tcp_gate_wake(void)
{
    net.tx_wake_pending = false;
    unsigned count = 0, i = 0;
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb != NULL; pcb = pcb->next) {
        count++;
    }
    if (count == 0) {
        return;
    }
    unsigned first = first_to_wake++ % count;
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb != NULL; pcb = pcb->next) {
        if (i++ >= first) {
            wake_one(pcb);
        }
    }
    i = 0;
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb != NULL && i < first; pcb = pcb->next, i++) {
        wake_one(pcb);
    }
}

uint32_t *tcp_gate_segment_out(struct pbuf *p, struct tcp_hdr *hdr, const struct tcp_pcb *pcb,
                               uint32_t *opts)
{
    /* snd_nxt moves when a segment was taken, so what lies before it went out already. */
    if (pcb != NULL && pcb->state >= ESTABLISHED && p->tot_len > TCPH_HDRLEN_BYTES(hdr) &&
        TCP_SEQ_LT(lwip_ntohl(hdr->seqno), pcb->snd_nxt) &&
        !virtio_net_tx_stopped(net.dev, NET_PAIR)) {
        struct sock *sock = pcb->callback_arg;
        net.stats.tcp_retransmits++;
        if (sock != NULL) {
            sock->retransmits++;
        }
    }
    return opts;
}

/* lwIP believes a segment size in any segment, and asserts that it never shrinks. Behind the SYN no
 * option that it knows means anything to us. */
static void hide_options(struct tcp_hdr *hdr, uint16_t opt_len, uint16_t opt1_len, uint8_t *opt2)
{
    if (opt_len == 0) {
        return;
    }
    memset(hdr + 1, OPTION_NOP, opt1_len);
    if (opt2 != NULL) {
        memset(opt2, OPTION_NOP, (size_t)(opt_len - opt1_len));
    }
}

/* lwIP reads the length byte of a last option that has none, behind the segment. */
static void end_options(struct tcp_hdr *hdr, uint16_t len)
{
    uint8_t *options = (uint8_t *)(hdr + 1);
    uint16_t at = 0;
    while (at < len && options[at] != OPTION_END) {
        if (options[at] == OPTION_NOP) {
            at++;
        } else if (at + 1 >= len || options[at + 1] < 2 || at + options[at + 1] > len) {
            memset(options + at, OPTION_END, (size_t)(len - at));
        } else {
            at = (uint16_t)(at + options[at + 1]);
        }
    }
}

/*
 * An early segment that ends behind our window would be queued whole and break an assertion of lwIP
 * when the hole before it is filled. No peer may send one, but none of them shall end us either.
 */
static bool reaches_too_far(const struct tcp_pcb *pcb, const struct tcp_hdr *hdr,
                            const struct pbuf *p)
{
    uint32_t end = hdr->seqno + p->tot_len + ((TCPH_FLAGS(hdr) & TCP_FIN) != 0 ? 1 : 0);
    return hdr->seqno != pcb->rcv_nxt && TCP_SEQ_GT(end, pcb->rcv_nxt + pcb->rcv_wnd);
}

signed char tcp_gate_segment_in(const struct tcp_pcb *pcb, struct tcp_hdr *hdr, uint16_t opt_len,
                                uint16_t opt1_len, uint8_t *opt2, const struct pbuf *p)
{
    if ((TCPH_FLAGS(hdr) & TCP_SYN) == 0) {
        hide_options(hdr, opt_len, opt1_len, opt2);
    } else if (opt2 != NULL) {
        return ERR_VAL; /* no buffer is so small that a SYN would have to be cut */
    } else {
        end_options(hdr, opt_len);
    }
    bool receiving = pcb->state >= ESTABLISHED && pcb->state <= FIN_WAIT_2;
    return receiving && reaches_too_far(pcb, hdr, p) ? ERR_VAL : ERR_OK;
}
