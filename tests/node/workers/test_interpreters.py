"""Which interpreters run functions: those that workers can see and read, and else why there is none."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.node.workers import interpreters


def script(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def seen(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that workers could see, with nothing else on the path."""
    monkeypatch.setattr(interpreters, "_INVISIBLE", (str(open_folder / "hidden"),))
    monkeypatch.setattr(interpreters, "ENVIRONMENT", {"PATH": str(open_folder / "bin")})
    monkeypatch.setattr(sys, "_base_executable", "")
    monkeypatch.setattr(sys, "executable", "")
    return open_folder / "bin"


async def test_the_first_program_that_can_be_used_is_taken(seen: Path) -> None:
    script(seen, "node", "exit 1")
    path = script(seen, "nodejs", "echo v20.1.0")
    needs = path, str(seen)
    assert await interpreters.find_node() == interpreters.Interpreter(path, "Node.js 20.1.0", needs)
    path = script(seen, "python3", f"echo 3.12.1; echo {seen}; echo {seen.parent}; echo {seen.parent}")
    library = seen.parent / "lib"
    library.mkdir()
    needs = path, str(seen), str(library)
    assert await interpreters.find_python() == interpreters.Interpreter(path, "Python 3.12.1", needs)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("echo v12.22.0", "has version 12.22.0, and 16 is required"),
        ("echo nonsense", "has version nonsense"),
        ("exit 3", "exits with 3"),
    ],
)
async def test_why_a_program_is_of_no_use_is_told(seen: Path, text: str, reported: str) -> None:
    script(seen, "node", text)
    with pytest.raises(errors.Unavailable, match=reported):
        await interpreters.find_node()


async def test_that_there_is_none_is_told_with_what_to_do(seen: Path) -> None:
    with pytest.raises(errors.Unavailable, match=r"not installed.*install Node\.js 16"):
        await interpreters.find_node()
    with pytest.raises(errors.Unavailable, match=r"not installed.*install Python 3\.11"):
        await interpreters.find_python()


async def test_a_program_that_workers_cannot_see_or_enter_is_not_taken(seen: Path, open_folder: Path) -> None:
    seen.mkdir()
    hidden = script(open_folder / "hidden" / "bin", "node", "echo v20.1.0")
    (seen / "node").symlink_to(hidden)
    with pytest.raises(errors.Unavailable, match="which workers do not see"):
        await interpreters.find_node()
    (seen / "node").unlink()
    private = script(open_folder / "private" / "bin", "node", "echo v20.1.0")
    (open_folder / "private").chmod(0o700)
    (seen / "node").symlink_to(private)
    with pytest.raises(errors.Unavailable, match="is not accessible to all users"):
        await interpreters.find_node()


async def test_a_python_that_workers_cannot_see_is_not_run_and_one_that_is_gone_is_not_taken(
    seen: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = script(open_folder / "hidden" / "bin", "python", f"touch {open_folder}/was-run")
    for path, reason in ((hidden, "which workers do not see"), (str(open_folder / "gone"), "cannot be read")):
        monkeypatch.setattr(sys, "_base_executable", path)
        with pytest.raises(errors.Unavailable, match=reason):
            await interpreters.find_python()
    assert not (open_folder / "was-run").exists()


async def test_this_machine_has_a_python_for_functions() -> None:
    found = await interpreters.find_python()
    assert found.version.startswith("Python 3.")
    assert found.needs == () or not found.path.startswith("/usr/"), "what is in /usr is seen anyway"
