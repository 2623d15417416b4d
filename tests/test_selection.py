"""Which tests get a second try, that none gets it unseen, and which are fast."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_repo import ROOT

# Fails at the first try, and passes at the second.
FLAKY = """
import pytest
from pathlib import Path

@pytest.mark.root
def test_marked(): first_try("marked")

def test_plain(): first_try("plain")

def first_try(name):
    seen = Path(__file__).with_suffix("." + name)
    if not seen.exists():
        seen.touch()
        pytest.fail("a loaded machine")
"""


# Catches what ends it, and waits again.
STUBBORN = """
import time

def test_stubborn():
    try:
        time.sleep(60)
    except BaseException:
        time.sleep(60)
"""


# All others take longer to import than these tests to run.
PLUGINS = ("-p", "xdist", "-p", "pytest_rerunfailures", "-p", "pytest_timeout")


def run(folder: Path, *flags: str, code: str = FLAKY, path: str = "") -> str:
    """What pytest prints for a repository of four folders with the same tests."""
    for place in ("daemon", "cli", "kit", "node/routes"):
        home = folder / "tests" / place
        home.mkdir(parents=True)
        (home / f"test_{home.name}.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = root\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.selection",
        "-p",
        "no:cacheprovider",
        *PLUGINS,
        "--basetemp",
        str(folder / "temporary"),
        *flags,
    ]
    environment = {**os.environ, "PYTHONPATH": f"{path}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def listed(text: str, word: str) -> set[str]:
    """The tests that the summary lists under a word."""
    lines = text.partition("rerun test summary info")[2].splitlines()
    return {line.split()[1].rpartition("/")[2] for line in lines if line.startswith(f"{word} ")}


@pytest.mark.root(tries=1)
def test_only_tests_of_whole_systems_and_of_other_programs_are_tried_twice_and_each_is_listed_with_its_reason(
    tmp_path: Path,
) -> None:
    printed = run(tmp_path, "-n", "2", "--dist", "worksteal", "-raR", "--rerun-show-tracebacks")
    twice = {
        "test_daemon.py::test_marked",
        "test_daemon.py::test_plain",
        "test_cli.py::test_marked",
        "test_cli.py::test_plain",
        "test_kit.py::test_marked",
        "test_routes.py::test_marked",
        "test_routes.py::test_plain",
    }
    assert listed(printed, "RERUN") == twice
    assert listed(printed, "FAILED") == {"test_kit.py::test_plain"}
    assert "Failed: a loaded machine" in printed


@pytest.mark.root(tries=1)
def test_of_what_needs_root_only_what_is_of_whole_systems_is_tried_twice(tmp_path: Path) -> None:
    code = FLAKY.replace("mark.root", "mark.root(tries=1)")
    printed = run(tmp_path, "-raR", "tests/kit", "tests/daemon", code=code)
    assert listed(printed, "RERUN") == {"test_daemon.py::test_marked", "test_daemon.py::test_plain"}
    assert listed(printed, "FAILED") == {"test_kit.py::test_marked", "test_kit.py::test_plain"}


def test_other_users_skip_what_is_marked_root_with_one_line_that_has_the_number(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.geteuid = lambda: 1000\n")
    code = "import pytest\n@pytest.mark.root\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): 1 / 0\n"
    printed = run(tmp_path, "-n", "2", "-raR", code=code, path=str(tmp_path))
    assert "SKIPPED [8] " in printed
    assert "8 skipped" in printed
    assert "marked root, and this user is not root" in printed


def test_what_needs_root_says_so_by_its_mark_alone() -> None:
    asking = re.compile(r"skipif\([^)]*gete?uid\(\) != 0")
    found = [path for path in (ROOT / "tests").rglob("test_*.py") if asking.search(path.read_text())]
    assert [path for path in found if path != Path(__file__)] == []


def test_a_debugger_stops_at_the_first_failure(tmp_path: Path) -> None:
    printed = run(tmp_path, "--pdb", "-raR")  # nobody types anything: the debugger leaves at once
    assert "1 failed" in printed
    assert listed(printed, "RERUN") == set()


def test_fast_tests_are_those_without_root_and_whole_systems(tmp_path: Path) -> None:
    assert "1 failed, 1 passed, 2 deselected, 1 rerun" in run(tmp_path, "--fast")


def test_every_try_has_a_time_limit_also_after_one_that_the_limit_ended(tmp_path: Path) -> None:
    printed = run(tmp_path, "--timeout", "2", "tests/cli", code=STUBBORN)
    assert "1 failed, 1 rerun" in printed
    assert "Timeout (>2.0s)" in printed
