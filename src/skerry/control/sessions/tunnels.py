"""Tunnels through the control plane: a caller here and a node, joined by an id that cannot be guessed.

A caller requests the logs of an instance, or exec in it. The node's session sends a request to dial; when the
node does, with the id and as the same node, the two ends are one tunnel. Frames of bytes pass in both
directions, a few at a time, with back-pressure. The tunnel ends when either end does.
`skerry.control.sessions.node_session` sends the request, `skerry.transport.links.nodes` brings the node's
end.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import structlog

from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.streams import MAX_FRAME, StreamRequest, TunnelStream

log = structlog.get_logger(__name__)

_DEPTH = 8  # frames under way in one direction
_PER_NODE = 64
_PATIENCE_S = 10.0


class NodeTunnels(Protocol):
    """Tunnels to nodes, wherever they are connected: `skerry.transport.links.nodes.tunnel_router`, or the
    sessions of a server that is alone."""

    def open_tunnel(
        self, node: NodeId, instance: InstanceId, request: StreamRequest
    ) -> AbstractAsyncContextManager[TunnelStream]: ...


class _Pipe:
    """Frames in one direction."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self.is_ended = False
        self._is_abandoned = False
        self._failure: errors.SkerryError | None = None
        self._moved = asyncio.Condition()

    async def put(self, frame: bytes) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: len(self._frames) < _DEPTH or self._is_abandoned)
            if self._is_abandoned:
                raise errors.Unavailable("the other end of the tunnel is gone")
            self._frames.append(frame)
            self._moved.notify_all()

    async def get(self) -> bytes | None:
        async with self._moved:
            await self._moved.wait_for(lambda: self._frames or self.is_ended)
            if self._frames:
                frame = self._frames.popleft()
                self._moved.notify_all()
                return frame
            if self._failure is not None:
                raise self._failure
            return None

    async def end(self, failure: errors.SkerryError | None = None) -> None:
        """No more frames are put; those in the queue can still be read. The first call counts."""
        async with self._moved:
            if not self.is_ended:
                self.is_ended, self._failure = True, failure
                self._moved.notify_all()

    async def abandon(self) -> None:
        """Nothing more is read."""
        async with self._moved:
            self._is_abandoned = True
            self._frames.clear()
            self._moved.notify_all()


class TunnelEndpoint:
    """One end of a tunnel: a `skerry.model.streams.TunnelStream`."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self) -> bytes | None:
        """The next frame; None once the other end sends no more. Raises what went wrong there."""
        return await self._incoming.get()

    async def send(self, frame: bytes) -> None:
        """Send one frame; raises `Unavailable` if the other end is closed."""
        if not 0 < len(frame) <= MAX_FRAME:
            raise errors.Invalid(f"a frame of a tunnel has 1 to {MAX_FRAME} bytes, not {len(frame)}")
        await self._outgoing.put(frame)

    async def end(self) -> None:
        """Send no more; the other end may go on."""
        await self._outgoing.end()

    async def fail(self, error: errors.SkerryError) -> None:
        """Tell the other end what went wrong, and send no more."""
        await self._outgoing.end(error)

    async def close(self) -> None:
        """Close this end: the other one gets that, unless the tunnel has ended."""
        is_early = not self._incoming.is_ended
        await self._incoming.abandon()
        await self._outgoing.end(
            errors.Unavailable("the tunnel was closed at its other end") if is_early else None
        )


class _PendingTunnel:
    """A tunnel that its node has not dialled yet."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        there, back = _Pipe(), _Pipe()
        self.ours, self.theirs = TunnelEndpoint(back, there), TunnelEndpoint(there, back)
        self.dialled = asyncio.Event()


class TunnelBroker:
    """The tunnels of this server."""

    def __init__(self, *, patience_s: float = _PATIENCE_S, new_id: Callable[[], str] | None = None) -> None:
        self._patience_s = patience_s
        self._new_id = new_id or (lambda: secrets.token_hex(16))
        self._waiting: dict[str, _PendingTunnel] = {}
        self._open: dict[NodeId, int] = {}

    @asynccontextmanager
    async def open(self, node: NodeId, request: Callable[[str], None]) -> AsyncIterator[TunnelEndpoint]:
        """Our end of a new tunnel to `node`, once it has dialled; `request` is called with the id for the
        node."""
        if self._open.get(node, 0) >= _PER_NODE:
            raise errors.Overloaded(
                f"{_PER_NODE} tunnels to node {node} are open; end one of them, or try later"
            )
        self._open[node] = self._open.get(node, 0) + 1
        id, tunnel = self._new_id(), _PendingTunnel(node)
        self._waiting[id] = tunnel
        try:
            request(id)
            try:
                async with asyncio.timeout(self._patience_s):
                    await tunnel.dialled.wait()
            except TimeoutError:
                raise errors.TimedOut(
                    f"node {node} did not answer within {self._patience_s:g} s; `skerry node list` shows "
                    "whether it is there"
                ) from None
            finally:
                del self._waiting[id]
            yield tunnel.ours
        finally:
            self._open[node] -= 1
            if not self._open[node]:
                del self._open[node]
            await tunnel.ours.close()

    @asynccontextmanager
    async def dialled(self, node: NodeId, id: str) -> AsyncIterator[TunnelEndpoint]:
        """The node's end of a requested tunnel; `NotFound` if it was not requested, or too long ago."""
        tunnel = self._waiting.get(id)
        if tunnel is None or tunnel.node != node or tunnel.dialled.is_set():
            raise errors.NotFound("this tunnel is not expected; it has timed out, or is not yours")
        tunnel.dialled.set()
        try:
            yield tunnel.theirs
        finally:
            await tunnel.theirs.close()
