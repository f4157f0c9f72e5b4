# SPDX-License-Identifier: BSD-2-Clause
"""What a person reads of a row, on made-up guests: no more is said of it than it shows."""

import pytest
import report
import rows
from vm import VmResult

GUEST = {"udp": {"blocked_ns": 990_000_000}, "run_ns": 1_000_000_000, "ledger": {"ok": True}}
LIMIT = 1 << 20


def _row(direction, protocol="udp"):
    test = rows.Test(protocol=protocol, bidir=True, sndbuf_bytes=LIMIT)
    row = rows._base_row(test, direction, VmResult(0, "", {"sluice": GUEST}, [], 0.1), None)
    figures = {"sent": 10, "received": 10, "sent_bits_per_second": 1e6, "received_bits_per_second": 1e6}
    return {**row, **figures}


def test_the_guests_wait_is_not_the_servers():
    """Both directions at once: the wait, and the limit that caused it, belong to the row of what the guest sent."""
    out, into = (_row(direction) for direction in (rows.TO_HOST, rows.TO_GUEST))
    assert (out["waited_percent"], out["sndbuf_bytes"]) == (99.0, LIMIT)
    assert (into["waited_percent"], into["sndbuf_bytes"]) == (None, None)
    first, second = report.datagram_table([out, into])[2:]
    assert "sndbuf 1048576" in first and "99 %" in first
    assert second.split() == ["UDP", "1024", "to", "guest", "10", "1.00", "10", "1.00", "0", "-", "-"]


@pytest.mark.parametrize("direction", [rows.TO_HOST, rows.TO_GUEST])
def test_a_stream_says_nothing_of_waits(direction):
    assert _row(direction, "tcp")["waited_percent"] is None
