# SPDX-License-Identifier: BSD-2-Clause
"""Faults that others reported of drivers of this kind, tried on the booted guest. Numbers are those of
docs/field-cases.md; the rigs (a hub that takes nothing, a scripted peer, a wire that loses frames) are in wire.py.
"""

import os

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PRELUDE = """
    import os, select, socket, struct, threading, time
    from dataclasses import replace
    sys.path.insert(0, sys.argv[2])
    import vm as vm_module
    import wire
    from lab import EXT_IP, GUEST_IP, GUEST_MAC, PREFIX, Lab, LabSpec
    from rows import Test, guest_words, run_test
    from vm import VM, VmSpec

    STATIC = f"ip={GUEST_IP}/{PREFIX}"
    def spec(*config, **more):
        return VmSpec(config=config or (STATIC,), kernel=sys.argv[1], mac=more.pop("mac", GUEST_MAC), **more)
    def answer(value):
        print(json.dumps(value), flush=True)
        os._exit(0)  # the namespaces take the rest with them
"""
KNOWN_FEATURES = sum(1 << bit for bit in (0, 1, 3, 5, 7, 11, 15, 16, 28, 29, 32, 33, 36, 59))


def inside(sluice, image, source, *argv, timeout=90):
    return sluice.python(PRELUDE + source, image, HERE, *map(str, argv), timeout=timeout)


def clean(guest):
    """CLEAN of docs/field-cases.md, from the guest's own report."""
    for queue in guest["tx"]:
        assert queue["unexpected_full"] == queue["requeues"] == queue["in_flight"] == 0, queue
        assert queue["stops"] == queue["wakes"], queue
    # A host that gives QEMU no processor time looks like a device that forgot an event.
    faults = {name for name, count in guest["device_faults"].items() if count} - {"lost_kick", "lost_interrupt"}
    assert guest["ledger"]["ok"] and not faults, guest


# ---- a ring that is full for long ----

HUB = """
    streams, hold_s = int(sys.argv[3]), float(sys.argv[4])
    marks, said = {}, {}
    with Lab(LabSpec(link=None)) as lab:
        lab.start_server()
        test = Test(time_s=hold_s + 2.5, parallel=streams, guest=("sndbuf=4M",))
        hub = spec(*guest_words(test, lab), netdev="hubport,id=n0,hubid=0", more=(
            "-netdev", "tap,id=t1,ifname=tap0,script=no,downscript=no", "-netdev", "hubport,id=h1,hubid=0,netdev=t1"))
        with VM(hub) as vm:
            def mark(name):
                marks[name] = (time.monotonic(), wire.cpu_seconds(vm.pid))
            def detach():
                vm.qmp.command("netdev_del", id="h1")
            def attach():
                mark("end")
                vm.qmp.command("netdev_add", type="hubport", id="h1", hubid=0, netdev="t1")
                # The hub looks at what waits when the next frame comes by.
                vm.qmp.command("announce-self", initial=50, max=50, rounds=1, step=50)
            steps = [(0.0, lambda: mark("boot")), (1.2, lambda: mark("blast")), (1.2, detach),
                     (1.5, lambda: mark("start")), (1.2 + hold_s, attach)]
            result = vm.wait(None, 60, steps)
            answer({"code": result.code, "reason": result.reason, "marks": marks, "said": vm.qemu_said,
                    "report": result.report})
"""


def check_hub(sluice, image, streams, hold_s):
    got = inside(sluice, image, HUB, streams, hold_s)
    assert got["code"] == 0, got
    guest, marks = got["report"]["sluice"], got["marks"]
    clean(guest)

    def busy(first, last):
        (t0, cpu0), (t1, cpu1) = marks[first], marks[last]
        return (cpu1 - cpu0) / (t1 - t0)

    assert busy("start", "end") < 0.2 * busy("boot", "blast"), marks
    quiet = [i["sum"] for i in got["report"]["intervals"] if i["sum"]["bits_per_second"] == 0]
    assert quiet and all(i["stops"] == 0 for i in quiet), got["report"]["intervals"]
    assert got["report"]["intervals"][-1]["sum"]["bits_per_second"] > 0, got["report"]["intervals"]
    udp = guest["udp"]
    assert udp["again"] == udp["writable"] > 0 and udp["send_errors"] == udp["aborted"] == 0, udp
    assert udp["blocked_ns"] > 0.9e9 * (hold_s - 0.3) and udp["queued"] == udp["sent"], udp
    assert guest["drain"]["in_flight_zero"] and guest["drain"]["echo_answered"], guest["drain"]
    assert got["said"] == "", got["said"]


