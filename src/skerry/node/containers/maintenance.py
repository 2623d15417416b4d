"""What has to be looked at now and then: disks that no wall holds, and what was not given back at an end.

`Containers` runs it. What a container with a file system of its own has deleted goes back to the node's disk.
Where limits are measured, one that has written more than it may is killed, since asking it first would let it
write on. One that has ended keeps its cell's init for a while, since most are started again soon if
they are at all; then the init ends too, and the container costs nothing but its place on the disk.

File systems that were taken for containers are made anew here, after the start that took them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from skerry.model import errors
from skerry.node.cells.locks import PathLocks
from skerry.node.containers.run_teardown import RunTeardown
from skerry.node.containers.state import ContainerDeps, ContainerEntry
from skerry.node.containers.writable_layers import DiskLimitKind

log = structlog.get_logger(__name__)

_MEGABYTE = 1024 * 1024
_REST_AFTER_S = 10.0
_PATIENCE_S = 0.1  # whoever has just started one may be about to start the next


class ContainerMaintenance:
    """Looks after `containers()`."""

    def __init__(
        self,
        deps: ContainerDeps,
        teardown: RunTeardown,
        turns: PathLocks,
        containers: Callable[[], Iterable[ContainerEntry]],
    ) -> None:
        self._deps = deps
        self._teardown = teardown
        self._locks = turns
        self._containers = containers
        self._disk_opened = asyncio.Event()

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_regularly())
            group.create_task(self._keep_disks_ready())

    def disk_opened(self) -> None:
        """A file system was taken for a container, of those that are made ahead."""
        self._disk_opened.set()

    async def _keep_disks_ready(self) -> None:
        while True:
            await self._disk_opened.wait()
            self._disk_opened.clear()
            await asyncio.sleep(_PATIENCE_S)
            await asyncio.to_thread(self._deps.disks.refill)

    async def _look_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._deps.settings.disk_check_s)
            await self.look()

    async def look(self) -> None:
        """At every container, once."""
        for container in list(self._containers()):
            try:
                self._teardown.complete(container)
                if container.is_running and container.disk_limit_kind is DiskLimitKind.MEASURED:
                    await self._measure(container)
                elif container.is_running and container.disk_limit_kind is DiskLimitKind.FILE_SYSTEM:
                    await asyncio.to_thread(
                        self._deps.disks.give_back,
                        container.place.layer,
                        container.disk_limit,
                        container.shared_disk,
                    )
                elif container.has_leftovers:
                    await self._locks.do(container.name, lambda: self._tidy(container))  # noqa: B023 - awaited
                elif self._is_due_to_rest(container):
                    await self._locks.do(container.name, lambda: self._rest(container))  # noqa: B023 - awaited
            except (errors.SkerryError, OSError) as error:
                log.warning("container.not_looked_after", container=container.name, error=str(error))

    async def _measure(self, container: ContainerEntry) -> None:
        limit, run = container.disk_limit, container.run
        used = await asyncio.to_thread(self._deps.disks.used, container.place.layer)
        if limit is None or used <= limit:
            return

        async def kill() -> None:
            if container.is_running and container.run is run:
                container.reason = (
                    f"it had written {used // _MEGABYTE} MB, and may keep {limit // _MEGABYTE}; it was killed"
                )
                await self._teardown.stop(container, 0.0)

        await self._locks.do(container.name, kill)

    async def _tidy(self, container: ContainerEntry) -> None:
        if container.has_leftovers and not container.is_running:
            await self._teardown.tidy(container)

    def _is_due_to_rest(self, container: ContainerEntry) -> bool:
        if container.is_running:
            return False
        ended_at = (
            container.run.exit.at if container.run is not None and container.run.exit is not None else 0.0
        )
        is_over = self._deps.clock.now() - ended_at >= _REST_AFTER_S
        return is_over and self._deps.cells.is_idle(container.record.cell)

    async def _rest(self, container: ContainerEntry) -> None:
        if self._is_due_to_rest(container):  # it may have been started meanwhile
            await self._deps.cells.rest(container.cell)
