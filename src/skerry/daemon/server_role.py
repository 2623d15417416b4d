"""A server, alone or with a node in the same process (`up`), put together step by step.

Each step opens what the steps behind it need: sockets, the store with identity, the control plane with the
market, this machine's own runtime, functions, and last what takes requests. The parts know nothing of each
other beyond what they are given here.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skerry import __version__
from skerry.control.context import ControlPlane
from skerry.control.events.log import EventLog
from skerry.control.identity.authenticator import Authenticator
from skerry.control.recovery import order_receipts
from skerry.control.recovery.store_history import StoreHistory
from skerry.daemon import (
    continuum,
    control_plane,
    functions,
    host_identity,
    listeners,
    market,
    node_agent,
    node_leave,
    node_runtime,
    server_certificates,
)
from skerry.daemon.continuum import LocalMember
from skerry.daemon.control_plane import ControlPlaneParts
from skerry.daemon.functions import FunctionsParts
from skerry.daemon.host_identity import HostIdentity
from skerry.daemon.http import build_app
from skerry.daemon.market import MarketParts, PlainListener
from skerry.daemon.node_runtime import NodeRuntimeParts
from skerry.daemon.role_parts import (
    DRAIN_SHARE,
    REVOKED_FILE,
    RoleContext,
    RoleHandle,
    bind_member_socket,
    describe_member,
    node_id,
    node_name,
    parse_labels,
    takes_writes,
    watch_disk,
)
from skerry.daemon.server_certificates import ServerCertificates
from skerry.functions.registry.registry import FunctionRegistry
from skerry.kit.disk_monitor import DiskMonitor
from skerry.kit.pki import CertificateAuthority
from skerry.kit.tasks import TaskSupervisor, race
from skerry.model.ids import NodeId
from skerry.model.invitations import MAX_URLS
from skerry.model.members import ContinuumMember
from skerry.model.settings import Settings
from skerry.node.agent.revocations import RevocationList
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.store.factory import open_store
from skerry.store.protocol import Store
from skerry.store.sqlite.store import SqliteStore
from skerry.transport import unix_sockets
from skerry.transport.access import gate, peers
from skerry.transport.grpc import health
from skerry.transport.grpc.server import GrpcServer
from skerry.transport.http.server import HttpServer
from skerry.wire.own.grpc_identity import IdentityService

_HISTORY_FILE = "history.json"  # in the data folder of a server


@dataclass(frozen=True, slots=True)
class _Sockets:
    """What this process listens on."""

    http: socket.socket
    grpc: socket.socket
    members: socket.socket | None  # calls of functions by other members
    plain: socket.socket | None  # buyers without credentials
    unix: Path  # gRPC, for this machine alone


@dataclass(frozen=True, slots=True)
class _Base:
    """What everything else on a server rests on."""

    authority: CertificateAuthority
    store: Store
    loops: TaskSupervisor
    events: EventLog
    identity: Authenticator
    history: StoreHistory
    node: NodeId  # of this machine
    machine: Callable[[], HostIdentity]
    certificates: ServerCertificates
    gate: gate.AccessGate
    disk: DiskMonitor
    checks: dict[str, health.ReadinessCheck]


@dataclass(frozen=True, slots=True)
class _Addresses:
    """Where this server is reached."""

    settings: Settings
    machine: Callable[[], HostIdentity]
    http: str
    grpc: str

    @property
    def scheme(self) -> str:
        return "https" if self.settings.http.tls else "http"

    def urls(self) -> list[str]:
        """For people, the best first."""
        found = listeners.advertised_addresses(self.http, self.settings, self.machine())
        return [f"{self.scheme}://{each}" for each in found]

    def for_nodes(self) -> str:
        """HOST:PORT that nodes dial."""
        return listeners.advertised_addresses(self.grpc, self.settings, self.machine())[0]


@dataclass(frozen=True, slots=True)
class _Cloud:
    """The control plane and the market, and what functions there are."""

    registry: FunctionRegistry
    fleet: ControlPlaneParts
    trade: MarketParts
    own: list[ContinuumMember]  # this process, once it takes calls of functions


@dataclass(frozen=True, slots=True)
class _Functions:
    """This process as a member that takes calls of functions."""

    member: ContinuumMember
    served: FunctionsParts


async def start(context: RoleContext, *, has_node: bool) -> RoleHandle:
    """Serve a cloud; with `has_node`, be one of its machines, too."""
    # Addresses first: a port that is taken is the likeliest thing to be wrong, and the cheapest to find out.
    sockets = _bind_sockets(context)
    base = await _open_base(context)
    addresses = _Addresses(
        context.settings,
        base.machine,
        listeners.display_address(sockets.http),
        listeners.display_address(sockets.grpc),
    )
    cloud = await _start_cloud(context, base, addresses)
    runtime = await _start_runtime(context, base, sockets) if has_node else None
    taking = await _start_functions(context, base, cloud, sockets, addresses, runtime)
    plane = _describe(context, base, cloud, taking, runtime)
    told, failures = await _serve(
        context, base, cloud, sockets, addresses, taking, plane, serves_unix=not has_node
    )
    if runtime is not None:
        failures.append(runtime.failed)
        await _start_agent(context, base, addresses, taking.member, runtime)
    await base.events.record(
        "server.started", f"server/{socket.gethostname()}", actor="skerry", version=__version__
    )
    failures += [base.loops.failed, taking.served.failed]
    return told, lambda: race(*(failed() for failed in failures))


def _bind_sockets(context: RoleContext) -> _Sockets:
    settings, undo = context.settings, context.undo
    http_host, _ = listeners.split_host_port(settings.http.listen, "--http")
    gate.check_exposure(http_host, tls=settings.http.tls)
    http = undo.enter_context(listeners.bind(settings.http.listen, "--http"))
    grpc = undo.enter_context(listeners.bind(listeners.grpc_listen(settings), "--grpc"))
    return _Sockets(
        http=http,
        grpc=grpc,
        members=bind_member_socket(context, grpc.getsockname()[0]),
        plain=market.bind_plain(settings.market, undo),
        unix=listeners.unix_socket(settings.grpc.socket, context.folder),
    )


async def _open_base(context: RoleContext) -> _Base:
    """The store and what is known of callers; from here on requests could be told apart."""
    settings, folder, clock, undo = context.settings, context.folder, context.clock, context.undo
    authority = server_certificates.open_authority(folder, clock)
    store = await open_store(settings.store, folder, clock)
    undo.push_async_callback(store.close)
    # Entered after the store, so that it is left before it: loops must not outlive what they use.
    loops = await undo.enter_async_context(TaskSupervisor("server", clock=clock))
    events = EventLog(store, clock, settings.events)
    identity = Authenticator(store, events, authority, clock, settings.identity)
    loops.forever("identity", identity.run, critical=True)
    await loops.unless_failed(identity.ready())
    node = NodeId(await asyncio.to_thread(node_id, folder, clock))
    # Before anything else is written: where this run began is where a store that was restored had come to.
    history = StoreHistory(
        store,
        events,
        clock,
        folder / _HISTORY_FILE,
        server=node,
        is_alone=isinstance(store, SqliteStore),
        settle_s=settings.fleet.lost_after_s,
    )
    await history.begin()
    loops.forever("history", history.run)
    undo.push_async_callback(history.remember)
    loops.forever("events", events.run)
    at_start = await asyncio.to_thread(host_identity.resolve)
    revoked = RevocationList(folder / "pki" / REVOKED_FILE, clock)
    await identity.learn_revoked(revoked.all, actor="skerry")
    # Outside of the store, too, which may be restored from a backup.
    loops.forever("revocations", lambda: revoked.follow(identity.revoked, identity.listen))

    def machine() -> HostIdentity:
        return replace(at_start, addresses=host_identity.read_addresses())

    certificates = ServerCertificates(
        folder, identity, authority, settings, clock, machine=machine, node=node
    )
    await certificates.prepare()
    loops.forever("credentials", certificates.run)
    disk = await watch_disk(folder, loops)
    return _Base(
        authority=authority,
        store=store,
        loops=loops,
        events=events,
        identity=identity,
        history=history,
        node=node,
        machine=machine,
        certificates=certificates,
        gate=gate.AccessGate(identity, os.geteuid(), local_trust=settings.identity.local_trust),
        disk=disk,
        checks={"store": store.check_writes, "disk": takes_writes(disk)},
    )


async def _start_cloud(context: RoleContext, base: _Base, addresses: _Addresses) -> _Cloud:
    """The control plane and the market; from here on instances are placed."""
    settings, folder, clock = context.settings, context.folder, context.clock
    own: list[ContinuumMember] = []
    registry = await functions.open_registry(
        base.store,
        base.events,
        settings.functions,
        folder / "functions",
        clock,
        most=lambda: continuum.max_worker_resources([*own, *fleet.members.all]),
    )
    fleet = control_plane.start(
        base.store,
        base.events,
        base.identity,
        clock,
        settings.fleet,
        functions=registry,
        history=base.history,
        receipt_key=base.authority.derive(order_receipts.KEY_USE),
        fingerprint=base.authority.fingerprint,
        server=addresses.urls()[0],
        grpc=addresses.for_nodes(),
        node=base.node,
        tls=base.certificates.client_context,
        loops=base.loops,
    )
    await base.loops.unless_failed(fleet.ready())
    trade = await market.start(
        base.store,
        base.events,
        clock,
        settings.market,
        folder / "pki",
        base.authority,
        fleet,
        domain=socket.gethostname().lower(),
        url=addresses.urls()[0],
        loops=base.loops,
        undo=context.undo,
    )
    fleet.place()  # not before it is known what resources are promised to buyers
    return _Cloud(registry, fleet, trade, own)


async def _start_runtime(context: RoleContext, base: _Base, sockets: _Sockets) -> NodeRuntimeParts:
    """Cells and containers on this machine."""
    return await node_runtime.start(
        context.settings,
        context.folder,
        context.clock,
        gate=base.gate,
        tls=base.certificates.contexts.grpc,
        socket_path=sockets.unix,
        checks=base.checks,
        has_server=True,
        undo=context.undo,
    )


async def _start_functions(
    context: RoleContext,
    base: _Base,
    cloud: _Cloud,
    sockets: _Sockets,
    addresses: _Addresses,
    runtime: NodeRuntimeParts | None,
) -> _Functions:
    """Calls of functions, run here if there are cells, else by other members."""
    settings, fleet = context.settings, cloud.fleet
    cells, engine = (runtime.cells, runtime.engine) if runtime is not None else (None, None)
    member = describe_member(
        base.node, _node_name(settings), settings, sockets.members, runs_functions=cells is not None
    )
    cloud.own.append(member)
    here = LocalMember(
        member,
        fleet.members,
        base.certificates.node_context,
        base.certificates.contexts.grpc,
        base.identity,
        sockets.members,
        lambda: [address for address in fleet.servers.addresses if address != fleet.servers.address],
    )
    served = await functions.start(
        cloud.registry,
        here,
        cells,
        engine,
        settings.functions,
        context.folder / "functions",
        context.clock,
        url=addresses.urls()[0],
        leads=lambda: fleet.leader.is_leading,
        stop_timeout_s=settings.stop_timeout_s,
        undo=context.undo,
    )
    if engine is None:  # else it is a member by its session, like all nodes
        lease_s = math.ceil(settings.functions.result_ttl_s)
        base.loops.forever("member", lambda: fleet.members.stay(member, lease_s=lease_s))
    return _Functions(member, served)


def _describe(
    context: RoleContext, base: _Base, cloud: _Cloud, taking: _Functions, runtime: NodeRuntimeParts | None
) -> ControlPlane:
    """What this process tells of itself."""

    def unreachable() -> list[str]:
        reasons = taking.served.unreachable()
        known = {node: why for node, why in reasons.items() if cloud.fleet.nodes.alive(node) is not None}
        return continuum.explain_unreachable(known)

    return ControlPlane(
        settings=context.settings,
        clock=context.clock,
        store=base.store,
        identity=base.identity,
        events=base.events,
        authority=base.authority,
        started_at=context.clock.now(),
        checks=base.checks,
        lacking=runtime.lacking if runtime is not None else (),
        warnings=runtime.warnings if runtime is not None else (),
        unreachable=unreachable,
    )


async def _serve(
    context: RoleContext,
    base: _Base,
    cloud: _Cloud,
    sockets: _Sockets,
    addresses: _Addresses,
    taking: _Functions,
    plane: ControlPlane,
    *,
    serves_unix: bool,
) -> tuple[dict[str, Any], list[Callable[[], Awaitable[None]]]]:
    """Take requests. Gives where, and what returns or raises when that cannot go on."""
    settings, certificates, fleet = context.settings, base.certificates, cloud.fleet
    services = [IdentityService(base.identity), *fleet.services]
    grpc = GrpcServer(
        health.with_health_and_reflection(services, base.checks),
        base.gate,
        settings.grpc,
        clock=context.clock,
    )
    app = build_app(
        plane,
        base.gate,
        addresses.for_nodes,
        fleet.kudo,
        taking.served.routes,
        cloud.trade.rear,
        cloud.trade.desk,
        urls=lambda: listeners.to_join(addresses.urls(), fleet.servers.names, MAX_URLS),
        own_names=lambda: certificates.names,
    )
    http = HttpServer(app, settings.http, trusted_uids=base.gate.trusted_uids)
    plain: list[PlainListener] = []
    if sockets.plain is not None:
        plain.append(
            PlainListener(
                sockets.plain,
                settings,
                context.clock,
                cloud.trade.rear,
                own_names=lambda: certificates.names,
            )
        )

    async def drain() -> None:
        fleet.sessions.close()
        within_s = settings.stop_timeout_s * DRAIN_SHARE
        stops = [http.stop, grpc.stop, *(listener.stop for listener in plain)]
        await asyncio.gather(*(stop(within_s) for stop in stops))

    context.undo.push_async_callback(drain)
    plain_grpc = peers.is_loopback(sockets.grpc.getsockname()[0])
    await grpc.listen_tcp(sockets.grpc, certificates.contexts.grpc, plaintext=plain_grpc)
    if serves_unix:
        await grpc.listen_unix(sockets.unix, certificates.contexts.grpc)
    await http.start(sockets.http, certificates.contexts.http if settings.http.tls else None)
    http_path = listeners.http_socket(settings.http.socket, context.folder)
    http.listen_unix(http_path, unix_sockets.permissions_of(settings.grpc))
    for listener in plain:
        await listener.start()
    at_plain = listeners.display_address(sockets.plain) if sockets.plain is not None else ""
    told = {
        "http": f"{addresses.scheme}://{listeners.local_dial_address(addresses.http)}",
        "http_socket": str(http_path),
        "plain": f"http://{listeners.local_dial_address(at_plain)}" if at_plain else "",
        "grpc": listeners.local_dial_address(addresses.grpc),
        "socket": str(sockets.unix),
        "ca": str(certificates.ca_file),
        "client_cert": str(certificates.client_certificate_file),
        "client_key": str(certificates.client_key_file),
        "lacking": plane.lacking,
        "warnings": plane.warnings,
    }
    return told, [http.failed, *(listener.failed for listener in plain)]


async def _start_agent(
    context: RoleContext,
    base: _Base,
    addresses: _Addresses,
    member: ContinuumMember,
    runtime: NodeRuntimeParts,
) -> None:
    """The node of this machine, which dials its own server as any other does."""
    if runtime.engine is None:
        return
    settings, folder = context.settings, context.folder
    await node_agent.start(
        runtime.engine,
        folder,
        context.clock,
        name=_node_name(settings),
        labels=parse_labels(settings.node.labels),
        subnet=settings.network.subnet,
        kept_mb=member.memory,
        member=member,
        servers=ServerAddressCache(
            listeners.local_dial_address(addresses.grpc), folder / node_leave.SERVERS_FILE
        ),
        tls=base.certificates.node_context,
        max_guest_instances=settings.market.max_guests,
        disk=base.disk,
        loops=base.loops,
        undo=context.undo,
    )


def _node_name(settings: Settings) -> str:
    return settings.node.name or node_name(socket.gethostname().lower())
