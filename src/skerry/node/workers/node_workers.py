"""All workers of functions on this machine as one host: by a function's runtime, a process or a container.

`skerry.functions` knows it as `ports.LocalWorkerHost`. On a server without a node there are no workers, and
whoever asks for what they printed is told where to find it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Final

import psutil

from skerry.model import errors
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import FunctionName
from skerry.model.settings import FunctionSettings
from skerry.node.workers.container_workers import ContainerWorker, ContainerWorkers
from skerry.node.workers.function_logs import FunctionLogLine
from skerry.node.workers.process_workers import ProcessWorker, ProcessWorkers

_MEGABYTE: Final = 1024 * 1024
_SHARE: Final = 4  # of the machine's memory: one part in so many is for functions, unless a setting says else


def worker_memory_mb(settings: FunctionSettings) -> int:
    """What all workers may have together, MB."""
    return settings.memory_mb or int(psutil.virtual_memory().total // _MEGABYTE // _SHARE)


def worker_cpus(settings: FunctionSettings) -> float:
    """The cores of all busy workers together."""
    return settings.cpus or float(psutil.cpu_count() or 1)


class NodeWorkers:
    """Both kinds of workers."""

    def __init__(self, processes: ProcessWorkers | None, containers: ContainerWorkers | None) -> None:
        """Without `processes` there are no workers of any kind, and nothing that they printed."""
        self.processes = processes
        self._containers = containers

    async def spawn(self, function: Function, code: Path | None) -> ProcessWorker | ContainerWorker:
        if function.runtime != CUSTOM:
            return await self._get_processes().spawn(function, code)
        containers = self._get_containers()
        await self._get_processes().ensure_pool()  # which processes see to themselves
        return await containers.spawn(function, code)

    async def prepare(self, function: Function, *, force: bool) -> None:
        host = self._get_containers() if function.runtime == CUSTOM else self._get_processes()
        await host.prepare(function, force=force)

    def provisional(self, name: str, image: str) -> AbstractAsyncContextManager[None]:
        """Where a function of `image` is tried and registered: if that fails, images are as they were."""
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

    def forget(self, name: FunctionName) -> None:
        """The function is gone, and so is what it printed."""
        if self.processes is not None:
            self.processes.forget(name)

    def _get_processes(self) -> ProcessWorkers:
        if self.processes is None:
            raise errors.Unavailable(
                "functions run on nodes of this cloud and not here, and a node keeps what is printed there: "
                "'skerry fn invoke --printed' shows that of one call, and 'skerry fn logs' on a node with "
                "node.http set that of all its calls"
            )
        return self.processes

    def _get_containers(self) -> ContainerWorkers:
        self._get_processes()
        if self._containers is None:
            raise errors.Unavailable("this machine runs no containers, and so no functions of images")
        return self._containers
