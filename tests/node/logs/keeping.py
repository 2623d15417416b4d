"""Rings for tests: a folder with one, what should be read from it, and what it takes on disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from skerry.kit.sequence_gap import SequenceGap
from skerry.node.logs.readers import LogRecord, RingItem
from skerry.node.logs.rings import RingWriter

STREAM = "stdout"

# A writer in a process of its own: FOLDER, MAX_BYTES, then a program that uses `ring` and `now`.
WRITER = """
import os, sys, time
from skerry.node.logs.rings import RingWriter
ring = RingWriter(os.open(sys.argv[1], os.O_RDONLY), "stdout", max_bytes=int(sys.argv[2]))
now = time.time_ns
"""


def writing(folder: Path, max_bytes: int, program: str) -> list[str]:
    """The command for a process that writes the ring in `folder` by `program`."""
    return [sys.executable, "-c", WRITER + program, str(folder), str(max_bytes)]


class Ring:
    """A writer with its folder's descriptor."""

    def __init__(self, folder: Path, *, max_bytes: int = 4096, segment_bytes: int | None = None) -> None:
        self.folder = folder
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self.writer = RingWriter(self._descriptor, STREAM, max_bytes=max_bytes, segment_bytes=segment_bytes)

    def __enter__(self) -> RingWriter:
        return self.writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        os.close(self._descriptor)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{STREAM}-*"))


def size_of(folder: Path) -> int:
    """The bytes of all segments; one that goes meanwhile counts nothing."""
    total = 0
    for path in segments(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def assert_numbers_are_whole(items: Iterable[RingItem], after: int, last: int) -> set[int]:
    """Each number after `after` up to `last` is there once, in order, or in a gap; gives those in gaps."""
    expected = after + 1
    missing: set[int] = set()
    for item in items:
        if isinstance(item, SequenceGap):
            assert item.first == expected <= item.last
            missing.update(range(item.first, item.last + 1))
            expected = item.last + 1
        else:
            assert isinstance(item, LogRecord)
            assert item.seq == expected
            expected += 1
    assert expected == last + 1
    return missing
