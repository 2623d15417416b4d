"""Selects the last lines of several streams, in the order in which they began.

`merge` reads the stored items twice: once to count lines, once to skip all but the last. So memory use does
not depend on their size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Final

from skerry.kit.sequence_gap import SequenceGap
from skerry.model.cells import OutputChannel
from skerry.node.logs.readers import LogRecord, RingItem

_AT_ONCE: Final = 256


async def count(pieces: AsyncIterable[tuple[OutputChannel, RingItem]]) -> int:
    """How many lines have begun; an unterminated one counts."""
    begun, items = 0, 0
    is_open: dict[OutputChannel, bool] = {}
    async for stream, item in pieces:
        if isinstance(item, SequenceGap):
            is_open[stream] = False
            continue
        if item.data:
            begun += item.data[:-1].count(b"\n") + (not is_open.get(stream, False))
            is_open[stream] = not item.data.endswith(b"\n")
        items += 1
        if items % _AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be many: let other tasks run
    return begun


class TailFilter:
    """Skips the first `lines` lines, and passes the rest on unchanged."""

    def __init__(self, lines: int) -> None:
        self._to_skip = lines  # lines still to be skipped
        self._is_passing: dict[OutputChannel, bool] = {}  # by stream: whether its current line is passed on

    def take(self, stream: OutputChannel, item: RingItem) -> RingItem | None:
        """The part of `item` that is passed on, if any."""
        if isinstance(item, SequenceGap):
            self._is_passing.pop(stream, None)
            return item if self._to_skip <= 0 else None
        if not item.data:
            return None
        at = 0
        if stream in self._is_passing:
            if self._is_passing[stream]:
                return self._passed(stream, item, 0)
            at = _next_line_start(item.data, 0)
        while at < len(item.data) and self._to_skip > 0:
            self._to_skip -= 1
            at = _next_line_start(item.data, at)
        return self._passed(stream, item, at)

    def _passed(self, stream: OutputChannel, item: LogRecord, at: int) -> RingItem | None:
        """`item` from `at` on; remembers whether the current line is passed on."""
        if item.data.endswith(b"\n"):
            self._is_passing.pop(stream, None)
        else:
            self._is_passing[stream] = at < len(item.data)
        return LogRecord(item.seq, item.time_ns, item.data[at:]) if at < len(item.data) else None


def _next_line_start(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return len(data) if end < 0 else end + 1
