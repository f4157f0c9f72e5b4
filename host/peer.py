# SPDX-License-Identifier: BSD-2-Clause
"""The far ends: a real iperf3 server for each test, an iperf3 client that keeps it busy, a DHCP server."""

import json
import os
import signal
import subprocess
import sys
import time

import shell
from errors import EXIT_PEER, SluiceError

IPERF_PORT = 5201
START_TIMEOUT_S = 5
STOP_TIMEOUT_S = 2
TCP_LISTEN = "0A"


def _end(process, first=signal.SIGTERM):
    """End a process that we started; returns its standard output, if it was piped."""
    if process.poll() is None:
        process.send_signal(first)
    try:
        return process.communicate(timeout=STOP_TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def _listens(pid, port):
    """Whether a TCP socket of that process's namespace listens on the port. No process is spawned for it."""
    try:
        with open(f"/proc/{pid}/net/tcp", encoding="ascii") as table:
            lines = table.read().splitlines()[1:]
    except OSError:
        return False
    return any(l.split()[1].endswith(f":{port:04X}") and l.split()[3] == TCP_LISTEN for l in lines)


class IperfServer:
    """`iperf3 -s -1 -J`: serves one test and prints what it saw as JSON."""

    def __init__(self, netns, port=IPERF_PORT):
        argv = shell.in_netns(netns, "iperf3", "-s", "-1", "-J", "-4", "-p", str(port))
        self._process = shell.start(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._killed = False
        self._output = None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _listens(self._process.pid, port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                words = (_end(self._process) or "no answer").strip().splitlines()
                raise SluiceError(EXIT_PEER, f"iperf3 server did not start: {words[-1] if words else 'no output'}")
            time.sleep(0.005)

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        """The fault: the server dies in the middle of a test."""
        self._killed = True
        self._process.kill()

    @property
    def died(self):
        """In words, when the server was killed or ended by a signal; else None."""
        code = self._process.poll()
        if self._killed or (code is not None and code < 0):
            return f"the iperf3 server was killed (signal {-(code or -signal.SIGKILL)})"
        return None

    def stop(self):
        if self._output is None:
            self._output = _end(self._process, signal.SIGKILL) or ""

    def result(self):
        """The server's own JSON of the test, or None when it printed none."""
        if self._output is None:
            try:
                self._output = self._process.communicate(timeout=STOP_TIMEOUT_S)[0] or ""
            except subprocess.TimeoutExpired:
                self.stop()
        try:
            return json.loads(self._output)
        except ValueError:
            return None


class BusyClient:
    """The fault: somebody else is being served. Started beside the server, talking to it over lo or its own address."""

    def __init__(self, netns, address):
        argv = shell.in_netns(netns, "iperf3", "-c", address, "-t", "60", "-b", "1m", "--forceflush")
        self._process = shell.start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._process.stdout.readline()  # "Connecting to host": a moment later it is being served
        time.sleep(0.3)

    def stop(self):
        _end(self._process, signal.SIGKILL)


class DhcpServer:
    """host/dhcpd.py in a namespace."""

    def __init__(self, netns, device, address, prefix, gateway):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dhcpd.py")
        argv = [sys.executable, "-B", script, device, f"{address}/{prefix}", gateway]
        self._process = shell.start(
            shell.in_netns(netns, *argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        if not self._process.stdout.readline():  # "ready"
            raise SluiceError(EXIT_PEER, f"the DHCP server on {device} did not start")
        os.set_blocking(self._process.stdout.fileno(), False)

    def messages(self):
        """Datagrams that clients sent to it since the last call."""
        try:
            return os.read(self._process.stdout.fileno(), 65536).count(b"\n")
        except BlockingIOError:
            return 0

    def stop(self):
        _end(self._process, signal.SIGKILL)
