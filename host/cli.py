# SPDX-License-Identifier: BSD-2-Clause
"""What each command does: outside it checks and enters the sandbox, inside it runs."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace

import accel
import conform
import demo
import options
import pcap
import plot
import report
import reproduce
import sandbox
import serve
import shell
from errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PEER, EXIT_USAGE, SluiceError
from lab import Lab, LabSpec
from rows import Test, run_test
from vm import BOOT_EFI, VmSpec

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ELF, DISK = os.path.join(ROOT, "build", "sluice.elf"), os.path.join(ROOT, "build", "sluice.img")
MODEL = os.path.join(ROOT, "build", "host", "bench", "stopwake_model")
JSON_FD_VARIABLE, PCAP_FD_VARIABLE, PLOT_FD_VARIABLE = "SLUICE_JSON_FD", "SLUICE_PCAP_FD", "SLUICE_PLOT_FD"


def main(argv):
    args = options.parse(argv)
    shell.set_verbose(args.verbose)
    return inside(args) if sandbox.inside() else outside(args, argv)


def outside(args, argv):
    """Checks that need no namespace come first, so that their message is the only thing that happens."""
    if os.path.realpath(ROOT).startswith("/run/"):
        raise SluiceError(EXIT_PEER, f"{ROOT} is below /run, which a private one will hide: move the checkout")
    fds, capture = [], None
    if args.command != "lab":
        _require_image(DISK if getattr(args, "boot", None) == BOOT_EFI else ELF)
        if args.command == "conform":
            _require_image(conform.BACKEND)
        if args.command == "reproduce" and args.report == "stopwake":
            _require_image(MODEL)
        accel.choose(args.accel)
        if args.json and args.json != "-":
            fds.append(_open_output("--json", args.json, JSON_FD_VARIABLE))
        if args.command == "run" and args.pcap:
            capture = pcap.Capture(_open_output("--pcap", args.pcap, PCAP_FD_VARIABLE), args.pcap)
            os.environ[PCAP_FD_VARIABLE] = str(capture.fd)
            fds.append(capture.fd)
        if args.command == "reproduce" and args.plot:
            plot.check(args.plot)
            fds.append(_open_output("--plot", args.plot, PLOT_FD_VARIABLE))
    code = sandbox.enter([sys.executable, "-B", sys.argv[0], *argv], fds)
    return capture.finish(code) if capture else code


def _open_output(option, path, variable):
    """Opened here: inside, the path may lie below the private /run. Inside it is reached by its number."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as e:
        raise SluiceError(EXIT_USAGE, f"argument {option}: cannot write {path}: {e.strerror}") from None
    os.environ[variable] = str(fd)
    return fd


def _require_image(path):
    if os.path.exists(path):
        return
    argv = ["make", "-s", "-C", ROOT, os.path.relpath(path, ROOT)]
    print(f"sluice: {os.path.basename(path)} is not built yet: {shlex.join(argv)}", file=sys.stderr)
    try:
        done = subprocess.run(argv, stdout=sys.stderr, check=False)
    except FileNotFoundError:
        raise shell.missing("make") from None
    if done.returncode != 0 or not os.path.exists(path):
        raise SluiceError(EXIT_PEER, f"{path} is missing and `make` could not build it")


def inside(args):
    sandbox.settle()
    if args.command == "lab":
        return _run_lab(args)
    if args.command == "conform":
        if args.json and args.json != "-":
            args.json = _inherited_path(JSON_FD_VARIABLE)
        return conform.main(args)
    out = sys.stderr if args.json == "-" else sys.stdout

    def say(line=""):
        print(line, file=out, flush=True)

    if args.command == "reproduce":
        return reproduce.run(args, ELF, out, _write_json, _inherited_path(PLOT_FD_VARIABLE))

    accelerator, why = accel.choose(args.accel)
    if args.command == "serve":
        return _serve(args, accelerator, why, say)
    say(f"accelerator: {why}; link {args.link or 'not shaped'}, queue {args.queue} packets, to {args.to}")
    rows = []
    try:
        with Lab(lab_spec(args)) as lab:
            rows, code, verdict = _measure(args, accelerator, lab, say)
    except SluiceError as e:
        code, verdict = e.code, str(e)
    except KeyboardInterrupt:
        code, verdict = EXIT_INTERRUPTED, "interrupted"
    for line in report.tables(rows):
        say(line)
    say()
    say(report.last_line(code, verdict))
    if args.json:
        _write_json(args.json, report.json_object(report.host_facts(accelerator), rows, verdict, code))
    return code


def _measure(args, accelerator, lab, say):
    def on_line(line):
        say(f"  {line}")

    test = base_test(args, accelerator)
    if args.command == "demo":
        rows = demo.run(lab, replace(test, time_s=args.time), lambda title: say(f"\n{title}"), on_line)
        return rows, *demo.verdict(rows, options.bits_per_second(args.link))
    rows = run_test(lab, run_options(test, args), on_line)
    return rows, *report.run_verdict(rows)


def _run_lab(args):
    with Lab(lab_spec(args)):
        argv = args.argv or [os.environ.get("SHELL", "/bin/sh")]
        shell.show(argv)
        try:
            code = subprocess.run(argv, check=False).returncode
        except OSError as e:
            raise SluiceError(EXIT_USAGE, f"{argv[0]}: {e.strerror}") from None
    return code if code >= 0 else 128 - code


def _serve(args, accelerator, why, say):
    say(f"accelerator: {why}; link {args.link or 'not shaped'}, queue {args.queue} packets")
    with Lab(lab_spec(args)):
        code, how = serve.run(base_test(args, accelerator), args.time, say)
    say(how if code == EXIT_OK else f"FAIL ({code}): {how}")
    return code


def lab_spec(args):
    return LabSpec(link=args.link, queue_pkts=args.queue, to=args.to, mtu=args.mtu, dhcp=args.ip == "dhcp")


def base_test(args, accelerator):
    """What demo and run have in common."""
    machine = VmSpec(
        kernel=ELF,
        image=DISK,
        boot=args.boot,
        machine=args.machine,
        accel=accelerator,
        device_options=tuple(args.device),
        pcap=_inherited_path(PCAP_FD_VARIABLE),
    )
    return Test(
        sndbuf_bytes=args.sndbuf,
        ip=args.ip,
        mtu=args.mtu,
        guest=tuple(args.guest),
        vm=machine,
    )


def _inherited_path(variable):
    """A name under which another process can write to a file that was opened outside, or None."""
    fd = os.environ.get(variable)
    return f"/proc/{os.getpid()}/fd/{fd}" if fd else None


def run_options(test, args):
    return replace(
        test,
        protocol=args.test,
        time_s=args.time,
        size_bytes=args.size,
        rate=args.rate,
        parallel=args.parallel,
        reverse=args.reverse,
        bidir=args.bidir,
        window_bytes=args.window,
        faults=tuple(args.fault),
        busy=args.busy,
    )


def _write_json(where, value):
    text = json.dumps(value, indent=2) + "\n"
    if where == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    with os.fdopen(int(os.environ[JSON_FD_VARIABLE]), "w", encoding="utf-8") as f:
        f.write(text)
