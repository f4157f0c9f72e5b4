# SPDX-License-Identifier: BSD-2-Clause
"""Faults that others reported of rings, tried on the booted guest. Numbers are those of docs/field-cases.md; what needs
a device that misbehaves, or two real threads, is in test_field_ring.c, test_field_counts.c and test_field_threads.c of
tests/unit.

    guest --> tap0 --> br0 (host: pings, floods) --> veth0 --> veth1 in ext: iperf3 -s
"""

import re

import pytest
from test_field_driver import clean, inside

MORE = """
    def tap_counter(column):
        "Frames that QEMU took from the tap , or that found its queue full."
        with open("/proc/net/dev", encoding="ascii") as table:
            return int(next(line for line in table if "tap0:" in line).split(":")[1].split()[column])

    TAKEN, DROPPED = 9, 11

    def flood(make, until):
        "Sends what make(number) gives as fast as it goes, until until(sent) says so."
        sent = 0
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            while not until(sent):
                for _ in range(100):
                    try:
                        raw.sendto(make(sent), (GUEST_IP, 0))
                        sent += 1
                    except OSError:
                        break  # the queue of the tap is full
        return sent

    def ip_packet(protocol, payload):
        return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0, bytes(4),
                           socket.inet_aton(GUEST_IP)) + payload

    def udp_to(port, size):
        packet = ip_packet(17, struct.pack("!HHHH", 4000, port, 8 + size, 0) + bytes(size))
        return lambda number: packet

    def refused(address=GUEST_IP):
        "The guest's TCP answers: nobody listens there."
        try:
            socket.create_connection((address, 9), 2).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False
"""


def lab(sluice, image, source, *argv, timeout=90):
    return inside(sluice, image, MORE + source, *argv, timeout=timeout)


def row_is_clean(row):
    assert row["valid"] and row["ledger_ok"], row.get("invalid_reason")
    clean(row["guest"])


# ---- one way only ----

ONE_WAY = """
    from lab_vxlan import GUEST_INNER, VxlanLab, VxlanSpec
    where, options, seconds = sys.argv[3], tuple(filter(None, sys.argv[4].split("+"))), float(sys.argv[5])
    tunnel = where == "vxlan"
    address = GUEST_INNER if tunnel else GUEST_IP
    after = {}
    with VxlanLab(VxlanSpec("inner")) if tunnel else Lab(LabSpec()) as lab:
        lab.start_server()
        test = Test(time_s=seconds, size_bytes=1422 if tunnel else 1472, parallel=4,
                    guest=("interval=0.5", "drain=2", "tx.size=64", f"ip={address}/{PREFIX}"))
        with VM(spec(*guest_words(test, lab), sndbuf=1 << 20, device_options=options, silence_s=12.0)) as vm:
            def look():
                after["ping"] = wire.run_in_netns("ext", wire.ping, 20, 48, address)
                after["refused"] = wire.run_in_netns("ext", refused, address)
            # Sending begins within a second of the first line; the drain's quiet ends two seconds after it.
            when = [(seconds + 1, threading.Thread(target=look, daemon=True).start)]
            result = vm.wait(None, seconds + 40, when)
            answer({"code": result.code, "reason": result.reason, "report": result.report, "after": after,
                    "said": vm.qemu_said})
"""
TIMER = "tx=timer+x-txtimer=15000000"


def check_one_way(sluice, image, where, options, seconds):
    got = lab(sluice, image, ONE_WAY, where, options, seconds, timeout=90 + 2 * seconds)
    assert got["code"] == 0, got
    guest, (tx,), (rx,) = got["report"]["sluice"], got["report"]["sluice"]["tx"], got["report"]["sluice"]["rx"]
    clean(guest)
    intervals = [i["sum"] for i in got["report"]["intervals"] if i["sum"]["seconds"] > 0.4]
    assert len(intervals) >= 2 * seconds - 1 and all(i["packets"] > 0 for i in intervals), intervals
    # What wakes the sender is not what comes in: beside the control connection nothing does.
    assert tx["wakes"] > rx["packets"] and tx["interrupts"] > rx["interrupts"], (tx, rx)
    assert tx["timer_reaps"] == 0, tx
    assert guest["drain"]["in_flight_zero"] and got["after"] == {"ping": 20, "refused": True}, got["after"]
    assert got["said"] == "", got["said"]


