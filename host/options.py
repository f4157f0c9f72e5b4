# SPDX-License-Identifier: BSD-2-Clause
"""The command line: every option, what it allows, and an error that names all three (option, value, allowed)."""

import argparse
import os
import re
import subprocess
import sys

import faults
import output
import vm
from errors import EXIT_USAGE
from rows import Test

KIB = 1024
UDP_SIZE, TCP_SIZE = (16, 65507), (1, 1048576)
SNDBUF = (4096, 1 << 30)
MTU_MAX_BYTES = 65521  # of a tap: 64 KiB less an Ethernet header
LINK_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)bit")
GUEST_KEY = re.compile(r"[a-z0-9_.]+=\S*\Z")
# Words of the guest that the lab and the accounts must know too.
NOT_GUEST_WORDS = {
    name: f"use --{name}" for name in ("time", "size", "rate", "parallel", "reverse", "bidir", "window", "mtu")
}
NOT_GUEST_WORDS |= {"test": "use `run udp`, `run tcp` or `serve`", "mac": "the lab forwards to one address alone"}
DEFAULT_SNDBUF_BYTES = 1 << 20
REPORTS = {
    "sndbuf": "field report A: UDP is dropped just before the NIC, and the tap's send buffer limit",
    "stopwake": "field report B: stop and wake thresholds, and what each wrong policy costs",
    "vxlan": "field report C: GRO on the interface of a VXLAN tunnel",
}
_suffix = {"": 1, "k": KIB, "m": KIB**2, "g": KIB**3}


