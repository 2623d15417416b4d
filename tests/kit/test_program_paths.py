"""Where programs are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.kit import program_paths


def make(folder: Path, name: str) -> str:
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(program)


def test_a_program_is_found_by_path_first_and_then_in_the_usual_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program_paths.find("sh") in ("/usr/bin/sh", "/bin/sh")
    own = make(tmp_path, "sh")
    assert program_paths.find("sh") == own
    assert program_paths.find(own) == own


def test_what_is_not_installed_has_no_path_nor_what_is_outside_the_one_that_is_searched(
    tmp_path: Path,
) -> None:
    assert program_paths.find("no-such-program") == ""
    assert program_paths.find("sh", str(tmp_path)) == ""
