"""The web console of this server: its context, and what it watches for pages that are open.

Called by `skerry.daemon.server_role`. The template engine and the files are read with the first page, not
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from skerry.console import statuses
from skerry.console.asset_catalog import AssetCatalog
from skerry.console.context import (
    ConsoleContext,
    FunctionCallsView,
    IdentityView,
    JobsView,
    MarketView,
)
from skerry.console.hub import ChangeHub, Topic
from skerry.console.network_map import MapLink, MapNode, NetworkMap
from skerry.console.rendering import Renderer
from skerry.console.statistics import CallCounters, CallStatistics, FunctionCounters
from skerry.console.usage_history import UsageHistory
from skerry.console.view_cache import ViewCache
from skerry.control.context import ControlPlane
from skerry.daemon.control_plane import ControlPlaneParts
from skerry.daemon.functions import FunctionsParts
from skerry.daemon.market import MarketParts
from skerry.daemon.server_base import ServerBase
from skerry.functions.continuum.router import CallRouter
from skerry.functions.invocation.durations import DURATION_BOUNDS_S
from skerry.functions.registry.registry import FunctionRegistry
from skerry.functions.service import RegistryFunctionService
from skerry.model.function_names import namespace_of
from skerry.model.ids import Namespace
from skerry.model.secrets import SecretKind
from skerry.store.tables.table import RecordChange
from skerry.transport.http.endpoints import RequestContext, StreamResponse, WebSocketResponse
from skerry.wire.kudo import rest_logs_exec
from skerry.wire.kudo.context import KudoContext
from skerry.wire.kudo.rest_instances import InstancePath
from skerry.wire.own.mesh.endpoints import mesh_document
from skerry.wire.serverledge import logs as function_logs
from skerry.wire.serverledge.functions import NamePath

# The better shell, where there is one.
_SHELL = ("sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh")


def start(
    base: ServerBase,
    plane: ControlPlane,
    fleet: ControlPlaneParts,
    functions: FunctionRegistry,
    calls: FunctionsParts,
    trade: MarketParts,
    invitation: Callable[[str], str],
) -> ConsoleContext:
    """The console, and what tells its pages of changes from now on."""
    hub = ChangeHub(base.clock)
    _watch(hub, fleet, functions, trade)
    base.identity.listen_records(hub.notifier(Topic.IDENTITY))
    statistics = CallStatistics(
        lambda: _counters(calls), base.clock, lambda name: hub.notify(Topic.CALLS, namespace_of(name))
    )
    base.loops.forever("console.statistics", statistics.run)
    history = UsageHistory(fleet.instances.usages, lambda: _count_calls(calls), base.clock)
    base.loops.forever("console.usage_history", history.run)
    kudo = fleet.kudo

    async def read_logs(
        call: RequestContext, id: str, namespace: Namespace | None, lines: int
    ) -> StreamResponse:
        return await _read_logs(kudo, call, id, namespace, lines)

    async def open_terminal(
        call: RequestContext, id: str, namespace: Namespace | None, size: tuple[int, int]
    ) -> WebSocketResponse:
        return await _open_terminal(kudo, call, id, namespace, size)

    return ConsoleContext(
        plane=plane,
        renderer=Renderer(AssetCatalog(), hub.position),
        hub=hub,
        streams=ConsoleContext.stream_limit(),
        nodes=fleet.nodes,
        instances=fleet.instances,
        workloads=fleet.kudo.workloads,
        services=fleet.services.context.services,
        functions=functions,
        calls=statistics,
        history=history,
        overviews=ViewCache(hub, base.clock),
        function_calls=_function_calls(calls),
        jobs=JobsView(fleet.jobs.context.jobs, fleet.jobs.context.schedules),
        identity=IdentityView(fleet.tls.context.certificates, invitation),
        market=MarketView(
            trade.context.ledger, trade.context.buyer, trade.context.provider, trade.context.purchases
        ),
        read_logs=read_logs,
        volumes=fleet.volumes.registry,
        secrets=fleet.secrets.secrets,
        routes=fleet.routes.context.routes,
        problem_of_route=fleet.routes.context.problem_of,
        network_map=lambda: _network_map(fleet, calls.router),
        open_terminal=open_terminal,
        list_cells=kudo.cells.list,
    )


def _watch(hub: ChangeHub, fleet: ControlPlaneParts, functions: FunctionRegistry, trade: MarketParts) -> None:
    def follow(topic: Topic) -> Any:
        def changed(changes: Sequence[RecordChange[Any]]) -> None:
            for _, before, after in changes:
                for record in (before, after):
                    if record is not None:
                        hub.notify(topic, record.value.namespace)

        return changed

    jobs, schedules = fleet.jobs.tables
    secrets = fleet.secrets.secrets.tables
    for topic, table in (
        (Topic.INSTANCES, fleet.instance_table),
        (Topic.WORKLOADS, fleet.kudo.workloads.table),
        (Topic.SERVICES, fleet.services.context.services.tables.services),
        (Topic.JOBS, jobs),
        (Topic.SCHEDULES, schedules),
        (Topic.VOLUMES, fleet.volumes.table),
        (Topic.SECRETS, secrets[SecretKind.SECRET]),
        (Topic.SECRETS, secrets[SecretKind.CONFIG]),
        (Topic.ROUTES, fleet.routes.context.routes.table),
        (Topic.IDENTITY, fleet.tls.table),
    ):
        table.subscribe(follow(topic))
    fleet.mesh.tables.nodes.subscribe(hub.notifier(Topic.MESH))
    fleet.mesh.tables.links.subscribe(hub.notifier(Topic.MESH))
    fleet.nodes.listen(hub.notifier(Topic.NODES))
    functions.listen(lambda name, _: hub.notify(Topic.FUNCTIONS, namespace_of(name)))
    trade.context.ledger.listen(hub.notifier(Topic.MARKET))
    trade.context.buyer.listen(hub.notifier(Topic.MARKET))


def _function_calls(calls: FunctionsParts) -> FunctionCallsView:
    routes = calls.routes
    assert isinstance(routes.functions, RegistryFunctionService), "a server has the registry"

    async def read_logs(
        call: RequestContext, name: str, namespace: Namespace | None, lines: int
    ) -> StreamResponse:
        query = function_logs.FunctionLogsQuery(namespace=namespace or "", follow=True, tail=lines)
        reply = await function_logs.logs.handle(routes, call, NamePath(name), query)
        assert isinstance(reply, StreamResponse)
        return reply

    return FunctionCallsView(
        routes.functions, routes.invoker.invoke, routes.invoker.status, calls.history, read_logs
    )


def _counters(calls: FunctionsParts) -> CallCounters:
    functions = {
        str(name): FunctionCounters(
            sum(one.buckets) + one.refused,
            one.failed + one.refused,
            one.cold,
            tuple(one.buckets),
        )
        for name, one in calls.history.functions.items()
    }
    return CallCounters(functions, DURATION_BOUNDS_S, tuple(calls.metrics.duration.buckets))


async def _network_map(fleet: ControlPlaneParts, router: CallRouter) -> NetworkMap:
    """Nodes with their coordinates and what was sent to them, and the pairs of the mesh."""
    peers = router.places.peers
    own = router.status().coordinate
    me = router.places.me.node
    nodes = []
    for node in fleet.nodes.list():
        condition = fleet.nodes.condition(node.id)
        if condition is None:
            continue
        badge = statuses.node_badge(condition)
        peer = peers.get(node.id)
        coordinate = own if node.id == me else None if peer is None else peer.coordinate
        nodes.append(
            MapNode(
                node.id,
                node.name,
                node.member.area if node.member is not None else "",
                badge.text,
                badge.tone,
                node.is_borrowed,
                None if coordinate is None else coordinate.vector,
                0 if peer is None else peer.done,
            )
        )
    mesh = await mesh_document(fleet.mesh.context)
    ids = {one.name: one.id for one in mesh.nodes}
    links = tuple(
        MapLink(
            ids.get(pair.source, pair.source),
            ids.get(pair.target, pair.target),
            pair.path.value,
            tuple(ids.get(name, name) for name in pair.relays),
            pair.round_trip_ms,
            pair.bytes_sent + pair.bytes_received,
            pair.handshake_age_s,
        )
        for pair in mesh.pairs
    )
    return NetworkMap(tuple(nodes), links, mesh.encryption)


def _count_calls(calls: FunctionsParts) -> int:
    return sum(group.succeeded + sum(group.failed.values()) for group in calls.metrics.groups())


async def _read_logs(
    kudo: KudoContext, call: RequestContext, id: str, namespace: Namespace | None, lines: int
) -> StreamResponse:
    """As the API reads them, and followed."""
    query = rest_logs_exec.InstanceLogsQuery(namespace=namespace or "", follow=True, tail=lines)
    reply = await rest_logs_exec.logs.handle(kudo, call, InstancePath(id), query)
    assert isinstance(reply, StreamResponse)
    return reply


async def _open_terminal(
    kudo: KudoContext, call: RequestContext, id: str, namespace: Namespace | None, size: tuple[int, int]
) -> WebSocketResponse:
    """As the API runs programs, with a terminal of this many rows and columns."""
    query = rest_logs_exec.ExecQuery(
        namespace=namespace or "",
        command=_SHELL,
        environment=("TERM=xterm-256color",),
        terminal=True,
        input=True,
        rows=size[0],
        columns=size[1],
    )
    reply = await rest_logs_exec.execute.handle(kudo, call, InstancePath(id), query)
    assert isinstance(reply, WebSocketResponse)
    return reply
