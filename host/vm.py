# SPDX-License-Identifier: BSD-2-Clause
"""The one QEMU command line, and the guest's life from its first line to its exit code."""

import ctypes
import fcntl
import json
import os
import re
import selectors
import signal
import struct
import subprocess
import time
from dataclasses import dataclass

import disk
import shell
from errors import EXIT_DRIVER, EXIT_PEER, EXIT_USAGE, SluiceError
from pcap import SNAPLEN_BYTES
from qmp import Qmp

QEMU = "qemu-system-x86_64"
MEMORY = "256M"
# QEMU before 8.1 drops the guest's memory barriers under TCG when the machine can have only one CPU.
SMP = "1,maxcpus=2"
DEBUG_EXIT_PORT = 0x501
QMP_PATH = "/run/sluice/qmp.sock"
OVMF_CODE = ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_CODE.fd")
MACHINES = ("q35", "pc")  # a microvm has its network device on virtio-mmio
BOOT_PVH, BOOT_EFI = "pvh", "efi"
SILENCE_S = 8.0  # the longest time without a line before a guest is given up
POLL_S = 0.25
EFI_BOOT_S = 60.0  # firmware alone takes 10 s under TCG on a busy machine
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438
TUNSETSNDBUF = 0x400454D4
REPORT_START = '{"start":'
_TERMINAL_CONTROL = re.compile(r"\x1b\[[0-9;=?]*[A-Za-z]")  # firmware clears a screen that is not there
_DEVICE_REFUSED = re.compile(r"-device virtio-net-pci,\S*: (.+)")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class VmSpec:
    """What the command line depends on. config: the guest's key=value words."""

    config: tuple = ()
    kernel: str = ""  # the ELF image, for boot pvh
    image: str = ""  # the disk image, for boot efi
    boot: str = BOOT_PVH
    machine: str = "q35"
    accel: str = "tcg"
    mac: str = "52:54:00:77:00:02"
    tap: str = "tap0"
    sndbuf: int | None = None  # bytes; None: no limit
    netdev: str | None = None  # what stands after -netdev in place of the tap; its id is n0
    device_options: tuple = ()  # further words for -device virtio-net-pci
    before: tuple = ()  # words of the command line before the network device: what it sits on or behind
    more: tuple = ()  # further words of the command line
    pcap: str | None = None  # where QEMU's own filter-dump goes
    silence_s: float = SILENCE_S


def qemu_argv(spec):
    """The command line. Everything that the guest does not need is off: option ROMs and default devices cost the
    most of the time from QEMU's start to the first frame."""
    machine = {
        "q35": "q35,usb=off,vmport=off,smm=off,hpet=off,sata=off,smbus=off",
        "pc": "pc,usb=off,vmport=off,smm=off,hpet=off",
    }[spec.machine]
    if spec.boot == BOOT_EFI:
        machine = {"q35": "q35", "pc": "pc"}[spec.machine]
    argv = [QEMU, "-name", "sluice", "-machine", f"{machine},accel={spec.accel}"]
    argv += ["-cpu", "host" if spec.accel == "kvm" else "max", "-smp", SMP, "-m", MEMORY]
    argv += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    argv += ["-chardev", "stdio,id=serial0,signal=off", "-serial", "chardev:serial0"]
    argv += ["-qmp", f"unix:{QMP_PATH},server=on,wait=off"]
    argv += ["-device", f"isa-debug-exit,iobase={DEBUG_EXIT_PORT:#x},iosize=4"]
    tap = f"tap,id=n0,ifname={spec.tap},script=no,downscript=no,sndbuf={spec.sndbuf or 0}"
    argv += ["-netdev", spec.netdev or tap]
    argv += spec.before
    device = ["virtio-net-pci", "netdev=n0", "id=net0", f"mac={spec.mac}", "disable-legacy=on", "romfile="]
    argv += ["-device", ",".join([*device, *spec.device_options])]
    if spec.pcap:
        argv += ["-object", f"filter-dump,id=dump0,netdev=n0,maxlen={SNAPLEN_BYTES},file={spec.pcap}"]
    if spec.boot == BOOT_EFI:
        code = next((path for path in OVMF_CODE if os.path.exists(path)), None)
        if code is None:
            raise SluiceError(EXIT_PEER, "no OVMF firmware here: apt install ovmf")
        argv += ["-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={code}"]
        argv += ["-drive", f"if=none,id=disk0,format=raw,file={disk.private_copy(spec.image, spec.config)}"]
        argv += ["-device", "ide-hd,drive=disk0,bootindex=0"]
    else:
        argv += ["-kernel", spec.kernel, "-append", " ".join(spec.config)]
    return [*argv, *spec.more]


