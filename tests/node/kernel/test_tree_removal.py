"""Whatever a layer left is removed, and nothing that it points at."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.node.kernel import tree_removal
from tests.node.layers.ground import needs_root

FLAGS = {"immutable": 0x10, "append-only": 0x20}


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path, os.O_RDONLY)
    yield opened
    os.close(opened)


def test_nothing_there_is_fine(parent: int) -> None:
    tree_removal.remove("nothing", parent)


def test_a_file_a_link_and_a_fifo_go_and_what_the_link_leads_to_stays(parent: int, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    os.symlink("kept", tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "tree").mkdir()
    os.symlink(tmp_path / "kept", tmp_path / "tree" / "link")
    for name in ("link", "fifo", "tree"):
        tree_removal.remove(name, parent)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept"]


def test_a_tree_deeper_than_recursion_and_paths_go_is_removed(parent: int, tmp_path: Path) -> None:
    at = os.dup(parent)
    for _ in range(2100):
        os.mkdir("deep", dir_fd=at)
        os.close(os.open("file", os.O_CREAT, dir_fd=at))
        below = os.open("deep", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    tree_removal.remove("deep", parent)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_names_that_are_in_the_way_of_the_removal_are_no_hindrance(parent: int, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(1, 6):
        (tree / str(number) / str(number) / "x").mkdir(parents=True)
        (tree / "a" / "b" / str(number) / "y").mkdir(parents=True)
    (tree / "6").touch()
    os.symlink("a", tree / "7")
    tree_removal.remove(b"tree", parent)
    assert list(tmp_path.iterdir()) == []


@needs_root
@pytest.mark.parametrize("flag", FLAGS)
def test_what_is_locked_is_unlocked_and_removed(flag: str, parent: int, tmp_path: Path) -> None:
    locked = tmp_path / "tree" / "folder"
    (locked / "deeper").mkdir(parents=True)
    (locked / "deeper" / "file").touch()
    paths = (locked / "deeper" / "file", locked / "deeper", locked, tmp_path / "tree")
    try:
        for path in paths:
            set_flag(path, FLAGS[flag])
    except OSError:
        pytest.skip("this file system has no such flags")
    with pytest.raises(PermissionError):
        (locked / "deeper" / "file").unlink()
    tree_removal.remove("tree", parent)
    assert list(tmp_path.iterdir()) == []


def set_flag(path: Path, flag: int) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(opened, 0x40086602, struct.pack("=i4x", flag))
    finally:
        os.close(opened)
