# SPDX-License-Identifier: BSD-2-Clause
"""The network that the guest blasts into. One topology so far:

      namespace lab (the one we are in)                            namespace ext
    +--------------------------------------------------------+   +--------------------------+
    |  QEMU                                                  |   |                          |
    |  guest 10.77.0.2/24                                    |   |                          |
    |   virtio-net --> tap0 --> br0 --> veth0 (the NIC) -----|-->|-- veth1 10.77.0.1/24     |
    |                            |      root: htb LINK       |   |     iperf3 -s            |
    |                            |      leaf: pfifo QUEUE    |   |     root: htb, pfifo for |
    |                       10.77.0.254                      |   |     traffic to the guest |
    |                       (--to host: iperf3 -s)           |   |                          |
    +--------------------------------------------------------+   +--------------------------+

The tap's send buffer accounts for a frame until it is freed or orphaned. A veth orphans what it carries, so the
accounting ends at veth0; the NIC's queue sits before that, and counts. Three things would make frames escape it,
and are excluded here: bridge-nf-call-* (detaches them), an address the bridge has not learned (flooded frames
are clones), and a promiscuous capture on the bridge (the same).
"""

from dataclasses import dataclass

import counters
import peer
import shell

GUEST_IP, EXT_IP, HOST_IP = "10.77.0.2", "10.77.0.1", "10.77.0.254"
PREFIX = 24
GUEST_MAC, EXT_MAC = "52:54:00:77:00:02", "52:54:00:77:00:01"
NIC_QUEUE_PKTS = 1000  # txqueuelen of an Ethernet device
TAP_QUEUE_PKTS = 1000
# What a 100 Mbit/s Ethernet spends on each frame and no counter shows: preamble 8, FCS 4, gap 12 bytes.
ETHERNET_OVERHEAD_BYTES = 24
HTB_QUANTUM_BYTES = 60000  # any value does for a single class; a given one keeps htb from warning
FORWARD_NIC, REVERSE_NIC = (None, "veth0"), ("ext", "veth1")


@dataclass(frozen=True)
class LabSpec:
    """What the topology depends on. link: a tc rate such as "100mbit", or None for no shaping."""

    link: str | None = "100mbit"
    queue_pkts: int = NIC_QUEUE_PKTS
    to: str = "ext"  # where the iperf3 server is: "ext" or "host"
    mtu: int = 1500
    shape_reverse: bool = True
    dhcp: bool = False


