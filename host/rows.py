# SPDX-License-Identifier: BSD-2-Clause
"""One test, from a fresh iperf3 server and a booted guest to the rows of the report."""

import time
from dataclasses import dataclass, field, replace

import accounts
import counters
import faults
import peer
from errors import EXIT_DRIVER, EXIT_INVALID, EXIT_OK, EXIT_PEER
from lab import GUEST_IP, GUEST_MAC, PREFIX
from sandbox import kernel_limit
from vm import VM, VmSpec

BOOT_S, AFTER_S = 15.0, 20.0  # what a test may take beside its sending time
EFI_BOOT_S = 60.0
SETTLE_S = 3.0  # the longest wait for the NIC's queue to run empty
SERVER_GONE_S = 6.0
TO_HOST, TO_GUEST = "guest-to-host", "host-to-guest"
IPERF_MIN_WINDOW_BYTES = 4096
# Doubled by the kernel it holds 369 datagrams of 1024 bytes: below the NIC's queue, and four times the default.
BIDIR_WINDOW_BYTES = 2 * 212992
FAULT_MADE = "a fault was made"
# The guest's own periods without a word: its row interval and its drain.
GUEST_QUIET_KEYS = ("interval", "drain")


@dataclass(frozen=True)
class Test:
    """What is asked for. guest: further key=value words, which override what is derived here."""

    protocol: str = "udp"
    size_bytes: int | None = None  # None: the guest's default
    time_s: float = 10.0
    rate: str | None = None  # bits/s in the guest's notation
    parallel: int = 1
    reverse: bool = False
    bidir: bool = False
    window_bytes: int | None = None
    sndbuf_bytes: int | None = None  # of the tap; None: no limit
    ip: str = "static"
    mtu: int = 1500
    guest: tuple = ()
    faults: tuple = ()
    busy: bool = False  # somebody else is being served
    vm: VmSpec = field(default_factory=VmSpec)
    label: str = ""

    @property
    def payload_bytes(self):
        return self.size_bytes or (1024 if self.protocol == "udp" else 131072)

    @property
    def omit_s(self):
        return _number(dict(w.partition("=")[::2] for w in self.guest).get("omit"))

    @property
    def streams(self):
        return self.parallel * (2 if self.bidir else 1)


def peer_window_bytes(test):
    """The socket buffer to ask the peer for, 0 for its own default.

    A receiver wants the largest. The kernel doubles what it is asked for, up to its limit, and iperf3 refuses a
    test whose send buffer came out smaller than asked: twice the smaller limit fits both. A sender keeps its
    default, which is smaller than the NIC's queue, so that it waits instead of overflowing its own queue. In a
    bidirectional test one number serves for both.
    """
    largest = 2 * min(kernel_limit("rmem_max"), kernel_limit("wmem_max"))
    if test.protocol != "udp" or test.reverse or largest < IPERF_MIN_WINDOW_BYTES:
        return 0
    return min(largest, BIDIR_WINDOW_BYTES) if test.bidir else largest


def guest_words(test, lab):
    """The guest's configuration, as key=value words."""
    words = {"test": test.protocol, "server": lab.server_ip, "time": f"{test.time_s:g}"}
    words["ip"] = "dhcp" if test.ip == "dhcp" else f"{GUEST_IP}/{PREFIX}"
    if test.size_bytes is not None:
        words["size"] = str(test.size_bytes)
    if test.rate is not None:
        words["rate"] = test.rate
    if test.parallel != 1:
        words["parallel"] = str(test.parallel)
    for name in ("reverse", "bidir"):
        if getattr(test, name):
            words[name] = "on"
    if test.window_bytes is not None:
        words["window"] = str(test.window_bytes)
    if peer_window_bytes(test):
        words["peer_window"] = str(peer_window_bytes(test))
    for word in test.guest:
        key, _, value = word.partition("=")
        words[key] = value
    return tuple(f"{k}={v}" for k, v in words.items())


def mtu_options(mtu):
    """The device's words for an MTU; the guest's own default needs none."""
    return (f"host_mtu={mtu}",) if mtu != 1500 else ()


