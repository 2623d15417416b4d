"""Forwards lines from rings on disk to one target.

Each target has its own positions in all rings, which are stored after every batch: a target that is away
misses nothing until the rings drop it, and after a kill everything since the last stored position is sent
again. Workloads never wait: their output goes to the rings, whatever happens here. What a ring dropped
before it was sent is counted, and marked where it is missing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog

from skerry.kit import json_codec, metrics, tasks
from skerry.kit.backoff import Backoff
from skerry.model import errors
from skerry.model.log_origins import LogOrigin, LogOriginKind
from skerry.node import record_files
from skerry.node.logs import process_log, ring_positions, rings
from skerry.node.logs.ring_positions import RingPosition
from skerry.node.logs.ring_sources import LogRing
from skerry.transport.log_forwarding import batches
from skerry.transport.log_forwarding.batches import (
    ForwardedLine,
    LinesRefused,
    Sender,
    TargetUnavailable,
    TooManyLines,
)

log = structlog.get_logger(__name__)

_POLL_S: Final = 1.0
_PAUSE_S: Final = 0.05  # between full batches: forwarding is not to take a whole processor
_RING_BYTES: Final = 256 * 1024  # read of one ring before it is the turn of others
_BATCH_BYTES: Final = 1024 * 1024
_LEAST_BATCH: Final = 16 * 1024
_LINE_OVERHEAD: Final = 64  # about what a line takes beside its text
_RECHECK_S: Final = 15.0  # a change within the kernel's tick of the last look shows only in the files
_INCOMPLETE_NS: Final = 5_000_000_000  # a line that is not continued for so long is sent as it is
_FORGET_S: Final = 120.0  # positions of rings that no longer exist
_LOG_AGAIN_S: Final = 600.0
_CLOSE_S: Final = 1.0
_BEGINNING: Final = RingPosition()
_BACKOFF: Final = Backoff(first_s=0.5, cap_s=30.0)

LINES = metrics.counter("skerry_log_forward_lines_total", "Log lines sent to a target", ["target"])
LOST = metrics.counter(
    "skerry_log_forward_lost_total",
    "Log records that were overwritten before they were sent, and lines that the target refused",
    ["target", "reason"],
)
FAILING = metrics.gauge("skerry_log_forward_failing", "1 while a target takes no logs", ["target"])

StreamKey = tuple[str, str]  # of a ring, and its stream


class PositionDocument(msgspec.Struct, frozen=True):
    """The stored positions of one target."""

    positions: dict[str, dict[str, RingPosition]] = {}


@dataclass(slots=True)
class _StreamState:
    """One stream of a ring, for one target."""

    position: RingPosition = _BEGINNING
    signature: tuple[int, int, bool] | None = None  # of its files when everything was read; None: read it
    checked_at: float = 0.0
    is_done: bool = False  # its end was read: nothing follows
    listed_at: float = 0.0


class _StreamRead(NamedTuple):
    """What a batch has of one stream, and its state after that."""

    position: RingPosition
    signature: tuple[int, int, bool] | None
    is_done: bool


@dataclass(slots=True)
class _Batch:
    lines: list[ForwardedLine] = field(default_factory=list)
    lost: int = 0
    size: int = 0
    is_full: bool = False
    reads: dict[StreamKey, _StreamRead] = field(default_factory=dict)


class LogForwarder:
    """Forwards all rings to one target."""

    def __init__(
        self,
        name: str,
        sender: Sender,
        list_rings: Callable[[], Iterable[LogRing]],
        path: Path,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path` is the file of its positions."""
        self.name = name.partition("?")[0]
        self._sender = sender
        self._list_rings = list_rings
        self._path = path
        self._now = now
        self._streams: dict[StreamKey, _StreamState] = {}
        self._latest: dict[tuple[LogOrigin, str], int] = {}
        self._turn = 0
        self._batch_bytes = _BATCH_BYTES
        self._failures = 0
        self._logged_at = float("-inf")
        self._load()

    async def run(self) -> None:
        """For ever."""
        while True:
            pause = await self.forward_once()
            await asyncio.sleep(pause)

    async def forward_once(self) -> float:
        """Send what is new, at most a batch; how long to wait before the next."""
        batch = await self._collect()
        if not batch.lines:
            self._advance(batch)
            return _POLL_S
        try:
            await self._sender.send(batches.in_order(batch.lines, self._latest))
        except TooManyLines as error:
            if len(batch.lines) > 1 and self._batch_bytes > _LEAST_BATCH:
                self._batch_bytes = max(self._batch_bytes // 2, _LEAST_BATCH)
                return 0.0
            self._refused(batch, str(error))
        except LinesRefused as error:
            self._refused(batch, str(error))
        except TargetUnavailable as error:
            return self._failed(str(error))
        else:
            self._succeeded(batch)
        self._advance(batch)
        await tasks.in_thread(self._save, self._document())
        return _PAUSE_S if batch.is_full else _POLL_S

    async def close(self) -> None:
        """Try to send what is left, for a short time."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                while not self._failures and (await self.forward_once()) == _PAUSE_S:
                    pass
        except TimeoutError:
            pass
        await self._sender.close()

    def has_sent(self, ring: LogRing) -> bool:
        """True if the target has everything of a ring that is final."""
        states = (self._streams.get((ring.key, stream)) for stream in ring.streams)
        return all(state is not None and state.is_done for state in states)

    async def _collect(self) -> _Batch:
        now = self._now()
        listed = list(self._list_rings())
        for ring in listed:
            for stream in ring.streams:
                self._streams.setdefault((ring.key, stream), _StreamState()).listed_at = now
        self._forget(now)
        # Every log has its turn to be the first; its runs stay in their order.
        ordered = _by_log(listed)
        start = self._turn % max(len(ordered), 1)
        self._turn += 1
        return await tasks.in_thread(self._read, ordered[start:] + ordered[:start], now)

    def _read(self, logs: Sequence[Sequence[LogRing]], now: float) -> _Batch:
        batch = _Batch()
        for runs in logs:
            for ring in runs:
                is_drained = True
                for stream in ring.streams:
                    if batch.size >= self._batch_bytes:
                        batch.is_full = True
                        return batch
                    is_drained &= self._read_stream(ring, stream, batch, now)
                if not is_drained:
                    break  # its newer runs come after it
        return batch

    def _read_stream(self, ring: LogRing, stream: str, batch: _Batch, now: float) -> bool:
        """Add what is new in a stream to `batch`; False if it has more."""
        state = self._streams[ring.key, stream]
        if state.is_done:
            return True
        signature = _signature(ring, stream, state.position)
        if signature is not None and signature == state.signature and now - state.checked_at < _RECHECK_S:
            return True
        state.checked_at = now
        most = min(_RING_BYTES, max(self._batch_bytes - batch.size, _LEAST_BATCH))
        piece = ring_positions.read(ring.folder, stream, state.position, most)
        is_over = ring.has_ended or piece.has_ended
        last_ns = piece.records[-1].time_ns if piece.records else 0
        flush = not piece.is_full and (is_over or time.time_ns() - last_ns > _INCOMPLETE_NS)
        lines = ring_positions.split_lines(piece.records, state.position, flush=flush)
        for line in lines:
            batch.lines.append(_forwarded(ring.origin, stream, line))
            batch.lost += line.lost
        batch.size += sum(len(line.text) + _LINE_OVERHEAD for line in lines)
        position = lines[-1].after if lines else state.position
        has_rest = bool(piece.records) and position.after < piece.records[-1].number
        batch.is_full |= piece.is_full
        batch.reads[ring.key, stream] = _StreamRead(
            position,
            None if piece.is_full or has_rest else signature,
            (piece.has_ended or ring.is_final) and not piece.is_full and not has_rest,
        )
        return not piece.is_full

    def _advance(self, batch: _Batch) -> None:
        for key, read in batch.reads.items():
            state = self._streams[key]
            state.position, state.signature, state.is_done = read.position, read.signature, read.is_done
        if batch.lost:
            LOST.labels(self.name, "overwritten").inc(batch.lost)
            self._log("logs.forward_lost", records=batch.lost)

    def _succeeded(self, batch: _Batch) -> None:
        LINES.labels(self.name).inc(len(batch.lines))
        FAILING.labels(self.name).set(0)
        self._batch_bytes = min(self._batch_bytes * 2, _BATCH_BYTES)
        if self._failures:
            log.info("logs.forward_resumed", target=self.name)
            self._logged_at = float("-inf")
        self._failures = 0

    def _refused(self, batch: _Batch, problem: str) -> None:
        LOST.labels(self.name, "refused").inc(len(batch.lines))
        self._log("logs.forward_refused", lines=len(batch.lines), error=problem)
        self._failures = 0

    def _failed(self, problem: str) -> float:
        FAILING.labels(self.name).set(1)
        self._log("logs.forward_failed", error=problem)
        pause = _BACKOFF.delay(self._failures)
        self._failures += 1
        return pause

    def _log(self, event: str, **fields: object) -> None:
        """Now and then, however often it happens."""
        now = self._now()
        if now - self._logged_at >= _LOG_AGAIN_S:
            self._logged_at = now
            log.warning(event, target=self.name, **fields)

    def _forget(self, now: float) -> None:
        over = [key for key, state in self._streams.items() if now - state.listed_at > _FORGET_S]
        for key in over:
            del self._streams[key]
        if len(self._latest) > 2 * len(self._streams) + 100:
            self._latest.clear()

    def _load(self) -> None:
        try:
            document = json_codec.decode(self._path.read_bytes(), PositionDocument)
        except FileNotFoundError:
            return
        except (json_codec.InvalidJson, errors.Invalid) as error:
            log.warning("logs.forward_positions_unreadable", path=str(self._path), error=str(error))
            return
        now = self._now()
        for key, streams in document.positions.items():
            for stream, position in streams.items():
                self._streams[key, stream] = _StreamState(position, listed_at=now)

    def _document(self) -> PositionDocument:
        positions: dict[str, dict[str, RingPosition]] = {}
        for (key, stream), state in self._streams.items():
            positions.setdefault(key, {})[stream] = state.position
        return PositionDocument(positions)

    def _save(self, document: PositionDocument) -> None:
        try:
            record_files.write(self._path, document)  # not synced, and neither are the rings
        except OSError as error:  # after a kill, what was sent since the last one is sent again
            self._log("logs.forward_positions_unsaved", error=str(error))


def _by_log(listed: Iterable[LogRing]) -> list[list[LogRing]]:
    """The rings of each log, in their order."""
    logs: dict[LogOrigin, list[LogRing]] = {}
    for ring in listed:
        logs.setdefault(ring.origin, []).append(ring)
    return list(logs.values())


def _forwarded(origin: LogOrigin, stream: str, line: ring_positions.PositionedLine) -> ForwardedLine:
    if origin.kind is not LogOriginKind.PROCESS:
        return ForwardedLine(origin, stream, line.time_ns, line.text)
    level, text = ("warning", line.text) if line.lost else process_log.decode(line.text)
    return ForwardedLine(origin, stream, line.time_ns, text, level)


def _signature(ring: LogRing, stream: str, position: RingPosition) -> tuple[int, int, bool] | None:
    """Changes when a stream has more; None if that cannot be known."""
    try:
        changed_ns = os.stat(ring.folder).st_mtime_ns
        if not position.segment:
            return None
        size = os.stat(ring.folder / rings.segment_name(stream, position.segment)).st_size
    except OSError:
        return None
    return changed_ns, size, ring.has_ended
