# SPDX-License-Identifier: BSD-2-Clause
"""The command line: an error names the option, the value and what is allowed, before anything is touched."""

import json
import os

import pytest

USAGE = 1


@pytest.mark.parametrize(
    "argv, words",
    [
        (["run", "udp", "--size", "abc"], ["--size", "'abc'", "16 to 65507"]),
        (["run", "udp", "--size", "15"], ["--size", "'15'", "16 to 65507"]),
        (["run", "udp", "--size", "65508"], ["--size", "'65508'", "16 to 65507"]),
        (["run", "tcp", "--size", "2M"], ["--size", "'2M'", "1 to 1048576"]),
        (["run", "udp", "--time", "-1"], ["--time", "'-1'", "0.1 to 86400"]),
        (["run", "udp", "--time", "nan"], ["--time", "'nan'", "0.1 to 86400"]),
        (["run", "udp", "--rate", "fast"], ["--rate", "'fast'", "50m"]),
        (["run", "udp", "--link", "0mbit"], ["--link", "'0mbit'", "100mbit"]),
        (["run", "udp", "--parallel", "129"], ["--parallel", "'129'", "1 to 128"]),
        (["run", "udp", "--sndbuf", "1"], ["--sndbuf", "'1'", "or none"]),
        (["run", "udp", "--window", "64K"], ["--window", "tcp only"]),
        (["run", "udp", "--reverse", "--bidir"], ["--reverse", "--bidir", "`sluice run --help`"]),
        (["run", "udp", "--fault", "fire@1"], ["--fault", "'fire@1'", "link, tap, nic, server, stall"]),
        (["run", "udp", "--fault", "stall@1:1", "--link", "none"], ["stall", "--link none"]),
        (["run", "udp", "--guest", "size"], ["--guest", "'size'", "KEY=VALUE"]),
        (["run", "udp", "--guest", "parallel=3"], ["--guest", "'parallel=3'", "use --parallel"]),
        (["run", "udp", "--guest", "test=tcp"], ["--guest", "'test=tcp'", "run tcp"]),
        (["run", "udp", "--mtu", "65535"], ["--mtu", "'65535'", "576 to 65521"]),
        (["run", "sctp"], ["sctp", "udp"]),
        (["demo", "--link", "none"], ["--link", "'none'", "1gbit"]),
        (["demo", "--sndbuf", "none"], ["--sndbuf", "'none'", "4096"]),
        (["demo", "--to", "host"], ["--to"]),
        (["reproduce", "sndbuf", "--link", "none"], ["--link", "'none'", "1gbit"]),
        (["run", "udp", "--machine", "microvm"], ["--machine", "microvm", "q35"]),
        (["run", "udp", "--json", "/nowhere/at/all"], ["--json", "/nowhere/at/all"]),
        (["fly"], ["fly", "demo"]),
        (["conform"], ["--strict", "`sluice conform --help`"]),
        (["conform", "--strict", "nosuchcase"], ["'nosuchcase' is none of: 'as QEMU does', 'completion reversed'"]),
        (["serve", "--time", "0"], ["--time", "'0'", "0.1 to 86400"]),
        (["serve", "--to", "host"], ["--to"]),
        (["run", "udp", "--no-such-option"], ["--no-such-option", "`sluice run --help`"]),
        (["reproduce", "vxlan", "--no-such-option"], ["--no-such-option", "`sluice reproduce vxlan --help`"]),
    ],
)
def test_bad_option(sluice, image, argv, words):
    done = sluice(*argv, timeout=10)
    assert done.code == USAGE, done
    assert done.seconds < 2, done
    assert len(done.err.strip().splitlines()) == 1, done
    for word in words:
        assert word in done.err, done
    assert done.out == ""


def test_help_lists_every_option(sluice):
    done = sluice("run", "--help", timeout=10)
    assert done.code == 0
    for option in ("size", "time", "rate", "parallel", "reverse", "bidir", "window", "link", "queue", "sndbuf", "to",
                   "ip", "mtu", "accel", "machine", "boot", "guest", "fault", "pcap", "json", "verbose"):  # fmt: skip
        assert f"--{option}" in done.out


@pytest.mark.parametrize("command", [[], ["demo"], ["reproduce"], ["reproduce", "vxlan"], ["serve"], ["conform"], ["lab"]])
def test_every_command_has_help(sluice, command):
    done = sluice(*command, "--help", timeout=10)
    assert done.code == 0 and done.out.startswith("usage: ") and not done.err, done


def test_conform_from_the_command(sluice, image):
    """`conform --strict WORD`: one boot under the device that checks, as JSON in a file."""
    done = sluice("conform", "--strict", "as QEMU", "--json", "conform.json", timeout=60)
    assert done.code == 0 and "0 violated" in done.out, done
    rows = json.loads((sluice.cwd / "conform.json").read_text())["rows"]
    assert [row["case"] for row in rows] == ["as QEMU does"] and rows[0]["ok"]


