"""The node's half of `skerry.nodes.v1`: dials a server for `skerry.node.agent.agent`.

Implements the interfaces of `skerry.node.agent.ports` over gRPC. It decides nothing and does not retry;
errors are raised as `SkerryError`. A server that requests a tunnel from another uses it, too.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from grpclib.client import Channel, ServiceMethod, Stream
from grpclib.exceptions import StreamTerminatedError

from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import (
    NodeHello,
    NodeMessage,
    ServerMessage,
    SessionConfig,
    TunnelRequest,
)
from skerry.model.streams import StreamRequest
from skerry.transport.grpc.channels import dial, map_errors
from skerry.transport.links.nodes import messages, protocol
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.proto.nodes_grpc import NodeServiceStub, ServerServiceStub
from skerry.transport.tunnels import tunnel_codec

S = TypeVar("S")
R = TypeVar("R")

_REACH_S = 20.0  # longer than the other server waits for its node
_AIM = "talk to the control plane"


class GrpcControlDialer:
    """Dials the server at `target` (HOST:PORT), with the node's certificate in `tls`."""

    def __init__(self, target: str, tls: ssl.SSLContext) -> None:
        self._target = target
        self._tls = tls

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[GrpcControlConnection]:
        """A new connection; closed with its tunnels when the context is left."""
        # A session ends when the server is silent, which has half as much time for that as pings would need.
        channel = dial(self._target, self._tls, pings=False)
        try:
            async with _opened(NodeServiceStub(channel).Session) as stream:
                yield GrpcControlConnection(channel, stream)
        finally:
            channel.close()


@asynccontextmanager
async def open_remote_tunnel(
    target: str, tls: ssl.SSLContext, node: NodeId, instance: InstanceId, request: StreamRequest
) -> AsyncIterator[GrpcTunnel]:
    """A tunnel to an instance on a node that is connected to another server, at `target`."""
    wanted = pb.Reach(node=node, tunnel=tunnel_codec.encode_tunnel(TunnelRequest("", instance, request)))
    channel = dial(target, tls)
    try:
        async with _opened(ServerServiceStub(channel).Reach) as stream:
            with _server_errors(stream, f"reach node {node} by way of the server that it is connected to"):
                async with asyncio.timeout(_REACH_S):
                    await stream.send_message(pb.Frame(reach=wanted))
                    await stream.recv_initial_metadata()
            yield GrpcTunnel(stream)
    finally:
        channel.close()


class GrpcControlConnection:
    """One session with a server."""

    def __init__(self, channel: Channel, stream: Stream[pb.FromNode, pb.ToNode]) -> None:
        self._channel = channel
        self._stream = stream
        self._sending = asyncio.Lock()  # one message at a time

    async def hello(self, hello: NodeHello) -> SessionConfig:
        await self.send(hello)
        with _server_errors(self._stream, _AIM):
            first = await self._stream.recv_message()
            if first is None:
                await self._stream.recv_trailing_metadata()  # raises what the server has against us
        if first is None or first.WhichOneof("message") != "welcome":
            raise errors.Unavailable("the server did not send a welcome; is it a Skerry of another version?")
        protocol.check_server_version(first.welcome.version)
        return messages.decode_welcome(first.welcome)

    async def messages(self) -> AsyncIterator[ServerMessage]:
        reader = messages.MessageReader()
        while True:
            with _server_errors(self._stream, _AIM):
                message = await self._stream.recv_message()
                if message is None:
                    await self._stream.recv_trailing_metadata()
                    return
            if (down := reader.read(message)) is not None:
                yield down

    async def send(self, message: NodeMessage) -> None:
        with _server_errors(self._stream, _AIM):
            async with self._sending:
                await self._stream.send_message(messages.encode_node_message(message))

    @asynccontextmanager
    async def tunnel(self, id: str) -> AsyncIterator[GrpcTunnel]:
        async with _opened(NodeServiceStub(self._channel).Tunnel) as stream:
            with _server_errors(stream, "open the tunnel"):
                await stream.send_message(pb.Frame(open=id))
                await stream.recv_initial_metadata()
            yield GrpcTunnel(stream)


class GrpcTunnel:
    """The node's end of a tunnel."""

    def __init__(self, stream: Stream[pb.Frame, pb.Frame]) -> None:
        self._stream = stream
        self._sending = asyncio.Lock()
        self._is_ended = False

    async def receive(self) -> bytes | None:
        if self._is_ended:
            return None
        with _server_errors(self._stream, "read from the tunnel"):
            frame = await self._stream.recv_message()
            if frame is None:
                await self._stream.recv_trailing_metadata()
                raise errors.Unavailable("the tunnel was closed at its other end")
        match frame.WhichOneof("frame"):
            case "data":
                return frame.data
            case "failure":
                raise tunnel_codec.decode_failure(frame.failure)
            case "end":
                self._is_ended = True
                return None
            case _:
                raise errors.Invalid("the server sent a frame of a kind that is not known here")

    async def send(self, frame: bytes) -> None:
        await self._send(tunnel_codec.encode_data(frame))

    async def end(self) -> None:
        await self._send(tunnel_codec.END)

    async def fail(self, error: errors.SkerryError) -> None:
        await self._send(tunnel_codec.encode_failure(error))

    async def _send(self, frame: pb.Frame) -> None:
        with _server_errors(self._stream, "write to the tunnel"):
            async with self._sending:
                await self._stream.send_message(frame)


@contextmanager
def _server_errors(stream: Stream[S, R], aim: str) -> Iterator[None]:
    """Raise a failure inside as the error that the server sent, if it sent one."""
    with map_errors(aim):
        try:
            yield
        except StreamTerminatedError:
            stream._maybe_raise()  # a server that ends a call early sends the reason first
            raise


@asynccontextmanager
async def _opened(method: ServiceMethod[S, R]) -> AsyncIterator[Stream[S, R]]:
    """A call that is given up when the context is left."""
    stream = method.open()
    await stream.__aenter__()
    try:
        yield stream
    finally:
        # grpclib waits for the server to end the call if no error is passed.
        given_up = asyncio.CancelledError()
        await stream.__aexit__(asyncio.CancelledError, given_up, None)
