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
import output
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
    results = []
    if args.command == "conform":
        conform.check_words(args.only)
    if args.command != "lab":
        _require_image(DISK if getattr(args, "boot", None) == BOOT_EFI else ELF)
        if args.command == "conform":
            _require_image(conform.BACKEND)
        if args.command == "reproduce" and args.report == "stopwake":
            _require_image(MODEL)
        accel.choose(args.accel)
        results = _open_results(args)
    code = EXIT_PEER
    try:
        code = sandbox.enter([sys.executable, "-B", sys.argv[0], *argv], [result.fd for result in results])
    finally:
        for result in results:
            code = result.finish(code)
    return code


def _open_results(args):
    """Opened here: inside, a path may lie below the private /run. Inside they are reached by their numbers."""
    kinds = (
        ("--json", JSON_FD_VARIABLE, output.Result),
        ("--plot", PLOT_FD_VARIABLE, output.Result),
        ("--pcap", PCAP_FD_VARIABLE, pcap.Capture),
    )
    named = [(option, getattr(args, option[2:], None), *rest) for option, *rest in kinds]
    named = [result for result in named if result[1] and result[1] != "-"]
    if getattr(args, "plot", None):
        plot.check(args.plot)
    output.refuse_same([result[:2] for result in named])
    for option, path, _, _ in named:
        output.check(option, path)
    opened = []
    for option, path, variable, kind in named:
        opened.append(kind(option, path))
        os.environ[variable] = str(opened[-1].fd)
    return opened


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

    say = output.printer(out)
    if args.command == "reproduce":
        return reproduce.run(args, ELF, say, _write_json, _inherited_path(PLOT_FD_VARIABLE))

    accelerator, why = accel.choose(args.accel)
    if args.command == "serve":
        return _serve(args, accelerator, why, say)
    say(f"accelerator: {why}; {_link_words(args)}, to {args.to}")
    rows = []
    try:
        with Lab(lab_spec(args)) as lab:
            code, verdict = _measure(args, accelerator, lab, say, rows)
    except SluiceError as e:
        code, verdict = e.code, str(e)
    except KeyboardInterrupt:
        code, verdict = EXIT_INTERRUPTED, "interrupted"
    for line in report.tables(rows, verdict):
        say(line)
    if args.json:
        _write_json(args.json, report.json_object(report.host_facts(accelerator), rows, verdict, code))
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    say()
    say(report.last_line(code, verdict))
    return code


def _measure(args, accelerator, lab, say, rows):
    """Appends each row as soon as it is there; returns (exit code, verdict)."""
    def on_line(line):
        say(f"  {line}")

    test = base_test(args, accelerator)
    if args.command == "demo":
        for row in demo.run(lab, replace(test, time_s=args.time), lambda title: say(f"\n{title}"), on_line):
            rows.append(row)
        return demo.verdict(rows, options.bits_per_second(args.link))
    rows += run_test(lab, run_options(test, args), on_line)
    return report.run_verdict(rows)


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
    say(f"accelerator: {why}; {_link_words(args)}")
    with Lab(lab_spec(args)):
        code, how = serve.run(base_test(args, accelerator), args.time, say)
    say(how if code == EXIT_OK else report.last_line(code, how))
    return code


def _link_words(args):
    return f"link {args.link}, queue {args.queue} packets" if args.link else "link not shaped"


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
    """To a file only when there is something new: an older result outlives a Ctrl-C before the first row."""
    text = json.dumps(value, indent=2) + "\n"
    if where == "-":
        output.write(sys.stdout, text)
    elif value["rows"] or not value["interrupted"]:
        os.write(int(os.environ[JSON_FD_VARIABLE]), text.encode())
