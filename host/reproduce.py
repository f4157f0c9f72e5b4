# SPDX-License-Identifier: BSD-2-Clause
"""What `sluice reproduce` does for each of the three field reports: live rows, table, verdict, JSON, picture.

A report is a module with `run(context)`, which returns an Outcome, and `table(rows)`, for what was finished when
something ended it before.
"""

import importlib
import os
import statistics
import sys
from dataclasses import dataclass, field

import accel
import options
import output
import plot
import report
from errors import EXIT_INTERRUPTED, EXIT_INVALID, SluiceError
from vm import VmSpec


@dataclass
class Outcome:
    """What a report found. tables: lines of text; notes: sentences below them; picture: what plot.draw takes."""

    rows: list = field(default_factory=list)
    code: int = EXIT_INVALID
    decision: str = "undecided"
    verdict: str = ""
    tables: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    picture: plot.Picture | None = None


@dataclass(frozen=True)
class Context:
    """What a report is given. rows: those that are finished."""

    args: object
    accelerator: str
    vm: VmSpec
    rows: list = field(default_factory=list)

    @property
    def quick(self):
        return self.args.quick

    def done(self, row, line):
        """A row is there: keep it, and print it on standard error."""
        self.rows.append(row)
        output.printer(sys.stderr)(line)


def run(args, kernel, say, write_json, plot_path):
    """Run one report and print it; returns the exit code."""
    accelerator, why = accel.choose(args.accel)
    say(f"{args.report}: {options.REPORTS[args.report]}\naccelerator: {why}")
    context = Context(args, accelerator, VmSpec(kernel=kernel, accel=accelerator))
    module = importlib.import_module(f"reproduce_{args.report}")
    try:
        outcome = module.run(context)
    except SluiceError as e:
        outcome = _ended_early(context, module, e.code, "not measured", str(e))
    except KeyboardInterrupt:
        outcome = _ended_early(context, module, EXIT_INTERRUPTED, "interrupted", "interrupted")
    facts = report.host_facts(accelerator)
    for line in outcome.tables + [""] * bool(outcome.notes) + [f"note: {n}" for n in outcome.notes]:
        say(line)
    if args.json:
        whole = report.json_object(facts, outcome.rows, outcome.verdict, outcome.code)
        write_json(args.json, {"report": args.report, **whole, "decision": outcome.decision, "notes": outcome.notes})
    if outcome.code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    say()
    say(report.last_line(outcome.code, f"{outcome.decision}: {outcome.verdict}"))
    if args.plot and outcome.picture:
        host = f"{facts['kernel']}, QEMU {facts['qemu']} {accelerator}, {facts['cpus']} CPUs"
        plot.draw(outcome.picture, plot_path, os.path.splitext(args.plot)[1], host)
    return outcome.code


def _ended_early(context, module, code, decision, verdict):
    tables = module.table(context.rows) if context.rows else []
    return Outcome(rows=context.rows, code=code, decision=decision, verdict=verdict, tables=tables)


def median(values):
    return statistics.median(values) if values else 0.0


def spread(values):
    return max(values) - min(values) if values else 0.0
