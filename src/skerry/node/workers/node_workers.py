"""All function workers of this machine: a process or a container, by the function's runtime.

Implements `ports.LocalWorkerHost` of `skerry.functions`. On a server without a node there are no workers, and
requests for logs fail with a hint where to find them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Final

import psutil

from skerry.model import errors
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import CellName, FunctionName
from skerry.model.settings import FunctionSettings
from skerry.node.workers.container_workers import ContainerWorker, ContainerWorkers
from skerry.node.workers.function_logs import FunctionLogLine
from skerry.node.workers.process_workers import ProcessWorker, ProcessWorkers

_MEGABYTE: Final = 1024 * 1024
_SHARE: Final = 4  # one part in so many of the machine's memory is for functions, unless set otherwise


def worker_memory_mb(settings: FunctionSettings) -> int:
    """Memory of all workers together, MB."""
    return settings.memory_mb or int(psutil.virtual_memory().total // _MEGABYTE // _SHARE)


def worker_cpus(settings: FunctionSettings) -> float:
    """Cores of all busy workers together."""
    return settings.cpus or float(psutil.cpu_count() or 1)


class NodeWorkers:
    """Both kinds of workers."""

    def __init__(self, processes: ProcessWorkers | None, containers: ContainerWorkers | None) -> None:
        """Without `processes` there are neither workers nor logs."""
        self.processes = processes
        self._containers = containers
        self._callable: set[str] = set()  # functions that process workers can run

    async def spawn(self, function: Function, code: Path | None) -> ProcessWorker | ContainerWorker:
        if function.runtime != CUSTOM:
            return await self._get_processes().spawn(function, code)
        containers = self._get_containers()
        await self._get_processes().ensure_pool()  # process workers do this themselves
        return await containers.spawn(function, code)

    def functions_known(self, changed: Iterable[tuple[str, Function | None]]) -> None:
        """These may be called from now on (None: no more), by name: workers are prestarted for them."""
        for name, function in changed:
            if function is None or function.runtime == CUSTOM:
                self._callable.discard(name)
            else:
                self._callable.add(name)
        if self.processes is not None:
            self.processes.expect_calls(len(self._callable))

    async def prepare(self, function: Function, *, force: bool) -> None:
        host = self._get_containers() if function.runtime == CUSTOM else self._get_processes()
        await host.prepare(function, force=force)

    def provisional(self, name: str, image: str) -> AbstractAsyncContextManager[None]:
        """While a function of `image` is tried and registered: if that fails, images are restored."""
        return nullcontext() if self._containers is None else self._containers.provisional(name, image)

    def describe(self, runtime_kind: str) -> str:
        if self.processes is None:
            return "on nodes of this cloud"
        host = self._get_containers() if runtime_kind == CUSTOM else self.processes
        return host.describe(runtime_kind)

    def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[FunctionLogLine, None]:
        return self._get_processes().logs(name, lines=lines, follow=follow)

    def worker_cells(self) -> dict[CellName, FunctionName]:
        """The functions of all workers, by their cells."""
        hosts = [one for one in (self.processes, self._containers) if one is not None]
        return {cell: name for host in hosts for cell, name in host.worker_cells().items()}

    def forget(self, name: FunctionName) -> None:
        """The function was deleted; remove its logs."""
        if self.processes is not None:
            self.processes.forget(name)

    def _get_processes(self) -> ProcessWorkers:
        if self.processes is None:
            raise errors.Unavailable(
                "functions run on nodes of this cloud and not here, and a node stores its own logs: "
                "'skerry fn invoke --printed' shows that of one call, and 'skerry fn logs' on a node with "
                "node.http set that of all its calls"
            )
        return self.processes

    def _get_containers(self) -> ContainerWorkers:
        self._get_processes()
        if self._containers is None:
            raise errors.Unavailable("this machine runs no containers, and so no functions of runtime custom")
        return self._containers
