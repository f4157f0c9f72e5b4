# SPDX-License-Identifier: BSD-2-Clause
"""What `sluice reproduce` does for each of the three field reports: live rows, table, verdict, JSON, picture.

A report is a module with `run(context)`, which returns an Outcome.
"""

import importlib
import os
import statistics
import sys
from dataclasses import dataclass, field

import accel
import options
import plot
import report
from errors import EXIT_INVALID, EXIT_OK, SluiceError
from vm import VmSpec


@dataclass
class Outcome:
    """What a report found. tables: lines of text; notes: sentences below them; picture: what plot.draw takes."""

    rows: list = field(default_factory=list)
    code: int = EXIT_INVALID
    decision: str = "undecided"
    verdict: str = "interrupted"
    tables: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    picture: plot.Picture | None = None


@dataclass(frozen=True)
class Context:
    """What a report is given. live: prints one row on standard error as soon as it is there."""

    args: object
    accelerator: str
    vm: VmSpec

    @property
    def quick(self):
        return self.args.quick

    def live(self, line):
        print(line, file=sys.stderr, flush=True)


def run(args, kernel, out, write_json, plot_path):
    """Run one report and print it; returns the exit code."""
    accelerator, why = accel.choose(args.accel)
    print(f"{args.report}: {options.REPORTS[args.report]}\naccelerator: {why}", file=out, flush=True)
    context = Context(args, accelerator, VmSpec(kernel=kernel, accel=accelerator))
    try:
        outcome = importlib.import_module(f"reproduce_{args.report}").run(context)
    except SluiceError as e:
        outcome = Outcome(code=e.code, verdict=str(e))
    facts = report.host_facts(accelerator)
    for line in outcome.tables + [""] * bool(outcome.notes) + [f"note: {n}" for n in outcome.notes]:
        print(line, file=out)
    sign = "pass" if outcome.code == EXIT_OK else f"FAIL ({outcome.code})"
    print(f"\n{sign}: {outcome.decision}: {outcome.verdict}", file=out, flush=True)
    if args.json:
        whole = report.json_object(facts, outcome.rows, outcome.verdict, outcome.code)
        write_json(args.json, {"report": args.report, **whole, "decision": outcome.decision, "notes": outcome.notes})
    if args.plot and outcome.picture:
        host = f"{facts['kernel']}, QEMU {facts['qemu']} {accelerator}, {facts['cpus']} CPUs"
        plot.draw(outcome.picture, plot_path, os.path.splitext(args.plot)[1], host)
    return outcome.code


def median(values):
    return statistics.median(values) if values else 0.0


def spread(values):
    return max(values) - min(values) if values else 0.0
