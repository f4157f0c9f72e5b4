# SPDX-License-Identifier: BSD-2-Clause
"""Field cases of checksums and segmentation, on real backends (tests/field_cases.tsv).

    guest --> [dump, net headers included: dump.py] --> tap0 --> br0 --> veth0 --> veth1 in ext       (host/lab.py)
                                                             \\-> vxa ==> ua --> ub ==> vxb in ext   (host/lab_vxlan.py)
"""

import itertools
import json
import textwrap

import pytest
from conftest import ROOT, RUN_TIMEOUT_S

pytestmark = pytest.mark.usefixtures("image")

MSS_BYTES = 1460
LONG_S = 400

# What every program inside has. argv[1]: the image; argv[2]: its own arguments, as JSON.
KIT = f"""
    sys.path.insert(0, {str(ROOT / "tests" / "system")!r})
    import os, socket, struct
    import counters, dump, lab_vxlan, shell
    from lab import GUEST_IP, GUEST_MAC, HOST_IP, PREFIX, Lab, LabSpec
    from lab_vxlan import B_INNER, GUEST_INNER, VxlanLab, VxlanSpec
    from rows import Test, run_test
    from vm import MEMORY, VmSpec
    from wire import ECHO_PORT, Served, ping, tcp_echo, udp_echo

    IMAGE, ASKED = sys.argv[1], json.loads(sys.argv[2])
    DUMP = "/run/dump.pcap"
    BARE_TAP = "tap,id=n0,ifname=tap0,script=no,downscript=no,vnet_hdr=off"

    def spec(words=(), **more):
        return VmSpec(config=tuple(words), kernel=IMAGE, mac=GUEST_MAC, pcap=DUMP, **more)

    def features(guest):
        "Names of the device's features that the driver took, as QEMU has them."
        path = "/machine/peripheral/net0/virtio-backend"
        taken = guest.vm.qmp.command("x-query-virtio-status", path=path)["guest-features"]
        return sorted(words.split(":")[0].removeprefix("VIRTIO_NET_F_") for words in taken["dev-features"])

    def echoes(sizes, tcp):
        "What came back as it went: pings, whether each datagram, whether a stream."
        return {{"ping": ping(3), "udp": udp_echo(sizes), "tcp": tcp_echo(1, tcp)}}

    def tap_errors():
        link = counters.read_links(None)["tap0"]
        return sum(v for side in ("rx", "tx") for k, v in link[side].items() if "error" in k)

    def received(found):
        "What the host said of the packets for the guest."
        flags = [f.flags for f in found if not f.sent and f.protocol in (dump.TCP, dump.UDP)]
        return {{"packets": len(flags), "needs_csum": sum(f & dump.NEEDS_CSUM for f in flags),
                "super": sum(f.gso_type != 0 for f in found if not f.sent)}}
"""


def inside(runner, image, program, timeout=RUN_TIMEOUT_S, **asked):
    source = textwrap.dedent(KIT) + textwrap.dedent(program)
    return runner.python(source, image, json.dumps(asked), timeout=timeout)


# ---------------------------------------------------------------- addresses, received checksums

LEASE = """
    def wrong_sum(port):
        "A datagram for the echo, not from a stack: its checksum is finished, and wrong."
        body = struct.pack("!HHHH", port, ECHO_PORT, 12, 0x1234) + b"evil"
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 32, 0, 0, 64, 17, 0, socket.inet_aton(HOST_IP),
                         socket.inet_aton(GUEST_IP))
        ip = ip[:10] + struct.pack("!H", 0xFFFF - dump.residue(ip)) + ip[12:]
        mac = bytes.fromhex(GUEST_MAC.replace(":", ""))
        return mac + bytes.fromhex("020000000001") + b"\\x08\\0" + ip + body

    tunnel, vnet_hdr = ASKED["tunnel"], ASKED["vnet_hdr"]
    with (VxlanLab(VxlanSpec("inner")) if tunnel else Lab(LabSpec(link=None, dhcp=True))) as lab:
        if tunnel:
            import peer
            lab.dhcp = peer.DhcpServer("ext", "vxb", GUEST_INNER, PREFIX, B_INNER)
        machine = spec(["ip=dhcp"], device_options=tuple(ASKED["device"]), netdev=None if vnet_hdr else BARE_TAP)
        with Served(machine) as guest:
            answer = {"messages": lab.dhcp.messages(), "features": features(guest)}
            if not tunnel:
                with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw, \\
                     socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ears:
                    ears.bind((HOST_IP, 0))
                    ears.settimeout(4)
                    raw.bind(("br0", 0))
                    raw.send(wrong_sum(ears.getsockname()[1]))
                    ears.sendto(b"good", (GUEST_IP, ECHO_PORT))
                    answer["heard"] = []
                    while "good" not in answer["heard"]:
                        try:
                            answer["heard"].append(ears.recv(100).decode())
                        except TimeoutError:
                            break
                answer["ping"] = ping(3)
        lab.dhcp.stop()
        found = dump.frames(DUMP, GUEST_MAC, vnet_hdr)
        offers = [f for f in found if not f.sent and f.protocol == dump.UDP and f.data[34:36] == b"\\0\\x43"]
        answer |= {"offers": len(offers), "open": sum(f.transport_sum_is_open() for f in offers),
                   "right": sum(f.transport_sum_is_right() for f in offers), "flags": [f.flags for f in offers],
                   "faults": dump.faults(found, 1500)}
        questions = [f for f in found if not f.sent and f.protocol == dump.UDP and f.data.endswith(b"good")]
        answer["heard_open"] = bool(questions) and all(f.flags & dump.NEEDS_CSUM for f in questions)
    print(json.dumps(answer))
"""


