"""Lines of the daemon's log and of executables' output, as all versions of Aurae's `observe` stream them.

Stored lines come first, then new ones. Where a slow reader has missed lines, a line on the channel `GAP`
counts them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

from skerry.kit.log_buffer import LogBuffer, LogEntry
from skerry.kit.sequence_gap import SequenceGap
from skerry.model.cells import OutputChannel
from skerry.node.cells.ports import CellRuntime
from skerry.node.logs.lines import LogLine, follow_lines

DAEMON: Final = "skerry"
GAP: Final = "gap"
_SECOND: Final = 1_000_000_000


class ObservedLine(NamedTuple):
    """The fields of a `LogItem`."""

    channel: str
    line: str
    timestamp: int = 0  # whole seconds since 1970


async def daemon_lines(log: LogBuffer) -> AsyncGenerator[ObservedLine, None]:
    async with aclosing(log.follow()) as entries:
        async for entry in entries:
            for line in _log_lines(entry):
                yield line


def output_lines(cells: CellRuntime, pid: int, channel: OutputChannel) -> AsyncGenerator[ObservedLine, None]:
    """The output of the executable with the process `pid`. Raises `NotFound` at once if there is none."""
    state = cells.by_pid(pid)
    return _output_lines(channel, follow_lines(cells.logs(state.cell, state.name, channel).follow()))


async def _output_lines(
    channel: OutputChannel, followed: AsyncGenerator[LogLine | SequenceGap, None]
) -> AsyncGenerator[ObservedLine, None]:
    async with aclosing(followed) as lines:
        async for line in lines:
            if isinstance(line, SequenceGap):
                yield _gap(line, "pieces of output")
            else:
                yield ObservedLine(channel, line.text, line.time_ns // _SECOND)


def _log_lines(entry: LogEntry | SequenceGap) -> list[ObservedLine]:
    if isinstance(entry, SequenceGap):
        return [_gap(entry, "lines of the log")]
    # A traceback is one entry of many lines.
    return [
        ObservedLine(DAEMON, f"{entry.level.upper()} {line}", entry.time_ns // _SECOND)
        for line in entry.line.splitlines() or [""]
    ]


def _gap(gap: SequenceGap, noun: str) -> ObservedLine:
    return ObservedLine(GAP, f"{gap.last - gap.first + 1} {noun} are lost here")