def _vm_spec(test, lab):
    options = tuple(test.vm.device_options) + mtu_options(test.mtu)
    quiet_s = 0.0
    for word in test.guest:
        key, _, value = word.partition("=")
        if key in GUEST_QUIET_KEYS:
            try:
                quiet_s += float(value)
            except ValueError:
                pass  # the guest says what is wrong with it
    return replace(
        test.vm,
        config=guest_words(test, lab),
        mac=GUEST_MAC,
        sndbuf=test.sndbuf_bytes,
        device_options=options,
        silence_s=test.vm.silence_s + quiet_s + sum(f.duration_s or 0 for f in test.faults if f.name in faults.STANDS_STILL),
    )


class _ServerWatch:
    """Ends a guest whose server died when the guest itself does not notice."""

    def __init__(self, lab, vm):
        self._lab, self._vm, self._since = lab, vm, None

    def __call__(self):
        if not self._lab.server.died:
            return
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > SERVER_GONE_S:
            self._vm.give_up(EXIT_PEER, f"{self._lab.server.died}, and the guest did not notice")


def run_test(lab, test, on_line=None):
    """Run one test in the lab and return its rows: one, or two for a bidirectional test."""
    server = lab.start_server()
    busy = peer.BusyClient(lab.server_netns, lab.server_ip) if test.busy else None
    made = [faults.Made(fault) for fault in test.faults]
    try:
        before = lab.snapshot()
        with VM(_vm_spec(test, lab)) as vm:
            timers = [t for one in made for t in faults.timers(one, lab, vm, on_line or (lambda _: None))]
            stalled_s = sum(f.duration_s or 0 for f in test.faults)
            boot_s = EFI_BOOT_S if test.vm.boot == "efi" else BOOT_S
            limit_s = boot_s + test.omit_s + test.time_s + stalled_s + vm.spec.silence_s + AFTER_S
            result = vm.wait(on_line, limit_s, timers, _ServerWatch(lab, vm))
        causes = lab.what_is_down()
        _settle(lab)
        after = lab.snapshot()
    finally:
        if busy:
            busy.stop()
    if test.faults or test.busy or result.code:
        server.stop()
    return _rows(lab, test, result, counters.delta(before, after), server.result(), causes, made)


def _number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return 0.0


def _settle(lab):
    """Wait until the NIC's queue is empty: what is still in it is neither lost nor received."""
    deadline = time.monotonic() + SETTLE_S
    while lab.queued_pkts() and time.monotonic() < deadline:
        time.sleep(0.05)


def _rows(lab, test, result, delta, server_json, causes, made):
    directions = [TO_GUEST] if test.reverse else [TO_HOST, TO_GUEST] if test.bidir else [TO_HOST]
    rows = []
    for direction in directions:
        row = _base_row(test, direction, result, server_json)
        row["faults"] = [one.row() for one in made]
        if _has_sums(test, direction, result.report):
            fill = _fill_datagrams if test.protocol == "udp" else _fill_stream
            fill(row, lab, test, direction, result.report, delta)
        _judge(row, test, result, causes, made)
        rows.append(row)
    return rows


def _base_row(test, direction, result, server_json):
    """Towards the guest its own wait, and the tap's limit of what it sends, are none of the row's."""
    guest = (result.report or {}).get("sluice", {})
    row = {
        "test": test.protocol,
        "direction": direction,
        "label": test.label,
        "size_bytes": test.payload_bytes,
        "sndbuf_bytes": test.sndbuf_bytes if direction == TO_HOST else None,
        "seconds": test.time_s,
        "omit_seconds": test.omit_s,
        "exit_code": result.code,
    }
    udp = guest.get("udp", {})
    waits = direction == TO_HOST and test.protocol == "udp"
    row["waited_percent"] = _waited_percent(udp, guest, test) if waits else None
    for ours, theirs in (
        ("tx_stops", "stops"),
        ("tx_wakes", "wakes"),
        ("unexpected_full", "unexpected_full"),
        ("requeues", "requeues"),
    ):
        row[ours] = sum(q.get(theirs, 0) for q in guest.get("tx", []))
    row["ledger_ok"] = bool(guest.get("ledger", {}).get("ok", False))
    row["valid"], row["invalid_reason"] = True, None
    row["server_cpu_percent"] = _server_cpu(server_json)
    which = "sum_bidir_reverse" if test.bidir and direction == TO_GUEST else "sum"
    row["intervals"] = [i.get(which, {}) for i in (result.report or {}).get("intervals", [])]
    row["guest"] = guest
    return row


def _waited_percent(udp, guest, test):
    """Mean of the streams. The guest ends each wait with the sending time."""
    if not udp.get("blocked_ns") or not guest.get("run_ns"):
        return 0.0
    return round(100.0 * udp["blocked_ns"] / guest["run_ns"] / max(test.parallel, 1), 1)


