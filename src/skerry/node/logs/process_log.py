"""The log of this process in a ring on disk, for forwarding: it survives a kill, as the output of workloads
does.

`skerry.kit.logs` calls `add` with every line, from any thread and possibly while another is being written.
Each record is one line of JSON, since a traceback has several lines. `decode` reads it.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from skerry.kit import files, json_codec
from skerry.model.log_origins import LogOrigin, LogOriginKind
from skerry.node.logs.ring_sources import LogRing
from skerry.node.logs.rings import RingWriter

_STREAM: Final = "log"
_MAX_BYTES: Final = 8 * 1024**2


class ProcessLog:
    """Writes the ring of one data folder and boot: numbers of records go on within a boot only, since a power
    cut may take the newest."""

    def __init__(self, folder: Path, boot: str) -> None:
        self._path = files.private_folder(files.private_folder(folder) / boot)
        others = sorted((path for path in folder.iterdir() if path != self._path), key=_changed_at)
        for older in others[:-1]:
            shutil.rmtree(older, ignore_errors=True)
        self._before = others[-1:]
        self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._ring = RingWriter(self._folder, _STREAM, max_bytes=_MAX_BYTES)
        self._pending: deque[tuple[int, bytes]] = deque()
        self._writing = threading.Lock()

    def add(self, level: str, line: str) -> None:
        """Store a line. Never raises, and waits for no other thread."""
        self._pending.append((time.time_ns(), json_codec.encode((level, line)) + b"\n"))
        while self._pending and self._writing.acquire(blocking=False):
            try:
                while self._pending:
                    time_ns, data = self._pending.popleft()
                    self._ring.write(data, time_ns)
            finally:
                self._writing.release()

    def list_rings(self) -> Iterable[LogRing]:
        origin = LogOrigin(LogOriginKind.PROCESS)
        for path in self._before:
            yield LogRing(f"process@{path.name}", path, origin, (_STREAM,), has_ended=True, is_final=True)
        yield LogRing(f"process@{self._path.name}", self._path, origin, (_STREAM,))

    def close(self) -> None:
        with self._writing:
            self._ring.close()
            os.close(self._folder)


def _changed_at(path: Path) -> float:
    return path.stat().st_mtime


def decode(text: str) -> tuple[str, str]:
    """Level and text of a line of the ring."""
    try:
        return json_codec.decode(text.encode(), tuple[str, str])
    except json_codec.InvalidJson:
        return "info", text  # it was cut, or records before it are lost
