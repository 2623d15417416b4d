"""Measures and removes file trees that a container created.

Such trees are hostile: folders a hundred thousand levels deep, paths longer than the kernel's limit, links to
anywhere, and concurrent changes while the container runs. Nothing here follows a link, leaves the file
system, recurses, or holds more than a bounded number of descriptors.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Final, NamedTuple

from skerry.node.kernel import thread_syscalls, tree_removal

_BLOCK: Final = 512  # unit of st_blocks, on any file system
_LONGEST_PATH: Final = 3500  # in one call; the kernel's limit is 4096, and one more name is appended
_MOST_STEPS: Final = 64
_WITHIN: Final = (
    thread_syscalls.RESOLVE_BENEATH | thread_syscalls.RESOLVE_NO_SYMLINKS | thread_syscalls.RESOLVE_NO_XDEV
)
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class TreeSize(NamedTuple):
    """Disk usage of a tree; a lower bound unless `whole`."""

    bytes: int
    files: int
    whole: bool


def remove(path: Path) -> None:
    """Remove whatever is at `path`, recursively. Does nothing if it does not exist."""
    try:
        parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        tree_removal.remove(os.fsencode(path.name), parent)
    finally:
        os.close(parent)


def measure(path: Path, *, within_s: float) -> TreeSize:
    """The size of everything below `path`, hard links counted once.

    Not whole if the time was up first, or if folders are nested too deeply.
    """
    walker = _Walker(os.open(path, _FOLDER | os.O_CLOEXEC))
    deadline = time.monotonic() + within_s
    try:
        while walker.step():
            if time.monotonic() > deadline:
                return TreeSize(walker.blocks * _BLOCK, walker.files, whole=False)
    finally:
        walker.close()
    return TreeSize(walker.blocks * _BLOCK, walker.files, walker.whole)


class _Base(NamedTuple):
    """An open folder that paths start at; `below` is the number of pending folders when it was opened."""

    descriptor: int
    below: int


class _Walker:
    """Visits one folder at a time, each by its path from the last open one, so that few need to be open."""

    def __init__(self, root: int) -> None:
        self._bases = [_Base(root, 0)]
        self._pending = [b"."]  # paths, relative to the base that was the last when they were added
        self._several_names: set[int] = set()
        self.blocks = self.files = 0
        self.whole = True

    def step(self) -> bool:
        """Visit the next folder; False if there is none."""
        if not self._pending:
            return False
        path = self._pending.pop()
        try:
            folder = thread_syscalls.open_at(self._bases[-1].descriptor, path, _FOLDER, resolve=_WITHIN)
        except OSError:
            pass  # removed, moved, or replaced by a link meanwhile
        else:
            self._visit(folder, path)
        while self._bases[-1].below and len(self._pending) < self._bases[-1].below:
            os.close(self._bases.pop().descriptor)
        return True

    def _visit(self, folder: int, path: bytes) -> None:
        with os.scandir(folder) as entries:
            folders = [os.fsencode(entry.name) for entry in entries if self._count(entry)]
        if folders and len(path) > _LONGEST_PATH:
            if len(self._bases) < _MOST_STEPS:
                self._bases.append(_Base(folder, len(self._pending) + 1))
                self._pending += folders
                return
            self.whole = False
        else:
            self._pending += [b"%s/%s" % (path, name) for name in folders]
        os.close(folder)

    def _count(self, entry: os.DirEntry[str]) -> bool:
        """Add it to the size; True if it is a folder to visit."""
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return False
        is_folder = stat.S_ISDIR(status.st_mode)
        if status.st_nlink > 1 and not is_folder:
            if status.st_ino in self._several_names:
                return False
            self._several_names.add(status.st_ino)
        self.blocks += status.st_blocks
        self.files += 1
        return is_folder

    def close(self) -> None:
        for base in self._bases:
            os.close(base.descriptor)