@pytest.mark.parametrize("streams", [1, 8])
def test_a_device_that_takes_nothing(sluice, image, streams):
    """Field cases 21, 22, 28: the only other port of QEMU's hub goes, so TX completes nothing, and comes back. The
    senders get AGAIN and sleep (QEMU's CPU time next to none), the queue stops once for the whole time, and afterwards
    everything goes on: each AGAIN was followed by its wake, nothing was lost in the guest or kept by it, an echo is
    answered.
    """
    check_hub(sluice, image, streams, 2.5)


@pytest.mark.long
@pytest.mark.parametrize("streams", [1, 2, 8])
def test_a_device_that_takes_nothing_for_long(sluice, image, streams):
    """Field cases 21, 22: the same for as long as a test survives without a word of its server (7 s)."""
    check_hub(sluice, image, streams, 6.0)


# ---- many small writes, many streams ----

PINGED = """
    size, streams, seconds = map(int, sys.argv[3:6])
    heard, end = [], []
    def ping():
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        number = 0
        while not end:
            raw.sendto(wire.echo_request(number, bytes(32)), (GUEST_IP, 0))
            number += 1
            due = time.monotonic() + 0.1
            while (left := due - time.monotonic()) > 0:
                if select.select([raw], [], [], left)[0] and raw.recv(2048)[20] == 0:
                    heard.append(time.monotonic())
    with Lab(LabSpec(link=None)) as lab:
        test = Test("tcp", size_bytes=size, parallel=streams, time_s=seconds, vm=spec("-"))
        pinger = threading.Thread(target=ping, daemon=True)
        pinger.start()
        (row,) = run_test(lab, test)
        end.append(True)
        gaps = [b - a for a, b in zip(heard, heard[1:])]
        answer({"row": row, "heard": len(heard), "longest_gap": max(gaps, default=None)})
"""


def check_pinged(sluice, image, size, streams, seconds):
    got = inside(sluice, image, PINGED, size, streams, seconds, timeout=90 + 2 * seconds)
    row = got["row"]
    assert row["valid"] and row["bits_per_second"] > 0, row
    clean(row["guest"])
    # Some go to a guest that boots, or has ended.
    assert got["heard"] > 5 * seconds and got["longest_gap"] < 1.0, got


@pytest.mark.parametrize("size, streams", [(128, 1), (131072, 100)])
def test_small_writes_and_many_streams(sluice, image, size, streams):
    """Field case 23: TCP in writes of 128 bytes, and a hundred streams at once, with a ping ten times a second: no
    second without an answer, and at the end everything balances.
    """
    check_pinged(sluice, image, size, streams, 2)


@pytest.mark.long
@pytest.mark.parametrize("size, streams, seconds", [(128, 1, 1000), (131072, 100, 60)])
def test_small_writes_and_many_streams_for_long(sluice, image, size, streams, seconds):
    """Field case 23: the same for a thousand seconds."""
    check_pinged(sluice, image, size, streams, seconds)


# ---- receiving ----

PINNED = """
    seconds = float(sys.argv[3])
    with Lab(LabSpec()) as lab, wire.Served(spec()) as guest:
        sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        def first_fragment(number):
            "The beginning of a datagram whose rest never comes."
            udp = struct.pack("!HHHH", 5000, 7, 1480, 0) + bytes(1432)
            return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), number & 0xffff, 0x2000, 64, 17, 0,
                               socket.inet_aton("10.77.0.254"), socket.inet_aton(GUEST_IP)) + udp
        sent, end = 0, time.monotonic() + seconds
        while sent < 4000 or time.monotonic() < end:  # several times the ring and its pool
            for _ in range(200):
                sock.sendto(first_fragment(sent), (GUEST_IP, 0))
                sent += 1
            time.sleep(0.005)
        # The tap's queue may still be full of fragments, and drops what comes then: the host's doing.
        queue_has_room = any(wire.ping(1) for _ in range(10))
        at_once = wire.ping(20)
        answer({"sent": sent, "at_once": at_once, "alive": wire.alive(), "udp": wire.udp_echo((1472, 9000)),
                "said": guest.vm.qemu_said, "queue_has_room": queue_has_room})
"""


