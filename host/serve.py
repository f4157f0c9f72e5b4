# SPDX-License-Identifier: BSD-2-Clause
"""`sluice serve`: the guest without a test, for whoever wants to talk to it, until Ctrl-C.

    you: nsenter -t PID -n COMMAND --> br0 --> tap0 --> guest (ping, UDP and TCP echo)
"""

import math
import shlex
import time
from dataclasses import replace

import sandbox
from errors import EXIT_OK, EXIT_PEER
from lab import GUEST_IP, GUEST_MAC, PREFIX
from rows import BOOT_S, EFI_BOOT_S, mtu_options
from vm import BOOT_EFI, VM


def _spec(test):
    words = {"test": "serve", "ip": "dhcp" if test.ip == "dhcp" else f"{GUEST_IP}/{PREFIX}"}
    words |= dict(word.split("=", 1) for word in test.guest)
    return replace(
        test.vm,
        config=tuple(f"{k}={v}" for k, v in words.items()),
        mac=GUEST_MAC,
        sndbuf=test.sndbuf_bytes,
        device_options=tuple(test.vm.device_options) + mtu_options(test.mtu),
        silence_s=math.inf,  # a server without guests says nothing
    )


def run(test, time_s, say):
    """Serve for time_s seconds, or for ever (None). Returns (exit code, how it ended)."""
    began = time.monotonic()
    up = False

    def on_line(line):
        nonlocal up
        say(f"  {line}")
        if "serving at" in line:
            up = True
            say(f"from another terminal: {shlex.join(sandbox.way_in(['COMMAND']))}")
            say("Ctrl-C ends it" if time_s is None else f"for {time_s:g} s, or until Ctrl-C")

    with VM(_spec(test)) as vm:
        boot_s = EFI_BOOT_S if test.vm.boot == BOOT_EFI else BOOT_S

        def poll():
            passed_s = time.monotonic() - began
            if not up and passed_s > boot_s:
                vm.give_up(EXIT_PEER, f"the guest does not serve {boot_s:g} s after QEMU started")

        timers = () if time_s is None else [(time_s, lambda: vm.give_up(EXIT_OK, f"served for {time_s:g} s"))]
        try:
            result = vm.wait(on_line, math.inf, timers, poll)
        except KeyboardInterrupt:
            return EXIT_OK, f"served for {time.monotonic() - began:.0f} s, until Ctrl-C"
    return result.code, result.reason or "the guest ended"
