# SPDX-License-Identifier: BSD-2-Clause
"""The other faces of field report A: what loses datagrams although, or because, the tap's send buffer is limited.

                                 tap0 --> br0 --> veth0 (the NIC) --> veth1
    receiver                       `-> br0's own address: the receiver's socket is what overflows
    nf-call                        bridge-nf-call-iptables=1 takes the frames out of the tap's account
    short-queue                    the NIC's queue holds fewer frames than the limit admits
    unlearned      spare0 (attached before veth0): a flooded frame is a clone for every port but the last
    capture        a promiscuous socket on br0: every frame that is forwarded is a clone
"""

import contextlib
import os
import socket
import struct
from dataclasses import dataclass

import shell
from lab import EXT_MAC

NF_CALL = "/proc/sys/net/bridge/bridge-nf-call-iptables"
SHORT_QUEUE_PKTS = 100
# The smallest socket buffer that the guest can ask of its receiver; the kernel doubles it.
SMALL_PEER_WINDOW = "4K"
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC, ETH_P_ALL = 263, 1, 1, 0x0003
CAPTURE_BUFFER_BYTES = 4096  # it is read by nobody: its copies are dropped at once


@contextlib.contextmanager
def _nothing(_lab):
    yield


@contextlib.contextmanager
def _nf_call(_lab):
    shell.write_proc(NF_CALL, 1)
    try:
        yield
    finally:
        shell.write_proc(NF_CALL, 0)


@contextlib.contextmanager
def _unlearned(_lab):
    shell.run("ip", "link", "set", "veth0", "nomaster")  # its forwarding entry goes with it
    shell.run("ip", "link", "add", "spare0", "type", "veth", "peer", "name", "spare1")
    for device in ("spare0", "veth0"):
        shell.run("ip", "link", "set", device, "master", "br0")
        shell.run("bridge", "link", "set", "dev", device, "learning", "off")
    for device in ("spare0", "spare1"):
        shell.run("ip", "link", "set", device, "up")
    try:
        yield
    finally:
        shell.run("ip", "link", "del", "spare0")
        shell.run("bridge", "fdb", "replace", EXT_MAC, "dev", "veth0", "master", "static")


@contextlib.contextmanager
def _capture(_lab):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CAPTURE_BUFFER_BYTES)
        tap.bind(("br0", ETH_P_ALL))
        index = socket.if_nametoindex("br0")
        tap.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b""))
        yield


@dataclass(frozen=True)
class Case:
    """One sub-case. place: the key of the row in which its loss appears."""

    name: str
    title: str
    apply: object
    place: str = "nic_dropped"
    queue_pkts: int | None = None
    to_host: bool = False
    guest: tuple = ()

    def missing(self):
        """Why this cannot be shown here, or None."""
        if self.name == "nf-call" and not os.path.exists(NF_CALL):
            return "this kernel has no bridge netfilter"
        return None

    def words(self, found):
        def one(row):
            limit = "no limit" if row["sndbuf_bytes"] is None else f"sndbuf {row['sndbuf_bytes']}"
            if "sent" not in row:
                return f"{limit}: not valid: {row['invalid_reason']}"
            where = "the receiver's socket" if self.place == "receiver_dropped" else "the NIC"
            return f"{limit}: {where} dropped {row[self.place]} of {row['sent']}"

        return "; ".join(map(one, found))

    def missed(self, found):
        """What a receiver's loss must look like; the others depend on the kernel and are only reported."""
        if self.name != "receiver":
            return None
        if not all(r["receiver_dropped"] for r in found):
            return "a receiver with a small socket buffer lost nothing"
        if any(r["frames"]["dropped"]["nic"] for r in found):
            return "a NIC dropped frames on the way to the host itself"
        return None


CASES = (
    Case("receiver", "guest to host, a receiver with a small socket buffer", _nothing, "receiver_dropped",
         to_host=True, guest=(f"peer_window={SMALL_PEER_WINDOW}",)),
    Case("nf-call", "bridge-nf-call-iptables=1", _nf_call),
    Case("short-queue", f"a NIC queue of only {SHORT_QUEUE_PKTS} packets", _nothing, queue_pkts=SHORT_QUEUE_PKTS),
    Case("unlearned", "a destination that the bridge has not learned, a third port attached before the NIC",
         _unlearned),
    Case("capture", "a promiscuous capture on the bridge", _capture),
)  # fmt: skip
