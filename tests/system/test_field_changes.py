# SPDX-License-Identifier: BSD-2-Clause
"""Faults that others reported of machines that change (links that flap, devices that are removed, come or are many),
tried on the booted guest. Numbers are those of docs/field-cases.md.
"""

import pytest
from conftest import LINK_BPS, best_bps
from field_guest import inside

# ---- a link that flaps, a network that moves ----

FLAP = """
    with Lab(LabSpec(dhcp=True)) as lab:
        heard = Announcements()
        out = {}
        lab.start_server()
        test = Test(protocol=sys.argv[3], time_s=5, sndbuf_bytes=1 << 20)
        with VM(spec(*guest_words(test, lab), sndbuf=1 << 20)) as vm:
            def up():
                vm.set_link(True)
                out["blast"] = heard.after(time.monotonic() - 0.05)
            result = vm.wait(None, 40, [(1.2, lambda: vm.set_link(False)), (2.7, up)])
            out |= {"code": result.code, "reason": result.reason, "report": result.report, "lines": result.lines}
        with wire.Served(spec("ip=dhcp")) as guest:
            out["before"] = wire.alive()
            lab.dhcp.messages()
            guest.vm.set_link(False)
            time.sleep(0.5)
            out["down"] = wire.ping(1, within_s=0.2)
            since = time.monotonic()
            guest.vm.set_link(True)
            out["announced"] = heard.after(since)
            out["alive"], out["lease_asked"] = wire.alive(), lab.dhcp.messages()
            # QEMU speaks for a guest that did not take GUEST_ANNOUNCE.
            since = time.monotonic()
            guest.vm.qmp.command("announce-self", initial=50, max=100, rounds=2, step=50)
            out["by_host"] = heard.after(since, 0x8035)
            # The tap goes to another bridge, and comes back.
            shell.run("ip", "link", "add", "br1", "up", "type", "bridge", "forward_delay", 0)
            shell.run("ip", "link", "set", "tap0", "master", "br1")
            time.sleep(0.5)
            shell.run("ip", "link", "set", "tap0", "master", "br0")
            out["moved"] = wire.alive()
            out["said"] = guest.lines
        answer(out)
"""


def test_link_flaps(sluice, image):
    """Field case 50: the link goes away for 1.5 s in mid-blast and comes back: what could not be sent is counted,
    nothing locks up, the address is announced within a second, and the lease is asked for again. An announcement that
    the monitor asks for is made by QEMU, since GUEST_ANNOUNCE is not taken; a tap on another bridge is survived."""
    got = inside(sluice, image, FLAP, "udp")
    assert got["code"] == 0, got
    guest, intervals = got["report"]["sluice"], got["report"]["intervals"]
    assert guest["link_losses"] == 1 and guest["ledger"]["ok"] and got["blast"], got
    assert guest["tx"][0]["stops"] == guest["tx"][0]["wakes"] and guest["tx"][0]["unexpected_full"] == 0, guest
    assert guest["net"]["tx_link_down"] > 0 or guest["udp"]["blocked_ns"] > 1e9, guest
    assert best_bps([i["sum"] for i in intervals], start_s=2.9) > 0.5 * LINK_BPS, intervals
    assert got["before"] and got["down"] == 0 and got["announced"] and got["alive"], got
    assert got["lease_asked"] > 0 and got["by_host"] and got["moved"], got
    assert sum("link down" in line for line in got["said"]) == sum("link up" in line for line in got["said"]) == 1


# ---- a device that is removed ----

REMOVED = """
    protocol, rounds = sys.argv[3], int(sys.argv[4])
    out = []
    with Lab(LabSpec()) as lab:
        for _ in range(rounds):
            lab.start_server()
            test = Test(protocol=protocol, time_s=20)
            words = guest_words(test, lab) if protocol != "serve" else (STATIC,)
            with VM(spec(*words, machine="pc", more=Qtest.words, silence_s=12.0)) as vm:
                at = []
                def remove():
                    at.append(time.monotonic())
                    eject(vm, "net0", 2)
                result = vm.wait(None, 40, [(1.2, remove)])
                out.append({"after_s": time.monotonic() - at[0], "code": result.code, "reason": result.reason,
                            "guest": (result.report or {}).get("sluice"), "lines": result.lines})
        answer(out)
"""


def removed(got):
    for row in got:
        assert row["code"] == 2 and "removed from the machine" in row["reason"], row
        assert sum("error:" in line for line in row["lines"]) == 1, row
        assert not any("PANIC" in line for line in row["lines"]), row
        assert row["guest"]["device_faults"] == {"status_lost": 1} and row["guest"]["ledger"]["ok"], row
        assert row["guest"]["tx"][0]["in_flight"] == 0, row
        assert row["after_s"] < 6, row


@pytest.mark.parametrize("protocol", ["udp", "tcp", "serve"])
def test_removed_in_mid_blast(sluice, image, protocol):
    """Field case 51: the device is pulled out of the machine while it sends, or while the guest waits. What was in
    flight comes back, one line says that it was removed, and the guest ends by itself."""
    removed(inside(sluice, image, REMOVED, protocol, 1))


