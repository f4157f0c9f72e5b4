# SPDX-License-Identifier: BSD-2-Clause
"""Field report C: does GRO on the receiving end of a VXLAN tunnel help, or do its cells overflow?

The topology is drawn in lab_vxlan.py. Runs with GRO on and off are interleaved, because identical runs differ: what
counts is the order of all of them, and the tunnel's own counter of drops, never one pair.
"""

import json
import os
import subprocess
import time
from dataclasses import replace

import counters
import report
import rows
import shell
from errors import EXIT_INVALID, EXIT_OK, EXIT_PEER, EXIT_THRESHOLD, SluiceError
from lab_vxlan import (
    B_INNER, B_OUTER, GUEST_INNER, GUEST_OUTER, INNER_MTU, PREFIX, UNDERLAY_MTU, VNI, VxlanLab, VxlanSpec,
)  # fmt: skip
from plot import Panel, Picture, Series
from reproduce import Outcome, median, spread

FLOWS, WINDOW = 12, "200K"
WINDOW_BYTES = 200 << 10
PAIRS, SEEDED_PAIRS = 5, 3
NATIVE_S, QUICK_NATIVE_S = 3.0, 1.0
GUEST_S, QUICK_GUEST_S = 3.0, 1.0
CLIENT_EXTRA_S = 10.0
BURSTS_PER_CPU = 8
SETTLE_S, SETTLE_STEP_S = 4.0, 0.05
ON_OFF = (True, False)
NOT_COMPARED = "not compared"


def run(context):
    args, found = context.args, []
    native_s, guest_s = (QUICK_NATIVE_S, QUICK_GUEST_S) if context.quick else (NATIVE_S, GUEST_S)
    others = 1 if context.quick else PAIRS  # pairs of the rows that the verdict does not rest on
    notes = [
        "processed, dropped and time_squeeze of softnet_stat count for the whole machine, others' traffic included",
    ]
    if args.only in (None, "native") or args.seed_fault:
        with VxlanLab(VxlanSpec()) as lab:
            bench = _Native(lab, native_s, context.done)
            found += _seeded(bench, notes) if args.seed_fault else _native_rows(bench, others, notes)
    if not args.seed_fault:
        found += _guest_rows(context, guest_s, others)
    return _outcome(found, notes, args.seed_fault)


# ---- the native sender ----


def _native_rows(bench, others, notes):
    found = [bench.row("underlay", gro, pair=pair) for pair in range(others) for gro in ON_OFF]
    found += [bench.row("tunnel", gro, pair=pair) for pair in range(PAIRS) for gro in ON_OFF]
    found.append(bench.row("tunnel", True, nic_gro=True))
    why = bench.lab.set_rps(os.cpu_count())
    if why:
        notes.append(f"no rows with RPS: {why}; it needs root")
        return found
    found += [bench.row("tunnel", gro, pair=pair, rps=True) for pair in range(others) for gro in ON_OFF]
    bench.lab.set_rps(0)
    return found


def _seeded(bench, notes):
    """The same pairs with the fault made: while GRO is on, bursts of tunnel packets overflow vxb's cells."""
    notes.append("seeded: in the runs with GRO on, bursts of other tunnel packets overflow the cells of vxb")
    found = []
    for pair in range(SEEDED_PAIRS):
        bursts = [bench.lab.start_burst() for _ in range(BURSTS_PER_CPU * os.cpu_count())]
        try:
            found.append(bench.row("tunnel", True, pair=pair, seeded=True))
        finally:
            for burst in bursts:
                burst.kill()
                burst.wait()
        found.append(bench.row("tunnel", False, pair=pair))
    return found


class _Native:
    """iperf3 in A, through the tunnel or beside it."""

    def __init__(self, lab, seconds, done):
        self.lab, self._seconds, self._done = lab, seconds, done

    def row(self, path, gro, flows=FLOWS, pair=None, rps=False, nic_gro=False, seeded=False):
        lab = self.lab
        lab.set_gro("ub", gro if path == "underlay" else nic_gro)
        lab.set_gro("vxb", gro)
        lab.start_server()
        before = lab.snapshot() if seeded else _quiet(lab)
        sums = _iperf(B_OUTER if path == "underlay" else B_INNER, flows, self._seconds)
        delta = counters.delta(before, lab.snapshot()) if seeded else _settled(lab, before)
        lab.stop_server()
        row = _base(path, "native", gro, flows, pair, rps)
        row["nic_gro"] = row["gro"] if path == "underlay" else _word(nic_gro)
        row["bits_per_second"] = sums["sum_received"]["bits_per_second"]
        row["retransmits"] = sums["sum_sent"]["retransmits"]
        _fill(row, delta, seeded)
        self._done(row, _words(row))
        return row


