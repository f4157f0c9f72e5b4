# SPDX-License-Identifier: BSD-2-Clause
"""A guest without a test answers: ping, UDP and TCP echo, on both sides of the shaped NIC.

    guest (serve) --- tap0 --- br0 (10.77.0.254) --- veth0 (htb 100 Mbit/s, pfifo) --- veth1 in ext (10.77.0.1)
"""

SERVE = """
    import ctypes, hashlib, os, socket, struct, threading, time
    from lab import Lab, LabSpec
    from vm import VM, VmSpec

    GUEST = ("10.77.0.2", 7)
    answer = {}

    def checksum(data):
        total = sum(struct.unpack(f"!{len(data) // 2}H", data))
        total = (total >> 16) + (total & 0xffff)
        return ~(total + (total >> 16)) & 0xffff

    def ping(times):
        "How many echoes were answered within a second."
        answered = 0
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
            raw.settimeout(1)
            for n in range(times):
                body = struct.pack("!BBHHH", 8, 0, 0, 77, n) + os.urandom(48)
                raw.sendto(body[:2] + struct.pack("!H", checksum(body)) + body[4:], (GUEST[0], 0))
                try:
                    # Raw sockets hear everything: the answer is type 0 with our number and data.
                    while (heard := raw.recv(2048)[20:])[:1] != b"\\0" or heard[4:] != body[4:]:
                        pass
                    answered += 1
                except TimeoutError:
                    pass
        return answered

    def udp(sizes):
        right = []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(2)
            for size in sizes:
                data = os.urandom(size)
                sock.sendto(data, GUEST)
                try:
                    right.append(sock.recvfrom(70000) == (data, GUEST))
                except TimeoutError:
                    right.append(None)
        return right

    def tcp(total, results, read=True):
        try:
            with socket.create_connection(GUEST, 5) as sock:
                sock.settimeout(20)
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
                if not read:
                    time.sleep(3)
                while part := sock.recv(65536):
                    got.update(part)
                sender.join(20)
                results.append(sent.digest() == got.digest())
        except OSError as error:
            results.append(str(error))

    def streams(n, total, **how):
        results = []
        threads = [threading.Thread(target=tcp, args=(total, results), kwargs=how) for _ in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        return results

    up = threading.Event()
    with Lab(LabSpec()) as lab:
        with VM(VmSpec(config=("ip=10.77.0.2/24",), kernel=sys.argv[1], silence_s=80.0)) as vm:
            def on_line(line):
                if "serving" in line:
                    up.set()
            threading.Thread(target=vm.wait, args=(on_line, 80), daemon=True).start()
            if not up.wait(20):
                raise SystemExit("the guest does not serve")
            for where in ("bridge", "ext"):
                if where == "ext":
                    netns = os.open("/run/netns/ext", os.O_RDONLY)
                    assert ctypes.CDLL(None).setns(netns, 0) == 0
                answer[where] = {
                    "ping": ping(3), "udp": udp((1, 1472, 1473, 9000, 65507)), "tcp": streams(4, 2000000),
                }
            answer["unread"] = streams(1, 3000000, read=False)
            answer["after"] = {"ping": ping(2), "udp": udp((100,))}
            print(json.dumps(answer), flush=True)
            os._exit(0)  # the namespaces take the guest with them
"""


def test_echo(sluice, image):
    """Datagrams of every size and streams both ways at once come back as they went, however slow the way back is; a
    peer that does not read waits, and nobody else with it."""
    got = sluice.python(SERVE, image)
    for where in ("bridge", "ext"):
        assert got[where] == {"ping": 3, "udp": [True] * 5, "tcp": [True] * 4}, got
    assert got["unread"] == [True] and got["after"] == {"ping": 2, "udp": [True]}, got
