# SPDX-License-Identifier: BSD-2-Clause
"""Watches how full a device's queue gets: asks the kernel by rtnetlink many times a second, without a process."""

import socket
import struct
import threading

RTM_GETQDISC, NLM_F_REQUEST, NLM_F_DUMP, NLMSG_DONE = 38, 0x001, 0x300, 3
NLMSG_HEADER_BYTES, TCMSG_BYTES = 16, 20
TCA_STATS2, TCA_STATS_QUEUE = 7, 3
NLA_TYPE_MASK = 0x3FFF
PERIOD_S = 0.005


def _attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & NLA_TYPE_MASK, data[4:length]
        data = data[(length + 3) & ~3 :]


class QueueWatch:
    """`with QueueWatch("veth0") as watch: ...; watch.max_pkts`: the largest backlog of the device's root qdisc, in
    the network namespace of this process."""

    def __init__(self, device):
        self._index = socket.if_nametoindex(device)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.max_pkts = 0

    def __enter__(self):
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()
        self._socket.close()

    def _watch(self):
        while not self._end.wait(PERIOD_S):
            self.max_pkts = max(self.max_pkts, self._queued_pkts())

    def _queued_pkts(self):
        flags = NLM_F_REQUEST | NLM_F_DUMP
        request = struct.pack("=IHHII", NLMSG_HEADER_BYTES + TCMSG_BYTES, RTM_GETQDISC, flags, 1, 0)
        self._socket.send(request + struct.pack("=BBHiIII", 0, 0, 0, self._index, 0, 0, 0))
        largest = 0
        while True:
            data = self._socket.recv(65536)
            while len(data) >= NLMSG_HEADER_BYTES:
                length, kind = struct.unpack_from("=IH", data)
                if kind == NLMSG_DONE:
                    return largest
                largest = max(largest, self._of_device(data[NLMSG_HEADER_BYTES:length]))
                data = data[(length + 3) & ~3 :]

    def _of_device(self, message):
        if len(message) < TCMSG_BYTES or struct.unpack_from("=i", message, 4)[0] != self._index:
            return 0
        for kind, stats in _attributes(message[TCMSG_BYTES:]):
            if kind == TCA_STATS2:
                for inner, queue in _attributes(stats):
                    if inner == TCA_STATS_QUEUE:
                        return struct.unpack_from("=I", queue)[0]
        return 0
