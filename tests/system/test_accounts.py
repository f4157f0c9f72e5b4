# SPDX-License-Identifier: BSD-2-Clause
"""The two identities on made-up counters: each loss is found at its place, and a lie of either side is found out."""

import accounts
import pytest

SIZE, MTU, HELLOS = 1024, 1500, 1


def link(rx=0, tx=0, rx_dropped=0, tx_dropped=0):
    return {"rx": {"packets": rx, "dropped": rx_dropped, "errors": 0}, "tx": {"packets": tx, "dropped": tx_dropped, "errors": 0}}


def snmp(udp_in=0, tcp_in=0, icmp_in=0, errors=0, no_ports=0, read=0, ignored=0, out=0, sndbuf_errors=0, reasm=(0, 0)):
    return {
        "Ip": {"InDelivers": udp_in + tcp_in + icmp_in + ignored, "InDiscards": 0, "ReasmReqds": reasm[0],
               "ReasmOKs": reasm[1], "FragOKs": 0, "FragFails": 0, "FragCreates": 0},
        "Tcp": {"InSegs": tcp_in},
        "Icmp": {"InMsgs": icmp_in},
        "Udp": {"InDatagrams": read, "InErrors": errors, "NoPorts": no_ports, "IgnoredMulti": ignored,
                "OutDatagrams": out, "SndbufErrors": sndbuf_errors},
    }  # fmt: skip


def qdisc(device, packets, drops):
    return {"dev": device, "kind": "htb", "root": True, "handle": "1:", "packets": packets, "drops": drops, "qlen": 0}


class Forward:
    """guest --1000 datagrams, 1 hello, 20 control frames--> tap --> NIC --> receiver, with losses on the way."""

    def __init__(self, sent=1000, control=20, nic=0, nic_control=0, tap=0, veth=0, errors=0, unread=0, late=0, lost=0):
        self.sent, self.control, self.late = sent, control, late
        frames = sent + HELLOS + control + late
        self.tap_rx = frames - tap - lost
        arrived = self.tap_rx - nic - nic_control - veth
        udp = sent + HELLOS - nic - tap - veth - lost
        self.received = udp - HELLOS - errors - unread
        self.delta = {
            "lab": {"links": {"tap0": link(rx=self.tap_rx, rx_dropped=tap), "veth0": link(), "br0": link()},
                    "qdiscs": [qdisc("veth0", arrived + veth, nic + nic_control)], "snmp": snmp()},
            "ext": {"links": {"veth1": link(rx=arrived)}, "qdiscs": [],
                    "snmp": snmp(udp_in=udp, tcp_in=arrived - udp, errors=errors, read=self.received + HELLOS)},
        }  # fmt: skip

    def ledger(self, claimed=None, pauses=0):
        frames = self.sent + HELLOS + self.control
        guest = {"tx": [{"packets": frames}], "net": {"udp_frames_out": self.sent + HELLOS}}
        sums = (self.sent if claimed is None else claimed, self.received)
        return accounts.forward(self.delta, guest, sums, HELLOS, SIZE, MTU, "ext", pauses)


@pytest.mark.parametrize(
    "losses, place",
    [
        ({}, {}),
        ({"nic": 600}, {"nic_dropped": 600}),
        ({"nic": 600, "nic_control": 3}, {"nic_dropped": 600, "control_dropped": 3}),
        ({"nic": 600, "nic_control": 3, "late": 2}, {"nic_dropped": 600, "control_dropped": 3}),
        ({"late": 1}, {}),
        ({"tap": 7}, {"tap_dropped": 7}),
        ({"veth": 5}, {"device_dropped": 5}),
        ({"errors": 9}, {"receiver_dropped": 9}),
        ({"unread": 4}, {"tail_unread": 4}),
        ({"nic": 100, "tap": 10, "errors": 5, "unread": 1},
         {"nic_dropped": 100, "tap_dropped": 10, "receiver_dropped": 5, "tail_unread": 1}),
    ],
)  # fmt: skip
def test_each_loss_at_its_place(losses, place):
    ledger = vars(Forward(**losses).ledger())
    for key in ("nic_dropped", "tap_dropped", "device_dropped", "receiver_dropped", "no_port", "guest_dropped",
                "tail_unread", "incomplete", "control_dropped", "unaccounted"):  # fmt: skip
        assert ledger[key] == place.get(key, 0), (key, ledger)
    assert ledger["frames"]["unaccounted"] == 0 and ledger["frames"]["after_report"] == losses.get("late", 0)


