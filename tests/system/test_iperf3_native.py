# SPDX-License-Identifier: BSD-2-Clause
"""The applications as an ordinary program (tests/host_sock) against a real iperf3 server, and against servers that
misbehave: the protocol without image, driver or stack.

    unshare --net:   native (apps/ on Linux sockets)  --- lo ---  iperf3 -s, or a scripted server
"""

import json
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "build" / "host" / "sluice-apps"
PORT = 5201
RUN_TIMEOUT_S = 40
BURST = 5  # datagrams of one step of a script

# ---------------------------------------------------------------- inside the namespace: no pytest there


def _real_server():
    server = subprocess.Popen(["iperf3", "-s", "-1", "-J", "-p", str(PORT)], stdout=subprocess.PIPE, text=True)
    for _ in range(200):
        # Looked at, not connected to: a connection would be the server's one client.
        if subprocess.run(["ss", "-Hltn", f"sport = :{PORT}"], capture_output=True, text=True).stdout.strip():
            return server
        time.sleep(0.02)
    raise RuntimeError("iperf3 does not listen")


RESULTS = {
    "cpu_util_total": 1, "cpu_util_user": 0, "cpu_util_system": 1, "sender_has_retransmits": -1,
    "streams": [{"id": 1, "bytes": 0, "retransmits": -1, "jitter": 0, "errors": 0, "packets": 0}],
}


class ScriptedServer:
    """Plays iperf3's side of the dialogue, and leaves it where the script says so."""

    def __init__(self, script):
        self.script = script
        self.hellos = 0
        self.datagrams = 0
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", PORT))
        self.listener.listen()
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", PORT))
        for target in (self._control, self._datagrams):
            threading.Thread(target=target, daemon=True).start()

    def _datagrams(self):
        while True:
            data, peer = self.udp.recvfrom(70000)
            if len(data) != 4:
                self.datagrams += 1
                continue
            self.hellos += 1
            self.peer = peer
            if self.hellos > self.script.get("lose_hellos", 0) and not self.script.get("mute_hello"):
                self.udp.sendto(self.script.get("hello_answer", "6789").encode("latin1"), peer)
            self.greeted.set()

    @staticmethod
    def _exactly(conn, n):
        data = b""
        while len(data) < n:
            part = conn.recv(n - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def _json(self, conn):
        return json.loads(self._exactly(conn, struct.unpack(">I", self._exactly(conn, 4))[0]))

    def _control(self):
        self.greeted = threading.Event()
        conn, _ = self.listener.accept()
        try:
            self._exactly(conn, 37)
            for step in self.script["steps"]:
                self._step(conn, step)
        except (EOFError, ConnectionError):
            pass
        time.sleep(30)

    def _step(self, conn, step):
        if isinstance(step, int):
            conn.sendall(struct.pack("b", step))
        elif step == "close":
            conn.close()
            raise EOFError
        elif step == "params":
            self._json(conn)
        elif step == "greeted":
            self.greeted.wait()
        elif step == "end":
            self._exactly(conn, 1)
            time.sleep(0.1)
        elif step == "results":
            self.theirs = self._json(conn)
            streams = self.theirs["streams"]
            ours = dict(RESULTS, streams=[dict(RESULTS["streams"][0], packets=self.datagrams, bytes=self.datagrams)])
            assert "omitted_errors" in streams[0] and "omitted_packets" in streams[0]
            text = json.dumps(ours).encode()
            conn.sendall(struct.pack(">I", len(text)) + text)
        elif step == "data":
            for _ in range(BURST):
                self.datagrams += 1
                now = time.time_ns()
                header = struct.pack(">IIQ", now // 10**9, now % 10**9 // 1000, self.datagrams)
                self.udp.sendto(header.ljust(1000, b"x"), self.peer)
        elif step == "answer":
            self.udp.sendto(b"6789", self.peer)
        elif step == "while":
            time.sleep(0.2)
        elif step == "silence":
            time.sleep(60)
        else:
            conn.sendall(step.encode("latin1"))


def _inside(request):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    server = scripted = None
    if request["server"] == "real":
        server = _real_server()
    elif request["server"]:
        scripted = ScriptedServer(request["server"])
    start = time.monotonic()
    client = subprocess.Popen([request["binary"], *request["words"]], stdout=subprocess.PIPE, text=True,
                              env=request["env"])
    if request["kill_server_after"]:
        time.sleep(request["kill_server_after"])
        server.kill()
    out = client.communicate(timeout=RUN_TIMEOUT_S)[0]
    answer = {"code": client.returncode, "out": out, "seconds": time.monotonic() - start}
    if server:
        try:
            answer["server"] = json.loads(server.communicate(timeout=5)[0] or "null")
        except ValueError:
            answer["server"] = None
    if scripted:
        answer["hellos"] = scripted.hellos
    print(json.dumps(answer))


if __name__ == "__main__":
    _inside(json.loads(sys.argv[1]))
    sys.exit(0)

# ---------------------------------------------------------------- outside

import pytest  # noqa: E402

pytestmark = pytest.mark.skipif(not (shutil.which("iperf3") and shutil.which("unshare")), reason="needs iperf3")


@pytest.fixture
def native():
    """Runs the client with these words against a server; -> what came of it, with `last`, its line of JSON."""
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is not built (make system)")

    def run(words, server="real", kill_server_after=0, **env):
        request = {
            "binary": str(BINARY), "words": ["server=127.0.0.1", *words.split()], "server": server,
            "kill_server_after": kill_server_after, "env": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env}}
        done = subprocess.run(
            ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", sys.executable, __file__,
             json.dumps(request)], capture_output=True, text=True, timeout=RUN_TIMEOUT_S + 10, check=False)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        answer["last"] = json.loads(answer["out"].splitlines()[-1])
        assert answer["out"].splitlines()[-1].startswith('{"start":')
        assert answer["last"]["sluice"]["exit_code"] == answer["code"]
        return answer
    return run


