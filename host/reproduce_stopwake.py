# SPDX-License-Identifier: BSD-2-Clause
"""Field report B: when a driver wakes its transmit queue, and what each wrong answer costs.

Two devices show it. QEMU, whose own device made no difference in the report either: bulk TCP with large frames, with
small frames between them, through the lab of lab.py. And the model device that completes one chain at a time, in
process (tests/bench/stopwake_model.c), where a fault costs what it cost.

Policies differ only while the ring is full. So the flows are many (a receiver's first window is 64 KiB, and what all
have in flight must exceed the ring and the tap's send buffer), and speeds are judged where the link is slower than the
guest: there the ring is full most of the time, and a queue that is woken too late, or loses what it held, leaves the
link idle. Without shaping the slowest thread of the path decides, which is the machine's scheduler's choice:
identical runs vary by half. Those figures are reported, and judged only when no two runs of the two sets overlap.
"""

import json
import math
import os
import resource
import subprocess
import sys

import report
import shell
from errors import EXIT_INVALID, EXIT_OK, EXIT_PEER, EXIT_THRESHOLD, SluiceError
from lab import GUEST_IP, Lab, LabSpec
from plot import Panel, Picture, Series
from reproduce import Outcome, median
from rows import Test, run_test

POLICIES = ("threshold", "wake-on-one", "drop", "spin", "no-recheck")
CORRECT = POLICIES[0]
ROUNDS = 5
TIME_S, QUICK_TIME_S = 1.0, 0.4
MODEL_PACKETS, QUICK_MODEL_PACKETS = 1000000, 20000
FLOWS = 40
SNDBUF_BYTES = 256 << 10
RING_DESCS = 256
LIMITED_LINK = "500mbit"  # below what the slowest accelerator moves
PINGS_PER_SECOND = 500
NEAR_BEST = 0.95
REQUEUES_PER_PACKET_MIN = 0.01
# From the report: requeues and packets of 60 s of TCP_STREAM.
REPORT_GOOD, REPORT_BAD = (61, 937388), (283575, 1469482)
MEGABYTE = 1e6
ON_OFF = {True: "on", False: "off"}
FULL_RING = (False, True)  # no INDIRECT: a chain takes up to 18 of the ring's descriptors
FORMS = (FULL_RING, (False, False), (True, True), (True, False))  # (INDIRECT, EVENT_IDX)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "build", "host", "bench", "stopwake_model")


def run(context):
    found = _model_rows(context)
    for link in (LIMITED_LINK, None):
        with Lab(LabSpec(link=link)) as lab:
            for form in FORMS:
                found += _form_rows(context, lab, form)
    return _outcome(found)


def _form_rows(context, lab, form):
    """Interleaved rounds of all policies. Quick: one form on the limited link; of the others the correct policy, once."""
    if not context.quick:
        return [_qemu_row(context, lab, p, *form, TIME_S, n) for n in range(ROUNDS) for p in POLICIES]
    if form == FULL_RING and lab.spec.link:
        return [_qemu_row(context, lab, p, *form, QUICK_TIME_S, n) for n in range(ROUNDS) for p in POLICIES]
    return [_qemu_row(context, lab, CORRECT, *form, QUICK_TIME_S, None)]


# ---- the model device ----


def _model_rows(context):
    packets = QUICK_MODEL_PACKETS if context.quick else MODEL_PACKETS
    shell.show([MODEL, packets])
    try:
        done = subprocess.run([MODEL, str(packets)], capture_output=True, text=True, timeout=600, check=False)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as e:
        raise SluiceError(EXIT_PEER, f"{MODEL}: {e}") from None
    for row in found:
        row.update(link=None, round=None, bits_per_second=None, retransmits=None, busy_ns_per_megabyte=None,
                   host_cpu_ns_per_megabyte=None, valid=row["ledger_ok"], exit_code=EXIT_OK,
                   invalid_reason=None if row["ledger_ok"] else "the driver's ledger does not balance")  # fmt: skip
        context.done(row, _words(row))
    return found


# ---- QEMU ----