def _iperf(address, flows, seconds):
    argv = ["iperf3", "-c", address, "-P", flows, "-w", WINDOW, "-t", f"{seconds:g}", "-J"]
    client = shell.start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        out = client.communicate(timeout=seconds + CLIENT_EXTRA_S)[0]
    except subprocess.TimeoutExpired:
        client.kill()
        client.communicate()
        raise SluiceError(EXIT_PEER, f"iperf3 to {address} did not end") from None
    try:
        result = json.loads(out)
    except ValueError:
        raise SluiceError(EXIT_PEER, f"iperf3 to {address}: {out.strip()[-200:] or 'no output'}") from None
    if "error" in result:
        raise SluiceError(EXIT_PEER, f"iperf3 to {address}: {result['error']}")
    return result["end"]


# ---- the guest as the sender ----


def _guest_rows(context, seconds, pairs):
    test = rows.Test(protocol="tcp", time_s=seconds, parallel=FLOWS, window_bytes=WINDOW_BYTES, vm=context.vm)
    found, only = [], context.args.only
    inner = replace(test, guest=(f"server={B_INNER}", f"ip={GUEST_INNER}/{PREFIX}"))
    if only in (None, "guest"):
        with VxlanLab(VxlanSpec("inner")) as lab:
            for pair in range(pairs):
                found += [_guest_row(context, lab, inner, "tunnel", gro, pair) for gro in ON_OFF]
    if only not in (None, "guest-vtep"):
        return found
    vtep = replace(test, mtu=UNDERLAY_MTU, guest=_vtep_words())
    with VxlanLab(VxlanSpec("vtep", mtu=UNDERLAY_MTU)) as lab:
        for flows in (FLOWS, 1):
            one = replace(vtep, parallel=flows)
            for pair in range(pairs):
                found += [_guest_row(context, lab, one, "guest-vtep", gro, pair) for gro in ON_OFF]
        found.append(_guest_row(context, lab, replace(vtep, reverse=True), "guest-vtep", True, None))
    return found


def _vtep_words():
    return (
        f"server={B_INNER}", f"ip={GUEST_OUTER}/{PREFIX}", f"vxlan.vni={VNI}", f"vxlan.local={GUEST_OUTER}",
        f"vxlan.remote={B_OUTER}", f"vxlan.ip={GUEST_INNER}/{PREFIX}", f"vxlan.mtu={INNER_MTU}",
    )  # fmt: skip


def _guest_row(context, lab, test, path, gro, pair):
    lab.set_gro("vxb", gro)
    before = _quiet(lab)
    seen = rows.run_test(lab, test)[0]
    delta = _settled(lab, before)
    lab.stop_server()
    row = _base(path, "guest", gro, test.parallel, pair, False)
    row.update({k: seen[k] for k in ("direction", "ledger_ok", "valid", "invalid_reason", "exit_code", "guest")})
    row["nic_gro"] = "off"
    row["bits_per_second"] = seen.get("bits_per_second", 0.0)
    row["retransmits"] = seen.get("retransmits", 0)
    _fill(row, delta)
    context.done(row, _words(row))
    return row


# ---- rows ----


def _word(on):
    return "on" if on else "off"


def _base(path, sender, gro, flows, pair, rps):
    return {
        "test": "tcp", "path": path, "sender": sender, "direction": "guest-to-host" if sender == "guest" else "a-to-b",
        "gro": _word(gro), "rps": _word(rps), "flows": flows, "pair": pair, "valid": True, "invalid_reason": None,
        "exit_code": EXIT_OK,
    }  # fmt: skip


def _quiet(lab):
    """A snapshot at a moment in which nothing moves: what an earlier test left over would be counted half."""
    end = time.monotonic() + SETTLE_S
    while True:
        first, second = lab.snapshot(), lab.snapshot()
        moved = _received(counters.delta(first, second))
        if not any(device["packets"] for device in moved) or time.monotonic() > end:
            return second