@pytest.mark.parametrize("where, options", [("tap", ""), ("tap", "event_idx=off"), ("tap", TIMER), ("vxlan", "")])
def test_one_way_transmit(sluice, image, where, options):
    """Field case 1: UDP at full rate to a sink that never answers, with and without the event index, with a device that
    looks at the ring every 15 ms only, and through a tunnel: no interval without a packet, the sender is woken by its own
    interrupts (more often than anything comes in), and afterwards the guest is clean and alive.
    """
    check_one_way(sluice, image, where, options, 1)


@pytest.mark.long
@pytest.mark.parametrize("where, options", [("tap", ""), ("tap", "event_idx=off"), ("tap", TIMER), ("vxlan", "")])
def test_one_way_transmit_for_long(sluice, image, where, options):
    """Field case 1: the same for a minute each."""
    check_one_way(sluice, image, where, options, 60)


# ---- an idle guest, then very many frames ----

IDLE = """
    idle_s, frames = float(sys.argv[3]), int(sys.argv[4])
    pings, said = {}, []
    with Lab(LabSpec(link=None)) as lab:
        lab.start_server()
        # One datagram a second, so that there is a report at the end.
        test = Test(time_s=2 * idle_s + 5 + frames / 30000, size_bytes=16, rate="128")
        with VM(spec(*guest_words(test, lab), device_options=("event_idx=on",), silence_s=12.0)) as vm:
            def ask(name):
                answered, asked, end = 0, 0, time.monotonic() + idle_s
                while time.monotonic() < end:
                    asked += 1
                    answered += wire.ping(1)
                    time.sleep(1.0 if idle_s > 60 else 0.1)
                pings[name] = [asked, answered]
            def work():
                time.sleep(1.0)
                ask("before")
                start = tap_counter(TAKEN)
                give_up = time.monotonic() + 60
                until = lambda _: tap_counter(TAKEN) - start > frames or time.monotonic() > give_up
                flood(udp_to(9, 18), until)
                time.sleep(0.5)
                ask("after")
            worker = threading.Thread(target=work, daemon=True)
            result = vm.wait(None, 2 * idle_s + 60, [(0.0, worker.start)])
            answer({"code": result.code, "reason": result.reason, "report": result.report, "pings": pings,
                    "said": vm.qemu_said})
"""


def check_idle(sluice, image, idle_s, frames):
    got = lab(sluice, image, IDLE, idle_s, frames, timeout=120 + 2 * idle_s)
    assert got["code"] == 0, got
    guest, (tx,), (rx,) = got["report"]["sluice"], got["report"]["sluice"]["tx"], got["report"]["sluice"]["rx"]
    clean(guest)
    for asked, answered in got["pings"].values():
        assert asked == answered > 3, got["pings"]
    assert set(got["pings"]) == {"before", "after"} and rx["packets"] > frames, (got["pings"], rx)
    # Real interrupts did the work, one for each ping at least.
    assert tx["timer_reaps"] == 0, tx
    assert rx["interrupts"] >= sum(asked for asked, _ in got["pings"].values()), rx
    assert got["said"] == "", got["said"]


def test_pings_around_a_flood(sluice, image):
    """Field case 7: with the event index an idle guest answers each ping, takes more frames than an index has values,
    and answers each ping again, all by interrupts: the safety timer's counters stay 0.
    """
    check_idle(sluice, image, 1, 66000)


@pytest.mark.long
def test_pings_around_a_flood_for_long(sluice, image):
    """Field case 7: a ping a second for five minutes, 200,000 frames, and again."""
    check_idle(sluice, image, 300, 200000)


# ---- floods ----

