"""The functions of this process: the registry or its replica, workers on this machine, and calls.

Called by both roles. Where the control plane is, functions are registered; a node has a copy. The parts do
not know each other: the registry knows no workers, the pool no cells, the workers no contract, the router no
transport. They are connected here. A single member has links too, which cost nothing.
"""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec.structs import replace

from skerry.daemon.node_runtime import NodeRuntimeParts
from skerry.daemon.role_parts import RoleContext
from skerry.functions.asynchronous import results
from skerry.functions.asynchronous.runner import AsyncCallRunner
from skerry.functions.continuum.async_locator import AsyncCallLocator, id_maker
from skerry.functions.continuum.cloud_calls import CloudCalls, count_calls
from skerry.functions.continuum.code_fetcher import CodeFetcher, CodeFetchingHost
from skerry.functions.continuum.code_replication import CodeReplicator
from skerry.functions.continuum.code_sources import CodeSources
from skerry.functions.continuum.function_replica import FunctionReplica
from skerry.functions.continuum.member_service import FunctionView, LocalMemberService
from skerry.functions.continuum.member_table import MemberTable
from skerry.functions.continuum.policies.loading import load_policy
from skerry.functions.continuum.result_replication import ResultCopies
from skerry.functions.continuum.router import CallRouter
from skerry.functions.invocation.call_history import CallHistory
from skerry.functions.invocation.invoker import Invoker
from skerry.functions.invocation.metrics import InvocationMetrics
from skerry.functions.ports import FunctionLookup
from skerry.functions.qos import parse_classes
from skerry.functions.registry import runtimes
from skerry.functions.registry.code_store import CodeStore
from skerry.functions.registry.registry import FunctionRegistry
from skerry.functions.service import FunctionReplicaService, RegistryFunctionService
from skerry.kit.tasks import TaskSupervisor
from skerry.model.functions import Function
from skerry.model.ids import CellName, Digest, FunctionName, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.resources import Resources
from skerry.model.secret_versions import SecretVersions
from skerry.model.settings import Settings
from skerry.node.secrets.supply import refs_of
from skerry.node.workers import node_workers
from skerry.node.workers.container_workers import ContainerWorkers
from skerry.node.workers.function_logs import FunctionLogs
from skerry.node.workers.node_workers import NodeWorkers
from skerry.node.workers.prestarted import WorkerDeps
from skerry.node.workers.process_workers import POOL, ProcessWorkers
from skerry.store.protocol import Store
from skerry.transport import addresses, host_identity
from skerry.transport.links.members.link_identity import MemberLinkAccess, MemberSource, RevocationChecker
from skerry.transport.links.members.link_pool import LinkPool
from skerry.transport.links.members.server import MemberLinkServer
from skerry.transport.links.nodes import code_transfer
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.node_headers import NodeHeaders
from skerry.wire.serverledge.ports import FunctionService

if TYPE_CHECKING:
    from skerry.control.events.log import EventLog

FOLDER: Final = "functions"  # in the data folder
_STOP_SHARE = 0.3  # of the time for a clean stop, what async calls that run may take


class _LocalFunctions(FunctionLookup, FunctionView, Protocol):
    """The functions as this process knows them, and such of their code as is here."""

    @property
    def code(self) -> CodeStore: ...

    def all_known(self) -> Sequence[Function]: ...


class LocalMember(msgspec.Struct, frozen=True):
    """This process as others that take calls of functions know it."""

    member: ContinuumMember
    members: MemberSource
    dialling: ssl.SSLContext  # has its certificate for neighbours that it calls
    serving: ssl.SSLContext  # and to those that call it
    revocations: RevocationChecker
    listening: socket.socket | None  # bound, for neighbours; None: no listener
    servers: Callable[[], Sequence[str]]  # HOST:PORT of those that have code, beside neighbours


class FunctionsParts(msgspec.Struct, frozen=True):
    """Functions as they are served."""

    routes: ServerledgeContext
    asynchronous: AsyncCallRunner
    failed: Callable[[], Awaitable[None]]  # raises when they cannot go on
    unreachable: Callable[[], Mapping[NodeId, str]]  # members that cannot be reached, and why
    metrics: InvocationMetrics  # of calls that ran in this process
    router: CallRouter  # which knows the other members
    history: CallHistory  # of those, and of calls that it sent elsewhere
    worker_cells: Callable[[], Mapping[CellName, FunctionName]]


def bind_member_socket(context: RoleContext, host: str) -> socket.socket | None:
    """Where other members bring calls of functions; None if they cannot. `store_member_port` follows when
    something may be written."""
    bound = addresses.bind_member_listener(
        context.settings.functions.neighbours, context.folder / FOLDER, host=host
    )
    return None if bound is None else context.undo.enter_context(bound)