def _settled(lab, before):
    """The counters' differences once B's queues are empty: what waits in a cell is neither lost nor received."""
    end = time.monotonic() + SETTLE_S
    while True:
        delta = counters.delta(before, lab.snapshot())
        if _unaccounted(delta) == 0 or time.monotonic() > end:
            return delta
        time.sleep(SETTLE_STEP_S)


def _fill(row, delta, seeded=False):
    """Where B's packets went. wire: at ub; tunnel: at vxb; stack: handed to TCP, joined ones counting once."""
    snmp, (nic, tunnel) = delta["ext"]["snmp"], _received(delta)
    row["packets_wire"], row["packets_tunnel"] = nic["packets"], tunnel["packets"]
    row["packets_stack"] = snmp["Tcp"]["InSegs"]
    row["nic_rx_dropped"], row["rx_dropped"] = nic["dropped"], tunnel["dropped"]
    row["checksum_errors"] = counters.checksum_errors(snmp)
    row["aggregation"] = nic["packets"] / row["packets_stack"] if row["packets_stack"] else 0.0
    row["seeded"] = seeded
    row["unaccounted"] = None if seeded else _unaccounted(delta)  # the bursts are counted once and split later
    row["softnet"] = delta["softnet"]
    processed = [cpu["processed"] for cpu in delta["softnet"].values()]
    row["busiest_cpu_share"] = max(processed) / sum(processed) if sum(processed) else 0.0
    if row["unaccounted"] and row["valid"]:
        row["valid"], row["exit_code"] = False, EXIT_INVALID
        row["invalid_reason"] = f"{row['unaccounted']} packets of B are unaccounted for"


def _received(delta):
    links = delta["ext"]["links"]
    return links["ub"]["rx"], links["vxb"]["rx"]


def _unaccounted(delta):
    """Packets that arrived at ub or vxb, were dropped nowhere and never reached IP in B.

    With the NIC's GRO on, vxb counts what was joined as one and IP counts its parts, so only the total of the packets
    that came by the wire and went through the tunnel can be compared: each is counted by IP twice, before and after.
    """
    arp, (nic, tunnel) = delta["arp"], _received(delta)
    wire = nic["packets"] - arp["ub"]
    inner = tunnel["packets"] - tunnel["dropped"] - arp["vxb"]
    counted = counters.ip_packets_in(delta["ext"]["snmp"])
    return 0 if counted == 2 * wire else wire + inner - counted


def _words(row):
    pair = "" if row["pair"] is None else f" #{row['pair'] + 1}"
    more = (", RPS" * (row["rps"] == "on") + ", NIC's GRO on" * (row["nic_gro"] == "on" and row["path"] != "underlay")
            + ", to guest" * (row["direction"] == rows.TO_GUEST))  # fmt: skip
    bad = "" if row["valid"] else f"  not valid: {row['invalid_reason']}"
    return (
        f"  {row['path']}, {row['sender']}, {row['flows']} flows, GRO {row['gro']}{more}{pair}: "
        f"{row['bits_per_second'] / 1e9:.2f} Gbit/s, {row['retransmits']} retransmitted, tunnel dropped "
        f"{row['rx_dropped']}, {row['aggregation']:.1f} packets joined{bad}"
    )


def _kind(row):
    return (row["path"], row["sender"], row["direction"], row["flows"], row["nic_gro"] == "on", row["rps"], row["gro"])


def _groups(found):
    groups = {}
    for row in found:
        groups.setdefault(_kind(row), []).append(row)
    return groups


def table(found):
    header = ["", "flows", "GRO", "RPS", "runs", "Gbit/s", "from", "to", "retransm.", "tunnel drops", "joined",
              "softnet drop", "squeeze", "busiest CPU", ""]  # fmt: skip
    body = []
    for kind, some in _groups(found).items():
        path, sender, direction, flows, nic_gro, rps, gro = kind
        speeds = [r["bits_per_second"] / 1e9 for r in some]
        name = f"{path}, {sender}" + (", to guest" if direction == rows.TO_GUEST else "")
        name += ", NIC joins" if nic_gro and path != "underlay" else ""
        body.append([
            name, str(flows), gro, rps, str(len(some)), f"{median(speeds):.2f}", f"{min(speeds):.2f}",
            f"{max(speeds):.2f}", f"{median([r['retransmits'] for r in some]):.0f}",
            str(sum(r["rx_dropped"] for r in some)), f"{median([r['aggregation'] for r in some]):.1f}",
            str(_softnet(some, "dropped")), str(_softnet(some, "time_squeeze")),
            f"{100 * median([r['busiest_cpu_share'] for r in some]):.0f} %", "",
        ])  # fmt: skip
    return ["", *report.layout(header, body)]


