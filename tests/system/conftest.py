# SPDX-License-Identifier: BSD-2-Clause
"""Fixtures: run host/sluice as root and as an ordinary user, run Python inside the lab's namespaces.

A test that needs a booted guest takes `image`. Every run is bounded in time, and carries a mark in its environment
by which what it left behind is found.
"""

import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOST = ROOT / "host"
SLUICE = HOST / "sluice"
ELF, DISK = ROOT / "build" / "sluice.elf", ROOT / "build" / "sluice.img"
MARK = "SLUICE_TEST_MARK"
NOBODY = 65534
RUN_TIMEOUT_S = 90
LINK_BPS = 100e6  # of the lab's NIC, unless a test says otherwise
FILLED_S = 0.9  # by then the buffers on the path are full, and what is sent is what leaves
PROGRAMS = ("ip", "tc", "unshare", "nsenter", "iperf3", "qemu-system-x86_64")

sys.path.insert(0, str(HOST))
sys.dont_write_bytecode = True


def pytest_configure(config):
    config.addinivalue_line("markers", "long: runs in `make check-long` only, to keep `make check` short")


def _sbin_path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def as_user(argv):
    """The command line that runs argv as nobody with a tun device that is open to all, in a private /dev/net."""
    script = (
        "mount -t tmpfs tmpfs /dev/net && mknod /dev/net/tun c 10 200 && chmod 0666 /dev/net/tun && "
        f"exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups -- {shlex.join(map(str, argv))}"
    )
    return ["unshare", "--mount", "sh", "-c", script]


def marked(mark):
    """Processes that carry the mark: {pid: command line}."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environ = pathlib.Path(f"/proc/{entry}/environ").read_bytes()
            if f"{MARK}={mark}".encode() in environ.split(b"\0"):
                found[int(entry)] = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def wait_gone(mark, within_s=3.0):
    """The processes that are still there after that time; empty when all is well."""
    deadline = time.monotonic() + within_s
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def best_bps(intervals, start_s=FILLED_S):
    """The highest rate among the intervals from start_s on, without a short last one. When a shared machine stands still for
    a quarter of a second some are low, and nothing is said about the guest."""
    return max(i["bits_per_second"] for i in intervals if i["start"] >= start_s and i["seconds"] > 0.5)


class Done:
    """A finished run: exit code, both outputs, the JSON object if there is one, and how long it took."""

    def __init__(self, argv, code, out, err, seconds, mark):
        self.argv, self.code, self.out, self.err, self.seconds, self.mark = argv, code, out, err, seconds, mark

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def rows(self):
        return self.json["rows"]

    def __repr__(self):
        return f"{shlex.join(map(str, self.argv))}\ncode {self.code} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


class Runner:
    """Runs commands as root or as an ordinary user, from an empty directory of its own."""

    def __init__(self, user, cwd):
        self.user, self.cwd = user, cwd

    def argv(self, argv):
        return as_user(argv) if self.user == "user" and os.geteuid() == 0 else [str(a) for a in argv]

    def start(self, *argv, env=None, **popen):
        """Start host/sluice; returns (process, mark)."""
        mark = uuid.uuid4().hex
        full = {**os.environ, "PATH": _sbin_path(), MARK: mark, **(env or {})}
        process = subprocess.Popen(
            self.argv([SLUICE, *argv]), cwd=self.cwd, env=full, stdin=subprocess.DEVNULL,
            start_new_session=True, text=True, **popen,
        )  # fmt: skip
        return process, mark

    def __call__(self, *argv, timeout=RUN_TIMEOUT_S, env=None):
        """Run host/sluice to its end."""
        began = time.monotonic()
        process, mark = self.start(*argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"host/sluice {shlex.join(map(str, argv))} took more than {timeout} s\n{out}\n{err}")
        return Done(["host/sluice", *argv], process.returncode, out, err, time.monotonic() - began, mark)

    def python(self, source, *argv, timeout=RUN_TIMEOUT_S, env=None):
        """Run a Python program inside fresh namespaces, with host/ on its path; returns what it printed, as JSON."""
        script = self.cwd / f"inside-{uuid.uuid4().hex}.py"
        header = f"import sys, json\nsys.dont_write_bytecode = True\nsys.path.insert(0, {str(HOST)!r})\n"
        script.write_text(header + textwrap.dedent(source))
        script.chmod(0o644)
        command = [sys.executable, "-B", HOST / "sandbox.py", sys.executable, "-B", script, *argv]
        if self.user == "user":
            command[0] = command[3] = "/usr/bin/python3"
        done = subprocess.run(
            self.argv(command), cwd=self.cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout, env={**os.environ, "PATH": _sbin_path(), **(env or {})}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)


@pytest.fixture
def empty_dir(tmp_path):
    """A directory that nobody has to be able to reach, too."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path != pathlib.Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    return tmp_path


def _require(user):
    missing = [p for p in PROGRAMS if not shutil.which(p, path=_sbin_path())]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if user == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if user == "user" and os.geteuid() == 0:
        probe = subprocess.run(as_user(["true"]), capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            pytest.skip(f"cannot become an ordinary user here: {probe.stderr.strip()}")


@pytest.fixture
def sluice(empty_dir):
    """host/sluice as whoever runs the tests."""
    _require("root" if os.geteuid() == 0 else "user")
    return Runner("root" if os.geteuid() == 0 else "user", empty_dir)


@pytest.fixture(params=["root", "user"])
def sluice_as(request, empty_dir):
    """host/sluice as root and as an ordinary user."""
    _require(request.param)
    return Runner(request.param, empty_dir)


@pytest.fixture(scope="session")
def image():
    """The ELF image; what needs it is skipped where it is not built."""
    if not ELF.exists():
        pytest.skip("build/sluice.elf is not built")
    return ELF


@pytest.fixture(scope="session")
def disk_image():
    if not DISK.exists():
        pytest.skip("build/sluice.img is not built")
    return DISK


@pytest.fixture
def fake_qemu(empty_dir):
    """A QEMU that is a shell script: returns a function of the script's body that gives the environment for it."""

    def make(body):
        directory = empty_dir / "bin"
        directory.mkdir(exist_ok=True)
        program = directory / "qemu-system-x86_64"
        program.write_text("#!/bin/sh\n" + textwrap.dedent(body))
        program.chmod(0o755)
        return {"PATH": f"{directory}:{_sbin_path()}"}

    return make