@pytest.mark.parametrize(
    "device, vnet_hdr, tunnel",
    [((), True, False), (("guest_csum=off",), True, False), ((), False, False), ((), True, True)],
    ids=["guest_csum=on", "guest_csum=off", "vnet_hdr=off", "vxlan"],
)
def test_a_lease_from_this_host(sluice, image, device, vnet_hdr, tunnel):
    """Field case 57: the server's answers come with an open checksum where that was negotiated, else with a right one,
    and the first of each kind is taken. QEMU itself finishes those of DHCP behind the dump, so the echo of a process of
    this host shows that the guest takes open ones. A finished, wrong checksum is dropped."""
    got = inside(sluice, image, LEASE, device=device, vnet_hdr=vnet_hdr, tunnel=tunnel)
    offers = got["offers"]
    assert 2 <= offers == got["messages"] <= 3, got  # one more after a pause of the machine
    negotiated = not device and vnet_hdr
    assert ("GUEST_CSUM" in got["features"]) == negotiated, got
    if negotiated:
        assert got["open"] == offers and got["right"] == 0 and all(flags & 1 for flags in got["flags"]), got
        assert tunnel or got["heard_open"], got
    else:
        assert got["right"] == offers and not any(got["flags"]), got
    assert got["faults"] == {}, got
    if not tunnel:
        assert got["heard"] == ["good"] and got["ping"] == 3, got


# One or several tests against iperf3, and what each dump holds.
ROWS = """
    def poisoned():
        "Memory that was full of 0xA5 when the machine was started."
        with open("/run/poison", "wb") as file:
            for _ in range(256):
                file.write(b"\\xa5" * (1 << 20))
        return ("-machine", "memory-backend=m0", "-object",
                f"memory-backend-file,id=m0,size={MEMORY},mem-path=/run/poison,share=on")

    def poison_left():
        "Share of that memory that is as it was."
        with open("/run/poison", "rb") as file:
            pages = list(iter(lambda: file.read(1 << 16), b""))
        os.unlink("/run/poison")
        return sum(page == b"\\xa5" * (1 << 16) for page in pages) / len(pages)

    def lab_of(how):
        if "vxlan" in how:
            lab_vxlan.UNDERLAY_MTU, lab_vxlan.INNER_MTU = how["vxlan"]
            return VxlanLab(VxlanSpec("inner"))
        return Lab(LabSpec(link=None, to=how.get("to", "ext")))

    answer = []
    for how in ASKED["runs"]:
        with lab_of(how) as lab:
            if how.get("gro"):
                shell.run("ethtool", "-K", "veth0", "gro", "on")
                shell.run(*shell.in_netns("ext", "ethtool", "-K", "veth1", "tso", "off", "gso", "off"))
            words = ("server=" + B_INNER, f"ip={GUEST_INNER}/{PREFIX}") if "vxlan" in how else ()
            machine = spec(more=(poisoned() if how.get("poison") else ()) + tuple(how.get("more", ())),
                           device_options=tuple(how.get("device", ())))
            before = lab.snapshot()
            test = Test(protocol=how["test"], time_s=how.get("time", 0.6), rate=how.get("rate"),
                        reverse=how.get("reverse", False), size_bytes=how.get("size"), mtu=how.get("mtu", 1500),
                        sndbuf_bytes=1 << 20, guest=words + tuple(how.get("guest", ())), vm=machine)
            row = run_test(lab, test)[0]
            links = counters.delta(before, lab.snapshot())["lab"]["links"]
            found = dump.frames(DUMP, GUEST_MAC)
            sent = [f for f in found if f.sent]
            segments = [f for f in sent if f.protocol == dump.TCP]
            answer.append({
                "row": row, "received": received(found), "faults": dump.faults(found, how.get("mtu", 1500)),
                "tap_errors": tap_errors(), "poison_left": poison_left() if how.get("poison") else None,
                "dropped": {name: link["tx"]["dropped"] for name, link in links.items()},
                "kinds": {"arp": sum(f.ethertype == dump.ARP for f in sent),
                          "udp": sum(f.protocol == dump.UDP for f in sent), "tcp": len(segments),
                          "super": sum(f.gso_type != 0 for f in segments),
                          "fragments": sum(f.fragment for f in sent)},
                "segment": max([min(f.gso_size or f.tcp_payload_bytes, f.tcp_payload_bytes) for f in segments] or [0]),
            })
    print(json.dumps(answer))
"""