FLOOD = """
    kind, size, loops, count, seconds = sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]), float(sys.argv[7])
    make = udp_to(7, 18) if kind == "udp" else lambda n: ip_packet(1, wire.echo_request(n, bytes(32), 99))
    results = []
    with Lab(LabSpec(link=None)) as lab, wire.Served(spec(device_options=(f"rx_queue_size={size}",))) as guest:
        for _ in range(loops):
            end = time.monotonic() + seconds
            dropped = tap_counter(DROPPED)
            sent = flood(make, lambda n: n >= count if count else time.monotonic() > end)
            dropped = tap_counter(DROPPED) - dropped
            # The tap's queue is full yet: the first ones may find no room in it.
            answered = any(wire.ping(1, within_s=0.1) for _ in range(10))
            results.append({"sent": sent, "dropped": dropped, "answered": answered})
        time.sleep(0.5)
        answer({"results": results, "alive": wire.alive(), "said": guest.vm.qemu_said})
"""


def check_flood(sluice, image, kind, size, loops, count=0, seconds=0.0):
    got = lab(sluice, image, FLOOD, kind, size, loops, count, seconds, timeout=120 + loops * (seconds + 10))
    assert len(got["results"]) == loops and got["alive"] and got["said"] == "", got
    for result in got["results"]:
        # The tap's queue overflows only while the ring has no buffer: the guest was slower than the wire.
        assert result["dropped"] > 0 and result["answered"], got


def test_flood_ping(sluice, image):
    """Field case 9: 60,000 pings as fast as the host can, into a ring of 256: it runs empty many times, some are lost,
    and afterwards each ping is answered.
    """
    check_flood(sluice, image, "icmp", 256, 1, count=60000)


@pytest.mark.parametrize("size", [256, 512, 1024])
def test_floods_that_stop(sluice, image, size):
    """Field case 11: UDP faster than the guest reads, and a stop: a ping is answered within a second, each time, for each size of
    the ring, and the guest is alive.
    """
    check_flood(sluice, image, "udp", size, 4, seconds=0.3)


@pytest.mark.long
@pytest.mark.parametrize("size", [256, 512, 1024])
def test_floods_that_stop_for_long(sluice, image, size):
    """Field cases 9, 11: fifty floods of each size."""
    check_flood(sluice, image, "udp", size, 50, seconds=3.0)


# ---- exact counts ----

COUNTS = """
    counts = list(map(int, sys.argv[3:]))
    WINDOW = 48  # below what the ring and the host's socket hold
    with Lab(LabSpec(link=None)) as lab, wire.Served(spec()) as guest:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect((GUEST_IP, 7))
        sock.settimeout(3)
        sent = back = 0
        right, pings = wire.ping(1) == 1, []  # the guest knows us from here on
        for count in counts:
            while back < count:
                while sent < min(count, back + WINDOW):
                    sock.send(struct.pack("!Q", sent))
                    sent += 1
                right &= sock.recv(100) == struct.pack("!Q", back)
                back += 1
            pings.append(wire.ping(1))
        answer({"back": back, "right": right, "pings": pings, "alive": wire.alive(), "said": guest.vm.qemu_said})
"""


def check_counts(sluice, image, *counts):
    got = lab(sluice, image, COUNTS, *counts, timeout=120)
    assert got == {"back": counts[-1], "right": True, "pings": [1] * len(counts), "alive": True, "said": ""}, got


@pytest.mark.parametrize("counts", [(255, 256, 257), (65535, 65536, 65537)])
def test_counts_around_a_wrap(sluice, image, counts):
    """Field case 10: so many datagrams in, and as many out, in order, with a ping after each count: no stall where the
    ring wraps for the first time, nor where the index does.
    """
    check_counts(sluice, image, *counts)


@pytest.mark.long
@pytest.mark.parametrize("count", [255, 256, 257, 65535, 65536, 65537, 131073])
def test_counts_each_from_boot(sluice, image, count):
    """Field case 10: each count on a fresh guest."""
    check_counts(sluice, image, count)


# ---- many short connections ----

