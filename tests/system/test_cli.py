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
        (["run", "udp", "--reverse", "--bidir"], ["--reverse", "--bidir"]),
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
        (["conform"], ["--strict"]),
        (["serve", "--time", "0"], ["--time", "'0'", "0.1 to 86400"]),
        (["serve", "--to", "host"], ["--to"]),
        (["run", "udp", "--no-such-option"], ["--no-such-option"]),
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


@pytest.mark.parametrize("program, package", [("iperf3", "iperf3"), ("qemu-system-x86_64", "qemu-system-x86")])
def test_missing_program_names_its_package(sluice, image, empty_dir, program, package):
    bin_dir = empty_dir / "bin"
    bin_dir.mkdir()
    for directory in ("/usr/sbin", "/usr/bin"):
        for entry in os.scandir(directory):
            if entry.name != program and not (bin_dir / entry.name).is_symlink():
                (bin_dir / entry.name).symlink_to(entry.path)
    done = sluice("run", "udp", "--time", "1", env={"PATH": str(bin_dir)}, timeout=20)
    assert done.code == 2 and f"{program} is not installed: apt install {package}" in done.out, done


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