def test_lab_command_runs_inside(sluice_as):
    """`sluice lab -- CMD` runs in the topology, gives its exit code, and the machine's own links are not there."""
    done = sluice_as("lab", "--", "sh", "-c", "ip -br link; exit 7", timeout=20)
    assert done.code == 7, done
    assert {line.split()[0].split("@")[0] for line in done.out.splitlines()} == {"lo", "tap0", "veth0", "br0"}


def test_version(sluice):
    done = sluice("--version", timeout=10)
    assert done.code == 0 and done.out.startswith("sluice ") and len(done.out.splitlines()) == 1 and not done.err, done


def test_an_unshaped_link_has_no_queue(sluice, image, fake_qemu):
    done = sluice("run", "udp", "--link", "none", env=fake_qemu("exit 1"), timeout=30)
    assert "; link not shaped, to ext" in done.out.splitlines()[0] and "queue" not in done.out, done


def test_a_reason_is_said_once(sluice, image, fake_qemu):
    done = sluice("run", "udp", env=fake_qemu("echo 'no such machine' >&2; exit 1"), timeout=30)
    assert done.code == 2 and done.out.count("no such machine") == 1, done


@pytest.mark.parametrize("option, said", [("foo=1", "Property 'virtio-net-pci.foo' not found"),
                                          ("tx_queue_size=500", "Invalid tx_queue_size (= 500), must be")])  # fmt: skip
def test_a_device_option_that_qemu_refuses(sluice, image, option, said):
    """It is the user's, not the machine's: code 1, once, without QEMU's command line."""
    done = sluice("run", "udp", "--device", option, timeout=30)
    assert done.code == USAGE, done
    assert f"FAIL (1): --device {option}: QEMU says: {said}" in done.out.splitlines()[-1], done
    assert done.out.count(said) == 1 and "netdev=n0" not in done.out, done


@pytest.mark.parametrize(
    "wish, flags, found",
    [("kvm", "fpu sse", None), ("auto", "fpu sse", "tcg"), ("kvm", "fpu vmx", "kvm"), ("auto", "svm", "kvm")],
)
def test_kvm_without_the_cpus_help(monkeypatch, tmp_path, wish, flags, found):
    """Where such a KVM emulates instructions, QEMU ends with an abort: it is not started."""
    import accel
    from errors import SluiceError

    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr(accel, "CPUINFO", str(tmp_path / "cpuinfo"))
    monkeypatch.setattr(accel, "kvm_refusal", lambda: None)
    if found:
        assert accel.choose(wish)[0] == found
        return
    with pytest.raises(SluiceError, match="'kvm' cannot work here: .* neither vmx nor svm; use --accel tcg") as caught:
        accel.choose(wish)
    assert caught.value.code == USAGE


@pytest.mark.parametrize("command", [["run", "udp", "--time", "1"], ["reproduce", "vxlan", "--quick", "--only", "guest"]])
@pytest.mark.parametrize("program, package", [("iperf3", "iperf3"), ("qemu-system-x86_64", "qemu-system-x86")])
def test_missing_program_names_its_package(sluice, image, empty_dir, command, program, package):
    bin_dir = empty_dir / "bin"
    bin_dir.mkdir()
    for directory in ("/usr/sbin", "/usr/bin"):
        for entry in os.scandir(directory):
            if entry.name != program and not (bin_dir / entry.name).is_symlink():
                (bin_dir / entry.name).symlink_to(entry.path)
    done = sluice(*command, env={"PATH": str(bin_dir)}, timeout=20)
    assert done.code == 2 and f"{program} is not installed: apt install {package}" in done.out, done
    assert "undecided" not in done.out, done


def test_closed_tun_names_the_mend(sluice, empty_dir):
    """A tun device that is closed to the user: one line, with what to do."""
    import os
    import subprocess

    if os.geteuid() != 0:
        pytest.skip("needs root to close the device in a private /dev/net")
    script = (
        "mount -t tmpfs tmpfs /dev/net && mknod -m 0600 /dev/net/tun c 10 200 && "
        "exec setpriv --reuid=65534 --regid=65534 --clear-groups -- \"$0\" lab -- true"
    )
    from conftest import SLUICE

    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, str(SLUICE)],
                          capture_output=True, text=True, timeout=20, cwd=empty_dir, check=False)  # fmt: skip
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, done
    assert "/dev/net/tun" in done.stderr and "chmod 0666" in done.stderr


def test_refused_namespaces_name_the_mend(sluice, empty_dir):
    """In a chroot namespaces are refused to an ordinary user: one line, with what to do."""
    import os
    import subprocess

    from conftest import SLUICE

    if os.geteuid() != 0:
        pytest.skip("needs root for a chroot")
    script = (
        "mount -t tmpfs tmpfs /mnt && mkdir /mnt/r && mount --rbind / /mnt/r && mount -t tmpfs tmpfs /mnt/r/dev/net && "
        "mknod -m 0666 /mnt/r/dev/net/tun c 10 200 && "
        "exec chroot --userspec=65534:65534 /mnt/r \"$0\" lab -- true"
    )
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, str(SLUICE)],
                          capture_output=True, text=True, timeout=20, cwd=empty_dir, check=False)  # fmt: skip
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, done
    assert "namespaces" in done.stderr and "chroot" in done.stderr
