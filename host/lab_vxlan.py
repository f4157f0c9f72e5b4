# SPDX-License-Identifier: BSD-2-Clause
"""The network of field report C: two hosts, A and B, with a VXLAN tunnel between them.

guest = None: the native sender, in A itself, and the underlay without a tunnel

      namespace lab = A                                          namespace ext = B
    +----------------------------------------------------+     +------------------------------------------+
    |                              VNI 42                |     |            VNI 42                        |
    |  iperf3 -c --> vxa =========> ua (the NIC) --------|---->|-- ub ======> vxb --> iperf3 -s           |
    |        10.78.2.254/24  |     10.78.1.254/24        |     |  10.78.1.1/24  10.78.2.1/24              |
    |          inner MTU 1500|     MTU 9000              |     |  MTU 9000      GRO on, off               |
    +----------------------------------------------------+     +------------------------------------------+

guest = "inner": a virtual machine on the bridge of A, which knows nothing of the tunnel

    |  guest 10.78.2.2/24                                |
    |   virtio-net --> tap0 --> br0 --> vxa ====> ua ----|---->  as above

guest = "vtep": the guest itself is the end point of the tunnel, A only bridges its outer packets

    |  guest 10.78.1.2/24, inner 10.78.2.2/24            |
    |   virtio-net --> tap0 --> br0 --> ua --------------|---->  as above

The NIC ua segments nothing, so B receives tunnel packets of the inner MTU, as from a NIC without tunnel offload.
The GRO of the NIC ub stays off in the rows of the tunnel: it would join the tunnel's packets before the interface
vxb, whose own setting would then decide nothing. Neighbours are permanent entries where a guest does not end the
tunnel, and ARP frames are counted: so the packets at ub, at vxb and at IP in B are the same packets, and
their differences are losses.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import counters
import shell
from errors import EXIT_PEER, SluiceError
from lab import GUEST_MAC, PREFIX, TAP_QUEUE_PKTS, Lab

VNI, VXLAN_PORT = 42, 4789
UNDERLAY_MTU, INNER_MTU = 9000, 1500
A_OUTER, B_OUTER, GUEST_OUTER = "10.78.1.254", "10.78.1.1", "10.78.1.2"
B_BURST = "10.78.1.3"  # one more address of B, whose neighbour entry may come and go
A_INNER, B_INNER, GUEST_INNER = "10.78.2.254", "10.78.2.1", "10.78.2.2"
UA_MAC, UB_MAC = "52:54:00:78:01:fe", "52:54:00:78:01:01"
VXA_MAC, VXB_MAC = "52:54:00:78:02:fe", "52:54:00:78:02:01"
NO_SEGMENTATION = ("tso", "off", "gso", "off", "tx-udp_tnl-segmentation", "off", "tx-udp_tnl-csum-segmentation", "off")


@dataclass(frozen=True)
class VxlanSpec:
    """guest: None, "inner" or "vtep". to and mtu are what one test of a guest asks a lab for."""

    guest: str | None = None
    to: str = "tunnel"
    mtu: int = INNER_MTU


class VxlanLab(Lab):
    """`with VxlanLab(VxlanSpec("inner")) as lab:`. The far end is the namespace ext, as in the first topology."""

    def __init__(self, spec=VxlanSpec()):
        super().__init__(spec)
        self.server_netns, self.server_ip = "ext", B_INNER
        self._arp = None

    def __enter__(self):
        self._quiet_defaults(None)
        shell.run("ip", "netns", "add", "ext")
        self._quiet_defaults("ext")
        # Each run starts anew: a remembered slow-start threshold would make the second run slow because the first was.
        shell.write_proc("/proc/sys/net/ipv4/tcp_no_metrics_save", 1)
        try:
            self._add_underlay()
            self._add_tunnel_end("ext", "vxb", "ub", B_OUTER, self._far_vtep(), VXB_MAC)
            if self.spec.guest != "vtep":
                self._add_tunnel_end(None, "vxa", "ua", A_OUTER, B_OUTER, VXA_MAC)
            if self.spec.guest:
                self._add_bridge("vxa" if self.spec.guest == "inner" else "ua")
            self._add_inner_addresses()
            script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "arpcount.py")
            self._arp = shell.start(shell.in_netns("ext", sys.executable, "-B", script), stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)  # fmt: skip
            self._arp.stdout.readline()
        except SluiceError as e:
            raise SluiceError(EXIT_PEER, f"{e} (the kernel needs veth, vxlan, bridge and tun)") from None
        return self

    def __exit__(self, *_):
        self.stop_server()
        if self._arp:
            self._arp.kill()
            self._arp.communicate()
        shell.run("ip", "netns", "del", "ext", check=False)
        for device in ("vxa", "ua", "tap0", "br0"):
            shell.run("ip", "link", "del", device, check=False)

    def _far_vtep(self):
        return GUEST_OUTER if self.spec.guest == "vtep" else A_OUTER

    def _add_underlay(self):
        shell.run("ip", "link", "add", "ua", "address", UA_MAC, "mtu", UNDERLAY_MTU, "type", "veth", "peer", "name",
                  "ub", "netns", "ext", "address", UB_MAC, "mtu", UNDERLAY_MTU)  # fmt: skip
        shell.run("ethtool", "-K", "ua", *NO_SEGMENTATION)
        shell.run("ip", "link", "set", "ua", "up")
        for device in ("lo", "ub"):
            self._in_ext("ip", "link", "set", device, "up")
        self._in_ext("ip", "addr", "add", f"{B_OUTER}/{PREFIX}", "dev", "ub")
        if self.spec.guest == "vtep":
            self._neighbour("ext", GUEST_OUTER, GUEST_MAC, "ub")
        else:
            shell.run("ip", "addr", "add", f"{A_OUTER}/{PREFIX}", "dev", "ua")
            self._neighbour(None, B_OUTER, UB_MAC, "ua")
            self._neighbour("ext", A_OUTER, UA_MAC, "ub")

    def _add_tunnel_end(self, netns, name, device, local, remote, mac):
        run = lambda *argv: shell.run(*shell.in_netns(netns, *argv))  # noqa: E731
        run("ip", "link", "add", name, "address", mac, "mtu", INNER_MTU, "type", "vxlan", "id", VNI, "local", local,
            "remote", remote, "dstport", VXLAN_PORT, "dev", device, "nolearning")  # fmt: skip
        run("ip", "link", "set", name, "up")

    def _add_bridge(self, port):
        mtu = INNER_MTU if self.spec.guest == "inner" else UNDERLAY_MTU
        shell.run("ip", "tuntap", "add", "dev", "tap0", "mode", "tap")
        shell.run("ip", "link", "set", "tap0", "mtu", mtu, "txqueuelen", TAP_QUEUE_PKTS)
        shell.run("ip", "link", "add", "br0", "type", "bridge", "stp_state", 0, "forward_delay", 0,
                  "mcast_snooping", 0)  # fmt: skip
        for name in ("tap0", port):
            shell.run("ip", "link", "set", name, "master", "br0")
            shell.run("bridge", "link", "set", "dev", name, "learning", "off")
        far_mac = VXB_MAC if self.spec.guest == "inner" else UB_MAC
        shell.run("bridge", "fdb", "add", GUEST_MAC, "dev", "tap0", "master", "static")
        shell.run("bridge", "fdb", "add", far_mac, "dev", port, "master", "static")
        for name in ("tap0", "br0"):
            shell.run("ip", "link", "set", name, "up")

    def _add_inner_addresses(self):
        self._in_ext("ip", "addr", "add", f"{B_INNER}/{PREFIX}", "dev", "vxb")
        if self.spec.guest == "inner":
            self._neighbour("ext", GUEST_INNER, GUEST_MAC, "vxb")
        elif self.spec.guest is None:
            shell.run("ip", "addr", "add", f"{A_INNER}/{PREFIX}", "dev", "vxa")
            self._neighbour(None, B_INNER, VXB_MAC, "vxa")
            self._neighbour("ext", A_INNER, VXA_MAC, "vxb")

    def _neighbour(self, netns, address, mac, device):
        shell.run(*shell.in_netns(netns, "ip", "neigh", "replace", address, "lladdr", mac, "nud", "permanent",
                                  "dev", device))  # fmt: skip

    # ---- what the rows change ----

    def set_gro(self, device, on):
        """GRO of ub (the NIC; a veth joins packets only when it is on) or of vxb (the tunnel's cells)."""
        self._in_ext("ethtool", "-K", device, "gro", "on" if on else "off")

    def set_rps(self, cpus):
        """Spread what ub receives over that many CPUs by flow hash; 0: not. Returns why not, or None.

        In a user namespace rps_cpus is not to be written: it belongs to the machine.
        """
        mask = f"{(1 << cpus) - 1:x}"
        return self._write_sys("/sys/class/net/ub/queues/rx-0/rps_cpus", mask)

    def start_burst(self):
        """A process that overflows vxb's cells, see burst.py. The caller ends it."""
        self._in_ext("ip", "addr", "replace", f"{B_BURST}/{PREFIX}", "dev", "ub")
        shell.run("ethtool", "-K", "ua", "tx-udp-segmentation", "on")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "burst.py")
        self._in_ext("sh", "-c", "echo 8 > /proc/sys/net/ipv4/conf/ub/arp_ignore")
        far, near, inner = ("ext", "ub", B_BURST, UB_MAC), (A_OUTER, UA_MAC), (VXB_MAC, A_INNER, B_INNER)
        return shell.start([sys.executable, "-B", script, *far, *near, VXLAN_PORT, VNI, *inner],
                           stdin=subprocess.DEVNULL)  # fmt: skip

    def _write_sys(self, path, value):
        """/sys shows the devices of the namespace it was mounted in, so a private one is mounted for the write."""
        script = f"mount -t sysfs sysfs /sys && echo {value} > {path}"
        argv = shell.in_netns("ext", "unshare", "--mount", "sh", "-c", script)
        try:
            shell.run(*argv)
        except SluiceError as e:
            words = str(e).rsplit(": ", 1)[-1]
            return f"{path} cannot be written here ({words})"
        return None

    def snapshot(self):
        print(file=self._arp.stdin, flush=True)
        arp = {"ub": 0, "vxb": 0, **json.loads(self._arp.stdout.readline())}
        return {**super().snapshot(), "softnet": counters.read_softnet(), "arp": arp}

    def queued_pkts(self):
        """Nothing is shaped here, so nothing waits."""
        return 0

    def what_is_down(self):
        causes = []
        for netns, device in (("ext", "ub"), ("ext", "vxb"), (None, "ua"), (None, "tap0")):
            link = counters.read_links(netns).get(device)
            if link is not None and "UP" not in link["flags"]:
                causes.append(f"{device} is down")
        if self.server and self.server.died:
            causes.append(self.server.died)
        return causes
