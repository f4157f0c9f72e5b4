# SPDX-License-Identifier: BSD-2-Clause
"""What passed at the guest's device, from QEMU's dump: each frame with its net header, and what is wrong with it.

    guest --> [net header | frame] --> filter-dump --> tap        virtio 1.2, 5.1.6

A frame that the guest sent may leave its checksum to the device, and with it the cutting of a large one; all else
must be right in it. Nothing here looks at the guest's own counters.
"""

import struct

FILE_HEADER_BYTES, RECORD = 24, struct.Struct("=IIII")
NET_HEADER = struct.Struct("<BBHHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, num_buffers
NEEDS_CSUM, DATA_VALID = 1, 2
GSO_NONE, GSO_TCPV4 = 0, 1
ETH_BYTES, IP_BYTES, L4 = 14, 20, 34
IPV4, ARP = 0x0800, 0x0806
ICMP, TCP, UDP = 1, 6, 17
CSUM_OFFSET = {TCP: 16, UDP: 6}


def residue(data, more=0):
    """The Internet checksum's sum, in the range 0 to 65534, where 0 is "right" over data with its checksum in it."""
    return (int.from_bytes(data + b"\0" * (len(data) % 2), "big") + more) % 0xFFFF


class Frame:
    """One frame. net: (flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, num_buffers), None: no header."""

    def __init__(self, net, data, guest_mac):
        self.net, self.data = net, data
        self.sent = data[6:12] == guest_mac
        self.ethertype = struct.unpack_from("!H", data, 12)[0]
        self.protocol = data[23] if self.ethertype == IPV4 else None
        self.fragment = self.ethertype == IPV4 and struct.unpack_from("!H", data, 20)[0] & 0x3FFF != 0

    @property
    def flags(self):
        return self.net[0] if self.net else 0

    @property
    def gso_type(self):
        return self.net[1] if self.net else GSO_NONE

    @property
    def gso_size(self):
        return self.net[3] if self.net else 0

    @property
    def ip_bytes(self):
        return struct.unpack_from("!H", self.data, 16)[0]

    @property
    def transport(self):
        return self.data[L4 : ETH_BYTES + self.ip_bytes]

    @property
    def tcp_payload_bytes(self):
        return self.ip_bytes - IP_BYTES - (self.data[L4 + 12] >> 4) * 4

    def _pseudo(self, length):
        return residue(self.data[26:34], self.protocol + length)

    def transport_sum_is_right(self):
        if self.protocol == ICMP:
            return residue(self.transport) == 0
        if self.protocol == UDP and self.data[L4 + 6 : L4 + 8] == b"\0\0":
            return True  # none was made
        return residue(self.transport, self._pseudo(len(self.transport))) == 0

    def transport_sum_is_open(self):
        """Only the pseudo header has been summed: the device adds the rest."""
        field = self.transport[CSUM_OFFSET[self.protocol] :][:2]
        return residue(field) == self._pseudo(len(self.transport))

    def faults(self, mtu):
        """What is wrong with a frame that the guest sent, as words."""
        if self.ethertype == ARP:
            return ["ARP asks for something"] if self.net and any(self.net) else []
        if self.ethertype != IPV4:
            return [f"ethertype {self.ethertype:#x}"]
        wrong = []
        if self.ip_bytes != len(self.data) - ETH_BYTES:
            wrong.append(f"IP length {self.ip_bytes} in a frame of {len(self.data)}")
        if self.data[14] != 0x45 or residue(self.data[14:34]):
            wrong.append("the sum of the IP header")
        if len(self.data) > mtu + ETH_BYTES and self.gso_type == GSO_NONE:
            wrong.append(f"{len(self.data)} bytes and no segmentation")
        return wrong + self._transport_faults() + self._net_faults(mtu)

    def _transport_faults(self):
        if self.fragment:
            return []
        if self.protocol == UDP and struct.unpack_from("!H", self.data, L4 + 4)[0] != len(self.transport):
            return ["UDP's length"]
        right = self.transport_sum_is_open() if self.flags & NEEDS_CSUM else self.transport_sum_is_right()
        return [] if right else [f"the transport checksum, flags {self.flags}"]

    def _net_faults(self, mtu):
        """Each field of the net header is the one that the frame calls for; what is not used is 0."""
        if self.net is None:
            return []
        expected = [0] * 7
        if self.flags:
            if self.fragment or self.protocol not in CSUM_OFFSET:
                return ["a frame without a checksum of its own asks for one"]
            expected[0], expected[4], expected[5] = NEEDS_CSUM, L4, CSUM_OFFSET[self.protocol]
        if self.gso_type:
            headers = len(self.data) - self.tcp_payload_bytes if self.protocol == TCP else 0
            expected[1:4] = GSO_TCPV4, headers, self.gso_size
            if self.fragment or self.protocol != TCP or not self.flags:
                return ["segmentation of what is not TCP, or without a checksum"]
            if not 0 < self.gso_size < self.tcp_payload_bytes or headers + self.gso_size > mtu + ETH_BYTES:
                return [f"segments of {self.gso_size} of {self.tcp_payload_bytes} bytes"]
        return [] if list(self.net) == expected else [f"net header {self.net} instead of {tuple(expected)}"]


def frames(path, guest_mac, net_header=True):
    """All frames of a dump. net_header: whether QEMU's network backend has one (not: dgram, tap with vnet_hdr=off)."""
    with open(path, "rb") as file:
        data = file.read()
    mac = bytes.fromhex(guest_mac.replace(":", ""))
    found, at = [], FILE_HEADER_BYTES
    while at + RECORD.size <= len(data):
        _, _, stored, length = RECORD.unpack_from(data, at)
        assert stored == length, "cut"
        body = data[at + RECORD.size : at + RECORD.size + stored]
        at += RECORD.size + stored
        if len(body) < stored:
            break  # QEMU was ended while it wrote
        net = NET_HEADER.unpack_from(body) if net_header else None
        found.append(Frame(net, body[NET_HEADER.size if net_header else 0 :], mac))
    return found


def faults(found, mtu):
    """{words: how often} for the frames that the guest sent."""
    counts = {}
    for frame in found:
        if frame.sent:
            for word in frame.faults(mtu):
                counts[word] = counts.get(word, 0) + 1
    return counts


def datagrams(found):
    """UDP datagrams that the guest sent, put together: [whether the sum is right, payload]. Fragments come in order."""
    parts, whole = {}, []
    for frame in found:
        if not frame.sent or frame.protocol != UDP:
            continue
        number, offset = struct.unpack_from("!HH", frame.data, 18)
        part = parts.setdefault(number, b"")
        assert len(part) == (offset & 0x1FFF) * 8, "a fragment is missing"
        parts[number] = part + frame.transport
        if not offset & 0x2000:
            data = parts.pop(number)
            pseudo = residue(frame.data[26:34], UDP + len(data))
            open_sum = frame.flags & NEEDS_CSUM and residue(data[6:8]) == pseudo
            whole.append((bool(open_sum) or residue(data, pseudo) == 0, data[8:]))
    return whole
