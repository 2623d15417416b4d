"""The rings of a process that are forwarded, by what wrote them.

Implemented by `skerry.node.agent.instance_log_source`, `skerry.node.workers.function_logs` and
`skerry.node.logs.process_log`; used by `skerry.transport.log_forwarding`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from skerry.model.cells import OutputChannel
from skerry.model.log_origins import LogOrigin

OUTPUT_STREAMS: Final = tuple(channel.value for channel in OutputChannel)


class LogRing(NamedTuple):
    """The streams of one run in a folder. `key` names the run for ever, wherever its folder is moved."""

    key: str
    folder: Path
    origin: LogOrigin
    streams: tuple[str, ...] = OUTPUT_STREAMS
    has_ended: bool = False  # an incomplete line is not continued
    is_final: bool = False  # nothing is written to it any more


class RingSource(Protocol):
    """Some rings."""

    def list_rings(self) -> Iterable[LogRing]:
        """All rings now, older runs before newer ones of the same log. Waits for the disk only shortly."""
        ...
