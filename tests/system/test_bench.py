# SPDX-License-Identifier: BSD-2-Clause
"""The benchmarks hold their own thresholds: ratios and differences within one run, never an absolute rate."""

import json
import os
import subprocess

import pytest
from conftest import ROOT, _sbin_path

BENCH = ROOT / "tests" / "bench"


def bench(name, *argv, timeout):
    done = subprocess.run(
        [BENCH / name, *map(str, argv), "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout, env={**os.environ, "PATH": _sbin_path()}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def test_guest_beside_the_native_ceiling(image):
    """UDP frames a second: at least 0.18 of what a native program writes to the same tap."""
    seen = bench("ceiling.py", "--runs", 3, "--time", 1, timeout=120)
    assert seen["udp_ratio"] >= 0.18
    assert all(run["native_udp"]["sent"] > 0 and run["native_udp"]["received"] > 0 for run in seen["runs"])


def test_first_frame_soon_after_start(image):
    """At most 0.15 s more than an empty image that exits at once."""
    seen = bench("boot_time.py", "--runs", 5, timeout=60)
    assert 0 < seen["empty_s"] and seen["extra_s"] <= 0.15


@pytest.mark.parametrize("name", ["ceiling.py", "boot_time.py"])
def test_benchmarks_refuse_bad_options(name):
    done = subprocess.run([BENCH / name, "--runs", "many"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "many" in done.stderr
