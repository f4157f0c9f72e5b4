/* SPDX-License-Identifier: BSD-2-Clause
 *
 * lwIP as sluice uses it: no operating system, IPv4, Ethernet, raw callbacks. What is here is all
 * the configuration there is; lwIP itself is unpatched.
 */
#ifndef SLUICE_NET_LWIPOPTS_H
#define SLUICE_NET_LWIPOPTS_H

/* ---- one context, no threads ---- */
#define NO_SYS               1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_NETCONN         0
#define LWIP_SOCKET          0
#define LWIP_HOOK_FILENAME   "lwip_hooks.h"

/* ---- memory: size classes that grow on demand, all of it within a device's reach (netmem.h) ----
 */
#define MEM_ALIGNMENT        8
#define MEM_CUSTOM_ALLOCATOR 1
#define MEM_CUSTOM_MALLOC    netmem_alloc
#define MEM_CUSTOM_FREE      netmem_free
#define MEM_CUSTOM_CALLOC    netmem_calloc
#define MEMP_MEM_MALLOC      1

/* ---- buffers ---- */
/* Room in front of the Ethernet header: the net header of virtio (12), and for a tunnel that we end
 * ourselves outer Ethernet, IPv4, UDP and VXLAN headers (50). */
#define PBUF_LINK_ENCAPSULATION_HLEN 64
#define LWIP_PBUF_REF_T              u16_t /* a datagram of 64 KiB is referenced by each fragment */
/* Frames wait for an address by reference: nobody writes a payload again before its last reference
 * is gone. */
#define PBUF_NEEDS_COPY(p) 0
/* A segment of TCP that waited for its inner address has a second reference when the tunnel pushes
 * outer headers in front of it; TCP finds its own header again by where it lies. */
#define LWIP_IP_CHECK_PBUF_REF_COUNT_FOR_TX(p)
/* pbufs of reception are the driver's; the pool of lwIP is not used. */
#define PBUF_POOL_FREE_OOSEQ      0
#define LWIP_NETIF_TX_SINGLE_PBUF 0

/* ---- link ---- */
#define LWIP_IPV4                     1
#define LWIP_IPV6                     0
#define LWIP_ARP                      1
#define LWIP_ETHERNET                 1
#define ARP_QUEUEING                  1
#define ARP_QUEUE_LEN                 1024 /* what a window of TCP or a datagram's fragments send at once */
#define ARP_TABLE_SIZE                32
#define ETHARP_TABLE_MATCH_NETIF      1
#define ETHARP_SUPPORT_STATIC_ENTRIES 1
#define LWIP_NETIF_HWADDRHINT         1
#define LWIP_NETIF_LINK_CALLBACK      0
#define LWIP_NETIF_HOSTNAME           1
#define LWIP_NETIF_LOOPBACK           0
#define LWIP_HAVE_LOOPIF              0

/* ---- IP ---- */
#define IP_FORWARD    0
#define IP_FRAG       1
#define IP_REASSEMBLY 1
/* In pbufs, which are pieces of reception: two datagrams of 64 KiB in small pieces. More than that
 * pinned is copied by the glue before it gets here. */
#define IP_REASS_MAX_PBUFS  256
#define IP_REASS_MAXAGE     5
#define IP_OPTIONS_ALLOWED  1
#define IP_SOF_BROADCAST    0
#define SO_REUSE            1
#define LWIP_RAW            1
#define LWIP_ICMP           1
#define LWIP_BROADCAST_PING 0
#define LWIP_MULTICAST_PING 0
#define LWIP_IGMP           0
#define LWIP_DNS            0
#define LWIP_AUTOIP         0
#define LWIP_UDP            1
#define LWIP_UDPLITE        0

#define LWIP_DHCP                1
#define LWIP_ACD                 0
#define LWIP_DHCP_DOES_ACD_CHECK 0 /* it would add seconds to each boot */

/* ---- checksums: switched per frame by the glue (netif_virtio.c) ---- */
#define LWIP_CHECKSUM_CTRL_PER_NETIF 1
#define CHECKSUM_GEN_IP              1
#define CHECKSUM_GEN_UDP             1
#define CHECKSUM_GEN_TCP             1
#define CHECKSUM_GEN_ICMP            1
#define CHECKSUM_CHECK_IP            1
#define CHECKSUM_CHECK_UDP           1
#define CHECKSUM_CHECK_TCP           1
#define CHECKSUM_CHECK_ICMP          1
#define LWIP_CHECKSUM_ON_COPY        0

/* ---- TCP ---- */
#define LWIP_TCP 1
/* Highest segment size; what a connection uses follows from the MTU of its path's first link. */
#define TCP_MSS        8960
#define LWIP_WND_SCALE 1
#define TCP_RCV_SCALE  6
/* Upper bounds; sock_tcp.c starts a connection with less, and an application may ask for up to
 * this. */
#define TCP_WND           (65535u << TCP_RCV_SCALE)
#define TCP_SND_BUF       (8u * 1024 * 1024)
#define TCP_SND_QUEUELEN  32768 /* two pbufs a segment, down to an MSS of 536 */
#define TCP_SNDLOWAT      8192
#define TCP_SNDQUEUELOWAT 1024
/* A window update is worth a frame when a few segments of the usual size became free. */
#define TCP_WND_UPDATE_THRESHOLD   8192
#define TCP_OVERSIZE               1460
#define TCP_QUEUE_OOSEQ            1
#define TCP_OOSEQ_BYTES_LIMIT(pcb) net_ooseq_limit_bytes()
#define LWIP_TCP_SACK_OUT          1
#define LWIP_TCP_MAX_SACK_NUM      4
#define LWIP_TCP_TIMESTAMPS        0
#define LWIP_TCP_KEEPALIVE         1
#define TCP_LISTEN_BACKLOG         1
#define TCP_DEFAULT_LISTEN_BACKLOG 0xff
/* Timers five times as fine as lwIP's own, so that the shortest RTO is 0.3 s instead of 1.5 s. */
#define TCP_TMR_INTERVAL                   50
#define LWIP_TCP_RTO_TIME                  1000
#define TCP_MSL                            1000u /* a short TIME_WAIT: a peer is gone when its test is over */
#define TCP_MAXRTX                         12
#define TCP_SYNMAXRTX                      6
#define LWIP_RANDOMIZE_INITIAL_LOCAL_PORTS 1

/* ---- statistics ---- */
#define LWIP_STATS       1
#define LINK_STATS       1
#define MEMP_STATS       0
#define MEM_STATS        0
#define SYS_STATS        0
#define LWIP_STATS_LARGE 1

#endif
