"""DepartureService: a node drains itself, and leaves its cloud for good.

The server's half; the node's is `departure_client`. A node is identified by the certificate of its
connection, and acts only for itself; `skerry.control.nodes.registry` drains and unregisters.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import structlog
from grpclib.server import Stream

from skerry.control.identity.authenticator import Authenticator
from skerry.control.nodes.registry import NodeRegistry
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.transport.grpc.call_streams import caller_of
from skerry.transport.links.nodes.service import calling_node
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.proto.nodes_grpc import DepartureServiceBase

log = structlog.get_logger(__name__)


class DepartureService(DepartureServiceBase):
    """Serves `skerry.nodes.v1.DepartureService`."""

    def __init__(self, nodes: NodeRegistry, identity: Authenticator, clock: Clock) -> None:
        self._nodes = nodes
        self._identity = identity
        self._clock = clock
        self._revoking: set[asyncio.Task[None]] = set()

    async def Drain(self, stream: Stream[pb.DrainRequest, pb.DrainProgress]) -> None:  # noqa: N802 - gRPC's name
        caller = caller_of(stream)
        node = calling_node(caller)
        request = await stream.recv_message()
        within_s = request.within_s if request is not None else 0.0
        by = self._clock.now() + within_s if within_s else None
        await self._nodes.drain(node, actor=caller.name, by=by)
        async with aclosing(self._nodes.drain_progress(node)) as progress:
            async for left in progress:
                await stream.send_message(pb.DrainProgress(instances=left))

    async def Leave(self, stream: Stream[pb.LeaveRequest, pb.LeaveReply]) -> None:  # noqa: N802 - gRPC's name
        caller = caller_of(stream)
        node = calling_node(caller)
        await stream.recv_message()
        instances = self._nodes.count(node)
        try:
            await self._nodes.unregister(node, actor=caller.name, force=True)
        except errors.NotFound:
            log.info("node.left_unregistered", node=node)  # before, or it never connected
        # Revoking ends this very connection, so the response is sent first.
        await stream.send_message(pb.LeaveReply(instances=instances))
        await stream.send_trailing_metadata()
        revoking = asyncio.create_task(self._revoke(caller))
        self._revoking.add(revoking)
        revoking.add_done_callback(self._revoking.discard)
        await asyncio.shield(revoking)

    async def _revoke(self, caller: Caller) -> None:
        try:
            await self._identity.revoke_certificate(caller.serial, actor=caller.name)
        except errors.SkerryError as error:
            log.warning("node.left_not_revoked", node=caller.node, error=error.message)
