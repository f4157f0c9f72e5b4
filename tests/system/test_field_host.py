# SPDX-License-Identifier: BSD-2-Clause
"""Faults that others reported of hosts (short runs one after the other, a host that stands still, short queues), tried
on the booted guest. Numbers are those of docs/field-cases.md.
"""

import pytest
from field_guest import inside

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
