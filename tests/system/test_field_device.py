# SPDX-License-Identifier: BSD-2-Clause
"""Faults that others reported of devices and machines of this kind (offers, resets, removal, flaps, hosts that stand
still), tried on the booted guest. Numbers are those of docs/field-cases.md.
"""

import os

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PRELUDE = """
    import os, select, socket, struct, threading, time
    from dataclasses import replace
    sys.path.insert(0, sys.argv[2])
    import shell, vm as vm_module, wire
    from lab import EXT_IP, GUEST_IP, GUEST_MAC, PREFIX, Lab, LabSpec
    from rows import Test, guest_words, run_test
    from vm import VM, VmSpec

    STATIC = f"ip={GUEST_IP}/{PREFIX}"
    ARP = 0x0806
    def spec(*config, **more):
        return VmSpec(config=config or (STATIC,), kernel=sys.argv[1], mac=more.pop("mac", GUEST_MAC), **more)
    def answer(value):
        print(json.dumps(value), flush=True)
        os._exit(0)  # the namespaces take the rest with them
    def measure(lab, *options, protocol="tcp", time_s=1, **more):
        test = {key: more.pop(key) for key in ("parallel", "bidir", "sndbuf_bytes") if key in more}
        vm = spec(device_options=options, **more)
        return run_test(lab, Test(protocol=protocol, time_s=time_s, vm=vm, **test))

    class Announcements:
        "Times at which an address was announced on the bridge: asked for by itself (ARP), or by its host (RARP)."
        def __init__(self):
            self.times = {ARP: [], 0x8035: []}
            self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self._sock.bind(("br0", 3))
            threading.Thread(target=self._listen, daemon=True).start()
        def _listen(self):
            while True:
                frame = self._sock.recv(2048)
                kind = struct.unpack("!H", frame[12:14])[0]
                ours = frame[28:32] == frame[38:42] == socket.inet_aton(GUEST_IP)
                if kind == 0x8035 or kind == ARP and ours and frame[22:28].hex(":") == GUEST_MAC:
                    self.times[kind].append(time.monotonic())
        def after(self, since, kind=ARP, within_s=1.0):
            while time.monotonic() < since + within_s:
                if any(at >= since for at in self.times[kind]):
                    return True
                time.sleep(0.02)
            return False

    class Qtest:
        "Writes to ports of the machine, which stand for what its firmware or a person at its chassis does."
        words = ("-qtest", "unix:/run/sluice/qtest.sock,server=on,wait=off", "-qtest-log", "/dev/null")
        def outl(self, port, value):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect("/run/sluice/qtest.sock")
                sock.sendall(f"outl {port:#x} {value:#x}\\n".encode())
                sock.recv(64)
    EJECT_BUS, EJECT_SLOTS = 0xae10, 0xae08  # of the machine "pc" (docs/specs/acpi_pci_hotplug of QEMU)
    def eject(vm, name, slot):
        vm.qmp.command("device_del", id=name)
        qtest = Qtest()
        qtest.outl(EJECT_BUS, 0)
        qtest.outl(EJECT_SLOTS, 1 << slot)
"""
ACCESS_PLATFORM = 1 << 33
CONTROL = {"CTRL_VQ": 1 << 17, "CTRL_RX": 1 << 18, "GUEST_ANNOUNCE": 1 << 21, "MQ": 1 << 22}


def inside(sluice, image, source, *argv, timeout=90):
    return sluice.python(PRELUDE + source, image, HERE, *map(str, argv), timeout=timeout)


def clean(row):
    """A valid row of a driver that saw its device do nothing wrong."""
    assert row["valid"] and row["ledger_ok"], row
    assert row["unexpected_full"] == row["requeues"] == 0 and row["tx_stops"] == row["tx_wakes"], row
    assert not any(row["guest"]["device_faults"].values()), row


def flows(row):
    clean(row)
    assert row["bits_per_second"] > 1e6, row


# ---- addresses ----

