#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A DHCP server with one lease for one client, enough for a lab (RFC 2131, 2132).

    dhcpd.py DEVICE ADDRESS/PREFIX GATEWAY      prints one line when ready, then one a message
"""

import ipaddress
import socket
import struct
import sys

SERVER_PORT, CLIENT_PORT = 67, 68
BOOTREQUEST, BOOTREPLY = 1, 2
DISCOVER, OFFER, REQUEST, ACK, NAK = 1, 2, 3, 5, 6
OPT_MASK, OPT_ROUTER, OPT_WANTED, OPT_LEASE, OPT_TYPE, OPT_SERVER, OPT_END = 1, 3, 50, 51, 53, 54, 255
FIXED = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s4s")
MAGIC = bytes((99, 130, 83, 99))
LEASE_S = 3600
BROADCAST_FLAG = 0x8000


def options(data):
    found = {}
    i = 0
    while i < len(data) and data[i] != OPT_END:
        if data[i] == 0:
            i += 1
            continue
        if i + 2 > len(data) or i + 2 + data[i + 1] > len(data):
            break
        found[data[i]] = data[i + 2 : i + 2 + data[i + 1]]
        i += 2 + data[i + 1]
    return found


def answer(request, lease, server):
    """The reply to one request, or None; lease is an IPv4Interface."""
    if len(request) < FIXED.size:
        return None
    op, htype, hlen, _, xid, _, _, ciaddr, _, _, _, chaddr, _, _, magic = FIXED.unpack_from(request)
    if op != BOOTREQUEST or magic != MAGIC:
        return None
    asked = options(request[FIXED.size :])
    kind = asked.get(OPT_TYPE, b"\0")[0]
    wanted = asked.get(OPT_WANTED, ciaddr)
    if kind == DISCOVER:
        reply = OFFER
    elif kind == REQUEST:
        if asked.get(OPT_SERVER, server) != server:
            return None
        reply = ACK if wanted == lease.ip.packed else NAK
    else:
        return None
    given = b"\0" * 4 if reply == NAK else lease.ip.packed
    out = FIXED.pack(BOOTREPLY, htype, hlen, 0, xid, 0, BROADCAST_FLAG, b"\0" * 4, given, server, b"\0" * 4,
                     chaddr, b"", b"", MAGIC)  # fmt: skip
    out += bytes((OPT_TYPE, 1, reply, OPT_SERVER, 4)) + server
    if reply != NAK:
        out += bytes((OPT_LEASE, 4)) + struct.pack("!I", LEASE_S)
        out += bytes((OPT_MASK, 4)) + lease.netmask.packed + bytes((OPT_ROUTER, 4)) + server
    return out + bytes((OPT_END,))


def main():
    device, address, gateway = sys.argv[1:]
    lease = ipaddress.IPv4Interface(address)
    server = ipaddress.IPv4Address(gateway).packed
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    sock.bind(("", SERVER_PORT))
    print("ready", flush=True)
    while True:
        request, _ = sock.recvfrom(2048)
        print("message", flush=True)
        reply = answer(request, lease, server)
        if reply:
            sock.sendto(reply, ("255.255.255.255", CLIENT_PORT))


if __name__ == "__main__":
    main()
