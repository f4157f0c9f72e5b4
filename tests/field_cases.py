#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""The table of field cases: tests/field_cases.tsv.

    tests/field_cases.py            check the table; print `N field cases: M are tests, K listed with a reason`;
                                    exit 1 on a finding
    tests/field_cases.py --write    write docs/field-cases.md from it

The column `tests` is `-`, or words `path::name`: `def test_...` of a Python file, `static void test_...` of a C file.

Findings: a case without tests and without a reason, a test that does not exist or does not cite its case, a citation
that the table does not have, a number twice, a class that is none, a generated file that is not current.
"""

import argparse
import ast
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLUMNS = ["case", "class", "rig", "source", "symptom", "tests", "reason"]
CLASSES = {
    "ring": "Rings and notifications",
    "driver": "Driver",
    "offload": "Checksums and segmentation",
}
# Between the words of a citation: blanks, line breaks, and what leads a line of a comment.
GAP = r"[\s*#/]+"
CITATION = re.compile(rf"\b[Ff]ield{GAP}(?:case{GAP}(\d+)|cases{GAP}(\d+(?:(?:,?{GAP}and{GAP}|,{GAP})\d+)*))")
C_TEST = re.compile(r"^static void (test_\w+)\(.*?^\}", re.M | re.S)

INTRODUCTION = """# Field cases

Made by `tests/field_cases.py --write` from tests/field_cases.tsv.

Each row is a fault that somebody reported in public about a system of this kind (a unikernel, a virtio driver, a device
or a hypervisor), told in our words, and made a test case here. The source names the project and its issue, pull request
(PR) or commit. A test says `Field case N` in its comment; `tests/field_cases.py`, part of `make lint`, compares the
citations with this table in both directions. What cannot be run here stands in the last column, with the reason.

Tests in tests/unit run with `make unit`, or one program at a time: `build/host/unit/test_virtqueue`. Tests in
tests/system run with `make system`, or one at a time: `python3 -m pytest tests/system/test_traffic.py -k NAME`.

{summary}.
"""
HEADINGS = ("case", "source", "what went wrong", "tests", "not run here")


def read(root, path):
    try:
        with open(os.path.join(root, path), encoding="utf-8") as text:
            return text.read()
    except OSError:
        return None


def read_table(root):
    lines = read(root, "tests/field_cases.tsv").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        cells = line.split("\t")
        if len(cells) != len(COLUMNS) or (number == 1 and cells != COLUMNS):
            sys.exit(f"tests/field_cases.tsv:{number}: the columns are {', '.join(COLUMNS)}")
        rows.append(dict(zip(COLUMNS, cells)))
    return rows[1:]


def cited(text):
    """Numbers of the cases that a text cites."""
    return {int(word) for one, many in CITATION.findall(text) for word in re.findall(r"\d+", one or many)}


def tests_in(path, text):
    """(name, text) of each test of a file; a C function with the comment that ends on the line before it."""
    if path.endswith(".py"):
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node.name, "\n".join(lines[node.lineno - 1:node.end_lineno])
    elif path.endswith(".c"):
        for match in C_TEST.finditer(text):
            above = text[:match.start()]
            start = above.rfind("/*") if above.endswith("*/\n") else match.start()
            yield match.group(1), text[start:match.end()]


def citations(root):
    """{path: {test: numbers}}; under the name None what a file cites outside of its tests."""
    found = {}
    for folder, _, names in os.walk(os.path.join(root, "tests")):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            # The table's own tool and its tests are about citations and cite nothing.
            if not name.endswith((".c", ".h", ".py")) or name in ("field_cases.py", "test_field_cases.py"):
                continue
            text = read(root, path)
            tests = dict(tests_in(path, text))
            found[path] = {test: cited(body) for test, body in tests.items()}
            for body in tests.values():
                text = text.replace(body, "")
            found[path][None] = cited(text)
    return found


def row_findings(row, found):
    tests = [] if row["tests"] == "-" else row["tests"].split()
    if row["class"] not in CLASSES:
        yield f"class {row['class']} is none of {', '.join(CLASSES)}"
    if not tests and not row["reason"]:
        yield "neither a test nor a reason"
    if tests == ["?"]:
        yield "neither tests nor a reason yet, only a question mark"
        return
    for test in tests:
        path, _, name = test.partition("::")
        if not name or name not in found.get(path, {}):
            yield f"{test} does not exist"
        elif int(row["case"]) not in found[path][name]:
            yield f"{test} does not say \"Field case {row['case']}\""


def findings(rows, found):
    problems, listed = [], {}
    for row in rows:
        number = row["case"]
        if not number.isdecimal():
            problems.append(f"case {number}: is no number")
            continue
        if int(number) in listed:
            problems.append(f"case {number}: twice in the table")
        listed[int(number)] = row["tests"].split()
        problems += [f"case {number}: {problem}" for problem in row_findings(row, found)]
    for path, tests in sorted(found.items()):
        for test, numbers in tests.items():
            for number in sorted(numbers):
                # A file may also name its cases at the top.
                mine = any(word.startswith(path + "::") and test in (None, word.partition("::")[2])
                           for word in listed.get(number, ()))
                if not mine:
                    problems.append(f"case {number}: cited by {path}{'::' + test if test else ''}, not in the table")
    return problems


def summary(rows):
    tests = sum(row["tests"] not in ("-", "?") for row in rows)
    reasons = sum(row["tests"] == "-" and row["reason"] != "" for row in rows)
    return f"{len(rows)} field cases: {tests} are tests, {reasons} listed with a reason"


def link(test):
    path, _, name = test.partition("::")
    return f"[{name}](../{path})" if name else test


def table_line(cells):
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def document(rows):
    lines = [INTRODUCTION.format(summary=summary(rows))]
    for kind, title in CLASSES.items():
        lines += [f"## {title}", "", table_line(HEADINGS), "|---" * len(HEADINGS) + "|"]
        lines += [table_line((row["case"], row["source"], row["symptom"], " ".join(map(link, row["tests"].split())),
                              row["reason"] or "-"))
                  for row in rows if row["class"] == kind]
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/field-cases.md")
    parser.add_argument("--root", default=ROOT, help="the checkout (this one)")
    options = parser.parse_args()
    rows = read_table(options.root)
    problems = findings(rows, citations(options.root))
    if options.write:
        with open(os.path.join(options.root, "docs", "field-cases.md"), "w", encoding="utf-8") as out:
            out.write(document(rows))
    elif read(options.root, "docs/field-cases.md") != document(rows):
        problems.append("docs/field-cases.md is not current: tests/field_cases.py --write")
    for problem in problems:
        print(problem)
    print(summary(rows))
    return 1 if problems and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
