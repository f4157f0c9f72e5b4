# SPDX-License-Identifier: BSD-2-Clause
"""Nothing is left behind, however the command ends: no process, no file, no device, no namespace."""

import os
import pathlib
import random
import signal
import subprocess
import time

import pytest
from conftest import wait_gone

KILLS, INTERRUPTS = 20, 6
LONGEST_S = 2.5


def _traces():
    """What a lab that leaked would show on the machine itself."""
    names = set(os.listdir("/sys/class/net"))
    for directory in ("/run", "/run/netns", "/dev/shm", "/tmp"):
        if os.path.isdir(directory):
            names |= {f"{directory}/{n}" for n in os.listdir(directory) if "sluice" in n or "qemu" in n or "ext" == n}
    return names


def test_killed_at_random_moments(sluice_as, image):
    """SIGKILL to the command at 20 random moments, from the first milliseconds to the middle of a test."""
    before = _traces()
    seed = int(os.environ.get("SLUICE_TEST_SEED", time.time_ns() % 10**6))
    moments = random.Random(seed)
    for number in range(KILLS):
        delay = moments.uniform(0, LONGEST_S) ** 2 / LONGEST_S  # early moments are the delicate ones
        process, mark = sluice_as.start("run", "udp", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = wait_gone(mark)
        assert not left, f"seed {seed}, kill {number} after {delay:.3f} s left {left}"
    assert _traces() == before
    assert [p.name for p in pathlib.Path(sluice_as.cwd).iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ended_by_a_signal(sluice_as, fake_qemu, image, number):
    """Signals that a person or a supervisor sends to the command alone end it soon, and say so by the exit code."""
    env = fake_qemu("echo hello; exec sleep 30")
    process, mark = sluice_as.start("run", "udp", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert any("hello" in line for line in iter(process.stdout.readline, ""))
    process.send_signal(number)
    out, _ = process.communicate(timeout=8)
    assert process.returncode == 128 + number, out
    assert not wait_gone(mark)


def _children(pid):
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _comm(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def test_interrupted_at_random_moments(sluice, fake_qemu, image):
    """Ctrl-C reaches every process of the foreground, also one whose interpreter is only starting: one line, no more."""
    env = fake_qemu("echo hello; exec sleep 30")
    seed = int(os.environ.get("SLUICE_TEST_SEED", time.time_ns() % 10**6))
    moments = random.Random(seed)
    for _ in range(INTERRUPTS):
        process, mark = sluice.start("run", "udp", env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not any(_comm(child) == "unshare" for child in _children(process.pid)):
            time.sleep(0.005)
        delay = moments.uniform(0, 1.0)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        err = process.communicate(timeout=8)[1]
        assert process.returncode == 130, (seed, delay, err)
        assert err in ("", "sluice: interrupted\n"), (seed, delay, err)
        assert not wait_gone(mark)


@pytest.mark.parametrize("victim", ["unshare", "inner"])
def test_killed_in_the_middle(sluice, fake_qemu, image, victim):
    """The processes between the command and QEMU die: the command ends with an error, and nothing is left."""
    env = fake_qemu("echo hello; exec sleep 30")
    process, mark = sluice.start("run", "udp", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert any("hello" in line for line in iter(process.stdout.readline, ""))
    pid = int(_children(process.pid)[0])
    if victim == "inner":
        pid = int(_children(pid)[0])
    os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=8)
    assert process.returncode != 0
    assert not wait_gone(mark)