def run(runner, image, *runs):
    """The rows are sound, the frames that the guest sent without a fault, and the guest found no wrong checksum."""
    answer = inside(runner, image, ROWS, runs=runs)
    for how, got in zip(runs, answer):
        row = got["row"]
        assert row["valid"] and row["ledger_ok"], (how, row)
        assert row["unexpected_full"] == 0 and row["tx_stops"] == row["tx_wakes"], (how, row)
        assert row["guest"]["net"]["csum_bad"] == 0, (how, row["guest"]["net"])
        assert got["faults"] == {} and got["tap_errors"] == 0, (how, got["faults"])
    return answer


def few_retransmits(got):
    """Below 1 in 200: on a busy machine a sender takes a pause of the guest for loss. A kind that is dropped makes most
    of its bytes be sent again."""
    row = got["row"]
    return row["retransmits"] <= row["bits_per_second"] * row["seconds"] / 8 / MSS_BYTES / 200


@pytest.mark.parametrize("cpus", [1, 4, 64])
def test_open_checksums_are_not_judged(sluice, image, cpus):
    """Field cases 58, 59: UDP and TCP from a process of this host come with open checksums, TCP also coalesced; the
    guest counts none as wrong and nothing is sent again, however many processors the machine has."""
    more = ("-smp", f"{cpus},maxcpus={max(cpus, 2)}")
    common = {"to": "host", "reverse": True, "more": more}
    udp, tcp = run(sluice, image, {"test": "udp", "rate": "20m", **common}, {"test": "tcp", "rate": "200m", **common})
    assert udp["row"]["received"] == udp["row"]["sent"] > 0, udp
    assert udp["received"]["needs_csum"] >= udp["row"]["received"], udp
    assert tcp["received"]["super"] > 10 and tcp["row"]["guest"]["net"]["lro_frames"] > 10, tcp
    assert tcp["row"]["bits_per_second"] > 0 and few_retransmits(tcp), tcp


def test_coalesced_by_an_interface(sluice, image):
    """Field case 59: the sender cuts, and the interface of this host coalesces (GRO): no checksum is counted as wrong,
    nothing is sent again."""
    (got,) = run(sluice, image, {"test": "tcp", "reverse": True, "rate": "200m", "gro": True, "time": 1})
    assert got["received"]["super"] > 10 and got["row"]["guest"]["net"]["lro_frames"] > 10, got
    assert few_retransmits(got), got


# ---------------------------------------------------------------- what the guest sends


def test_every_header_on_the_tap(sluice, image):
    """Field cases 61, 62, 63: the machine's memory was full of 0xA5 at its start; of each frame of ARP, UDP, fragments
    and TCP the net header has 0 in what it does not use; each super-frame has IP's length and sum right, its checksum's
    place and the length of its headers. The host takes all of them, and nothing is sent again."""
    udp, large, tcp = run(
        sluice, image, {"test": "udp", "rate": "50m", "poison": True},
        {"test": "udp", "rate": "50m", "size": 8192, "poison": True}, {"test": "tcp", "poison": True})  # fmt: skip
    assert min(got["poison_left"] for got in (udp, large, tcp)) > 0.2, "the memory was not poisoned"
    assert udp["kinds"]["arp"] > 0 and udp["row"]["sent"] == udp["row"]["received"] > 100, udp
    assert large["kinds"]["fragments"] > 100 and large["row"]["incomplete"] == 0, large
    assert tcp["kinds"]["super"] > 100 and few_retransmits(tcp), tcp


VXLAN_MTU = {"vxlan": (1500, 1450)}


