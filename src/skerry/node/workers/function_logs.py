"""What functions print: kept on disk within a bound for each, and read as one in the order of time.

    logs/
      hello/                    a function
        01jw3.../               a worker of it, with the rings of its streams
      .blank/                   likewise, of workers that have no function yet

The rings are written by the workers' inits (`skerry.node.logs`), who know nothing of the bound for all: here
the oldest of what a function's workers have printed goes when it is too much together. A folder keeps its
name to its writer when it is moved, which is how a prestarted worker gets its function.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from skerry.kit import files
from skerry.kit.sequence_gap import SequenceGap
from skerry.model.cells import OutputChannel
from skerry.model.ids import FunctionName
from skerry.node.logs.lines import LineAssembler, LogLine
from skerry.node.logs.readers import RingReader

_BLANK: Final = ".blank"
_TRIM_S: Final = 5.0
_LOOK_S: Final = 0.2  # between looks for more, while somebody follows
_RINGS: Final = 8  # a stream of one worker may take this part of what is kept of its function
_LEAST_RING: Final = 8 * 1024
_AT_ONCE: Final = 256


class FunctionLogLine(NamedTuple):
    """A line that a worker printed; before it, output was lost `lost` times."""

    time_ns: int
    worker: str
    stream: OutputChannel
    text: str
    is_partial: bool = False
    lost: int = 0


class FunctionLogs:
    """The folder of all that functions print."""

    def __init__(self, folder: Path, bytes_each: int) -> None:
        """At most about `bytes_each` are kept of a function."""
        self._folder = files.private_folder(folder)
        self._bytes_each = bytes_each
        self._live: dict[str, FunctionName | None] = {}  # workers that may still print, and whose they are
        shutil.rmtree(self._folder / _BLANK, ignore_errors=True)  # of an earlier agent

    @property
    def ring_bytes(self) -> int:
        """What one stream of a worker may keep."""
        return max(_LEAST_RING, self._bytes_each // _RINGS)

    def begin(self, worker: str, name: FunctionName | None = None) -> Path:
        """A folder for what `worker` prints from now on; it may get its function later, by `assign`."""
        folder = self._folder / (name or _BLANK) / worker
        folder.mkdir(parents=True, mode=0o700)
        self._live[worker] = name
        return folder

    def assign(self, worker: str, name: FunctionName) -> None:
        """A worker has got its function."""
        home = self._folder / name
        home.mkdir(exist_ok=True, mode=0o700)
        os.rename(self._folder / _BLANK / worker, home / worker)
        self._live[worker] = name

    def end(self, worker: str, name: FunctionName | None = None) -> None:
        """The worker prints no more; may be repeated. What one without a function has said is dropped."""
        name = self._live.pop(worker, name)
        if name is None:
            shutil.rmtree(self._folder / _BLANK / worker, ignore_errors=True)
        else:
            self.trim(name)

    def forget(self, name: FunctionName) -> None:
        """The function is gone."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    async def run(self) -> None:
        """Keep what live workers print within the bound, for ever."""
        while True:
            await asyncio.sleep(_TRIM_S)
            for name in {name for name in self._live.values() if name is not None}:
                self.trim(name)
                await asyncio.sleep(0)

    def trim(self, name: FunctionName) -> None:
        """Drop the oldest until what is left is within the bound. What is being written to stays."""
        kept: list[tuple[float, int, Path]] = []
        for worker in self._workers(name):
            segments = sorted(_segments(worker))
            is_live = worker.name in self._live
            if not segments and not is_live:
                shutil.rmtree(worker, ignore_errors=True)
            newest = {path.name.partition("-")[0]: path for _, _, path in segments}
            kept += [each for each in segments if not is_live or each[2] not in newest.values()]
        total = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= self._bytes_each:
                break
            path.unlink(missing_ok=True)
            total -= size

    def last_words(self, worker: str, name: FunctionName, most: int, *, since_ns: int = 0) -> str:
        """The end of what a worker has printed, as its author would like to see it in an error."""
        folder = self._folder / name / worker
        lines = heapq.merge(
            *(_Reading(folder, stream, since_ns).more(whole=False) for stream in OutputChannel)
        )
        return "".join(f"{line.text}\n" for line in lines)[-most:]

    async def read(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[FunctionLogLine, None]:
        """What the workers of a function have printed, or the last `lines` of it; with `follow`, then what
        comes, until the function is forgotten."""
        streams: dict[Path, _Reading] = {}
        there = self._read(self._workers(name), streams, whole=follow)
        async for line in _gently(there if lines is None else iter(deque(there, maxlen=lines))):
            yield line
        while follow and (self._folder / name).exists():
            await asyncio.sleep(_LOOK_S)
            async for line in _gently(self._read(self._workers(name), streams, whole=True)):
                yield line

    def _workers(self, name: FunctionName) -> list[Path]:
        try:
            return sorted((self._folder / name).iterdir())
        except FileNotFoundError:
            return []

    def _read(
        self, workers: list[Path], streams: dict[Path, _Reading], *, whole: bool
    ) -> Iterator[FunctionLogLine]:
        """What is new in the rings of `workers`, in the order of time; `streams` is where each was left, and
        is brought forward. `whole`: a line that may still be ended is left for later."""
        for worker in workers:
            for stream in OutputChannel:
                streams.setdefault(worker / stream, _Reading(worker, stream))
        return heapq.merge(
            *(each.more(whole=whole and each.worker.name in self._live) for each in streams.values())
        )


async def _gently(lines: Iterator[FunctionLogLine]) -> AsyncGenerator[FunctionLogLine, None]:
    for number, line in enumerate(lines):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be a lot, and others call, too
        yield line


class _Reading:
    """How far one stream of a worker has been read."""

    def __init__(self, worker: Path, stream: OutputChannel, since_ns: int = 0) -> None:
        self.worker = worker
        self._stream = stream
        self._since_ns = since_ns  # what is older is passed over, also if it is the beginning of a line
        self._reader = RingReader(worker, stream)
        self._after = 0
        self._joining = LineAssembler()
        self._lost = 0
        self._latest = 0

    def more(self, *, whole: bool) -> Iterator[FunctionLogLine]:
        for item in self._reader.read(self._after):
            self._after = item.last if isinstance(item, SequenceGap) else item.seq
            if not isinstance(item, SequenceGap) and item.time_ns < self._since_ns:
                continue
            for each in self._joining.take(item):
                if isinstance(each, SequenceGap):
                    self._lost += 1
                else:
                    yield self._line(each)
        for line in () if whole else self._joining.flush():
            yield self._line(line)

    def _line(self, line: LogLine) -> FunctionLogLine:
        self._latest = max(self._latest, line.time_ns)  # a clock that was set back must not mix lines up
        lost, self._lost = self._lost, 0
        return FunctionLogLine(self._latest, self.worker.name, self._stream, line.text, line.is_partial, lost)


def _segments(worker: Path) -> Iterator[tuple[float, int, Path]]:
    """The files of a worker: when each was last written to, and how long it is."""
    with os.scandir(worker) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # its ring was quicker
            yield status.st_mtime, status.st_size, Path(entry.path)
