# SPDX-License-Identifier: BSD-2-Clause
"""A second device, independent of QEMU's and of ours: the vhost library of DPDK.

    guest driver --- rings in shared memory --- dpdk-testpmd (net_vhost0 <-> net_tap0) --- dtap0 10.0.0.1 iperf3 -s
         \\__ QEMU: registers, configuration space

All of it in a network namespace of its own. Without vectors: QEMU 7.2 ends by a signal when a guest under TCG switches
MSI-X on in front of a vhost-user backend.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ELF = os.path.join(ROOT, "build", "sluice.elf")
DRIVERS = "/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0"
PARTS = ("librte_net_vhost.so", "librte_net_tap.so", "librte_mempool_ring.so")
START_S, GUEST_S, TEST_S = 20, 40, 120
INSIDE = "SLUICE_DPDK_INSIDE"


def why_not():
    if not shutil.which("dpdk-testpmd"):
        return "no dpdk-testpmd here: apt install dpdk-dev librte-net-vhost23 librte-net-tap23"
    missing = [part for part in PARTS if not os.path.exists(os.path.join(DRIVERS, part))]
    if missing:
        return f"DPDK lacks {', '.join(missing)}: apt install librte-net-vhost23 librte-net-tap23"
    if os.geteuid() != 0:
        return "a network namespace with a tap of DPDK's own needs root"
    if not shutil.which("iperf3"):
        return "no iperf3 here"
    return None


def wait_for(condition, what):
    end = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} within {START_S} s")
        time.sleep(0.1)


def start_backend(socket, log):
    argv = ["dpdk-testpmd", "--no-huge", "-m", "512", "--no-pci", "-l", "0,1", "--no-telemetry", "--no-shconf"]
    argv += [word for part in PARTS for word in ("-d", os.path.join(DRIVERS, part))]
    argv += ["--vdev", f"net_vhost0,iface={socket},queues=1", "--vdev", "net_tap0,iface=dtap0"]
    argv += ["--", "-i", "--forward-mode=io", "--auto-start", "--total-num-mbufs=8192"]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log)


def qemu(socket, words):
    return ["qemu-system-x86_64", "-machine", "q35,usb=off,sata=off,smbus=off,accel=tcg,memory-backend=m0",
            "-object", "memory-backend-memfd,id=m0,size=256M,share=on", "-m", "256M", "-cpu", "max",
            "-smp", "1,maxcpus=2", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-serial", "stdio", "-device", "isa-debug-exit,iobase=0x501,iosize=4",
            "-chardev", f"socket,id=c0,path={socket}", "-netdev", "vhost-user,id=n0,chardev=c0",
            "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:77:00:02,disable-legacy=on,romfile=,vectors=0",
            "-kernel", ELF, "-append", " ".join(words)]  # fmt: skip


def inside(folder, words):
    """In the namespace: prints the guest's report."""
    socket = os.path.join(folder, "vhost.sock")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with open(os.path.join(folder, "testpmd.log"), "w", encoding="utf-8") as log:
        backend = start_backend(socket, log)
        server = None
        try:
            wait_for(lambda: os.path.exists(socket) and os.path.exists("/proc/sys/net/ipv4/conf/dtap0"), "no testpmd")
            subprocess.run(["ip", "addr", "add", "10.0.0.1/24", "dev", "dtap0"], check=True)
            subprocess.run(["ip", "link", "set", "dtap0", "up"], check=True)
            server = subprocess.Popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
            time.sleep(1.0)
            done = subprocess.run(qemu(socket, words), check=False, text=True, timeout=GUEST_S, errors="replace",
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            print(done.stdout)
        finally:
            for process in (server, backend):
                if process:
                    process.send_signal(signal.SIGKILL)
                    process.wait()


@pytest.mark.parametrize("test, more", [
    ("udp", ()), ("tcp", ()), ("udp", ("virtio.event_idx=off", "virtio.indirect=off")),
    ("tcp", ("virtio.mrg=off", "virtio.tso=off")),
])  # fmt: skip
def test_traffic_through_dpdk(tmp_path, test, more):
    """The guest's own verdict on the test, and nothing that the device did wrong."""
    if why_not():
        pytest.skip(why_not())
    words = [f"test={test}", "server=10.0.0.1", "ip=10.0.0.2/24", "time=1.5", "rate=20m" if test == "udp" else "",
             *more]  # fmt: skip
    done = subprocess.run(["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-B",
                           os.path.abspath(__file__), str(tmp_path), *filter(None, words)],
                          env=dict(os.environ, **{INSIDE: "1"}), check=False, text=True, timeout=TEST_S,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"start":')]
    assert lines, done.stdout[-2000:]
    report = json.loads(lines[-1])
    assert report["sluice"]["exit_code"] == 0, report["sluice"]["reason"]
    assert report["sluice"]["ledger"]["ok"]
    assert not any(report["sluice"]["device_faults"].values()), report["sluice"]["device_faults"]
    assert report["end"]["sum_sent"]["bytes"] > 100000


if __name__ == "__main__" and os.environ.get(INSIDE):
    inside(sys.argv[1], sys.argv[2:])