def _server_cpu(server_json):
    return ((server_json or {}).get("end", {}).get("cpu_utilization_percent") or {}).get("host_total")


def _sums(test, direction, report):
    suffix = "_bidir_reverse" if test.bidir and direction == TO_GUEST else ""
    end = report["end"]
    return end.get("sum_sent" + suffix, {}), end.get("sum_received" + suffix, {})


def _has_sums(test, direction, report):
    return bool(report and "end" in report and all(_sums(test, direction, report)))


def _whole_test(direction, totals, sent, received):
    """(sent, received) datagrams with the warm-up, which no counter on the path leaves out."""
    keys = ("sent", "arrived") if direction == TO_HOST else ("back_sent", "back_arrived")
    return tuple(totals.get(k, end.get("packets", 0)) for k, end in zip(keys, (sent, received)))


def _fill_datagrams(row, lab, test, direction, report, delta):
    sent, received = _sums(test, direction, report)
    guest = report.get("sluice", {})
    counts = _whole_test(direction, guest.get("udp", {}), sent, received)
    to = lab.spec.to
    pauses = sum(f["name"] == "pause" and f["began_s"] is not None for f in row["faults"])
    if direction == TO_HOST:
        messages = lab.dhcp.messages() if lab.dhcp else 0  # read in any case, for the next row to start from 0
        others = test.streams + (messages if to == "ext" else 0)
        ledger = accounts.forward(delta, guest, counts, others, test.payload_bytes, test.mtu, to, pauses)
    else:
        ledger = accounts.reverse(delta, guest, counts, test.payload_bytes, test.mtu, to, pauses)
    row.update(vars(ledger))
    row["sent_bits_per_second"] = sent.get("bits_per_second", 0.0)
    row["received_bits_per_second"] = received.get("bits_per_second", 0.0)
    row["jitter_ms"] = received.get("jitter_ms")
    row["out_of_order"] = received.get("out_of_order", 0)


def _fill_stream(row, lab, test, direction, report, delta):
    sent, received = _sums(test, direction, report)
    row["bits_per_second"] = received.get("bits_per_second", 0.0)
    row["sent_bits_per_second"] = sent.get("bits_per_second", 0.0)
    row["retransmits"] = sent.get("retransmits", 0)
    netns, device = ("lab", "veth0") if direction == TO_HOST else ("ext", "veth1")
    row["nic_dropped"] = counters.qdisc(delta[netns]["qdiscs"], device)["drops"] if lab.spec.to == "ext" else 0


def _judge(row, test, result, causes, made):
    """Whether the figures may be believed, and the exit code that goes with the row."""
    missing = [one.missing for one in made if one.missing]
    spoiling = [one.fault for one in made if one.fault.spoils]
    code, reason = EXIT_OK, None
    if result.code:
        code, reason = result.code, "; ".join([result.reason, *causes])
    elif not _has_sums(test, row["direction"], result.report):
        code, reason = EXIT_INVALID, "the guest ended without a report"
    elif missing:
        code, reason = EXIT_INVALID, missing[0]
    elif spoiling:
        code, reason = EXIT_INVALID, _spoiled(row, spoiling)
    elif not row["ledger_ok"]:
        code, reason = EXIT_DRIVER, "the guest's ledger does not balance"
    elif _policy(row) == "threshold" and (row["unexpected_full"] or row["requeues"]):
        code, reason = EXIT_DRIVER, f"unexpected_full {row['unexpected_full']}, requeues {row['requeues']}"
    elif test.protocol == "udp" and row["unaccounted"]:
        code, reason = EXIT_INVALID, f"{row['unaccounted']} datagrams are unaccounted for"
    elif test.protocol == "udp" and row["frames"]["unaccounted"]:
        code, reason = EXIT_INVALID, f"{row['frames']['unaccounted']} frames are unaccounted for"
    row["exit_code"] = code
    if code:
        row["valid"], row["invalid_reason"] = False, reason


def _spoiled(row, faults_made):
    lost = row.get("unaccounted", 0)
    while_it = f"; {lost} lost while it lasted" if lost > 0 else ""
    return f"{FAULT_MADE}: {', '.join(map(str, faults_made))}; the guest went on{while_it}"


def _policy(row):
    return next((q.get("policy", "threshold") for q in row["guest"].get("tx", [])), "threshold")
