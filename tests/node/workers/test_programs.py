"""Which interpreters run functions: those that workers can see and read, and else why there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.node.workers import programs


def script(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def seen(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that workers could see, with nothing else on the path."""
    monkeypatch.setattr(programs, "_UNSEEN", (str(tmp_path / "hidden"),))
    monkeypatch.setattr(programs, "ENVIRONMENT", {"PATH": str(tmp_path / "bin")})
    monkeypatch.setattr(sys, "_base_executable", "")
    monkeypatch.setattr(sys, "executable", "")
    top = tmp_path_factory.getbasetemp()
    for folder in (top, tmp_path):
        folder.chmod(0o755)
    for folder in top.parents:
        if not folder.stat().st_mode & 0o001:
            pytest.skip(f"not everybody may enter {folder}, where tests have their files")
    return tmp_path / "bin"


async def test_the_first_program_that_can_be_used_is_taken(seen: Path) -> None:
    script(seen, "node", "exit 1")
    path = script(seen, "nodejs", "echo v20.1.0")
    assert await programs.find_node() == programs.Program(path, "Node.js 20.1.0")
    path = script(seen, "python3", f"echo 3.12.1; echo {seen}")
    assert await programs.find_python() == programs.Program(path, "Python 3.12.1")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("echo v12.22.0", "is of version 12.22.0, and 16 is needed"),
        ("echo nonsense", "is of version nonsense"),
        ("exit 3", "ended with 3"),
    ],
)
async def test_why_a_program_is_of_no_use_is_told(seen: Path, text: str, told: str) -> None:
    script(seen, "node", text)
    with pytest.raises(errors.Unavailable, match=told):
        await programs.find_node()


async def test_that_there_is_none_is_told_with_what_to_do(seen: Path) -> None:
    with pytest.raises(errors.Unavailable, match=r"there is none.*install Node\.js 16"):
        await programs.find_node()
    with pytest.raises(errors.Unavailable, match=r"there is none.*install Python 3\.11"):
        await programs.find_python()


async def test_a_program_that_workers_cannot_see_or_enter_is_not_taken(seen: Path, tmp_path: Path) -> None:
    seen.mkdir()
    hidden = script(tmp_path / "hidden" / "bin", "node", "echo v20.1.0")
    (seen / "node").symlink_to(hidden)
    with pytest.raises(errors.Unavailable, match="which workers do not see"):
        await programs.find_node()
    (seen / "node").unlink()
    private = script(tmp_path / "private" / "bin", "node", "echo v20.1.0")
    (tmp_path / "private").chmod(0o700)
    (seen / "node").symlink_to(private)
    with pytest.raises(errors.Unavailable, match="is for some users only"):
        await programs.find_node()


async def test_this_machine_has_a_python_for_functions() -> None:
    found = await programs.find_python()
    assert found.version.startswith("Python 3.")