@pytest.mark.parametrize("tso", ["on", "off"])
def test_segments_follow_the_tunnel(sluice, image, tso):
    """Field cases 63, 71: a tunnel of MTU 1450 behind the bridge, the guest with MTU 1450 and with 1500, segmentation
    on and off: segments are of 1410 bytes, super-frames go through, no device drops one for its length."""
    common = {"test": "tcp", **VXLAN_MTU, "guest": (f"virtio.tso={tso}",)}
    for got in run(sluice, image, {**common, "mtu": 1450}, {**common, "mtu": 1500}):
        assert got["segment"] == 1410, got
        assert (got["kinds"]["super"] > 20) == (tso == "on"), got["kinds"]
        assert not any(got["dropped"].values()), got["dropped"]
        assert few_retransmits(got), got


# ---------------------------------------------------------------- echoes

ECHO = """
    answer = []
    with Lab(LabSpec(link=None, mtu=ASKED.get("mtu", 1500))) as lab:
        for how in ASKED["boots"]:
            with Served(spec([f"ip={GUEST_IP}/{PREFIX}"], device_options=tuple(how))) as guest:
                got = {"features": features(guest), **echoes(ASKED["sizes"], ASKED["tcp"])}
            found = dump.frames(DUMP, GUEST_MAC)
            echoed = dump.datagrams(found)
            got["faults"] = dump.faults(found, ASKED.get("mtu", 1500))
            got["sizes"] = [len(payload) for _, payload in echoed]
            got["sums"] = all(right for right, _ in echoed)
            got["lengths"] = sorted({len(f.data) for f in found if f.sent and f.protocol == dump.UDP})
            answer.append(got)
    print(json.dumps(answer))
"""


def echo(runner, image, boots, sizes=(1, 1472, 1473), tcp=200_000, **more):
    """Everything comes back as it went, and the frames are without a fault."""
    answer = inside(runner, image, ECHO, boots=boots, sizes=sizes, tcp=tcp, **more)
    for boot, got in zip(boots, answer):
        assert got["ping"] == 3 and got["udp"] == [True] * len(sizes) and got["tcp"] == [True], (boot, got)
        assert got["faults"] == {} and got["sums"] and got["sizes"] == list(sizes), (boot, got)
    return answer


def test_large_datagrams(sluice, image):
    """Field cases 65, 66, 69: with and without UFO at the device, datagrams of every size to 65,507 bytes come back
    exact; the guest takes neither UFO nor USO and cuts them itself; no fragment asks for segmentation."""
    sizes = (1472, 1473, 2952, 2953, 8192, 14792, 14793, 65506, 65507)
    for got in echo(sluice, image, [("host_ufo=on", "guest_ufo=on"), ("host_ufo=off", "guest_ufo=off")], sizes):
        assert not any("UFO" in name or "USO" in name for name in got["features"]), got["features"]
        assert max(got["lengths"]) == 1514, got["lengths"]


@pytest.mark.parametrize("device", [(), ("guest_tso4=off",), ("mrg_rxbuf=off",)], ids=["4096", "2048", "single"])
def test_jumbo_frames_that_fill_a_buffer(sluice, image, device):
    """Field case 70: MTU 9000, frames of every length around one and two buffers and the largest, with each size of
    buffer that the driver has: all come back exact. 9015 bytes and more are two frames."""
    lengths = [*range(2030, 2060), *range(4078, 4108), *range(6120, 6150), *range(8170, 8201), *range(8990, 9019)]
    sizes = [length - 42 for length in lengths]
    (got,) = echo(sluice, image, [("host_mtu=9000", *device)], sizes, mtu=9000)
    whole = {length for length in lengths if length <= 9014}
    assert whole <= set(got["lengths"]) and max(got["lengths"]) == 9014, got["lengths"]


OFFLOADS = ("csum", "guest_csum", "host_tso4", "host_tso6", "guest_tso4", "guest_tso6", "guest_ecn", "gso", "mrg_rxbuf")


def settings(values):
    return tuple(f"{name}={'on' if value else 'off'}" for name, value in zip(OFFLOADS, values))


def pairwise():
    """Six settings in which each two of the nine bits have all four combinations: all off, and in the other five each
    bit is on in another three. Two sets of three of five always meet, and neither holds the other."""
    triples = list(itertools.combinations(range(5), 3))[: len(OFFLOADS)]
    return [(False,) * len(OFFLOADS), *(tuple(row in triple for triple in triples) for row in range(5))]