CONNECTIONS = """
    backend, total = sys.argv[3], int(sys.argv[4])
    bad, background = [], []
    def connect_all(to, udp_to):
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        probe.settimeout(2)
        for n in range(total):
            text = struct.pack("!Q", n)
            try:
                with socket.create_connection(to, 3) as sock:
                    sock.settimeout(3)
                    sock.sendall(text)
                    if sock.recv(8, socket.MSG_WAITALL) != text:
                        bad.append(n)
            except OSError as error:
                bad.append([n, str(error)])
            if n % 10 == 0:
                probe.sendto(text, udp_to)
                background.append(probe.recv(100) == text)
    if backend == "user":
        netdev = "user,id=n0,hostfwd=tcp:127.0.0.1:5007-:7,hostfwd=udp:127.0.0.1:5007-:7"
        with wire.Served(spec("ip=10.0.2.15/24", "gw=10.0.2.2", netdev=netdev)) as guest:
            connect_all(("127.0.0.1", 5007), ("127.0.0.1", 5007))
            answer({"bad": bad, "background": all(background), "said": guest.vm.qemu_said})
    with Lab(LabSpec(link=None)) as lab, wire.Served(spec()) as guest:
        connect_all((GUEST_IP, 7), (GUEST_IP, 7))
        answer({"bad": bad, "background": all(background), "said": guest.vm.qemu_said, "alive": wire.alive()})
"""


def check_connections(sluice, image, backend, total):
    got = lab(sluice, image, CONNECTIONS, backend, total, timeout=90 + total / 20)
    assert got["bad"] == [] and got["background"] and got.get("alive", True) and got["said"] == "", got


@pytest.mark.parametrize("backend", ["user", "tap"])
def test_short_connections(sluice, image, backend):
    """Field case 12: short TCP connections one after the other, by way of QEMU's own forwarder and of a tap, with
    datagrams beside them: each is answered.
    """
    check_connections(sluice, image, backend, 150)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["user", "tap"])
def test_short_connections_for_long(sluice, image, backend):
    """Field case 12: more of them than 16,384."""
    check_connections(sluice, image, backend, 16500)


# ---- kicks ----

KICKS = """
    rate, seconds, options = sys.argv[3], float(sys.argv[4]), tuple(filter(None, sys.argv[5].split("+")))
    with Lab(LabSpec(link=None)) as lab:
        lab.start_server()
        test = Test(time_s=seconds, size_bytes=16, rate=rate)
        # With an eventfd between, kicks that come close together are one to QEMU.
        options += ("ioeventfd=off",)
        with VM(spec(*guest_words(test, lab), device_options=options, more=("-trace", "virtio_queue_notify"),
                     silence_s=12.0)) as vm:
            result = vm.wait(None, 60)
            answer({"code": result.code, "reason": result.reason, "report": result.report, "said": vm.qemu_said})
"""


def kicks_and_packets(sluice, image, rate, seconds, options):
    """What QEMU saw of kicks of the transmit queue, and the frames; the guest must have counted the same kicks."""
    got = lab(sluice, image, KICKS, rate, seconds, options)
    assert got["code"] == 0, got
    (tx,) = got["report"]["sluice"]["tx"]
    clean(got["report"]["sluice"])
    seen = len(re.findall(r"virtio_queue_notify vdev \S+ n 1 ", got["said"]))
    # A few frames of the farewell leave behind the report.
    assert tx["kicks"] <= seen <= tx["kicks"] + 3, (seen, tx)
    return tx["kicks"], tx["packets"], tx["kicks_suppressed"]


@pytest.mark.parametrize("options", ["", "event_idx=off+packed=on"])
def test_kicks_at_each_rate(sluice, image, options):
    """Field case 14: counted by QEMU's trace, with either form of suppression, and on a device that offers a packed ring:
    a kick for about each packet when idle, far fewer than packets at full rate, and at no rate none.
    """
    kicks, packets, _ = kicks_and_packets(sluice, image, "512", 2, options)
    assert 0.8 * packets <= kicks <= packets, (kicks, packets)
    kicks, packets, _ = kicks_and_packets(sluice, image, "1.28m", 0.5, options)
    assert 0 < kicks <= packets and packets > 4500, (kicks, packets)
    kicks, packets, suppressed = kicks_and_packets(sluice, image, "0", 0.5, options)
    assert 0 < kicks < packets / 4 and suppressed > 0 and packets > 4500, (kicks, packets, suppressed)


# ---- sizes, streams, pieces ----


