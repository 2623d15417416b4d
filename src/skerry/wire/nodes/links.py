"""A node's conversation over bare frames: what a tunnel to a lent cell carries, and the door that it ends at.

Where a node of one's own calls by gRPC, a lent cell is reached through its provider, as frames of bytes. A
message is cut into frames, of which the first byte says whether it is the last. `Link` is either end; the
node's is a `Connection` on top, with no tunnels of its own: who borrows asks the provider for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from skerry.model import errors
from skerry.model.sessions import Down, Hello, Reports, Welcome
from skerry.model.tunnels import MAX_FRAME
from skerry.node.connection import Tunnel
from skerry.wire.nodes import messages
from skerry.wire.proto import nodes_pb2 as pb

MAX_MESSAGE: Final = 4 * 1024 * 1024
MAX_ORDERS_BYTES: Final = 16 * MAX_MESSAGE  # a set of them may come in parts
MAX_ORDERS: Final = 10_000
_MORE, _LAST = b"\0", b"\1"
_HEARTBEAT: Final = pb.FromNode(heartbeat=pb.Heartbeat())

Said = TypeVar("Said", bound=Message)
Heard = TypeVar("Heard", bound=Message)


class Frames(Protocol):
    """Frames of bytes both ways, as any end of a tunnel has them."""

    async def receive(self) -> bytes | None: ...

    async def send(self, frame: bytes) -> None: ...


class Link(Generic[Said, Heard]):
    """Whole messages over frames."""

    def __init__(self, frames: Frames, heard: type[Heard]) -> None:
        self._frames = frames
        self._heard = heard
        self._sending = asyncio.Lock()

    async def send_message(self, message: Said) -> None:
        data, most = message.SerializeToString(), MAX_FRAME - 1
        async with self._sending:  # the frames of two messages must not mix
            for at in range(0, max(len(data), 1), most):
                flag = _LAST if at + most >= len(data) else _MORE
                await self._frames.send(flag + data[at : at + most])

    async def recv_message(self) -> Heard | None:
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

    def _decoded(self, data: bytes) -> Heard:
        message = self._heard()
        try:
            message.ParseFromString(data)
        except DecodeError:
            raise errors.Invalid("a message of a node's session cannot be read") from None
        return message


class LinkConnection:
    """The node's end of a session, over a tunnel: `skerry.node.connection.Connection`."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._link: Link[pb.FromNode, pb.ToNode] = Link(tunnel, pb.ToNode)

    async def hello(self, hello: Hello) -> Welcome:
        await self._link.send_message(pb.FromNode(hello=messages.told_hello(hello)))
        first = await self._link.recv_message()
        if first is None or first.WhichOneof("message") != "welcome":
            raise errors.Unavailable("who bought this cell did not say welcome")
        return messages.welcome_of(first.welcome)

    async def changed(self, hello: Hello) -> None:
        await self._link.send_message(pb.FromNode(hello=messages.told_hello(hello)))

    async def messages(self) -> AsyncIterator[Down]:
        reader = messages.Reader(MAX_ORDERS_BYTES, MAX_ORDERS)
        while (message := await self._link.recv_message()) is not None:
            if (down := reader.read(message)) is not None:
                yield down

    async def report(self, batch: Reports) -> None:
        await self._link.send_message(pb.FromNode(reports=messages.told_reports(batch)))

    async def heartbeat(self) -> None:
        await self._link.send_message(_HEARTBEAT)

    def tunnel(self, id: str) -> AbstractAsyncContextManager[Tunnel]:
        raise errors.Refused("tunnels into a lent cell are opened by its provider")


def hello_of(message: pb.FromNode | None) -> Hello:
    """The first word of a node, which must be this."""
    if message is None or message.WhichOneof("message") != "hello":
        raise errors.Invalid("the first message of a session must be a hello", field="hello")
    return messages.hello_of(message.hello)
