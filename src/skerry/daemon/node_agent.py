"""This machine as a node of a cloud: the instances it is ordered to run, and its session with the server.

Called by both roles where there are containers. What runs goes on whether or not there is a
server, and whether or not there is this process. Cells that are lent are instances too, and whoever borrows
one comes to it by a tunnel of that session.
"""

from __future__ import annotations

import dataclasses
import ssl
from dataclasses import dataclass

from msgspec.structs import replace

from skerry.daemon.containers import ContainerEngine
from skerry.daemon.role_parts import RoleContext
from skerry.kit.disk_monitor import DiskMonitor
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors, ids
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import NodeHello
from skerry.node.agent import agent
from skerry.node.agent.instances.backends import InstanceBackends
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.agent.revocations import RevocationList
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.node.agent.session import AgentHooks, MemberListener
from skerry.node.guests.leased_cells import LeasedCells
from skerry.transport.links.nodes.client import GrpcControlDialer
from skerry.transport.links.nodes.tunnel_connection import TunnelConnection


@dataclass(frozen=True, slots=True)
class ServerLink:
    """How a node stays in touch with the servers."""

    servers: ServerAddressCache
    tls: ssl.SSLContext
    revocations: RevocationList | None = None  # told which certificates are to be refused
    listener: MemberListener | None = None  # told who takes calls of functions, and which there are


async def start(
    context: RoleContext,
    engine: ContainerEngine,
    member: ContinuumMember,
    link: ServerLink,
    disk: DiskMonitor,
    loops: TaskSupervisor,
) -> None:
    """Go on with what was ordered, and stay in touch with one of the servers, which gives this node its
    subnet, if possible the one that its operator wants. Of the machine's memory, what the workers of `member`
    may have is not for instances. What is wrong with the `disk` is told."""
    settings, folder, clock, undo = context.settings, context.folder, context.clock, context.undo
    revocations, subnet = link.revocations, settings.network.subnet
    labels = _parse_labels(settings.node.labels)
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
    instances = await NodeInstances(
        folder / "instances", InstanceBackends(engine.containers, engine.images, leased_cells), clock
    ).open()
    undo.push_async_callback(instances.close)

    async def assign(given: str) -> None:
        await engine.network.use(given)
        await engine.subnet.save(given)

    def describe() -> NodeHello:
        hello = NodeHello(
            name=member.name,
            facts=replace(
                agent.facts(),
                runtime=engine.version,
                userns=engine.has_userns,
                warnings=(*engine.warnings, *_subnet_warnings(subnet, engine)),
                disk_pressure=disk.condition,
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
            hello, folder, instances, reserved_mb=member.memory, offers_disk=offers_disk
        )

    hooks = AgentHooks(describe, lambda: disk.condition, assign, member=link.listener)
    if revocations is not None:
        hooks = dataclasses.replace(hooks, revoke=revocations.add, revoked=lambda: revocations.all)
    control = agent.NodeAgent(
        link.servers,
        lambda address: GrpcControlDialer(address, link.tls),
        instances,
        TunnelHandler(instances, engine.containers, leased_cells),
        hooks,
        clock,
    )
    engine.network.explain_wait(lambda: control.last_error)
    loops.forever("instances of this node", instances.run)
    loops.forever("lent cells", leased_cells.run)
    loops.forever("session", control.run)


def _parse_labels(texts: tuple[str, ...]) -> dict[str, str]:
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
