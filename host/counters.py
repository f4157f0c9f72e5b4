# SPDX-License-Identifier: BSD-2-Clause
"""Reads the kernel's counters of a network namespace, and subtracts two readings.

A snapshot is {"links": {name: {"rx": {...}, "tx": {...}}}, "qdiscs": [...], "snmp": {"Udp": {...}, ...}};
a delta has the same form with differences, links and qdiscs that came or went being left out.
"""

import json

import shell

NO_QDISC = {"kind": "none", "packets": 0, "bytes": 0, "drops": 0, "overlimits": 0, "requeues": 0, "qlen": 0}


def read_links(netns):
    """ip -s -s -j link, as {name: {"flags", "operstate", "rx": {...}, "tx": {...}}}."""
    out = shell.run(*shell.in_netns(netns, "ip", "-s", "-s", "-j", "link", "show"))
    links = {}
    for link in json.loads(out or "[]"):
        stats = link.get("stats64", {})
        links[link["ifname"]] = {
            "flags": link.get("flags", []),
            "operstate": link.get("operstate", ""),
            "rx": stats.get("rx", {}),
            "tx": stats.get("tx", {}),
        }
    return links


def read_qdiscs(netns):
    return json.loads(shell.run(*shell.in_netns(netns, "tc", "-s", "-j", "qdisc", "show")) or "[]")


def read_snmp(netns):
    """/proc/net/snmp and netstat: pairs of lines, names and numbers, with one prefix each."""
    out = shell.run(*shell.in_netns(netns, "cat", "/proc/net/snmp", "/proc/net/netstat"))
    tables = {}
    names = None
    for line in out.splitlines():
        prefix, _, rest = line.partition(":")
        words = rest.split()
        if names is None or names[0] != prefix:
            names = (prefix, words)
        else:
            tables[prefix] = dict(zip(names[1], map(int, words)))
            names = None
    return tables


def snapshot(netns):
    return {"links": read_links(netns), "qdiscs": read_qdiscs(netns), "snmp": read_snmp(netns)}


def qdisc(qdiscs, device):
    """The root qdisc of a device. htb and its leaf both count a drop of the leaf, so only the root is read."""
    for entry in qdiscs:
        if entry["dev"] == device and entry.get("root"):
            return {**NO_QDISC, **entry}
    return dict(NO_QDISC)


def delta(before, after):
    """after - before, for snapshots of one or several namespaces."""
    if isinstance(after, dict):
        return {k: delta(before[k], after[k]) for k in after if k in before}
    if isinstance(after, list):
        if after and isinstance(after[0], dict) and "dev" in after[0]:
            return _qdisc_delta(before, after)
        return after
    if isinstance(after, bool) or not isinstance(after, int) or not isinstance(before, int):
        return after
    return after - before


def _qdisc_delta(before, after):
    old = {(q["dev"], q["handle"]): q for q in before}
    result = []
    for entry in after:
        earlier = old.get((entry["dev"], entry["handle"]))
        if earlier is None:
            result.append(entry)
            continue
        changed = delta({k: v for k, v in earlier.items()}, entry)
        # Levels, not counters: the difference of two levels means nothing here.
        changed.update({k: entry[k] for k in ("qlen", "backlog", "limit") if k in entry})
        result.append(changed)
    return result


SOFTNET_COLUMNS = {"processed": 0, "dropped": 1, "time_squeeze": 2, "received_rps": 9}
SOFTNET_CPU_COLUMN = 12


def read_softnet():
    """/proc/net/softnet_stat as {cpu: {"processed", "dropped", "time_squeeze", "received_rps"}}.

    These count for the whole machine, whatever the namespace: others' traffic is in them too.
    """
    cpus = {}
    with open("/proc/net/softnet_stat", encoding="ascii") as f:
        for number, line in enumerate(f):
            words = [int(w, 16) for w in line.split()]
            cpu = words[SOFTNET_CPU_COLUMN] if len(words) > SOFTNET_CPU_COLUMN else number
            cpus[str(cpu)] = {name: words[column] for name, column in SOFTNET_COLUMNS.items()}
    return cpus


def ip_packets_in(snmp):
    """Packets that IP received, each as it was on the wire: GRO joins them before IP, which counts its parts."""
    ext = snmp["IpExt"]
    return ext["InNoECTPkts"] + ext["InECT1Pkts"] + ext["InECT0Pkts"] + ext["InCEPkts"]


def checksum_errors(snmp):
    return snmp["Tcp"]["InCsumErrors"] + snmp["Udp"]["InCsumErrors"] + snmp["IpExt"].get("InCsumErrors", 0)
