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
    """Datagrams (whole again, if they were fragmented) that IP handed to UDP."""
    return snmp["Ip"]["InDelivers"] - snmp["Tcp"]["InSegs"] - snmp["Icmp"]["InMsgs"]


def _udp_frames_in(snmp):
    """UDP frames that reached IP: fragments, and datagrams that were never in pieces."""
    return snmp["Ip"]["ReasmReqds"] + _udp_reached(snmp) - snmp["Ip"]["ReasmOKs"]


def _udp_frames_out(snmp):
    """UDP frames that IP sent. TCP is never in fragments here."""
    return snmp["Udp"]["OutDatagrams"] - snmp["Ip"]["FragOKs"] + snmp["Ip"]["FragCreates"]


def _guest_count(guest, queue, name):
    return sum(q.get(name, 0) for q in guest.get(queue, []))


def _guest_drops(guest, queue):
    """Frames that the guest's driver dropped, by reason. A re-check that found nothing is no drop."""
    return sum(sum(q.get("drops", {}).values()) for q in guest.get(queue, []))


def forward(delta, guest, sums, others, size_bytes, mtu, to):
    """guest -> receiver. sums: (sent, received) datagrams; others: datagrams that are not
    of the test: one hello a stream, DHCP."""
    ledger = Ledger(sent=sums[0], received=sums[1])
    snmp = delta["ext" if to == "ext" else "lab"]["snmp"]
    pieces = fragments(size_bytes, mtu)
    frames_sent = _guest_count(guest, "tx", "packets")
    tap_rx = _link(delta, "lab", "tap0", "rx", "packets")
    tap = _device_drops(delta, "lab", "tap0", "rx")
    nic, device, arrived = 0, 0, _link(delta, "lab", "br0", "rx", "packets")
    if to == "ext":
        qdisc = counters.qdisc(delta["lab"]["qdiscs"], "veth0")
        arrived = _link(delta, "ext", "veth1", "rx", "packets")
        nic = qdisc["drops"]
        device = tap_rx - arrived - nic - qdisc["qlen"]
    else:
        device = tap_rx - arrived
    ledger.frames = {
        "sent": frames_sent,
        "received": arrived,
        "dropped": {"tap": tap, "nic": nic, "device": device},
        "unaccounted": frames_sent - tap_rx - tap,
    }
    return _forward_datagrams(ledger, guest, snmp, others, pieces)


def _forward_datagrams(ledger, guest, snmp, others, pieces):
    drops = ledger.frames["dropped"]
    lost_frames = sum(drops.values())
    reached = _udp_reached(snmp) - others
    udp_out = guest.get("net", {}).get("udp_frames_out")
    if udp_out is None:
        udp_out = ledger.sent * pieces + others
    control_sent = ledger.frames["sent"] - udp_out
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
    ledger.nic_dropped, ledger.tap_dropped, ledger.device_dropped = test["nic"], test["tap"], test["device"]


def reverse(delta, guest, sums, size_bytes, mtu, to):
    """sender in the namespace `to` -> guest. sums: (sent, received) datagrams."""
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
    guest_dropped = _guest_drops(guest, "rx") + guest.get("net", {}).get("csum_bad", 0)
    # What the guest no longer took when it ended: the last segments of the control connection.
    untaken = entered - tap_tx - tap
    ledger.frames = {
        "sent": offered,
        "received": guest_rx,
        "dropped": {"nic": nic, "device": device, "tap": tap, "untaken": untaken, "guest": guest_dropped},
        "unaccounted": tap_tx - guest_rx - guest_dropped,
    }
    return _reverse_datagrams(ledger, guest, snmp, pieces, offered)


def _reverse_datagrams(ledger, guest, snmp, pieces, offered):
    drops = ledger.frames["dropped"]
    udp_frames_out = _udp_frames_out(snmp)
    udp_in = guest.get("net", {}).get("udp_frames_in")
    if udp_in is None:
        udp_in = udp_frames_out - drops["nic"] - drops["device"] - drops["tap"]
    control_sent = offered - udp_frames_out
    control_arrived = ledger.frames["received"] - udp_in
    lost_frames = drops["nic"] + drops["device"] + drops["tap"] + max(drops["untaken"], 0)
    ledger.control_dropped = min(max(control_sent - control_arrived, 0), lost_frames)
    places = {k: drops[k] for k in ("nic", "tap", "device")}
    places["tap"] += max(drops["untaken"], 0)
    places[max(places, key=places.get)] -= ledger.control_dropped
    ledger.nic_dropped, ledger.tap_dropped = places["nic"], places["tap"]
    ledger.device_dropped = places["device"]
    ledger.guest_dropped = drops["guest"]
    lost = ledger.sent - ledger.received
    udp_lost_frames = sum(places.values()) + ledger.guest_dropped
    if pieces > 1:
        ledger.incomplete = min(max(lost, 0), udp_lost_frames)
        ledger.unaccounted = lost - ledger.incomplete
    else:
        ledger.unaccounted = lost - udp_lost_frames
    return ledger
