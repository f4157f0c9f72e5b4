# SPDX-License-Identifier: BSD-2-Clause
"""The shipped image under a device that checks its rings and frames against the clauses: `host/sluice conform --strict`.

    QEMU: guest driver <-> virtio-net-pci        registers and configuration space are QEMU's
               |                |
               |                | vhost-user: memory, rings, eventfds
               +---- rings --- build/strict-backend --- a peer that echoes, or tap0 of the lab

Each case is one boot. The cases without a fault must end with 0 violations and every datagram echoed; those with one
must end with 0 violations, the guest alive, and traffic flowing again after the acts, and where the act is nothing
that a driver may care for, with every datagram echoed too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass

import accel
import output
import report
import sandbox
import shell
from errors import EXIT_DRIVER, EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK, EXIT_PEER, EXIT_USAGE, SluiceError
from lab import EXT_IP, GUEST_IP, GUEST_MAC, PREFIX, Lab, LabSpec
from vm import MEMORY, REPORT_START, VmSpec, qemu_argv

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ELF, BACKEND = os.path.join(ROOT, "build", "sluice.elf"), os.path.join(ROOT, "build", "strict-backend")
SOCKET, REPORT = "/run/sluice-strict.sock", "/run/sluice-strict.json"
LISTEN_S, CASE_S, END_S = 10.0, 45.0, 5.0
POLLS = "without KVM, QEMU offers no vectors with vhost-user, so the driver polls (see docs/results.md)"
FAULT_ECHO_SHARE = 0.5  # of the datagrams, that must come back although the device misbehaves


@dataclass(frozen=True)
class Case:
    """backend: words for strict-backend. guest: key=value words. fault: the device misbehaves, so that datagrams may
    be lost; harmless: but none may. iperf: with a real network behind it instead of the echo."""

    name: str
    backend: tuple = ()
    guest: tuple = ()
    fault: bool = False
    harmless: bool = False
    iperf: str = ""
    vectors: bool = False  # says nothing about a driver that polls
    device: tuple = ()
    echo: str = "3000,1000,48"  # datagrams, bytes, at most so many without an echo


def _set(*words):
    return tuple(part for word in words for part in ("--set", word))


CASES = (
    Case("as QEMU does"),
    Case("completion reversed", ("--order", "reversed", *_set("per_step=7"))),
    Case("completion at random, batches of 5", ("--order", "random", *_set("batch=5"))),
    Case("batches of one", _set("batch=1")),
    Case("device that polls", _set("polls=1")),
    Case("slow device", _set("slow=3", "per_step=4")),
    Case("no EVENT_IDX", ("--without", "event_idx")),
    Case("no INDIRECT_DESC", ("--without", "indirect")),
    Case("no MRG_RXBUF", ("--without", "mrg_rxbuf", "--without", "guest_tso4")),
    Case("no checksum offload", ("--without", "csum", "--without", "host_tso4")),
    Case("nothing but VERSION_1", tuple(w for f in ("csum", "guest_csum", "host_tso4", "guest_tso4", "mrg_rxbuf",
                                                    "indirect", "event_idx") for w in ("--without", f))),
    Case("large rings", device=("rx_queue_size=1024", "tx_queue_size=1024")),
    Case("small ring", guest=("tx.size=16",), echo="1000,1000,2"),
    Case("UDP into iperf3", iperf="udp"),
    Case("TCP into iperf3", iperf="tcp"),
    Case("used id out of range", _set("used_id_range=1500"), fault=True),
    Case("used id not in flight", _set("used_id_idle=1500"), fault=True),
    Case("used twice", _set("used_twice=1500"), fault=True),
    Case("used index jumps", _set("idx_jump=1500"), fault=True),
    Case("lengths too short and too long", _set("rx_len_short=40", "rx_len_long=55"), fault=True),
    Case("num_buffers 0", _set("num_buffers=50", "num_buffers_value=0"), fault=True),
    Case("num_buffers 65535", _set("num_buffers=50", "num_buffers_value=65535"), fault=True),
    # 5.1.6.4.1: flags mean nothing unless GUEST_CSUM was taken; the frame is a plain one.
    Case("header flags not negotiated", ("--without", "guest_csum", "--without", "guest_tso4",
                                         *_set("rx_header=3", "rx_header_flags=255",
                                               "rx_header_csum_start=65535")), fault=True, harmless=True),
    # A segment that cannot be one costs that packet and no other.
    Case("segments not negotiated", ("--without", "guest_tso4", *_set("rx_header=50", "rx_header_gso_type=1",
                                                                      "rx_header_gso_size=500")), fault=True),
    # 2.7.10.1: the word of the other form of suppression says nothing.
    Case("flags scribbled beside EVENT_IDX", _set("scribble_unused_event=1"), fault=True, harmless=True),
    Case("event scribbled without EVENT_IDX", ("--without", "event_idx", *_set("scribble_unused_event=1")),
         fault=True, harmless=True),
    Case("kicks lost", _set("lose_kicks=20"), fault=True),
    Case("interrupts lost, spurious, doubled",
         _set("lose_interrupts=20", "spurious_interrupts=5", "double_interrupts=7"), fault=True, vectors=True),
)


def _argv(case, accelerator, words):
    """The one QEMU command line, with the network taken from the backend instead of a tap."""
    device = list(case.device)
    if accelerator == "tcg":
        # QEMU 7.2 sets up KVM's interrupt routes for vhost-user without KVM too, and ends by a signal when the
        # guest switches MSI-X on. Without vectors the driver polls; rings and headers are judged all the same.
        device.append("vectors=0")
    spec = VmSpec(config=tuple(words), kernel=ELF, accel=accelerator, mac=GUEST_MAC, device_options=tuple(device))
    argv = qemu_argv(spec)
    argv[argv.index("-machine") + 1] += ",memory-backend=m0"
    at = argv.index("-netdev")
    argv[at + 1] = "vhost-user,id=n0,chardev=strict0"
    argv[at:at] = ["-object", f"memory-backend-memfd,id=m0,size={MEMORY},share=on",
                   "-chardev", f"socket,id=strict0,path={SOCKET}"]  # fmt: skip
    return argv


def _wait_for_socket(backend):
    end = time.monotonic() + LISTEN_S
    while time.monotonic() < end:
        if os.path.exists(SOCKET):
            return
        if backend.poll() is not None:
            break
        time.sleep(0.02)
    raise SluiceError(EXIT_PEER, f"{BACKEND} does not listen on {SOCKET}")


def _stop(process):
    if process.poll() is None:
        process.terminate()
    try:
        return process.communicate(timeout=END_S)[0] or ""
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0] or ""


def _backend_argv(case):
    argv = [BACKEND, "--socket", SOCKET, "--report", REPORT, "--mac", GUEST_MAC, *case.backend]
    if case.iperf:
        return [*argv, "--tap", "tap0", "--seconds", str(int(CASE_S))]
    return [*argv, "--guest-ip", GUEST_IP, "--ip", EXT_IP, "--echo", case.echo, "--seconds", str(int(CASE_S))]


def _guest_words(case):
    words = [f"ip={GUEST_IP}/{PREFIX}"]
    if case.iperf:
        words += [f"test={case.iperf}", f"server={EXT_IP}", "time=2"]
    else:
        words += ["test=serve"]
    return [*words, *case.guest]


def _boot(case, accelerator):
    """One boot; the backend's report, the guest's report (None: it printed none), whether it was alive at the end."""
    for path in (SOCKET, REPORT):
        if os.path.exists(path):
            os.unlink(path)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True,
             "errors": "replace"}  # fmt: skip
    backend = shell.start(_backend_argv(case), **pipes)
    guest = None
    try:
        _wait_for_socket(backend)
        guest = shell.start(_argv(case, accelerator, _guest_words(case)), **pipes)
        if case.iperf:
            output = guest.communicate(timeout=CASE_S)[0]
            alive = True
        else:
            backend.wait(timeout=CASE_S + END_S)
            alive = guest.poll() is None
            output = _stop(guest)
    except subprocess.TimeoutExpired:
        alive, output = False, _stop(guest) if guest else ""
    finally:
        if guest and guest.poll() is None:
            guest.kill()
            guest.wait()
        said = _stop(backend)
    try:
        with open(REPORT, encoding="utf-8") as text:
            return json.load(text), _guest_report(output), alive, output, said
    except (OSError, ValueError):
        raise SluiceError(EXIT_PEER, f"no report from {BACKEND}: {said.strip() or 'no word'}") from None


def _guest_report(output):
    for line in reversed(output.splitlines()):
        if line.startswith(REPORT_START):
            try:
                return json.loads(line)
            except ValueError:
                return None
    return None


def _judge(case, found, guest, alive, output):
    """None when the case ended as it should, else what is wrong."""
    if found["violations_total"]:
        first = found["violations"][0]
        return f"{first['clause']} violated {first['count']} times: {first['first']}"
    if case.iperf:
        if guest is None:
            return "the guest printed no report: " + (output.strip().splitlines() or ["no word"])[-1]
        code = guest["sluice"]["exit_code"]
        return None if code == 0 else f"the guest ended with code {code}: {guest['sluice'].get('reason')}"
    if not alive:
        return "the guest ended: " + (output.strip().splitlines() or ["no word"])[-1]
    peer = found["peer"]
    if peer["wrong"]:
        return f"{peer['wrong']} datagrams came back changed"
    if case.fault:
        if found["faults_done"] == 0:
            return "the device had no chance to misbehave"
        if case.harmless and peer["echoed"] != peer["sent"]:
            return f"{peer['sent'] - peer['echoed']} datagrams were lost for nothing"
        return None if peer["echoed"] >= FAULT_ECHO_SHARE * peer["sent"] else f"only {peer['echoed']} came back"
    if found["ended"] != "finished":
        return f"{found['ended']}: {peer['echoed']} of {peer['sent']} datagrams came back"
    return None if peer["lost"] == 0 else f"{peer['lost']} datagrams did not come back"


def _row(case, found, guest, output, wrong):
    row = {"case": case.name, "ok": wrong is None, "reason": wrong, "violations": found["violations"],
           "clauses_checked": len(found["checked"]), "fault": case.fault}  # fmt: skip
    for key in ("tx_frames", "rx_packets", "tx_gso", "tx_csum", "interrupts", "faults_done", "starts"):
        row[key] = found[key]
    row |= {key: found["peer"][key] for key in ("sent", "echoed", "lost")}
    row["clauses"] = sorted(found["checked"])
    row["stalls"] = [line for line in output.splitlines() if "found by the safety timer" in line]
    if guest:
        row["guest"] = guest["sluice"]
    return row


def _run_case(case, accelerator):
    if not case.iperf:
        found, guest, alive, output, _ = _boot(case, accelerator)
    else:
        with Lab(LabSpec(link=None)) as lab:
            lab.start_server()
            found, guest, alive, output, _ = _boot(case, accelerator)
    return _row(case, found, guest, output, _judge(case, found, guest, alive, output))


def check_words(words):
    """Raises SluiceError for a word that no case has in its name."""
    for word in words:
        if not any(word in case.name for case in CASES):
            names = ", ".join(repr(case.name) for case in CASES)
            raise SluiceError(EXIT_USAGE, f"argument WORD: {word!r} is none of: {names}")


def case_line(row, seconds):
    """One case in a line, or two when it is not as it should be."""
    words = f"{row['tx_frames']} frames sent, {row['rx_packets']} received"
    if row["fault"]:
        resets = row["starts"] // 2 - 1
        words += (f", the device misbehaved {_times(row['faults_done'])} and cost {row['lost']} datagrams, the driver "
                  f"reset it {_times(resets)}")  # fmt: skip
    words += f", {row['clauses_checked']} clauses checked, {len(row['violations'])} violated ({seconds:.1f} s)"
    return f"{'ok  ' if row['ok'] else 'FAIL'} {row['case']}: {words}" + ("" if row["ok"] else f"\n     {row['reason']}")


def _times(count):
    return "once" if count == 1 else f"{count} times"


def verdict(rows, skipped):
    """(exit code, words). skipped: names of the cases that say nothing here."""
    if not rows:
        return EXIT_INVALID, f"undecided: none of the cases asked for can run here, {len(skipped)} skipped"
    clauses = {clause for row in rows for clause in row["clauses"]}
    violated = {violation["clause"] for row in rows for violation in row["violations"]}
    bad = [row["case"] for row in rows if not row["ok"]]
    words = f"{len(rows) - len(bad)} of {len(rows)} cases, {len(skipped)} skipped, {len(clauses)} clauses checked, "
    words += f"{len(violated)} violated"
    if violated:
        return EXIT_DRIVER, f"{words}: {', '.join(sorted(violated))}"
    return EXIT_INVALID if bad else EXIT_OK, words + (f"; not as it should: {', '.join(bad)}" if bad else "")


def run(accelerator, say, only, rows):
    """All cases, or those whose name contains one of the words. Appends each to rows as soon as it is there; returns
    (exit code, verdict)."""
    skipped = []
    for case in CASES:
        if only and not any(word in case.name for word in only):
            continue
        if case.vectors and accelerator == "tcg":
            skipped.append(case.name)
            say(f"skip {case.name}: without vectors there are no interrupts")
            continue
        started = time.monotonic()
        rows.append(_run_case(case, accelerator))
        say(case_line(rows[-1], time.monotonic() - started))
    return verdict(rows, skipped)


def build():
    """Makes what a run needs, outside the sandbox."""
    for path in (ELF, BACKEND):
        if not os.path.exists(path):
            subprocess.run(["make", "-s", "-C", ROOT, os.path.relpath(path, ROOT)], check=False)
        if not os.path.exists(path):
            raise SluiceError(EXIT_PEER, f"{path} is missing and `make` could not build it")


def main(args):
    """Inside the sandbox. args: accel, json (None, "-", or a path), only. Returns the exit code."""
    accelerator, why = accel.choose(args.accel)
    out = sys.stderr if args.json == "-" else sys.stdout

    say = output.printer(out)
    say(f"accelerator: {why}" + (f"; {POLLS}" if accelerator == "tcg" else ""))
    rows = []
    try:
        code, words = run(accelerator, say, tuple(args.only), rows)
    except KeyboardInterrupt:
        code, words = EXIT_INTERRUPTED, "interrupted"
    if code != EXIT_INTERRUPTED:
        say(report.last_line(code, words))
    if args.json and (rows or args.json == "-" or code != EXIT_INTERRUPTED):
        whole = report.json_object(report.host_facts(accelerator), rows, words, code)
        text = json.dumps(whole, indent=2)
        if args.json == "-":
            output.write(sys.stdout, text + "\n")
        else:
            with open(args.json, "w", encoding="utf-8") as file:
                file.write(text + "\n")
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return code


def _parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto")
    parser.add_argument("--json", metavar="FILE", help="`-` for standard output")
    parser.add_argument("only", nargs="*", help="only cases whose name contains one of these words")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    try:
        options = _parse(sys.argv[1:])
        check_words(options.only)
        if not sandbox.inside():
            build()
            sys.exit(sandbox.enter([sys.executable, "-B", os.path.abspath(__file__), *sys.argv[1:]], []))
        sandbox.settle()
        sys.exit(main(options))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except SluiceError as error:
        print(f"conform: {re.sub(chr(10), ' ', str(error))}", file=sys.stderr)
        sys.exit(error.code)