@pytest.mark.long
def test_removed_a_hundred_times(sluice, image):
    """Field case 51, in full: a hundred boots, each with its device pulled in mid-blast."""
    removed(inside(sluice, image, REMOVED, "udp", 50, timeout=900))
    removed(inside(sluice, image, REMOVED, "tcp", 50, timeout=900))


SECOND_NIC = """
    rounds = int(sys.argv[3])
    second = "virtio-net-pci,id=net1,addr=7,mac=52:54:00:77:00:03,disable-legacy=on,romfile="
    with Lab(LabSpec()) as lab:
        lab.start_server()
        test = Test(protocol="udp", time_s=1.5 + 0.3 * rounds, sndbuf_bytes=1 << 20)
        device = {"device_options": ("addr=2",), "more": (*Qtest.words, "-device", second), "sndbuf": 1 << 20}
        with VM(spec(*guest_words(test, lab), machine="pc", **device)) as vm:
            def replace_it():
                eject(vm, "net1", 7)
                vm.qmp.command("device_add", driver="virtio-net-pci", id="net1", addr="7", mac="52:54:00:77:00:03")
            kept = []
            def ask_the_used_one():
                vm.qmp.command("device_del", id="net0")  # nobody answers: the guest has no ACPI events
                kept.append(True)
            timers = [(0.5 + 0.3 * n, replace_it) for n in range(rounds)]
            result = vm.wait(None, 60 + rounds, [*timers, (0.4, ask_the_used_one)])
            answer({"code": result.code, "reason": result.reason, "report": result.report, "lines": result.lines})
"""


def not_disturbed(got):
    assert got["code"] == 0, got
    guest = got["report"]["sluice"]
    assert guest["ledger"]["ok"] and not any(guest["device_faults"].values()) and guest["link_losses"] == 0, guest
    assert all(row["sum"]["bits_per_second"] > 1e6 for row in got["report"]["intervals"]), got["report"]["intervals"]
    assert sum("2 virtio network devices" in line for line in got["lines"]) == 1, got


def test_an_unused_nic_comes_and_goes(sluice, image):
    """Field case 51: a second NIC is removed and added in mid-blast, and the used one is asked politely to go, which
    this guest does not hear: the blast goes on."""
    not_disturbed(inside(sluice, image, SECOND_NIC, 3))


@pytest.mark.long
def test_an_unused_nic_comes_and_goes_a_hundred_times(sluice, image):
    """Field case 51, in full."""
    not_disturbed(inside(sluice, image, SECOND_NIC, 100, timeout=200))


# ---- multicast, many devices ----

MULTICAST = """
    out = []
    with Lab(LabSpec(link=None)) as lab:
        ip = socket.inet_aton("10.77.0.77")
        for options in (("ctrl_rx=on",), ("ctrl_rx=off",)):
            with wire.Served(spec(device_options=options)) as guest:
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ARP))
                sock.bind(("br0", ARP))
                mac = sock.getsockname()[4]
                for group in ("333300000001", "3333ff770002", "01005e000001", "ffffffffffff"):
                    sock.send(bytes.fromhex(group) + mac + bytes.fromhex("08060001080006040001") + mac + ip + bytes(6)
                              + socket.inet_aton(GUEST_IP))
                    end, answered = time.monotonic() + 2, False
                    while not answered and select.select([sock], [], [], max(0, end - time.monotonic()))[0]:
                        frame = sock.recv(2048)
                        answered = frame[:6] == mac and frame[20:22] == b"\\0\\2"
                    out.append(answered)
    answer(out)
"""


def test_groups_are_not_filtered(sluice, image):
    """Field case 52: frames to the groups of IPv6 neighbour discovery and of IPv4 reach the stack with and without
    CTRL_RX. The guest speaks no IPv6, so it is a question of ARP in such a frame that is answered."""
    assert inside(sluice, image, MULTICAST) == [True] * 8


MANY = """
    out = []
    with Lab(LabSpec(link=None)) as lab:
        for count, options in ((1, ""), (2, ""), (8, ",mq=on,vectors=10"), (27, "")):
            others = [word for n in range(1, count) for word in (
                "-device", f"virtio-net-pci,id=net{n},addr={n + 2:#x},mac=52:54:00:77:01:{n:02x},disable-legacy=on,"
                "romfile=" + options)]
            with wire.Served(spec(device_options=("addr=2",), before=tuple(others))) as guest:
                out.append({"count": count, "alive": wire.alive(), "lines": guest.lines})
    answer(out)
"""


def test_many_nics(sluice, image):
    """Field case 53: of 1, 2, 8 and 27 NICs the first on the bus is used, in whatever order they were created, and one
    line says how many there are."""
    for row in inside(sluice, image, MANY):
        assert row["alive"], row
        said = [line for line in row["lines"] if "virtio network devices" in line]
        assert len(said) == (row["count"] > 1), row
        assert all(f" {row['count']} virtio network devices, the first" in line for line in said), row
