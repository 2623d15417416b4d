"""The functions of this process: which there are, their workers on this machine, and the calls to them.

Called by `skerry.daemon.roles`. Where the control plane is, functions are registered; a node has a copy. The
parts do not know each other: the registry knows no workers, the pool no cells, the workers no contract. What
joins them is here, and in `skerry.daemon.continuum` what joins this process to others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import structlog

from skerry.control.events import EventLog
from skerry.daemon import continuum
from skerry.daemon.containers import Engine
from skerry.daemon.continuum import Here, Supply
from skerry.functions import results, runtimes
from skerry.functions.asynchronous import Asynchronous
from skerry.functions.code import Code
from skerry.functions.continuum import guests
from skerry.functions.continuum.classes import parse_classes
from skerry.functions.continuum.copies import Copies
from skerry.functions.continuum.entries import Continuum
from skerry.functions.continuum.fetchers import FetchingHost
from skerry.functions.continuum.origins import Origins, id_maker
from skerry.functions.continuum.policies.choosing import choose
from skerry.functions.hosts import Host, Lookup, Worker
from skerry.functions.invoking import Invoker
from skerry.functions.registry import Functions, NewFunction
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.model import errors
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import FunctionName
from skerry.model.members import Member
from skerry.model.room import Room
from skerry.model.settings import FunctionSettings
from skerry.node.cells.cells import Cells
from skerry.node.workers.images import ImageWorkers
from skerry.node.workers.logs import FunctionLogs, LogLine
from skerry.node.workers.workers import CELL, Workers
from skerry.store.protocol import Store
from skerry.wire.serverledge.context import Serverledge
from skerry.wire.serverledge.keeper import Functions as Registered

log = structlog.get_logger(__name__)

_MEGABYTE = 1024 * 1024
_SHARE = 4  # of the machine's memory: one part in so many is for functions, unless a setting says else
_STOP_SHARE = 0.3  # of the time for a clean stop, what async calls that run may take


class Mirror(Lookup, guests.Mirror, Protocol):
    """The functions as this process knows them, and such of their code as is here."""


@dataclass(frozen=True, slots=True)
class Running:
    """Functions as they are served."""

    routes: Serverledge
    failed: Callable[[], Awaitable[None]]  # raises when they cannot go on


async def open_registry(
    store: Store,
    events: EventLog,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    *,
    most: Callable[[], Room],
) -> Functions:
    """What is registered in this cloud, with the code that is here. Read once `start` has returned."""
    classes = parse_classes(settings.classes)
    return await Functions.open(
        store,
        folder / "code",
        clock,
        settings,
        events,
        most=most,
        check_policy=lambda name: choose(name, classes),
    )


async def start(
    registry: Functions,
    here: Here,
    cells: Cells | None,
    engine: Engine | None,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    *,
    url: str,
    stop_timeout_s: float,
    undo: AsyncExitStack,
) -> Running:
    """Take calls where the control plane is, and run them if there are `cells`; else others do."""
    parts = await _assemble(
        registry, registry.code, here, cells, engine, settings, folder, clock, stop_timeout_s, undo
    )
    parts.loops.forever("registry of functions", lambda: registry.run(parts.invoker.code_in_use))
    await registry.ready()
    return parts.served(Joined(registry, parts.invoker, parts.hosts, here.member), settings, clock, url)


async def start_copies(
    copies: Copies,
    here: Here,
    cells: Cells,
    engine: Engine,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    *,
    server: str,
    url: str,
    stop_timeout_s: float,
    undo: AsyncExitStack,
) -> Running:
    """Take calls on a node, which knows the functions as it was told of them by `server`."""
    undo.push_async_callback(copies.close)
    parts = await _assemble(
        copies, copies.code, here, cells, engine, settings, folder, clock, stop_timeout_s, undo
    )
    parts.loops.forever("copies of functions", lambda: copies.run(parts.invoker.code_in_use))
    copied = Copied(copies, parts.invoker, parts.hosts, server)
    copies.listen(copied.changed)
    return parts.served(copied, settings, clock, url)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is the same wherever functions come from."""

    here: Here
    hosts: Hosts
    invoker: Invoker
    entry: Continuum
    origins: Origins
    loops: Keeper

    def served(self, functions: Registered, settings: FunctionSettings, clock: Clock, url: str) -> Running:
        routes = Serverledge.of(
            functions,
            self.entry,
            self.origins,
            self.hosts,
            settings,
            clock,
            node=self.here.member.name,
            url=url,
        )
        return Running(routes, self.loops.failed)