def check_pinned(sluice, image, seconds):
    got = inside(sluice, image, PINNED, seconds)
    assert got["queue_has_room"] and got["at_once"] == 20 and got["alive"] and got["udp"] == [True, True], got
    assert got["said"] == "", got


def test_receive_buffers_that_do_not_come_back(sluice, image):
    """Field case 24: more datagrams than there are receive buffers, each with its rest missing, are with the stack: the
    guest answers pings at once and everything a moment later.
    """
    check_pinned(sluice, image, 1.0)


@pytest.mark.long
def test_receive_buffers_that_do_not_come_back_for_long(sluice, image):
    """Field case 24: for longer than the stack keeps an incomplete datagram."""
    check_pinned(sluice, image, 20.0)


RUNTS = """
    words = ("test=udp", f"server={wire.Peer.IP}", f"ip={wire.Peer.GUEST_IP}/24")
    with wire.Peer() as peer:
        peer.mute = True
        between = []
        def talk():
            peer.receive(20)  # its first question
            for length in 3 * tuple(range(13, 0, -1)):
                peer.send(peer.ethernet(b"", 0x88b5)[:length])
                peer.send(peer.ethernet(bytes(1525 + 600 * length), 0x88b5))
                between.append(peer.asks_who_has())
            peer.mute = False
            while (frame := peer.receive(20)) is not None:
                if frame[12:14] == b"\\x08\\x00" and frame[23] == 6 and frame[47] & 2:
                    peer.send(peer.reset_of(frame))
        talker = threading.Thread(target=talk, daemon=True)
        talker.start()
        with VM(spec(*words, netdev=peer.netdev, device_options=tuple(sys.argv[3:]))) as vm:
            result = vm.wait(None, 30)
            answer({"code": result.code, "reason": result.reason, "report": result.report, "said": vm.qemu_said,
                    "between": between})
"""


@pytest.mark.parametrize("options", [(), ("mrg_rxbuf=off",)])
def test_frames_too_short_and_too_long(sluice, image, options):
    """Field case 25: frames of 1 to 13 bytes, and frames longer than a buffer, of which QEMU passes on those that it
    can merge: the short ones are counted, one each, and the good frame after each of them is answered.
    """
    got = inside(sluice, image, RUNTS, *options)
    assert got["between"] == [True] * 39, got
    assert got["code"] == 2 and "nobody listens" in got["reason"], got
    guest = got["report"]["sluice"]
    (rx,) = guest["rx"]
    assert rx["drops"] == {"short": 39} and rx["refill_fail"] == 0, rx
    assert rx["packets"] >= 2 + (0 if options else 39), rx
    clean(guest)
    assert got["said"] == "", got["said"]


SWEEP = """
    low, high, flood = map(int, sys.argv[3:6])
    with wire.Peer() as peer, wire.Served(spec(f"ip={peer.GUEST_IP}/24", netdev=peer.netdev,
                                               device_options=tuple(sys.argv[6:]))) as guest:
        for length in 3 * tuple(range(13, 0, -1)):
            peer.send(peer.ethernet(b"", 0x88b5)[:length])
        frames = [peer.ping_frame(length, length) for length in range(low, high + 1)]
        answered = peer.ping_all(frames, window=4)  # of jumbo frames QEMU's socket holds no more
        tagged = peer.ping_all([peer.ping_frame(length, length, tag=100) for length in range(high - 4, high + 1)],
                               within_s=0.2)
        for length in range(high + 1, high + 600, 7):
            peer.send(peer.ethernet(bytes(length - 14), 0x88b5))
        flooded = peer.ping_all([peer.ping_frame(n, 98) for n in range(flood)])
        answer({"missing": sorted(set(range(low, high + 1)) - answered), "tagged": len(tagged), "flooded": len(flooded),
                "said": guest.vm.qemu_said})
"""