LEASES = """
    import dhcpd, ipaddress
    lines, leases = {}, {}
    def serve_dhcp():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"br0")
        sock.bind(("", 67))
        while True:
            request, _ = sock.recvfrom(2048)
            mac = request[28:34].hex(":")
            lease = leases.setdefault(mac, f"10.77.0.{2 + len(leases)}/{PREFIX}")
            reply = dhcpd.answer(request, ipaddress.IPv4Interface(lease), socket.inet_aton("10.77.0.254"))
            if reply:
                sock.sendto(reply, ("255.255.255.255", 68))
    with Lab(LabSpec(link=None)) as lab:
        shell.run("ip", "link", "set", "dev", "tap0", "type", "bridge_slave", "learning", "on")
        shell.run("ip", "tuntap", "add", "dev", "tap1", "mode", "tap")
        shell.run("ip", "link", "set", "tap1", "master", "br0", "up")
        shell.run("ip", "neigh", "flush", "all")
        threading.Thread(target=serve_dhcp, daemon=True).start()
        with wire.Served(spec("ip=dhcp", mac="52:54:00:77:00:02")) as one:
            vm_module.QMP_PATH = "/run/sluice/second.sock"
            with wire.Served(spec("ip=dhcp", mac="52:54:00:77:00:03", tap="tap1")) as two:
                shell.run("ip", "neigh", "replace", "10.77.0.2", "lladdr", "52:54:00:77:00:02", "dev", "br0")
                pings = [wire.ping(5, address=ip) for ip in ("10.77.0.2", "10.77.0.3") * 2]
                answer({"leases": leases, "pings": pings, "lines": one.lines + two.lines})
"""


def test_two_guests_on_a_bridge(sluice, image):
    """Field case 38, with addresses that the device offers: two guests ask for leases on one bridge, each gets its own
    by its own address, and both stay reachable."""
    got = inside(sluice, image, LEASES)
    assert sorted(got["leases"].values()) == ["10.77.0.2/24", "10.77.0.3/24"], got
    assert sorted(got["leases"]) == ["52:54:00:77:00:02", "52:54:00:77:00:03"], got
    assert got["pings"] == [5, 5, 5, 5], got


# ---- a device that firmware drove before ----

NETWORK_BOOT = """
    import dhcpd, ipaddress
    loader = open(sys.argv[3], "rb").read()
    asked, fetched = [], threading.Event()
    def serve_dhcp():
        lease, us = ipaddress.IPv4Interface(f"{GUEST_IP}/{PREFIX}"), socket.inet_aton("10.77.0.254")
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"br0")
        sock.bind(("", 67))
        while True:
            request = sock.recv(2048)
            reply = dhcpd.answer(request, lease, us)
            if reply and b"PXEClient" in request:
                asked.append("firmware")
                # Next server and file; class, and "take the file that was named" (PXE 2.1, 2.2.3).
                reply = reply[:20] + us + reply[24:108] + b"loader.efi".ljust(128, b"\\0") + reply[236:-1]
                reply += b"\\x3c\\x09PXEClient\\x2b\\x04\\x06\\x01\\x08\\xff\\x43\\x0aloader.efi\\xff"
            elif reply:
                asked.append("guest")
            if reply:
                sock.sendto(reply, ("255.255.255.255", 68))
    def serve_tftp():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("", 69))
        block_bytes = 512
        while True:
            request, peer = sock.recvfrom(2048)
            code, block = struct.unpack("!HH", request[:4])
            if code == 1:
                words = request[2:].split(b"\\0")
                options = dict(zip(words[2::2], words[3::2]))
                block_bytes = int(options.get(b"blksize", 512))
                agreed = b"".join(k + b"\\0" + v + b"\\0" for k, v in (
                    (b"blksize", b"%d" % block_bytes), (b"tsize", b"%d" % len(loader))) if k in options)
                sock.sendto(b"\\0\\6" + agreed, peer)
            elif code == 4:
                part = loader[block * block_bytes:][:block_bytes]
                if part:
                    sock.sendto(struct.pack("!HH", 3, block + 1 & 0xffff) + part, peer)
                else:
                    fetched.set()
    def flood():
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        sock.bind(("br0", 0))
        frame = b"\\xff" * 6 + sock.getsockname()[4] + b"\\x88\\xb5" + b"\\xa5" * 1000
        while True:
            try:
                sock.send(frame)
            except OSError:
                pass
            time.sleep(0.002)
    whole = vm_module.qemu_argv
    def without_disk(spec):
        argv = whole(spec)
        for word in [word for word in argv if "disk0" in word]:
            at = argv.index(word)
            del argv[at - 1:at + 1]
        return argv
    vm_module.qemu_argv = without_disk
    wire.BOOT_S = 70
    with Lab(LabSpec(link=None)) as lab:
        for thread in (serve_dhcp, serve_tftp, flood):
            threading.Thread(target=thread, daemon=True).start()
        with wire.Served(spec(image=sys.argv[4], boot="efi", device_options=("bootindex=0",))) as guest:
            alive = wire.alive()
            answer({"asked": asked, "fetched": fetched.is_set(), "alive": alive, "lines": guest.lines,
                    "qemu": guest.vm.qemu_said})
"""


