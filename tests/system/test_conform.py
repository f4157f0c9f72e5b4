# SPDX-License-Identifier: BSD-2-Clause
"""The booted image under the strict device over vhost-user, with and without faults.

    guest driver --- rings in shared memory --- build/strict-backend --- echo, or tap0 -> br0 -> veth -> iperf3
"""

import json
import os
import signal
import subprocess
import sys
import time

import conform as host_conform
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BACKEND = os.path.join(ROOT, "build", "strict-backend")
LIMIT_S = 150


def conform(*words):
    done = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "host", "conform.py"), "--json", "-", *words],
                          cwd=ROOT, check=False, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    if not done.stdout.strip():
        pytest.fail(done.stderr.strip() or "no word from conform.py")
    return json.loads(done.stdout), done


@pytest.mark.parametrize("word", ["as QEMU", "reversed", "at random", "batches of one", "polls", "slow", "no EVENT_IDX",
                                  "no INDIRECT_DESC", "no MRG_RXBUF", "no checksum", "nothing but", "large rings",
                                  "small ring", "iperf3"])  # fmt: skip
def test_no_clause_is_violated(word):
    """Traffic both ways, 0 violations, nothing lost."""
    report, done = conform(word)
    assert report["ok"], done.stderr
    for row in report["rows"]:
        assert row["violations"] == []
        assert row["clauses_checked"] >= 75
        assert row["tx_frames"] > 300 and row["rx_packets"] > 10


@pytest.mark.parametrize("word", ["used id out", "used id not", "used twice", "used index", "lengths", "num_buffers",
                                  "header flags", "segments", "scribbled", "kicks lost"])  # fmt: skip
def test_a_fault_is_survived(word):
    """The device misbehaves: the driver recovers, and violates nothing meanwhile. Flags in a header that were not
    negotiated, and suppression words that are not in use, cost not one packet.

    Field cases 25, 36: used lengths that are too short or too long, and counts of buffers of 0 and 65,535, cost the
    booted guest those packets and no others. Field case 17: an id that is none, or an index that jumps, costs a reset of
    the device. Field cases 8, 12: of kicks that get lost the guest prints one line, the first time, with all indices.
    """
    report, done = conform(word)
    assert report["ok"], done.stderr
    for row in report["rows"]:
        assert row["faults_done"] > 0
        assert row["violations"] == []
        assert len(row["stalls"]) == (word == "kicks lost"), row["stalls"]
        if word.startswith("used"):
            assert row["starts"] > 2  # the rings were set up anew
        if word in ("header flags", "scribbled"):
            assert row["lost"] == 0


@pytest.mark.skipif(not os.path.exists(BACKEND), reason="build/strict-backend is not built")
@pytest.mark.parametrize("words", ["--mac 1ff:0:0:0:0:1", "--mac 2:0:0:0:0:1:2", "--set slow=often", "--set polls=2",
                                   "--set num_buffers_value=65536", "--set rx_header_flags=256", "--echo 1,2",
                                   "--seconds -1"])  # fmt: skip
def test_a_value_that_cannot_be(tmp_path, words):
    """A fault that is misspelt would otherwise be a run without one."""
    done = subprocess.run([BACKEND, "--socket", tmp_path / "socket", *words.split()], cwd=ROOT, check=False, text=True,
                          timeout=10, capture_output=True)  # fmt: skip
    assert done.returncode == 1 and f'{words.split()[0]} cannot be "' in done.stderr


def _row(**more):
    row = {"case": "kicks lost", "ok": True, "reason": None, "fault": True, "tx_frames": 700, "rx_packets": 800,
           "faults_done": 3, "lost": 96, "starts": 8, "clauses_checked": 2, "clauses": ["A", "B"], "violations": []}  # fmt: skip
    return {**row, **more}


def test_words_of_a_case():
    """What the device did, what it cost, and what the driver did about it."""
    assert host_conform.case_line(_row(), 1.26) == (
        "ok   kicks lost: 700 frames sent, 800 received, the device misbehaved 3 times and cost 96 datagrams, the driver "
        "reset it 3 times, 2 clauses checked, 0 violated (1.3 s)")  # fmt: skip
    once = host_conform.case_line(_row(faults_done=1, starts=4), 0)
    assert "misbehaved once" in once and "reset it once" in once
    plain = host_conform.case_line(_row(fault=False, ok=False, reason="only 3 came back"), 0)
    assert plain.startswith("FAIL") and plain.endswith("\n     only 3 came back") and "misbehaved" not in plain


@pytest.mark.parametrize(
    "rows, skipped, code, words",
    [
        ([_row()], [], 0, "1 of 1 cases, 0 skipped, 2 clauses checked, 0 violated"),
        ([_row()], ["interrupts lost"], 0, "1 of 1 cases, 1 skipped, 2 clauses checked, 0 violated"),
        ([], ["interrupts lost"], 4, "undecided: none of the cases asked for can run here, 1 skipped"),
        ([_row(), _row(ok=False)], [], 4, "1 of 2 cases, 0 skipped, 2 clauses checked, 0 violated; not as it should: kicks lost"),
        ([_row(ok=False, violations=[{"clause": "A"}])], [], 5, "0 of 1 cases, 0 skipped, 2 clauses checked, 1 violated: A"),
    ],
)  # fmt: skip
def test_words_of_the_verdict(rows, skipped, code, words):
    """What was skipped is said, and nothing but skipped is no pass."""
    assert host_conform.verdict(rows, skipped) == (code, words)


def test_a_case_that_does_not_exist():
    done = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "host", "conform.py"), "iperf3", "no such case at all"],
                          cwd=ROOT, check=False, text=True, timeout=10, capture_output=True)  # fmt: skip
    assert done.returncode == 1 and not done.stdout, done
    assert "'no such case at all' is none of: 'as QEMU does', " in done.stderr, done


@pytest.mark.parametrize("after_s", [0.3, 2.0])
def test_interrupted(after_s):
    """Ctrl-C in the middle: code 130 and no word of Python's."""
    process = subprocess.Popen([sys.executable, "-B", os.path.join(ROOT, "host", "conform.py"), "iperf3"], cwd=ROOT,
                               text=True, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)  # fmt: skip
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=20)[1]
    assert process.returncode == 130 and "Traceback" not in err, err
