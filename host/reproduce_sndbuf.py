# SPDX-License-Identifier: BSD-2-Clause
"""Field report A: UDP from the guest is lost just before the NIC, unless the tap's send buffer is limited.

The topology is drawn in lab.py: guest --> tap --> bridge --> NIC of 100 Mbit/s with a queue of 1000 packets.
"""

import counters
import detours
import report
import truesize
from errors import EXIT_INVALID, EXIT_OK, EXIT_THRESHOLD
from lab import Lab, LabSpec
from plot import Panel, Picture, Series
from queuewatch import QueueWatch
from reproduce import Outcome, median
from rows import Test, run_test

SIZES = (32, 64, 128, 256, 512, 1024, 1278, 1407, 1472, 1473, 1475, 2048, 4096, 8192, 16834, 32768)
# Without the limit a quick run needs only the sizes that the verdict names: one frame, two, and many.
QUICK_UNLIMITED = (1024, 1473, 32768)
CLASSIC_BYTES, MTU = 1024, 1500
TIME_S, QUICK_TIME_S, QUICK_CLASSIC_TIME_S = 5.0, 0.35, 1.0
# More than the ring takes, so that it is the ring that fills: a socket's default is full before.
GUEST_SNDBUF = "4M"
# Frames of others that may be in the NIC's queue, and the last frame that a send buffer takes although nearly full.
AUTO_MARGIN_PKTS = 40
AUTO_MAX_BYTES = 1 << 30
TRIES = 3  # of a row that a busy core spoiled: the receiver's socket overflowed, or the guest was too slow
HALF, IDLE_SHARE = 0.5, 0.8
IDLE_FROM_BYTES = 1024  # below, the guest and QEMU have work to do at the link's rate


def run(context):
    args = context.args
    bench = _Bench(context, QUICK_TIME_S if context.quick else TIME_S)
    if args.to == "host":
        found, notes = [], []
    else:
        with Lab(LabSpec(link=args.link, queue_pkts=args.queue)) as lab:
            found, notes = _sweep(bench, lab, args)
    lines = []
    for case in detours.CASES:
        if args.to == "host" and case.name != "receiver":
            continue
        found += _case(bench, args, case, lines)
    return _outcome(found, notes, lines, args)


class _Bench:
    """Runs one row: a guest that blasts, and what can be seen beside it."""

    def __init__(self, context, seconds):
        self._context, self._seconds = context, seconds
        self.true = {}

    def row(self, lab, size, sndbuf, case="sweep", guest=()):
        seconds = self._seconds
        if self._context.quick and size == CLASSIC_BYTES and sndbuf is None:
            seconds = QUICK_CLASSIC_TIME_S  # the queue alone takes what is sent in the first moments
        test = Test(
            protocol="udp", size_bytes=size, time_s=seconds, sndbuf_bytes=sndbuf, vm=self._context.vm,
            guest=(f"sndbuf={GUEST_SNDBUF}", *guest),
        )  # fmt: skip
        for attempt in range(TRIES):
            row = self._try(lab, test, case)
            if not (case == "sweep" and row["valid"] and _spoiled(row)):
                break
        row["tries"] = attempt + 1
        self._context.done(row, _words(row))
        return row

    def _try(self, lab, test, case):
        netns = lab.server_netns
        before = counters.read_snmp(netns)
        with QueueWatch("veth0") as watch:
            row = run_test(lab, test)[0]
        row["case"] = case
        row["checksum_errors"] = counters.checksum_errors(counters.delta(before, counters.read_snmp(netns)))
        row["nic_queue_pkts"], row["nic_backlog_max_pkts"] = lab.spec.queue_pkts, watch.max_pkts
        self._add_admitted(row, lab)
        _add_backpressure(row)
        return row

    def _add_admitted(self, row, lab):
        row["true_frame_bytes"] = row["frames_admitted"] = row["admits_more_than_queue"] = None
        if not self.true:
            return
        mean = truesize.mean_true_bytes(self.true, row["size_bytes"], MTU)
        row["true_frame_bytes"] = round(mean)
        if row["sndbuf_bytes"] is not None:
            row["frames_admitted"] = round(row["sndbuf_bytes"] / mean)
            row["admits_more_than_queue"] = row["frames_admitted"] + AUTO_MARGIN_PKTS > lab.spec.queue_pkts


