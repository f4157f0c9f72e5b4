# SPDX-License-Identifier: BSD-2-Clause
"""What a person reads: the tables, the JSON object and the words of the verdict."""

import os
import subprocess

from errors import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK
from rows import FAULT_MADE, TO_HOST

MEGA = 1e6
PLACES = (
    ("nic_dropped", "NIC queue"),
    ("tap_dropped", "tap"),
    ("device_dropped", "QEMU, bridge, veth"),
    ("receiver_dropped", "receiver's socket"),
    ("no_port", "no port"),
    ("guest_dropped", "guest"),
    ("tail_unread", "tail unread"),
    ("incomplete", "incomplete"),
    ("unaccounted", "UNACCOUNTED"),
)
FRAME_PLACES = tuple(key for key, _ in PLACES[:3])


def host_facts(accelerator):
    try:
        out = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=False).stdout
        qemu = out.splitlines()[0].removeprefix("QEMU emulator version ")
    except (OSError, IndexError):
        qemu = None
    uname = os.uname()
    return {
        "kernel": f"{uname.sysname} {uname.release}",
        "qemu": qemu,
        "accelerator": accelerator,
        "cpus": os.cpu_count(),
    }


def json_object(host, rows, verdict, code):
    return {
        "host": host,
        "rows": rows,
        "verdict": verdict,
        "ok": code == EXIT_OK,
        "exit_code": code,
        "interrupted": code == EXIT_INTERRUPTED,
    }


def sndbuf_words(sndbuf):
    return "no limit" if sndbuf is None else f"sndbuf {sndbuf}"


def _place(row, key, name):
    """The name of a place in this row. Of fragmented datagrams the first three places count frames."""
    dropped = row[key]
    if key == "device_dropped" and dropped == row["frames"]["dropped"].get("qemu"):
        name = "QEMU, at the pause"
    if key == "unaccounted" and (row["invalid_reason"] or "").startswith(FAULT_MADE):
        name = "while the fault lasted"
    return f"{name} (frames)" if row.get("incomplete") and key in FRAME_PLACES else name


def where_lost(row):
    """The places that lost something, largest first."""
    places = [(row[key], _place(row, key, name)) for key, name in PLACES if row.get(key)]
    places.sort(reverse=True)
    return ", ".join(f"{name} {count}" for count, name in places) or "-"


def _mbits(value):
    return f"{value / MEGA:.2f}"


def layout(header, body):
    """Columns as wide as their widest cell; numbers to the right, the first and the last column to the left."""
    table = [header, *body]
    widths = [max(len(line[i]) for line in table) for i in range(len(header))]
    last = len(header) - 1
    lines = []
    for line in table:
        cells = [c.ljust(w) if i in (0, last) else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return lines


def row_name(row):
    name = row["test"].upper()
    if row["test"] == "udp":
        name += f" {row['size_bytes']}"
    if row["direction"] != TO_HOST:
        return f"{name} to guest"
    return f"{name}, {sndbuf_words(row['sndbuf_bytes'])}"


def datagram_table(rows):
    header = ["", "sent", "Mbit/s", "received", "Mbit/s", "lost", "waited", "where"]
    body = []
    for row in rows:
        lost = row["sent"] - row["received"]
        percent = 100.0 * lost / row["sent"] if row["sent"] else 0.0
        body.append([
            row_name(row), str(row["sent"]), _mbits(row["sent_bits_per_second"]), str(row["received"]),
            _mbits(row["received_bits_per_second"]), f"{lost} ({percent:.1f} %)" if lost else "0",
            "-" if row["waited_percent"] is None else f"{row['waited_percent']:.0f} %", where_lost(row),
        ])  # fmt: skip
    return layout(header, body)


def stream_table(rows):
    header = ["", "Mbit/s", "retransmits", "NIC drops", "stops", ""]
    body = [
        [row_name(r), _mbits(r["bits_per_second"]), str(r["retransmits"]), str(r["nic_dropped"]), str(r["tx_stops"]), ""]
        for r in rows
    ]
    return layout(header, body)


def tables(rows, verdict):
    """Lines of text: one table of the datagram rows, one of the stream rows, then what is wrong with a row and not said
    by the verdict, which follows."""
    lines = []
    datagrams = [r for r in rows if "sent" in r]
    streams = [r for r in rows if "bits_per_second" in r]
    for some, table in ((datagrams, datagram_table), (streams, stream_table)):
        if some:
            lines += ["", *table(some)]
    for row in rows:
        if not row["valid"] and row["invalid_reason"] not in verdict:
            lines += ["", f"not valid: {row_name(row)}: {row['invalid_reason']}"]
    return lines


def last_line(code, verdict):
    """A measurement that is not valid, or undecided, did not fail: it says nothing."""
    if code == EXIT_OK:
        return f"pass: {verdict}"
    if code != EXIT_INVALID:
        return f"FAIL ({code}): {verdict}"
    for word in ("undecided", "not valid"):
        if verdict.startswith(word):
            return f"{word} ({code}){verdict.removeprefix(word)}"
    return f"not valid ({code}): {verdict}"


def run_verdict(rows):
    """(exit code, words) of a single test."""
    bad = [r for r in rows if not r["valid"]]
    if bad:
        reason = bad[0]["invalid_reason"]
        if reason.startswith(FAULT_MADE):
            return bad[0]["exit_code"], f"not valid, as {reason}"
        return bad[0]["exit_code"], reason if len(rows) == 1 else f"{row_name(bad[0])}: {reason}"
    words = []
    for row in rows:
        if "sent" in row:
            lost = row["sent"] - row["received"]
            fate = f"lost {lost}: {where_lost(row)}" if lost else "lost nothing"
            words.append(f"{row['sent']} datagrams {row['direction'].replace('-', ' ')}, {fate}")
        else:
            words.append(f"{_mbits(row['bits_per_second'])} Mbit/s {row['direction'].replace('-', ' ')}")
    datagrams = [r for r in rows if "sent" in r]
    if datagrams:
        words.append("every packet is accounted for" + ", warm-up included" * bool(rows[0]["omit_seconds"]))
    return 0, "; ".join(words)
