# SPDX-License-Identifier: BSD-2-Clause
"""Runs commands, and shows each one (--verbose) as a person would type it."""

import os
import shlex
import shutil
import subprocess
import sys

from errors import EXIT_PEER, SluiceError

COMMAND_TIMEOUT_S = 20

_verbose = False
_package_of = {
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "iperf3": "iperf3",
    "qemu-system-x86_64": "qemu-system-x86",
    "mcopy": "mtools",
    "ethtool": "ethtool",
    "make": "make",
}


def set_verbose(on):
    global _verbose
    _verbose = on


def show(argv):
    """Print a command as a person would type it, when asked for."""
    if _verbose:
        print("+ " + shlex.join(argv), file=sys.stderr, flush=True)


def missing(program):
    package = _package_of.get(program, program)
    return SluiceError(EXIT_PEER, f"{program} is not installed: apt install {package}")


def environment():
    """PATH of an ordinary user often lacks sbin, where Debian keeps ip, tc and bridge."""
    env = dict(os.environ)
    env["PATH"] = env.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"
    env["LC_ALL"] = "C"
    return env


def run(*argv, check=True):
    """Run one command and return its standard output. A failure names the command and its last words."""
    argv = [str(a) for a in argv]
    show(argv)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            env=environment(),
            check=False,
        )
    except FileNotFoundError:
        raise missing(argv[0]) from None
    except subprocess.TimeoutExpired:
        raise SluiceError(EXIT_PEER, f"no answer in {COMMAND_TIMEOUT_S} s: {shlex.join(argv)}") from None
    if check and done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
        raise SluiceError(EXIT_PEER, f"{shlex.join(argv)}: {words[0]}")
    return done.stdout


def start(argv, **popen):
    """Start a long-running command in its own session, so that a Ctrl-C goes to this process alone."""
    argv = [str(a) for a in argv]
    show(argv)
    try:
        return subprocess.Popen(argv, env=environment(), start_new_session=True, **popen)
    except FileNotFoundError:
        raise missing(argv[0]) from None


def in_netns(name, *argv):
    """The command line that runs argv in a named network namespace (None: the one we are in).

    nsenter and not `ip netns exec`: that one also mounts a new /sys, which a user namespace may be refused.
    """
    argv = [str(a) for a in argv]
    if shutil.which(argv[0], path=environment()["PATH"]) is None:
        raise missing(argv[0])
    return argv if name is None else ["nsenter", f"--net=/run/netns/{name}", *argv]


def write_proc(path, value, missing_ok=True):
    """Write a /proc/sys file of the namespace we are in. An absent file is fine: the kernel lacks the feature."""
    show(["sh", "-c", f"echo {value} > {path}"])
    try:
        with open(path, "w", encoding="ascii") as f:
            f.write(f"{value}\n")
    except FileNotFoundError:
        if not missing_ok:
            raise
    except OSError as e:
        raise SluiceError(EXIT_PEER, f"cannot write {value} to {path}: {e.strerror}") from None
