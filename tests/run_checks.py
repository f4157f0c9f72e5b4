#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs groups of checks, shows their progress and counts them together.

    tests/run_checks.py [lint] [unit] [system] [system-long] [model] [mutants] [fuzz] [fuzz-short] [interleavings] [long]

lint    every lint-* target of the Makefile is one check
unit    every program in build/host/unit; each cmocka test is one check
system  pytest on tests/system, without the tests marked `long`
system-long  those alone
model, mutants, fuzz, fuzz-short, interleavings, long  the Makefile's target is one check, with its output shown

The last line is `N passed, N failed, N skipped`; the exit code is 1 when anything failed or nothing passed.
"""

import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
UNIT_SECONDS = 300  # a unit test program that takes longer hangs
SYSTEM_SECONDS, SYSTEM_LONG_SECONDS = 3600, 4 * 3600

TARGETS = ("model", "mutants", "fuzz", "fuzz-short", "interleavings", "long")
LINT_STEPS = ("clang", "format", "tidy", "cppcheck", "shell", "layers", "size", "foreign", "clauses", "mutants",
              "field-cases")


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.names_failed = []

    def add(self, passed=0, failed=0, skipped=0):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped

    def fail(self, name):
        self.failed += 1
        self.names_failed.append(name)

    def line(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def show(verdict, name, started, detail=""):
    print(f"{verdict:4} {name} ({time.monotonic() - started:.1f} s){detail}", flush=True)


def run(command, timeout):
    """Output and exit code; 124 and a note when the time is up."""
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=timeout, check=False, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        return output.decode(errors="replace") + f"\nno end after {timeout} s", 124


def lint(tally):
    for step in LINT_STEPS:
        started = time.monotonic()
        output, code = run(["make", "-s", "--no-print-directory", f"lint-{step}"], 900)
        if code == 0 and output.startswith("skip: "):
            tally.add(skipped=1)
            show("skip", f"lint {step}", started, " " + output.split("\n", 1)[0])
        elif code == 0:
            tally.add(passed=1)
            show("ok", f"lint {step}", started, "" if not output.strip() else " " + output.strip().split("\n")[-1])
        else:
            print(output, end="")
            tally.fail(f"lint {step}")
            show("FAIL", f"lint {step}", started)


def unit_counts(output):
    """What cmocka's own lines say: passed, skipped, names of the failed. A program may run several groups."""
    passed = sum(int(count) for count in re.findall(r"^\[  PASSED  \] (\d+) test\(s\)", output, re.M))
    skipped = sum(int(count) for count in re.findall(r"^\[  SKIPPED \] (\d+) test\(s\)", output, re.M))
    names = set(re.findall(r"^\[  (?:FAILED  |ERROR   )\] (\w+)$", output, re.M))
    return passed, skipped, sorted(names)


def unit(tally):
    folder = os.path.join(ROOT, "build/host/unit")
    sources = os.path.join(ROOT, "tests/unit")
    names = sorted(name[:-2] for name in os.listdir(sources) if name.startswith("test_") and name.endswith(".c"))
    for name in names:
        started = time.monotonic()
        output, code = run([os.path.join(folder, name)], UNIT_SECONDS)
        passed, skipped, names_failed = unit_counts(output)
        tally.add(passed, 0, skipped)
        for test in names_failed:
            tally.fail(f"{name}: {test}")
        # A sanitizer or a signal ends the program without a word from cmocka.
        if code != 0 and not names_failed:
            tally.fail(f"{name}: ended with code {code}")
        if code == 0 and passed + skipped == 0:
            tally.fail(f"{name}: ran no test")
        bad = code != 0 or passed + skipped == 0
        if bad:
            print(output, end="")
        show("FAIL" if bad else "ok", f"unit {name}", started, f" {passed} tests")


def system(tally, marked="not long", seconds=SYSTEM_SECONDS):
    folder = os.path.join(ROOT, "tests/system")
    if not any(name.startswith("test_") for name in os.listdir(folder)):
        return
    report = os.path.join(ROOT, "build/system.xml")
    if os.path.exists(report):
        os.remove(report)
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "--durations=15", "-p", "no:cacheprovider", "-m", marked,
               f"--junitxml={report}", folder]  # fmt: skip
    try:
        code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        tally.fail(f"system: no end after {seconds} s")
        return
    try:
        suites = ElementTree.parse(report).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError):
        tally.fail(f"system: pytest ended with code {code} and no report")
        return
    seen = tally.failed
    for case in suites:
        if case.find("failure") is not None or case.find("error") is not None:
            tally.fail(f"system {case.get('classname')}: {case.get('name')}")
        elif case.find("skipped") is not None:
            tally.add(skipped=1)
        else:
            tally.add(passed=1)
    if code != 0 and tally.failed == seen:
        tally.fail(f"system: pytest ended with code {code}")


def target(name):
    """A group that is one target of the Makefile; its output is its progress. Skipped when its first line says
    `skip: ` and why, and it ends with code 0 or 77; make tells of the latter and ends with a code of its own."""

    def group(tally):
        started = time.monotonic()
        shown = line = ""
        with subprocess.Popen(["make", "--no-print-directory", name], cwd=ROOT, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            for line in process.stdout:
                shown = shown or line
                print(line, end="", flush=True)
        if shown.startswith("skip: ") and (process.returncode == 0 or re.search(r"\] Error 77$", line.rstrip())):
            tally.add(skipped=1)
            show("skip", name, started, " " + shown.removeprefix("skip: ").strip())
        elif process.returncode != 0:
            tally.fail(name)
            show("FAIL", name, started)
        else:
            tally.add(passed=1)
            show("ok", name, started)

    return group


def main():
    groups = {"lint": lint, "unit": unit, "system": system,
              "system-long": lambda tally: system(tally, "long", SYSTEM_LONG_SECONDS)}  # fmt: skip
    groups.update((name, target(name)) for name in TARGETS)
    asked = sys.argv[1:]
    if not asked or any(name not in groups for name in asked):
        sys.exit(__doc__)
    tally = Tally()
    for name in asked:
        groups[name](tally)
    for name in tally.names_failed:
        print(f"FAILED {name}")
    print(tally.line(), flush=True)
    sys.exit(1 if tally.failed or not tally.passed else 0)


if __name__ == "__main__":
    main()