@pytest.mark.parametrize(
    "low, high, options",
    [(60, 1514, ()), (60, 1514, ("mrg_rxbuf=off",)), (8950, 9014, ("host_mtu=9000",)),
     (8950, 9014, ("host_mtu=9000", "mrg_rxbuf=off"))],
)  # fmt: skip
def test_every_frame_size_comes_back(sluice, image, low, high, options):
    """Field cases 25, 26: a ping in a frame of every size up to the MTU comes back whole; tagged frames, longer ones
    and ones too short for a header do no harm; a flood of pings afterwards is answered to the last, and QEMU has
    nothing to say of the driver.
    """
    got = inside(sluice, image, SWEEP, low, high, 1000, *options)
    assert got["missing"] == [] and got["flooded"] == 1000, got
    assert got["said"] == "", got["said"]


MERGED = """
    vm_module.SMP = "4"
    with Lab(LabSpec(link=None)) as lab:
        (row,) = run_test(lab, Test("tcp", parallel=8, reverse=True, time_s=float(sys.argv[3]), vm=spec("-")))
        with wire.Served(spec()) as guest:
            answer({"row": row, "echo": wire.tcp_echo(8, int(sys.argv[4])), "alive": wire.alive(),
                    "said": guest.vm.qemu_said})
"""


def check_merged(sluice, image, seconds, each_bytes):
    got = inside(sluice, image, MERGED, seconds, each_bytes, timeout=120 + 2 * seconds)
    row, guest = got["row"], got["row"]["guest"]
    assert row["valid"] and guest["net"]["lro_frames"] > 100 and guest["net"]["csum_bad"] == 0, row
    clean(guest)
    assert got["echo"] == [True] * 8 and got["alive"] and got["said"] == "", got


def test_merged_buffers_on_four_processors(sluice, image):
    """Field case 30: a machine of four processors, of which the guest uses one; the device joins segments and spreads
    them over merged buffers. Eight streams arrive, eight streams come back byte for byte, and the guest is alive.
    """
    check_merged(sluice, image, 1.0, 2000000)


@pytest.mark.long
def test_merged_buffers_on_four_processors_for_long(sluice, image):
    """Field case 30: for long."""
    check_merged(sluice, image, 60.0, 100000000)


# ---- content under loss ----

LOSSY = """
    seconds, each_bytes, size = float(sys.argv[3]), int(sys.argv[4]), 13001
    timer = ("tx=timer", "x-txtimer=15000000")
    whole = bytes(ord("0") + i % 10 for i in range(size)) * 40
    sums = {"bytes": 0, "wrong": 0, "streams": 0}

    def pump(source, target, check):
        at = -37  # the cookie
        while data := source.recv(262144):
            if check:
                pattern = data[max(0, -at):]
                start = max(at, 0) % size
                sums["wrong"] += whole[start:start + len(pattern)] != pattern
                sums["bytes"] += len(pattern)
                at += len(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def proxy(listener):
        "Between guest and iperf3 server: the first connection is the control connection, the others are data."
        for number in range(1 + 4):
            source, _ = listener.accept()
            wire.enter_netns("far")
            target = socket.create_connection(("127.0.0.1", 5202))
            sums["streams"] += number > 0
            for args in ((source, target, number > 0), (target, source, False)):
                threading.Thread(target=pump, args=args, daemon=True).start()

    with Lab(LabSpec(link=None)) as lab, wire.LossyWire(0.02) as far:
        with wire.Served(spec(device_options=timer)) as guest:
            echo = wire.run_in_netns("far", wire.tcp_echo, 4, each_bytes)
            alive = wire.alive()
            said = guest.vm.qemu_said
        server = wire.start_iperf("far", 5202)
        listener = wire.run_in_netns("far", socket.create_server, (far.IP, 5201))
        threading.Thread(target=proxy, args=(listener,), daemon=True).start()
        # With so small a window most writes are cut.
        words = ("test=tcp", f"server={far.IP}", STATIC, f"size={size}", f"time={seconds:g}", "parallel=4",
                 "window=64K")
        with VM(spec(*words, device_options=timer)) as vm:
            result = vm.wait(None, 60 + seconds)
            answer({"echo": echo, "alive": alive, "said": said + vm.qemu_said, "code": result.code,
                    "reason": result.reason, "report": result.report, "sums": sums, "lost": far.lost,
                    "carried": far.carried})
"""


