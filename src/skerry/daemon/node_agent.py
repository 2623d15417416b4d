"""This machine as a node of a cloud: the instances it is ordered to run, and its session with the server.

Called by both roles where there are containers. What runs goes on whether or not there is a
server, and whether or not there is this process. Cells that are lent are instances too, and whoever borrows
one comes to it by a tunnel of that session.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec.structs import replace

from skerry.daemon.containers import ContainerEngine
from skerry.kit.clock import Clock
from skerry.kit.disk_monitor import DiskMonitor
from skerry.kit.tasks import TaskSupervisor
from skerry.model.members import ContinuumMember
from skerry.node.agent import agent
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.agent.revocations import RevocationList
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.node.agent.session import MemberListener, ignore_revocations
from skerry.node.guests.leased_cells import MAX_INSTANCES, LeasedCells
from skerry.transport.links.nodes.client import GrpcControlDialer
from skerry.transport.links.nodes.tunnel_connection import TunnelConnection


async def start(
    engine: ContainerEngine,
    folder: Path,
    clock: Clock,
    *,
    name: str,
    labels: Mapping[str, str],
    subnet: str = "",
    kept_mb: int = 0,
    servers: ServerAddressCache,
    tls: ssl.SSLContext,
    max_guest_instances: int = MAX_INSTANCES,
    revocations: RevocationList | None = None,
    member: ContinuumMember | None = None,
    hears: MemberListener | None = None,
    disk: DiskMonitor,
    loops: TaskSupervisor,
    undo: AsyncExitStack,
) -> None:
    """Go on with what was ordered, and stay in touch with one of `servers`, which gives this node its subnet,
    if possible the `subnet` that its operator wants. Of the machine's memory `kept_mb`
    are not for instances; a cell that is lent may have `max_guest_instances` in it. `revocations` is told
    which certificates are to be refused. As a `member` it takes calls of functions, and `hears` what it is
    told for that. What is wrong with the `disk` is told."""
    lent = await LeasedCells.open(
        folder / "lent",
        engine.cells,
        engine.containers,
        engine.images.for_guests(),
        engine.settings,
        clock,
        connect=TunnelConnection,
        max_instances=max_guest_instances,
    )
    undo.push_async_callback(lent.close)
    instances = await NodeInstances.open(
        folder / "instances", engine.containers, engine.images, clock, cells=lent
    )
    undo.push_async_callback(instances.close)

    async def assign(given: str) -> None:
        await engine.network.use(given)
        await engine.subnet.save(given)

    line = agent.NodeAgent(
        servers,
        lambda address: GrpcControlDialer(address, tls),
        instances,
        TunnelHandler(instances, engine.containers, lent),
        lambda: agent.introduce(
            name,
            folder,
            instances,
            subnet=subnet or engine.network.subnet,
            occupied=engine.network.occupied,
            former=engine.network.former,
            labels=labels,
            kept_mb=kept_mb,
            member=member,
            about=replace(
                agent.facts(),
                runtime=engine.version,
                userns=engine.has_userns,
                warnings=(*engine.warnings, *_subnet_warnings(subnet, engine)),
                disk_pressure=disk.condition,
            ),
            lends_disk=engine.containers.takes_disk_limits,
            takes_revocations=revocations is not None,
        ),
        clock,
        assign=assign,
        revoke=ignore_revocations if revocations is None else revocations.hear,
        revoked=lambda: () if revocations is None else revocations.all,
        member=hears,
        condition=lambda: disk.condition,
    )
    engine.network.explain_wait(lambda: line.complaint)
    loops.forever("instances of this node", instances.run)
    loops.forever("lent cells", lent.run)
    loops.forever("session", line.run)


def _subnet_warnings(wanted: str, engine: ContainerEngine) -> tuple[str, ...]:
    given = engine.subnet.subnet
    if not wanted or not given or wanted == given:
        return ()
    return (
        f"the setting network.subnet is {wanted}, but the server gave this node {given}: the other is "
        "taken, reached otherwise by this machine, or not a /24 of the pool fleet.subnets",
    )
