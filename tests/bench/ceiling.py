#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""The guest beside the native ceiling of the same host path, in one run, interleaved, medians.

    tests/bench/ceiling.py [--runs N] [--time S] [--json]

An absolute rate says little on a shared machine under emulation; the ratio to what the same tap, bridge and veth
take from a native program in the same minute says something. UDP: tapblast writes the guest's own frames to the guest's
own tap, udpsink reads them in place of iperf3. TCP: iperf3's own client in the guest's place on the bridge.
Exit code 3 when UDP falls below UDP_RATIO_MIN of the native frames a second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "host"))

import accel  # noqa: E402
import sandbox  # noqa: E402
import shell  # noqa: E402
from errors import EXIT_OK, EXIT_INVALID, EXIT_THRESHOLD, SluiceError  # noqa: E402
from lab import EXT_IP, EXT_MAC, GUEST_IP, GUEST_MAC, Lab, LabSpec  # noqa: E402
from rows import Test, peer_window_bytes, run_test  # noqa: E402
from vm import VmSpec  # noqa: E402

BENCH = os.path.join(ROOT, "build", "bench")
SIZE_BYTES = 1024
SINK_PORT = 5301
UDP_RATIO_MIN = 0.18  # of the native frames a second: what this driver and stack must reach under TCG


def native_udp(seconds):
    """Frames a second that the path takes from a native writer on the guest's tap."""
    sink = subprocess.Popen(
        shell.in_netns("ext", f"{BENCH}/udpsink", SINK_PORT, peer_window_bytes(Test())),
        stdout=subprocess.PIPE,
        text=True,
    )
    sink.stdout.readline()
    argv = [f"{BENCH}/tapblast", "tap0", f"{seconds:g}", SIZE_BYTES, "none", GUEST_MAC, EXT_MAC, GUEST_IP, EXT_IP, SINK_PORT]
    blast = json.loads(subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, text=True, check=True).stdout)
    received = json.loads(sink.communicate(timeout=30)[0])
    return {"frames_per_second": blast["frames_per_second"], "sent": blast["frames"], "received": received["datagrams"]}


def native_tcp(lab, seconds):
    """Bits a second of iperf3's own client on the bridge."""
    lab.start_server()
    argv = ["iperf3", "-c", EXT_IP, "-t", f"{seconds:g}", "-J"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]


def guest(lab, accelerator, **options):
    machine = VmSpec(kernel=os.path.join(ROOT, "build", "sluice.elf"), accel=accelerator)
    row = run_test(lab, Test(vm=machine, **options))[0]
    if not row["valid"]:
        raise SluiceError(EXIT_INVALID, f"a guest row is not valid: {row['invalid_reason']}")
    return row


def measure(args, lab, accelerator):
    runs = []
    for i in range(args.runs):
        run = {"native_udp": native_udp(args.time)}
        row = guest(lab, accelerator, protocol="udp", size_bytes=SIZE_BYTES, time_s=args.time)
        run["guest_udp_frames_per_second"] = row["sent_bits_per_second"] / 8 / SIZE_BYTES
        run["guest_udp_lost"] = row["sent"] - row["received"]
        run["native_tcp"] = native_tcp(lab, args.time)
        run["guest_tcp_out"] = guest(lab, accelerator, protocol="tcp", time_s=args.time)["bits_per_second"]
        run["guest_tcp_in"] = guest(lab, accelerator, protocol="tcp", time_s=args.time, reverse=True)["bits_per_second"]
        runs.append(run)
        print(
            f"run {i + 1}: UDP native {run['native_udp']['frames_per_second']:9,.0f}/s guest "
            f"{run['guest_udp_frames_per_second']:9,.0f}/s   TCP native {run['native_tcp'] / 1e9:5.2f} guest out "
            f"{run['guest_tcp_out'] / 1e9:5.2f} in {run['guest_tcp_in'] / 1e9:5.2f} Gbit/s",
            file=sys.stderr,
            flush=True,
        )
    return runs


def summary(runs, accelerator):
    def median(of):
        return statistics.median(of(run) for run in runs)

    native = median(lambda r: r["native_udp"]["frames_per_second"])
    udp = median(lambda r: r["guest_udp_frames_per_second"])
    return {
        "accelerator": accelerator,
        "runs": runs,
        "native_udp_frames_per_second": native,
        "guest_udp_frames_per_second": udp,
        "udp_ratio": median(lambda r: r["guest_udp_frames_per_second"] / r["native_udp"]["frames_per_second"]),
        "native_tcp_bits_per_second": median(lambda r: r["native_tcp"]),
        "guest_tcp_out_bits_per_second": median(lambda r: r["guest_tcp_out"]),
        "guest_tcp_in_bits_per_second": median(lambda r: r["guest_tcp_in"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs (default 5)")
    parser.add_argument("--time", type=float, default=3.0, help="seconds of each measurement (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if not sandbox.inside():
        subprocess.run(["make", "-s", "-C", ROOT, "build/bench/tapblast", "build/bench/udpsink", "build/sluice.elf"], check=True, stdout=sys.stderr)
        return sandbox.enter([sys.executable, "-B", os.path.abspath(__file__), *sys.argv[1:]])
    sandbox.settle()
    accelerator, _ = accel.choose("auto")
    with Lab(LabSpec(link=None)) as lab:
        result = summary(measure(args, lab, accelerator), accelerator)
    if args.json:
        print(json.dumps(result, indent=2))
    print(
        f"UDP {SIZE_BYTES}: native {result['native_udp_frames_per_second']:,.0f}, guest "
        f"{result['guest_udp_frames_per_second']:,.0f} frames/s: {result['udp_ratio']:.3f} of native (at least {UDP_RATIO_MIN})\n"
        f"TCP: native {result['native_tcp_bits_per_second'] / 1e9:.2f}, guest out "
        f"{result['guest_tcp_out_bits_per_second'] / 1e9:.2f}, in {result['guest_tcp_in_bits_per_second'] / 1e9:.2f} Gbit/s",
        file=sys.stderr if args.json else sys.stdout,
    )
    return EXIT_OK if result["udp_ratio"] >= UDP_RATIO_MIN else EXIT_THRESHOLD


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SluiceError as error:
        print(f"ceiling: {error}", file=sys.stderr)
        sys.exit(error.code)
