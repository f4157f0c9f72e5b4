# SPDX-License-Identifier: BSD-2-Clause
"""Something on the path breaks in mid-test: the cause is named, the exit code says so, within 10 s, nothing stays."""

import faults
import pytest
import report
import rows
from conftest import wait_gone
from vm import VmResult

pytestmark = pytest.mark.usefixtures("image")
USAGE, PEER, INVALID = 1, 2, 4
AT_S, WITHIN_S = 1.0, 10.0
BOOT_AND_LAB_S = 2.5  # until the guest's first line, on a machine that has other work, too


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


def test_link_that_comes_back_spoils_the_row(sluice):
    """The test may end, but the figures are those of a broken path."""
    words = ["not valid, as a fault was made: link after 1 s for 0.5 s", "the guest went on"]
    done = broken(sluice, "udp", "--fault", "link@1:0.5", code=INVALID, words=words, within_s=20)
    (fault,) = done.rows[0]["faults"]
    assert 1 <= fault["began_s"] < fault["ended_s"] < 3, fault
    assert "lab: fault link at 1." in done.err and "lab: fault link ended at 1." in done.err, done
    assert "UNACCOUNTED" not in done.err and f"FAIL ({INVALID})" not in done.err, done


@pytest.mark.parametrize("argv", [("stall@10:1", 2), ("link@10", 3), ("nic@2", 2), ("pause@2.5:1", 2)])
def test_a_fault_after_the_end_is_refused(sluice, argv):
    """It would never come, and a test that never saw it would pass."""
    text, time_s = argv
    done = sluice("run", "udp", "--time", str(time_s), "--fault", text, timeout=10)
    assert done.code == USAGE and len(done.err.strip().splitlines()) == 1, done
    assert f"--fault: '{text}'" in done.err and f"--time {time_s}" in done.err and "longer --time" in done.err, done


@pytest.mark.parametrize("text", ["link@nan", "stall@1:nan", "stall@1:inf", "link@-1"])
def test_a_fault_without_a_time(text):
    with pytest.raises(ValueError, match="NAME@SECONDS"):
        faults.parse(text)


def _judged(text, began_s, ended_s, **more):
    """A row whose figures are good, with a fault of which this became."""
    made = faults.Made(faults.parse(text), began_s, ended_s)
    sums = {"sum_sent": {"packets": 9}, "sum_received": {"packets": 9}}
    row = {"test": "udp", "direction": rows.TO_HOST, "ledger_ok": True, "unaccounted": 0, "guest": {}, "valid": True,
           "unexpected_full": 0, "requeues": 0, "frames": {"unaccounted": 0, "dropped": {}},
           "invalid_reason": None}  # fmt: skip
    row.update(more)
    rows._judge(row, rows.Test(), VmResult(0, "", {"end": sums}, [], 0.1), [], [made])
    return row


@pytest.mark.parametrize(
    "text, began_s, ended_s, code, words",
    [
        ("stall@1:1", 1.0, 2.0, 0, None),
        ("stall@1:1", None, None, INVALID, "stall after 1 s for 1 s did not come"),
        ("stall@1:1", 1.0, None, INVALID, "did not end before the guest did"),
        ("link@1", None, None, INVALID, "link after 1 s did not come"),
        ("link@1:1", 1.0, 2.0, INVALID, "a fault was made: link after 1 s for 1 s"),
    ],
)
def test_judged_by_what_was_done(text, began_s, ended_s, code, words):
    row = _judged(text, began_s, ended_s)
    assert row["exit_code"] == code and row["valid"] == (code == 0), row
    assert words is None or words in row["invalid_reason"], row


def test_loss_in_a_fault_has_its_cause():
    """It is not unaccounted, and the test did not fail."""
    row = _judged("link@1:1", 1.0, 2.0, unaccounted=31)
    assert report.where_lost(row) == "while the fault lasted 31"
    line = report.last_line(*report.run_verdict([row]))
    assert line.startswith("not valid (4), as a fault was made: link after 1 s for 1 s")
    assert line.endswith("; the guest went on; 31 lost while it lasted")
    other = _judged("stall@1:1", 1.0, 2.0, unaccounted=31)
    assert report.where_lost(other) == "UNACCOUNTED 31" and other["exit_code"] == INVALID


@pytest.mark.parametrize(
    "code, verdict, line",
    [
        (0, "all well", "pass: all well"),
        (3, "too slow", "FAIL (3): too slow"),
        (4, "5 datagrams", "not valid (4): 5 datagrams"),
        (4, "undecided: too slow", "undecided (4): too slow"),
    ],
)
def test_last_line(code, verdict, line):
    assert report.last_line(code, verdict) == line
