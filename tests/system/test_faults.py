# SPDX-License-Identifier: BSD-2-Clause
"""What breaks on the way is named, with the exit code for it, within 10 s, and nothing is left running."""

import os
import random
import signal
import subprocess
import time

import pytest
from conftest import wait_gone

NOTICED_WITHIN_S = 10.0


@pytest.mark.parametrize("fault", ["link", "tap", "nic", "server"])
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_broken_in_mid_test(sluice, image, fault, protocol):
    at = 2.0
    done = sluice("run", protocol, "--time", "30", "--fault", f"{fault}@{at:g}", "--json", "-")
    assert done.code == 2, done
    # From the fault to the end; QEMU's start and the lab come before.
    assert done.seconds < at + NOTICED_WITHIN_S + 5, done
    words = {"link": "link", "tap": "tap0 is down", "nic": "veth0 is down", "server": "server"}[fault]
    assert words in done.json["verdict"], done.json["verdict"]
    assert not wait_gone(done.mark)


def test_busy_server(sluice, image):
    done = sluice("run", "udp", "--time", "5", "--busy", "--json", "-")
    assert done.code == 2 and "busy" in done.json["verdict"], done


def test_unreachable_server(sluice, image):
    """An address that nobody has: ARP stays unanswered."""
    began = time.monotonic()
    done = sluice("run", "udp", "--time", "5", "--guest", "server=10.77.0.99", "--json", "-")
    assert done.code == 2 and "10.77.0.99" in done.json["verdict"], done
    assert time.monotonic() - began < NOTICED_WITHIN_S + 5


def test_no_server_on_the_port(sluice, image):
    done = sluice("run", "tcp", "--time", "5", "--guest", "port=5999", "--json", "-")
    assert done.code == 2 and "nobody listens" in done.json["verdict"], done


@pytest.mark.parametrize(
    "word, named",
    [
        ("nonsense=1", "nonsense"),
        ("sndbuf=abc", "abc"),
        ("drain=70000", "70000"),
        ("tx.policy=hope", "hope"),
        ("tx.size=100", "100"),
    ],
)
def test_bad_guest_configuration(sluice, image, word, named):
    """The guest names the key, the value and what is allowed, and sends nothing."""
    done = sluice("run", "udp", "--time", "1", "--guest", word, "--json", "-")
    assert done.code == 1, done
    assert named in done.json["verdict"] and word.partition("=")[0] in done.json["verdict"]


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
@pytest.mark.parametrize("fault", ["stall", "pause"])
def test_stall_and_recovery(sluice, image, fault, protocol):
    """The backend takes no frame for longer than several retransmission timeouts, then goes on: nothing is lost,
    nobody gives up, and the ledger balances."""
    done = sluice("run", protocol, "--time", "10", "--fault", f"{fault}@2:5", "--json", "-")
    assert done.code == 0, done
    (row,) = done.rows
    assert row["valid"] and row["ledger_ok"] and row["unexpected_full"] == 0
    assert row["tx_stops"] == row["tx_wakes"]
    if protocol == "udp":
        assert row["unaccounted"] == 0 and row["nic_dropped"] == 0
        # QEMU, when it stops the guest, drops the one frame that waits for the tap.
        assert row["sent"] == row["received"] + row["device_dropped"]
        assert row["device_dropped"] <= (1 if fault == "pause" else 0)


def test_ten_packet_queue_both_ways(sluice, image):
    """A NIC queue of 10 packets at both ends: out loses nothing there, in names every loss, no second stands still."""
    args = ("--bidir", "--time", "8", "--queue", "10", "--sndbuf", "16384", "--json", "-")
    done = sluice("run", "udp", *args)
    assert done.code == 0, done
    out = next(row for row in done.rows if row["direction"] == "guest-to-host")
    into = next(row for row in done.rows if row["direction"] == "host-to-guest")
    assert out["nic_dropped"] == 0 and out["unaccounted"] == 0 and into["unaccounted"] == 0
    for row in done.rows:
        assert row["unexpected_full"] == 0 and row["requeues"] == 0 and row["tx_stops"] == row["tx_wakes"]


def test_killed_at_twenty_random_moments(sluice, image):
    """SIGKILL at any time: no process and no file is left."""
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    before = set(os.listdir("/run"))
    for _ in range(20):
        delay = moments.uniform(0.05, 4.0)
        process, mark = sluice.start(
            "run", "udp", "--time", "5", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = wait_gone(mark)
        assert not left, f"seed {seed}, killed after {delay:.3f} s, left {left}"
    assert set(os.listdir("/run")) == before
    assert list(sluice.cwd.iterdir()) == []
