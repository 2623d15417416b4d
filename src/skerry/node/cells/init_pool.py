"""A pool of prestarted inits: set up, not yet in a cell.

Creating an init, with its namespaces and mounts, is most of the cost of a first start in a cell. So a few are
kept ready, and `InitSupervisor` takes one where it can. Until it has entered a cell an init ends with the
launcher, so that none outlives the agent unrecorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from skerry.model import errors
from skerry.node.cgroups.protocol import CgroupEntryFds
from skerry.node.launcher.client import InitClient, LauncherClient
from skerry.node.launcher.specs import InitSpec

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
_END_S = 3.0


class InitPool:
    """A pool of inits of one kind. `run` keeps it filled."""

    def __init__(
        self,
        launcher: LauncherClient,
        spec: InitSpec,
        entry: Callable[[], CgroupEntryFds | None],
        count: int,
        *,
        refill_delay_s: float = 0.02,
        only_after_use: bool = False,
    ) -> None:
        """`entry` returns the cgroup in which they wait; None: this machine can have none. The next is
        created `refill_delay_s` after one was taken, when that start is over. `only_after_use`: none is
        created before the first `take`."""
        self._launcher = launcher
        self._entry = entry
        self._spec = spec
        self._count = count
        self._refill_delay_s = refill_delay_s
        self._ready: list[InitClient] = []
        self._making: asyncio.Task[InitClient | None] | None = None
        self._refill = asyncio.Event()
        if not only_after_use:
            self._refill.set()

    @property
    def count(self) -> int:
        """How many are ready now."""
        return len(self._ready)

    def take(self) -> InitClient | None:
        """A live one, or None if there is none now."""
        self._refill.set()
        while self._ready:
            init = self._ready.pop()
            if not init.has_ended:
                return init
            init.close()
        return None

    async def run(self) -> None:
        """Fill the pool, for ever; returns if this machine can have none."""
        while True:
            await self._refill.wait()
            self._refill.clear()
            await asyncio.sleep(self._refill_delay_s)
            while len(self._ready) < self._count:
                try:
                    # Not cancelled with us: it would end by itself then, and nobody would reap it.
                    self._making = asyncio.create_task(self._make())
                    init = await asyncio.shield(self._making)
                    if init is None:
                        return
                    self._ready.append(init)
                except (errors.SkerryError, OSError) as error:
                    log.warning("spare.not_made", error=str(error))
                    await asyncio.sleep(_RETRY_S)
                self._making = None

    async def _make(self) -> InitClient | None:
        entry = self._entry()
        if entry is None:
            return None
        with entry:
            return await self._launcher.make_init(self._spec, entry)

    async def close(self) -> None:
        """End the rest, and wait until the launcher has reaped them. `run` has ended."""
        inits, self._ready = self._ready, []
        if self._making is not None:
            (created,) = await asyncio.gather(self._making, return_exceptions=True)
            if created is not None and not isinstance(created, BaseException):
                inits.append(created)
        for init in inits:
            init.kill()
        try:
            async with asyncio.timeout(_END_S):
                for init in inits:
                    await init.ended()
        except TimeoutError:
            log.warning("spares.not_ended", pids=[init.pid for init in inits if not init.has_ended])
        for init in inits:
            init.close()