@pytest.mark.parametrize("parallel", [1, 8])
@pytest.mark.parametrize("direction", ["", "reverse=on", "bidir=on"])
def test_udp(native, direction, parallel):
    """Datagrams each way, numbers of both ends compared; AGAIN now and then."""
    run = native(f"test=udp time=1 size=1000 rate=4m parallel={parallel} {direction}", HOST_SOCK_AGAIN_EVERY="97")
    end, peer = run["last"]["end"], run["server"]["end"]
    assert run["code"] == 0, run["out"]
    assert len(end["streams"]) == parallel * (2 if "bidir" in direction else 1)
    for key in ("", "_bidir_reverse") if "bidir" in direction else ("",):
        sent, received = end["sum_sent" + key], end["sum_received" + key]
        assert sent["packets"] == received["packets"] and received["lost_packets"] == 0
        # The server goes on sending while the guest drains.
        assert 400 * parallel < received["packets"] < 900 * parallel
    if not direction:
        assert peer["sum"]["packets"] == end["sum_sent"]["packets"] and peer["sum"]["lost_packets"] == 0
        assert run["last"]["sluice"]["udp"]["again"] > 0
        assert run["last"]["sluice"]["udp"]["queued"] == run["last"]["sluice"]["udp"]["sent"]


@pytest.mark.parametrize("parallel", [1, 8])
@pytest.mark.parametrize("direction", ["", "reverse=on", "bidir=on"])
def test_tcp(native, direction, parallel):
    """Streams each way: every byte that was sent is one that was read."""
    run = native(f"test=tcp time=1 parallel={parallel} {direction}")
    end, peer = run["last"]["end"], run["server"]["end"]
    assert run["code"] == 0, run["out"]
    for key in ("", "_bidir_reverse") if "bidir" in direction else ("",):
        assert end["sum_sent" + key]["bytes"] == end["sum_received" + key]["bytes"] > 1000000
    if not direction:
        assert peer["sum_received"]["bytes"] == end["sum_sent"]["bytes"]


def test_omit(native):
    """The warm-up is in no figure, and its loss accounting does not leak into the test's."""
    run = native("test=udp time=1 omit=1 rate=8m size=1000")
    end = run["last"]["end"]
    assert run["code"] == 0
    assert end["sum_sent"]["packets"] == end["sum_received"]["packets"] == pytest.approx(1000, rel=0.1)
    assert [i["sum"]["omitted"] for i in run["last"]["intervals"]] == [True, False]


def test_rate_is_kept(native):
    """Absolute deadlines: the rate is exact although every tenth reserve has to wait."""
    run = native("test=udp time=2 rate=10m size=1250", HOST_SOCK_AGAIN_EVERY="10")
    assert run["last"]["end"]["sum_sent"]["packets"] == pytest.approx(2000, rel=0.01)


@pytest.mark.parametrize("words", ["test=udp rate=1m", "test=tcp", "test=tcp reverse=on", "test=udp reverse=on rate=1m"])
def test_server_killed(native, words):
    """A server that dies in mid-test is told at once, with what was sent until then."""
    run = native(words + " time=20", kill_server_after=1.5)
    assert run["code"] == 2 and run["seconds"] < 9
    assert "mid-test" in run["last"]["error"]


def test_no_server(native):
    run = native("test=udp", server=None)
    assert run["code"] == 2 and run["seconds"] < 6
    assert "is iperf3 -s running" in run["last"]["error"]


