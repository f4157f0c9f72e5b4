#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""From starting QEMU to the guest's first frame on the tap, beside an empty image that exits at once.

    tests/bench/boot_time.py [--runs N] [--machine q35|pc] [--json]

Interleaved, medians. The difference is what the guest adds to QEMU's own start: boot, clock calibration, device
set-up, network up. Exit code 3 when it is above EXTRA_MAX_S.
"""

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "host"))

import accel  # noqa: E402
import sandbox  # noqa: E402
from errors import EXIT_INVALID, EXIT_OK, EXIT_THRESHOLD, SluiceError  # noqa: E402
from lab import EXT_IP, GUEST_IP, PREFIX, Lab, LabSpec  # noqa: E402
from vm import VmSpec, qemu_argv  # noqa: E402

ELF = os.path.join(ROOT, "build", "sluice.elf")
EMPTY = os.path.join(ROOT, "build", "bench", "empty_pvh.elf")
EXTRA_MAX_S = 0.15
GIVE_UP_S = 20.0
ETH_P_ALL = 3


def start(kernel, words, machine, accelerator):
    argv = qemu_argv(VmSpec(kernel=kernel, config=words, machine=machine, accel=accelerator))
    null = subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)


def empty_s(machine, accelerator):
    began = time.monotonic()
    start(EMPTY, (), machine, accelerator).wait(GIVE_UP_S)
    return time.monotonic() - began


def first_frame_s(machine, accelerator):
    """The first frame that comes from the guest: the address it announces, before anything is asked of it."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as tap:
        tap.bind(("tap0", ETH_P_ALL))
        began = time.monotonic()
        words = ("test=udp", f"server={EXT_IP}", f"ip={GUEST_IP}/{PREFIX}", "time=0.1")
        process = start(ELF, words, machine, accelerator)
        try:
            while time.monotonic() - began < GIVE_UP_S:
                if select.select([tap], [], [], 0.5)[0] and tap.recvfrom(2048)[1][2] != socket.PACKET_OUTGOING:
                    return time.monotonic() - began
        finally:
            process.kill()
            process.wait()
    raise SluiceError(EXIT_INVALID, f"no frame from the guest within {GIVE_UP_S:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9, help="interleaved runs (default 9)")
    parser.add_argument("--machine", default="q35", choices=("q35", "pc"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if not sandbox.inside():
        subprocess.run(["make", "-s", "-C", ROOT, EMPTY.removeprefix(ROOT + "/"), "build/sluice.elf"], check=True, stdout=sys.stderr)
        return sandbox.enter([sys.executable, "-B", os.path.abspath(__file__), *sys.argv[1:]])
    sandbox.settle()
    accelerator, _ = accel.choose("auto")
    empty, guest = [], []
    with Lab(LabSpec(link=None)):
        for _ in range(args.runs):
            empty.append(empty_s(args.machine, accelerator))
            guest.append(first_frame_s(args.machine, accelerator))
    result = {
        "machine": args.machine,
        "accelerator": accelerator,
        "empty_s": statistics.median(empty),
        "first_frame_s": statistics.median(guest),
        "extra_s": statistics.median(guest) - statistics.median(empty),
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(
            f"{args.machine}, {accelerator}: empty image {result['empty_s']:.3f} s, first frame {result['first_frame_s']:.3f} s: "
            f"{result['extra_s']:.3f} s more (at most {EXTRA_MAX_S})"
        )
    return EXIT_OK if result["extra_s"] <= EXTRA_MAX_S else EXIT_THRESHOLD


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SluiceError as error:
        print(f"boot_time: {error}", file=sys.stderr)
        sys.exit(error.code)