def store_member_port(context: RoleContext, bound: socket.socket | None) -> None:
    if bound is not None:
        addresses.store_member_port(context.settings.functions.neighbours, context.folder / FOLDER, bound)


def describe_member(
    node: NodeId, name: str, settings: Settings, listening: socket.socket | None, *, runs_functions: bool
) -> ContinuumMember:
    """This process as a member, for the others."""
    address = settings.functions.neighbour_address
    if not address and listening is not None:
        address = addresses.advertised_addresses(
            addresses.display_address(listening), settings, host_identity.read()
        )[0]
    return ContinuumMember(
        node,
        name,
        settings.functions.area,
        settings.functions.remote_area,
        address,
        node_workers.worker_memory_mb(settings.functions) if runs_functions else 0,
        node_workers.worker_cpus(settings.functions) if runs_functions else 0.0,
        is_server=not runs_functions,
    )


async def open_registry(
    context: RoleContext,
    store: Store,
    events: EventLog,
    *,
    most: Callable[[], Resources],
    secrets: SecretVersions,
) -> FunctionRegistry:
    """What is registered in this cloud, with the code that is here. Read once `start` has returned."""
    settings = context.settings.functions
    classes = parse_classes(settings.classes)
    registry = FunctionRegistry(
        store,
        context.folder / FOLDER / "code",
        context.clock,
        settings,
        events,
        most=most,
        check_policy=lambda name: load_policy(name, classes),
    )
    registry.use_secrets(secrets)
    return await registry.open()


async def start(
    context: RoleContext,
    registry: FunctionRegistry,
    here: LocalMember,
    runtime: NodeRuntimeParts | None,
    *,
    url: str,
    leads: Callable[[], bool],
    check_prewarm: Callable[[Function, int], None],
) -> FunctionsParts:
    """Take calls where the control plane is, and run them if `runtime` has cells; else others do.

    The server that `leads` has code copied that too few members have.
    """
    parts = await _assemble(context, registry, here, runtime)
    parts.loops.forever("registry of functions", lambda: registry.run(parts.invoker.code_in_use))
    await registry.ready()
    registry.listen(lambda name, function: parts.hosts.functions_known([(name, function)]))
    parts.hosts.functions_known((each.name, each) for each in registry.all())
    replicator = CodeReplicator(
        parts.router.measuring,
        registry,
        registry.code,
        parts.fetcher,
        parts.links,
        context.clock,
        every_s=context.settings.functions.repair_s,
        leads=leads,
    )
    here.members.listen(replicator.check_soon)
    parts.loops.forever("copies of code", replicator.run)
    service = RegistryFunctionService(registry, parts.invoker, parts.hosts, here.member, replicator)
    served = parts.served(context, service, url)
    return replace(served, routes=replace(served.routes, check_prewarm=check_prewarm))


async def start_replica(
    context: RoleContext,
    copies: FunctionReplica,
    here: LocalMember,
    runtime: NodeRuntimeParts,
    *,
    server: str,
    url: str,
) -> FunctionsParts:
    """Take calls on a node, which has the functions from `server`."""
    context.undo.push_async_callback(copies.close)
    parts = await _assemble(context, copies, here, runtime)
    parts.loops.forever("copies of functions", lambda: copies.run(parts.invoker.code_in_use))

    async def changed(before: Function | None, after: Function | None) -> None:
        parts.hosts.functions_known([(each.name, after) for each in (before, after) if each is not None])

    copies.listen(changed)
    parts.hosts.functions_known((each.name, each) for each in copies.all_known())
    service = FunctionReplicaService(copies, parts.invoker, parts.hosts, server)
    return parts.served(context, service, url)


class _InvocationParts(msgspec.Struct, frozen=True):
    """What is the same wherever functions come from."""

    hosts: NodeWorkers
    invoker: Invoker
    router: CallRouter
    asynchronous: AsyncCallRunner
    locator: AsyncCallLocator
    links: LinkPool
    fetcher: CodeFetcher
    loops: TaskSupervisor

    def served(self, context: RoleContext, functions: FunctionService, url: str) -> FunctionsParts:
        settings, clock = context.settings.functions, context.clock
        headers = NodeHeaders(self.router, clock, self.router.places.me.name)
        routes = ServerledgeContext(
            functions,
            self.router,
            self.locator,
            self.hosts,
            settings,
            clock,
            url,
            headers,
            CloudCalls(
                lambda: count_calls(self.invoker.metrics.groups()), self.links, self.router.places, clock
            ),
        )
        return FunctionsParts(
            routes,
            self.asynchronous,
            self.loops.failed,
            self.links.unreachable,
            self.invoker.metrics,
            self.router,
            self.invoker.history,
            self.hosts.worker_cells,
        )


