"""Periodic maintenance of containers: measured disk limits, releases that failed, idle inits.

`Containers` runs it. Blocks that a container has deleted in its disk image return to the node's disk. Where
disk limits are measured, a container over its limit is killed without grace, in which it could go on writing.
An exited container keeps its cell's init for a while, since most restarts come soon; then the init ends too,
and the container only occupies disk.

Disk images that starts have taken from the pool are replaced here, after the start.
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
_IDLE_INIT_S = 10.0
_REFILL_DELAY_S = 0.1  # another start may follow at once


class ContainerMaintenance:
    """Maintains `containers()`."""

    def __init__(
        self,
        deps: ContainerDeps,
        teardown: RunTeardown,
        locks: PathLocks,
        containers: Callable[[], Iterable[ContainerEntry]],
    ) -> None:
        self._deps = deps
        self._teardown = teardown
        self._locks = locks
        self._containers = containers
        self._disk_opened = asyncio.Event()

    async def run(self) -> None:
        """Runs for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._check_forever())
            group.create_task(self._refill_disks_forever())

    def disk_opened(self) -> None:
        """A disk image was taken from the pool."""
        self._disk_opened.set()

    async def _refill_disks_forever(self) -> None:
        while True:
            await self._disk_opened.wait()
            self._disk_opened.clear()
            await asyncio.sleep(_REFILL_DELAY_S)
            await asyncio.to_thread(self._deps.disks.refill)

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(self._deps.settings.disk_check_s)
            await self.check()

    async def check(self) -> None:
        """Check every container, once."""
        for container in list(self._containers()):
            try:
                self._teardown.complete(container)
                if container.is_running and container.disk_limit_kind is DiskLimitKind.MEASURED:
                    await self._measure(container)
                elif container.is_running and container.disk_limit_kind is DiskLimitKind.FILE_SYSTEM:
                    await asyncio.to_thread(
                        self._deps.disks.discard_unused,
                        container.paths.layer,
                        container.disk_limit,
                        container.shared_disk,
                    )
                elif container.has_leftovers:
                    await self._locks.run_locked(container.name, lambda: self._tidy(container))  # noqa: B023 - awaited
                elif self._has_idle_init(container):
                    await self._locks.run_locked(container.name, lambda: self._end_idle_init(container))  # noqa: B023 - awaited
            except (errors.SkerryError, OSError) as error:
                log.warning("container.not_looked_after", container=container.name, error=str(error))

    async def _measure(self, container: ContainerEntry) -> None:
        limit, run = container.disk_limit, container.run
        used = await asyncio.to_thread(self._deps.disks.used, container.paths.layer)
        if limit is None or used <= limit:
            return

        async def kill() -> None:
            if container.is_running and container.run is run:
                container.reason = (
                    f"it had written {used // _MEGABYTE} MB, over its limit of {limit // _MEGABYTE}; "
                    "it was killed"
                )
                await self._teardown.stop(container, 0.0)

        await self._locks.run_locked(container.name, kill)

    async def _tidy(self, container: ContainerEntry) -> None:
        if container.has_leftovers and not container.is_running:
            await self._teardown.tidy(container)

    def _has_idle_init(self, container: ContainerEntry) -> bool:
        if container.is_running:
            return False
        ended_at = (
            container.run.exit.at if container.run is not None and container.run.exit is not None else 0.0
        )
        is_over = self._deps.clock.now() - ended_at >= _IDLE_INIT_S
        return is_over and self._deps.cells.is_idle(container.record.cell)

    async def _end_idle_init(self, container: ContainerEntry) -> None:
        if self._has_idle_init(container):  # it may have been started meanwhile
            await self._deps.cells.end_idle_init(container.cell)