def consistent(names):
    """The taken features have what they need (virtio 1.2, 5.1.3.1)."""
    needs = {"HOST_TSO4": "CSUM", "HOST_TSO6": "CSUM", "HOST_UFO": "CSUM", "GUEST_TSO4": "GUEST_CSUM",
             "GUEST_TSO6": "GUEST_CSUM", "GUEST_UFO": "GUEST_CSUM"}  # fmt: skip
    ecn = {"GUEST_ECN": {"GUEST_TSO4", "GUEST_TSO6"}, "HOST_ECN": {"HOST_TSO4", "HOST_TSO6"}}
    taken = set(names)
    return all(b in taken for a, b in needs.items() if a in taken) and all(
        taken & any_of for name, any_of in ecn.items() if name in taken
    )


def test_offload_bits_pairwise(sluice, image):
    """Field case 68: each pair of offload bits in all four settings: ping, UDP and TCP pass, and what the driver took
    is consistent and was offered."""
    rows = pairwise()
    for a, b in itertools.combinations(range(len(OFFLOADS)), 2):
        assert {(row[a], row[b]) for row in rows} == set(itertools.product((False, True), repeat=2))
    for row, got in zip(rows, echo(sluice, image, [settings(row) for row in rows])):
        assert consistent(got["features"]), (row, got["features"])
        for name, on in zip(OFFLOADS, row):
            assert on or name.upper() not in got["features"], (row, got["features"])


@pytest.mark.long
@pytest.mark.parametrize("low", itertools.product((False, True), repeat=4), ids=str)
def test_offload_bits_all(sluice, image, low):
    """Field case 68: all 512 settings, one boot each."""
    rows = [(*low, *high) for high in itertools.product((False, True), repeat=len(OFFLOADS) - len(low))]
    for row, got in zip(rows, echo(sluice, image, [settings(row) for row in rows], tcp=5_000_000, timeout=LONG_S)):
        assert consistent(got["features"]), (row, got["features"])


# ---------------------------------------------------------------- backends without offloads

BARE = """
    import fcntl, select, threading

    def relay(tap, wire_socket):
        "Between the tap and the datagrams that QEMU takes for frames."
        while True:
            for ready in select.select([tap, wire_socket], [], [])[0]:
                if ready is tap:
                    wire_socket.sendto(os.read(tap.fileno(), 65536), ("127.0.0.1", 5551))
                else:
                    os.write(tap.fileno(), wire_socket.recv(65536))

    with Lab(LabSpec(link=None)) as lab:
        netdev = BARE_TAP
        if ASKED["backend"] == "dgram":
            netdev = "dgram,id=n0," + ",".join(f"{end}.type=inet,{end}.host=127.0.0.1,{end}.port={port}"
                                               for end, port in (("local", 5551), ("remote", 5552)))
            tap = open("/dev/net/tun", "r+b", buffering=0)
            fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", b"tap0", 0x1002))  # TUNSETIFF: tap, no header
            ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            ours.bind(("127.0.0.1", 5552))
            threading.Thread(target=relay, args=(tap, ours), daemon=True).start()
        before = counters.snapshot(None)
        with Served(spec([f"ip={GUEST_IP}/{PREFIX}"], netdev=netdev)) as guest:
            answer = {"features": features(guest), **echoes(ASKED["sizes"], 300_000)}
        snmp = counters.delta(before, counters.snapshot(None))["snmp"]
        found = dump.frames(DUMP, GUEST_MAC, net_header=False)
        echoed = dump.datagrams(found)
        answer |= {"faults": dump.faults(found, 1500), "sums": [right for right, _ in echoed],
                   "made": sum(f.sent and f.protocol == dump.UDP and not f.fragment and f.data[40:42] != b"\\0\\0"
                               for f in found),
                   "segments": sum(f.sent and f.protocol == dump.TCP for f in found),
                   "errors": snmp["Udp"]["InCsumErrors"] + snmp["Tcp"]["InCsumErrors"] + snmp["Ip"]["InHdrErrors"]}
        print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize("backend", ["vnet_hdr=off", "dgram"])
def test_a_backend_without_offloads(sluice, image, backend):
    """Field case 72: QEMU withdraws checksums and segmentation, and the guest makes each sum itself: those in the
    capture are right, the host counts no wrong one, and ping, UDP, fragments and TCP pass."""
    sizes = (1, 2, 17, 1000, 1471, 1472, 1473, 9000, 65507)
    got = inside(sluice, image, BARE, backend=backend, sizes=sizes)
    assert not {"CSUM", "GUEST_CSUM", "HOST_TSO4", "GUEST_TSO4"} & set(got["features"]), got["features"]
    assert got["ping"] == 3 and got["udp"] == [True] * len(sizes) and got["tcp"] == [True], got
    assert got["faults"] == {} and got["sums"] == [True] * len(sizes), got
    assert got["made"] == 6 and got["segments"] > 100 and got["errors"] == 0, got
