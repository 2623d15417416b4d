"""Output of an executable as items of `Logs`: one channel, or both in the order of time; chunks or lines.

Used for cells and containers. `skerry.node.logs` stores and merges the output. A slow client delays only its
own call: where the log has overtaken it, it gets a gap as an item.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

from skerry.kit.sequence_gap import SequenceGap
from skerry.model import errors
from skerry.model.cells import OutputChannel
from skerry.node.logs.lines import LineAssembler, LogLine
from skerry.node.logs.merge import LogSource, pieces, skip_to_tail
from skerry.node.logs.readers import RingItem, RingReader
from skerry.transport.proto import containers_pb2
from skerry.transport.proto.cells_pb2 import (
    CHANNEL_STDERR,
    CHANNEL_STDOUT,
    CHANNEL_UNSPECIFIED,
    FORM_LINES,
    FORM_PIECES,
    LogItem,
    LogsRequest,
)

LogsRequestMessage = LogsRequest | containers_pb2.LogsRequest

_CHANNEL: Final = {OutputChannel.STDOUT: CHANNEL_STDOUT, OutputChannel.STDERR: CHANNEL_STDERR}


def log_sources(request: LogsRequestMessage, logs: Callable[[OutputChannel], RingReader]) -> list[LogSource]:
    """The logs to read for `request`; raises `Invalid` for an unknown number in it."""
    if request.channel not in (CHANNEL_UNSPECIFIED, *_CHANNEL.values()):
        raise errors.Invalid(f"channel {request.channel} is neither stdout nor stderr", field="channel")
    if request.form not in (FORM_PIECES, FORM_LINES):
        raise errors.Invalid(f"form {request.form} is neither pieces nor lines", field="form")
    after = {OutputChannel.STDOUT: request.stdout_after, OutputChannel.STDERR: request.stderr_after}
    return [
        LogSource(stream, logs(stream), after[stream])
        for stream, channel in _CHANNEL.items()
        if request.channel in (CHANNEL_UNSPECIFIED, channel)
    ]


async def log_items(
    sources: Sequence[LogSource], request: LogsRequestMessage
) -> AsyncGenerator[LogItem, None]:
    """The items of the reply to `request`."""
    joining = {source.stream: LineAssembler() for source in sources}
    position = {source.stream: source.after for source in sources}
    passed_over = None
    if request.HasField("tail"):
        passed_over = await skip_to_tail(sources, request.tail)
    async with aclosing(pieces(sources, follow=request.follow)) as found:
        async for stream, item in found:
            position[stream] = item.last if isinstance(item, SequenceGap) else item.seq
            kept = item if passed_over is None else passed_over.take(stream, item)
            if kept is None:
                continue
            taken = [kept] if request.form == FORM_PIECES else joining[stream].take(kept)
            for each in taken:
                yield _encode_item(stream, position[stream], each)
    for stream, left in joining.items():
        for line in left.flush():
            yield _encode_item(stream, position[stream], line)


def _encode_item(stream: OutputChannel, position: int, item: RingItem | LogLine) -> LogItem:
    channel = _CHANNEL[stream]
    if isinstance(item, SequenceGap):
        return LogItem(channel=channel, position=item.last, lost=item.last - item.first + 1)
    data = item.text.encode() if isinstance(item, LogLine) else item.data
    return LogItem(channel=channel, position=position, time_ns=item.time_ns, data=data)
