# SPDX-License-Identifier: BSD-2-Clause
"""What breaks on the way is named, with the exit code for it, within 10 s, and nothing is left running."""

import time

import pytest
from conftest import LINK_BPS, best_bps, wait_gone

NOTICED_WITHIN_S = 10.0


@pytest.mark.parametrize("fault", ["link", "tap", "nic", "server"])
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_broken_in_mid_test(sluice, image, fault, protocol):
    at = 1.0
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
def test_stall_and_recovery(sluice, image, protocol):
    """The tap takes no frame for longer than several retransmission timeouts, then goes on: nothing is lost on the way,
    nobody gives up, and the ledger balances.

    The stall is real: the host puts the limit of the tap's send buffer below what is queued already.
    """
    done = sluice("run", protocol, "--time", "7", "--fault", "stall@1:4", "--json", "-")
    row = recovered(done)
    if protocol == "udp":
        assert row["nic_dropped"] == 0 and row["sent"] == row["received"] + row["receiver_dropped"], row
        assert row["received"] > 15000, row
    else:
        assert row["retransmits"] <= 1, row  # after a stall longer than the RTO one is allowed
    intervals = row["intervals"]
    quiet = [i for i in intervals if i["start"] >= 1.9 and i["end"] <= 4.5]
    assert quiet and all(i["bits_per_second"] < 1e6 for i in quiet), intervals
    assert best_bps(intervals, start_s=5) > 0.5 * LINK_BPS, intervals


def test_stall_within_a_datagram(sluice, image):
    """Some of a datagram's 45 fragments are through when the tap stands still, and the others follow 2 s later: the
    receiver still makes it whole."""
    done = sluice("run", "udp", "--size", "65507", "--time", "4", "--fault", "stall@1:2", "--json", "-")
    row = recovered(done)
    assert row["incomplete"] == row["nic_dropped"] == 0, row
    assert row["sent"] == row["received"] + row["receiver_dropped"] > 100, row


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_pause_and_recovery(sluice, image, protocol):
    """QEMU stops the guest, whose clock stops too, for longer than the server's retransmission timeouts."""
    done = sluice("run", protocol, "--time", "2", "--fault", "pause@1:3", "--json", "-")
    row = recovered(done)
    if protocol == "udp":
        # QEMU, when it stops the guest, drops the one frame that waits for the tap.
        assert row["nic_dropped"] == 0 and row["device_dropped"] == row["frames"]["dropped"]["qemu"] <= 1, row
        assert row["sent"] == row["received"] + row["device_dropped"] + row["receiver_dropped"], row
        assert ("QEMU, at the pause 1" in done.json["verdict"]) == bool(row["device_dropped"]), done


def recovered(done):
    assert done.code == 0, done
    (row,) = done.rows
    assert row["valid"] and row["ledger_ok"] and row["unexpected_full"] == 0, row
    assert row["tx_stops"] == row["tx_wakes"], row
    return row


def test_ten_packet_queue_both_ways(sluice, image):
    """A NIC queue of 10 packets at both ends: out loses nothing there, in names every loss, no second stands still.

    Field case 56: the tap says "full" all the time, and each time somebody tries again.
    """
    args = ("--bidir", "--time", "8", "--queue", "10", "--sndbuf", "16384", "--json", "-")
    done = sluice("run", "udp", *args)
    assert done.code == 0, done
    out = next(row for row in done.rows if row["direction"] == "guest-to-host")
    into = next(row for row in done.rows if row["direction"] == "host-to-guest")
    assert out["nic_dropped"] == 0 and out["unaccounted"] == 0 and into["unaccounted"] == 0
    for row in done.rows:
        assert row["unexpected_full"] == 0 and row["requeues"] == 0 and row["tx_stops"] == row["tx_wakes"]
        seconds = [i for i in row["intervals"] if i["end"] - i["start"] > 0.5]  # without what is left at the end
        assert len(seconds) >= 8 and all(i["bytes"] > 0 for i in seconds), row["intervals"]
