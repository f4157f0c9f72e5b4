/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Where lwIP calls out to us.
 */
#ifndef SLUICE_NET_LWIP_HOOKS_H
#define SLUICE_NET_LWIP_HOOKS_H

#include <stdint.h>

#include "lwip/arch.h"

struct pbuf;
struct tcp_hdr;
struct tcp_pcb;

/* Bytes that one connection may keep out of order: nothing when reception runs short of buffers. */
uint32_t net_ooseq_limit_bytes(void);

/* Counts retransmissions; adds no option. Returns opts. */
uint32_t *tcp_gate_segment_out(struct pbuf *p, struct tcp_hdr *hdr, const struct tcp_pcb *pcb,
                               uint32_t *opts);

/*
 * ERR_OK: lwIP may have the segment; anything else: it is dropped. hdr in host order, p its
 * payload; options lie behind hdr, opt1_len of them, and the rest at opt2.
 */
signed char tcp_gate_segment_in(const struct tcp_pcb *pcb, struct tcp_hdr *hdr, uint16_t opt_len,
                                uint16_t opt1_len, uint8_t *opt2, const struct pbuf *p);

/* A guest that boots anew with the same address must not meet its earlier sequence numbers. */
#define LWIP_HOOK_TCP_ISN(local_ip, local_port, remote_ip, remote_port) LWIP_RAND()
#define LWIP_HOOK_TCP_INPACKET_PCB(pcb, hdr, optlen, opt1len, opt2, p)                             \
    tcp_gate_segment_in((pcb), (hdr), (optlen), (opt1len), (opt2), (p))
#define LWIP_HOOK_TCP_OUT_ADD_TCPOPTS(p, hdr, pcb, opts)                                           \
    tcp_gate_segment_out((p), (hdr), (pcb), (opts))

#endif
