"""Which tests get a second try, that none gets it unseen, and which are fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def run(folder: Path, *flags: str) -> str:
    """What pytest prints for a repository of three folders with the same two tests."""
    for name in ("daemon", "cli", "kit"):
        home = folder / "tests" / name
        home.mkdir(parents=True)
        (home / f"test_{name}.py").write_text(FLAKY)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = root\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.selection",
        "-p",
        "no:cacheprovider",
        *flags,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
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


def test_only_tests_of_whole_systems_are_tried_twice_and_each_is_listed_with_its_reason(
    tmp_path: Path,
) -> None:
    printed = run(tmp_path, "-n", "2", "--dist", "worksteal", "-raR", "--rerun-show-tracebacks")
    twice = {
        "test_daemon.py::test_marked",
        "test_daemon.py::test_plain",
        "test_cli.py::test_marked",
        "test_cli.py::test_plain",
        "test_kit.py::test_marked",
    }
    assert listed(printed, "RERUN") == twice
    assert listed(printed, "FAILED") == {"test_kit.py::test_plain"}
    assert "Failed: a loaded machine" in printed


def test_a_debugger_stops_at_the_first_failure(tmp_path: Path) -> None:
    printed = run(tmp_path, "--pdb", "-raR")  # nobody types anything: the debugger leaves at once
    assert "1 failed" in printed
    assert listed(printed, "RERUN") == set()


def test_fast_tests_are_those_without_root_and_whole_systems(tmp_path: Path) -> None:
    assert "1 failed, 1 deselected" in run(tmp_path, "--fast")
