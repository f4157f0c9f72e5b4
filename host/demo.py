# SPDX-License-Identifier: BSD-2-Clause
"""`sluice demo`: the same blast without and with the tap's limit, then TCP, and what the figures say."""

from dataclasses import replace

from errors import EXIT_INVALID, EXIT_OK, EXIT_THRESHOLD
from report import MEGA, row_name
from rows import run_test
from sandbox import kernel_limit

LIMITED_TRIES = 3
PAYLOAD_BYTES = 1024
BUSY_PERCENT = 80.0
NEAR_RATE = 0.85  # payload over the NIC's rate: headers and gaps take 6 %, of two fragments 11 %


def run(lab, base, announce, on_line):
    """Gives the rows, one by one: UDP without a limit, UDP with it, TCP. Stops at the first that is not valid.

    The row with the limit is repeated when the receiver's socket overflowed: that is neither the guest's nor the
    NIC's doing, and a busy core is enough to cause it.
    """
    limit = base.sndbuf_bytes
    udp = replace(base, protocol="udp", size_bytes=PAYLOAD_BYTES)
    plan = [
        ("UDP, as fast as it goes, tap without a limit", replace(udp, sndbuf_bytes=None), 1),
        (f"UDP, as fast as it goes, tap with sndbuf={limit}", replace(udp, sndbuf_bytes=limit), LIMITED_TRIES),
        (f"TCP, tap with sndbuf={limit}", replace(base, protocol="tcp", sndbuf_bytes=limit), 1),
    ]
    for title, test, tries in plan:
        for attempt in range(tries):
            announce(title + (f" (again, {attempt + 1} of {tries})" if attempt else ""))
            row = run_test(lab, test, on_line)[0]
            if not (row["valid"] and row.get("receiver_dropped")):
                break
        yield row
        if not row["valid"]:
            break


def verdict(rows, link):
    """(exit code, words). link: the NIC's rate in bits/s."""
    for row in rows:
        if not row["valid"]:
            return row["exit_code"], f"not valid: {row_name(row)}: {row['invalid_reason']}"
    unlimited, limited, stream = rows
    if limited["nic_dropped"]:
        return EXIT_THRESHOLD, (
            f"with sndbuf={limited['sndbuf_bytes']} the NIC's queue still dropped {limited['nic_dropped']} of "
            f"{limited['sent']}: the limit admits more than the queue holds, or frames escape the tap's accounting"
        )
    if limited["receiver_dropped"]:
        return EXIT_INVALID, (
            f"the NIC lost nothing with the limit, but the receiver's socket lost {limited['receiver_dropped']} in "
            f"each of {LIMITED_TRIES} tries: {_receiver_cause(limited)}"
        )
    if not unlimited["nic_dropped"]:
        return EXIT_INVALID, (
            f"undecided: the guest sends {unlimited['sent_bits_per_second'] / MEGA:.1f} Mbit/s, no faster than the "
            f"link of {link / MEGA:g} Mbit/s takes: nothing overflows, with or without a limit; use a slower --link"
        )
    share = 100.0 * unlimited["nic_dropped"] / unlimited["sent"]
    rate = limited["sent_bits_per_second"]
    where = "at the NIC's rate " if rate >= NEAR_RATE * link else ""
    return EXIT_OK, (
        f"Without a limit the NIC's queue dropped {share:.0f} % of what the guest sent and nobody told the "
        f"application; with sndbuf={limited['sndbuf_bytes']} the application waited {limited['waited_percent']:.0f} % of the "
        f"time, sent {where}({rate / MEGA:.1f} Mbit/s) and lost "
        f"{_count(limited['sent'] - limited['received'])}; TCP ran at {stream['bits_per_second'] / MEGA:.1f} Mbit/s. "
        f"Every packet is accounted for."
    )


def _count(lost):
    return "nothing" if lost == 0 else f"{lost} (see the table)"


def _receiver_cause(row):
    busy = row.get("server_cpu_percent")
    if busy is not None and busy > BUSY_PERCENT:
        return f"its CPU was busy ({busy:.0f} % in iperf3)"
    limit = min(kernel_limit("rmem_max"), kernel_limit("wmem_max"))
    return f"net.core.rmem_max and wmem_max allow only {limit} bytes (sysctl -w net.core.rmem_max=4194304 ...)"
