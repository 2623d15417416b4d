"""Logs of functions: stored on disk with a limit per function, and read as one stream in the order of time.

    logs/
      hello/                    a function
        01jw3.../               a worker of it, with the rings of its streams
      .blank/                   likewise, of workers without a function yet

Inits of the workers, or their launcher, write the rings (`skerry.node.logs`) and do not know the limit per
function: here the oldest output of a function's workers is removed when it exceeds that. Moving a folder does
not affect its writer, which is how a prestarted worker gets its function. Most workers print nothing, and
have no folder (`expect`): on a disk, making one takes as long as the rest of the cell.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import os
import shutil
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from skerry.kit import files
from skerry.kit.sequence_gap import SequenceGap
from skerry.model.cells import OutputChannel
from skerry.model.ids import DEFAULT_NAMESPACE, FunctionName
from skerry.model.log_origins import LogOrigin, LogOriginKind
from skerry.node.logs.lines import LineAssembler, LogLine
from skerry.node.logs.readers import RingReader
from skerry.node.logs.ring_sources import LogRing

_BLANK: Final = ".blank"
_TRIM_S: Final = 5.0
_POLL_S: Final = 0.2  # between polls, while following
_RINGS: Final = 8  # a stream of one worker may use this part of its function's limit
_LEAST_RING: Final = 8 * 1024
_AT_ONCE: Final = 256
_SCAN_S: Final = 20.0


class FunctionLogLine(NamedTuple):
    """A line of a worker's output; before it, output was lost `lost` times."""

    time_ns: int
    worker: str
    stream: OutputChannel
    text: str
    is_partial: bool = False
    lost: int = 0