class Parser(argparse.ArgumentParser):
    """The innermost one that took part is in the namespace, as `parser`: an error is told with its help."""

    def parse_known_args(self, args=None, namespace=None):
        found, unknown = super().parse_known_args(args, namespace)
        found.parser = getattr(found, "parser", self)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def print_help(self, file=None):
        output.write(file or sys.stdout, self.format_help())

    def error(self, message):
        print(f"sluice: {message} (`{self.prog} --help` lists what there is)", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def _bad(text, allowed):
    return argparse.ArgumentTypeError(f"{text!r} is not allowed: {allowed}")


def integer(low, high, what):
    def parse(text):
        if not re.fullmatch(r"\d+", text) or not low <= int(text) <= high:
            raise _bad(text, f"{what}, {low} to {high}")
        return int(text)

    return parse


def size(low, high, none=False):
    """Bytes with an optional K, M or G (1024 based); `none` gives None."""
    allowed = f"bytes, {low} to {high}, with an optional K, M or G" + (", or none" if none else "")

    def parse(text):
        if none and text == "none":
            return None
        match = re.fullmatch(r"(\d+)([kmg]?)", text.lower())
        value = int(match[1]) * _suffix[match[2]] if match else -1
        if not low <= value <= high:
            raise _bad(text, allowed)
        return value

    return parse


def seconds(low, high):
    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= high:
            raise _bad(text, f"seconds, {low} to {high}")
        return value

    return parse


def rate(text):
    """The guest's notation: bits/s with an optional k, m or g (1000 based)."""
    if not re.fullmatch(r"\d+(\.\d+)?[kmg]?(bit|bps)?", text.lower()):
        raise _bad(text, "bits/s such as 50m or 1.5g, 0 for as fast as it goes")
    return text


def link(none):
    """What tc takes; with none also that word, for None."""

    def parse(text):
        if none and text == "none":
            return None
        if not LINK_RATE.fullmatch(text.lower()) or bits_per_second(text) <= 0:
            raise _bad(text, "a rate such as 100mbit or 1gbit" + (", or none" if none else ""))
        return text.lower()

    return parse


def bits_per_second(text):
    """Of a rate for tc."""
    match = LINK_RATE.fullmatch(text.lower())
    return float(match[1]) * {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


def guest_word(text):
    if not GUEST_KEY.match(text):
        raise _bad(text, "KEY=VALUE without blanks, a key of docs/configuration.md")
    key = text.partition("=")[0]
    if key in NOT_GUEST_WORDS:
        raise _bad(text, NOT_GUEST_WORDS[key])
    return text


def fault(text):
    try:
        return faults.parse(text)
    except ValueError as e:
        raise _bad(text, str(e)) from None


def _add_lab(p, choose_server=True, unshaped=True):
    """choose_server: there is an iperf3 server, and its place is a choice. unshaped: the NIC may have no limit."""
    g = p.add_argument_group("the path")
    g.add_argument("--link", type=link(none=unshaped), default="100mbit", metavar="RATE",
                   help="rate of the NIC, e.g. 100mbit" + ", or none for no shaping" * unshaped
                   + " (default: %(default)s)")  # fmt: skip
    g.add_argument("--queue", type=integer(1, 1000000, "packets"), default=1000, metavar="PKTS",
                   help="length of the NIC's queue in packets (default: %(default)s)")  # fmt: skip
    if choose_server:
        g.add_argument("--to", choices=("ext", "host"), default="ext",
                       help="where the iperf3 server is: behind the NIC, or on the bridge (default: %(default)s)")  # fmt: skip
    else:
        p.set_defaults(to="ext")
    g.add_argument("--mtu", type=integer(576, MTU_MAX_BYTES, "bytes"), default=1500, metavar="BYTES",
                   help="IP MTU of every device on the path (default: %(default)s)")  # fmt: skip
    g.add_argument("--ip", choices=("static", "dhcp"), default="static",
                   help="how the guest gets its address (default: %(default)s)")  # fmt: skip


def _add_vm(p, unlimited=True):
    """unlimited: the tap may have no limit."""
    g = p.add_argument_group("the virtual machine")
    g.add_argument("--sndbuf", type=size(*SNDBUF, none=unlimited), default=DEFAULT_SNDBUF_BYTES,
                   metavar="BYTES" + "|none" * unlimited,
                   help="limit of the tap's send buffer (default: %(default)s)")  # fmt: skip
    g.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto",
                   help="auto: KVM when /dev/kvm is usable, else TCG (default: %(default)s)")  # fmt: skip
    g.add_argument("--machine", choices=vm.MACHINES, default="q35", help="(default: %(default)s)")
    g.add_argument("--boot", choices=(vm.BOOT_PVH, vm.BOOT_EFI), default=vm.BOOT_PVH,
                   help="pvh: QEMU loads the ELF; efi: OVMF boots the disk image (default: %(default)s)")  # fmt: skip
    g.add_argument("--device", action="append", default=[], metavar="OPTION=VALUE",
                   help="one more option for -device virtio-net-pci, e.g. tx_queue_size=512 (repeatable)")  # fmt: skip
    g.add_argument("--guest", action="append", type=guest_word, default=[], metavar="KEY=VALUE",
                   help="one more word of the guest's configuration, see docs/configuration.md (repeatable)")  # fmt: skip


def _add_output(p):
    g = p.add_argument_group("output")
    g.add_argument("--json", metavar="FILE|-",
                   help="write one JSON object (docs/results.md); with - it is all that goes to standard output")  # fmt: skip
    g.add_argument("--verbose", action="store_true", help="show every command that is run")


def _add_test(p):
    g = p.add_argument_group("the test")
    g.add_argument("--size", metavar="BYTES",
                   help="payload of a datagram (16 to 65507, default 1024) or of one write (1 to 1M, default 128K)")  # fmt: skip
    g.add_argument("--time", type=seconds(0.1, 86400), default=10.0, metavar="S", help="(default: %(default)g)")
    g.add_argument("--rate", type=rate, metavar="RATE", help="bits/s of each stream, e.g. 50m (default: no limit)")
    g.add_argument("--parallel", type=integer(1, 128, "streams"), default=1, metavar="N", help="(default: 1)")
    g.add_argument("--reverse", action="store_true", help="the server sends")
    g.add_argument("--bidir", action="store_true", help="both send at once")
    g.add_argument("--window", type=size(0, 16 << 20), metavar="BYTES", help="tcp: limit of the window, 4K to 16M")
    g.add_argument("--fault", action="append", type=fault, default=[], metavar="NAME@S[:DURATION]",
                   help="break something S seconds after the guest's first line: "
                   + "; ".join(f"{k}: {v}" for k, v in faults.MEANING.items()) + " (repeatable)")  # fmt: skip
    g.add_argument("--pcap", metavar="FILE", help="capture all frames of the guest, as the tap has them (Ethernet pcap)")
    g.add_argument("--busy", action="store_true", help="let the server be busy with another client")


def _add_reproduce(commands):
    what = "a field report in one command: what was wrong, what it costs, and that it is not so here"
    reports = commands.add_parser("reproduce", help=what, description=f"Reproduce {what}.").add_subparsers(
        dest="report", required=True, metavar="REPORT", parser_class=Parser
    )
    for name, words in REPORTS.items():
        p = reports.add_parser(name, help=words, description=words)
        p.add_argument("--quick", action="store_true", help="less of everything, in under a minute")
        p.add_argument("--plot", metavar="FILE", help="draw the figures: a name that ends in .svg or .png")
        p.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto",
                       help="auto: KVM when /dev/kvm is usable, else TCG (default: %(default)s)")  # fmt: skip
        _add_output(p)
        p.set_defaults(boot=vm.BOOT_PVH, machine="q35")
        if name == "sndbuf":
            p.add_argument("--link", type=link(none=False), default="100mbit", metavar="RATE",
                           help="rate of the NIC (default: %(default)s)")  # fmt: skip
            p.add_argument("--queue", type=integer(1, 1000000, "packets"), default=1000, metavar="PKTS",
                           help="length of the NIC's queue in packets (default: %(default)s)")  # fmt: skip
            p.add_argument("--sndbuf", type=sndbuf_or_auto, default=DEFAULT_SNDBUF_BYTES, metavar="BYTES|auto",
                           help="limit of the tap's send buffer; auto: the largest that is safe for each size "
                           "(default: %(default)s)")  # fmt: skip
            p.add_argument("--to", choices=("ext", "host"), default="ext",
                           help="host: only the case of a receiver on the host itself (default: %(default)s)")  # fmt: skip
        if name == "vxlan":
            p.add_argument("--seed-fault", action="store_true",
                           help="make this host have the fault, to see that it is found (exit code 3)")  # fmt: skip
            p.add_argument("--only", choices=("native", "guest", "guest-vtep"),
                           help="only the rows of this sender; without the native ones there is no verdict on GRO")  # fmt: skip


