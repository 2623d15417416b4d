"""What an executable wrote, as items of `Logs`: one channel or both in the order of time, pieces or lines.

Serves cells and containers alike. The rings, their readers and how they are read as one are
`skerry.node.logs`'s. A client that reads slowly holds up nothing but its own call: a ring that overtakes it
gives a gap, and the gap goes out as an item.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

from skerry.kit.gaps import Gap
from skerry.model import errors
from skerry.model.cells import Stream
from skerry.node.logs.lines import Joining, Line
from skerry.node.logs.merging import Output, Source, pieces, skip_to_tail
from skerry.node.logs.readers import Item
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
        passed_over = await skip_to_tail(sources, request.tail)
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


def _told(stream: Stream, position: int, item: Item | Line) -> LogItem:
    channel = _CHANNEL[stream]
    if isinstance(item, Gap):
        return LogItem(channel=channel, position=item.last, lost=item.last - item.first + 1)
    data = item.text.encode() if isinstance(item, Line) else item.data
    return LogItem(channel=channel, position=position, time_ns=item.time_ns, data=data)
