"""The functions of this process: their registry, their workers on this machine, and the calls to them.

Called by `skerry.daemon.roles` where there are both a control plane and cells. The parts do not know each
other: the registry knows no workers, the pool no cells, the workers no contract. What joins them is here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import structlog

from skerry.control.events import EventLog
from skerry.daemon.containers import Engine
from skerry.functions import runtimes
from skerry.functions.asynchronous import Asynchronous
from skerry.functions.continuum.classes import parse_classes
from skerry.functions.continuum.policies.choosing import choose
from skerry.functions.hosts import Host, Worker
from skerry.functions.invoking import Invoker
from skerry.functions.registry import Functions, NewFunction
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.model import errors
from skerry.model.functions import CUSTOM, Function
from skerry.model.settings import FunctionSettings
from skerry.node.cells.cells import Cells
from skerry.node.workers.images import ImageWorkers
from skerry.node.workers.logs import FunctionLogs
from skerry.node.workers.workers import CELL, Workers
from skerry.store.protocol import Store
from skerry.wire.serverledge.context import Serverledge

log = structlog.get_logger(__name__)

_MEGABYTE = 1024 * 1024
_SHARE = 4  # of the machine's memory: one part in so many is for functions, unless a setting says else
_STOP_SHARE = 0.3  # of the time for a clean stop, what async calls that run may take


async def start(
    store: Store,
    events: EventLog,
    cells: Cells,
    engine: Engine | None,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    *,
    node: str,
    url: str,
    stop_timeout_s: float,
    undo: AsyncExitStack,
) -> tuple[Serverledge, Callable[[], Awaitable[None]]]:
    """Open all of it, and keep it going. With what the routes need comes what raises when it cannot go on."""
    memory_mb = memory_of(settings)
    cpus = settings.cpus or float(psutil.cpu_count() or 1)
    classes = parse_classes(settings.classes)
    registry = await Functions.open(
        store,
        folder / "code",
        clock,
        settings,
        events,
        memory_mb=memory_mb,
        cpus=cpus,
        check_policy=lambda name: choose(name, classes),
    )
    host = await _open_host(cells, engine, settings, folder, clock, memory_mb, undo)
    invoker = Invoker(host, registry, settings, clock, node=node, memory_mb=memory_mb, cpus=cpus)
    undo.push_async_callback(invoker.close)
    asynchronous = await Asynchronous.open(folder, invoker, clock, settings)

    async def close() -> None:
        await asynchronous.close(within_s=stop_timeout_s * _STOP_SHARE)

    undo.push_async_callback(close)
    # Entered after what the loops use, so that it is left before that closes.
    loops = await undo.enter_async_context(Keeper("functions", clock=clock))
    loops.forever("registry of functions", lambda: registry.run(invoker.code_in_use))
    loops.forever("workers", host.workers.run)
    loops.forever("pool of workers", invoker.run)
    loops.forever("async calls", asynchronous.run)
    await registry.ready()
    joined = Joined(registry, invoker, host)
    routes = Serverledge.of(joined, invoker, asynchronous, host.workers, settings, clock, node=node, url=url)
    return routes, loops.failed


def memory_of(settings: FunctionSettings) -> int:
    """What all workers may have together, MB."""
    return settings.memory_mb or int(psutil.virtual_memory().total // _MEGABYTE // _SHARE)


async def _open_host(
    cells: Cells,
    engine: Engine | None,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    memory_mb: int,
    undo: AsyncExitStack,
) -> Hosts:
    logs = FunctionLogs(folder / "logs", settings.log_bytes)
    images: ImageWorkers | None = None
    if engine is not None:
        # First, since the cell that they are in is made anew by the next step.
        images = await ImageWorkers.open(engine.containers, engine.images, settings, clock, logs, inside=CELL)
    network = (
        engine.network if engine is not None else "containers cannot be run here, and so have no network"
    )
    workers = await Workers.open(
        cells,
        network,
        settings,
        clock,
        folder,
        logs,
        memory_mb=memory_mb,
        kind_of=lambda runtime: runtimes.find(runtime).kind,
    )
    undo.push_async_callback(workers.close)
    if images is not None:
        undo.push_async_callback(images.close)
    return Hosts(workers, images)


class Hosts:
    """Both kinds of workers as one host: by a function's runtime, a process or a container."""

    def __init__(self, workers: Workers, images: ImageWorkers | None) -> None:
        self.workers = workers
        self._images = images

    async def spawn(self, function: Function, code: Path | None) -> Worker:
        return await self._of(function).spawn(function, code)

    async def prepare(self, function: Function, *, force: bool) -> None:
        await self._of(function).prepare(function, force=force)

    def describe(self, runtime_kind: str) -> str:
        if runtime_kind != CUSTOM:
            return self.workers.describe(runtime_kind)
        return self._containers().describe(runtime_kind)

    def _of(self, function: Function) -> Host:
        return self._containers() if function.runtime == CUSTOM else self.workers

    def _containers(self) -> ImageWorkers:
        if self._images is None:
            raise errors.Unavailable("this machine runs no containers, and so no functions of images")
        return self._images


class Joined:
    """The registry, with everybody who has to hear of a change before it is acknowledged."""

    def __init__(self, registry: Functions, invoker: Invoker, host: Hosts) -> None:
        self._registry = registry
        self._invoker = invoker
        self._host = host
        self.get = registry.get

    async def create(self, new: NewFunction, *, actor: str) -> Function:
        return await self._registry.create(new, actor=actor, check=self._invoker.validate)

    async def update(self, new: NewFunction, *, actor: str) -> Function:
        function = await self._registry.update(new, actor=actor, check=self._invoker.validate)
        await self._invoker.updated(function)
        return function

    async def delete(self, name: str, *, actor: str) -> Function:
        function = await self._registry.delete(name, actor=actor)
        await self._invoker.removed(function.name)
        self._host.workers.forget(function.name)
        return function

    def names(self) -> Sequence[str]:
        return self._registry.names()

    def runs(self, function: Function) -> str:
        return self._host.describe(runtimes.find(function.runtime).kind)
