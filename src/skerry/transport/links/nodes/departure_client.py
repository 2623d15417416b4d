"""DepartureService, the node's half: `skerry.daemon.node_leave` uses it. `departure` is the server's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from grpclib.client import Channel

from skerry.transport.grpc.channels import map_errors
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.proto.nodes_grpc import DepartureServiceStub

_LEAVE_S: Final = 30.0


async def drain(channel: Channel, within_s: float) -> AsyncIterator[int]:
    """Drain the node of the channel's certificate; yields how many instances it has, until it has none."""
    with map_errors("drain this node"):
        async with DepartureServiceStub(channel).Drain.open() as stream:
            await stream.send_message(pb.DrainRequest(within_s=within_s), end=True)
            async for progress in stream:
                yield progress.instances


async def leave(channel: Channel) -> int:
    """Unregister the node of the channel's certificate; returns how many instances are placed on other
    nodes."""
    with map_errors("unregister this node"):
        reply = await DepartureServiceStub(channel).Leave(pb.LeaveRequest(), timeout=_LEAVE_S)
    return reply.instances
