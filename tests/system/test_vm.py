# SPDX-License-Identifier: BSD-2-Clause
"""A guest that says nothing, hangs or dies is ended in time, with the cause and the exit code. QEMU is a script here."""

import json

import pytest

WAIT = """
    import time
    from lab import Lab, LabSpec
    import rows
    from rows import Test, run_test
    from vm import VmSpec
    rows.BOOT_S, rows.AFTER_S = 1.0, 1.0
    began = time.monotonic()
    with Lab(LabSpec()) as lab:
        row = run_test(lab, Test(time_s=0.5, vm=VmSpec(kernel="none", silence_s=1.0)))[0]
    print(json.dumps({"row": row, "seconds": time.monotonic() - began}))
"""
REPORT = json.dumps({"start": {}, "end": {"sum_sent": {"packets": 0}, "sum_received": {"packets": 0}}, "sluice": {"exit_code": 0}})


@pytest.mark.parametrize(
    "body, code, words",
    [
        ("exec sleep 30", 2, "said nothing"),
        ("echo up; exec sleep 30", 5, "hung"),
        ("echo 'could not open disk' >&2; exit 1", 2, "could not open disk"),
        ("echo up; kill -SEGV $$", 2, "SIGSEGV"),
        ("echo 'Assertion failed' >&2; kill -ABRT $$", 2, "SIGABRT): Assertion failed"),
        ("echo 'size: 7 is not allowed: 16..65507'; exit 3", 1, "size: 7 is not allowed"),
        ("echo 'panic: page fault'; exit 11", 5, "panic: page fault"),
        ("echo up; exit 1", 2, "before the guest reported"),
        (f"echo '{REPORT[:-9]}'; exit 1", 2, "before the guest reported"),
        (f"echo '{REPORT}'; exit 1", 5, "ledger does not balance"),
        ("while :; do echo tick; sleep 0.2; done", 5, "did not end within"),
    ],
)
def test_guest_that_ends_badly(sluice, fake_qemu, body, code, words):
    got = sluice.python(WAIT, env=fake_qemu(body))
    row = got["row"]
    assert not row["valid"] and words in row["invalid_reason"], row
    assert row["exit_code"] == code, row


def test_command_line(sluice):
    """The one command line: what each of its parts is there for is in host/vm.py."""
    from vm import VmSpec, qemu_argv

    argv = qemu_argv(VmSpec(config=("test=udp", "time=1"), kernel="k.elf", sndbuf=4096))
    text = " ".join(argv)
    assert "-smp 1,maxcpus=2" in text and "-nodefaults" in text and "romfile=" in text
    assert "sndbuf=4096" in text and "-append test=udp time=1" in text
    assert "sndbuf=0" in " ".join(qemu_argv(VmSpec(kernel="k.elf")))