def _qemu_row(context, lab, policy, indirect, event_idx, seconds, number):
    guest = (f"tx.policy={policy}", f"tx.size={RING_DESCS}", f"virtio.indirect={ON_OFF[indirect]}",
             f"virtio.event_idx={ON_OFF[event_idx]}")  # fmt: skip
    test = Test(protocol="tcp", time_s=seconds, parallel=FLOWS, sndbuf_bytes=SNDBUF_BYTES, guest=guest, vm=context.vm)
    pinger = _start_pinger()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seen = run_test(lab, test)[0]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    pings = _stop_pinger(pinger)
    row = {
        "device": "qemu", "policy": policy, "indirect": indirect, "event_idx": event_idx, "link": lab.spec.link,
        "round": number, "pings": pings,
    }  # fmt: skip
    row.update({k: seen[k] for k in ("valid", "invalid_reason", "exit_code", "ledger_ok", "guest")})
    row["bits_per_second"], row["retransmits"] = seen.get("bits_per_second", 0.0), seen.get("retransmits", 0)
    queues = row["guest"].get("tx", [])
    for key in ("packets", "requeues", "stops", "wakes", "interrupts", "kicks", "unexpected_full", "recheck_hits"):
        row[key] = sum(q.get(key, 0) for q in queues)
    row["drops"] = sum(sum(q.get("drops", {}).values()) for q in queues)
    row["stalls"] = sum(q.get("timer_reaps", 0) for q in queues)  # found only by the timer of 100 ms
    run_ns, idle_ns = row["guest"].get("run_ns", 0), row["guest"].get("idle_ns", 0)
    megabytes = row["bits_per_second"] * run_ns / 1e9 / 8 / MEGABYTE
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row["busy_ns_per_megabyte"] = (run_ns - idle_ns) / megabytes if megabytes else None
    row["host_cpu_ns_per_megabyte"] = cpu_s * 1e9 / megabytes if megabytes else None
    context.done(row, _words(row))
    return row


def _start_pinger():
    """Small frames: the guest's answers to echo requests. A guest sends these past its gate for bulk data."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pinger.py")
    argv = shell.in_netns("ext", sys.executable, "-B", script, GUEST_IP, str(PINGS_PER_SECOND))
    return shell.start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def _stop_pinger(process):
    process.terminate()
    try:
        return json.loads(process.communicate(timeout=5)[0])
    except (ValueError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
        return None


# ---- what a person reads ----


def _form(row):
    return _form_words(row["indirect"], row["event_idx"])


def _form_words(indirect, event_idx):
    return f"{'with' if indirect else 'no'} INDIRECT, {'with' if event_idx else 'no'} EVENT_IDX"


def _words(row):
    speed = "" if row["bits_per_second"] is None else f"{row['bits_per_second'] / 1e6:.0f} Mbit/s, "
    where = row["device"] if row["device"] == "model" else f"{row['device']}, link {row['link'] or 'not shaped'}"
    number = "" if row["round"] is None else f" #{row['round'] + 1}"
    bad = "" if row["valid"] else f"  not valid: {row['invalid_reason']}"
    return (
        f"  {where}, {row['policy']}, {_form(row)}{number}: {speed}{row['packets']} packets, {row['requeues']} "
        f"requeues, {row['drops']} drops, {row['stalls']} stalls{bad}"
    )


def _groups(found):
    groups = {}
    for row in found:
        key = (row["device"], row["link"], row["indirect"], row["event_idx"], row["policy"])
        groups.setdefault(key, []).append(row)
    return groups


def _total(some, key):
    return sum(row[key] or 0 for row in some)


def table(found):
    header = ["", "link", "INDIRECT", "EVENT_IDX", "runs", "Mbit/s", "packets", "requeues", "drops", "retransm.",
              "stops", "wakes", "interrupts", "kicks", "busy us/MB", "stalls", ""]  # fmt: skip
    body = []
    for (device, link, indirect, event_idx, policy), some in _groups(found).items():
        model = device == "model"
        speed = "-" if model else f"{median([r['bits_per_second'] for r in some]) / 1e6:.0f}"
        busy = [r["busy_ns_per_megabyte"] for r in some if r["busy_ns_per_megabyte"]]
        body.append([
            f"{device}, {policy}", "-" if model else link or "none", ON_OFF[indirect], ON_OFF[event_idx],
            str(len(some)), speed, str(_total(some, "packets")), str(_total(some, "requeues")),
            str(_total(some, "drops")), "-" if model else str(_total(some, "retransmits")), str(_total(some, "stops")),
            str(_total(some, "wakes")), str(_total(some, "interrupts")), str(_total(some, "kicks")),
            f"{median(busy) / 1e3:.0f}" if busy else "-", str(_total(some, "stalls")), "",
        ])  # fmt: skip
    return ["", *report.layout(header, body)]


# ---- verdict ----


def _rounds(found):
    """{(link, indirect, event_idx): {policy: speeds}} of the interleaved runs."""
    rounds = {}
    for row in found:
        if row["device"] == "qemu" and row["round"] is not None and row["valid"]:
            speeds = rounds.setdefault((row["link"], row["indirect"], row["event_idx"]), {})
            speeds.setdefault(row["policy"], []).append(row["bits_per_second"])
    return rounds


def _ratio(speeds):
    """The correct policy's median over the best median."""
    best = max(median(some) for some in speeds.values())
    return median(speeds.get(CORRECT, [])) / best if best else 0.0