class FunctionLogs:
    """The folder of all logs of functions."""

    def __init__(self, folder: Path, bytes_each: int) -> None:
        """At most about `bytes_each` are stored per function."""
        self._folder = files.private_folder(folder)
        self._bytes_each = bytes_each
        self._live: dict[str, FunctionName | None] = {}  # running workers, and their functions
        self._silent: set[str] = set()  # those of them without a folder
        self._ended: list[tuple[str, str]] = []  # other workers with output, and their functions
        self._scan_at = 0.0
        shutil.rmtree(self._folder / _BLANK, ignore_errors=True)  # of an earlier agent

    @property
    def ring_bytes(self) -> int:
        """The limit of one stream of a worker."""
        return max(_LEAST_RING, self._bytes_each // _RINGS)

    def begin(self, worker: str, name: FunctionName | None = None) -> Path:
        """A folder for the output of `worker`; `assign` may set its function later."""
        self._live[worker] = name
        return self._make(worker)

    def expect(self, worker: str) -> None:
        """The same without a folder, which `folder` makes at its first output."""
        self._live[worker] = None
        self._silent.add(worker)

    def folder(self, worker: str) -> Path:
        """The folder of a running worker, made now if it has none. Raises OSError, also if it has ended."""
        if worker not in self._live:
            raise FileNotFoundError(errno.ENOENT, "the worker has ended", worker)
        if worker in self._silent:
            return self._make(worker)
        return self._folder / (self._live[worker] or _BLANK) / worker

    def _make(self, worker: str) -> Path:
        folder = self._folder / (self._live[worker] or _BLANK) / worker
        folder.mkdir(parents=True, mode=0o700)
        self._silent.discard(worker)
        return folder

    def assign(self, worker: str, name: FunctionName) -> None:
        """A worker got its function."""
        if worker in self._silent:
            self._live[worker] = name
            return
        home = self._folder / name
        home.mkdir(exist_ok=True, mode=0o700)
        os.rename(self._folder / _BLANK / worker, home / worker)
        self._live[worker] = name

    def end(self, worker: str, name: FunctionName | None = None) -> None:
        """The worker has ended; idempotent. Output of one without a function is removed."""
        if worker not in self._live:
            return
        name = self._live.pop(worker) or name
        if worker in self._silent:
            self._silent.discard(worker)
        elif name is None:
            shutil.rmtree(self._folder / _BLANK / worker, ignore_errors=True)
        else:
            self._ended.append((worker, name))
            self.trim(name)

    def forget(self, name: FunctionName) -> None:
        """The function was deleted."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    async def run(self) -> None:
        """Trim the logs of running workers, for ever."""
        while True:
            await asyncio.sleep(_TRIM_S)
            for name in {name for name in self._live.values() if name is not None}:
                self.trim(name)
                await asyncio.sleep(0)

    def trim(self, name: FunctionName) -> None:
        """Remove the oldest output until the rest is within the limit. Files that are being written stay."""
        removable: list[tuple[float, int, Path]] = []
        for worker in self._workers(name):
            segments = sorted(_segments(worker))
            is_live = worker.name in self._live
            if not segments and not is_live:
                shutil.rmtree(worker, ignore_errors=True)
            newest = {path.name.partition("-")[0]: path for _, _, path in segments}
            removable += [each for each in segments if not is_live or each[2] not in newest.values()]
        total = sum(size for _, size, _ in removable)
        for _, size, path in sorted(removable):
            if total <= self._bytes_each:
                break
            path.unlink(missing_ok=True)
            total -= size

    def last_output(self, worker: str, name: FunctionName, most: int, *, since_ns: int = 0) -> str:
        """The end of a worker's output, for an error."""
        folder = self._folder / name / worker
        lines = heapq.merge(
            *(_Reading(folder, stream, since_ns).more(whole=False) for stream in OutputChannel)
        )
        return "".join(f"{line.text}\n" for line in lines)[-most:]

    async def read(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[FunctionLogLine, None]:
        """Output of a function's workers, or its last `lines`; with `follow`, then new output, until the
        function is deleted."""
        streams: dict[Path, _Reading] = {}
        there = self._read(self._workers(name), streams, whole=follow)
        async for line in _with_pauses(there if lines is None else iter(deque(there, maxlen=lines))):
            yield line
        while follow and self._is_known(name):
            await asyncio.sleep(_POLL_S)
            async for line in _with_pauses(self._read(self._workers(name), streams, whole=True)):
                yield line

    def _is_known(self, name: FunctionName) -> bool:
        """False if it was deleted: nothing more of it can come."""
        return (self._folder / name).exists() or any(self._live[each] == name for each in self._silent)

    def list_rings(self) -> Iterator[LogRing]:
        """The output of all workers that have a function, for forwarding. Those that have ended are looked
        for now and then, and known ones stay until they are removed."""
        now = time.monotonic()
        if now >= self._scan_at:
            self._scan_at = now + _SCAN_S
            self._ended = sorted(
                (worker.name, name.name)
                for name in self._folder.iterdir()
                if name.name != _BLANK
                for worker in self._workers(FunctionName(name.name))
                if worker.name not in self._live
            )
        live = sorted(
            (worker, name)
            for worker, name in self._live.items()
            if name is not None and worker not in self._silent
        )
        for found, has_ended in ((self._ended, True), (live, False)):
            for worker, name in found:
                if has_ended and worker in self._live:
                    continue
                namespace, _, plain = name.rpartition(":")
                origin = LogOrigin(
                    LogOriginKind.FUNCTION, namespace=namespace or DEFAULT_NAMESPACE, function=plain
                )
                yield LogRing(f"function:{worker}", self._folder / name / worker, origin, has_ended=has_ended)

    def _workers(self, name: FunctionName) -> list[Path]:
        try:
            return sorted((self._folder / name).iterdir())
        except FileNotFoundError:
            return []

    def _read(
        self, workers: list[Path], streams: dict[Path, _Reading], *, whole: bool
    ) -> Iterator[FunctionLogLine]:
        """New lines in the rings of `workers`, in the order of time; `streams` is the position in each, and
        is advanced. `whole`: unterminated lines are left for later."""
        for worker in workers:
            for stream in OutputChannel:
                streams.setdefault(worker / stream, _Reading(worker, stream))
        return heapq.merge(
            *(each.more(whole=whole and each.worker.name in self._live) for each in streams.values())
        )


async def _with_pauses(lines: Iterator[FunctionLogLine]) -> AsyncGenerator[FunctionLogLine, None]:
    for number, line in enumerate(lines):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be many: let other tasks run
        yield line


class _Reading:
    """The position in one stream of a worker."""

    def __init__(self, worker: Path, stream: OutputChannel, since_ns: int = 0) -> None:
        self.worker = worker
        self._stream = stream
        self._since_ns = since_ns  # older output is skipped, also if it is the beginning of a line
        self._reader = RingReader(worker, stream)
        self._after = 0
        self._assembler = LineAssembler()
        self._lost = 0
        self._latest = 0

    def more(self, *, whole: bool) -> Iterator[FunctionLogLine]:
        for item in self._reader.read(self._after):
            self._after = item.last if isinstance(item, SequenceGap) else item.seq
            if not isinstance(item, SequenceGap) and item.time_ns < self._since_ns:
                continue
            for each in self._assembler.take(item):
                if isinstance(each, SequenceGap):
                    self._lost += 1
                else:
                    yield self._to_log_line(each)
        for line in () if whole else self._assembler.flush():
            yield self._to_log_line(line)

    def _to_log_line(self, line: LogLine) -> FunctionLogLine:
        self._latest = max(self._latest, line.time_ns)  # a clock that was set back must not reorder lines
        lost, self._lost = self._lost, 0
        return FunctionLogLine(self._latest, self.worker.name, self._stream, line.text, line.is_partial, lost)


def _segments(worker: Path) -> Iterator[tuple[float, int, Path]]:
    """The files of a worker: last write time, and size."""
    with os.scandir(worker) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # its ring removed it first
            yield status.st_mtime, status.st_size, Path(entry.path)
