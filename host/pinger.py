# SPDX-License-Identifier: BSD-2-Clause
"""Sends small ICMP echo requests to an address, many a second, so that a guest's bulk transfer is mixed with small
frames of its answers.

    python3 pinger.py ADDRESS PER_SECOND     ends at SIGTERM with {"asked": N, "answered": N}
"""

import json
import select
import signal
import socket
import struct
import sys
import time

PAYLOAD_BYTES = 32
ECHO_REQUEST, ECHO_REPLY, IDENTIFIER = 8, 0, 0x5C1C
IP_HEADER_BYTES = 20


def request(number):
    body = struct.pack("!HH", IDENTIFIER, number & 0xFFFF) + bytes(PAYLOAD_BYTES)
    words = struct.unpack(f"!{(len(body) + 4) // 2}H", struct.pack("!BBH", ECHO_REQUEST, 0, 0) + body)
    check = sum(words)
    while check >> 16:
        check = (check & 0xFFFF) + (check >> 16)
    return struct.pack("!BBH", ECHO_REQUEST, 0, ~check & 0xFFFF) + body


def main(address, per_second):
    end = []
    signal.signal(signal.SIGTERM, lambda *_: end.append(True))
    icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    icmp.setblocking(False)
    asked = answered = 0
    due = time.monotonic()
    while not end:
        now = time.monotonic()
        if now >= due:
            due = max(due + 1.0 / per_second, now - 0.1)
            try:
                icmp.sendto(request(asked), (address, 0))
                asked += 1
            except OSError:
                pass  # nobody there yet, or no room: the next one is due soon
        if select.select([icmp], [], [], max(0.0, due - time.monotonic()))[0]:
            data = icmp.recv(2048)
            answered += data[IP_HEADER_BYTES] == ECHO_REPLY
    print(json.dumps({"asked": asked, "answered": answered}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
