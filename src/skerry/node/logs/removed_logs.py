"""Logs of what was removed before they were forwarded: kept on disk within a limit until they are.

    removed/
      01jw3.../           the output of one run, moved here as it was
        origin.json       what wrote it

Without forwarding nothing is kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files
from skerry.kit.clock import Clock
from skerry.kit.ulid import new_id
from skerry.model.log_origins import LogOrigin
from skerry.node import record_files
from skerry.node.logs.ring_sources import LogRing

log = structlog.get_logger(__name__)

_ORIGIN = "origin.json"


class RemovedLog(msgspec.Struct, frozen=True):
    """What wrote the output in a folder."""

    key: str
    origin: LogOrigin


class RemovedLogs:
    """The folder of such logs."""

    def __init__(self, folder: Path, max_bytes: int, clock: Clock) -> None:
        self._folder = files.private_folder(folder)
        self._max_bytes = max_bytes
        self._clock = clock
        self._stored_logs: dict[Path, tuple[RemovedLog, int]] = {}  # the oldest first, and its size
        for path in sorted(self._folder.iterdir()):
            stored = record_files.read(path / _ORIGIN, RemovedLog)
            if stored is None:
                shutil.rmtree(path, ignore_errors=True)
            else:
                self._stored_logs[path] = stored, _size(path)

    def keep(self, folder: Path, key: str, origin: LogOrigin) -> None:
        """Move `folder` here, if there is output in it. Never raises: then it is lost."""
        size = _size(folder)
        if not size:
            return
        path, stored = self._folder / new_id(self._clock.now()), RemovedLog(key, origin)
        try:
            record_files.write(folder / _ORIGIN, stored)
            os.rename(folder, path)
        except OSError as error:
            log.warning("logs.not_stored_logs", key=key, error=str(error))
            return
        self._stored_logs[path] = stored, size
        self._trim()

    def list_rings(self) -> Iterable[LogRing]:
        for path, (stored, _) in self._stored_logs.items():
            yield LogRing(stored.key, path, stored.origin, has_ended=True, is_final=True)

    def remove_sent(self, is_sent: Callable[[LogRing], bool]) -> None:
        """Remove those that every target has."""
        for ring in list(self.list_rings()):
            if is_sent(ring):
                self._remove(ring.folder)

    def _trim(self) -> None:
        total = sum(size for _, size in self._stored_logs.values())
        while total > self._max_bytes and self._stored_logs:
            path, (stored, size) = next(iter(self._stored_logs.items()))
            log.warning("logs.removed_unsent", key=stored.key, bytes=size)
            self._remove(path)
            total -= size

    def _remove(self, path: Path) -> None:
        del self._stored_logs[path]
        shutil.rmtree(path, ignore_errors=True)


def _size(folder: Path) -> int:
    """The bytes of its segments."""
    try:
        with os.scandir(folder) as entries:
            return sum(each.stat(follow_symlinks=False).st_size for each in entries if "-" in each.name)
    except OSError:
        return 0
