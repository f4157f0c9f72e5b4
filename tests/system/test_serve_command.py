# SPDX-License-Identifier: BSD-2-Clause
"""`sluice serve`: the guest answers until Ctrl-C, to whoever types the command that was printed.

    test: nsenter -t PID -n python3 --> br0 --> tap0 --> guest
"""

import os
import shlex
import signal
import subprocess

import pytest
from conftest import wait_gone

pytestmark = pytest.mark.usefixtures("image")


ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
s.sendto(b"hello", ("10.77.0.2", 7))
print(s.recvfrom(100))
"""


def ask(runner, words):
    """The command as it was printed, with a question to the echo server for COMMAND."""
    argv = [word for word in shlex.split(words) if word != "COMMAND"] + ["/usr/bin/python3", "-c", ECHO]
    return subprocess.run(runner.argv(argv), capture_output=True, text=True, timeout=20, check=False)


def test_serves_until_interrupted(sluice_as):
    process, mark = sluice_as.start("serve", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    prefix = "from another terminal: "
    words = next(line for line in iter(process.stdout.readline, "") if line.startswith(prefix))[len(prefix) :]
    answer = ask(sluice_as, words)
    assert answer.stdout == "(b'hello', ('10.77.0.2', 7))\n", answer
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=8)
    assert process.returncode == 0 and "until Ctrl-C" in out, out
    assert not wait_gone(mark)


def test_serves_for_a_time(sluice):
    done = sluice("serve", "--time", "0.5", "--ip", "dhcp", timeout=40)
    assert done.code == 0 and "served for 0.5 s" in done.out, done
    assert "serving at 10.77.0.2" in done.out, done


def test_what_does_not_serve_is_said(sluice):
    done = sluice("serve", "--guest", "ip=no", timeout=40)
    assert done.code == 1 and "ip" in done.out.splitlines()[-1] and "FAIL (1)" in done.out, done
