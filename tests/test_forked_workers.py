"""In forks of a process that has collected them, tests run as in processes that collect by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.test_repo import ROOT
from tests.test_selection import PLUGINS

# How often the module was imported is counted in a file.
MODULE = """
import os, signal, time
from pathlib import Path
import pytest

with open(Path(__file__).with_name("imports"), "a") as file:
    file.write(f"{os.getpid()}\\n")

@pytest.fixture(scope="session")
def worker():
    return os.environ["PYTEST_XDIST_WORKER"]

def test_it_has_a_folder_of_its_own(tmp_path, worker):
    assert f"popen-{worker}" in tmp_path.parts
    assert list(tmp_path.iterdir()) == []

@pytest.mark.parametrize("number", range(4))
def test_what_is_printed_is_shown_with_the_failure(number):
    print(f"standard output {number}")
    os.system(f"echo standard error {number} >&2")
    time.sleep(0.2)
    assert number % 2

def test_a_second_try(tmp_path_factory):
    seen = Path(__file__).with_name("tried")
    if not seen.exists():
        seen.touch()
        pytest.fail("the first try")

def test_the_process_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_input_is_empty():
    assert os.read(0, 1) == b""
"""
FAULTY = """
raise RuntimeError("not to be imported")
"""


def run(folder: Path, *flags: str, **modules: str) -> str:
    for name, code in modules.items():
        (folder / f"test_{name}.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.support.forked_workers"]
    done = subprocess.run(
        [*command, *PLUGINS, "--basetemp", str(folder / "temporary"), *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_one_process_imports_and_forks_of_it_run_fail_try_again_and_are_replaced(tmp_path: Path) -> None:
    printed = run(tmp_path, "-n", "2", "--reruns", "1", "-rR", plain=MODULE)
    assert "3 failed, 5 passed" in printed, printed
    for number in (0, 2):
        assert f"standard output {number}" in printed
        assert f"standard error {number}" in printed
    assert "RERUN test_plain.py::test_a_second_try" in printed
    assert "crashed while running 'test_plain.py::test_the_process_dies'" in printed
    assert "replacing crashed worker" in printed
    assert len((tmp_path / "imports").read_text().split()) == 1


def test_what_cannot_be_collected_is_an_error(tmp_path: Path) -> None:
    printed = run(tmp_path, "-n", "2", plain=MODULE, faulty=FAULTY)
    assert "RuntimeError: not to be imported" in printed
    assert "ERROR test_faulty.py" in printed
    assert len((tmp_path / "imports").read_text().split()) == 1


def test_where_nothing_is_there_to_collect_each_process_says_so_itself(tmp_path: Path) -> None:
    printed = run(tmp_path, "-n", "2", "test_missing.py", plain=MODULE)
    assert "file or directory not found: test_missing.py" in printed
