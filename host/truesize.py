# SPDX-License-Identifier: BSD-2-Clause
"""What a frame really costs in the accounts of a tap's send buffer: its true size in host memory, by trying.

    tap0 --> br0 --> veth0, slowed to a standstill, whose queue holds the frames

Frames are written to the tap until its send buffer is full. The limit divided by their number is what each cost.
"""

import errno
import fcntl
import os
import struct

import shell
from accounts import ETHERNET_HEADER, IP_FRAGMENT_UNIT_BYTES, IP_HEADER, UDP_HEADER
from errors import EXIT_THRESHOLD, SluiceError
from lab import EXT_MAC, FORWARD_NIC, GUEST_MAC

TUNSETIFF, TUNSETSNDBUF, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x400454D4, 0x0002, 0x1000, 0x4000
PROBE_BYTES, PROBE_MAX_PKTS = 1 << 20, 8192
STANDSTILL, STANDSTILL_QUEUE_BYTES = "8bit", 64 << 20
PASSED_PKTS = 1  # the burst of one frame, without which the queue would take none
VNET_HEADER_BYTES = 10
NIC = FORWARD_NIC[1]
EXPERIMENTAL_ETHERTYPE = b"\x88\xb5"  # reserved for such: no protocol of the receiver takes it


def frame_sizes(size_bytes, mtu):
    """The lengths of the Ethernet frames of one datagram."""
    left, frames = size_bytes + UDP_HEADER, []
    if left + IP_HEADER <= mtu:
        return [ETHERNET_HEADER + IP_HEADER + left]
    per_frame = (mtu - IP_HEADER) // IP_FRAGMENT_UNIT_BYTES * IP_FRAGMENT_UNIT_BYTES
    while left > 0:
        frames.append(ETHERNET_HEADER + IP_HEADER + min(left, per_frame))
        left -= per_frame
    return frames


def mean_true_bytes(true, size_bytes, mtu):
    """The mean true size of a frame of such datagrams. true: {frame length: true size}."""
    frames = frame_sizes(size_bytes, mtu)
    return sum(true[n] for n in frames) / len(frames)


def measure(lab, lengths):
    """{frame length: true size in bytes}. The lab's NIC must be shaped; its queue is empty again afterwards."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"tap0", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
        return {length: _measure_one(tap, length) for length in sorted(lengths)}
    finally:
        os.close(tap)
        shell.run("tc", "qdisc", "del", "dev", NIC, "root", check=False)
        lab.shape(*FORWARD_NIC)


def _measure_one(tap, length):
    shell.run("tc", "qdisc", "del", "dev", NIC, "root", check=False)  # drops what the queue holds
    shell.run("tc", "qdisc", "add", "dev", NIC, "root", "tbf", "rate", STANDSTILL, "burst", length,
              "limit", STANDSTILL_QUEUE_BYTES)  # fmt: skip
    fcntl.ioctl(tap, TUNSETSNDBUF, struct.pack("i", PROBE_BYTES))
    addresses = bytes.fromhex((EXT_MAC + GUEST_MAC).replace(":", ""))
    data = bytes(VNET_HEADER_BYTES) + (addresses + EXPERIMENTAL_ETHERTYPE).ljust(length, b"\0")
    count = 0
    while count < PROBE_MAX_PKTS:
        try:
            os.write(tap, data)
            count += 1
        except BlockingIOError:
            break
        except OSError as e:
            if e.errno != errno.EIO:  # the tap is not up yet
                raise
    if not 0 < count < PROBE_MAX_PKTS:
        raise SluiceError(EXIT_THRESHOLD, f"a send buffer of {PROBE_BYTES} bytes admits {count} frames of {length} "
                          "bytes and more: this host's taps do not limit, or its frames escape the account")  # fmt: skip
    return round(PROBE_BYTES / (count - PASSED_PKTS))
