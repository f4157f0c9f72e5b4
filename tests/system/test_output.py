# SPDX-License-Identifier: BSD-2-Clause
"""Results: what was there before stays until there is something new, and what was finished outlives a Ctrl-C."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import types

import cli
import conform
import demo
import options
import output
import pytest
import reproduce
from conftest import SLUICE, wait_gone
from errors import EXIT_INTERRUPTED, EXIT_PEER, EXIT_PIPE, EXIT_USAGE, SluiceError

OLD = "an older result\n"


def _write(result, text):
    os.write(result.fd, text.encode())
    return result


def test_replaced_at_the_end(tmp_path):
    """Until finish() the older one is there, whole; afterwards the new one, with its mode, and nothing beside it."""
    path = tmp_path / "x.json"
    path.write_text(OLD)
    path.chmod(0o640)
    result = _write(output.Result("--json", str(path)), "new\n")
    assert path.read_text() == OLD
    assert result.finish(3) == 3 and path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o640 and os.listdir(tmp_path) == ["x.json"]


def test_nothing_new(tmp_path):
    path, other = tmp_path / "x.json", tmp_path / "y.json"
    path.write_text(OLD)
    for name in (path, other):
        assert output.Result("--json", str(name)).finish(2) == 2
    assert path.read_text() == OLD and os.listdir(tmp_path) == ["x.json"]


def test_through_a_link(tmp_path):
    (tmp_path / "real").write_text(OLD)
    (tmp_path / "link").symlink_to("real")
    assert _write(output.Result("--json", str(tmp_path / "link")), "new\n").finish(0) == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new\n"


@pytest.mark.parametrize("code", [0, 4])
def test_full_device(capsys, code):
    """One line, and the code of the machine unless the measurement has one of its own."""
    assert _write(output.Result("--json", "/dev/full"), "new\n").finish(code) == (code or EXIT_PEER)
    assert capsys.readouterr().err == "sluice: cannot write /dev/full: No space left on device\n"


@pytest.mark.parametrize("path", ["/nowhere/at/all", "/usr"])
def test_cannot_be_written(path):
    with pytest.raises(SluiceError, match=f"--json: cannot write {path}") as caught:
        output.check("--json", path)
    assert caught.value.code == EXIT_USAGE


@pytest.mark.parametrize(
    "argv, words",
    [
        (["run", "udp", "--json", "x", "--pcap", "x"], "--json and --pcap name the same file"),
        (["run", "udp", "--json", "x", "--pcap", "./y/../x"], "--json and --pcap name the same file"),
        (["run", "udp", "--json", "x", "--pcap", "hard"], "--json and --pcap name the same file"),
        (["reproduce", "sndbuf", "--json", "x.svg", "--plot", "x.svg"], "--json and --plot name the same file"),
        (["run", "udp", "--json", "x", "--pcap", "/nowhere/x"], "--pcap: cannot write /nowhere/x"),
        (["reproduce", "sndbuf", "--json", "x", "--plot", "x.gif"], "x.gif"),
    ],
)
def test_refused_and_nothing_lost(sluice, image, argv, words):
    """A later check fails: the older result is untouched, and no empty one lies beside it."""
    (sluice.cwd / "y").mkdir()
    (sluice.cwd / "x").write_text(OLD)
    (sluice.cwd / "hard").hardlink_to(sluice.cwd / "x")
    done = sluice(*argv, timeout=10)
    assert done.code == EXIT_USAGE and words in done.err and len(done.err.splitlines()) == 1, done
    assert (sluice.cwd / "x").read_text() == OLD
    assert sorted(os.listdir(sluice.cwd)) == ["hard", "x", "y"]


def test_a_machine_that_fails_loses_nothing(sluice, image, fake_qemu):
    """QEMU does not start: the older capture is untouched, and no empty one is made."""
    env = fake_qemu("echo 'no such machine' >&2; exit 1")
    (sluice.cwd / "old.pcap").write_text(OLD)
    for name in ("old.pcap", "new.pcap"):
        done = sluice("run", "udp", "--pcap", name, env=env, timeout=30)
        assert done.code == EXIT_PEER, done
    assert (sluice.cwd / "old.pcap").read_text() == OLD
    assert not (sluice.cwd / "new.pcap").exists()


@pytest.mark.parametrize(
    "argv", [["--help"], ["demo", "--help"], ["run", "udp"], ["reproduce", "stopwake"], ["conform", "--strict"]]
)
def test_standard_output_is_full(sluice, image, fake_qemu, argv):
    env = {**os.environ, **fake_qemu("exit 1")}
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([sys.executable, SLUICE, *argv], stdout=full, stderr=subprocess.PIPE, text=True, env=env,
                              timeout=30, check=False)  # fmt: skip
    assert done.returncode == EXIT_PEER, done
    *before, last = done.stderr.splitlines()
    assert last == "sluice: cannot write standard output: No space left on device", done
    assert all("not built yet" in line or line.split()[0].isupper() for line in before), done


@pytest.mark.parametrize(
    "argv, how, code", [("--help", ">&-", 0), ("run udp --json x", ">&-", EXIT_PEER), ("run udp", "| true", EXIT_PIPE)]
)
def test_nobody_reads(sluice, image, fake_qemu, argv, how, code):
    """Standard output is closed, or its reader has gone: no word about it, and none of it in a result."""
    env = {**os.environ, **fake_qemu("sleep 1; exit 1")}
    script = f"exec 3>&2; {{ '{SLUICE}' {argv} 3>&-; echo code $? >&3; }} {how}"
    done = subprocess.run(["bash", "-c", script], stderr=subprocess.PIPE, text=True, env=env, timeout=30, check=False,
                          cwd=sluice.cwd)  # fmt: skip
    assert done.stderr == f"code {code}\n", done
    if "--json" in argv:
        assert json.loads((sluice.cwd / "x").read_text())["exit_code"] == code


@pytest.mark.parametrize("argv", [["reproduce", "sndbuf", "--plot", "new.svg"], ["conform", "--strict"], ["demo"]])
def test_interrupted_before_the_first_row(sluice, image, fake_qemu, argv):
    """Ctrl-C: the older result stays, no file is made, and every command says the same one line."""
    env = fake_qemu("echo hello; exec sleep 30")
    (sluice.cwd / "old.json").write_text(OLD)
    process, mark = sluice.start(*argv, "--json", "old.json", env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=10)[1]
    assert process.returncode == EXIT_INTERRUPTED and err == "sluice: interrupted\n", err
    assert (sluice.cwd / "old.json").read_text() == OLD and not (sluice.cwd / "new.svg").exists()
    assert not wait_gone(mark)


def _row():
    return {"test": "tcp", "direction": "guest-to-host", "sndbuf_bytes": 4096, "bits_per_second": 5e6, "retransmits": 0,
            "nic_dropped": 0, "tx_stops": 0, "valid": True}  # fmt: skip


@pytest.fixture
def memory(monkeypatch):
    """Where the process inside writes its JSON."""
    fd = os.memfd_create("json")
    monkeypatch.setenv(cli.JSON_FD_VARIABLE, str(fd))

    def read():
        with open(f"/proc/self/fd/{fd}", encoding="utf-8") as f:
            return f.read()

    return read


def test_finished_rows_of_the_demo(monkeypatch, capsys, memory):
    """Ctrl-C in the second row: the first is in the table and in the JSON, which says that it is not all."""

    def run(*_):
        yield _row()
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.sandbox, "settle", lambda: None)
    monkeypatch.setattr(cli, "Lab", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(demo, "run", run)
    with pytest.raises(KeyboardInterrupt):
        cli.inside(options.parse(["demo", "--accel", "tcg", "--json", "x"]))
    out, whole = capsys.readouterr().out, json.loads(memory())
    assert "TCP, sndbuf 4096    5.00" in out and "FAIL" not in out and "pass" not in out
    assert whole["interrupted"] and not whole["ok"] and whole["exit_code"] == EXIT_INTERRUPTED and len(whole["rows"]) == 1


def test_finished_rows_of_a_report(monkeypatch, capsys, memory):
    def run(context):
        context.done(_row(), "one row")
        raise KeyboardInterrupt

    module = types.SimpleNamespace(run=run, table=lambda rows: [f"a table of {len(rows)}"])
    monkeypatch.setattr(reproduce.importlib, "import_module", lambda _: module)
    args = options.parse(["reproduce", "stopwake", "--accel", "tcg", "--json", "x"])
    with pytest.raises(KeyboardInterrupt):
        reproduce.run(args, "elf", output.printer(sys.stdout), cli._write_json, None)
    assert "a table of 1" in capsys.readouterr().out
    whole = json.loads(memory())
    assert whole["interrupted"] and whole["decision"] == "interrupted" and len(whole["rows"]) == 1


def test_finished_cases_of_conform(monkeypatch, tmp_path):
    def run(_accelerator, _say, _only, rows):
        rows.append({"case": "one"})
        raise KeyboardInterrupt

    monkeypatch.setattr(conform, "run", run)
    path = tmp_path / "x.json"
    with pytest.raises(KeyboardInterrupt):
        conform.main(types.SimpleNamespace(accel="tcg", json=str(path), only=[]))
    whole = json.loads(path.read_text())
    assert whole["interrupted"] and whole["rows"] == [{"case": "one"}]