def check_lossy(sluice, image, seconds, each_bytes):
    got = inside(sluice, image, LOSSY, seconds, each_bytes, timeout=120 + 2 * seconds)
    assert got["lost"] > 20 and 0.01 < got["lost"] / got["carried"] < 0.05, got
    assert got["echo"] == [True] * 4 and got["alive"], got
    assert got["code"] == 0, (got["reason"], got["sums"])
    guest = got["report"]["sluice"]
    clean(guest)
    assert guest["net"]["tcp_retransmits"] > 0, guest["net"]
    sums = got["sums"]
    assert sums["streams"] == 4 and sums["wrong"] == 0, sums
    assert sums["bytes"] >= got["report"]["end"]["sum_received"]["bytes"] > 0, (sums, got["report"]["end"])
    assert got["said"] == "", got["said"]


def test_content_while_frames_are_lost(sluice, image):
    """Field case 29: one frame in fifty is lost, and the device keeps frames for 15 ms, so that segments are sent anew
    while the first is still in the ring. Data that is referred to (4 senders) and data in a buffer that is used again
    at once (4 echoes) arrive byte for byte.
    """
    check_lossy(sluice, image, 2.0, 150000)


@pytest.mark.long
def test_content_while_frames_are_lost_for_long(sluice, image):
    """Field case 29: for ten minutes."""
    check_lossy(sluice, image, 600.0, 5000000)


# ---- what a device can offer ----

OFFERED = """
    ODD = "02:fe:01:80:7f:ff"
    cells = {
        "no merging": ("mrg_rxbuf=off",),
        "packed": ("packed=on",),
        "packed, no merging": ("packed=on", "mrg_rxbuf=off"),
        "hash": ("hash=on",),
        "rss": ("rss=on",),
        "mq": ("mq=on",),
        "all": ("hash=on", "rss=on", "mq=on", "vectors=6", "packed=on", "guest_announce=on"),
        "platform": ("iommu_platform=on",),
        "modern": ("host_mtu=1400",),
        "transitional": ("host_mtu=1400", "disable-legacy=off"),
    }
    got = {}
    with Lab(LabSpec(link=None)) as lab:
        import shell
        shell.run("ip", "neigh", "replace", GUEST_IP, "lladdr", ODD, "nud", "permanent", "dev", "br0")
        shell.run("bridge", "fdb", "add", ODD, "dev", "tap0", "master", "static")
        for name, options in cells.items():
            with wire.Served(spec(mac=ODD, device_options=options)) as guest:
                got[name] = {"lines": guest.lines, "ping": wire.ping(3), "udp": wire.udp_echo((1, 1372, 1473, 9000)),
                             "tcp": wire.tcp_echo(2, 300000), "said": guest.vm.qemu_said}
    answer(got)
"""
EXTRA_BITS = {"packed": 34, "packed, no merging": 34, "hash": 57, "rss": 60, "mq": 22, "all": 57, "platform": 33}


def boot_line(lines):
    (line,) = [line for line in lines if "features offered" in line]
    words = line.replace(",", "").split()
    return words[1], int(words[4], 16), int(words[6], 16)


def test_whatever_the_device_offers(sluice, image):
    """Field cases 33, 34, 37: without merging, with packed rings, hashes, RSS, several queues, an IOMMU, a transitional
    device, one at a time and at once. Pings, datagrams and streams come back whole in each; the masks are printed at
    boot, nothing is accepted that is not offered or not known, and address and MTU are those of the command line.
    """
    got = inside(sluice, image, OFFERED)
    for name, cell in got.items():
        assert cell["ping"] == 3 and cell["udp"] == [True] * 4 and cell["tcp"] == [True] * 2, (name, cell)
        assert all("bpf" in line for line in cell["said"].splitlines()), (name, cell["said"])  # QEMU's own business
        mac, offered, accepted = boot_line(cell["lines"])
        assert mac == "02:fe:01:80:7f:ff", (name, mac)
        assert accepted & ~offered == 0 and accepted & ~KNOWN_FEATURES == 0, (name, hex(offered), hex(accepted))
        assert name not in EXTRA_BITS or offered >> EXTRA_BITS[name] & 1, (name, hex(offered))
        assert accepted >> 15 & 1 == ("no merging" not in name), (name, hex(accepted))
        mtu = 1400 if name in ("modern", "transitional") else 1500
        assert any(f"mtu {mtu}," in line for line in cell["lines"]), (name, cell["lines"])
