# SPDX-License-Identifier: BSD-2-Clause
"""Where results go, and what stays of an older one: nothing is lost before there is something new.

    JSON, gnuplot  --inside--> a file in memory --outside, at the end--> a new file beside FILE, renamed to FILE
    QEMU's frames  --inside--> pcap.py --> FILE itself, emptied when the first piece comes: it is valid at every moment

A device or a pipe is written to directly, and so is a file that is not ours or whose folder is closed to us.
"""

import itertools
import os
import stat
import sys
import tempfile

from errors import EXIT_PEER, EXIT_USAGE, SluiceError


def check(option, path):
    """Before anything is measured: whether path can be written to. What it holds is not touched."""
    target = os.path.realpath(path)
    try:
        if not os.path.exists(target):
            folder = os.path.dirname(target)
            os.stat(folder)
            _require_access(folder, os.W_OK | os.X_OK)
        elif os.path.isfile(target) or os.path.isdir(target):
            os.close(os.open(target, os.O_WRONLY))
        else:
            _require_access(target, os.W_OK)
    except OSError as e:
        raise SluiceError(EXIT_USAGE, f"argument {option}: cannot write {path}: {e.strerror}") from None


def _require_access(path, mode):
    if not os.access(path, mode):
        raise PermissionError(0, "Permission denied")


def refuse_same(named):
    """named: (option, path) pairs. Two results in one file would be none."""
    for (one, path), (other, path2) in itertools.combinations(named, 2):
        same = os.path.realpath(path) == os.path.realpath(path2) or (
            os.path.exists(path) and os.path.exists(path2) and os.path.samefile(path, path2)
        )
        if same and (os.path.isfile(path) or not os.path.exists(path)):
            raise SluiceError(EXIT_USAGE, f"{one} and {other} name the same file, {path}: give each its own")


class Result:
    """A file in memory for what is to be written at the end. fd: inherited by the process inside."""

    def __init__(self, option, path):
        check(option, path)
        self._path = path
        self.fd = os.memfd_create(option)

    def finish(self, code):
        """Write what there is, if there is something. Returns the exit code of the command, which was code so far."""
        with os.fdopen(self.fd, "rb") as memory:
            memory.seek(0)
            data = memory.read()
        if not data:
            return code
        try:
            _replace(os.path.realpath(self._path), data)
        except OSError as e:
            print(f"sluice: cannot write {self._path}: {e.strerror}", file=sys.stderr)
            return code or EXIT_PEER
        return code


def _replace(target, data):
    old = os.stat(target) if os.path.exists(target) else None
    foreign = old and (not stat.S_ISREG(old.st_mode) or old.st_uid != os.geteuid())
    if foreign or not os.access(os.path.dirname(target), os.W_OK):
        with open(target, "wb") as file:
            file.write(data)
        return
    fd, beside = tempfile.mkstemp(dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, stat.S_IMODE(old.st_mode) if old else 0o666 & ~_umask())
        os.rename(beside, target)
    except BaseException:
        os.unlink(beside)
        raise


def _umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def printer(file):
    """A function that prints a line to standard output or error, at once, and says why when it cannot."""

    def say(line=""):
        write(file, f"{line}\n")

    return say


def write(file, text):
    if file is None:  # it was closed by whoever started us
        return
    try:
        if text:
            file.write(text)
        file.flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        name = "standard error" if file is sys.stderr else "standard output"
        raise SluiceError(EXIT_PEER, f"cannot write {name}: {e.strerror}") from None
