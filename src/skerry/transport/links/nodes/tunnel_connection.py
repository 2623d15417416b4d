"""The session of a node over tunnel frames: how a contract tunnel reaches a leased cell.

A node of one's own calls by gRPC; a leased cell is reached through its provider, as frames of bytes. A
message is cut into frames; the first byte of each marks the last. `TunnelMessageStream` is either end; the
node's is a `TunnelConnection` on top, without tunnels of its own: the buyer requests those from the provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from skerry.model import errors
from skerry.model.node_messages import NodeHello, NodeMessage, ServerMessage, SessionConfig
from skerry.model.streams import MAX_FRAME, TunnelStream
from skerry.transport.links.nodes import messages
from skerry.transport.proto import nodes_pb2 as pb

MAX_MESSAGE: Final = 4 * 1024 * 1024
MAX_ORDERS_BYTES: Final = 16 * MAX_MESSAGE  # a set of them may come in parts
MAX_ORDERS: Final = 10_000
_MORE, _LAST = b"\0", b"\1"

Outgoing = TypeVar("Outgoing", bound=Message)
Incoming = TypeVar("Incoming", bound=Message)


class TunnelMessageStream(Generic[Outgoing, Incoming]):
    """Whole messages over frames."""

    def __init__(self, frames: TunnelStream, incoming: type[Incoming]) -> None:
        self._frames = frames
        self._incoming = incoming
        self._sending = asyncio.Lock()

    async def send_message(self, message: Outgoing) -> None:
        data, most = message.SerializeToString(), MAX_FRAME - 1
        async with self._sending:  # the frames of two messages must not mix
            for at in range(0, max(len(data), 1), most):
                flag = _LAST if at + most >= len(data) else _MORE
                await self._frames.send(flag + data[at : at + most])

    async def recv_message(self) -> Incoming | None:
        """The next message; None if there is no more. Raises `Invalid`, `TooLarge`, `Unavailable`."""
        parts: list[bytes] = []
        size = 0
        while (frame := await self._frames.receive()) is not None:
            parts.append(frame[1:])
            size += len(frame)
            if size > MAX_MESSAGE:
                raise errors.TooLarge(f"a message of a node's session has at most {MAX_MESSAGE} bytes")
            if frame[:1] == _LAST:
                return self._decoded(b"".join(parts))
            if frame[:1] != _MORE:
                break
        if frame is None and not parts:
            return None
        raise errors.Invalid("a message of a node's session came in parts that do not fit")

    def _decoded(self, data: bytes) -> Incoming:
        message = self._incoming()
        try:
            message.ParseFromString(data)
        except DecodeError:
            raise errors.Invalid("a message of a node's session cannot be read") from None
        return message


class TunnelConnection:
    """The node's end of a session, over a tunnel: `skerry.node.agent.ports.ControlConnection`."""

    def __init__(self, tunnel: TunnelStream) -> None:
        self._link: TunnelMessageStream[pb.FromNode, pb.ToNode] = TunnelMessageStream(tunnel, pb.ToNode)

    async def hello(self, hello: NodeHello) -> SessionConfig:
        await self.send(hello)
        first = await self._link.recv_message()
        if first is None or first.WhichOneof("message") != "welcome":
            raise errors.Unavailable("the buyer of this cell did not send a welcome")
        return messages.decode_welcome(first.welcome)

    async def messages(self) -> AsyncIterator[ServerMessage]:
        reader = messages.MessageReader(MAX_ORDERS_BYTES, MAX_ORDERS)
        while (message := await self._link.recv_message()) is not None:
            if (down := reader.read(message)) is not None:
                yield down

    async def send(self, message: NodeMessage) -> None:
        await self._link.send_message(messages.encode_node_message(message))

    def tunnel(self, id: str) -> AbstractAsyncContextManager[TunnelStream]:
        raise errors.FailedPrecondition("tunnels into a leased cell are opened by its provider")


def decode_first_hello(message: pb.FromNode | None) -> NodeHello:
    """The first message of a node, which must be a hello."""
    if message is None or message.WhichOneof("message") != "hello":
        raise errors.Invalid("the first message of a session must be a hello", field="hello")
    return messages.decode_hello(message.hello)
