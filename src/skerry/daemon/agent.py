"""This machine as a node of a cloud: the instances it is ordered to run, and its session with the server.

Called by `skerry.daemon.roles` where there are containers. What runs goes on whether or not there is a
server, and whether or not there is this process. Cells that are lent are instances too, and whoever borrows
one comes to it by a tunnel of that session.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from skerry.daemon.containers import Engine
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.model.members import Member
from skerry.node import session
from skerry.node.attendance import MemberHere
from skerry.node.instances.instances import NodeInstances
from skerry.node.instances.tunnels import Tunnels
from skerry.node.lent.cells import MAX_INSTANCES, LentCells
from skerry.node.servers import KnownServers
from skerry.wire.nodes.client import GrpcDialler
from skerry.wire.nodes.links import LinkConnection


async def start(
    engine: Engine,
    folder: Path,
    clock: Clock,
    *,
    name: str,
    labels: Mapping[str, str],
    kept_mb: int = 0,
    servers: KnownServers,
    tls: ssl.SSLContext,
    max_guest_instances: int = MAX_INSTANCES,
    member: Member | None = None,
    hears: MemberHere | None = None,
    loops: Keeper,
    undo: AsyncExitStack,
) -> None:
    """Go on with what was ordered, and stay in touch with one of `servers`. Of the machine's memory `kept_mb`
    are not for instances; a cell that is lent may have `max_guest_instances` in it. As a `member` it takes
    calls of functions, and `hears` what it is told for that."""
    lent = await LentCells.open(
        folder / "lent",
        engine.cells,
        engine.containers,
        engine.images.for_guests(),
        engine.settings,
        clock,
        connect=LinkConnection,
        max_instances=max_guest_instances,
    )
    undo.push_async_callback(lent.close)
    instances = await NodeInstances.open(
        folder / "instances", engine.containers, engine.images, clock, cells=lent
    )
    undo.push_async_callback(instances.close)
    line = session.Session(
        servers,
        lambda address: GrpcDialler(address, tls),
        instances,
        Tunnels(instances, engine.containers, lent),
        lambda: session.introduce(
            name,
            folder,
            instances,
            subnet=engine.network.subnet,
            labels=labels,
            kept_mb=kept_mb,
            member=member,
        ),
        clock,
        member=hears,
    )
    loops.forever("instances of this node", instances.run)
    loops.forever("lent cells", lent.run)
    loops.forever("session", line.run)