class Lab:
    """`with Lab(LabSpec()) as lab:` builds the topology in the namespace we are in, and takes it down again."""

    def __init__(self, spec=LabSpec()):
        self.spec = spec
        self.server = None
        self.dhcp = None
        self.server_netns = "ext" if spec.to == "ext" else None
        self.server_ip = EXT_IP if spec.to == "ext" else HOST_IP

    def __enter__(self):
        self._quiet_defaults(None)
        shell.run("ip", "netns", "add", "ext")
        self._quiet_defaults("ext")
        self._add_links()
        for device in ("tap0", "veth0", "br0"):
            shell.run("ip", "link", "set", device, "up")
        for device in ("lo", "veth1"):
            self._in_ext("ip", "link", "set", device, "up")
        self._add_addresses()
        if self.spec.link:
            self.shape(*FORWARD_NIC)
            if self.spec.shape_reverse:
                self.shape(*REVERSE_NIC)
        if self.spec.dhcp:
            self.dhcp = peer.DhcpServer("ext", "veth1", GUEST_IP, PREFIX, EXT_IP)
        return self

    def __exit__(self, *_):
        self.stop_server()
        if self.dhcp:
            self.dhcp.stop()
        shell.run("ip", "netns", "del", "ext", check=False)
        for device in ("veth0", "tap0", "br0"):
            shell.run("ip", "link", "del", device, check=False)

    def _in_ext(self, *argv):
        return shell.run(*shell.in_netns("ext", *argv))

    def _quiet_defaults(self, netns):
        """No IPv6: its unasked-for frames would have to be accounted for.

        Fragments wait for the rest of their datagram as long as a kernel lets them unasked, 30 s: a path that stands still
        parts a datagram, and nothing of it is lost. A path that overflows leaves halves behind all that time, at the rate
        of the link, and past this limit of their memory the kernel would refuse those that are whole.
        """
        settings = ["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"]
        settings += [f"net.ipv4.ipfrag_high_thresh={1 << 30}"]
        if netns is None:
            settings += [f"net.bridge.bridge-nf-call-{t}=0" for t in ("iptables", "ip6tables", "arptables")]
            for setting in settings:
                key, value = setting.split("=")
                shell.write_proc("/proc/sys/" + key.replace(".", "/"), value)
            return
        script = "; ".join(
            f"echo {s.split('=')[1]} > /proc/sys/{s.split('=')[0].replace('.', '/')}" for s in settings
        )
        shell.run(*shell.in_netns(netns, "sh", "-c", script), check=False)

    def _add_links(self):
        mtu = self.spec.mtu
        run = shell.run
        run("ip", "tuntap", "add", "dev", "tap0", "mode", "tap")
        run("ip", "link", "set", "tap0", "mtu", mtu, "txqueuelen", TAP_QUEUE_PKTS)
        run("ip", "link", "add", "veth0", "mtu", mtu, "type", "veth", "peer", "name", "veth1", "netns", "ext",
            "address", EXT_MAC, "mtu", mtu)  # fmt: skip
        run("ip", "link", "add", "br0", "type", "bridge", "stp_state", 0, "forward_delay", 0, "mcast_snooping", 0)
        for port in ("tap0", "veth0"):
            run("ip", "link", "set", port, "master", "br0")
            run("bridge", "link", "set", "dev", port, "learning", "off")
        run("bridge", "fdb", "add", GUEST_MAC, "dev", "tap0", "master", "static")
        run("bridge", "fdb", "add", EXT_MAC, "dev", "veth0", "master", "static")

    def _add_addresses(self):
        shell.run("ip", "addr", "add", f"{HOST_IP}/{PREFIX}", "dev", "br0")
        self._in_ext("ip", "addr", "add", f"{EXT_IP}/{PREFIX}", "dev", "veth1")
        neighbour = ("lladdr", GUEST_MAC, "nud", "permanent", "dev")
        shell.run("ip", "neigh", "add", GUEST_IP, *neighbour, "br0")
        self._in_ext("ip", "neigh", "add", GUEST_IP, *neighbour, "veth1")

    def _tc(self, netns, *argv):
        return shell.run(*shell.in_netns(netns, "tc", *argv))

    def shape(self, netns, device):
        """Make a device a NIC of rate spec.link with a queue of spec.queue_pkts frames."""
        self._tc(netns, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1")
        self.set_rate(self.spec.link, netns, device, verb="add")
        self._tc(netns, "qdisc", "add", "dev", device, "parent", "1:1", "handle", "10:", "pfifo",
                 "limit", self.spec.queue_pkts)  # fmt: skip

    def set_rate(self, rate, netns=None, device="veth0", verb="change"):
        self._tc(netns, "class", verb, "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", rate,
                 "overhead", ETHERNET_OVERHEAD_BYTES, "quantum", HTB_QUANTUM_BYTES)  # fmt: skip

    def start_server(self):
        """A fresh iperf3 server for one test, ready when this returns."""
        self.stop_server()
        self.server = peer.IperfServer(self.server_netns)
        return self.server

    def stop_server(self):
        if self.server:
            self.server.stop()

    def kill_server(self):
        self.server.kill()

    def set_device(self, device, up):
        shell.run("ip", "link", "set", device, "up" if up else "down")

    def snapshot(self):
        return {"lab": counters.snapshot(None), "ext": counters.snapshot("ext")}

    def queued_pkts(self):
        """Frames that wait in either NIC's queue."""
        return sum(
            counters.qdisc(counters.read_qdiscs(netns), device)["qlen"] for netns, device in (FORWARD_NIC, REVERSE_NIC)
        )

    def what_is_down(self):
        """The causes of a failure that the host can see, in words."""
        causes = []
        for netns, device in ((None, "tap0"), FORWARD_NIC, REVERSE_NIC):
            link = counters.read_links(netns).get(device)
            if link is None:
                causes.append(f"{device} is gone")
            elif "UP" not in link["flags"]:
                causes.append(f"{device} is down")
        if self.server and self.server.died:
            causes.append(self.server.died)
        return causes
