"""The functions of this process: which there are, their workers on this machine, and the calls to them.

Called by both roles. Where the control plane is, functions are registered; a node has a copy. The
parts do not know each other: the registry knows no workers, the pool no cells, the workers no contract. What
joins them is here, and in `skerry.daemon.continuum` what joins this process to others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import structlog

from skerry.control.events.log import EventLog
from skerry.daemon import continuum
from skerry.daemon.containers import ContainerEngine
from skerry.daemon.continuum import CodeDownloader, LocalMember
from skerry.functions.asynchronous import results
from skerry.functions.asynchronous.runner import AsyncCallRunner
from skerry.functions.continuum import member_service
from skerry.functions.continuum.async_locator import AsyncCallLocator, id_maker
from skerry.functions.continuum.code_fetcher import CodeFetcher, CodeFetchingHost
from skerry.functions.continuum.code_replication import CodeCopies, CodeReplicator, ReplicationStatus
from skerry.functions.continuum.function_replica import FunctionReplica
from skerry.functions.continuum.policies.loading import load_policy
from skerry.functions.continuum.router import CallRouter
from skerry.functions.invocation.invoker import Invoker
from skerry.functions.ports import FunctionLookup, FunctionWorker, WorkerHost
from skerry.functions.qos import parse_classes
from skerry.functions.registry import runtimes
from skerry.functions.registry.code_store import CodeStore
from skerry.functions.registry.registry import FunctionRegistry, NewFunction
from skerry.kit.clock import Clock
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import FunctionName, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.resources import Resources
from skerry.model.settings import FunctionSettings
from skerry.node.cells.cells import Cells
from skerry.node.workers.container_workers import ContainerWorkers
from skerry.node.workers.function_logs import FunctionLogLine, FunctionLogs
from skerry.node.workers.process_workers import POOL, ProcessWorkers
from skerry.store.protocol import Store
from skerry.transport.links.members.link_pool import LinkPool
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.node_headers import NodeHeaders
from skerry.wire.serverledge.ports import FunctionService

log = structlog.get_logger(__name__)

_MEGABYTE = 1024 * 1024
_SHARE = 4  # of the machine's memory: one part in so many is for functions, unless a setting says else
_STOP_SHARE = 0.3  # of the time for a clean stop, what async calls that run may take


class LocalFunctionLookup(FunctionLookup, member_service.FunctionView, Protocol):
    """The functions as this process knows them, and such of their code as is here."""


@dataclass(frozen=True, slots=True)
class FunctionsParts:
    """Functions as they are served."""

    routes: ServerledgeContext
    failed: Callable[[], Awaitable[None]]  # raises when they cannot go on
    unreachable: Callable[[], Mapping[NodeId, str]]  # members that were dialled in vain, and why


async def open_registry(
    store: Store,
    events: EventLog,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    *,
    most: Callable[[], Resources],
) -> FunctionRegistry:
    """What is registered in this cloud, with the code that is here. Read once `start` has returned."""
    classes = parse_classes(settings.classes)
    return await FunctionRegistry.open(
        store,
        folder / "code",
        clock,
        settings,
        events,
        most=most,
        check_policy=lambda name: load_policy(name, classes),
    )


async def start(
    registry: FunctionRegistry,
    here: LocalMember,
    cells: Cells | None,
    engine: ContainerEngine | None,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    *,
    url: str,
    leads: Callable[[], bool],
    stop_timeout_s: float,
    undo: AsyncExitStack,
) -> FunctionsParts:
    """Take calls where the control plane is, and run them if there are `cells`; else others do.

    The server that `leads` has code copied that too few members have.
    """
    parts = await _assemble(
        registry, registry.code, here, cells, engine, settings, folder, clock, stop_timeout_s, undo
    )
    parts.loops.forever("registry of functions", lambda: registry.run(parts.invoker.code_in_use))
    await registry.ready()
    replicator = CodeReplicator(
        here.member,
        lambda: here.members.all,
        registry,
        registry.code,
        parts.fetcher,
        parts.links,
        clock,
        every_s=settings.repair_s,
        leads=leads,
        seen=parts.entry.measuring.seen,
    )
    here.members.listen(replicator.look_soon)
    parts.loops.forever("copies of code", replicator.run)
    joined = RegistryFunctionService(registry, parts.invoker, parts.hosts, here.member, replicator)
    return parts.served(joined, settings, clock, url)


async def start_replica(
    copies: FunctionReplica,
    here: LocalMember,
    cells: Cells,
    engine: ContainerEngine,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    *,
    server: str,
    url: str,
    stop_timeout_s: float,
    undo: AsyncExitStack,
) -> FunctionsParts:
    """Take calls on a node, which knows the functions as it was told of them by `server`."""
    undo.push_async_callback(copies.close)
    parts = await _assemble(
        copies, copies.code, here, cells, engine, settings, folder, clock, stop_timeout_s, undo
    )
    parts.loops.forever("copies of functions", lambda: copies.run(parts.invoker.code_in_use))
    copied = FunctionReplicaService(copies, parts.invoker, parts.hosts, server)
    copies.listen(copied.changed)
    return parts.served(copied, settings, clock, url)


@dataclass(frozen=True, slots=True)
class _InvocationParts:
    """What is the same wherever functions come from."""

    here: LocalMember
    hosts: NodeWorkers
    invoker: Invoker
    entry: CallRouter
    origins: AsyncCallLocator
    links: LinkPool
    fetcher: CodeFetcher
    loops: TaskSupervisor

    def served(
        self, functions: FunctionService, settings: FunctionSettings, clock: Clock, url: str
    ) -> FunctionsParts:
        headers = NodeHeaders(self.entry, clock, self.here.member.name)
        routes = ServerledgeContext(
            functions, self.entry, self.origins, self.hosts, settings, clock, url, headers
        )
        return FunctionsParts(routes, self.loops.failed, self.links.unreachable)


async def _assemble(
    registry: LocalFunctionLookup,
    code: CodeStore,
    here: LocalMember,
    cells: Cells | None,
    engine: ContainerEngine | None,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    stop_timeout_s: float,
    undo: AsyncExitStack,
) -> _InvocationParts:
    member = here.member
    hosts = await _open_hosts(cells, engine, settings, folder, clock, member.memory, undo)
    supply = CodeDownloader(here, settings)
    fetcher = CodeFetcher(code, supply.fetch)
    host = CodeFetchingHost(hosts, fetcher)
    invoker = Invoker(
        host, registry, settings, clock, node=member.name, memory_mb=member.memory, cpus=member.cpus
    )
    undo.push_async_callback(invoker.close)
    links = continuum.open_links(here, settings, clock, undo)
    entry = continuum.open_router(here, invoker, registry, links, supply, settings, clock, undo)
    # Ids tell where they are from if anybody else can ask.
    new_id = results.new_id if here.listening is None else id_maker(member.node)
    asynchronous = await AsyncCallRunner.open(folder, entry, clock, settings, new_id)

    async def close() -> None:
        await asynchronous.close(within_s=stop_timeout_s * _STOP_SHARE)

    undo.push_async_callback(close)
    # Entered after what the loops use, so that it is left before that closes.
    loops = await undo.enter_async_context(TaskSupervisor("functions", clock=clock))
    if hosts.workers is not None:
        loops.forever("workers", hosts.workers.run)
    loops.forever("pool of workers", invoker.run)
    loops.forever("neighbours", entry.run)
    loops.forever("async calls", asynchronous.run)
    result_copies = continuum.open_result_copies(here, asynchronous, links, entry, clock)
    loops.forever("copies of results", result_copies.run)
    continuum.serve(
        here,
        entry,
        invoker,
        registry,
        asynchronous,
        code,
        fetcher,
        settings,
        clock,
        stop_s=stop_timeout_s * _STOP_SHARE,
        undo=undo,
    )
    origins = AsyncCallLocator(asynchronous, links, entry.places)
    return _InvocationParts(here, hosts, invoker, entry, origins, links, fetcher, loops)


def worker_memory_mb(settings: FunctionSettings) -> int:
    """What all workers may have together, MB."""
    return settings.memory_mb or int(psutil.virtual_memory().total // _MEGABYTE // _SHARE)


def worker_cpus(settings: FunctionSettings) -> float:
    """The cores of all busy workers together."""
    return settings.cpus or float(psutil.cpu_count() or 1)


async def _open_hosts(
    cells: Cells | None,
    engine: ContainerEngine | None,
    settings: FunctionSettings,
    folder: Path,
    clock: Clock,
    memory_mb: int,
    undo: AsyncExitStack,
) -> NodeWorkers:
    if cells is None:
        return NodeWorkers(None, None)
    logs = FunctionLogs(folder / "logs", settings.log_bytes)
    images: ContainerWorkers | None = None
    if engine is not None:
        # First, since the cell that they are in is made anew by the next step.
        images = await ContainerWorkers.open(
            engine.containers, engine.images, settings, clock, logs, inside=POOL, folder=folder
        )
    network = (
        engine.network if engine is not None else "containers cannot be run here, and so have no network"
    )
    workers = await ProcessWorkers.open(
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
    return NodeWorkers(workers, images)


class NodeWorkers:
    """Both kinds of workers as one host: by a function's runtime, a process or a container."""

    def __init__(self, workers: ProcessWorkers | None, images: ContainerWorkers | None) -> None:
        """Without `workers` there are none of any kind, and nothing that they printed."""
        self.workers = workers
        self._images = images

    async def spawn(self, function: Function, code: Path | None) -> FunctionWorker:
        host = self._of(function)
        if host is self._images and self.workers is not None:
            await self.workers.ensure_pool()  # which processes see to themselves
        return await host.spawn(function, code)

    async def prepare(self, function: Function, *, force: bool) -> None:
        await self._of(function).prepare(function, force=force)

    def provisional(self, new: NewFunction) -> AbstractAsyncContextManager[None]:
        """Where `new` is tried and registered: if that fails, images are as they were."""
        if self._images is None or new.runtime != CUSTOM or not new.image:
            return nullcontext()
        return self._images.provisional(new.name, new.image)

    def describe(self, runtime_kind: str) -> str:
        if self.workers is None:
            return "on nodes of this cloud"
        if runtime_kind != CUSTOM:
            return self._processes().describe(runtime_kind)
        return self._containers().describe(runtime_kind)

    def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[FunctionLogLine, None]:
        return self._processes().logs(name, lines=lines, follow=follow)

    def forget(self, name: FunctionName) -> None:
        """The function is gone, and so is what it printed."""
        if self.workers is not None:
            self.workers.forget(name)

    def _of(self, function: Function) -> WorkerHost:
        return self._containers() if function.runtime == CUSTOM else self._processes()

    def _processes(self) -> ProcessWorkers:
        if self.workers is None:
            raise errors.Unavailable(
                "functions run on nodes of this cloud and not here, and a node keeps what is printed there: "
                "'skerry fn invoke --printed' shows that of one call, and 'skerry fn logs' on a node with "
                "node.http set that of all its calls"
            )
        return self.workers

    def _containers(self) -> ContainerWorkers:
        self._processes()
        if self._images is None:
            raise errors.Unavailable("this machine runs no containers, and so no functions of images")
        return self._images


