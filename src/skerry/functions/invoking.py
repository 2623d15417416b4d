"""The door to functions: takes calls, prewarms, validates, and follows updates and deletions."""

from __future__ import annotations

from pathlib import Path

import msgspec

from skerry.functions.hosts import Host, Lookup
from skerry.kit.clock import Clock
from skerry.model.calls import Ask, Report
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.settings import FunctionSettings


class PoolStatus(msgspec.Struct, frozen=True):
    """What the pool has and holds at this moment."""

    warm: dict[FunctionName, int]  # idle workers by function; only functions that have some
    total_memory_mb: int
    available_memory_mb: int  # total, without that of workers that are busy, starting or ending
    free_memory_mb: int  # also without that of idle workers
    total_cpus: float
    used_cpus: float  # of workers that are busy, starting or ending
    workers: int  # of any state
    queue_length: int  # calls that wait for a worker


class Invoker:
    """All workers of a node, and the calls to them."""

    def __init__(
        self,
        host: Host,
        registry: Lookup,
        settings: FunctionSettings,
        clock: Clock,
        *,
        node: str,
        memory_mb: int,
        cpus: float,
    ) -> None:
        """`memory_mb` and `cpus` are what all workers together may take, with no zero left to be resolved."""
        raise NotImplementedError

    async def invoke(self, ask: Ask) -> Report:
        """Run one call to its end.

        Raises `NotFound` if there is no such function, `Overloaded` if too many calls wait already and
        `Unavailable` while the node stops. Whatever else goes wrong is told in the report's answer. If the
        caller is cancelled, so is the call.
        """
        raise NotImplementedError

    async def prewarm(self, name: str, instances: int, *, force: bool = False) -> int:
        """Start up to `instances` workers more, as far as there is room; how many it became.

        They are kept as long as any idle worker. 0 only fetches what a start would need. Raises `NotFound`;
        if not even one could be started for another reason than room, that reason.
        """
        raise NotImplementedError

    async def validate(self, function: Function, code: Path | None) -> str:
        """Load `function` once in a worker that is thrown away; what really runs it.

        Raises `LoadFailed` if its code cannot be loaded, `NoRoom` if no room came free for the attempt.
        """
        raise NotImplementedError

    async def updated(self, function: Function) -> None:
        """From now on no call starts in a worker of an older version; those end when they have finished."""
        raise NotImplementedError

    async def removed(self, name: str) -> None:
        """End the function's workers when they have finished; calls that wait for one fail with `GONE`."""
        raise NotImplementedError

    def status(self) -> PoolStatus:
        raise NotImplementedError

    async def run(self) -> None:
        """End workers that were idle for too long, for ever."""
        raise NotImplementedError

    async def close(self) -> None:
        """Take no more calls and end all workers."""
        raise NotImplementedError
