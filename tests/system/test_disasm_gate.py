# SPDX-License-Identifier: BSD-2-Clause
"""The full barriers of the ring protocol stand in the machine code of the shipped image."""

import os
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GATE = os.path.join(ROOT, "tests", "disasm_gate.py")
IMAGE = os.path.join(ROOT, "build", "sluice.elf")

pytestmark = pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")


def run_gate(*arguments):
    done = subprocess.run([GATE, *arguments], check=False, text=True, timeout=300, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not os.path.exists(IMAGE), reason="build/sluice.elf is not built")
def test_every_copy_in_the_image_has_its_barrier():
    run_gate(IMAGE)


def test_the_gate_refuses_a_driver_with_one_barrier_less():
    run_gate("--self-test")
