# SPDX-License-Identifier: BSD-2-Clause
"""Something on the path breaks in mid-test: the cause is named, the exit code says so, within 10 s, nothing stays."""

import pytest
from conftest import wait_gone

pytestmark = pytest.mark.usefixtures("image")
AT_S, WITHIN_S = 1.0, 10.0
BOOT_AND_LAB_S = 2.5  # until the guest's first line, on a machine that has other work, too
PEER, INVALID = 2, 4


def broken(runner, protocol, *argv, code=PEER, words=(), within_s=AT_S + WITHIN_S):
    done = runner("run", protocol, "--time", "6", "--json", "-", *argv, timeout=60)
    assert done.code == code, done
    assert not done.json["ok"] and not any(r["valid"] for r in done.rows), done
    for word in words:
        assert word in done.json["verdict"], done
    assert done.seconds < within_s + BOOT_AND_LAB_S, done
    assert not wait_gone(done.mark)
    return done


@pytest.mark.parametrize("fault, word", [("nic", "veth0 is down"), ("server", "iperf3 server was killed")])
def test_breaks_while_receiving(sluice, fault, word):
    broken(sluice, "tcp", "--reverse", "--fault", f"{fault}@{AT_S}", words=[word])


def test_breaks_as_a_user(sluice_as):
    broken(sluice_as, "udp", "--fault", f"link@{AT_S}", words=["link"])


def test_pause(sluice):
    """QEMU drops the one frame that waits for the tap when it stops the guest: a place of its own, not a mystery."""
    done = sluice("run", "udp", "--time", "3", "--fault", "pause@1:1", "--json", "-")
    assert done.code == 0, done
    row = done.rows[0]
    assert row["valid"] and row["unaccounted"] == 0, row
    assert row["device_dropped"] == row["frames"]["dropped"]["qemu"] <= 1, row
    assert ("QEMU, at the pause 1" in done.json["verdict"]) == bool(row["device_dropped"]), done


def test_link_that_comes_back_spoils_the_row(sluice):
    """The test may end, but the figures are those of a broken path."""
    broken(sluice, "udp", "--fault", "link@1:0.5", code=INVALID, words=["fault link"], within_s=20)


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_stall_and_recovery(sluice, protocol):
    """The tap takes no frame for 4 s, longer than several RTOs: afterwards it goes on, and nothing was lost.

    The stall is real: the host puts the limit of the tap's send buffer below what is queued already.
    """
    done = sluice("run", protocol, "--time", "7", "--fault", "stall@1:4", "--json", "-", timeout=60)
    assert done.code == 0, done
    row = done.rows[0]
    assert row["valid"] and row["ledger_ok"] and row["unexpected_full"] == 0, row
    if protocol == "udp":
        assert row["sent"] == row["received"] and row["sent"] > 20000, row
    else:
        assert row["bits_per_second"] > 20e6, row
        assert row["retransmits"] <= 1, row  # after a stall longer than the RTO one is allowed
    intervals = row["intervals"]
    quiet = [i for i in intervals if i["start"] >= 1.9 and i["end"] <= 4.5]
    assert quiet and all(i["bits_per_second"] < 1e6 for i in quiet), intervals
    assert intervals[-1]["bits_per_second"] > 50e6, intervals