class RegistryFunctionService:
    """The registry, with everybody who has to hear of a change before it is acknowledged."""

    def __init__(
        self,
        registry: FunctionRegistry,
        invoker: Invoker,
        host: NodeWorkers,
        member: ContinuumMember,
        replicator: CodeReplicator,
    ) -> None:
        self._registry = registry
        self._member = member
        self._replicator = replicator
        self._invoker = invoker
        self._host = host
        self.get = registry.get

    async def create(self, new: NewFunction, *, actor: str) -> Function:
        async with self._host.provisional(new):
            return await self._registry.create(new, actor=actor, check=self._check)

    async def update(self, new: NewFunction, *, actor: str) -> Function:
        async with self._host.provisional(new):
            function = await self._registry.update(new, actor=actor, check=self._check)
        await self._invoker.updated(function)
        return function

    async def delete(self, name: str, *, actor: str) -> Function:
        function = await self._registry.delete(name, actor=actor)
        await self._invoker.removed(function.name)
        self._host.forget(function.name)
        return function

    async def _check(self, function: Function, code: Path | None) -> None:
        """Load it once, if that can be done here: one that fits only on a larger node is taken as it is. Then
        have its code on a second member."""
        member = self._member
        if function.memory <= member.memory and (function.cpu or 0) <= member.cpus * 1000:
            await self._invoker.validate(function, code)
        if function.code is not None:
            await self._replicator.replicate(function.code)

    def names(self) -> Sequence[str]:
        return self._registry.names()

    def runs(self, function: Function) -> str:
        return self._host.describe(runtimes.find(function.runtime).kind)

    def copies(self, function: Function) -> CodeCopies | None:
        return None if function.code is None else self._replicator.copies(function.code)

    def replication(self) -> ReplicationStatus:
        return self._replicator.status


class FunctionReplicaService:
    """The functions of a node: they are called here, and registered elsewhere."""

    def __init__(self, copies: FunctionReplica, invoker: Invoker, host: NodeWorkers, server: str) -> None:
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

    def copies(self, function: Function) -> CodeCopies | None:
        return None

    def replication(self) -> ReplicationStatus | None:
        return None

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
