# SPDX-License-Identifier: BSD-2-Clause
"""Overflows a cell of a VXLAN interface in bursts: the fault that field report C's verdict must be able to find.

    python3 burst.py NETNS DEVICE ADDRESS MAC OUR_ADDRESS OUR_MAC PORT VNI INNER_MAC INNER_SOURCE INNER_DESTINATION

NETNS, DEVICE, ADDRESS, MAC are the receiver's, who answers no ARP request for that address.

Each burst is some twenty datagrams of UDP_SEGMENT, which the receiver splits into 128 tunnel packets each, all in one
pass of its softirq: more than the netdev_max_backlog (1000 by default) that a cell holds, before the cell is polled.
They leave in one pass because they wait for the neighbour's hardware address: it is forgotten before each burst, and
the answer, given here in the receiver's name, arrives in a softirq and lets all of them go. Nothing of the
machine is changed; the traffic stays inside.
"""

import ctypes
import os
import socket
import struct
import subprocess
import sys

import shell

UDP_SEGMENT = 103
SEGMENTS, DATAGRAMS = 128, 22  # the queue of an unresolved neighbour holds 212,992 true bytes
DISCARD_PORT = 9
CLONE_NEWNET = 0x40000000
ETH_P_ARP, ARP_REPLY = 0x0806, 2


def tunnel_packet(vni, mac, source, destination):
    """An outer UDP payload: VXLAN, Ethernet, IPv4, UDP without payload."""
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0x4000, 64, 17, 0, socket.inet_aton(source),
                     socket.inet_aton(destination))  # fmt: skip
    check = sum(struct.unpack("!10H", ip))
    while check >> 16:
        check = (check & 0xFFFF) + (check >> 16)
    ip = ip[:10] + struct.pack("!H", ~check & 0xFFFF) + ip[12:]
    udp = struct.pack("!HHHH", DISCARD_PORT, DISCARD_PORT, 8, 0)
    ethernet = bytes.fromhex(mac.replace(":", "")) + bytes.fromhex("525400780299") + b"\x08\x00"
    return struct.pack("!II", 0x08000000, vni << 8) + ethernet + ip + udp


def mac_bytes(mac):
    return bytes.fromhex(mac.replace(":", ""))


def packet_socket(netns, device):
    """A raw socket on a device of another network namespace; this process stays in its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    own, other = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{netns}", os.O_RDONLY)
    try:
        if libc.setns(other, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {netns}")
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        raw.bind((device, 0))
        libc.setns(own, CLONE_NEWNET)
        return raw
    finally:
        os.close(own)
        os.close(other)


def arp_reply(address, mac, to_address, to_mac):
    head = mac_bytes(to_mac) + mac_bytes(mac) + struct.pack("!H", ETH_P_ARP)
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, ARP_REPLY) + mac_bytes(mac) + socket.inet_aton(address)
    return head + body + mac_bytes(to_mac) + socket.inet_aton(to_address)


def main(netns, device, address, mac, our_address, our_mac, port, vni, *inner):
    packet = tunnel_packet(int(vni), *inner)
    receiver, answer = packet_socket(netns, device), arp_reply(address, mac, our_address, our_mac)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(packet))
    sender.connect((address, int(port)))
    route = ["ip", "-o", "route", "get", address]
    words = subprocess.run(route, capture_output=True, text=True, check=True, env=shell.environment()).stdout.split()
    forget = ["ip", "neigh", "del", address, "dev", words[words.index("dev") + 1]]
    while True:
        subprocess.run(forget, check=False, stderr=subprocess.DEVNULL, env=shell.environment())
        for _ in range(DATAGRAMS):
            try:
                sender.send(packet * SEGMENTS)
            except OSError:  # an error of an earlier one, reported here
                continue
        receiver.send(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
