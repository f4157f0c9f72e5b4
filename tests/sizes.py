#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Lengths of our C files and functions: a report of the longest, and an error beyond the limits.

"About 500 lines" and "about 60 lines" are the aims; the limits leave a tenth for the reader's sake.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("boot", "drivers", "net", "apps")
FILE_MAX_LINES = 550
FUNCTION_MAX_LINES = 66
NAME = re.compile(r"(\w+)\s*\(")


def functions(lines):
    """(name, length) of each function body: from a brace in the first column to the next closing one there."""
    start = None
    for number, line in enumerate(lines):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start is not None:
            head = start
            while head > 0 and lines[head - 1].strip() and not lines[head - 1].startswith(("}", "#", "/", " *")):
                head -= 1
            match = NAME.search(" ".join(lines[head:start]))
            yield (match.group(1) if match else "?"), number - start + 1
            start = None


def main():
    files, bodies = [], []
    for folder in FOLDERS:
        for parent, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith((".c", ".h")):
                    path = os.path.join(parent, name)
                    with open(path, encoding="utf-8") as text:
                        lines = text.read().split("\n")
                    shown = os.path.relpath(path, ROOT)
                    files.append((len(lines) - 1, shown))
                    bodies += [(length, f"{shown}: {function}") for function, length in functions(lines)]
    files.sort(reverse=True)
    bodies.sort(reverse=True)
    for kind, found, limit in (("file", files, FILE_MAX_LINES), ("function", bodies, FUNCTION_MAX_LINES)):
        for length, what in found[:3]:
            print(f"longest {kind}: {length} lines, {what}")
        for length, what in found:
            if length > limit:
                print(f"too long: {what} has {length} lines, at most {limit}")
    sys.exit(1 if files and (files[0][0] > FILE_MAX_LINES or bodies[0][0] > FUNCTION_MAX_LINES) else 0)


if __name__ == "__main__":
    main()