async def _assemble(
    context: RoleContext, functions: _LocalFunctions, here: LocalMember, runtime: NodeRuntimeParts | None
) -> _InvocationParts:
    settings, clock, undo, member = context.settings.functions, context.clock, context.undo, here.member
    hosts = await _open_hosts(context, runtime, member.memory)
    if runtime is not None and runtime.engine is not None:
        runtime.engine.secrets.values.add_user(
            lambda: (ref for function in functions.all_known() for ref in refs_of(function))
        )
    access = MemberLinkAccess(here.members, here.revocations)
    links = LinkPool(
        member.node, here.dialling, clock, settings, timeout_s=settings.neighbour_timeout_s, access=access
    )
    places = MemberTable(member)
    if runtime is not None and runtime.engine is not None:
        runtime.engine.network.services.use_round_trips(places.round_trip_s)

    async def fetch_from(server: str, digest: Digest) -> bytes:
        return await code_transfer.fetch_archive(
            server, here.dialling, digest, most_bytes=settings.max_code_bytes
        )

    fetcher = CodeFetcher(functions.code, CodeSources(links, places, here.servers, fetch_from).fetch)
    invoker = Invoker(
        CodeFetchingHost(hosts, fetcher),
        functions,
        settings,
        clock,
        node=member.name,
        memory_mb=member.memory,
        cpus=member.cpus,
    )
    undo.push_async_callback(invoker.close)
    undo.push_async_callback(links.close)
    classes = parse_classes(settings.classes)
    router = CallRouter(
        invoker,
        functions,
        links,
        settings,
        clock,
        places=places,
        choose=lambda name: load_policy(name, classes),
        chance=random.Random(),  # noqa: S311 - for jitter and directions, not for secrets
    )
    undo.callback(router.close)

    def follow() -> None:
        links.keep(here.members.all)
        router.follow(here.members.all)

    here.members.listen(follow)
    follow()
    # Ids name their origin if there may be other members.
    new_id = results.new_id if here.listening is None else id_maker(member.node)
    asynchronous = await AsyncCallRunner(context.folder / FOLDER, router, clock, settings, new_id).open()
    stop_s = context.settings.stop_timeout_s * _STOP_SHARE

    async def close() -> None:
        await asynchronous.close(within_s=stop_s)

    undo.push_async_callback(close)
    # Entered after what the loops use, so that it is left before that closes.
    loops = await undo.enter_async_context(TaskSupervisor("functions", clock=clock))
    if hosts.processes is not None:
        loops.forever("workers", hosts.processes.run)
    loops.forever("pool of workers", invoker.run)
    loops.forever("neighbours", router.run)
    loops.forever("async calls", asynchronous.run)
    # Results of async calls are copied to a second member.
    result_copies = ResultCopies(
        links, lambda: [peer.member for peer in places.peers.values()], asynchronous.store, clock
    )
    asynchronous.listen(result_copies.check_soon)
    here.members.listen(result_copies.members_changed)
    loops.forever("copies of results", result_copies.run)
    if here.listening is not None:
        guests = LocalMemberService(router, invoker, functions, asynchronous, functions.code, fetcher)
        server = MemberLinkServer(member.node, guests, here.serving, clock, settings, access=access)
        undo.push_async_callback(server.stop, stop_s)
        server.listen(here.listening)
    locator = AsyncCallLocator(asynchronous, links, places)
    return _InvocationParts(hosts, invoker, router, asynchronous, locator, links, fetcher, loops)


async def _open_hosts(context: RoleContext, runtime: NodeRuntimeParts | None, memory_mb: int) -> NodeWorkers:
    if runtime is None or runtime.cells is None:
        return NodeWorkers(None, None)
    settings, clock, folder = context.settings.functions, context.clock, context.folder / FOLDER
    engine = runtime.engine
    logs = FunctionLogs(folder / "logs", settings.log_bytes)
    context.log_sources.append(logs)
    containers: ContainerWorkers | None = None
    if engine is not None:
        # First, because the next step creates their cell again.
        containers = await ContainerWorkers(
            engine.containers,
            engine.images,
            settings,
            clock,
            logs,
            inside=POOL,
            folder=folder,
            images_of=engine.images_of,
        ).open()
    network = (
        engine.network if engine is not None else "containers cannot be run here, and so have no network"
    )
    processes = await ProcessWorkers(
        WorkerDeps(
            runtime.cells, network, logs, clock, folder, secrets=None if engine is None else engine.secrets
        ),
        settings,
        memory_mb=memory_mb,
        kind_of=lambda runtime: runtimes.find(runtime).kind,
    ).open()
    context.undo.push_async_callback(processes.close)
    if containers is not None:
        context.undo.push_async_callback(containers.close)
    return NodeWorkers(processes, containers)