def test_booted_over_the_device(sluice, image, disk_image):
    """Field case 40: firmware asks for a lease and fetches the loader over the same device, while the host floods
    broadcasts throughout. The guest takes it over, gets its own lease, and QEMU finds nothing amiss. This firmware
    resets the device when it leaves; that the guest does not rely on it is test_left_running_by_firmware's to show."""
    got = inside(sluice, image, NETWORK_BOOT, disk_image.parent / "BOOTX64.EFI", disk_image, timeout=120)
    assert got["asked"][0] == "firmware" and got["asked"][-1] == "guest" and got["fetched"], got
    assert got["alive"] and got["qemu"] == "", got


# ---- a device that was broken by a bad descriptor ----

BAD_DESCRIPTOR = """
    QUEUE_DEVICE = "/machine/peripheral/net0/virtio-backend"
    class Gdb:
        "Physical memory, by QEMU's gdb stub: the machine stands still meanwhile."
        words = ("-gdb", "unix:/run/sluice/gdb.sock,server=on,wait=off")
        def __init__(self):
            self._sock = socket.socket(socket.AF_UNIX)
            self._sock.connect("/run/sluice/gdb.sock")
            self._sock.settimeout(5)
        def say(self, words):
            self._sock.sendall(f"${words}#{sum(words.encode()) & 255:02x}".encode())
            heard = b""
            while b"$OK#" not in heard:  # acknowledgements and stop notes come too
                heard += self._sock.recv(4096)
            self._sock.sendall(b"+")
        def close(self):
            self._sock.sendall(b"$D#44")
            self._sock.close()
    with Lab(LabSpec()) as lab:
        lab.start_server()
        test = Test(protocol=sys.argv[3], time_s=4, bidir=True)
        with VM(spec(*guest_words(test, lab), more=Gdb.words)) as vm:
            def break_ring():
                queue = vm.qmp.command("x-query-virtio-queue-status", path=QUEUE_DEVICE, queue=0)
                gdb = Gdb()
                gdb.say("Qqemu.PhyMemMode:1")
                for n in range(queue["vring-num"]):  # each posted buffer lies where no memory is now
                    gdb.say(f"M{queue['vring-desc'] + 16 * n:x},8:00000000ffff0000")
                gdb.close()
            result = vm.wait(None, 40, [(1.2, break_ring)])
            answer({"code": result.code, "reason": result.reason, "guest": (result.report or {}).get("sluice"),
                    "intervals": (result.report or {}).get("intervals"), "qemu": vm.qemu_said})
"""


def test_bad_descriptor_in_mid_blast(sluice, image):
    """Field case 41: the descriptors of the receive ring are spoiled from outside, QEMU declares the device broken, and
    the driver resets it: counted, and data goes both ways again in the next second."""
    got = inside(sluice, image, BAD_DESCRIPTOR, "tcp")
    assert got["code"] == 0, got
    assert "bogus descriptor" in got["qemu"], got
    assert got["guest"]["device_faults"]["needs_reset"] == 1, got
    assert got["guest"]["ledger"]["ok"] and got["guest"]["tx"][0]["unexpected_full"] == 0, got
    for row in got["intervals"][-2:]:
        for sums in (row["sum"], row["sum_bidir_reverse"]):
            assert sums["bits_per_second"] > 1e6, got["intervals"]


# ---- the first frame ----

FIRST_PING = """
    seen = []
    with Lab(LabSpec(link=None)) as lab:
        for options in ((), ("host_mtu=1400",), ("event_idx=off",)):
            began = time.monotonic()
            with VM(spec(device_options=options)) as vm:
                serving = threading.Event()
                on_line = lambda line: serving.set() if "serving" in line else None
                threading.Thread(target=vm.wait, args=(on_line, 30), daemon=True).start()
                answered = False
                while not answered and time.monotonic() < began + 20:
                    answered = wire.ping(1, within_s=0.2) == 1
                seen.append({"answered": answered, "after_serving": wire.ping(5) if serving.wait(5) else None,
                             "lines": vm.lines})
        answer(seen)
"""


def test_pinged_from_the_start(sluice, image):
    """Field case 42: the host knows the guest's address and pings from the moment QEMU starts, with and without an MTU
    of the device; the first ping that finds the device up is answered."""
    for row in inside(sluice, image, FIRST_PING):
        assert row["answered"] and row["after_serving"] == 5, row


