"""Writes lines to a file, rotated by size: `all.log`, `all.log.1` and so on, the highest the oldest.

A file that somebody else moved away, such as logrotate, is opened anew. Lines are on disk when `send`
returns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from skerry.kit import tasks
from skerry.transport.log_forwarding import formats
from skerry.transport.log_forwarding.batches import ForwardedLine, NodeLabels, TargetUnavailable
from skerry.transport.log_forwarding.targets import FileTarget

_MODE = 0o640


class FileSender:
    """Appends to the file of a target."""

    def __init__(self, target: FileTarget, labels: NodeLabels) -> None:
        self._path = Path(target.path)
        self._max_bytes = target.max_bytes
        self._keep = target.keep
        self._labels = labels
        self._file = -1

    async def send(self, lines: Sequence[ForwardedLine]) -> None:
        data = [formats.json_line(line, self._labels) for line in lines]
        try:
            await tasks.in_thread(self._write, data)
        except OSError as error:
            self._close()
            raise TargetUnavailable(f"{self._path}: {error.strerror}") from error

    async def close(self) -> None:
        self._close()

    def _write(self, data: list[bytes]) -> None:
        self._open()
        size = os.fstat(self._file).st_size
        pending = bytearray()
        for line in data:
            if size + len(pending) and size + len(pending) + len(line) > self._max_bytes:
                self._append(pending)
                self._rotate()
                self._open()
                size, pending = 0, bytearray()
            pending += line
        self._append(pending)
        os.fdatasync(self._file)

    def _append(self, data: bytearray) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def _open(self) -> None:
        """Open the file, unless it is the one that is open. A torn last line is terminated."""
        if self._file >= 0:
            try:
                if os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                    return
            except FileNotFoundError:
                pass
            self._close()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, _MODE)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def _rotate(self) -> None:
        os.fdatasync(self._file)
        self._close()
        if not self._keep:
            self._path.unlink(missing_ok=True)
            return
        for number in range(self._keep, 0, -1):
            older = self._rotated(number)
            newer = self._path if number == 1 else self._rotated(number - 1)
            try:
                os.rename(newer, older)
            except FileNotFoundError:
                continue

    def _rotated(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
