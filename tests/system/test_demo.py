# SPDX-License-Identifier: BSD-2-Clause
"""The main job: `sluice demo`, as a table and as JSON, and the words and exit codes that go with its figures."""

import copy
import re

import demo
import pytest
from conftest import LINK_BPS, best_bps

EXIT_OK, EXIT_THRESHOLD, EXIT_INVALID, EXIT_DRIVER = 0, 3, 4, 5


def test_demo(sluice, image):
    """5 s a row: without the limit all that exceeds the link is lost at the NIC (on a quiet machine more than half of what
    is sent), with it none of 50,000; some second of both fills the link, as far as a busy machine can."""
    done = sluice("demo", "--json", "-", timeout=120)
    assert done.code == EXIT_OK, done
    result = done.json
    assert result["ok"] and result["host"]["accelerator"] in ("kvm", "tcg")
    unlimited, limited, tcp = result["rows"]
    assert unlimited["nic_dropped"] > 0.99 * (unlimited["sent"] - unlimited["received"] - unlimited["receiver_dropped"]) > 5000
    assert limited["nic_dropped"] == 0 and limited["sent"] >= 50000
    for row in (limited, tcp):
        assert best_bps(row["intervals"]) >= demo.NEAR_RATE * LINK_BPS, row["intervals"]
    for row in result["rows"]:
        assert row["valid"] and row["ledger_ok"] and row.get("unaccounted", 0) == 0


def test_demo_as_text(sluice, image):
    """Live rows, the table, one last line in words."""
    done = sluice("demo", "--time", "1")
    assert done.code == EXIT_OK, done
    lines = done.out.strip().splitlines()
    assert lines[-1].startswith("pass: ") and "Every packet is accounted for" in lines[-1]
    assert sum("received" in line and "Mbit/s" in line and "where" in line for line in lines) == 1
    assert any(re.search(r"\btx +0\.00-1\.[0-9]", line) for line in lines)


ROWS = [
    {"test": "udp", "size_bytes": 1024, "direction": "guest-to-host", "valid": True,
     "sent": 800000, "received": 57000, "nic_dropped": 743000, "receiver_dropped": 0,
     "sndbuf_bytes": None, "sent_bits_per_second": 1.3e9, "waited_percent": 40.0},
    {"test": "udp", "size_bytes": 1024, "direction": "guest-to-host", "valid": True,
     "sent": 57000, "received": 57000, "nic_dropped": 0, "receiver_dropped": 0,
     "sndbuf_bytes": 1048576, "sent_bits_per_second": 94e6, "waited_percent": 90.0, "server_cpu_percent": 5.0},
    {"test": "tcp", "direction": "guest-to-host", "valid": True, "bits_per_second": 94e6, "sndbuf_bytes": 1048576},
]  # fmt: skip


def _with(number, **changes):
    rows = copy.deepcopy(ROWS)
    rows[number].update(changes)
    return rows


@pytest.mark.parametrize(
    "rows, code, words",
    [
        (ROWS, EXIT_OK, "dropped 93 %"),
        (_with(1, nic_dropped=3, received=56997), EXIT_THRESHOLD, "still dropped 3"),
        (_with(1, receiver_dropped=9, received=56991), EXIT_INVALID, "rmem_max"),
        (_with(1, receiver_dropped=9, received=56991, server_cpu_percent=97.0), EXIT_INVALID, "CPU was busy"),
        (_with(1, valid=False, exit_code=EXIT_DRIVER, invalid_reason="ledger"), EXIT_DRIVER, "sndbuf 1048576: ledger"),
        (_with(0, nic_dropped=0, received=800000, sent_bits_per_second=80e6), EXIT_INVALID, "use a slower --link"),
        (_with(0, valid=False, exit_code=EXIT_INVALID, invalid_reason="5 lost"), EXIT_INVALID, "UDP 1024, no limit: 5 lost"),
    ],
)
def test_verdict(rows, code, words):
    got, text = demo.verdict(rows, LINK_BPS)
    assert got == code and words in text


@pytest.mark.parametrize("rate, near", [(94e6, True), (50e6, False)])
def test_the_nics_rate_is_named_when_it_was_reached(rate, near):
    _, text = demo.verdict(_with(1, sent_bits_per_second=rate), LINK_BPS)
    assert ("at the NIC's rate" in text) == near and f"({rate / 1e6:.1f} Mbit/s)" in text


def test_nothing_overflowed():
    """A guest that is slower than the link shows nothing, and praise would be a lie."""
    code, text = demo.verdict(_with(0, nic_dropped=0, received=800000, sent_bits_per_second=224.6e6), 1e9)
    assert code == EXIT_INVALID and text.startswith("undecided: ") and "no faster than the link of 1000 Mbit/s takes" in text


def test_receiver_loss_is_tried_again(monkeypatch):
    """Row 2 is repeated up to 3 times when the receiver's socket overflowed, the others are not."""
    from rows import Test

    asked = []

    def run_test(_lab, test, _on_line):
        asked.append((test.protocol, test.sndbuf_bytes))
        lost = 1 if test.protocol == "udp" and len(asked) < 3 else 0
        return [{"valid": True, "receiver_dropped": lost}]

    monkeypatch.setattr(demo, "run_test", run_test)
    rows = list(demo.run(None, Test(sndbuf_bytes=1 << 20), lambda _: None, None))
    assert asked == [("udp", None), ("udp", 1 << 20), ("udp", 1 << 20), ("tcp", 1 << 20)]
    assert [r["receiver_dropped"] for r in rows] == [1, 0, 0]
