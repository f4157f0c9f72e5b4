# SPDX-License-Identifier: BSD-2-Clause
"""Faults that a test can ask for: NAME@SECONDS[:DURATION], seconds after the guest's first line.

Without a duration a fault stays. A row with a fault in it is not valid, and says so, whatever its figures. A stall,
a pause or a freeze that ended breaks nothing: such a row is judged like any other. A row is judged by what was done,
not by what was asked for: where a fault did not come, or did not end, nothing was shown.
"""

import math
from dataclasses import dataclass

from errors import EXIT_PEER

# A guest that has not noticed a lasting fault after this time is ended by the host.
NOTICE_S = 8.5
PAUSE_NOTICE_S = 5.0  # a paused guest will not notice anything; before its silence is taken for a hang
HARMLESS = ("stall", "pause", "freeze")
STANDS_STILL = ("pause", "freeze")  # the guest notices nothing and says nothing

MEANING = {
    "link": "the virtio link goes down (QEMU's set_link)",
    "tap": "the tap goes down",
    "nic": "the NIC goes down",
    "server": "the iperf3 server is killed",
    "stall": "the tap takes no frame (needs a shaped link)",
    "pause": "QEMU stops the guest",
    "freeze": "the host stops QEMU, and the guest's clock goes on",
}


@dataclass(frozen=True)
class Fault:
    name: str
    at_s: float
    duration_s: float | None = None

    @property
    def spoils(self):
        return self.name not in HARMLESS or self.duration_s is None

    @property
    def text(self):
        return f"{self.name}@{self.at_s:g}" + ("" if self.duration_s is None else f":{self.duration_s:g}")

    @property
    def when(self):
        lasting = "" if self.duration_s is None else f" for {self.duration_s:g} s"
        return f"{self.name} after {self.at_s:g} s{lasting}"

    def __str__(self):
        return f"{self.when}: {MEANING[self.name]}"


@dataclass
class Made:
    """What became of a fault: when it began and ended, in seconds after the guest's first line; None: it did not."""

    fault: Fault
    began_s: float | None = None
    ended_s: float | None = None

    @property
    def missing(self):
        """In words, what did not come before the guest ended; None when all came."""
        if self.began_s is None:
            return f"the fault {self.fault.when} did not come: the guest had ended before"
        if self.fault.duration_s is not None and self.ended_s is None:
            return f"the fault {self.fault.when} did not end before the guest did"
        return None

    def row(self):
        return {
            "name": self.fault.name,
            "at_s": self.fault.at_s,
            "duration_s": self.fault.duration_s,
            "began_s": self.began_s,
            "ended_s": self.ended_s,
        }


def parse(text):
    """Raises ValueError with what is allowed."""
    allowed = "NAME@SECONDS[:DURATION] with NAME one of " + ", ".join(MEANING)
    name, _, times = text.partition("@")
    at, _, duration = times.partition(":")
    try:
        fault = Fault(name, float(at), float(duration) if duration else None)
    except ValueError:
        raise ValueError(allowed) from None
    if name not in MEANING or not all(math.isfinite(s) and s >= 0 for s in (fault.at_s, fault.duration_s or 0)):
        raise ValueError(allowed)
    if name == "server" and fault.duration_s is not None:
        raise ValueError("server@SECONDS: a killed server does not come back")
    return fault


def timers(made, lab, vm, say):
    """(seconds, callable) pairs for VM.wait. They note in made, and say, what was done and when."""
    fault = made.fault
    start, end = {
        "link": (lambda: vm.set_link(False), lambda: vm.set_link(True)),
        "tap": (lambda: lab.set_device("tap0", False), lambda: lab.set_device("tap0", True)),
        "nic": (lambda: lab.set_device("veth0", False), lambda: lab.set_device("veth0", True)),
        "server": (lab.kill_server, None),
        "stall": (vm.stall_tap, vm.unstall_tap),
        "pause": (vm.pause, vm.resume),
        "freeze": (vm.freeze, vm.thaw),
    }[fault.name]

    def begin():
        start()
        made.began_s = round(vm.since_first_line_s, 3)
        say(f"lab: fault {fault.name} at {made.began_s:.1f} s")

    def finish():
        end()
        made.ended_s = round(vm.since_first_line_s, 3)
        say(f"lab: fault {fault.name} ended at {made.ended_s:.1f} s")

    result = [(fault.at_s, begin)]
    if fault.duration_s is not None:
        result.append((fault.at_s + fault.duration_s, finish))
    else:
        notice_s = PAUSE_NOTICE_S if fault.name in STANDS_STILL else NOTICE_S
        reason = f"{MEANING[fault.name]}, and the guest did not notice within {notice_s:g} s"
        result.append((fault.at_s + notice_s, lambda: vm.give_up(EXIT_PEER, reason)))
    return result
