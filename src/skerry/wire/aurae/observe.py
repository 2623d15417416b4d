"""`observe.Observe`: what the daemon logs and what executables write, line by line.

Translation only. What is kept comes first, then what is new. A reader that was too slow is told: between two
lines stands an item on the channel `GAP` that says how many are missing; nothing ends silently.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Protocol

from grpclib.server import Stream

from skerry.kit import logs
from skerry.kit.gaps import Gap
from skerry.kit.recent import Entry
from skerry.model import cells, errors
from skerry.node.logs.lines import Line, follow_lines
from skerry.wire.cells.keeper import CellKeeper

# The package has nothing in it; imported, so that reflection can describe its file.
from skerry.wire.proto import schedule_pb2  # noqa: F401
from skerry.wire.proto.observe_grpc import ObserveBase
from skerry.wire.proto.observe_pb2 import (
    CHANNEL_STDERR,
    CHANNEL_STDOUT,
    GetAuraeDaemonLogStreamRequest,
    GetSubProcessStreamRequest,
    LogItem,
)

DAEMON: Final = "skerry"
GAP: Final = "gap"
_SECOND: Final = 1_000_000_000
_STREAM: Final = {CHANNEL_STDOUT: cells.Stream.STDOUT, CHANNEL_STDERR: cells.Stream.STDERR}


class DaemonLog(Protocol):
    """The part of `skerry.kit.recent.Recent` that is needed here."""

    def follow(self) -> AsyncGenerator[Entry | Gap, None]: ...


class ObserveService(ObserveBase):
    """Serves `observe.Observe`."""

    def __init__(self, keeper: CellKeeper, log: DaemonLog = logs.recent) -> None:
        self._keeper = keeper
        self._log = log

    async def GetAuraeDaemonLogStream(  # noqa: N802 - gRPC's name
        self, stream: Stream[GetAuraeDaemonLogStreamRequest, LogItem]
    ) -> None:
        await stream.recv_message()
        async with aclosing(self._log.follow()) as entries:
            async for entry in entries:
                for item in _log_items(entry):
                    await stream.send_message(item)

    async def GetSubProcessStream(  # noqa: N802 - gRPC's name
        self, stream: Stream[GetSubProcessStreamRequest, LogItem]
    ) -> None:
        request = await stream.recv_message()
        assert request is not None
        channel = _STREAM.get(request.channel_type)
        if channel is None:
            raise errors.Invalid(
                f"channel_type must be 0 (stdout) or 1 (stderr), not {request.channel_type}",
                field="channel_type",
            )
        state = self._keeper.by_pid(request.process_id)
        output = self._keeper.logs(state.cell, state.name, channel)
        async with aclosing(follow_lines(output.follow())) as lines:
            async for line in lines:
                await stream.send_message(_output_item(channel, line))


def _log_items(entry: Entry | Gap) -> list[LogItem]:
    if isinstance(entry, Gap):
        return [_gap(entry, "lines of the log")]
    # A traceback is one entry of many lines.
    return [
        LogItem(channel=DAEMON, line=f"{entry.level.upper()} {line}", timestamp=entry.time_ns // _SECOND)
        for line in entry.line.splitlines() or [""]
    ]


def _output_item(channel: str, line: Line | Gap) -> LogItem:
    if isinstance(line, Gap):
        return _gap(line, "pieces of output")
    return LogItem(channel=channel, line=line.text, timestamp=line.time_ns // _SECOND)


def _gap(gap: Gap, what: str) -> LogItem:
    return LogItem(channel=GAP, line=f"{gap.last - gap.first + 1} {what} are lost here")
