# SPDX-License-Identifier: BSD-2-Clause
"""`--pcap`: a valid Ethernet capture of every frame, whatever ends the run.

    QEMU's filter-dump --pipe--> host/pcap.py (takes the net header off) --> FILE
"""

import shutil
import signal
import struct
import subprocess
import time

import pcap
import pytest
from conftest import wait_gone

MAC = "52:54:00:77:00:02"
OURS = bytes.fromhex(MAC.replace(":", ""))
FILE_HEADER = struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)
ETHERTYPES = {0x0800, 0x0806}


def records(data):
    """[(stored, length, frame)] of a capture; it must end with a whole record."""
    assert data[:24] == FILE_HEADER
    at, found = 24, []
    while at < len(data):
        _, _, stored, length = struct.unpack_from("=IIII", data, at)
        assert at + 16 + stored <= len(data), "the last record is torn"
        found.append((stored, length, data[at + 16 : at + 16 + stored]))
        at += 16 + stored
    return found


def check_frames(found):
    """Every record is an Ethernet frame of the guest's, whole, with a right IP header checksum."""
    for stored, length, frame in found:
        assert stored == length
        assert OURS in (frame[:6], frame[6:12]) or frame[:6] == b"\xff" * 6
        ethertype = struct.unpack("!H", frame[12:14])[0]
        assert ethertype in ETHERTYPES
        if ethertype == 0x0800:
            total = sum(struct.unpack("!10H", frame[14:34]))
            assert frame[14] == 0x45 and total % 0xFFFF == 0
            assert struct.unpack("!H", frame[16:18])[0] <= length - 14


def dump(frames, header_bytes, cut=None):
    parts = [FILE_HEADER]
    for frame in frames:
        body = bytes(header_bytes) + frame
        parts += [struct.pack("=IIII", 1, 2, len(body[:cut]), len(body)), body[:cut]]
    return b"".join(parts)


FRAMES = [b"\xff" * 6 + OURS + b"\x08\x06" + bytes(28), b"\0\1\2\3\4\5" + OURS + b"\x08\0" + bytes(1000),
          OURS + b"\0\1\2\3\4\5" + b"\x08\0" + bytes(46), b"\1\0\x5e\0\0\1\0\1\2\3\4\5\x08\0" + bytes(46)]  # fmt: skip


@pytest.mark.parametrize("header_bytes", [12, 10, 0])
@pytest.mark.parametrize("piece_bytes", [1, 17, 10**6])
def test_the_net_header_is_taken_off(header_bytes, piece_bytes):
    """Whatever its length, and wherever the pipe cuts: records come out whole, with the frame's own lengths."""
    data = dump(FRAMES, header_bytes)
    stripper = pcap.Stripper(OURS)
    out = [stripper.feed(data[at : at + piece_bytes]) for at in range(0, len(data), piece_bytes)]
    for piece in out:
        records(piece if piece.startswith(FILE_HEADER) else FILE_HEADER + piece)
    assert records(b"".join(out)) == [(len(f), len(f), f) for f in FRAMES]


def test_a_record_that_was_cut_keeps_its_length():
    got = records(pcap.Stripper(OURS).feed(dump(FRAMES[:1], 12, cut=30)))
    assert got == [(18, 42, FRAMES[0][:18])]


@pytest.mark.parametrize("argv", [["udp", "--rate", "20m"], ["tcp", "--link", "none"]])
def test_every_frame_is_in_the_file(sluice_as, image, argv):
    """As many frames as the driver counted, TSO frames whole; tshark agrees where it is installed."""
    sluice_as.cwd.chmod(0o777)
    done = sluice_as("run", *argv, "--time", "1", "--pcap", "run.pcap", "--json", "-")
    assert done.code == 0, done
    path = sluice_as.cwd / "run.pcap"
    found = records(path.read_bytes())
    check_frames(found)
    guest = done.rows[0]["guest"]
    counted = sum(q["packets"] for q in guest["tx"] + guest["rx"])
    assert counted <= len(found) <= counted + 8  # the last segments follow the guest's report
    if argv[0] == "tcp":
        assert max(length for _, length, _ in found) > 30000
    if shutil.which("tshark"):
        shown = subprocess.run(["tshark", "-n", "-r", path, "-o", "ip.check_checksum:TRUE", "-Y",
                                "_ws.malformed or ip.checksum.status == Bad or not (arp or icmp or udp or tcp)"],
                               capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
        assert shown.returncode == 0 and shown.stdout == "", shown


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_what_was_captured_survives_the_command(sluice, image, number):
    """The command ends in mid-test: the file is complete up to then, and the process that wrote it is gone."""
    process, mark = sluice.start("run", "udp", "--rate", "20m", "--time", "20", "--pcap", "run.pcap",
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    assert any("1.00" in line for line in iter(process.stdout.readline, ""))  # the row of the first second
    time.sleep(0.5)
    process.send_signal(number)
    process.communicate(timeout=10)
    assert not wait_gone(mark)
    found = records((sluice.cwd / "run.pcap").read_bytes())
    check_frames(found)
    assert len(found) > 20e6 / 8 / 1024  # a second of them


def test_a_full_disk_is_said(sluice, image):
    """The test runs to its end, and the exit code says that the capture is not whole."""
    done = sluice("run", "udp", "--rate", "20m", "--time", "1", "--pcap", "/dev/full")
    assert done.code == 2 and "pass" in done.out, done
    assert "/dev/full" in done.err and "No space left" in done.err, done
