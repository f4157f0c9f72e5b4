#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""The table of clauses: tests/clauses.tsv.

    tests/clauses.py            check the table; print `N clauses covered of M that apply`; exit 1 on a finding
    tests/clauses.py --write    write docs/spec-map.md and tests/device/strict_clauses.def from it
    tests/clauses.py --list     ids that apply and have no check, one a line

Findings: a clause of an implemented feature without a check, a check or a function that does not exist, a mutant
that is not defined, a generated file that is not current.
"""

import argparse
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "tests", "clauses.tsv")
SPEC_MAP = os.path.join(ROOT, "docs", "spec-map.md")
DEFINITIONS = os.path.join(ROOT, "tests", "device", "strict_clauses.def")
MUTANTS = os.path.join(ROOT, "tests", "mutants")
PARTS = {
    "core": "Device basics and start-up",
    "split": "Split virtqueues",
    "packed": "Packed virtqueues",
    "pci": "PCI transport",
    "mmio": "MMIO transport",
    "net": "Network device",
    "legacy": "Legacy interface",
}


class Table:
    def __init__(self, path=TABLE):
        self.implemented, self.parts, self.rows, names = set(), set(), [], None
        with open(path, encoding="ascii") as lines:
            for number, line in enumerate(lines, 1):
                line = line.rstrip("\n")
                if line.startswith("# implemented:"):
                    self.implemented = set(line.split(":", 1)[1].split())
                elif line.startswith("# parts:"):
                    self.parts = set(line.split(":", 1)[1].split())
                elif line.startswith("#") or not line:
                    continue
                elif names is None:
                    names = line.split("\t")
                else:
                    cells = line.split("\t")
                    if len(cells) != len(names):
                        sys.exit(f"{path}:{number}: {len(cells)} columns instead of {len(names)}")
                    self.rows.append(dict(zip(names, cells)))

    def gate_open(self, gate):
        """Whether the condition can hold for this driver. A feature that it does not know is never negotiated;
        one that it knows can be withheld by the device, so both `X` and `!X` of it happen."""
        if gate == "always" or gate.endswith(" offered") or gate.startswith("no "):
            return True
        if gate.startswith("any GUEST_"):
            return "VIRTIO_NET_F_GUEST_TSO4" in self.implemented
        if gate.startswith("any HOST_"):
            return "VIRTIO_NET_F_HOST_TSO4" in self.implemented
        if gate == "non-transitional driver":
            return "legacy" not in self.parts
        if gate == "transitional driver" or gate.startswith("legacy interface"):
            return "legacy" in self.parts
        if "flow filter" in gate:
            return False
        if " any GUEST_" in gate or " no GUEST_" in gate:
            return all(self.gate_open(part) for part in gate.split(" & "))
        if gate.startswith("!("):
            return True
        if " | " in gate:
            return any(self.gate_open(part) for part in gate.split(" | "))
        return all(part.startswith("!") or part in self.implemented for part in gate.split(" & "))

    def applies(self, row):
        """A clause that can be violated by what is built. MAY clauses cannot."""
        part = row["part"]
        if row["strength"] == "MAY":
            return False
        if part == "legacy":
            # What tells a legacy device from a modern one binds every driver.
            return (row["gate"] in ("always", "non-transitional driver") or row["id"] == "LEG-DRV-FEAT-01"
                    or "legacy" in self.parts) and self.gate_open_legacy(row)
        return part in self.parts and self.gate_open(row["gate"])

    def gate_open_legacy(self, row):
        return row["id"] == "LEG-DRV-FEAT-01" or self.gate_open(row["gate"])


def read(*parts):
    try:
        with open(os.path.join(ROOT, *parts), encoding="utf-8") as text:
            return text.read()
    except OSError:
        return None


def symbol(clause):
    return clause.replace("-", "_")


def strict_checks():
    """Clause symbols that the strict device names in a check."""
    found = set()
    folder = os.path.join(ROOT, "tests", "device")
    for name in sorted(os.listdir(folder)):
        if re.fullmatch(r"strict_.*\.[ch]", name):
            text = read("tests", "device", name)
            found |= set(re.findall(r"\b((?:CORE|SPL|PKD|PCI|MMIO|NET|LEG|ADM)_DRV_[A-Z]+_\d+)\b", text))
    return found


def mutant_names():
    names = set()
    for name in sorted(os.listdir(MUTANTS)):
        if name.endswith(".mutants"):
            names |= set(re.findall(r"^\[([\w-]+)\]", read("tests", "mutants", name), re.M))
    return names


def check_exists(check, clause, engine):
    if check == "strict":
        return symbol(clause) in engine
    kind, _, rest = check.partition(":")
    if kind == "unit":
        program, _, test = rest.partition(":")
        text = read("tests", "unit", program + ".c")
        return text is not None and re.search(rf"\b{re.escape(test)}\b", text) is not None
    if kind == "script":
        return read(*rest.split("/")) is not None
    return False


def function_exists(place):
    path, _, name = place.partition(":")
    text = read(*path.split("/"))
    return text is not None and (not name or re.search(rf"\b{re.escape(name)}\b", text) is not None)


def findings(table, engine, mutants):
    problems, covered, applying = [], 0, 0
    seen = set()
    for row in table.rows:
        clause = row["id"]
        if clause in seen:
            problems.append(f"{clause}: twice in the table")
        seen.add(clause)
        checks = [] if row["check"] == "-" else row["check"].split()
        missing = [check for check in checks if not check_exists(check, clause, engine)]
        problems += [f"{clause}: check {check} does not exist" for check in missing]
        if row["obeyed_by"] != "-":
            problems += [f"{clause}: {place} does not exist" for place in row["obeyed_by"].split()
                         if not function_exists(place)]
        if row["mutant"] not in ("-",) and not row["mutant"].startswith("none: "):
            problems += [f"{clause}: mutant {name} is not defined" for name in row["mutant"].split()
                         if name not in mutants]
        if not table.applies(row):
            continue
        applying += 1
        if not checks:
            problems.append(f"{clause}: applies and has no check")
        elif row["obeyed_by"] == "-":
            problems.append(f"{clause}: applies and nothing obeys it")
        elif row["mutant"] == "-":
            problems.append(f"{clause}: applies and has neither a mutant nor a reason why there is none")
        elif not missing:
            covered += 1
    return problems, covered, applying


def definitions(table):
    lines = ["/* SPDX-License-Identifier: BSD-2-Clause",
             " *",
             " * Made by tests/clauses.py --write from tests/clauses.tsv.",
             " */"]
    for row in table.rows:
        text = row["text"].replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'CLAUSE({symbol(row["id"])}, "{row["id"]}", "{row["strength"]}", "{text}")')
    return "\n".join(lines) + "\n"


def spec_map(table, covered, applying):
    lines = ["# Clauses of the specification", "",
             "Made by `tests/clauses.py --write` from tests/clauses.tsv. Each row is one normative clause of VIRTIO 1.4 "
             "that binds a driver, in our words: the function that obeys it, the test that checks it, and the mutant "
             "that shows that the check can fail. `strict` is the strict device of tests/device: it checks the clause "
             "in every test that runs on it and, where the clause concerns rings and headers, in the booted image over "
             "vhost-user.", "",
             f"{covered} clauses covered of {applying} that apply to what is implemented.", "",
             "Implemented: " + ", ".join(f"`{name}`" for name in sorted(table.implemented)) + ".", ""]
    for part, title in PARTS.items():
        rows = [row for row in table.rows if row["part"] == part]
        mine = [row for row in rows if table.applies(row)]
        lines += [f"## {title}", "", f"{len(mine)} of {len(rows)} rows apply.", ""]
        if not mine:
            continue
        lines += ["| clause | | what it asks | obeyed by | checked by | mutant |", "|---|---|---|---|---|---|"]
        for row in mine:
            cells = [row["id"], row["strength"], row["text"] + ("" if row["note"] == "-" else f" *{row['note']}*"),
                     code(row["obeyed_by"]), code(row["check"]),
                     row["mutant"] if row["mutant"].startswith("none: ") else code(row["mutant"])]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    rest = [row["id"] for row in table.rows if not table.applies(row) and row["strength"] != "MAY"]
    lines += ["## Clauses that do not apply yet", "",
              "They belong to features or transports that are not implemented, or can only be violated with them.", "",
              ", ".join(rest) + ".", ""]
    return "\n".join(lines)


def code(cell):
    return "-" if cell == "-" else " ".join(f"`{word}`" for word in cell.split())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the generated files")
    parser.add_argument("--list", action="store_true", help="list ids that apply and lack a check")
    options = parser.parse_args()
    table = Table()
    if options.list:
        for row in table.rows:
            if table.applies(row) and row["check"] == "-":
                print("\t".join((row["id"], row["strength"], row["text"])))
        return 0
    problems, covered, applying = findings(table, strict_checks(), mutant_names())
    made = ((DEFINITIONS, definitions(table)), (SPEC_MAP, spec_map(table, covered, applying)))
    for path, text in made:
        if options.write:
            with open(path, "w", encoding="ascii") as out:
                out.write(text)
        elif read(path) != text:
            problems.append(f"{os.path.relpath(path, ROOT)} is not current: tests/clauses.py --write")
    for problem in problems:
        print(problem)
    print(f"{covered} clauses covered of {applying} that apply")
    return 1 if problems and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