def _spoiled(row):
    if row["sndbuf_bytes"] is not None:
        return row["receiver_dropped"]
    return row["size_bytes"] == CLASSIC_BYTES and not _drops_most(row)


def _drops_most(row):
    return row["nic_dropped"] > HALF * row["sent"]


def _add_backpressure(row):
    """The chain of pressure, from the ring to the sleeping processor."""
    guest = row["guest"]
    row["ring_full_ns"] = sum(q.get("full_ns", 0) for q in guest.get("tx", []))
    row["blocked_ns"] = guest.get("udp", {}).get("blocked_ns", 0)
    row["run_ns"], row["idle_ns"] = guest.get("run_ns", 0), guest.get("idle_ns", 0)
    row["idle_share"] = row["idle_ns"] / row["run_ns"] if row["run_ns"] else 0.0
    row["idle_while_blocked"] = min(row["idle_ns"] / row["blocked_ns"], 1.0) if row["blocked_ns"] else None


# ---- the sweep ----


def _sweep(bench, lab, args):
    lengths = {n for size in SIZES for n in truesize.frame_sizes(size, MTU)}
    bench.true = truesize.measure(lab, lengths)
    found, notes, unlimited = [], [], QUICK_UNLIMITED if args.quick else SIZES
    for size in SIZES:
        if size in unlimited:
            found.append(bench.row(lab, size, None))
        limit = args.sndbuf
        if limit == "auto":
            mean = truesize.mean_true_bytes(bench.true, size, MTU)
            limit = min(int((args.queue - AUTO_MARGIN_PKTS) * mean), AUTO_MAX_BYTES)
        found.append(bench.row(lab, size, limit))
    over = [r["size_bytes"] for r in found if r["admits_more_than_queue"]]
    if over:
        notes.append(
            f"rows marked *: sndbuf={args.sndbuf} counts a frame's true size in memory, so it admits more small frames "
            f"than the NIC's queue of {args.queue} holds (sizes {', '.join(map(str, over))}); --sndbuf auto takes for "
            "each size the largest limit that is safe"
        )
    return found, notes


def _case(bench, args, case, lines):
    """A sub-case: its rows, and one line of what was seen."""
    why = case.missing()
    if why:
        lines.append(f"{case.title}: skipped, {why}")
        return []
    spec = LabSpec(link=args.link, queue_pkts=case.queue_pkts or args.queue, to="host" if case.to_host else "ext")
    limit = 1 << 20 if args.sndbuf == "auto" else args.sndbuf
    limits = (None, limit) if case.to_host else (limit,)
    with Lab(spec) as lab, case.apply(lab):
        found = [bench.row(lab, CLASSIC_BYTES, sndbuf, case.name, case.guest) for sndbuf in limits]
    lines.append(f"{case.title}: {case.words(found)}")
    return found


# ---- what a person reads ----


def _words(row):
    if not row["valid"]:
        return f"  {row['size_bytes']}, {report.sndbuf_words(row['sndbuf_bytes'])}: not valid: {row['invalid_reason']}"
    case = "" if row["case"] == "sweep" else f" ({row['case']})"
    return (
        f"  {row['size_bytes']}, {report.sndbuf_words(row['sndbuf_bytes'])}{case}: sent {row['sent']}, received "
        f"{row['received']}, lost: {report.where_lost(row)}"
    )


