# SPDX-License-Identifier: BSD-2-Clause
"""What the documentation says of the program, compared with the program's text: every key of its JSON, some numbers."""

import ast
import re

import accounts
import counters
import pytest
from conftest import ROOT

RESULTS = (ROOT / "docs" / "results.md").read_text()
# Functions of host/ that write a row or the whole object, and the headings of docs/results.md under which its keys stand.
GUEST, WHOLE, EVERY = "Guest", "Host (`host/sluice ... --json`)", "Every row of a test"
DATAGRAMS, STREAMS = "Rows of datagram tests", "Rows of stream tests"
CONFORM, REPRODUCE = "`host/sluice conform --strict`", "`host/sluice reproduce`"
WRITERS = {
    "report.json_object": (WHOLE,),
    "report.host_facts": (WHOLE,),
    "reproduce.run": (REPRODUCE,),
    "rows._base_row": (EVERY,),
    "rows._rows": (EVERY,),
    "rows._judge": (EVERY,),
    "rows._fill_datagrams": (DATAGRAMS,),
    "rows._fill_stream": (STREAMS,),
    "accounts.forward": (DATAGRAMS,),
    "accounts.reverse": (DATAGRAMS,),
    "conform._row": (CONFORM,),
    "reproduce_sndbuf.*": ("`sndbuf`", DATAGRAMS, EVERY),
    "reproduce_stopwake.*": ("`stopwake`",),
    "reproduce_vxlan.*": ("`vxlan`",),
}
JSON_KEY = re.compile(r'(?:json_add_\w+|add_\w+|cJSON_Add\w+ToObject)\(\w+,\s*"(\w+)"')


def headings():
    """{heading: the text below it, to the next one}."""
    parts = re.split(r"^#+ (.+)\n", RESULTS, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def documented(names):
    """The words in backticks below these headings. Where there is a table of the host's, those of its first column and of
    objects like `{sent, received}` alone: a key that is only mentioned is not explained."""
    words = set()
    for name in names:
        spans = re.findall(r"`([^`]+)`", headings()[name]) + re.findall(r"^    (.+)$", headings()[name], re.M)
        if "| key |" in headings()[name] and name != GUEST:
            spans = [s for s in spans if "{" in s] + re.findall(r"^\| (`[^|]+) \|", headings()[name], re.M)
        words.update(re.findall(r"\w+", " ".join(spans)))
    return words


def functions(writer):
    module, _, name = writer.partition(".")
    tree = ast.parse((ROOT / "host" / f"{module}.py").read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and name in ("*", n.name)]
    assert found, writer
    return found


def strings(node):
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def constants(tree):
    """Of `for key in ("a", "b"): row[key] = ...`, or of pairs, the strings that the name takes."""
    taken = {}
    for loop in [n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.comprehension))]:
        rows = loop.iter.elts if isinstance(loop.iter, ast.Tuple) else []
        names = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        for place, name in enumerate(names):
            values = [r.elts[place] if isinstance(r, ast.Tuple) and len(names) > 1 else r for r in rows]
            taken.setdefault(getattr(name, "id", None), set()).update(*map(strings, values))
    return taken


def written(function):
    """The keys that a function puts into `row`, a copy of it, or an object that it makes."""
    keys, loops = set(), constants(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            keys |= set().union(*(strings(k) for k in node.keys if isinstance(k, ast.Constant)))
        elif isinstance(node, ast.DictComp) and isinstance(node.key, ast.Name):
            keys |= loops.get(node.key.id, set())
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "row":
            found = strings(node.slice) if isinstance(node.slice, ast.Constant) else loops.get(node.slice.id, set())
            assert found, f"{ast.unparse(node)}: it is not seen here which keys that writes"
            keys |= found
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "row.update":
            keys |= {k.arg for k in node.keywords if k.arg}
    return keys


@pytest.mark.parametrize("writer", WRITERS)
def test_every_key_that_the_host_writes(writer):
    keys = set().union(*map(written, functions(writer)))
    assert keys and not keys - documented(WRITERS[writer]), sorted(keys - documented(WRITERS[writer]))


def test_no_writer_is_left_out():
    """A function that writes into a row and is not in the table above would write keys that nobody looks for."""
    known = {w.partition(".")[0] for w in WRITERS if w.endswith("*")}
    for path in sorted((ROOT / "host").glob("*.py")):
        for function in [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]:
            stores = [n for n in ast.walk(function) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
            if any(ast.unparse(n.value) == "row" for n in stores) and path.stem not in known:
                assert f"{path.stem}.{function.name}" in WRITERS, f"{path.stem}.{function.name}"


def test_the_model_device():
    program = (ROOT / "tests" / "bench" / "stopwake_model.c").read_text()
    keys = set(re.findall(r'\\"(\w+)\\":', program))
    assert len(keys) > 10 and not keys - documented(("`stopwake`",)), keys


def test_what_is_taken_over_whole():
    assert not set(vars(accounts.Ledger())) - documented((DATAGRAMS,))
    assert not set(counters.SOFTNET_COLUMNS) - documented(("`vxlan`",))


def test_every_key_that_the_guest_writes():
    sources = sorted((ROOT / "apps").glob("report_*.c"))
    keys = {key for source in sources for key in JSON_KEY.findall(source.read_text())}
    assert len(keys) > 80 and not keys - documented((GUEST,)), sorted(keys - documented((GUEST,)))


def test_units_of_tables():
    """Each row of a table names a key in backticks, and what ends in a unit has it in its column."""
    units = {"ns": ("ns",), "bytes": ("bytes",), "bits_per_second": ("bit/s",), "percent": ("%", "percent"), "ms": ("ms",)}
    for keys, unit in re.findall(r"^\| (`[^|]+) \| ([^|]*) ?\| [^|]*\|$", RESULTS, re.M):
        for suffix, words in units.items():
            if re.search(rf"(\b|_){suffix}`", keys):
                assert any(word in unit for word in words), (keys, unit)


def test_periods_of_the_safety_timer():
    """The trace's event of a look comes as often as the driver looks."""
    code = (ROOT / "drivers" / "virtio_net_impl.h").read_text()
    period_ns = int(re.search(r"#define SAFETY_PERIOD_NS (\d+)", code)[1])
    look = re.search(r"#define SAFETY_LOOK_NS\s+\(SAFETY_PERIOD_NS / (\d+)\)", code)
    trace = (ROOT / "docs" / "trace.md").read_text()
    assert f"the safety timer looks, every {period_ns // int(look[1]) // 10**6} ms" in trace
    thresholds = (ROOT / "docs" / "thresholds.md").read_text()
    assert f"| `SAFETY_PERIOD_NS` | {period_ns // 10**6} ms |" in thresholds
