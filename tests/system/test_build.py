# SPDX-License-Identifier: BSD-2-Clause
"""The build from a stranger's side: where dependencies come from, what is refused, what is not done twice."""

import hashlib
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FETCH = ROOT / "host" / "fetch"
PINS = ROOT / "third_party" / "pins"
TIMEOUT_S = 120


def run(*argv, env=None, cwd=ROOT):
    return subprocess.run(
        list(map(str, argv)), cwd=cwd, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def pinned():
    """{file: sha256}"""
    words = [line.split() for line in PINS.read_text().splitlines() if line and not line.startswith("#")]
    return {line[3]: line[4] for line in words}


def test_second_make_does_nothing(image):
    """What was built is not built again: no compiler, no link, no image."""
    first = run("make", "-s", "all")
    assert first.returncode == 0, first.stderr
    before = image.stat().st_mtime_ns
    second = run("make", "all")
    assert second.returncode == 0
    assert not [line for line in second.stdout.splitlines() if line.split()[0].isupper()], second.stdout
    assert image.stat().st_mtime_ns == before


def test_path_with_blanks_is_refused(tmp_path):
    """One line that says so, instead of a failure somewhere inside."""
    place = tmp_path / "a place"
    place.mkdir()
    shutil.copy(ROOT / "Makefile", place)
    done = run("make", "-n", cwd=place)
    assert done.returncode != 0
    assert "cannot be built in a path with blanks" in done.stderr and len(done.stderr.splitlines()) == 1


def test_wrong_sum_names_file_and_sums(tmp_path):
    """The first file that is not the pinned one stops everything, and nothing of it is unpacked."""
    dist, deps = tmp_path / "dist", tmp_path / "deps"
    dist.mkdir()
    name, expected = next(iter(pinned().items()))
    content = b"something else"
    (dist / name).write_bytes(content)
    done = run(FETCH, deps, env={"SLUICE_DISTFILES": str(dist)})
    assert done.returncode != 0
    for word in (name, expected, hashlib.sha256(content).hexdigest()):
        assert word in done.stderr, done.stderr
    assert not (deps / "lwip").exists() and not list((deps / "dist").iterdir())


def test_missing_distfile_is_named(tmp_path):
    done = run(FETCH, tmp_path / "deps", env={"SLUICE_DISTFILES": str(tmp_path)})
    assert done.returncode != 0 and next(iter(pinned())) in done.stderr


ONE_LINE = """
# a comment
deb-src http://source.example/debian CODENAME main
deb [arch=amd64 signed-by=/x/y.gpg] http://tools.example/apt cloud-sdk main
deb http://security.example/debian-security CODENAME-security main
deb [arch=amd64 signed-by=/x/y.gpg] http://mirror.example/debian/ CODENAME main contrib
"""
DEB822 = """
Types: deb
URIs: http://off.example/debian
Suites: CODENAME
Components: main
Enabled: no

# a comment
Types: deb deb-src
URIs: http://mirror.example/debian/ http://second.example/debian
Suites: CODENAME CODENAME-updates
Components: main contrib
Signed-By: /x/y.gpg

Types: deb
URIs: http://security.example/debian-security
Suites: CODENAME-security
Components: main
"""


def codename():
    words = dict(
        line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line
    )
    return words.get("VERSION_CODENAME", "").strip('"')


@pytest.mark.parametrize("name, text", [("sources.list", ONE_LINE), ("sources.list.d/debian.sources", DEB822)])
def test_mirror_is_the_machines(tmp_path, name, text):
    """Both forms of apt's source lists; security archives, other archives and disabled ones are passed over."""
    if not codename():
        pytest.skip("/etc/os-release has no VERSION_CODENAME")
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text.replace("CODENAME", codename()))
    done = run(FETCH, "--mirror", env={"SLUICE_APT_ETC": str(tmp_path)})
    assert done.stdout.strip() == "http://mirror.example/debian/", done.stdout + done.stderr


def test_bootstrap_usage():
    done = run(ROOT / "host" / "bootstrap", "nonsense")
    assert done.returncode == 1 and "host/bootstrap run|check" in done.stderr and not done.stdout
    done = run(ROOT / "host" / "bootstrap", "--help")
    assert done.returncode == 0 and "host/bootstrap run|check" in done.stdout and not done.stderr


def test_checkers_can_fail():
    """The layer check knows each direction that is forbidden."""
    assert run(ROOT / "tests" / "layers.py", "--self-test").returncode == 0


def without_spin(folder):
    """A PATH with all that there is but Spin."""
    for place in os.get_exec_path():
        for name in os.listdir(place) if os.path.isdir(place) else []:
            if name != "spin" and not (folder / name).exists():
                (folder / name).symlink_to(os.path.join(place, name))
    return {"PATH": str(folder)}


def test_missing_spin_is_a_skip_with_its_reason(tmp_path):
    """The models end with code 77 then: neither passed nor failed, and the reason is told."""
    done = run("/usr/bin/python3", ROOT / "tests" / "run_checks.py", "model", env=without_spin(tmp_path))
    lines = done.stdout.splitlines()
    assert lines[-1] == "0 passed, 0 failed, 1 skipped", done.stdout
    assert lines[-2].startswith("skip model (") and lines[-2].endswith("spin is not installed (apt-get install spin)")


@pytest.mark.parametrize("recipe, verdict", [
    ("@echo 'skip: no such thing'; exit 77", "0 passed, 0 failed, 1 skipped"),
    ("@echo 'skip: no such thing'", "0 passed, 0 failed, 1 skipped"),
    ("@echo 'skip: no such thing'; exit 1", "0 passed, 1 failed, 0 skipped"),
    ("@exit 77", "0 passed, 1 failed, 0 skipped"),
    ("@echo all is well", "1 passed, 0 failed, 0 skipped"),
])  # fmt: skip
def test_groups_are_counted_by_what_they_say(tmp_path, recipe, verdict):
    """A code of 77 is a skip only with a reason; a reason does not make up for a failure."""
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "run_checks.py", tmp_path / "tests")
    (tmp_path / "Makefile").write_text(f"model:\n\t{recipe}\n")
    done = run("/usr/bin/python3", tmp_path / "tests" / "run_checks.py", "model", cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == verdict, done.stdout
