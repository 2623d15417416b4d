"""Merges several streams of one executable: stored records in the order of time, then new ones as they come.

`readers` reads the rings; `tail` selects the last lines. A slow reader blocks nobody: a ring that overtakes
it yields a gap.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

from skerry.kit.sequence_gap import SequenceGap
from skerry.kit.tasks import cancel_and_wait
from skerry.model.cells import OutputChannel
from skerry.node.logs import tail
from skerry.node.logs.readers import RingItem, RingReader


class LogSource(NamedTuple):
    """A stream of an executable, to be read from a position on."""

    stream: OutputChannel
    output: RingReader
    after: int = 0


async def pieces(
    sources: Sequence[LogSource], *, follow: bool
) -> AsyncGenerator[tuple[OutputChannel, RingItem], None]:
    """Stored items of all `sources` in the order of time, and with `follow` then new ones of any."""
    at = {source.stream: source.after for source in sources}
    for _, stream, item in heapq.merge(*map(_dated, sources), key=lambda each: each[0]):
        at[stream] = item.last if isinstance(item, SequenceGap) else item.seq
        yield stream, item
    if not follow:
        return
    async with AsyncExitStack() as opened:
        coming = {source.stream: source.output.follow(at[source.stream]) for source in sources}
        for each in coming.values():
            await opened.enter_async_context(aclosing(each))
        waiting = {asyncio.ensure_future(_next(each)): stream for stream, each in coming.items()}
        opened.push_async_callback(cancel_and_wait, waiting)
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = waiting.pop(task)
                if (found := task.result()) is not None:
                    yield stream, found
                    waiting[asyncio.ensure_future(_next(coming[stream]))] = stream


async def skip_to_tail(sources: Sequence[LogSource], lines: int) -> tail.TailFilter:
    """A filter that skips all of `sources` but the last `lines` stored lines."""
    async with aclosing(pieces(sources, follow=False)) as there:
        return tail.TailFilter(await tail.count(there) - lines)


async def _next(items: AsyncGenerator[RingItem, None]) -> RingItem | None:
    return await anext(items, None)


def _dated(source: LogSource) -> Iterator[tuple[int, OutputChannel, RingItem]]:
    """Stored items, with times that never go back; a gap has the time of the item before it."""
    latest = 0
    for item in source.output.read(source.after):
        if not isinstance(item, SequenceGap):
            latest = max(latest, item.time_ns)
        yield latest, source.stream, item