def test_a_frame_that_nobody_dropped():
    """Lost between driver and tap without a counter: both identities miss it."""
    ledger = Forward(lost=1).ledger()
    assert ledger.unaccounted == 1 and ledger.frames["unaccounted"] == 1


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("others", [{}, {"nic": 100}, {"errors": 4}])
def test_the_frame_that_a_pause_costs(late, others):
    """QEMU drops one when it stops the guest, also when as many passed after the guest's report as to hide it."""
    ledger = Forward(lost=1, late=late, **others).ledger(pauses=1)
    assert ledger.frames["dropped"]["qemu"] == ledger.device_dropped == 1, ledger
    assert ledger.unaccounted == ledger.frames["unaccounted"] == 0 and ledger.frames["after_report"] == late, ledger
    assert Forward(late=late, **others).ledger(pauses=1).device_dropped == 0


@pytest.mark.parametrize("losses", [{}, {"nic": 600, "nic_control": 2}])
def test_a_guest_that_counts_a_datagram_it_never_sent(losses):
    """Its frames balance, its datagrams do not: whatever the NIC dropped, the guest's own layer is named."""
    ledger = Forward(**losses).ledger(claimed=1001)
    assert ledger.frames["unaccounted"] == 0
    assert ledger.guest_dropped + ledger.unaccounted == 1


def test_more_late_frames_than_a_close_has():
    ledger = Forward(late=9).ledger()
    assert ledger.frames["unaccounted"] == -9


def test_fragments():
    assert [accounts.fragments(size, 1500) for size in (16, 1472, 1473, 2952, 2953, 65507)] == [1, 1, 2, 2, 3, 45]


@pytest.mark.parametrize("pauses", [0, 1])
def test_reverse_a_frame_that_a_pause_costs(pauses):
    """It was read from the tap, and the guest never saw it: without a pause nobody can have dropped it."""
    sent, control = 1000, 12
    passed = sent + HELLOS + control
    delta = {
        "ext": {"links": {"veth1": link(tx=passed)}, "qdiscs": [], "snmp": snmp(out=sent + HELLOS)},
        "lab": {"links": {"veth0": link(rx=passed), "tap0": link(tx=passed)}, "qdiscs": [], "snmp": snmp()},
    }  # fmt: skip
    guest = {"rx": [{"packets": passed - 1}], "net": {"udp_frames_in": sent + HELLOS - 1}}
    ledger = accounts.reverse(delta, guest, (sent, sent - 1), SIZE, MTU, "ext", pauses)
    assert ledger.device_dropped == ledger.frames["dropped"]["qemu"] == pauses
    assert ledger.unaccounted == 1 - pauses


def test_reverse_the_senders_queue_reports_itself():
    """server --> its NIC (drops 300 datagrams and 2 segments) --> tap (drops 4) --> guest (drops 1)."""
    sent, control = 1000, 12
    passed = sent + HELLOS - 300 + control - 2
    delta = {
        "ext": {"links": {"veth1": link(tx=passed)}, "qdiscs": [qdisc("veth1", passed, 302)],
                "snmp": snmp(out=sent + HELLOS - 300, sndbuf_errors=300)},
        "lab": {"links": {"veth0": link(rx=passed), "tap0": link(tx=passed - 4, tx_dropped=4)}, "qdiscs": [], "snmp": snmp()},
    }  # fmt: skip
    guest = {"rx": [{"packets": passed - 5, "drops": {"short": 1}}], "net": {"udp_frames_in": sent + HELLOS - 305}}
    ledger = accounts.reverse(delta, guest, (sent, sent - 305), SIZE, MTU, "ext")
    assert (ledger.nic_dropped, ledger.tap_dropped, ledger.guest_dropped) == (300, 4, 1)
    assert ledger.control_dropped == 2 and ledger.unaccounted == 0 and ledger.frames["unaccounted"] == 0