# ---- interrupts, queues, features ----

SHARED_PIN = """
    others = ("-device", "virtio-net-pci,id=net1,addr=6,vectors=0,mac=52:54:00:77:00:03,disable-legacy=on,romfile=",
              "-drive", "if=none,id=d0,format=raw,file=/run/sluice/disk",
              "-device", "virtio-blk-pci,drive=d0,addr=0xa,vectors=0")
    with open("/run/sluice/disk", "wb") as disk:
        disk.truncate(1 << 20)
    with Lab(LabSpec()) as lab:
        own = {"netdev": "tap,id=n0,ifname=tap0,script=no,downscript=no,sndbuf=1048576"}
        rows = measure(lab, "vectors=0", "addr=2", protocol="udp", more=others, bidir=True, **own)
        rows += measure(lab, "addr=2", protocol="udp", more=others, bidir=True, **own)
        pings = []
        for options in (("vectors=0", "addr=2"), ("addr=2",)):
            with wire.Served(spec(device_options=options, more=others)):
                began = time.monotonic()
                answered = wire.ping(40)
                pings.append([answered, time.monotonic() - began])
        answer([rows, pings])
"""


def test_a_pin_that_is_shared(sluice, image):
    """Field case 44: without vectors the device shares its level-triggered pin (slots 2, 6 and 10 are one) with another
    NIC and a disk. It is polled, with its pin off: no interrupt arrives, none is spurious; rate and answers are about
    those of the same machine with vectors."""
    (polled_out, polled_in, out, into), pings = inside(sluice, image, SHARED_PIN)
    for row in (polled_out, polled_in, out, into):
        clean(row)
    for queue in (*polled_out["guest"]["tx"], *polled_out["guest"]["rx"]):
        assert queue["interrupts"] == queue["spurious_interrupts"] == 0, queue
    assert out["guest"]["rx"][0]["interrupts"] > 0, out
    assert out["guest"]["rx"][0]["interrupts"] <= out["guest"]["rx"][0]["packets"] + 100, out
    assert polled_out["sent"] > 0.8 * out["sent"], (polled_out["sent"], out["sent"])
    assert polled_in["received"] > 0.7 * into["received"], (polled_in["received"], into["received"])
    # A look each millisecond; found by the safety timer alone each ping would take a hundred times as long.
    (polled, polled_s), (answered, seconds) = pings
    assert polled == answered == 40 and polled_s < 20 * seconds, pings


QUEUE_PAIRS = """
    cpus = int(sys.argv[3])
    with Lab(LabSpec()) as lab:
        run = shell.run
        run("ip", "link", "del", "tap0")
        run("ip", "tuntap", "add", "dev", "tap0", "mode", "tap", "multi_queue")
        run("ip", "link", "set", "tap0", "master", "br0", "up")
        run("bridge", "link", "set", "dev", "tap0", "learning", "off")
        run("bridge", "fdb", "add", GUEST_MAC, "dev", "tap0", "master", "static")
        netdev = "tap,id=n0,ifname=tap0,script=no,downscript=no,queues=4"
        answer(measure(lab, "mq=on", "vectors=10", parallel=16, bidir=True, netdev=netdev,
                       more=("-smp", f"{cpus},maxcpus=4")))
"""


@pytest.mark.parametrize("cpus", [2, pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)])
def test_queue_pairs_that_nobody_asked_for(sluice, image, cpus):
    """Field case 46: a device of four queue pairs; the guest never asks for more than one, so all 16 streams of both
    directions pass on pair 0."""
    rows = inside(sluice, image, QUEUE_PAIRS, cpus)
    assert len(rows) == 2
    for row in rows:
        flows(row)
        assert int(row["guest"]["features"]["offered"], 16) & CONTROL["MQ"]
        assert not int(row["guest"]["features"]["accepted"], 16) & CONTROL["MQ"]
        assert len(row["guest"]["tx"]) == len(row["guest"]["rx"]) == 1


IOMMU = """
    with Lab(LabSpec()) as lab:
        rows = []
        for options in (("iommu_platform=on", "ats=on"), ("iommu_platform=on",)):
            rows += measure(lab, *options, bidir=True, before=(
                "-machine", "kernel-irqchip=split", "-device", "intel-iommu,intremap=on"))
        answer(rows)
"""