def test_no_route(native):
    """A connection that fails at once is not one that stands."""
    run = native("server=192.0.2.1 test=tcp", server=None)
    assert run["code"] == 2 and run["seconds"] < 6
    assert "no route" in run["last"]["error"]


def test_no_address(native):
    run = native("test=udp", server=None, HOST_SOCK_NO_ARP="1")
    assert run["code"] == 2 and "ARP" in run["last"]["error"]


def test_no_echo(native):
    """A host that ignores pings does not spoil the test, but is said."""
    run = native("test=udp time=0.5 rate=1m", HOST_SOCK_NO_ECHO="1")
    assert run["code"] == 0
    assert run["last"]["sluice"]["drain"]["echo_answered"] is False


GOOD = [9, "params", 10, "greeted", 1, 2, "end", 13, "results", 14]


def test_scripted_server_is_right(native):
    """The script below is what the others depart from."""
    run = native("test=udp time=0.5 rate=1m", server={"steps": GOOD})
    assert run["code"] == 0, run["out"]
    assert run["hellos"] == 1 and run["last"]["end"]["sum_received"]["lost_packets"] == 0


@pytest.mark.parametrize("early", [["data"], ["data", "while"], ["answer", "data", "answer", "while"]])
def test_data_before_the_word(native, early):
    """Data overtakes the server's word that the test runs: it belongs to the test. An answer to a hello that comes twice
    is none."""
    steps = [*GOOD[:5], *early, 2, "data", *GOOD[6:]]
    run = native("test=udp reverse=on time=0.5 size=1000", server={"steps": steps})
    end = run["last"]["end"]
    assert run["code"] == 0, run["out"]
    assert end["sum_received"]["packets"] == end["sum_sent"]["packets"] == 2 * BURST, run["out"]
    assert end["sum_received"]["lost_packets"] == 0 and end["sum_received"]["bytes"] == 2 * BURST * 1000
    assert sum(row["sum"]["bytes"] for row in run["last"]["intervals"]) == 2 * BURST * 1000


@pytest.mark.parametrize("server, hellos", [
    ({"lose_hellos": 1, "steps": GOOD[:3] + ["greeted"] + GOOD[4:]}, 2),  # the answer comes to the second
    ({"mute_hello": True, "steps": GOOD}, 1),  # it is lost, but the server goes on
    ({"hello_answer": "\xb1\x68\xde\x3a", "steps": GOOD}, 1),  # of a server before 3.12
])
def test_hello(native, server, hellos):
    if hellos == 2:
        server = dict(server, steps=[9, "params", 10, "silence"])
        run = native("test=udp time=0.5 rate=1m", server=server)
        assert run["hellos"] == 2 and "before the test began" in run["last"]["error"]
        return
    run = native("test=udp time=0.5 rate=1m", server=server)
    assert run["code"] == 0, run["out"]
    assert run["hellos"] == hellos


@pytest.mark.parametrize("steps, says", [
    ([-1, "close"], "busy"),
    (["close"], "control connection was lost"),
    ([9, "params", "\xfe\x00\x00\x00\x8c\x00\x00\x00\x62"], "error 140 (errno 98)"),
    ([9, "params", 10, "greeted", 1, 2, 11], "stopped in mid-test"),
    ([77], "has no place"),
    ([2], "has no place"),
    ([9, 9], "has no place"),
    ([9, "params", 10, "greeted", 1, 2, 14], "has no place"),
    (GOOD[:8] + ["\xff\xff\xff\xff"], "makes no sense"),
    (GOOD[:8] + ["\x00\x00\x00\x02{]"], "results cannot be used"),
    (GOOD[:8] + ["\x00\x00\x00\x02{}"], "results cannot be used"),
    (GOOD[:6] + ["close"], "control connection was lost in mid-test"),
])
def test_misbehaving_server(native, steps, says):
    """One text that names the cause, exit code 2, soon."""
    run = native("test=udp time=1 rate=1m", server={"steps": steps})
    assert run["code"] == 2 and says in run["last"]["error"], run["out"]
    assert run["seconds"] < 9.5


def test_silent_server(native):
    """Accepts, and says nothing."""
    run = native("test=udp time=1", server={"steps": ["silence"]})
    assert run["code"] == 2 and run["seconds"] < 10
    assert "does not answer within" in run["last"]["error"]


@pytest.mark.parametrize("words", ["test=udp size=abc", "test=udp colour=red", "test=udp reverse=on bidir=on"])
def test_usage(native, words):
    """Nothing is sent; the line of JSON says why, too."""
    run = native(words, server=None)
    assert run["code"] == 1 and run["last"]["error"] and "sluice: error: " in run["out"]


@pytest.mark.usefixtures("native")
def test_more_words_than_fit():
    words = ["test=udp"] * 600
    done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 1 and "more than 4095 bytes" in done.stderr