def two_streams(sluice, *options):
    words = [w for option in options for w in ("--device", option)]
    done = sluice("run", "tcp", "--time", "1", "--parallel", "2", "--bidir", *words, "--json", "-")
    assert done.code == 0, done
    for row in done.rows:
        row_is_clean(row)
    return [row["bits_per_second"] for row in done.rows], done.rows[0]["guest"]["rx"][0]["size_descs"]


def test_ring_sizes(sluice, image):
    """Field case 16: two streams each way at once, with rings of 256, 512 and 1024 on modern devices and on a transitional
    one: clean, of the size offered, and none slower than another by more than a third.
    """
    rates = []
    for size, legacy in ((256, "on"), (512, "off"), (1024, "on")):
        found, descs = two_streams(sluice, f"rx_queue_size={size}", f"disable-legacy={legacy}")
        assert descs == size
        rates.append(found)
    for direction in zip(*rates):
        assert min(direction) > 0.67 * max(direction), rates


def test_legacy_only_is_refused_in_words(sluice, image):
    """Field case 16: a device with the legacy interface alone is refused with one line, not by a panic."""
    done = sluice("run", "udp", "--time", "1", "--device", "disable-legacy=off", "--device", "disable-modern=on",
                  "--json", "-")  # fmt: skip
    assert done.code == 2 and "no modern interface" in done.json["verdict"], done


def check_streams(sluice, seconds):
    done = sluice("run", "tcp", "--time", seconds, "--parallel", "16", "--bidir", "--link", "none", "--json", "-",
                  timeout=90 + 2 * seconds)  # fmt: skip
    assert done.code == 0 and len(done.rows) == 2, done
    for row in done.rows:
        row_is_clean(row)
        assert all(i["bits_per_second"] > 0 for i in row["intervals"]), row["intervals"]


def test_sixteen_streams(sluice, image):
    """Field case 17: sixteen streams each way at once: no interval without data, no id that was not given out."""
    check_streams(sluice, 2)


@pytest.mark.long
def test_sixteen_streams_for_long(sluice, image):
    """Field case 17: the same for ten minutes."""
    check_streams(sluice, 600)


PIECES = """
    options = tuple(filter(None, sys.argv[3].split("+")))
    with Lab(LabSpec(link=None)) as lab:
        (row,) = run_test(lab, Test("tcp", size_bytes=16, time_s=1, vm=spec("-", device_options=options)))
        with wire.Served(spec(device_options=options)) as guest:
            answer({"row": row, "exact": wire.tcp_echo(2, 500000), "alive": wire.alive(), "said": guest.vm.qemu_said})
"""


@pytest.mark.parametrize("options", ["indirect_desc=on", "indirect_desc=off+host_tso4=off"])
def test_writes_of_sixteen_bytes(sluice, image, options):
    """Field case 19: TCP written 16 bytes at a time, some ninety writes a segment, with and without indirect descriptors:
    nothing is stuck or sent twice, and what is echoed comes back as it went.
    """
    got = lab(sluice, image, PIECES, options)
    row_is_clean(got["row"])
    assert got["row"]["bits_per_second"] > 0 and got["row"]["retransmits"] == 0, got["row"]
    assert got["exact"] == [True, True] and got["alive"] and got["said"] == "", got


# ---- a pin for two ----

TWO_NICS = """
    with Lab(LabSpec(link=None)) as lab:
        second = ("-netdev", "user,id=n9", "-device",
                  "virtio-net-pci,netdev=n9,vectors=0,disable-legacy=on,romfile=,bus=pcie.0,addr=0x8")
        machine = spec("-", device_options=("vectors=0", "bus=pcie.0", "addr=0x4"), more=second)
        rows = run_test(lab, Test("tcp", time_s=1, bidir=True, vm=machine))
        answer({"rows": rows})
"""


def test_two_devices_on_one_pin(sluice, image):
    """Field case 20: two devices without vectors, in slots whose pins are one line: traffic both ways, nothing is taken
    for a completion that is none.
    """
    for row in lab(sluice, image, TWO_NICS)["rows"]:
        row_is_clean(row)
        assert row["bits_per_second"] > 0, row
