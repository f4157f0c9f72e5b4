# SPDX-License-Identifier: BSD-2-Clause
"""A run recorded in the guest keeps the rules of the protocol, and the same driver on the host does it again.

    guest, trace=ring --> console --> host/sluice --> trace lines --> build/host/unit/test_trace_replay
"""

import re
import subprocess

import pytest
from conftest import ROOT

REPLAY = ROOT / "build" / "host" / "unit" / "test_trace_replay"
REPLAY_SECONDS = 60

RUNS = {
    "stops": ("udp", "--guest", "sndbuf=4M"),
    "segments and both directions": ("tcp", "--bidir"),
    "without event index": ("udp", "--guest", "sndbuf=4M", "--guest", "virtio.event_idx=off"),
    "small ring of chains": ("udp", "--guest", "sndbuf=4M", "--guest", "virtio.indirect=off", "--guest", "tx.size=16"),
}


def replay(path):
    if not REPLAY.exists():
        pytest.skip(f"{REPLAY.relative_to(ROOT)} is not built")
    done = subprocess.run([REPLAY, path], cwd=ROOT, capture_output=True, text=True, timeout=REPLAY_SECONDS, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS.keys())
def test_recorded_and_replayed(sluice, image, empty_dir, words):
    done = sluice("run", *words, "--time", "0.2", "--guest", "trace=ring")
    assert done.code == 0, done
    head = re.search(r"trace: version=1 events=(\d+) lost=(\d+)", done.out)
    assert head and int(head[1]) > 300, done
    if words[0] == "udp":
        assert re.search(r"trace: .* S\d+", done.out), "the ring never stopped"
    trace = empty_dir / "run.trace"
    trace.write_text(done.out)
    code, said = replay(trace)
    assert code == 0 and "holds and replays" in said, said


def test_a_changed_recording_is_refused(empty_dir):
    """One kick decided the other way round; one line missing."""
    text = (ROOT / "tests" / "unit" / "data" / "udp.trace").read_text()
    flipped = re.sub(r" K1,", " K0,", text, count=1)
    lines = text.splitlines(keepends=True)
    shorter = "".join(lines[: len(lines) // 2] + lines[len(lines) // 2 + 1 :])
    for changed in (flipped, shorter):
        assert changed != text
        trace = empty_dir / "changed.trace"
        trace.write_text(changed)
        code, said = replay(trace)
        assert code == 1 and "holds" not in said, said


@pytest.mark.parametrize("word, code", [("--help", 0), ("-h", 0), ("--other", 2)])
def test_usage(word, code):
    """An option is no file that cannot be read."""
    assert replay(word)[0] == code
    assert replay(word)[1].startswith("usage: test_trace_replay [FILE...]\n")
