"""Inits made ahead of time: set up, in no cell yet, each good for one.

Making an init, with its namespaces and mounts, is most of what a first start in a cell costs. So a few are
kept ready, and `InitSupervisor` takes one where it can. A spare ends with the launcher until it has entered a
cell, so that none outlives the agent unseen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from skerry.model import errors
from skerry.node.cgroups.protocol import CgroupEntryFds
from skerry.node.launcher.client import InitClient, InitSpec, LauncherClient

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
_END_S = 3.0


class InitPool:
    """A pool of inits of one kind. `run` keeps it filled."""

    def __init__(
        self,
        launcher: LauncherClient,
        spec: InitSpec,
        entrance: Callable[[], CgroupEntryFds | None],
        count: int,
        *,
        patience_s: float = 0.02,
        only_after_use: bool = False,
    ) -> None:
        """`entrance` leads to where they wait; if it leads nowhere, there are none. Whoever took one is busy
        with it for `patience_s`, and the next is made when that is over. `only_after_use`: none is made
        before somebody has wanted one."""
        self._launcher = launcher
        self._entrance = entrance
        self._spec = spec
        self._count = count
        self._patience_s = patience_s
        self._ready: list[InitClient] = []
        self._making: asyncio.Task[InitClient | None] | None = None
        self._wanted = asyncio.Event()
        if not only_after_use:
            self._wanted.set()

    @property
    def count(self) -> int:
        """How many are ready now."""
        return len(self._ready)

    def take(self) -> InitClient | None:
        """One that lives, or None if there is none now."""
        self._wanted.set()
        while self._ready:
            init = self._ready.pop()
            if not init.has_ended:
                return init
            init.close()
        return None

    async def run(self) -> None:
        """Make what is missing, for ever, or return if this machine can have none."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await asyncio.sleep(self._patience_s)
            while len(self._ready) < self._count:
                try:
                    # Not cut short with us: it would end by itself then, and nobody would know when.
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
        entrance = self._entrance()
        if entrance is None:
            return None
        with entrance:
            return await self._launcher.make_init(self._spec, entrance)

    async def close(self) -> None:
        """End those that are left, and wait until the launcher has reaped them. `run` has ended."""
        left, self._ready = self._ready, []
        if self._making is not None:
            (made,) = await asyncio.gather(self._making, return_exceptions=True)
            if made is not None and not isinstance(made, BaseException):
                left.append(made)
        for init in left:
            init.kill()
        try:
            async with asyncio.timeout(_END_S):
                for init in left:
                    await init.ended()
        except TimeoutError:
            log.warning("spares.not_ended", pids=[init.pid for init in left if not init.has_ended])
        for init in left:
            init.close()