def test_behind_an_iommu(sluice, image):
    """Field case 47: the device stands behind an IOMMU, asks for platform addresses and refuses who does not take that
    feature: it is taken, and traffic flows on the identity mapping."""
    rows = inside(sluice, image, IOMMU)
    assert len(rows) == 4
    for row in rows:
        flows(row)
        assert int(row["guest"]["features"]["accepted"], 16) & ACCESS_PLATFORM


WITHOUT_CONTROL = """
    sets = (("ctrl_vq=off",),
            ("ctrl_vq=off", "ctrl_rx=on", "ctrl_vlan=on", "ctrl_mac_addr=on", "guest_announce=on", "mq=on"))
    with Lab(LabSpec()) as lab:
        answer([row for options in sets for row in measure(lab, *options, bidir=True)])
"""


def test_without_a_control_queue(sluice, image):
    """Field case 48: a device that has no control queue and offers what depends on one all the same: none of it is
    taken, each is refused with a reason, and traffic flows."""
    rows = inside(sluice, image, WITHOUT_CONTROL)
    assert len(rows) == 4
    for row in rows:
        flows(row)
        features = row["guest"]["features"]
        offered, accepted = int(features["offered"], 16), int(features["accepted"], 16)
        assert not offered & CONTROL["CTRL_VQ"], features
        assert not accepted & sum(CONTROL.values()), features
        refused = {entry["name"] for entry in features["refused"] if entry["reason"]}
        assert {name for name, bit in CONTROL.items() if offered & bit} <= refused, features
    assert int(rows[-1]["guest"]["features"]["offered"], 16) & CONTROL["CTRL_RX"]


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
    assert intervals[-1]["sum"]["bits_per_second"] > 50e6, intervals
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


# ---- repeated short runs ----

SHORT_RUNS = """
    rounds, cpus = int(sys.argv[3]), int(sys.argv[4])
    def flood(echo, seconds):
        "Datagrams at full rate; read: the guest's answers too, so that it sends as much as it gets."
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect((GUEST_IP, 7 if echo else 9))
        sock.setblocking(False)
        sent = got = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(32):
                try:
                    sent += sock.send(bytes(1024)) > 0
                except OSError:
                    pass  # our queue is full, or nobody listens there: both are meant
            try:
                while sock.recv(2048):
                    got += 1
            except OSError:
                pass
        sock.close()
        return sent, got
    def posted(vm):
        "Buffers that the device has, and frames that it has not given back."
        both = []
        for queue in (0, 1):
            seen = vm.qmp.command("x-query-virtio-queue-status", path="/machine/peripheral/net0/virtio-backend",
                                  queue=queue)
            index = vm.qmp.command("human-monitor-command", **{"command-line": f"xp /1hx {seen['vring-avail'] + 2:#x}"})
            both.append((int(index.split(":")[1], 16) - seen["used-idx"]) & 0xffff)
        return both
    out = []
    with Lab(LabSpec()) as lab:
        with wire.Served(spec(more=("-smp", f"{cpus},maxcpus=4"))) as guest:
            assert wire.alive()
            for n in range(rounds):
                sent, got = flood(n % 2 == 0, 0.3)
                time.sleep(0.1)  # the tap's own queue runs empty
                pings = wire.ping(3)
                time.sleep(0.05)
                out.append({"sent": sent, "got": got, "pings": pings, "posted": posted(guest.vm)})
            answer({"rounds": out, "alive": wire.alive()})
"""


def flat(got):
    for n, row in enumerate(got["rounds"]):
        assert row["sent"] > 100 and row["pings"] == 3, (n, row)
        assert n % 2 == 1 or row["got"] > 0, (n, row)
        assert row["posted"] == [256, 0], (n, row)
    assert got["alive"]


def test_many_short_runs(sluice, image):
    """Field case 54: short floods of datagrams, with answers and without in turn. After each the guest answers, all
    receive buffers are with the device again and no frame is in flight."""
    flat(inside(sluice, image, SHORT_RUNS, 12, 2))


@pytest.mark.long
def test_five_hundred_short_runs(sluice, image):
    """Field case 54, in full."""
    flat(inside(sluice, image, SHORT_RUNS, 500, 4, timeout=400))


# ---- a host that stands still, and one with short queues ----


