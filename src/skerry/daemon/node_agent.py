"""This machine as a node of a cloud: the instances it is ordered to run, and its session with the server.

Called by both roles where there are containers. Instances keep running without a server, and without this
process. Leased cells are instances too, and buyers reach them by a tunnel of that session.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
from msgspec.structs import replace

from skerry.daemon import edge_routes, log_forwarding, names, node_mesh
from skerry.daemon.containers import NETWORK_FILE, ContainerEngine, enforcement_in_effect
from skerry.daemon.role_parts import RoleContext
from skerry.kit.disk_monitor import DiskMonitor
from skerry.kit.tasks import TaskSupervisor, in_thread
from skerry.model import errors, ids
from skerry.model.container_options import NodeFeature
from skerry.model.enforcement import NodeEnforcement
from skerry.model.ids import CellName, FunctionName, Namespace
from skerry.model.members import ContinuumMember
from skerry.model.network_objects import NodeLocation, ServiceAddress, ServiceSubnet
from skerry.model.node_messages import NodeHello
from skerry.node.agent import agent
from skerry.node.agent.cell_reporter import CellReporter
from skerry.node.agent.instance_log_source import InstanceLogSource
from skerry.node.agent.instances.backends import InstanceBackends
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.agent.network_policies import NetworkPolicyFollower
from skerry.node.agent.network_state import NetworkState
from skerry.node.agent.revocations import RevocationList
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.node.agent.session import AgentHooks, MemberListener
from skerry.node.guests.leased_cells import LeasedCells
from skerry.node.volumes.task_handler import VolumeTaskHandler
from skerry.transport.links.nodes.client import GrpcControlDialer
from skerry.transport.links.nodes.tunnel_connection import TunnelConnection


class ServerLink(msgspec.Struct, frozen=True):
    """How a node stays in touch with the servers."""

    servers: ServerAddressCache
    tls: ssl.SSLContext
    revocations: RevocationList | None = None  # gets revoked certificates
    listener: MemberListener | None = None  # gets members and functions
    has_function: Callable[[Namespace, str], bool] = lambda namespace, name: False
    follow: Callable[[NetworkState], None] = lambda network: None  # more users of network objects
    contact: Callable[[], None] = lambda: None  # called with every message of a server
    accepted: Callable[[], None] = lambda: None  # called when versions are known to fit; may block
    is_server: bool = False  # this process is a server itself


async def start(
    context: RoleContext,
    engine: ContainerEngine,
    member: ContinuumMember,
    workers: Callable[[], Mapping[CellName, FunctionName]],
    link: ServerLink,
    disk: DiskMonitor,
    loops: TaskSupervisor,
) -> None:
    """Continue with the present orders, and keep a session with one of the servers, which assigns the subnet,
    if possible the configured one. The memory of the workers of `member` is not for instances; `workers` has
    their functions. Problems of the `disk` are reported."""
    settings, folder, clock, undo = context.settings, context.folder, context.clock, context.undo
    revocations, subnet = link.revocations, settings.network.subnet
    labels = parse_labels(settings.node.labels)
    leased_cells = await LeasedCells(
        folder / "lent",
        engine.cells,
        engine.containers,
        engine.images.for_guests(),
        engine.settings,
        clock,
        connect=TunnelConnection,
        max_instances=settings.market.max_guests,
    ).open()
    undo.push_async_callback(leased_cells.close)
    instances = NodeInstances(
        folder / "instances",
        InstanceBackends(
            engine.containers, engine.images, leased_cells, engine.secrets.values, engine.images_of
        ),
        clock,
    )
    engine.containers.use_namespaces(instances.namespace_of)
    await instances.open()
    undo.push_async_callback(instances.close)
    if (removed := log_forwarding.open_removed_logs(context)) is not None:
        context.log_sources.append(
            InstanceLogSource(engine.cells.output_folders, instances.order_of, removed)
        )

    volume_tasks = None
    if engine.volumes is not None:
        volume_tasks = VolumeTaskHandler(engine.volumes.store, folder, settings.snapshots, clock)
        await asyncio.to_thread(volume_tasks.open)
        undo.push_async_callback(volume_tasks.close)

    network_state = NetworkState(folder / NETWORK_FILE, clock)
    link.follow(network_state)
    if engine.names is not None:
        names.follow(engine.names, network_state, link.has_function, settings.network.dns_grace_s)
    mesh = await node_mesh.start(context, engine, member.node, network_state, loops)
    edge = await edge_routes.start(
        context,
        engine.network,
        network_state,
        engine.secrets.values,
        loops,
        is_server=link.is_server,
    )
    if edge is not None:
        mesh.follow_unreachable(edge.unreachable_changed)

    def names_lacking() -> tuple[str, ...]:
        return () if engine.names is None else engine.names.lacking()

    async def assign(given: str) -> None:
        await engine.network.use(given)
        await engine.subnet.save(given)

    def mesh_warnings() -> tuple[str, ...]:
        has_others = any(node != member.node for node in network_state.all(NodeLocation))
        return mesh.warnings if has_others else ()

    def route_warnings() -> tuple[str, ...]:
        return () if edge is None else edge.warnings

    def enforcement() -> NodeEnforcement:
        return enforcement_in_effect(context.enforcement, engine.cells, engine)

    def describe() -> NodeHello:
        machine, volumes = agent.facts(), engine.volumes
        more: tuple[NodeFeature, ...] = (
            NodeFeature.SECRETS,
            NodeFeature.NETWORK,
            NodeFeature.POLICIES,
            NodeFeature.CELLS,
        )
        if edge is not None:
            more += (NodeFeature.EDGE,)
        if volumes is not None:
            more += (NodeFeature.VOLUMES, NodeFeature.SNAPSHOTS)
        if not link.is_server:  # whose metrics are those of the server
            more += (NodeFeature.METRICS,)
        hello = NodeHello(
            name=member.name,
            facts=replace(
                machine,
                features=(*machine.features, *more),
                runtime=engine.version,
                userns=engine.has_userns,
                warnings=(
                    *engine.warnings,
                    *_subnet_warnings(subnet, engine),
                    *mesh_warnings(),
                    *route_warnings(),
                    *engine.devices.warnings,
                    *names_lacking(),
                ),
                disk_pressure=disk.condition,
                devices=engine.devices.names,
                enforcement=enforcement(),
            ),
            labels=dict(labels),
            subnet=subnet or engine.network.subnet,
            occupied=tuple(engine.network.occupied),
            former=tuple(engine.network.former),
            member=member,
            takes_revocations=revocations is not None,
        )
        offers_disk = engine.containers.takes_disk_limits
        return agent.describe_node(
            hello,
            folder,
            instances.disk_bytes + (0 if volumes is None else volumes.disk_bytes),
            reserved_mb=member.memory,
            offers_disk=offers_disk,
        )

    def condition() -> str:
        problems = (*mesh_warnings(), *route_warnings(), *engine.devices.warnings, *names_lacking())
        return "\n".join((disk.condition, enforcement().network, *problems, *engine.devices.names))

    hooks = AgentHooks(
        describe,
        accepted=partial(in_thread, link.accepted),
        condition=condition,
        assign=assign,
        member=link.listener,
        secrets=engine.secrets.values,
        volumes=engine.volumes,
        network=network_state,
        contact=link.contact,
    )
    if revocations is not None:
        hooks = msgspec.structs.replace(hooks, revoke=revocations.add, revoked=lambda: revocations.all)
    control = agent.NodeAgent(
        link.servers,
        lambda address: GrpcControlDialer(address, link.tls),
        instances,
        TunnelHandler(
            instances,
            engine.containers,
            leased_cells,
            volume_tasks,
            CellReporter(engine.cells, instances.containers, workers, clock),
        ),
        hooks,
        clock,
    )
    _follow_services(engine, network_state, member)
    engine.network.explain_wait(lambda: control.last_error)
    loops.forever("instances of this node", instances.run)
    loops.forever("lent cells", leased_cells.run)
    loops.forever("network objects", network_state.run)
    loops.forever("network policies", NetworkPolicyFollower(network_state, engine.network).run)
    loops.forever("session", control.run)


def _follow_services(engine: ContainerEngine, state: NetworkState, member: ContinuumMember) -> None:
    """Balance connections to virtual addresses, at once with what the last session said."""
    balancer = engine.network.services
    balancer.follow(member.node)
    state.subscribe(ServiceSubnet, balancer.ranges_changed)
    state.subscribe(NodeLocation, balancer.locations_changed)
    state.subscribe(ServiceAddress, balancer.services_changed)


def parse_labels(texts: tuple[str, ...]) -> dict[str, str]:
    """Of the setting `node.labels`. Raises `Invalid`."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise errors.Invalid(f"node.labels: {text[:40]!r} must read KEY=VALUE", field="node.labels")
        labels[ids.check_id(key, "node.labels")] = ids.check_display_text(value, "node.labels")
    return labels


def _subnet_warnings(wanted: str, engine: ContainerEngine) -> tuple[str, ...]:
    given = engine.subnet.subnet
    if not wanted or not given or wanted == given:
        return ()
    return (
        f"the setting network.subnet is {wanted}, but the server gave this node {given}: the other is "
        "taken, reached otherwise by this machine, or not a /24 of the pool fleet.subnets",
    )