def table(found):
    header = ["", "sent", "Mbit/s", "received", "Mbit/s", "NIC drops", "receiver's", "incomplete", "unaccounted",
              "backlog", "admitted", "stops", "ring full", "blocked", "idle then", ""]  # fmt: skip
    body = []
    for row in found:
        if "sent" not in row:
            continue
        name = f"{row['size_bytes']}, {report.sndbuf_words(row['sndbuf_bytes'])}"
        name += "" if row["case"] == "sweep" else f", {row['case']}"
        admitted = "-" if row["frames_admitted"] is None else str(row["frames_admitted"])
        run_ns = row["run_ns"] or 1
        idle = "-" if row["idle_while_blocked"] is None else f"{100 * row['idle_while_blocked']:.0f} %"
        body.append([
            name, str(row["sent"]), f"{row['sent_bits_per_second'] / 1e6:.2f}", str(row["received"]),
            f"{row['received_bits_per_second'] / 1e6:.2f}", str(row["frames"]["dropped"]["nic"]),
            str(row["receiver_dropped"]), str(row["incomplete"]), str(row["unaccounted"]),
            str(row["nic_backlog_max_pkts"]), admitted + "*" * bool(row["admits_more_than_queue"]),
            str(row["tx_stops"]), f"{100 * min(row['ring_full_ns'] / run_ns, 1):.0f} %",
            f"{100 * min(row['blocked_ns'] / run_ns, 1):.0f} %", idle, "",
        ])  # fmt: skip
    return ["", *report.layout(header, body)]


# ---- verdict ----


def _outcome(found, notes, lines, args):
    outcome = Outcome(rows=found, notes=notes)
    outcome.tables = table(found) + [""] * bool(lines) + lines
    outcome.picture = _picture([r for r in found if r["case"] == "sweep" and r["valid"]], args)
    bad = [r for r in found if not r["valid"]]
    if bad:
        row = bad[0]
        outcome.code = row["exit_code"]
        outcome.decision, outcome.verdict = "not valid", f"{row['size_bytes']} bytes: {row['invalid_reason']}"
        return outcome
    faults = _missed([r for r in found if r["case"] == "sweep"], args) if args.to == "ext" else []
    faults += [c.missed(some) for c in detours.CASES if (some := [r for r in found if r["case"] == c.name])]
    faults = [f for f in faults if f]
    if faults:
        outcome.code, outcome.decision, outcome.verdict = EXIT_THRESHOLD, "not as it must be", "; ".join(faults)
        return outcome
    why = _undecided([r for r in found if r["case"] == "sweep"])
    if why:
        outcome.code, outcome.decision, outcome.verdict = EXIT_INVALID, "undecided", why
        return outcome
    outcome.code, outcome.decision, outcome.verdict = EXIT_OK, "as it must be", _praise(found)
    return outcome


def _undecided(sweep):
    """What a busy machine spoiled in each of several tries, in words; None when nothing."""
    for row in sweep:
        if row["sndbuf_bytes"] is None and row["size_bytes"] == CLASSIC_BYTES and _too_slow(row):
            return (
                f"the limit is as it must be, but without it the guest sent only {row['sent']} datagrams, of which the "
                f"link took {row['received']}: too slow, here and now, to lose more than half"
            )
        if row["sndbuf_bytes"] is not None and row["receiver_dropped"]:
            return (
                f"nothing was lost at the NIC, but the receiver's socket overflowed at {row['size_bytes']} bytes in "
                f"each of {TRIES} tries: its CPU is too busy to measure"
            )
    return None


def _too_slow(row):
    return row["received"] >= HALF * row["sent"]


def _by_size(sweep, limited):
    return {r["size_bytes"]: r for r in sweep if (r["sndbuf_bytes"] is not None) == limited}


