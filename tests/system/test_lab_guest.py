# SPDX-License-Identifier: BSD-2-Clause
"""The booted guest in the lab: the harder cases of the accounts, and what the command prints.

    guest --> tap0 --> br0 --> veth0 (htb 100 Mbit/s, pfifo) --> veth1 in ext: iperf3 -s      and back
"""

import pytest

pytestmark = pytest.mark.usefixtures("image")
OK = 0


def run(runner, *argv, seconds=2, code=OK):
    done = runner("run", *argv, "--time", str(seconds), "--json", "-")
    assert done.code == code == done.json["exit_code"], done
    assert done.json["ok"] == (code == OK)
    return done.rows


def balanced(row):
    """Both identities, and what DESIGN wants of every valid row."""
    assert row["valid"] and row["ledger_ok"], row
    assert row["unexpected_full"] == row["requeues"] == 0, row
    assert row["tx_stops"] == row["tx_wakes"], row
    assert row["unaccounted"] == row["frames"]["unaccounted"] == 0, row
    places = ("receiver_dropped", "no_port", "tail_unread")
    if row["size_bytes"] <= 1472:
        places += ("nic_dropped", "tap_dropped", "device_dropped", "guest_dropped")
    else:
        places += ("incomplete",)
    assert row["sent"] == row["received"] + sum(row[p] for p in places), row
    assert min(row[p] for p in places) >= 0, row
    return row


def test_udp_fragmented(sluice):
    """8192 bytes are six frames: with the limit all arrive, without it the datagrams that lost one are named."""
    (row,) = run(sluice, "udp", "--size", "8192")
    balanced(row)
    assert row["nic_dropped"] == row["incomplete"] == 0, row
    (row,) = run(sluice, "udp", "--size", "8192", "--sndbuf", "none")
    balanced(row)
    assert row["incomplete"] > row["sent"] / 2 and row["nic_dropped"] > row["incomplete"], row


def test_udp_reverse(sluice):
    (row,) = run(sluice, "udp", "--reverse")
    balanced(row)
    assert row["direction"] == "host-to-guest" and row["received"] > 10000, row


def test_udp_reverse_with_a_short_queue(sluice):
    """The sender's own queue drops, and the row names it."""
    (row,) = run(sluice, "udp", "--reverse", "--queue", "10")
    balanced(row)
    assert row["nic_dropped"] > 0, row


def test_udp_with_a_warm_up(sluice):
    """The counters along the path know no warm-up: both directions add up with it, and with losses in it."""
    rows = run(sluice, "udp", "--bidir", "--queue", "10", "--sndbuf", "none", "--guest", "omit=1", seconds=1)
    for row in rows:
        balanced(row)
        assert row["nic_dropped"] > 0 and row["omit_seconds"] == 1, row
        measured = row["sent_bits_per_second"] * 1 / 8 / row["size_bytes"]
        assert row["sent"] > 1.3 * measured, row


def test_intervals_of_both_directions(sluice):
    """Each row of a bidirectional test has the intervals of its own direction."""
    rows = run(sluice, "tcp", "--bidir", "--rate", "20m")
    assert [[i["sender"] for i in row["intervals"]] for row in rows] == [[True, True], [False, False]], rows


def test_udp_to_the_host(sluice):
    """On the bridge there is no NIC: what is lost is lost in the receiver's socket, and named so."""
    (row,) = run(sluice, "udp", "--to", "host")
    balanced(row)
    assert row["sent"] - row["received"] == row["receiver_dropped"], row


@pytest.mark.parametrize("to", ["ext", "host"])
def test_datagrams_of_dhcp_are_not_the_tests(sluice, to):
    (row,) = run(sluice, "udp", "--ip", "dhcp", "--rate", "10m", "--to", to, seconds=1)
    balanced(row)
    assert row["guest"]["ip"] == "10.77.0.2"
    assert row["sent"] == row["received"], row


def test_json_goes_to_a_file(sluice):
    """With a file the table stays on standard output."""
    target = sluice.cwd / "row.json"
    done = sluice("run", "tcp", "--time", "1", "--json", str(target))
    assert done.code == OK and "Mbit/s" in done.out, done
    import json

    assert json.loads(target.read_text())["rows"][0]["test"] == "tcp"


def test_verbose_shows_what_a_person_would_type(sluice):
    done = sluice("run", "udp", "--time", "0.5", "--verbose")
    assert done.code == OK, done
    shown = [line[2:] for line in done.err.splitlines() if line.startswith("+ ")]
    for start in ("unshare", "ip netns add ext", "tc qdisc add dev veth0 root", "qemu-system-x86_64 ", "nsenter"):
        assert any(line.startswith(start) for line in shown), (start, shown)
