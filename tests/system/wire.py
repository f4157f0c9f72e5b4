# SPDX-License-Identifier: BSD-2-Clause
"""What scripts inside the namespaces have in common (`sluice.python`): a guest that serves, questions to it, and far
ends that no kernel offers.

    Served  --tap0-->  br0: alive(), ping(), udp_echo(), tcp_echo()
    guest   --tap0-->  br0 --> tap1 --LossyWire--> tap9 in far (10.77.0.9)
    guest   --dgram--> Peer: one datagram is one frame
"""

import ctypes
import fcntl
import hashlib
import math
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
from dataclasses import replace

import shell
from lab import GUEST_IP, GUEST_MAC
from vm import VM

ECHO_PORT = 7
BOOT_S = 20.0
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000
ARP, IPV4, VLAN = 0x0806, 0x0800, 0x8100


class Served:
    """A guest in serve mode: `with Served(spec) as guest:`. It lives until the block is left."""

    def __init__(self, spec):
        self.vm = VM(replace(spec, silence_s=math.inf))  # one that serves says nothing
        self.lines = []
        self._up = threading.Event()

    def _on_line(self, line):
        self.lines.append(line)
        if "serving at" in line:
            self._up.set()

    def __enter__(self):
        self.vm.__enter__()
        self._reader = threading.Thread(target=self.vm.wait, args=(self._on_line, math.inf), daemon=True)
        self._reader.start()
        if not self._up.wait(BOOT_S):
            self.vm.give_up(2, "it does not serve")
            raise SystemExit(f"the guest does not serve: {self.lines} {self.vm.qemu_said}")
        return self

    def __exit__(self, *_):
        self.vm.give_up(0, "served")
        self._reader.join(5)
        self.vm.__exit__()


# ---- questions by way of the kernel ----


def checksum(data):
    data = data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def echo_request(number, data, identifier=77):
    body = struct.pack("!BBHHH", 8, 0, 0, identifier, number & 0xFFFF) + data
    return body[:2] + struct.pack("!H", checksum(body)) + body[4:]


def ping(times, size=48, address=GUEST_IP, within_s=1.0):
    """How many of so many questions were answered in time, with the data that was asked with."""
    answered = 0
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        for number in range(times):
            request = echo_request(number, os.urandom(size))
            raw.sendto(request, (address, 0))
            end = time.monotonic() + within_s
            while (left := end - time.monotonic()) > 0 and select.select([raw], [], [], left)[0]:
                heard = raw.recv(70000)[20:]
                if heard[:1] == b"\0" and heard[4:] == request[4:]:
                    answered += 1
                    break
    return answered


def udp_echo(sizes, address=GUEST_IP):
    """For each size whether the datagram came back as it went, from where it was sent to."""
    right = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(2)
        for size in sizes:
            data = os.urandom(size)
            sock.sendto(data, (address, ECHO_PORT))
            try:
                right.append(sock.recvfrom(70000) == (data, (address, ECHO_PORT)))
            except TimeoutError:
                right.append(False)
    return right


def _echo_stream(total, results, address, within_s, pause_s):
    try:
        with socket.create_connection((address, ECHO_PORT), 5) as sock:
            sock.settimeout(within_s)
            sent, got = hashlib.sha256(), hashlib.sha256()

            def send():
                left = total
                while left:
                    part = os.urandom(min(left, 50000))
                    sent.update(part)
                    sock.sendall(part)
                    left -= len(part)
                sock.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=send, daemon=True)
            sender.start()
            time.sleep(pause_s)
            while part := sock.recv(65536):
                got.update(part)
            sender.join(within_s)
            results.append(sent.digest() == got.digest())
    except OSError as error:
        results.append(str(error))


