# SPDX-License-Identifier: BSD-2-Clause
"""Faults that others reported of devices of this kind (offers, resets, what firmware left), tried on the booted guest.
Numbers are those of docs/field-cases.md.
"""

import pytest
from field_guest import clean, flows, inside

ACCESS_PLATFORM = 1 << 33
CONTROL = {"CTRL_VQ": 1 << 17, "CTRL_RX": 1 << 18, "GUEST_ANNOUNCE": 1 << 21, "MQ": 1 << 22}


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
