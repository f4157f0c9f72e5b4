# SPDX-License-Identifier: BSD-2-Clause
"""Field report B in one command: the stop/wake policies on QEMU's device and on the model device, in process."""

import copy
import shutil

import pytest
import reproduce_stopwake as stopwake

EXIT_OK, EXIT_THRESHOLD, EXIT_INVALID = 0, 3, 4
TIMEOUT_S = 180  # --quick takes 50 s on a machine that does nothing else


def test_quick(sluice, image):
    """The correct policy requeues, drops and stalls nowhere; each wrong one shows its cost on the model device."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc: the model device's program cannot be built")
    done = sluice("reproduce", "stopwake", "--quick", "--json", "-", "--plot", "b.svg", timeout=TIMEOUT_S)
    rows = done.json["rows"]
    assert done.code in (EXIT_OK, EXIT_INVALID), done
    assert done.code == EXIT_OK or done.json["decision"] == "undecided", done
    for row in rows:
        assert row["ledger_ok"] and row["valid"], row
        if row["policy"] == "threshold":
            assert (row["requeues"], row["drops"], row["stalls"], row["unexpected_full"]) == (0, 0, 0, 0), row
            assert row["stops"] == row["wakes"], row
    forms = {(r["device"], r["link"], r["indirect"], r["event_idx"]) for r in rows if r["policy"] == "threshold"}
    assert len(forms) == 4 + 8  # model; QEMU with both links
    model = {(r["policy"], r["indirect"], r["event_idx"]): r for r in rows if r["device"] == "model"}
    for event_idx in (False, True):
        wake = model["wake-on-one", False, event_idx]
        assert wake["requeues"] > wake["packets"] / 100
        assert model["drop", False, event_idx]["drops"] > 0
        assert model["no-recheck", False, event_idx]["stalls"] > 0
        assert model["threshold", False, event_idx]["stops"] > 100
    rounds = [r for r in rows if r["round"] is not None]
    for policy in stopwake.POLICIES:
        assert len([r for r in rounds if r["policy"] == policy]) == 5
    assert sum(r["stops"] for r in rounds if r["policy"] == "threshold") > 0
    assert sum(r["drops"] for r in rounds if r["policy"] == "drop") > 0  # on QEMU's own device too
    assert all(r["pings"]["answered"] > 0 for r in rounds if r["policy"] == "threshold")
    picture = (sluice.cwd / "b.svg").read_text()
    assert "per 100 packets" in picture and "stalls" in picture


def _row(device, policy, indirect=False, event_idx=True, number=None, **more):
    row = {
        "device": device, "policy": policy, "indirect": indirect, "event_idx": event_idx, "round": number,
        "link": stopwake.LIMITED_LINK if device == "qemu" else None,
        "bits_per_second": 1e9 if device == "qemu" else None, "retransmits": 0, "packets": 1000, "requeues": 0,
        "drops": 0, "stalls": 0, "unexpected_full": 0, "stops": 9, "wakes": 9, "interrupts": 9, "kicks": 9,
        "busy_ns_per_megabyte": 1.0, "host_cpu_ns_per_megabyte": 1.0, "valid": True, "invalid_reason": None,
        "exit_code": 0,
    }  # fmt: skip
    return {**row, **more}


def _rows():
    cost = {"wake-on-one": {"requeues": 200}, "drop": {"drops": 200}, "no-recheck": {"stalls": 20}}
    found = [_row("model", p, **cost.get(p, {})) for p in stopwake.POLICIES]
    found += [_row("qemu", p, number=n) for n in range(5) for p in stopwake.POLICIES]
    return found


def _set(found, device, policy, values, key="bits_per_second"):
    some = [r for r in found if r["device"] == device and r["policy"] == policy]
    for row, value in zip(some, values):
        row[key] = value


@pytest.mark.parametrize(
    "device, policy, key, values, code, words",
    [
        ("qemu", "spin", "requeues", [0], EXIT_OK, "283575 of 1469482 (19 %)"),
        ("qemu", "threshold", "requeues", [1], EXIT_THRESHOLD, "threshold on qemu (no INDIRECT, with EVENT_IDX) has 1"),
        ("qemu", "threshold", "stalls", [0, 2], EXIT_THRESHOLD, "2 stalls"),
        ("model", "threshold", "drops", [3], EXIT_THRESHOLD, "3 drops"),
        ("model", "wake-on-one", "requeues", [10], EXIT_THRESHOLD, "requeues only 10"),
        ("model", "drop", "drops", [0], EXIT_THRESHOLD, "drops nothing"),
        ("model", "no-recheck", "stalls", [0], EXIT_THRESHOLD, "never stalls"),
        ("qemu", "threshold", "bits_per_second", [9.6e8] * 5, EXIT_OK, "threshold ran at 96.0 % or more"),
        ("qemu", "threshold", "bits_per_second", [9e8, 9e8, 9e8, 9e8, 1.1e9], EXIT_INVALID, "differ too much"),
        ("qemu", "threshold", "bits_per_second", [9e8] * 5, EXIT_THRESHOLD, "slower than it may be"),
        ("qemu", "threshold", "stops", [0] * 5, EXIT_INVALID, "the ring was never full"),
    ],
)
def test_verdict(device, policy, key, values, code, words):
    """What each figure that is not as it must be does to the exit code."""
    found = copy.deepcopy(_rows())
    _set(found, device, policy, values, key)
    outcome = stopwake._outcome(found)
    assert outcome.code == code and words in outcome.verdict, outcome


def test_undecided_claims_nothing():
    """A median just below the limit is not shown as the limit, and no sentence says that it was reached."""
    found = copy.deepcopy(_rows())
    _set(found, "qemu", "threshold", [9.486e8] * 4 + [1.1e9])
    outcome = stopwake._outcome(found)
    assert outcome.code == EXIT_INVALID and outcome.decision == "undecided", outcome
    assert "94.8 % of the best, and the limit is 95.0 %" in outcome.verdict, outcome
    assert "or more of the fastest" not in outcome.verdict, outcome


@pytest.mark.parametrize(
    "speeds, code", [([9e8, 9e8, 9e8, 9e8, 1.1e9], EXIT_OK), ([9e8] * 5, EXIT_THRESHOLD)], ids=["overlap", "apart"]
)
def test_not_shaped(speeds, code):
    """Without shaping the scheduler decides: only a difference that no run contradicts counts."""
    found = copy.deepcopy(_rows())
    free = [{**copy.deepcopy(r), "link": None} for r in found if r["device"] == "qemu"]
    _set(free, "qemu", "threshold", speeds)
    assert stopwake._outcome(found + free).code == code


def test_each_cost_is_drawn():
    """Requeues, drops and stalls: no wrong policy looks in the picture as if it cost nothing."""
    costs = stopwake._outcome(_rows()).picture.panels[:2]
    drawn = {p: max(dict(s.points)[p] for panel in costs for s in panel.series) for p in stopwake.POLICIES}
    assert drawn["no-recheck"] == 20 and drawn["threshold"] == 0, drawn
    assert drawn["wake-on-one"] > 0 and drawn["drop"] > 0, drawn


def test_invalid_rows():
    """A correct row that is not valid decides; one of a fault policy is noted only."""
    found = copy.deepcopy(_rows())
    found[-1].update(valid=False, invalid_reason="the guest hung", exit_code=5)
    outcome = stopwake._outcome(found)
    assert outcome.code == EXIT_OK and "the guest hung" in outcome.notes[0]
    next(r for r in found if r["policy"] == "threshold").update(valid=False, invalid_reason="the ledger", exit_code=5)
    assert stopwake._outcome(found).code == 5