def _missed(sweep, args):
    """What the correct set-up did not show, in words."""
    free, limited = _by_size(sweep, False), _by_size(sweep, True)
    faults = []
    classic = free[CLASSIC_BYTES]
    if not _drops_most(classic) and not _too_slow(classic):
        faults.append(f"without a limit the NIC dropped only {classic['nic_dropped']} of {classic['sent']}")
    for row in limited.values():
        small = args.sndbuf != "auto" and row["admits_more_than_queue"]
        if row["frames"]["dropped"]["nic"] and not small:
            faults.append(
                f"with sndbuf={row['sndbuf_bytes']} the NIC dropped {row['frames']['dropped']['nic']} frames at "
                f"{row['size_bytes']} bytes"
            )
    for row in limited.values():
        if row["checksum_errors"]:
            faults.append(f"{row['checksum_errors']} checksum errors at {row['size_bytes']} bytes")
        if row["tx_stops"] != row["tx_wakes"]:
            faults.append(f"{row['tx_stops']} stops and {row['tx_wakes']} wakes at {row['size_bytes']} bytes")
    idle = median([r["idle_while_blocked"] or 0.0 for r in limited.values() if r["size_bytes"] >= IDLE_FROM_BYTES])
    if idle < IDLE_SHARE:
        faults.append(f"the guest was idle for only {100 * idle:.0f} % of the time in which it was blocked")
    if not limited[CLASSIC_BYTES]["tx_stops"]:
        faults.append("the guest never stopped its queue: no pressure reached it")
    return faults


def _praise(found):
    sweep = [r for r in found if r["case"] == "sweep"]
    if not sweep:
        return "the receiver's own socket loses what it cannot hold; the tap's limit neither causes nor cures that"
    free, limited = _by_size(sweep, False)[CLASSIC_BYTES], _by_size(sweep, True)
    row = limited[CLASSIC_BYTES]
    lost = sorted(size for size, r in limited.items() if r["frames"]["dropped"]["nic"])
    where = f"only {', '.join(map(str, lost))} (marked)" if lost else "none"
    full, idle = row["ring_full_ns"] / (row["run_ns"] or 1), row["idle_while_blocked"] or 0.0
    return (
        f"At {CLASSIC_BYTES} bytes the NIC dropped {100 * free['nic_dropped'] / free['sent']:.0f} % of what the guest "
        f"sent without a limit, and nothing with sndbuf={row['sndbuf_bytes']}; of {len(limited)} sizes {where} lost "
        f"frames at the NIC. The guest stopped its queue {row['tx_stops']} times and woke it {row['tx_wakes']} times, "
        f"its ring was full {100 * min(full, 1):.0f} % of the time, and its processor idle {100 * idle:.0f} % of the "
        f"time in which the sender was blocked: it slept. Every packet of {len(found)} rows is accounted for"
    )


def _picture(sweep, args):
    if not sweep:
        return None
    free, limited = _by_size(sweep, False), _by_size(sweep, True)
    word = "sndbuf auto" if args.sndbuf == "auto" else f"sndbuf {args.sndbuf}"

    def points(some, key, scale=1.0):
        return tuple((size, r[key] / scale) for size, r in sorted(some.items()))

    throughput = (
        Series("sent, no limit", points(free, "sent_bits_per_second", 1e6)),
        Series("received, no limit", points(free, "received_bits_per_second", 1e6)),
        Series(f"sent, {word}", points(limited, "sent_bits_per_second", 1e6)),
        Series(f"received, {word}", points(limited, "received_bits_per_second", 1e6)),
    )
    backlog = (
        Series("backlog, no limit", points(free, "nic_backlog_max_pkts")),
        Series(f"backlog, {word}", points(limited, "nic_backlog_max_pkts")),
        Series("admitted by the limit", points(limited, "frames_admitted")),
        Series("the queue's length", points(limited, "nic_queue_pkts")),
    )
    size = "size of a message, bytes"
    return Picture(
        f"UDP from a guest through a NIC of {args.link}, without and with a limit of the tap's send buffer",
        (
            Panel("Messages sent and received", size, "Mbit/s of payload", throughput, log_y=True, categories=SIZES),
            Panel("The NIC's queue: its largest backlog", size, "packets", backlog, categories=SIZES),
        ),
    )


