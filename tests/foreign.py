#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""What may not be in the repository: foreign source, and names of places that belong to one machine.

Every source file begins with the project's licence tag, nobody else's copyright stands in one, no file is named like one
of the pinned dependencies', and no mirror is named: which one is used is the machine's business.
"""

import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TAG = "SPDX-License-Identifier: BSD-2-Clause"
SOURCES = (".c", ".h", ".S", ".py", ".sh", ".ld", ".pml")
PICTURES = (".png", ".pdf")
SEEDS = "tests/fuzz/corpus/"
FOREIGN_NAMES = re.compile(r"^(cJSON.*|pbuf|tcp_in|tcp_out|etharp|dhcp|newlib|crt0.*)\.[ch]$")
COPYRIGHT = re.compile(r"copyright\s+(\(c\)|©|\d{4})", re.I)
MIRROR = re.compile(r"https?://[\w.-]*(debian|ubuntu|apt)[\w.-]*", re.I)


def tracked():
    """Files of the checkout; without git, all files that are not built."""
    if shutil.which("git"):
        done = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.splitlines()
    found = []
    for parent, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ("build", "__pycache__") and not name.startswith(".")]
        found += [os.path.relpath(os.path.join(parent, name), ROOT) for name in names]
    return found


def faults_of(path, text):
    name = os.path.basename(path)
    source = name.endswith(SOURCES) or text.startswith("#!")
    if source and TAG not in "\n".join(text.split("\n")[:4]):
        yield f"does not begin with {TAG}"
    if FOREIGN_NAMES.match(name):
        yield "is named like a file of a dependency"
    if name != "LICENSE" and source and COPYRIGHT.search(text):
        yield "has a copyright notice; LICENSE has the only one"
    match = MIRROR.search(text)
    if match:
        yield f"names a mirror: {match.group(0)}"


def main():
    faults = 0
    for path in tracked():
        if path.endswith(PICTURES) or path.startswith(SEEDS):
            continue
        try:
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            continue
        except UnicodeDecodeError:
            print(f"{path}: is not text")
            faults += 1
            continue
        for fault in faults_of(path, text):
            print(f"{path}: {fault}")
            faults += 1
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
