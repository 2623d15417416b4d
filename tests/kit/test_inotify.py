"""A watch tells that something was written in its folder, and nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from skerry.kit import inotify


async def test_what_was_written_before_anybody_waited_is_told(tmp_path: Path) -> None:
    with closing(inotify.DirectoryWatch(tmp_path)) as watch:
        (tmp_path / "file").write_text("text")
        assert await watch.changed(within_s=60)


async def test_a_change_is_told_once(tmp_path: Path) -> None:
    with closing(inotify.DirectoryWatch(tmp_path)) as watch:
        (tmp_path / "file").write_text("text")
        assert await watch.changed(within_s=60)
        assert not await watch.changed(within_s=0.02)


async def test_waiting_ends_after_its_time(tmp_path: Path) -> None:
    with closing(inotify.DirectoryWatch(tmp_path)) as watch:
        assert not await watch.changed(within_s=0.001)


def test_a_folder_that_is_not_there_is_an_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        inotify.DirectoryWatch(tmp_path / "none")
