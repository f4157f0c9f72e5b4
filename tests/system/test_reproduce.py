# SPDX-License-Identifier: BSD-2-Clause
"""What the three reports share: options, pictures, counters, and that nothing is left behind."""

import subprocess
import time

import plot
import pytest
import queuewatch
from conftest import wait_gone

EXIT_USAGE, EXIT_PEER = 1, 2


@pytest.mark.parametrize(
    "argv, words",
    [
        (["reproduce"], "REPORT"),
        (["reproduce", "latency"], "latency"),
        (["reproduce", "sndbuf", "--sndbuf", "auto1"], "auto1"),
        (["reproduce", "sndbuf", "--to", "moon"], "moon"),
        (["reproduce", "vxlan", "--only", "nobody"], "nobody"),
    ],
)
def test_bad_options(sluice, argv, words):
    """An error names the option's value and ends with 1 before anything is touched."""
    done = sluice(*argv)
    assert done.code == EXIT_USAGE and words in done.err, done


def test_picture_name(sluice, image):
    """A picture of an unknown kind is refused before the measurement, not after it."""
    done = sluice("reproduce", "sndbuf", "--plot", "a.gif", timeout=10)
    assert done.code == EXIT_USAGE and "a.gif" in done.err and ".svg, .png" in done.err, done


def _picture():
    lines = plot.Panel(
        "A", "size, bytes", "Mbit/s", (plot.Series("sent", ((32, 1.0), (64, 20.0))),), log_y=True, categories=(32, 64)
    )
    bars = plot.Panel(
        "B", "policy", "per 100", (plot.Series('with "quotes"', (("one\ntwo", 3), ("x", 5)), ((1, 4), (5, 5))),), bars=True
    )
    return plot.Picture("what", (lines, bars))


@pytest.mark.parametrize("suffix, magic", [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_drawing(tmp_path, suffix, magic):
    """Lines and bars, with units, a legend and the host, in both kinds of file."""
    path = tmp_path / f"p{suffix}"
    plot.draw(_picture(), str(path), suffix, "Linux 6, 2 CPUs")
    data = path.read_bytes()
    assert data.startswith(magic) and len(data) > 2000
    if suffix == ".svg":
        text = data.decode()
        for words in ("size, bytes", "Mbit/s", "sent", "Linux 6, 2 CPUs", "per 100", "two"):
            assert words in text, words


def test_drawing_fails_in_words(tmp_path):
    """What gnuplot complains about is an error of one line, not a picture that is missing."""
    with pytest.raises(Exception, match="gnuplot"):
        plot.draw(_picture(), str(tmp_path / "no" / "such.svg"), ".svg", "host")


def test_queue_watch(sluice):
    """The largest backlog of a queue, as tc shows it, seen without a process."""
    source = """
        import socket, time, shell
        from queuewatch import QueueWatch
        shell.run("ip", "link", "add", "w0", "type", "veth", "peer", "name", "w1")
        shell.run("ip", "link", "set", "w0", "up")
        shell.run("ip", "link", "set", "w1", "up")
        shell.run("ip", "addr", "add", "10.99.0.1/24", "dev", "w0")
        shell.run("ip", "neigh", "add", "10.99.0.2", "lladdr", "02:00:00:00:00:02", "nud", "permanent", "dev", "w0")
        shell.run("tc", "qdisc", "add", "dev", "w0", "root", "tbf", "rate", "8bit", "burst", "200", "limit", "1000000")
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with QueueWatch("w0") as watch, QueueWatch("w1") as other:
            for _ in range(40):
                out.sendto(bytes(100), ("10.99.0.2", 9))
            time.sleep(0.1)
            shell.run("tc", "qdisc", "del", "dev", "w0", "root")
            time.sleep(0.05)
        print(json.dumps([watch.max_pkts, other.max_pkts]))
    """
    seen, other = sluice.python(source)
    assert 38 <= seen <= 41 and other == 0, (seen, other)


def test_queue_watch_needs_a_device():
    with pytest.raises(OSError):
        queuewatch.QueueWatch("nosuch0")


def test_nothing_is_left(sluice, image):
    """Killed in the middle, with a guest, a server and helpers of the report running: all of them are gone."""
    process, mark = sluice.start("reproduce", "stopwake", "--quick", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while "qemu, link" not in (line := process.stderr.readline()):
            assert line and time.monotonic() < deadline, "no row of a guest in a minute"
    finally:
        process.kill()
        process.communicate()
    assert not wait_gone(mark), "still running"


ECHO = """
    import socket, subprocess, sys, time
    import shell
    from lab_vxlan import *
    from vm import VM, VmSpec
    words = (f"ip={GUEST_OUTER}/24", f"vxlan.vni={VNI}", f"vxlan.local={GUEST_OUTER}", f"vxlan.remote={B_OUTER}",
             f"vxlan.ip={GUEST_INNER}/24", f"vxlan.mtu={INNER_MTU}", "test=serve")
    code = '''
    import socket, sys
    to = sys.argv[1]
    sizes = []
    for size in (1, 1000, 1472):
        u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(0.5)
        for _ in range(20):
            u.sendto(bytes(range(256)) * 6 if size > 1000 else b"x" * size, (to, 7))
            try:
                sizes.append(len(u.recv(65536)))
                break
            except TimeoutError:
                pass
    t = socket.create_connection((to, 7), timeout=5)
    data = bytes(range(256)) * 512
    t.sendall(data[:65536])
    got = b""
    while len(got) < 65536:
        got += t.recv(65536)
    print(sizes, got == data[:65536])
    '''
    import textwrap
    code = textwrap.dedent(code)
    with VxlanLab(VxlanSpec("vtep", mtu=UNDERLAY_MTU)) as lab:
        spec = VmSpec(config=words, kernel=sys.argv[1], device_options=(f"host_mtu={UNDERLAY_MTU}",))
        before = lab.snapshot()
        with VM(spec) as vm:
            time.sleep(1)
            out = shell.run(*shell.in_netns("ext", sys.executable, "-c", code, GUEST_INNER))
            ping = shell.start(shell.in_netns("ext", sys.executable, "-B", sys.argv[2] + "/pinger.py", GUEST_INNER, "50"),
                               stdout=subprocess.PIPE, text=True)
            time.sleep(1)
            ping.terminate()
            pings = json.loads(ping.communicate()[0])
        delta = counters.delta(before, lab.snapshot())
        errors = counters.checksum_errors(delta["ext"]["snmp"])
        print(json.dumps({"out": out.strip(), "pings": pings, "arp": delta["arp"]["vxb"], "checksum_errors": errors}))
"""


def test_tunnel_of_the_guest_answers(sluice, image):
    """Through the tunnel that the guest ends: ARP, ping, UDP and TCP echo, as B's own vxlan device sees them.

    B: vxb 10.78.2.1 ==> ub --> ua --> br0 --> tap0 --> guest, outer 10.78.1.2, inner 10.78.2.2
    """
    seen = sluice.python(ECHO, str(image), str(image.parents[1] / "host"))
    assert seen["out"] == "[1, 1000, 1536] True", seen
    assert seen["pings"]["answered"] > 20 and seen["pings"]["answered"] >= seen["pings"]["asked"] - 3, seen
    assert seen["arp"] >= 1 and seen["checksum_errors"] == 0, seen
