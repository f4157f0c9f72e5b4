# SPDX-License-Identifier: BSD-2-Clause
"""Re-executes a command in fresh network, mount, PID (and, when not root, user) namespaces.

    sluice (outer)  --PDEATHSIG-->  unshare  --kill-child-->  sluice (inner, PID 1)  -->  QEMU, iperf3, ...
         |                                                        |
         +------------------ life pipe (write end) ---------------+ (read end)

Nothing is left behind however it ends. The inner process is PID 1 of its namespace, so the kernel kills all
others with it; the namespaces and the tmpfs over /run, the only place written to, vanish with the last process.
Death travels down twice: by parent-death signals, which act at once, and by the life pipe, which also covers
the moments in which a process exists but has not yet asked for its signal. The pipe first carries the number that
unshare has outside, by which others can enter its namespaces.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading

import shell
from errors import EXIT_PEER, SluiceError

LIFE_FD_VARIABLE, OUTER_PID_VARIABLE = "SLUICE_LIFE_FD", "SLUICE_OUTER_PID"
OWNER_VARIABLE = "SLUICE_OWNER"
PR_SET_PDEATHSIG = 1
INTERRUPT_GRACE_S = 3  # to take the lab down and write down what was finished
TUN = "/dev/net/tun"
KERNEL_LIMITS = ("rmem_max", "wmem_max")
_libc = ctypes.CDLL(None, use_errno=True)


def inside():
    return LIFE_FD_VARIABLE in os.environ


def _unshare_argv():
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _check_tun():
    try:
        os.close(os.open(TUN, os.O_RDWR))
    except FileNotFoundError:
        raise SluiceError(
            EXIT_PEER, f"{TUN} is missing: modprobe tun (in a container: --device {TUN})"
        ) from None
    except OSError as e:
        mode = os.stat(TUN).st_mode & 0o7777
        mend = f"chmod 0666 {TUN}, or run as root" if os.geteuid() else f"modprobe tun, or allow the device {TUN}"
        raise SluiceError(
            EXIT_PEER, f"{TUN} is not open to this user (mode {mode:04o}): {e.strerror}; {mend}"
        ) from None


def _check_namespaces():
    argv = [*_unshare_argv(), "true"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=shell.environment(), check=False
        )
    except FileNotFoundError:
        raise shell.missing("unshare") from None
    if done.returncode == 0:
        return
    words = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[0]
    raise SluiceError(EXIT_PEER, f"no fresh namespaces here ({words}); {_namespace_mend()}")


def _namespace_mend():
    def read(path):
        try:
            with open(path, encoding="ascii") as f:
                return f.read().strip()
        except OSError:
            return None

    if os.geteuid() != 0:
        for path, bad, good in (
            ("/proc/sys/user/max_user_namespaces", "0", "15000"),
            ("/proc/sys/kernel/unprivileged_userns_clone", "0", "1"),
            ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ):
            if read(path) == bad:
                return f"as root: echo {good} > {path}"
        return "run as root, and neither in a chroot nor in an unprivileged container"
    return "leave the chroot, or give the container --privileged"


def _die_with(parent):
    def child_setup():
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # until settle(): an interpreter that starts has no words for it
        if os.getppid() != parent:  # it died between the fork and the line above
            os._exit(EXIT_PEER)

    return child_setup


def enter(argv, pass_fds=()):
    """Run argv inside and return its exit code. To be called outside only."""
    _check_tun()
    _check_namespaces()
    life_read, life_write = os.pipe()
    env = shell.environment()
    env[LIFE_FD_VARIABLE] = str(life_read)
    env[OWNER_VARIABLE] = str(os.geteuid())
    for name in KERNEL_LIMITS:  # older kernels show these only in the first network namespace
        env[f"SLUICE_{name.upper()}"] = str(kernel_limit(name))
    command = [*_unshare_argv(), *argv]
    shell.show(command)
    child = subprocess.Popen(
        command, env=env, pass_fds=(life_read, *pass_fds), preexec_fn=_die_with(os.getpid())
    )
    os.close(life_read)
    os.write(life_write, f"{child.pid}\n".encode())
    # unshare itself blocks SIGINT and SIGTERM, so they are turned here into an end of everything inside.
    ended_by = []

    def end(number, _frame):
        ended_by.append(number)
        child.kill()

    def end_soon(_number, _frame):
        signal.alarm(INTERRUPT_GRACE_S)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
        signal.signal(number, end)
    # A Ctrl-C reaches the inner process by itself (same foreground group), which says what it was doing.
    signal.signal(signal.SIGINT, end_soon)
    code = child.wait()
    os.close(life_write)
    if ended_by:
        if ended_by[0] == signal.SIGALRM:
            print("sluice: interrupted", file=sys.stderr)
        return 128 + (signal.SIGINT if ended_by[0] == signal.SIGALRM else ended_by[0])
    return code if code >= 0 else 128 - code


def settle():
    """First thing inside: watch the life pipe, take the private /run. Runs once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    life = int(os.environ.pop(LIFE_FD_VARIABLE))  # a sluice started from in here is an outer one again
    os.set_inheritable(life, False)
    outer_pid = os.read(life, 32).decode().strip()
    if not outer_pid:
        os._exit(EXIT_PEER)
    os.environ[OUTER_PID_VARIABLE] = outer_pid

    def watch():
        select.select([life], [], [])
        os._exit(EXIT_PEER)

    threading.Thread(target=watch, daemon=True).start()
    shell.run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    os.mkdir("/run/sluice")
    shell.run("ip", "link", "set", "lo", "up")


def way_in(netns_command):
    """The command line that runs another one in the network namespace we are in, for a terminal outside."""
    user = [] if os.environ[OWNER_VARIABLE] == "0" else ["-U", "--preserve-credentials"]
    return ["nsenter", "-t", os.environ[OUTER_PID_VARIABLE], *user, "-n", *netns_command]


def kernel_limit(name):
    """net.core.NAME in bytes, as the first network namespace has it."""
    given = os.environ.get(f"SLUICE_{name.upper()}")
    if given:
        return int(given)
    try:
        with open(f"/proc/sys/net/core/{name}", encoding="ascii") as f:
            return int(f.read())
    except OSError:
        return 212992


def main():
    """`python3 sandbox.py COMMAND...`: run any command inside (the tests' way in)."""
    if not inside():
        sys.exit(enter([sys.executable, os.path.abspath(__file__), *sys.argv[1:]]))
    settle()
    sys.exit(subprocess.run(sys.argv[1:], check=False).returncode)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    try:
        main()
    except SluiceError as error:
        print(f"sluice: {error}", file=sys.stderr)
        sys.exit(error.code)