def _softnet(some, name):
    return sum(cpu[name] for row in some for cpu in row["softnet"].values())


# ---- verdict ----


def decide(on, off, dropped):
    """fault, no fault or undecided, from the speeds of interleaved runs with GRO on and off and the tunnel's drops."""
    if not on or len(on) != len(off):
        return "undecided"
    if min(off) > max(on):
        return "fault" if dropped else "undecided"
    if median(on) >= median(off) - min(spread(on), spread(off)):
        return "no fault"
    return "undecided"


def _outcome(found, notes, seeded):
    outcome = Outcome(rows=found, tables=table(found), notes=notes)
    native = [r for r in found if r["path"] == "tunnel" and r["sender"] == "native"]
    pairs = [r for r in native if r["pair"] is not None and r["rps"] == "off"]
    on, off = ([r["bits_per_second"] for r in pairs if r["gro"] == g] for g in ("on", "off"))
    dropped = sum(r["rx_dropped"] for r in pairs if r["gro"] == "on")
    outcome.decision = decide(on, off, dropped) if pairs else NOT_COMPARED
    figures = "no native pairs were run" if not on else (
        f"{len(on)} interleaved pairs through the tunnel: GRO on {median(on) / 1e9:.2f} Gbit/s "
        f"({min(on) / 1e9:.2f} to {max(on) / 1e9:.2f}), off {median(off) / 1e9:.2f} ({min(off) / 1e9:.2f} to "
        f"{max(off) / 1e9:.2f}); the tunnel's interface dropped {dropped} packets with GRO on"
    )
    outcome.code, outcome.verdict = _judge(outcome.decision, figures, found, seeded)
    if any(not r["valid"] for r in found):
        outcome.decision = "not valid"
    elif outcome.code == EXIT_INVALID:
        outcome.decision = "undecided"
    outcome.picture = _picture(found)
    return outcome


def _judge(decision, figures, found, seeded):
    bad = [r for r in found if not r["valid"]]
    if bad:
        return bad[0]["exit_code"], f"{bad[0]['path']}, {bad[0]['sender']}: {bad[0]['invalid_reason']}; {figures}"
    wrong = sum(r["checksum_errors"] for r in found if r["sender"] == "guest")
    if wrong:
        return EXIT_THRESHOLD, f"{wrong} packets of the guest arrived with a wrong checksum; {figures}"
    if decision == NOT_COMPARED:
        return EXIT_OK, "the rows that were asked for are valid; without native pairs nothing is said of GRO"
    if decision == "fault":
        which = "as seeded, " if seeded else ""
        return EXIT_THRESHOLD, f"{which}every run with GRO off beats every run with it on. {figures}"
    if decision == "no fault":
        if seeded:
            return EXIT_INVALID, f"a fault was seeded and is not to be seen: nothing can be said. {figures}"
        return EXIT_OK, f"GRO on the tunnel's interface costs nothing here. {figures}"
    return EXIT_INVALID, f"the runs overlap too much, or nothing was dropped where a fault would drop. {figures}"


def _picture(found):
    speed, drops = {}, {}
    for kind, some in _groups(found).items():
        path, sender, direction, flows, nic_gro, rps, gro = kind
        if nic_gro and path != "underlay":
            continue
        name = f"{path}\n{sender}, {flows}" + ("\nRPS" if rps == "on" else "")
        name += "\nto guest" if direction == rows.TO_GUEST else ""
        speeds = [r["bits_per_second"] / 1e9 for r in some]
        speed.setdefault(gro, []).append((name, median(speeds), (min(speeds), max(speeds))))
        drops.setdefault(gro, []).append((name, median([r["retransmits"] for r in some])))
    panels = (
        Panel("Throughput: median, lowest and highest run", "path, sender and number of flows", "Gbit/s", tuple(
            Series(f"GRO {gro}", tuple((n, v) for n, v, _ in some), tuple(s for _, _, s in some))
            for gro, some in speed.items()), bars=True),
        Panel("Retransmissions of a run (median)", "path, sender and number of flows", "segments", tuple(
            Series(f"GRO {gro}", tuple(some)) for gro, some in drops.items()), bars=True),
    )  # fmt: skip
    return Picture("VXLAN receive: GRO on the tunnel's interface on and off, iperf3 -P 12 -w 200K", panels)
