# SPDX-License-Identifier: BSD-2-Clause
"""The lint of the field cases finds each kind of slip, in a small checkout of its own."""

import pathlib
import subprocess

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[1] / "field_cases.py"
HEAD = "case\tclass\trig\tsource\tsymptom\ttests\treason\n"
UNIT = "tests/unit/test_a.c"
SYSTEM = "tests/system/test_b.py"
ROWS = {
    1: ["1", "ring", "T", "a#1", "It | hangs.", f"{UNIT}::test_one {SYSTEM}::test_three", ""],
    2: ["2", "driver", "T", "a#2", "It stops.", f"{UNIT}::test_two", "not on a second host"],
    3: ["3", "offload", "T", "a#3", "It drops.", "-", "needs a cloud"],
    14: ["14", "ring", "T", "a#14", "It wraps.", f"{UNIT}::test_two", ""],
}
C_TEXT = """/* Field case 1: it hangs. */
static void test_one(void **state)
{
}

/*
 * Field cases 2,
 * 14: they stop.
 */
static void test_two(void **state)
{
    if (state) {
    }
}

static void helper(void)
{
}
"""
PYTHON_TEXT = '''
def test_three():
    """As in field
    case 1."""


def test_four():
    pass
'''


@pytest.fixture
def checkout(tmp_path):
    for path, text in ((UNIT, C_TEXT), (SYSTEM, PYTHON_TEXT), ("docs/README", "")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def lint(checkout, rows, write=True):
    (checkout / "tests" / "field_cases.tsv").write_text(HEAD + "".join("\t".join(row) + "\n" for row in rows))
    if write:
        subprocess.run([TOOL, "--root", checkout, "--write"], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([TOOL, "--root", checkout], check=False, text=True, capture_output=True)
    assert done.returncode in (0, 1), done.stderr
    *problems, last = done.stdout.splitlines()
    assert done.returncode == (1 if problems else 0)
    return problems, last


def test_a_table_without_slips(checkout):
    assert lint(checkout, ROWS.values()) == ([], "4 field cases: 3 are tests, 1 listed with a reason")
    document = (checkout / "docs" / "field-cases.md").read_text()
    assert f"| 1 | a#1 | It \\| hangs. | [test_one](../{UNIT}) [test_three](../{SYSTEM}) | - |" in document
    assert "| 3 | a#3 | It drops. | - | needs a cloud |" in document


@pytest.mark.parametrize("number, column, cell, finding", [
    (1, 0, "1a", "case 1a: is no number"),
    (2, 0, "1", "case 1: twice in the table"),
    (3, 1, "net", "case 3: class net is none of ring, driver, offload"),
    (3, 5, "?", "case 3: neither tests nor a reason yet, only a question mark"),
    (3, 6, "", "case 3: neither a test nor a reason"),
    (1, 5, f"{UNIT}::test_five", f"case 1: {UNIT}::test_five does not exist"),
    (1, 5, f"{UNIT}::helper", f"case 1: {UNIT}::helper does not exist"),
    (1, 5, UNIT, f"case 1: {UNIT} does not exist"),
    (1, 5, "tests/unit/test_c.c::test_one", "case 1: tests/unit/test_c.c::test_one does not exist"),
    (1, 5, f"{SYSTEM}::test_four", f'case 1: {SYSTEM}::test_four does not say "Field case 1"'),
    (3, 5, f"{UNIT}::test_one", f'case 3: {UNIT}::test_one does not say "Field case 3"'),
    (1, 5, f"{UNIT}::test_one", f"case 1: cited by {SYSTEM}::test_three, not in the table"),
    (14, 0, "15", f"case 14: cited by {UNIT}::test_two, not in the table"),
])  # fmt: skip
def test_a_slip_in_the_table(checkout, number, column, cell, finding):
    rows = {key: list(row) for key, row in ROWS.items()}
    rows[number][column] = cell
    problems, _ = lint(checkout, rows.values())
    assert finding in problems


@pytest.mark.parametrize("text, found", [("/* The device of field case 2. */\n", True),
                                         ("/* In the field cases are seen. */\n", False)])  # fmt: skip
def test_a_citation_outside_of_tests(checkout, text, found):
    """It counts where a test of the same file is listed for the case, and nowhere else."""
    for path in (UNIT, "tests/unit/lab.h"):
        (checkout / path).write_text(text + (C_TEXT if path == UNIT else ""))
    problems, _ = lint(checkout, ROWS.values())
    assert problems == (["case 2: cited by tests/unit/lab.h, not in the table"] if found else [])


def test_a_page_that_is_not_current(checkout):
    lint(checkout, ROWS.values())
    changed = [*ROWS.values(), ["5", "ring", "T", "a#5", "It jumps.", "-", "needs time"]]
    problems, _ = lint(checkout, changed, write=False)
    assert problems == ["docs/field-cases.md is not current: tests/field_cases.py --write"]
