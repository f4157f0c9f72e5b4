# SPDX-License-Identifier: BSD-2-Clause
"""Makes a valid Ethernet capture of what QEMU's filter-dump writes: `python3 pcap.py MAC <dump >FILE`.

    QEMU --pipe--> this process --> FILE

QEMU 7.2 puts the device's virtio_net_hdr in front of each frame, and counts it in the record's lengths, as soon as the
tap has such headers. It is taken off here. The process is outside of the sandbox and outlives all that is inside:
whatever ends QEMU or the command, SIGKILL included, what QEMU wrote arrives in the file, and the pipe's end ends it.
Every write to the file is of whole records, so that the file is valid at any moment.
"""

import os
import signal
import stat
import struct
import subprocess
import sys

import shell
from errors import EXIT_PEER, EXIT_USAGE, SluiceError
from lab import GUEST_MAC

MAGIC = 0xA1B2C3D4
FILE_HEADER, RECORD = struct.Struct("=IHHiIII"), struct.Struct("=IIII")
CHUNK_BYTES = 1 << 20
# As libpcap's own limit. QEMU's default of 64 KiB cuts the largest TSO frame behind its header.
SNAPLEN_BYTES = 262144
BROADCAST = b"\xff" * 6
# Modern devices have 12 bytes (virtio 1.2, 5.1.6), a legacy driver without mergeable buffers 10.
NET_HEADER_BYTES = (12, 10, 0)


class Stripper:
    """Takes pieces of a dump and gives whole records without net headers."""

    def __init__(self, mac):
        self._mac = mac
        self._rest = b""
        self._started = False
        self._header_bytes = NET_HEADER_BYTES[0]

    def _net_header_bytes(self, data, start):
        """How far into the record the frame begins: where one of its addresses is ours, or everybody's."""
        for length in (self._header_bytes, *NET_HEADER_BYTES):
            destination = data[start + length : start + length + 6]
            if destination in (self._mac, BROADCAST) or data[start + length + 6 : start + length + 12] == self._mac:
                self._header_bytes = length
                break
        return self._header_bytes

    def feed(self, piece):
        data = self._rest + piece
        at, out = 0, []
        if not self._started:
            if len(data) < FILE_HEADER.size:
                self._rest = data
                return b""
            if FILE_HEADER.unpack_from(data)[0] != MAGIC:
                raise ValueError("QEMU's dump does not begin as a capture does")
            self._started, at = True, FILE_HEADER.size
            out.append(data[:at])
        while len(data) - at >= RECORD.size:
            seconds, micros, stored, length = RECORD.unpack_from(data, at)
            start, end = at + RECORD.size, at + RECORD.size + stored
            if end > len(data):
                break
            strip = min(self._net_header_bytes(data, start), stored)
            out += (RECORD.pack(seconds, micros, stored - strip, length - strip), data[start + strip : end])
            at = end
        self._rest = data[at:]
        return b"".join(out)


class Capture:
    """Such a process, writing to an open file. fd: where QEMU's dump goes."""

    def __init__(self, option, path):
        self._path, self._new = path, not os.path.exists(path)
        try:
            file_fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError as e:
            raise SluiceError(EXIT_USAGE, f"argument {option}: cannot write {path}: {e.strerror}") from None
        read, self.fd = os.pipe()
        argv = [sys.executable, "-B", os.path.abspath(__file__), GUEST_MAC]
        self._process = shell.start(argv, stdin=read, stdout=file_fd, stderr=subprocess.PIPE)
        os.close(read)
        os.close(file_fd)

    def finish(self, code):
        """Wait until all is in the file. Returns the exit code of the command, which was code so far."""
        os.close(self.fd)
        words = self._process.communicate()[1].decode("utf-8", "replace").strip().splitlines()
        if self._new and os.path.isfile(self._path) and os.path.getsize(self._path) == 0:
            os.unlink(self._path)
        if self._process.returncode == 0:
            return code
        reason = words[-1] if words else f"exit status {self._process.returncode}"
        print(f"sluice: the capture in {self._path} is not complete: {reason}", file=sys.stderr)
        return code or EXIT_PEER


def _write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main(mac):
    """From standard input to standard output. A file that cannot be written on does not stop QEMU: the pipe is read on,
    and the exit code is 1 with the reason on standard error."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the end of the pipe is the end
        signal.signal(number, signal.SIG_IGN)
    stripper, failure, fresh = Stripper(bytes.fromhex(mac.replace(":", ""))), None, True
    while piece := os.read(0, CHUNK_BYTES):
        if failure:
            continue
        try:
            if fresh and stat.S_ISREG(os.fstat(1).st_mode):
                os.ftruncate(1, 0)  # an older capture lives until there is a new one
            fresh = False
            _write_all(1, stripper.feed(piece))
        except OSError as e:
            failure = e.strerror
        except ValueError as e:
            failure = str(e)
    if failure:
        print(failure, file=sys.stderr)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