def _apart(speeds):
    """Whether no run of the correct policy reaches any run of the best one."""
    best = max(speeds.values(), key=median)
    return max(speeds.get(CORRECT, [0.0])) < min(best)


def _of(found, device, policy):
    return [r for r in found if r["device"] == device and r["policy"] == policy]


def missed(found):
    """What the correct policy, or a fault on the model device, did not show; in words."""
    faults = []
    for row in [r for r in found if r["policy"] == CORRECT]:
        for key in ("requeues", "drops", "stalls", "unexpected_full"):
            if row[key]:
                faults.append(f"{CORRECT} on {row['device']} ({_form(row)}) has {row[key]} {key}")
    for row in _of(found, "model", "wake-on-one"):
        if not row["indirect"] and row["requeues"] <= REQUEUES_PER_PACKET_MIN * row["packets"]:
            faults.append(f"wake-on-one on the model device ({_form(row)}) requeues only {row['requeues']}")
    for row in _of(found, "model", "drop"):
        if not row["indirect"] and not row["drops"]:
            faults.append(f"drop on the model device ({_form(row)}) drops nothing")
    if not _total(_of(found, "model", "no-recheck"), "stalls"):
        faults.append("no-recheck never stalls on the model device")
    return faults


def _outcome(found):
    outcome = Outcome(rows=found, tables=table(found), picture=_picture(found))
    invalid = [r for r in found if not r["valid"]]
    correct = [r for r in invalid if r["policy"] == CORRECT]
    faulty = [r for r in invalid if r not in correct]
    outcome.notes = [f"{r['device']}, {r['policy']}, {_form(r)}: {r['invalid_reason']}" for r in faulty]
    faults = missed(found)
    if correct:
        outcome.code, outcome.decision = correct[0]["exit_code"] or EXIT_INVALID, "not valid"
        outcome.verdict = f"{CORRECT} on {correct[0]['device']}, {_form(correct[0])}: {correct[0]['invalid_reason']}"
    elif faults:
        outcome.code, outcome.decision, outcome.verdict = EXIT_THRESHOLD, "not as it must be", "; ".join(faults)
    else:
        outcome.code, outcome.decision, outcome.verdict = _judge_speed(found)
    return outcome


def _judge_speed(found):
    figures = _figures(found)
    full = [r for r in _of(found, "qemu", CORRECT) if r["link"] and (r["indirect"], r["event_idx"]) == FULL_RING]
    undecided = "" if _total(full, "stops") else "the ring was never full"
    for (link, *form), speeds in _rounds(found).items():
        where = (
            f"{link or 'link not shaped'}, {_form_words(*form)}: its median is {_floor_percent(_ratio(speeds)):.1f} % of "
            f"the best, and the limit is {100 * NEAR_BEST:.1f} %"
        )
        if _ratio(speeds) >= NEAR_BEST:
            continue
        if _apart(speeds):
            words = f"{CORRECT} is slower than it may be ({where}), and none of its runs reaches one of those. {figures}"
            return EXIT_THRESHOLD, "not as it must be", words
        undecided = undecided or (link and where)
    if undecided:
        words = f"nothing was requeued, dropped or stalled, but the runs differ too much to compare speeds ({undecided})"
        return EXIT_INVALID, "undecided", f"{words}. {figures}"
    return EXIT_OK, "as it must be", f"{figures} {_praise(found)}"


