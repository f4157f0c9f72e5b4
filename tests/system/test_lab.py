# SPDX-License-Identifier: BSD-2-Clause
"""The lab without a guest: a program writes frames to the tap as QEMU would.

    writer --> tap0 --> br0 --> veth0 (htb 100 Mbit/s, pfifo 1000) --> veth1 in ext --> a UDP socket
"""

import pytest

BLAST = """
    import fcntl, os, select, socket, struct, subprocess, time
    import counters, shell
    from lab import EXT_IP, EXT_MAC, GUEST_IP, GUEST_MAC, Lab, LabSpec

    TUNSETIFF, TUNSETSNDBUF, TAP_NO_PI = 0x400454CA, 0x400454D4, 0x1002
    PAYLOAD, SECONDS, PORT = 1024, 1.5, 7777

    def frame(payload):
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, payload + 28, 0, 0x4000, 64, 17, 0,
                         socket.inet_aton(GUEST_IP), socket.inet_aton(EXT_IP))
        check = sum(struct.unpack("!10H", ip))
        while check >> 16:
            check = (check & 0xFFFF) + (check >> 16)
        ip = ip[:10] + struct.pack("!H", ~check & 0xFFFF) + ip[12:]
        mac = bytes.fromhex((EXT_MAC + GUEST_MAC).replace(":", ""))
        return mac + b"\\x08\\0" + ip + struct.pack("!HHHH", PORT, PORT, payload + 8, 0) + bytes(payload)

    sndbuf, nf_call, unlearned = int(sys.argv[1]), sys.argv[2] == "nf", sys.argv[3] == "unlearned"
    with Lab(LabSpec()) as lab:
        if nf_call:
            shell.write_proc("/proc/sys/net/bridge/bridge-nf-call-iptables", 1)
        if unlearned:  # the bridge floods: a third port that was attached before the NIC makes its copy a clone
            shell.run("ip", "link", "set", "veth0", "nomaster")
            shell.run("ip", "link", "add", "spare0", "type", "veth", "peer", "name", "spare1")
            shell.run("ip", "link", "set", "spare0", "master", "br0", "up")
            shell.run("ip", "link", "set", "spare1", "up")
            shell.run("ip", "link", "set", "veth0", "master", "br0")
            shell.run("bridge", "link", "set", "dev", "veth0", "learning", "off")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"tap0", TAP_NO_PI))
        if sndbuf:
            fcntl.ioctl(tap, TUNSETSNDBUF, struct.pack("i", sndbuf))
        code = f"import socket as s; k = s.socket(2, 2); k.setsockopt(1, 8, 4 << 20); k.bind(('', {PORT}))\\n"
        code += "print(1, flush=True)\\nwhile True: k.recv(65536)"
        sink = subprocess.Popen(shell.in_netns("ext", sys.executable, "-c", code), stdout=subprocess.PIPE)
        sink.stdout.readline()
        time.sleep(0.3)  # the bridge sees the tap's carrier
        before = lab.snapshot()
        data, written, again = frame(PAYLOAD), 0, 0
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                os.write(tap, data)
                written += 1
            except BlockingIOError:
                again += 1
                select.select([], [tap], [], 0.1)
        while lab.queued_pkts():
            time.sleep(0.05)
        time.sleep(0.2)
        delta = counters.delta(before, lab.snapshot())
        nic = counters.qdisc(delta["lab"]["qdiscs"], "veth0")
        udp = delta["ext"]["snmp"]["Udp"]
        print(json.dumps({
            "written": written, "again": again, "nic_sent": nic["packets"], "nic_dropped": nic["drops"],
            "arrived": delta["ext"]["links"]["veth1"]["rx"]["packets"],
            "read": udp["InDatagrams"], "receiver_dropped": udp["InErrors"],
        }))
        sink.kill()
"""
LIMIT = 1 << 20


def blast(runner, sndbuf, nf="-", learned="-"):
    got = runner.python(BLAST, str(sndbuf), nf, learned)
    assert got["written"] == got["nic_sent"] + got["nic_dropped"], got
    assert got["nic_sent"] == got["arrived"] == got["read"] + got["receiver_dropped"], got
    return got


def test_without_a_limit_the_nic_drops(sluice_as):
    got = blast(sluice_as, 0)
    assert got["again"] == 0 and got["nic_dropped"] > got["written"] / 4, got


def test_with_the_limit_the_nic_drops_nothing(sluice_as):
    got = blast(sluice_as, LIMIT)
    assert got["again"] > 0 and got["nic_dropped"] == 0 and got["written"] > 10000, got


def test_bridge_nf_call_defeats_the_limit(sluice):
    """Why the lab writes 0 to it: frames that netfilter saw are detached from the tap."""
    import os

    if not os.path.exists("/proc/sys/net/bridge/bridge-nf-call-iptables"):
        pytest.skip("this kernel has no br_netfilter")
    got = blast(sluice, LIMIT, nf="nf")
    assert got["nic_dropped"] > 0, got


def test_unlearned_address_defeats_the_limit(sluice):
    """Why the lab has static forwarding entries: flooded frames are clones, and clones are not accounted."""
    got = blast(sluice, LIMIT, learned="unlearned")
    assert got["nic_dropped"] > 0, got


def test_second_lab_in_the_same_namespace(sluice):
    """A lab takes itself down completely: the next one starts from counters of 0."""
    got = sluice.python("""
        from lab import Lab, LabSpec
        seen = []
        for link in ("100mbit", None, "10mbit"):
            with Lab(LabSpec(link=link)) as lab:
                lab.start_server()
                nic = [q["kind"] for q in lab.snapshot()["lab"]["qdiscs"] if q["dev"] == "veth0"]
                seen.append([nic, lab.snapshot()["lab"]["links"]["veth0"]["tx"]["packets"], lab.what_is_down()])
        print(json.dumps(seen))
    """)
    assert got == [[["htb", "pfifo"], 0, []], [["noqueue"], 0, []], [["htb", "pfifo"], 0, []]]
