# SPDX-License-Identifier: BSD-2-Clause
"""The image on the machines that QEMU has, both ways in, and how it ends when it goes wrong.

    qemu -kernel ELF            PVH       -> kernel_main -> selftest -> exit code
    OVMF -> disk -> BOOTX64.EFI EFI       ->

No network device: what is tested lies below it.
"""

import fcntl
import os
import re
import shutil
import struct
import subprocess
import time

import pytest

QEMU = "qemu-system-x86_64"
OVMF_CODE = ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_CODE.fd")
ESP_OFFSET = "@@1M"  # host/mkimage
DEBUG_EXIT = ("-device", "isa-debug-exit,iobase=0x501,iosize=4")
PVH_TIMEOUT_S, EFI_TIMEOUT_S = 30, 90
F_SETPIPE_SZ = 1031

EXIT_PASS, EXIT_USAGE, EXIT_INVARIANT = 0, 1, 5
PT_LOAD, PT_NOTE, PF_X, PF_W = 1, 4, 1, 2
XEN_ELFNOTE_PHYS32_ENTRY = 18

pytestmark = pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"{QEMU} is not installed")


def qemu(*words, machine="q35", cpu="max", memory="128M", debug_exit=True):
    return [
        QEMU, "-machine", machine, "-accel", "tcg", "-cpu", cpu, "-m", memory, "-smp", "1,maxcpus=2",
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
        *(DEBUG_EXIT if debug_exit else ()), *map(str, words),
    ]  # fmt: skip


def run(argv, timeout_s=PVH_TIMEOUT_S):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False)
    return done.returncode, done.stdout.replace("\r", ""), done.stderr


def selftest(image, name, **machine):
    """Guest's exit code and console."""
    code, out, err = run(qemu("-kernel", image, "-append", f"test=selftest selftest={name}", **machine))
    assert code & 1, f"QEMU ended with {code}: {err}{out}"
    return code >> 1, out


@pytest.mark.parametrize("cpu", ["max", "qemu64"])
@pytest.mark.parametrize("machine", ["q35", "pc", "microvm", "microvm,pcie=on"])
def test_pvh_boots(image, machine, cpu):
    """Boots, prints floating point, knows its clock, leaves with code 0."""
    code, out = selftest(image, "printf", machine=machine, cpu=cpu)
    assert code == EXIT_PASS
    assert re.search(r"^sluice: pvh boot, TCG\w+, \d+ MiB, tsc \d+ kHz by (acpi pm timer|pit)", out, re.M), out
    assert "3.142" in out


def test_no_timer_but_the_virtual_apic(image):
    """A machine without PM timer, PIT, PIC and RTC, as cloud hypervisors have."""
    code, out = selftest(image, "printf", machine="microvm,pcie=on,pit=off,pic=off,rtc=off")
    assert code == EXIT_PASS and "by virtual apic" in out, out


def test_clock_sources_agree(image):
    """All calibrations see the same counter: within 0.5 % of each other."""
    machines = ("q35", "microvm", "microvm,pcie=on,pit=off,pic=off,rtc=off")
    found = [int(re.search(r"tsc (\d+) kHz", selftest(image, "printf", machine=m)[1]).group(1)) for m in machines]
    assert max(found) - min(found) <= max(found) * 0.005, found


@pytest.mark.parametrize("cpu", ["max", "max,pdpe1gb=off"])
@pytest.mark.parametrize("memory", ["48M", "3G", "6G"])
def test_memory_sizes(image, memory, cpu):
    """From hardly more than the image to memory above 4 GiB, with and without the largest pages."""
    code, out = selftest(image, "heap" if memory != "48M" else "printf", memory=memory, cpu=cpu)
    assert code == EXIT_PASS
    megabytes = int(re.search(r", (\d+) MiB,", out).group(1))
    asked = int(memory[:-1]) * (1024 if memory[-1] == "G" else 1)
    assert asked - 8 <= megabytes <= asked, out
    if memory != "48M":
        total, largest = map(int, re.search(r"^heap +(\d+) bytes in blocks up to (\d+), intact", out, re.M).groups())
        assert total == sum(range(4096, largest + 1, 4096)) and total >= 64 << 20, out


@pytest.mark.parametrize(
    "name, reason, place",
    [
        ("panic", r"PANIC: ", "test_panic"),
        ("pagefault", r"PANIC: page fault: (read of|write to) an absent page at 0x0{13}\w{3} \(null page\)", "sluice_main"),
        ("stack", r"PANIC: page fault: write to an absent page at 0x\w+ \(stack overflow: guard page\)", "recurse"),
        ("wx", r"PANIC: page fault: write to a protected page at 0x\w+ \(code\)", "sluice_main"),
    ],
)
def test_panic_says_why_and_where(image, name, reason, place):
    code, out = selftest(image, name)
    assert code == EXIT_INVARIANT
    assert re.search(reason, out), out
    assert re.search(rf"^  #\d+ +0x\w+ {place}\+0x\w+$", out, re.M), out
    assert re.search(r"^  #\d+ +0x\w+ kernel_main\+", out, re.M) or name == "stack", out


def test_old_processor_is_told(image):
    code, out, _ = run(qemu("-kernel", image, cpu="qemu64,-nx"))
    assert code == EXIT_USAGE << 1 | 1
    assert "no 64-bit mode or no execute-disable" in out