def tcp_echo(streams, total, address=GUEST_IP, within_s=20.0, pause_s=0.0):
    """For each of so many streams at once whether its bytes came back as they went. For the length of the pause nobody
    reads them."""
    results = []
    threads = [
        threading.Thread(target=_echo_stream, args=(total, results, address, within_s, pause_s), daemon=True)
        for _ in range(streams)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def alive():
    """20 of 20 pings, and a new connection works."""
    return ping(20) == 20 and tcp_echo(1, 1000) == [True]


def enter_netns(name):
    """This thread, and sockets that it opens."""
    fd = os.open(f"/run/netns/{name}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(fd)


def run_in_netns(name, function, *args):
    """What the function returns, called by a thread in that namespace."""
    answer = []

    def inside():
        enter_netns(name)
        answer.append(function(*args))

    thread = threading.Thread(target=inside, daemon=True)
    thread.start()
    thread.join()
    return answer[0]


# ---- a wire that loses frames ----


def _open_tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


class LossyWire:
    """Namespace far, 10.77.0.9/24, behind a wire of ours that loses a share of the frames of each direction.

    Neither end has an offload, so each frame on it is one as it would be on a wire.
    """

    IP = "10.77.0.9"

    def __init__(self, loss, seed=1):
        self.loss, self.carried, self.lost = loss, 0, 0
        self._random = random.Random(seed)
        self._end = False

    def __enter__(self):
        shell.run("ip", "netns", "add", "far")
        self._ends = [_open_tap("tap1"), _open_tap("tap9")]
        shell.run("ip", "link", "set", "tap1", "master", "br0", "up")
        shell.run("ip", "link", "set", "tap9", "netns", "far")
        for words in (f"addr add {self.IP}/24 dev tap9", "link set tap9 up", "link set lo up",
                      f"neigh add {GUEST_IP} lladdr {GUEST_MAC} nud permanent dev tap9"):  # fmt: skip
            shell.run(*shell.in_netns("far", "ip", *words.split()))
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end = True
        self._thread.join()
        for fd in self._ends:
            os.close(fd)
        shell.run("ip", "netns", "del", "far", check=False)

    def _carry(self):
        other = {self._ends[0]: self._ends[1], self._ends[1]: self._ends[0]}
        while not self._end:
            for fd in select.select(self._ends, [], [], 0.1)[0]:
                try:
                    frame = os.read(fd, 65536)
                    self.carried += 1
                    if self._random.random() < self.loss:
                        self.lost += 1
                    else:
                        os.write(other[fd], frame)
                except BlockingIOError:
                    self.lost += 1


# ---- a peer of scripted frames ----


class Peer:
    """The other end of -netdev dgram: sends and receives frames, answers ARP unless it is mute."""

    IP, MAC = "10.9.0.1", bytes.fromhex("020000090001")
    GUEST_IP, GUEST_MAC = "10.9.0.2", bytes.fromhex(GUEST_MAC.replace(":", ""))
    _QEMU, _OURS = ("127.0.0.1", 41001), ("127.0.0.1", 41002)
    netdev = "dgram,id=n0," + ",".join(
        f"{end}.type=inet,{end}.host={host},{end}.port={port}"
        for end, (host, port) in (("local", _QEMU), ("remote", _OURS))
    )

    def __init__(self):
        self.mute = False
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(self._OURS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._sock.close()

    def send(self, frame):
        self._sock.sendto(frame, self._QEMU)

    def receive(self, within_s):
        """The next frame that is no question for our address; None when none came."""
        end = time.monotonic() + within_s
        while (left := end - time.monotonic()) > 0 and select.select([self._sock], [], [], left)[0]:
            frame = self._sock.recv(70000)
            if self.mute or not self._answer_arp(frame):
                return frame
        return None

    def _answer_arp(self, frame):
        if len(frame) < 42 or frame[12:14] != struct.pack("!H", ARP) or frame[20:22] != b"\0\1":
            return False
        if frame[38:42] == socket.inet_aton(self.IP):
            self.send(frame[6:12] + self.MAC + frame[12:20] + b"\0\2" + self.MAC + frame[38:42] + frame[22:32])
        return True

    def asks_who_has(self, asker="10.9.0.3", within_s=2.0):
        """Whether the guest answers an ARP question of somebody else, which teaches it nothing of us."""
        ours = self.MAC + socket.inet_aton(asker)
        whom = bytes(6) + socket.inet_aton(self.GUEST_IP)
        self.send(self.ethernet(bytes.fromhex("0001080006040001") + ours + whom, ARP))
        while (frame := self.receive(within_s)) is not None:
            if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\2" and frame[38:42] == ours[6:]:
                return True
        return False

    def ethernet(self, payload, ethertype=IPV4, tag=None):
        vlan = b"" if tag is None else struct.pack("!HH", VLAN, tag)
        return self.GUEST_MAC + self.MAC + vlan + struct.pack("!H", ethertype) + payload

    def ip(self, protocol, payload):
        header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0,
                             socket.inet_aton(self.IP), socket.inet_aton(self.GUEST_IP))  # fmt: skip
        return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + payload

    def ping_frame(self, number, length, tag=None):
        """An echo request in a frame of so many bytes, its tag not counted."""
        data = random.Random(number).randbytes(length - 14 - 20 - 8)
        return self.ethernet(self.ip(1, echo_request(number, data)), tag=tag)

    def reset_of(self, syn):
        """The frame that refuses a connection."""
        source, target, sequence = struct.unpack("!HHI", syn[34:42])
        tcp = struct.pack("!HHIIBBHHH", target, source, 0, sequence + 1, 0x50, 0x14, 0, 0, 0)
        pseudo = syn[30:34] + syn[26:30] + struct.pack("!HH", 6, len(tcp))
        return self.ethernet(self.ip(6, tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]))

    def ping_all(self, frames, window=16, within_s=2.0):
        """Sends echo requests, so many unanswered at most, and returns the numbers of those that came back whole."""
        waiting, answered, frames = {}, set(), list(frames)
        while frames or waiting:
            while frames and len(waiting) < window:
                frame = frames.pop()
                waiting[frame[40:42]] = frame
                self.send(frame)
            heard = self.receive(within_s)
            if heard is None:
                waiting.clear()  # lost
                continue
            is_answer = heard[12:14] == b"\x08\0" and heard[34:35] == b"\0"
            asked = waiting.get(heard[40:42]) if is_answer else None
            if asked is not None and heard[38:] == asked[38:]:
                del waiting[heard[40:42]]
                answered.add(struct.unpack("!H", heard[40:42])[0])
        return answered


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_iperf(netns, port):
    argv = shell.in_netns(netns, "iperf3", "-s", "-1", "-4", "-p", str(port))
    return shell.start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
