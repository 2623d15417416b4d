"""This machine as a node of a cloud: the instances it is ordered to run, and its session with the server.

Called by `skerry.daemon.roles` where there are containers. What runs goes on whether or not there is a
server, and whether or not there is this process.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from skerry.daemon.containers import Engine
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.node import session
from skerry.node.instances.instances import NodeInstances
from skerry.node.instances.tunnels import Tunnels
from skerry.node.servers import KnownServers
from skerry.wire.nodes.client import GrpcDialler


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
    loops: Keeper,
    undo: AsyncExitStack,
) -> None:
    """Go on with what was ordered, and stay in touch with one of `servers`. Of the machine's memory `kept_mb`
    are not for instances."""
    instances = await NodeInstances.open(folder / "instances", engine.containers, engine.images, clock)
    undo.push_async_callback(instances.close)
    line = session.Session(
        servers,
        lambda address: GrpcDialler(address, tls),
        instances,
        Tunnels(instances, engine.containers),
        lambda: session.introduce(
            name, folder, instances, subnet=engine.network.subnet, labels=labels, kept_mb=kept_mb
        ),
        clock,
    )
    loops.forever("instances of this node", instances.run)
    loops.forever("session", line.run)