def not_given_up(done, freezes):
    """Valid, no reset, nothing lost by the guest, and in the first whole second after each stop data flows again."""
    assert done.code == 0, done
    (row,) = done.rows
    assert row["valid"] and row["ledger_ok"] and row["unexpected_full"] == 0 and row["tx_stops"] == row["tx_wakes"], row
    faults = row["guest"]["device_faults"]
    assert not faults.get("needs_reset") and not faults.get("status_lost"), faults
    assert row["guest"]["tx"][0]["in_flight"] == 0, row
    assert row["guest"]["net"]["stood_still_ns"] > freezes * 6.5e9, row["guest"]["net"]
    if row["test"] == "udp":
        assert row["nic_dropped"] == 0 and row["sent"] == row["received"] + row["receiver_dropped"], row
    rows = row["intervals"]
    late = [n for n, i in enumerate(rows) if i["end"] - i["start"] > 3]
    assert len(late) == freezes, rows
    # The row that ends late begins none of its own for the seconds that passed.
    assert len(rows) <= row["seconds"] - sum(rows[n]["end"] - rows[n]["start"] for n in late) + 2 * freezes + 2, rows
    for n in late:
        assert all(i["bits_per_second"] > 10e6 for i in rows[n + 2 : n + 3]), rows


@pytest.mark.parametrize("protocol", [pytest.param("udp", marks=pytest.mark.long), "tcp"])
def test_host_stands_still(sluice, image, protocol):
    """Field case 55: QEMU is stopped in mid-blast for longer than the guest waits for any sign of life, and goes on."""
    done = sluice("run", protocol, "--time", "10.5", "--fault", "freeze@1:7.5", "--json", "-")
    not_given_up(done, 1)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_host_stands_still_twenty_times(sluice, image, protocol):
    """Field case 55, in full: 15 s, 20 times."""
    freezes = [word for n in range(20) for word in ("--fault", f"freeze@{1 + 18 * n}:15")]
    not_given_up(sluice("run", protocol, "--time", "362", *freezes, "--json", "-", timeout=500), 20)


CROWDED = """
    import subprocess
    with Lab(LabSpec()) as lab:
        busy = "import os\\nos.sched_setaffinity(0, {0})\\nwhile True: pass"
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", busy])
        def crowd(vm):
            for task in os.listdir(f"/proc/{vm.pid}/task"):
                os.sched_setaffinity(int(task), {0})
        lab.start_server()
        test = Test(protocol="udp", time_s=10, sndbuf_bytes=1 << 20)
        with VM(spec(*guest_words(test, lab), sndbuf=1 << 20)) as vm:
            result = vm.wait(None, 90, [(0.1, lambda: crowd(vm))])
            answer({"code": result.code, "reason": result.reason, "report": result.report})
"""


@pytest.mark.long
def test_host_is_crowded(sluice, image):
    """Field case 55: QEMU has a third of one processor, beside two busy loops."""
    got = inside(sluice, image, CROWDED, timeout=120)
    assert got["code"] == 0, got
    guest = got["report"]["sluice"]
    assert guest["ledger"]["ok"] and guest["tx"][0]["stops"] == guest["tx"][0]["wakes"], guest
    assert not {"needs_reset", "status_lost"} & {name for name, n in guest["device_faults"].items() if n}, guest


SHORT_QUEUE = """
    with Lab(LabSpec()) as lab:
        shell.run("ip", "link", "set", "tap0", "txqueuelen", 10)
        answer(measure(lab, protocol=sys.argv[3], time_s=float(sys.argv[4]), parallel=8, bidir=True, sndbuf=16384,
                       sndbuf_bytes=16384))
"""


def never_stands_still(rows, seconds):
    """Both directions move in each second, and the driver's books balance."""
    assert len(rows) == 2
    for row in rows:
        assert row["valid"] and row["ledger_ok"] and row["tx_stops"] == row["tx_wakes"], row
        assert row["unexpected_full"] == row["requeues"] == 0, row
        # What is left at the end is no second; of many rows, neighbours are joined.
        whole = [i for i in row["intervals"] if i["end"] - i["start"] > 0.5]
        assert len(whole) >= min(seconds, 300) and all(i["bytes"] > 0 for i in whole), row["intervals"]


def test_tap_with_a_short_queue(sluice, image):
    """Field case 56: eight streams each way over a tap with a queue of 10 packets and a send buffer of 16 KiB, which
    says "no buffers" all the time."""
    never_stands_still(inside(sluice, image, SHORT_QUEUE, "tcp", 4), 4)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_tap_with_a_short_queue_for_long(sluice, image, protocol):
    """Field case 56, in full: ten minutes."""
    never_stands_still(inside(sluice, image, SHORT_QUEUE, protocol, 600, timeout=700), 600)