@pytest.mark.parametrize("machine", ["q35", "pc", "microvm"])
def test_powers_off(image, machine):
    """Without debug exit the guest ends by ACPI."""
    argv = qemu("-kernel", image, "-append", "test=selftest selftest=printf", machine=machine, debug_exit=False)
    code, out, _ = run(argv, 20)
    assert code == 0 and "3.142" in out


def test_nobody_reads_the_console(image):
    """A console that takes nothing costs the guest a bounded time, once."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    started = time.monotonic()
    try:
        argv = qemu("-kernel", image, "-append", "test=selftest selftest=stack")
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=writer, timeout=PVH_TIMEOUT_S, check=False)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode >> 1 == EXIT_INVARIANT
    assert time.monotonic() - started < 10


def ovmf():
    for path in OVMF_CODE:
        if os.path.exists(path):
            return path
    pytest.skip("OVMF is not installed")
    return None


def efi_argv(disk, *words, machine="q35"):
    return qemu(
        "-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={ovmf()}",
        "-drive", f"if=none,id=disk0,format=raw,file={disk}", "-device", "ide-hd,drive=disk0,bootindex=0",
        *words, machine=machine, memory="256M",
    )  # fmt: skip


@pytest.fixture
def efi_disk(disk_image, tmp_path):
    """A function of the configuration file's text that gives a disk with it."""

    def make(text):
        disk, config = tmp_path / "disk.img", tmp_path / "sluice.cfg"
        shutil.copyfile(disk_image, disk)
        config.write_text(text)
        subprocess.run(["mcopy", "-o", "-i", f"{disk}{ESP_OFFSET}", config, "::/sluice.cfg"], check=True)
        return disk

    return make


@pytest.mark.parametrize("machine", ["q35", "pc"])
def test_efi_boots_with_its_file(efi_disk, machine):
    """OVMF finds the loader on the disk; comments and line breaks of the file are no words."""
    disk = efi_disk("# what to do\r\ntest=selftest # selftest=panic\n\nselftest=printf\n")
    code, out, _ = run(efi_argv(disk, machine=machine), EFI_TIMEOUT_S)
    assert code == EXIT_PASS << 1 | 1, out
    assert "sluice: efi boot" in out and "3.142" in out


def test_efi_panic_is_the_same(efi_disk):
    code, out, _ = run(efi_argv(efi_disk("test=selftest selftest=wx\n")), EFI_TIMEOUT_S)
    assert code == EXIT_INVARIANT << 1 | 1, out
    assert "write to a protected page" in out and "kernel_main" in out


def test_efi_load_options(efi_disk):
    """Started from the firmware's shell: the words behind the loader's name come after the file's."""
    disk = efi_disk("test=selftest selftest=panic\n")
    for command in (
        ["mcopy", "-n", "-i", f"{disk}{ESP_OFFSET}", "::/EFI/BOOT/BOOTX64.EFI", disk.parent / "loader.efi"],
        ["mdel", "-i", f"{disk}{ESP_OFFSET}", "::/EFI/BOOT/BOOTX64.EFI"],
        ["mcopy", "-i", f"{disk}{ESP_OFFSET}", disk.parent / "loader.efi", "::/sluice.efi"],
    ):
        subprocess.run(command, check=True)
    script = disk.parent / "startup.nsh"
    script.write_text("FS0:\\sluice.efi selftest=printf\r\n")
    subprocess.run(["mcopy", "-i", f"{disk}{ESP_OFFSET}", script, "::/"], check=True)
    code, out, _ = run(efi_argv(disk), EFI_TIMEOUT_S)
    assert code == EXIT_PASS << 1 | 1, out
    assert "sluice: efi boot" in out and "3.142" in out


def test_efi_configuration_too_long(efi_disk):
    """Refused by the loader, which names the file; nothing is cut off in silence."""
    disk = efi_disk("size=1 " * 1000)
    with subprocess.Popen(
        efi_argv(disk), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            deadline, seen = time.monotonic() + EFI_TIMEOUT_S, ""
            for line in process.stdout:
                seen += line
                if "sluice:" in line or time.monotonic() > deadline:
                    break
        finally:
            process.kill()
    assert re.search(r"sluice: .*sluice\.cfg: Buffer Too Small", seen), seen


def segments(elf):
    data = elf.read_bytes()
    offset, size, count = (struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54))
    for i in range(count):
        kind, flags, start, _, physical, file_bytes = struct.unpack_from("<IIQQQQ", data, offset + i * size)
        yield kind, flags, physical, data[start : start + file_bytes]


def test_no_segment_is_writable_and_executable(image):
    loads = [flags for kind, flags, _, _ in segments(image) if kind == PT_LOAD]
    assert len(loads) >= 3
    assert not [flags for flags in loads if flags & PF_X and flags & PF_W]


def test_the_pvh_note_is_alone(image):
    """Loaders look at the first note only, and some take a merged property note for it."""
    notes = [data for kind, _, _, data in segments(image) if kind == PT_NOTE]
    assert len(notes) == 1 and len(notes[0]) == 20
    assert struct.unpack_from("<III4s", notes[0]) == (4, 4, XEN_ELFNOTE_PHYS32_ENTRY, b"Xen\0")