@dataclass
class VmResult:
    """How a guest ended: its exit code, its report (None: it printed none) and its last lines."""

    code: int
    reason: str
    report: dict | None
    lines: list
    first_line_s: float | None


class VM:
    """`with VM(spec) as vm: result = vm.wait(on_line=print)`. The guest is gone when the block is left."""

    def __init__(self, spec):
        self.spec = spec
        self.lines = []
        self.report = None
        self._partial = b""
        self._stderr = b""
        self._qmp = None
        self._stop_reason = None
        self._tap_fd = None

    def __enter__(self):
        self._started = time.monotonic()
        self._first_line_s = None
        self._process = shell.start(
            qemu_argv(self.spec), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()
        if self._qmp:
            self._qmp.close()
        if self._tap_fd is not None:
            os.close(self._tap_fd)
            self._tap_fd = None
        if os.path.exists(QMP_PATH):
            os.unlink(QMP_PATH)

    @property
    def pid(self):
        return self._process.pid

    @property
    def since_first_line_s(self):
        """None before the guest's first line."""
        return None if self._first_line_s is None else time.monotonic() - self._started - self._first_line_s

    @property
    def qemu_said(self):
        """QEMU's own words so far, as wait() collected them."""
        return self._stderr.decode("utf-8", "replace")

    @property
    def qmp(self):
        if self._qmp is None:
            self._qmp = Qmp(QMP_PATH)
        return self._qmp

    def set_link(self, up):
        """The cable between the guest's device and the tap, as the guest sees it."""
        self.qmp.command("set_link", name="net0", up=up)

    def pause(self):
        self.qmp.command("stop")

    def resume(self):
        self.qmp.command("cont")

    def freeze(self):
        """QEMU gets no processor time, while the guest's clock goes on."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def stall_tap(self):
        """The tap takes no frame any more: its send buffer limit is put below what is queued already.

        Works while frames wait in a queue behind the tap, so with a shaped link. The file is QEMU's own.
        """
        if self._tap_fd is None:
            self._tap_fd = _borrow_fd(self.pid, "/dev/net/tun")
        fcntl.ioctl(self._tap_fd, TUNSETSNDBUF, struct.pack("i", 1))

    def unstall_tap(self):
        limit = self.spec.sndbuf or 0x7FFFFFFF
        fcntl.ioctl(self._tap_fd, TUNSETSNDBUF, struct.pack("i", limit))
        self.qmp.command("query-status")  # nothing else tells QEMU to look at the tap again

    def give_up(self, code, reason):
        """End the guest from the host; wait() then returns this code and reason."""
        if self._stop_reason is None:
            self._stop_reason = (code, reason)
            self._process.kill()

    def wait(self, on_line=None, limit_s=60.0, timers=(), poll=None):
        """Read the console until the guest ends. timers: (seconds after the first line, callable) pairs;
        poll: called several times a second.

        A guest that says nothing for spec.silence_s, or lives longer than limit_s, is ended, with the reason.
        """
        pending = sorted(timers, key=lambda t: t[0])
        end = self._started + limit_s
        first_s = EFI_BOOT_S if self.spec.boot == BOOT_EFI else self.spec.silence_s
        quiet_until = self._started + first_s
        with selectors.DefaultSelector() as selector:
            for stream in (self._process.stdout, self._process.stderr):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                now = time.monotonic()
                since_first = self.since_first_line_s
                while pending and since_first is not None and since_first >= pending[0][0]:
                    pending.pop(0)[1]()
                if poll:
                    poll()
                next_at = [end, quiet_until, now + POLL_S]
                if pending and since_first is not None:
                    next_at.append(now + pending[0][0] - since_first)
                for key, _ in selector.select(max(0.0, min(next_at) - now)):
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is self._process.stderr:
                        self._stderr += data
                    elif self._take(data, on_line):
                        quiet_until = time.monotonic() + self.spec.silence_s
                self._check_time(end, quiet_until, limit_s)
        self._take(b"\n", on_line)
        return self._result(self._process.wait())

    def _check_time(self, end, quiet_until, limit_s):
        now = time.monotonic()
        if now < min(end, quiet_until) or self.report is not None and now < end:
            return
        if now >= end:
            self.give_up(EXIT_DRIVER, f"the guest did not end within {limit_s:.0f} s")
        elif self._first_line_s is None:
            self.give_up(EXIT_PEER, f"the guest said nothing for {now - self._started:.0f} s after QEMU started")
        else:
            self.give_up(EXIT_DRIVER, f"the guest hung: no word for {self.spec.silence_s:.0f} s")

    def _take(self, data, on_line):
        """Split what came into lines; returns whether there was one."""
        *whole, self._partial = (self._partial + data).replace(b"\r", b"").split(b"\n")
        seen = False
        for raw in whole:
            line = _TERMINAL_CONTROL.sub("", raw.decode("utf-8", "replace"))
            if not line.strip():
                continue
            seen = True
            if self._first_line_s is None:
                self._first_line_s = time.monotonic() - self._started
            if line.startswith(REPORT_START):
                try:
                    self.report = json.loads(line)
                    continue
                except ValueError:
                    pass  # a torn report is shown as it came
            self.lines.append(line)
            if on_line:
                on_line(line)
        return seen

    def _result(self, status):
        own = (self.report or {}).get("sluice", {})
        words = self.qemu_said.strip().splitlines()
        if self._stop_reason:
            code, reason = self._stop_reason
        elif status < 0:
            code, reason = EXIT_PEER, f"QEMU was killed by signal {-status} ({signal.Signals(-status).name})"
            reason += f": {words[-1]}" if words else ""
        elif self.report is not None:
            # A power-off (status 0) carries no code; the report does.
            code = (status - 1) // 2 if status % 2 else own.get("exit_code", EXIT_PEER)
            reason = own.get("reason") or self.report.get("error") or ""
        elif status > 1 and status % 2:
            code = (status - 1) // 2
            reason = self.lines[-1] if self.lines else f"the guest ended with code {code} and no word"
        elif refused := self._refused_option(words):
            code, reason = EXIT_USAGE, refused
        else:
            what = words[-1] if words else (self.lines[-1] if self.lines else "no message")
            code, reason = EXIT_PEER, f"QEMU ended with status {status} before the guest reported: {what}"
        return VmResult(code, reason, self.report, self.lines, self._first_line_s)

    def _refused_option(self, words):
        """What QEMU says of the options that the user gave to the device, without its own command line; or None."""
        given = self.spec.device_options
        match = _DEVICE_REFUSED.search(words[-1]) if words and given and self._first_line_s is None else None
        return f"--device {' --device '.join(given)}: QEMU says: {match[1]}" if match else None


def _borrow_fd(pid, path):
    """A copy of a file that a child process has open."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}") != path:
                continue
        except OSError:
            continue
        pidfd = _libc.syscall(SYS_PIDFD_OPEN, pid, 0)
        fd = _libc.syscall(SYS_PIDFD_GETFD, pidfd, int(name), 0)
        error = ctypes.get_errno()
        if pidfd >= 0:
            os.close(pidfd)
        if fd >= 0:
            return fd
        raise SluiceError(EXIT_PEER, f"cannot reach {path} of process {pid}: {os.strerror(error)}")
    raise SluiceError(EXIT_PEER, f"process {pid} has no {path} open")
