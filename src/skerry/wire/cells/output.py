"""What an executable wrote, as items of `Logs`: one channel or both in the order of time, pieces or lines.

Serves cells and containers alike. The rings and their readers are `skerry.node.logs`'s, the last lines of
them `tails`'. A client that reads slowly holds up nothing but its own call: a ring that overtakes it gives
a gap, and the gap goes out as an item.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Final, NamedTuple

from skerry.kit.gaps import Gap
from skerry.kit.tasks import give_up
from skerry.model import errors
from skerry.model.cells import Stream
from skerry.node.logs.lines import Joining, Line
from skerry.node.logs.readers import Item
from skerry.wire.cells import tails
from skerry.wire.cells.keeper import Output
from skerry.wire.proto import containers_pb2
from skerry.wire.proto.cells_pb2 import (
    CHANNEL_STDERR,
    CHANNEL_STDOUT,
    CHANNEL_UNSPECIFIED,
    FORM_LINES,
    FORM_PIECES,
    LogItem,
    LogsRequest,
)

Request = LogsRequest | containers_pb2.LogsRequest

_CHANNEL: Final = {Stream.STDOUT: CHANNEL_STDOUT, Stream.STDERR: CHANNEL_STDERR}


class Source(NamedTuple):
    """A stream of an executable, to be read from a position on."""

    stream: Stream
    output: Output
    after: int


def sources_of(request: Request, logs: Callable[[Stream], Output]) -> list[Source]:
    """What is to be read of `logs` for `request`; raises if a number in it means nothing."""
    if request.channel not in (CHANNEL_UNSPECIFIED, *_CHANNEL.values()):
        raise errors.Invalid(f"channel {request.channel} is neither stdout nor stderr", field="channel")
    if request.form not in (FORM_PIECES, FORM_LINES):
        raise errors.Invalid(f"form {request.form} is neither pieces nor lines", field="form")
    after = {Stream.STDOUT: request.stdout_after, Stream.STDERR: request.stderr_after}
    return [
        Source(stream, logs(stream), after[stream])
        for stream, channel in _CHANNEL.items()
        if request.channel in (CHANNEL_UNSPECIFIED, channel)
    ]


async def items(sources: Sequence[Source], request: Request) -> AsyncGenerator[LogItem, None]:
    """The items of the reply to `request`."""
    joining = {source.stream: Joining() for source in sources}
    position = {source.stream: source.after for source in sources}
    passed_over = None
    if request.HasField("tail"):
        async with aclosing(pieces(sources, follow=False)) as there:
            passed_over = tails.Skip(await tails.count(there) - request.tail)
    async with aclosing(pieces(sources, follow=request.follow)) as found:
        async for stream, item in found:
            position[stream] = item.last if isinstance(item, Gap) else item.seq
            kept = item if passed_over is None else passed_over.take(stream, item)
            if kept is None:
                continue
            taken = [kept] if request.form == FORM_PIECES else joining[stream].take(kept)
            for each in taken:
                yield _told(stream, position[stream], each)
    for stream, left in joining.items():
        for line in left.flush():
            yield _told(stream, position[stream], line)


async def pieces(sources: Sequence[Source], *, follow: bool) -> AsyncGenerator[tuple[Stream, Item], None]:
    """What there is of all `sources` in the order of time, and with `follow` then what comes of any."""
    at = {source.stream: source.after for source in sources}
    for _, stream, item in heapq.merge(*map(_dated, sources), key=lambda each: each[0]):
        at[stream] = item.last if isinstance(item, Gap) else item.seq
        yield stream, item
    if not follow:
        return
    async with AsyncExitStack() as opened:
        coming = {source.stream: source.output.follow(at[source.stream]) for source in sources}
        for each in coming.values():
            await opened.enter_async_context(aclosing(each))
        waiting = {asyncio.ensure_future(_next(each)): stream for stream, each in coming.items()}
        opened.push_async_callback(give_up, waiting)
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = waiting.pop(task)
                if (found := task.result()) is not None:
                    yield stream, found
                    waiting[asyncio.ensure_future(_next(coming[stream]))] = stream


async def _next(items: AsyncGenerator[Item, None]) -> Item | None:
    return await anext(items, None)


def _dated(source: Source) -> Iterator[tuple[int, Stream, Item]]:
    """What there is, with times that never go back; a gap is as old as what came before it."""
    latest = 0
    for item in source.output.read(source.after):
        if not isinstance(item, Gap):
            latest = max(latest, item.time_ns)
        yield latest, source.stream, item


def _told(stream: Stream, position: int, item: Item | Line) -> LogItem:
    channel = _CHANNEL[stream]
    if isinstance(item, Gap):
        return LogItem(channel=channel, position=item.last, lost=item.last - item.first + 1)
    data = item.text.encode() if isinstance(item, Line) else item.data
    return LogItem(channel=channel, position=position, time_ns=item.time_ns, data=data)