def _floor_percent(ratio):
    """To one decimal, down: what misses a limit is not shown as the limit."""
    return math.floor(1000.0 * ratio) / 10.0


def _percent(part, whole):
    return 100.0 * part / whole if whole else 0.0


def _figures(found):
    wake = [r for r in _of(found, "model", "wake-on-one") if not r["indirect"]]
    requeues, packets = max(((r["requeues"], r["packets"]) for r in wake), key=lambda x: _percent(*x))
    dropped = _total(_of(found, "model", "drop"), "drops")
    good = [r for r in found if r["policy"] == CORRECT]
    return (
        f"In the report 2.6.31 requeued {REPORT_GOOD[0]} of {REPORT_GOOD[1]} packets, 2.6.32, which wakes on one free "
        f"slot, {REPORT_BAD[0]} of {REPORT_BAD[1]} ({_percent(*REPORT_BAD):.0f} %). Here {CORRECT} requeued, dropped "
        f"and stalled {_total(good, 'requeues')}, {_total(good, 'drops')} and {_total(good, 'stalls')} times in "
        f"{_total(good, 'packets')} packets and {len(good)} runs; on the model device wake-on-one requeued {requeues} "
        f"of {packets} ({_percent(requeues, packets):.0f} %), drop lost {dropped}, no-recheck stalled "
        f"{_total(_of(found, 'model', 'no-recheck'), 'stalls')} times."
    )


def _praise(found):
    limited = [_ratio(speeds) for (link, *_), speeds in _rounds(found).items() if link]
    stops = _total([r for r in _of(found, "qemu", CORRECT) if r["link"]], "stops")
    slowest = _floor_percent(min(limited, default=0.0))
    return (
        f"Under QEMU, link {LIMITED_LINK}, {CORRECT} ran at {slowest:.1f} % or more of the fastest policy with {stops} stops"
    )


def _picture(found):
    model, stalls, qemu = {}, {}, {}
    for (device, link, indirect, event_idx, policy), some in _groups(found).items():
        name = f"EVENT_IDX {ON_OFF[event_idx]}"
        if device == "model" and not indirect:
            drops = _total(some, "drops")
            rates = _percent(_total(some, "requeues") + drops, _total(some, "packets") + drops)
            model.setdefault(name, []).append((policy, rates))
            stalls.setdefault(name, []).append((policy, _total(some, "stalls")))
        if device == "qemu" and link and not indirect and some[0]["round"] is not None:
            speeds = [r["bits_per_second"] / 1e6 for r in some]
            qemu.setdefault(f"QEMU, {name}", []).append((policy, median(speeds), (min(speeds), max(speeds))))
    if not model or not qemu:
        return None
    return Picture(
        "Stop and wake: what each policy costs, ring of 256, chains of up to 18 pieces, no INDIRECT",
        (
            Panel("Model device, one completion at a time: requeues and drops", "policy", "per 100 packets",
                  tuple(Series(n, tuple(some)) for n, some in sorted(model.items())), bars=True),
            Panel("Model device: stalls, waits that only a timer ends", "policy", "stalls of a run",
                  tuple(Series(n, tuple(some)) for n, some in sorted(stalls.items())), bars=True),
            Panel(f"QEMU, {FLOWS} TCP streams, link {LIMITED_LINK}: median, lowest and highest run", "policy", "Mbit/s",
                  tuple(Series(n, tuple((p, v) for p, v, _ in some), tuple(s for _, _, s in some))
                        for n, some in sorted(qemu.items())), bars=True),
        ),
    )  # fmt: skip
