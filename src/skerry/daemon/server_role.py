"""A server, alone or with a node in the same process (`up`), put together step by step.

Each step opens what the steps behind it need: sockets, the store with identity (`skerry.daemon.server_base`),
the control plane with the market, this machine's own runtime, functions, and last what takes requests. The
parts know nothing of each other beyond what they are given here.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from skerry import __version__
from skerry.control.context import ControlPlane
from skerry.daemon import (
    alerts,
    backups,
    console,
    control_plane,
    edge_routes,
    fronts,
    functions,
    log_forwarding,
    market,
    names,
    namespaces,
    node_agent,
    node_leave,
    node_runtime,
    secrets,
    telemetry,
    trace_export,
    web_functions,
)
from skerry.daemon.control_plane import ControlPlaneParts
from skerry.daemon.functions import FunctionsParts, LocalMember
from skerry.daemon.http import OwnerContexts, build_app, build_plain_app
from skerry.daemon.market import MarketParts
from skerry.daemon.node_agent import ServerLink
from skerry.daemon.node_runtime import NodeRuntimeParts
from skerry.daemon.openapi import openapi_bytes
from skerry.daemon.role_parts import DRAIN_SHARE, RoleContext, RoleHandle, StepReport, node_name
from skerry.daemon.server_base import ServerBase, bind_sockets, open_base
from skerry.functions.registry.registry import FunctionRegistry
from skerry.kit.tasks import race
from skerry.market import plain
from skerry.model.enforcement import Isolation
from skerry.model.invitations import MAX_URLS
from skerry.model.members import ContinuumMember, max_worker_resources
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.transport import addresses, unix_sockets
from skerry.transport.access import peers
from skerry.transport.grpc import health
from skerry.transport.grpc.server import GrpcServer
from skerry.transport.http.server import HttpServer
from skerry.wire.own import tokens
from skerry.wire.own.alerts.endpoints import AlertContext
from skerry.wire.own.backups import BackupContext
from skerry.wire.own.context import OwnContext
from skerry.wire.own.grpc_identity import IdentityService
from skerry.wire.own.telemetry.endpoints import TelemetryContext
from skerry.wire.rear.context import RearContext

log = structlog.get_logger(__name__)


class _Cloud(msgspec.Struct, frozen=True):
    """The control plane and the market, and what functions there are."""

    registry: FunctionRegistry
    fleet: ControlPlaneParts
    trade: MarketParts
    own: list[ContinuumMember]  # this process, once it takes calls of functions
    alerts: AlertContext
    backups: BackupContext
    warnings: tuple[str, ...] = ()


class _Functions(msgspec.Struct, frozen=True):
    """This process as a member that takes calls of functions."""

    member: ContinuumMember
    served: FunctionsParts


async def start(context: RoleContext, report: StepReport, *, has_node: bool) -> RoleHandle:
    """Serve a cloud; with `has_node`, be one of its machines, too."""
    # Addresses first: a port that is taken is the likeliest thing to be wrong, and the cheapest to find out.
    sockets = bind_sockets(context)
    name = node_name(context.settings, socket.gethostname().lower())
    await trace_export.start(context, "server", name)
    report("opening the store, and the certificates")
    base = await open_base(context, sockets)
    report("starting the control plane and the market")
    cloud = await _start_cloud(base)
    if has_node:
        report("preparing cells and containers on this machine")
    runtime = await _start_runtime(base) if has_node else None
    report("starting functions, and opening the API")
    taking = await _start_functions(base, cloud, runtime)
    plane = _describe(base, cloud, taking, runtime)
    key = None if runtime is None or runtime.engine is None else runtime.engine.network.key
    web_path = edge_routes.web_socket(base, key, is_server=True)
    ready, failures = await _serve(base, cloud, taking, plane, web_path, serves_unix=not has_node)
    if runtime is not None:
        failures.append(runtime.failed)
        await _start_agent(base, cloud, taking, runtime)
    await base.events.record(
        "server.started", f"server/{socket.gethostname()}", actor="skerry", version=__version__
    )
    await log_forwarding.start(base, name, base.authority.fingerprint)
    failures += [base.loops.failed, taking.served.failed]
    return ready, lambda: race(*(failed() for failed in failures))


async def _start_cloud(base: ServerBase) -> _Cloud:
    """The control plane and the market; from here on instances are placed."""
    own: list[ContinuumMember] = []
    sealed = await secrets.open_secrets(base)
    registry = await functions.open_registry(
        base,
        base.store,
        base.events,
        most=lambda: max_worker_resources([*own, *fleet.members.all]),
        secrets=sealed.registry,
    )
    fleet = control_plane.start(base, registry, sealed)
    await base.loops.unless_failed(fleet.ready())
    trade = await market.start(base, fleet)
    fleet.place()  # not before the resources of buyers are reserved
    telemetry.start_server(base, fleet, trade)
    saved = backups.start(base, fleet.leader, registry.code)
    last_backup = (lambda: saved.schedule.fresh_at) if base.settings.backup.schedule else None
    rules = await alerts.start(base, fleet, trade, sealed.vault, last_backup)
    return _Cloud(registry, fleet, trade, own, rules, saved, (sealed.warning,) if sealed.warning else ())


async def _start_runtime(base: ServerBase) -> NodeRuntimeParts:
    """Cells and containers on this machine."""
    return await node_runtime.start(
        base,
        gate=base.gate,
        tls=base.certificates.contexts.grpc,
        socket_path=base.sockets.unix,
        checks=base.checks,
        has_server=True,
    )


async def _start_functions(base: ServerBase, cloud: _Cloud, runtime: NodeRuntimeParts | None) -> _Functions:
    """Calls of functions, run here if there are cells, else by other members."""
    settings, fleet = base.settings, cloud.fleet
    member = functions.describe_member(
        base.node,
        node_name(settings, socket.gethostname().lower()),
        settings,
        base.sockets.members,
        runs_functions=runtime is not None and runtime.cells is not None,
    )
    cloud.own.append(member)
    here = LocalMember(
        member,
        fleet.members,
        base.certificates.node_context,
        base.certificates.contexts.grpc,
        base.identity,
        base.sockets.members,
        lambda: [address for address in fleet.servers.addresses if address != fleet.servers.address],
    )
    served = await functions.start(
        base,
        cloud.registry,
        here,
        runtime,
        url=base.addresses.url,
        leads=lambda: fleet.leader.is_leading,
        check_prewarm=partial(namespaces.check_prewarm, base),
    )
    fleet.jobs.make_calls(served.asynchronous)
    if runtime is None or runtime.engine is None:  # else it is a member by its session, like all nodes
        lease_s = math.ceil(settings.functions.result_ttl_s)
        base.loops.forever("member", lambda: fleet.members.register(member, lease_s=lease_s))
    return _Functions(member, served)


def _describe(
    base: ServerBase, cloud: _Cloud, taking: _Functions, runtime: NodeRuntimeParts | None
) -> ControlPlane:
    """The description of this process."""

    def unreachable() -> list[str]:
        reasons = sorted(taking.served.unreachable().items())
        return [reason for node, reason in reasons if cloud.fleet.nodes.heartbeat(node) is not None]

    return ControlPlane(
        settings=base.settings,
        clock=base.clock,
        store=base.store,
        identity=base.identity,
        events=base.events,
        authority=base.authority,
        started_at=base.clock.now(),
        checks=base.checks,
        lacking=runtime.lacking if runtime is not None else (),
        warnings=(*cloud.warnings, *(runtime.warnings if runtime is not None else ())),
        unreachable=unreachable,
        rotation=base.rotation,
    )


async def _serve(
    base: ServerBase,
    cloud: _Cloud,
    taking: _Functions,
    plane: ControlPlane,
    web_path: Path,
    *,
    serves_unix: bool,
) -> tuple[dict[str, Any], list[Callable[[], Awaitable[None]]]]:
    """Take requests. Gives where, and what returns or raises when that cannot go on."""
    settings, sockets, certificates, fleet = base.settings, base.sockets, base.certificates, cloud.fleet
    services = [IdentityService(base.identity), *fleet.grpc_services]
    grpc = GrpcServer(
        health.with_health_and_reflection(services, base.checks), base.gate, settings.grpc, clock=base.clock
    )
    own = OwnContext.of(
        plane,
        base.addresses.for_nodes,
        lambda: addresses.to_join(base.addresses.urls(), fleet.servers.names, MAX_URLS),
        openapi_bytes,
    )
    has_market = base.enforcement.isolation is not Isolation.NONE
    app = build_app(
        own,
        base.gate,
        fleet.kudo,
        taking.served.routes,
        cloud.trade.rear if has_market else None,
        cloud.trade.context if has_market else None,
        owners=OwnerContexts(
            fleet.services.context,
            fleet.jobs.context,
            fleet.namespaces,
            fleet.secrets,
            fleet.volumes.context,
            fleet.snapshots.context,
            fleet.mesh.context,
            fleet.tls.context,
            fleet.routes.context,
            cloud.backups,
            TelemetryContext(fleet.nodes, fleet.tunnels, base.addresses.url, lambda: fleet.servers.names),
            cloud.alerts,
            console=console.start(
                base,
                plane,
                fleet,
                cloud.registry,
                taking.served,
                cloud.trade,
                partial(tokens.invitation_of, own),
            ),
        ),
        own_names=lambda: certificates.names,
    )
    pool = fronts.open_fronts(base, tls=settings.http.tls)
    http = [HttpServer(app, settings.http, trusted_uids=base.gate.trusted_uids, fronts=pool)]

    async def drain() -> None:
        fleet.sessions.close()
        within_s = settings.stop_timeout_s * DRAIN_SHARE
        stops = [grpc.stop, *(server.stop for server in http)]
        await asyncio.gather(*(stop(within_s) for stop in stops))

    base.undo.push_async_callback(drain)
    plain_grpc = peers.is_loopback(sockets.grpc.getsockname()[0])
    await grpc.listen_tcp(sockets.grpc, certificates.contexts.grpc, plaintext=plain_grpc)
    if serves_unix:
        await grpc.listen_unix(sockets.unix, certificates.contexts.grpc)
    await http[0].start(sockets.http, certificates.contexts.http if settings.http.tls else None)
    http_path = addresses.http_socket(settings.http.socket, base.folder)
    http[0].listen_unix(http_path, unix_sockets.permissions_of(settings.grpc))
    http.append(web_functions.serve_socket(base, base.gate, taking.served.routes, web_path))
    plain_url = ""
    if sockets.plain is not None:
        await _serve_plain(base, sockets.plain, cloud.trade.rear, http)
        plain_url = f"http://{addresses.local_dial_address(addresses.display_address(sockets.plain))}"
    ready = {
        "http": f"{base.addresses.scheme}://{addresses.local_dial_address(base.addresses.http)}",
        "http_socket": str(http_path),
        "web_socket": str(web_path),
        "plain": plain_url,
        "grpc": addresses.local_dial_address(base.addresses.grpc),
        "socket": str(sockets.unix),
        "ca": str(certificates.ca_file),
        "client_cert": str(certificates.client_certificate_file),
        "client_key": str(certificates.client_key_file),
        "lacking": plane.lacking,
        "warnings": plane.warnings,
    }
    return ready, [server.failed for server in http]


async def _serve_plain(
    base: ServerBase, sock: socket.socket, rear: RearContext, servers: list[HttpServer]
) -> None:
    """Take requests of buyers without credentials, with one more of the `servers` that are stopped."""
    settings = base.settings
    networks = plain.networks_of(settings.market)
    app = build_plain_app(settings, base.clock, rear, networks, own_names=lambda: base.certificates.names)
    servers.append(HttpServer(app, settings.http, trusted_uids=frozenset()))
    await servers[-1].start(sock, None, listener="http-plain", networks=networks)
    log.warning("market.plain", addresses=[str(network) for network in networks])


async def _start_agent(
    base: ServerBase, cloud: _Cloud, taking: _Functions, runtime: NodeRuntimeParts
) -> None:
    """The node of this machine, which dials its own server as any other does."""
    if runtime.engine is None:
        return
    servers = ServerAddressCache(
        addresses.local_dial_address(base.addresses.grpc), base.folder / node_leave.SERVERS_FILE
    )
    link = ServerLink(
        servers,
        base.certificates.node_context,
        has_function=names.function_lookup(cloud.registry.get),
        is_server=True,
    )
    await node_agent.start(
        base, runtime.engine, taking.member, taking.served.worker_cells, link, base.disk, base.loops
    )
