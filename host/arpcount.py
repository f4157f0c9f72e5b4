# SPDX-License-Identifier: BSD-2-Clause
"""Counts the ARP frames that a namespace receives, by device, for accounts that IP's own counters cannot close.

    python3 arpcount.py     prints one JSON object {device: frames} for each line that it reads

A packet socket for this one protocol sees no other frame and makes no clone of one.
"""

import json
import select
import socket
import sys

ETH_P_ARP = 0x0806


def main():
    arp = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ARP))
    arp.setblocking(False)
    seen = {}
    print("{}", flush=True)
    while True:
        ready = select.select([arp, sys.stdin], [], [])[0]
        if arp in ready:
            try:
                while True:
                    device = arp.recvfrom(64)[1][0]
                    seen[device] = seen.get(device, 0) + 1
            except BlockingIOError:
                pass
        if sys.stdin in ready and arp not in ready:
            if not sys.stdin.readline():
                return
            print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