async def _assemble(
    registry: Mirror,
    code: Code,
    here: Here,
    cells: Cells | None,
    engine: Engine | None,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    stop_timeout_s: float,
    undo: AsyncExitStack,
) -> _Parts:
    member = here.member
    hosts = await _open_hosts(cells, engine, settings, folder, clock, member.memory, undo)
    supply = Supply(here, settings)
    host = FetchingHost(hosts, code, supply.fetch)
    invoker = Invoker(
        host, registry, settings, clock, node=member.name, memory_mb=member.memory, cpus=member.cpus
    )
    undo.push_async_callback(invoker.close)
    links = continuum.open_links(here, settings, clock, undo)
    entry = continuum.open_entry(here, invoker, registry, links, supply, settings, clock, undo)
    # Ids tell where they are from if anybody else can ask.
    new_id = results.new_id if here.listening is None else id_maker(member.node)
    asynchronous = await Asynchronous.open(folder, entry, clock, settings, new_id)

    async def close() -> None:
        await asynchronous.close(within_s=stop_timeout_s * _STOP_SHARE)

    undo.push_async_callback(close)
    # Entered after what the loops use, so that it is left before that closes.
    loops = await undo.enter_async_context(Keeper("functions", clock=clock))
    if hosts.workers is not None:
        loops.forever("workers", hosts.workers.run)
    loops.forever("pool of workers", invoker.run)
    loops.forever("neighbours", entry.run)
    loops.forever("async calls", asynchronous.run)
    stop_s = stop_timeout_s * _STOP_SHARE
    continuum.serve(here, entry, invoker, registry, asynchronous, settings, clock, stop_s=stop_s, undo=undo)
    return _Parts(here, hosts, invoker, entry, Origins(asynchronous, links, entry.places), loops)


def memory_of(settings: FunctionSettings) -> int:
    """What all workers may have together, MB."""
    return settings.memory_mb or int(psutil.virtual_memory().total // _MEGABYTE // _SHARE)


def cpus_of(settings: FunctionSettings) -> float:
    """The cores of all busy workers together."""
    return settings.cpus or float(psutil.cpu_count() or 1)


async def _open_hosts(
    cells: Cells | None,
    engine: Engine | None,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    memory_mb: int,
    undo: AsyncExitStack,
) -> Hosts:
    if cells is None:
        return Hosts(None, None)
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

    def __init__(self, workers: Workers | None, images: ImageWorkers | None) -> None:
        """Without `workers` there are none of any kind, and nothing that they printed."""
        self.workers = workers
        self._images = images

    async def spawn(self, function: Function, code: Path | None) -> Worker:
        return await self._of(function).spawn(function, code)

    async def prepare(self, function: Function, *, force: bool) -> None:
        await self._of(function).prepare(function, force=force)

    def describe(self, runtime_kind: str) -> str:
        if runtime_kind != CUSTOM:
            return self._processes().describe(runtime_kind)
        return self._containers().describe(runtime_kind)

    def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[LogLine, None]:
        return self._processes().logs(name, lines=lines, follow=follow)

    def forget(self, name: FunctionName) -> None:
        """The function is gone, and so is what it printed."""
        if self.workers is not None:
            self.workers.forget(name)

    def _of(self, function: Function) -> Host:
        return self._containers() if function.runtime == CUSTOM else self._processes()

    def _processes(self) -> Workers:
        if self.workers is None:
            raise errors.Unavailable("functions do not run here, but on nodes of this cloud; ask there")
        return self.workers

    def _containers(self) -> ImageWorkers:
        self._processes()
        if self._images is None:
            raise errors.Unavailable("this machine runs no containers, and so no functions of images")
        return self._images


class Joined:
    """The registry, with everybody who has to hear of a change before it is acknowledged."""

    def __init__(self, registry: Functions, invoker: Invoker, host: Hosts, member: Member) -> None:
        self._registry = registry
        self._member = member
        self._invoker = invoker
        self._host = host
        self.get = registry.get

    async def create(self, new: NewFunction, *, actor: str) -> Function:
        return await self._registry.create(new, actor=actor, check=self._check)

    async def update(self, new: NewFunction, *, actor: str) -> Function:
        function = await self._registry.update(new, actor=actor, check=self._check)
        await self._invoker.updated(function)
        return function

    async def delete(self, name: str, *, actor: str) -> Function:
        function = await self._registry.delete(name, actor=actor)
        await self._invoker.removed(function.name)
        self._host.forget(function.name)
        return function

    async def _check(self, function: Function, code: Path | None) -> None:
        """Load it once, if that can be done here: one that fits only on a larger node is taken as it is."""
        member = self._member
        if function.memory <= member.memory and (function.cpu or 0) <= member.cpus * 1000:
            await self._invoker.validate(function, code)

    def names(self) -> Sequence[str]:
        return self._registry.names()

    def runs(self, function: Function) -> str:
        return self._host.describe(runtimes.find(function.runtime).kind)


class Copied:
    """The functions of a node: they are called here, and registered elsewhere."""

    def __init__(self, copies: Copies, invoker: Invoker, host: Hosts, server: str) -> None:
        self._copies = copies
        self._invoker = invoker
        self._host = host
        self._server = server
        self.get = copies.get

    async def create(self, new: NewFunction, *, actor: str) -> Function:
        raise self._elsewhere()

    async def update(self, new: NewFunction, *, actor: str) -> Function:
        raise self._elsewhere()

    async def delete(self, name: str, *, actor: str) -> Function:
        raise self._elsewhere()

    def names(self) -> Sequence[str]:
        return self._copies.names()

    def runs(self, function: Function) -> str:
        return self._host.describe(runtimes.find(function.runtime).kind)

    async def changed(self, before: Function | None, after: Function | None) -> None:
        """It is another by the word of the control plane."""
        if before is not None and (after is None or after.name != before.name):
            await self._invoker.removed(before.name)
            self._host.forget(before.name)
        elif after is not None:
            await self._invoker.updated(after)

    def _elsewhere(self) -> errors.Unavailable:
        return errors.Unavailable(
            f"functions are registered at the server of this node, {self._server}; ask there"
        )
