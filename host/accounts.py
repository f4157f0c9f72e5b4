# SPDX-License-Identifier: BSD-2-Clause
"""Where each datagram went: two identities from counters that were kept by different parties.

frames      sent by the guest's driver = arrived at the receiver's device + dropped, by place
datagrams   sent by the guest's socket = counted by the receiver + dropped, by place

Counters of a qdisc or a device count frames of every kind, so what they dropped of the control connection is told
apart by the number of UDP frames that the guest (`net.udp_frames_out`) and the receiver's IP layer saw.
"""

from dataclasses import dataclass, field

import counters

ETHERNET_HEADER, IP_HEADER, UDP_HEADER = 14, 20, 8
IP_FRAGMENT_UNIT_BYTES = 8
# Frames that the guest may exchange between its report and its end: the close of the control connection.
AFTER_REPORT_FRAMES = 8


def fragments(size_bytes, mtu):
    """Frames that one datagram of size_bytes costs."""
    payload = size_bytes + UDP_HEADER
    if payload + IP_HEADER <= mtu:
        return 1
    per_frame = (mtu - IP_HEADER) // IP_FRAGMENT_UNIT_BYTES * IP_FRAGMENT_UNIT_BYTES
    return -(-payload // per_frame)


@dataclass
class Ledger:
    """One direction of a datagram test. All counts are differences over the test."""

    sent: int = 0
    received: int = 0
    nic_dropped: int = 0
    tap_dropped: int = 0
    device_dropped: int = 0
    receiver_dropped: int = 0
    no_port: int = 0
    guest_dropped: int = 0
    tail_unread: int = 0
    incomplete: int = 0
    unaccounted: int = 0
    control_dropped: int = 0
    frames: dict = field(default_factory=dict)


def _link(delta, netns, device, way, name):
    return delta[netns]["links"].get(device, {}).get(way, {}).get(name, 0)


def _device_drops(delta, netns, device, way):
    return _link(delta, netns, device, way, "dropped") + _link(delta, netns, device, way, "errors")


def _udp_reached(snmp):
    """Datagrams (whole again, if they were fragmented) that IP handed to UDP and that were meant for this host.
    Not counted: broadcasts that nobody listens to, such as a DHCP server's own, looped back."""
    ignored = snmp["Udp"].get("IgnoredMulti", 0)
    return snmp["Ip"]["InDelivers"] - snmp["Tcp"]["InSegs"] - snmp["Icmp"]["InMsgs"] - ignored


def _udp_frames_in(snmp):
    """UDP frames that reached IP: fragments, and datagrams that were never in pieces."""
    return snmp["Ip"]["ReasmReqds"] + _udp_reached(snmp) - snmp["Ip"]["ReasmOKs"]


def _udp_frames_offered(snmp):
    """UDP frames that IP gave to the sender's own device, which may drop them. A datagram that one of its frames
    was dropped of counts as SndbufErrors and not as OutDatagrams, and its later fragments are never sent."""
    ip, udp = snmp["Ip"], snmp["Udp"]
    whole = udp["OutDatagrams"] - ip["FragOKs"] + udp["SndbufErrors"] - ip["FragFails"]
    return whole + ip["FragCreates"] + ip["FragFails"]


def _after_report(frames, late):
    """Sets apart what is explained by frames that passed after the guest had counted."""
    frames["after_report"] = late if 0 < late <= AFTER_REPORT_FRAMES else 0
    return frames


def _guest_count(guest, queue, name):
    return sum(q.get(name, 0) for q in guest.get(queue, []))


def _guest_drops(guest, queue):
    """Frames that the guest's driver dropped, by reason. A re-check that found nothing is no drop."""
    return sum(sum(q.get("drops", {}).values()) for q in guest.get(queue, []))


def _udp_out(ledger, guest, pieces, others):
    """UDP frames that the guest handed to its driver."""
    return guest.get("net", {}).get("udp_frames_out", ledger.sent * pieces + others)


def forward(delta, guest, sums, others, size_bytes, mtu, to, pauses=0):
    """guest -> receiver. sums: (sent, received) datagrams; others: datagrams that are not
    of the test: one hello a stream, DHCP; pauses: how often QEMU stopped the guest, which makes it drop the frame that
    waits for the tap."""
    ledger = Ledger(sent=sums[0], received=sums[1])
    snmp = delta["ext" if to == "ext" else "lab"]["snmp"]
    pieces = fragments(size_bytes, mtu)
    frames_sent = _guest_count(guest, "tx", "packets")
    tap_rx = _link(delta, "lab", "tap0", "rx", "packets")
    tap = _device_drops(delta, "lab", "tap0", "rx")
    nic, device, arrived = 0, 0, _link(delta, "lab", "br0", "rx", "packets") - _link(delta, "lab", "veth0", "rx", "packets")
    if to == "ext":
        qdisc = counters.qdisc(delta["lab"]["qdiscs"], "veth0")
        arrived = _link(delta, "ext", "veth1", "rx", "packets")
        nic = qdisc["drops"]
        device = tap_rx - arrived - nic - qdisc["qlen"]
    else:
        device = tap_rx - arrived
    # A frame that passed after the guest had counted hides one that QEMU dropped, but not from the datagrams.
    udp_sent = min(ledger.sent * pieces + others, _udp_out(ledger, guest, pieces, others))
    udp_missing = udp_sent - _udp_frames_in(snmp) - tap - nic - device
    qemu = min(max(frames_sent - tap_rx - tap, udp_missing, 0), pauses)
    late = tap_rx + tap + qemu - frames_sent
    ledger.frames = _after_report({"sent": frames_sent, "received": arrived,
                                   "dropped": {"qemu": qemu, "tap": tap, "nic": nic, "device": device}}, late)  # fmt: skip
    ledger.frames["unaccounted"] = ledger.frames["after_report"] - late
    return _forward_datagrams(ledger, guest, snmp, others, pieces)


def _forward_datagrams(ledger, guest, snmp, others, pieces):
    drops = ledger.frames["dropped"]
    lost_frames = sum(drops.values())
    reached = _udp_reached(snmp) - others
    udp_out = _udp_out(ledger, guest, pieces, others)
    control_sent = ledger.frames["sent"] + ledger.frames["after_report"] - udp_out
    control_arrived = ledger.frames["received"] - _udp_frames_in(snmp)
    ledger.control_dropped = min(max(control_sent - control_arrived, 0), lost_frames)
    ledger.guest_dropped = max(ledger.sent * pieces + others - udp_out, 0)
    ledger.receiver_dropped = snmp["Udp"]["InErrors"] + snmp["Ip"]["InDiscards"]
    ledger.no_port = snmp["Udp"]["NoPorts"]
    ledger.tail_unread = reached - ledger.received - snmp["Udp"]["InErrors"] - ledger.no_port
    _share(ledger, drops)
    lost = ledger.sent - reached - snmp["Ip"]["InDiscards"]
    if pieces > 1:
        ledger.incomplete = max(lost, 0)
        ledger.unaccounted = lost - ledger.incomplete
        if ledger.incomplete > lost_frames - ledger.control_dropped + ledger.guest_dropped:
            ledger.unaccounted += ledger.incomplete  # datagrams are missing, and no frame is
            ledger.incomplete = 0
    else:
        ledger.unaccounted = lost - (lost_frames - ledger.control_dropped) - ledger.guest_dropped
    return ledger


def _share(ledger, drops):
    """The drops of test datagrams by place: control frames are taken out where most was lost."""
    test = dict(drops)
    test[max(test, key=test.get)] -= ledger.control_dropped
    ledger.nic_dropped, ledger.tap_dropped = test["nic"], test["tap"]
    ledger.device_dropped = test["device"] + test["qemu"]


def reverse(delta, guest, sums, size_bytes, mtu, to, pauses=0):
    """sender in the namespace `to` -> guest. sums: (sent, received) datagrams; pauses: as above."""
    ledger = Ledger(sent=sums[0], received=sums[1])
    snmp = delta["ext" if to == "ext" else "lab"]["snmp"]
    pieces = fragments(size_bytes, mtu)
    qdisc = counters.qdisc(delta["ext"]["qdiscs"], "veth1")
    tap_qdisc = counters.qdisc(delta["lab"]["qdiscs"], "tap0")
    tap_tx = _link(delta, "lab", "tap0", "tx", "packets")
    tap = _device_drops(delta, "lab", "tap0", "tx") + tap_qdisc["drops"]
    if to == "ext":
        nic = qdisc["drops"]
        left_nic = _link(delta, "ext", "veth1", "tx", "packets")
        entered = _link(delta, "lab", "veth0", "rx", "packets")
        offered = left_nic + nic + qdisc["qlen"] + _device_drops(delta, "ext", "veth1", "tx")
        device = offered - nic - qdisc["qlen"] - entered
    else:
        nic, device = 0, 0
        entered = offered = _link(delta, "lab", "br0", "tx", "packets")
    guest_rx = _guest_count(guest, "rx", "packets")
    net = guest.get("net", {})
    guest_dropped = _guest_drops(guest, "rx") + net.get("csum_bad", 0) + net.get("rx_no_pbuf", 0)
    # What the guest no longer took when it ended: the last segments of the control connection.
    untaken = entered - tap_tx - tap
    dropped = {"qemu": 0, "nic": nic, "device": device, "tap": tap, "untaken": untaken, "guest": guest_dropped}
    ledger.frames = {"sent": offered, "received": guest_rx, "dropped": dropped}
    _reverse_datagrams(ledger, guest, snmp, pieces, pauses)
    late = tap_tx - guest_rx - _guest_drops(guest, "rx") - dropped["qemu"]
    _after_report(ledger.frames, late)
    ledger.frames["unaccounted"] = late - ledger.frames["after_report"]
    return ledger


def _reverse_datagrams(ledger, guest, snmp, pieces, pauses):
    """The sender's own queue tells the kernel what it dropped (SndbufErrors); further places count all frames."""
    drops = ledger.frames["dropped"]
    udp_offered = _udp_frames_offered(snmp)
    udp_in = guest.get("net", {}).get("udp_frames_in", udp_offered - sum(drops.values()))
    at_nic = min(snmp["Udp"]["SndbufErrors"] if drops["nic"] else 0, drops["nic"])
    later = max(udp_offered - at_nic - udp_in - drops["guest"], 0)
    ledger.nic_dropped = at_nic
    ledger.tap_dropped = min(later, drops["tap"] + max(drops["untaken"], 0))
    at_devices = min(later - ledger.tap_dropped, max(drops["device"], 0))
    drops["qemu"] = min(later - ledger.tap_dropped - at_devices, pauses)
    ledger.device_dropped = at_devices + drops["qemu"]
    ledger.guest_dropped = drops["guest"]
    lost_frames = ledger.nic_dropped + ledger.tap_dropped + ledger.device_dropped + ledger.guest_dropped
    ledger.control_dropped = max(sum(drops.values()) - lost_frames, 0)
    lost = ledger.sent - ledger.received
    if pieces > 1:
        ledger.incomplete = min(max(lost, 0), lost_frames)
        ledger.unaccounted = lost - ledger.incomplete
    else:
        ledger.unaccounted = lost - lost_frames