class _Version(argparse.Action):
    def __init__(self, option_strings, dest):
        super().__init__(option_strings, dest, nargs=0, help="show which commit this is, and exit")

    def __call__(self, own_parser, *_):
        argv = ["git", "-C", os.path.dirname(os.path.realpath(__file__)), "describe", "--always", "--dirty", "--tags"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            done = None
        known = done is not None and done.returncode == 0
        output.write(sys.stdout, f"sluice {done.stdout.strip() if known else 'of an unknown commit: no git checkout'}\n")
        own_parser.exit()


def sndbuf_or_auto(text):
    return "auto" if text == "auto" else size(*SNDBUF)(text)


def parser():
    top = Parser(prog="sluice", description="Blast UDP and TCP from a virtio-net unikernel through a real host path, "
                 "and see where each packet went.")  # fmt: skip
    top.add_argument("--version", action=_Version)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    demo = commands.add_parser("demo", help="UDP without and with the tap's limit, then TCP, and a table",
                               description="UDP without and with the tap's send buffer limit, then TCP.")  # fmt: skip
    demo.add_argument("--time", type=seconds(0.5, 3600), default=5.0, metavar="S",
                      help="seconds of each row (default: %(default)g)")  # fmt: skip
    _add_lab(demo, choose_server=False, unshaped=False)
    _add_vm(demo, unlimited=False)
    _add_output(demo)
    run = commands.add_parser("run", help="one test", description="Run one test and account for every packet.")
    run.add_argument("test", choices=("udp", "tcp"))
    _add_test(run)
    _add_lab(run)
    _add_vm(run)
    _add_output(run)
    _add_reproduce(commands)
    serve = commands.add_parser("serve", help="boot the guest as an echo server (ping, UDP and TCP port 7)",
                                description="Boot the guest as an echo server: it answers ping, and what is sent to "
                                "port 7 by UDP or TCP. Its address, and the command that enters its network, are "
                                "printed.")  # fmt: skip
    serve.add_argument("--time", type=seconds(0.1, 86400), metavar="S", help="end after S seconds (default: at Ctrl-C)")
    _add_lab(serve, choose_server=False)
    _add_vm(serve)
    serve.add_argument("--verbose", action="store_true", help="show every command that is run")
    serve.set_defaults(json=None)
    conform = commands.add_parser("conform", help="the driver under a device that checks its rings against the clauses",
                                  description="Boot the image under a virtio-net device of our own that checks what "
                                  "the driver does against the specification, with and without faults of the "
                                  "device.")  # fmt: skip
    conform.add_argument("--strict", action="store_true", required=True,
                         help="the device that checks (the only one so far)")  # fmt: skip
    conform.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto",
                         help="auto: KVM when /dev/kvm is usable, else TCG (default: %(default)s)")  # fmt: skip
    _add_output(conform)
    conform.add_argument("only", nargs="*", metavar="WORD", help="only the cases whose name contains one of these")
    lab = commands.add_parser("lab", help="build the network and run a command, or a shell, in it",
                              description="Build the network and run a command, or a shell, in it.")  # fmt: skip
    _add_lab(lab, choose_server=False)
    lab.add_argument("--verbose", action="store_true", help="show every command that is run")
    lab.add_argument("argv", nargs="*", metavar="COMMAND", help="after --, what to run (default: a shell)")
    return top


def parse(argv):
    """Parsed and checked options. An error ends the program with code 1 before anything was touched."""
    args = parser().parse_args(argv)
    if args.command == "run":
        _check_run(args)
    return args


def _check_run(args):
    error = args.parser.error
    if args.size is not None:
        low, high = UDP_SIZE if args.test == "udp" else TCP_SIZE
        try:
            args.size = size(low, high)(args.size)
        except argparse.ArgumentTypeError as e:
            error(f"argument --size: {e}")
    if args.window is not None and (args.test == "udp" or 0 < args.window < 4096):
        error(f"argument --window: {args.window} is not allowed: tcp only, 0 or 4096 to {16 << 20} bytes")
    if args.reverse and args.bidir:
        error("--reverse and --bidir do not go together")
    for f in args.fault:
        if f.at_s >= args.time + Test(guest=tuple(args.guest)).omit_s:
            error(
                f"argument --fault: {f.text!r} is not allowed: it would come at {f.at_s:g} s, when the test of --time "
                f"{args.time:g} is over; take a time before that, or a longer --time"
            )
    if any(f.name == "stall" for f in args.fault) and args.link is None:
        error("--fault stall and --link none do not go together: a stall needs frames queued behind the tap")
