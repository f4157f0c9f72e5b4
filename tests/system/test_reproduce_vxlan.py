# SPDX-License-Identifier: BSD-2-Clause
"""Field report C in one command. The topologies are drawn in host/lab_vxlan.py:

    A: iperf3 or a guest --> vxa ==> ua --> ub ==> vxb: B's iperf3 server, GRO of vxb on and off
"""

import plot
import pytest
import reproduce_vxlan

EXIT_OK, EXIT_THRESHOLD, EXIT_INVALID = 0, 3, 4
TIMEOUT_S = 150  # --quick takes 40 s on a machine that does nothing else


@pytest.mark.parametrize(
    "on, off, dropped, decision",
    [
        ([9.1, 9.0, 8.9], [8.1, 8.2, 8.0], 0, "no fault"),
        ([6.8, 6.9, 7.0], [8.1, 8.2, 8.0], 9585, "fault"),
        ([6.8, 6.9, 7.0], [8.1, 8.2, 8.0], 0, "undecided"),  # slower, but nothing overflowed: another cause
        ([6.8, 6.9, 8.05], [8.1, 8.2, 8.0], 9585, "undecided"),  # one run with GRO on beats one without
        ([7.9, 7.5, 8.2], [8.0, 8.3, 7.6], 0, "no fault"),  # within the spread
        ([7.9, 7.9, 7.9], [8.0, 8.5, 7.6], 0, "undecided"),  # on never varies, and is below
        ([], [], 0, "undecided"),
        ([9.0, 9.0], [8.0], 0, "undecided"),
    ],
)
def test_rule(on, off, dropped, decision):
    """What the figures must be for each of the three verdicts."""
    assert reproduce_vxlan.decide(on, off, dropped) == decision


def test_what_was_not_measured_is_said():
    """The guest as the receiver has GRO on only: the place beside its bar does not look like 0."""
    row = {"path": "guest-vtep", "sender": "guest", "flows": 12, "rps": "off", "nic_gro": "off", "bits_per_second": 1e9,
           "retransmits": 423}  # fmt: skip
    both = [{**row, "gro": gro, "direction": "guest-to-host"} for gro in ("on", "off")]
    to_guest = {**row, "gro": "on", "direction": "host-to-guest"}
    picture = reproduce_vxlan._picture([*both, to_guest])
    text = plot.script(picture, "x.svg", "svg", "host")
    assert text.count(plot.NOT_MEASURED) == len(picture.panels) == 2
    assert all(f'"{plot.NOT_MEASURED}" at 1.200' in panel for panel in text.split("set title")[1:]), text
    whole = reproduce_vxlan._picture(both)
    assert plot.NOT_MEASURED not in plot.script(whole, "x.svg", "svg", "host")


def _pairs(rows, gro):
    native = [r for r in rows if r["path"] == "tunnel" and r["sender"] == "native" and r["rps"] == "off"]
    return [r for r in native if r["pair"] is not None and r["gro"] == gro]


def test_quick(sluice, image):
    """Every path and sender, each packet of the receiver accounted for, and a verdict that follows from the rows."""
    done = sluice("reproduce", "vxlan", "--quick", "--json", "-", "--plot", "c.svg", timeout=TIMEOUT_S)
    assert done.code in (EXIT_OK, EXIT_INVALID), done
    result = done.json
    rows = result["rows"]
    kinds = {(r["path"], r["sender"], r["gro"]) for r in rows}
    for path, sender in (("underlay", "native"), ("tunnel", "native"), ("tunnel", "guest"), ("guest-vtep", "guest")):
        assert {(path, sender, "on"), (path, sender, "off")} <= kinds
    for row in rows:
        assert row["valid"] and row["unaccounted"] == 0 and row["checksum_errors"] == 0, row
        assert row["bits_per_second"] > 0 and row["packets_wire"] > 0, row
    on, off = _pairs(rows, "on"), _pairs(rows, "off")
    assert len(on) == len(off) == 5
    speeds = [[r["bits_per_second"] for r in some] for some in (on, off)]
    assert result["decision"] == reproduce_vxlan.decide(*speeds, sum(r["rx_dropped"] for r in on))
    assert (result["decision"] == "no fault") == (done.code == EXIT_OK)
    joined = [r["aggregation"] for r in rows if r["path"] == "tunnel" and r["sender"] == "native" and r["gro"] == "on"]
    apart = [r["aggregation"] for r in rows if r["path"] == "tunnel" and r["gro"] == "off"]
    assert min(joined) > 2 and max(apart) < 1.1
    picture = (sluice.cwd / "c.svg").read_text()
    assert picture.startswith("<?xml") and "Gbit/s" in picture and "GRO off" in picture


def test_guest_ends_the_tunnel(sluice, image):
    """The guest's own tunnel moves TCP both ways, with 1 and 12 flows, and the host finds no wrong checksum."""
    done = sluice("reproduce", "vxlan", "--quick", "--only", "guest-vtep", "--json", "-", timeout=TIMEOUT_S)
    rows = [r for r in done.json["rows"] if r["path"] == "guest-vtep"]
    assert {(r["direction"], r["flows"]) for r in rows} >= {
        ("guest-to-host", 1), ("guest-to-host", 12), ("host-to-guest", 12)}, done  # fmt: skip
    for row in rows:
        assert row["valid"] and row["ledger_ok"] and row["checksum_errors"] == 0, row
        assert row["bits_per_second"] > 1e6 and row["unaccounted"] == 0, row


@pytest.mark.long
@pytest.mark.parametrize("sluice_as", ["user"], indirect=True)
def test_seeded_fault(sluice_as, image):
    """Cells that overflow are found: every run with GRO on is slower, and the tunnel's interface says why."""
    done = sluice_as("reproduce", "vxlan", "--seed-fault", "--json", "-", timeout=TIMEOUT_S)
    rows = done.json["rows"]
    on = [r for r in rows if r["gro"] == "on"]
    assert min(r["rx_dropped"] for r in on) > 1000, done
    assert not any(r["rx_dropped"] for r in rows if r["gro"] == "off")
    if done.code == EXIT_INVALID:
        pytest.skip(f"this machine is too busy to tell runs apart: {done.json['verdict']}")
    assert done.code == EXIT_THRESHOLD and done.json["decision"] == "fault", done
