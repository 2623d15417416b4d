"""The last lines of what was written to several streams, in the order in which they were begun.

`merge` goes through what is there twice: once to count its lines, once to pass over all
but the last of them. So however much there is, no more than a piece of it is in memory.
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
    """How many lines have been begun; one that is not ended counts."""
    begun, seen = 0, 0
    is_open: dict[OutputChannel, bool] = {}
    async for stream, item in pieces:
        if isinstance(item, SequenceGap):
            is_open[stream] = False
            continue
        if item.data:
            begun += item.data[:-1].count(b"\n") + (not is_open.get(stream, False))
            is_open[stream] = not item.data.endswith(b"\n")
        seen += 1
        if seen % _AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be a lot, and others call, too
    return begun


class TailFilter:
    """Passes over the first `lines` lines, and lets the rest through as it is."""

    def __init__(self, lines: int) -> None:
        self._left = lines  # lines that are still to be begun and passed over
        self._shown: dict[OutputChannel, bool] = {}  # whether the line that is open there is let through

    def take(self, stream: OutputChannel, item: RingItem) -> RingItem | None:
        """What is to be let through of `item`, if anything is."""
        if isinstance(item, SequenceGap):
            self._shown.pop(stream, None)
            return item if self._left <= 0 else None
        if not item.data:
            return None
        at = 0
        if stream in self._shown:
            if self._shown[stream]:
                return self._passed(stream, item, 0)
            at = _after_line(item.data, 0)
        while at < len(item.data) and self._left > 0:
            self._left -= 1
            at = _after_line(item.data, at)
        return self._passed(stream, item, at)

    def _passed(self, stream: OutputChannel, item: LogRecord, at: int) -> RingItem | None:
        """`item` from `at` on; notes whether the line that is open after it goes on."""
        if item.data.endswith(b"\n"):
            self._shown.pop(stream, None)
        else:
            self._shown[stream] = at < len(item.data)
        return LogRecord(item.seq, item.time_ns, item.data[at:]) if at < len(item.data) else None


def _after_line(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return len(data) if end < 0 else end + 1
