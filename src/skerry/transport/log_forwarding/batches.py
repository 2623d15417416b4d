"""A batch of lines for a target: what senders get. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from skerry.model.log_origins import LogOrigin


class ForwardedLine(NamedTuple):
    """A line of a log. `level` is that of a line of Skerry itself; empty: a program wrote it."""

    origin: LogOrigin
    stream: str
    time_ns: int
    text: str
    level: str = ""


class NodeLabels(NamedTuple):
    """Labels of all lines of this process."""

    cloud: str
    node: str


class TargetUnavailable(Exception):
    """The target takes nothing now; the same lines are sent again later. The text says why."""


class LinesRefused(Exception):
    """The target takes other lines, but not these, however often they are sent."""


class TooManyLines(Exception):
    """The target takes fewer lines at once."""


class Sender(Protocol):
    """Sends lines to one target."""

    async def send(self, lines: Sequence[ForwardedLine]) -> None:
        """Return once the target has them all. Raises the exceptions of this module; then it may have some of
        them."""
        ...

    async def close(self) -> None: ...


def in_order(lines: Sequence[ForwardedLine], latest: dict[tuple[LogOrigin, str], int]) -> list[ForwardedLine]:
    """`lines` in the order of time, and those of one log never before those sent earlier, also if the clock
    was set back. `latest` is the time of the last line of each log, and is advanced."""
    ordered = []
    for line in sorted(lines, key=lambda each: each.time_ns):
        key = (line.origin, line.stream)
        time_ns = max(line.time_ns, latest.get(key, 0))
        latest[key] = time_ns
        ordered.append(line if time_ns == line.time_ns else line._replace(time_ns=time_ns))
    return ordered
