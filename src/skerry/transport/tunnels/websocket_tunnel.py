"""Our end of a WebSocket to a provider: frames of a tunnel in both directions, and status messages of the
provider.

Binary messages are `pb.Frame`, as on every tunnel; text messages come from the provider only, are passed on
as they are, and have a maximum rate. The socket limits the size of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError, Message

from skerry.model import errors
from skerry.model.streams import MAX_FRAME
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.tunnels import tunnel_codec

if TYPE_CHECKING:
    import aiohttp

MAX_MESSAGE: Final = MAX_FRAME + 4096
_DONE: Final = 1000  # closed in good order
_PACE_S: Final = 0.01  # between two texts; a provider that sends more is slowed down by flow control


class WebSocketTunnel:
    """A `skerry.model.streams.TunnelStream`; texts go to `on_text`, without which they are refused."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        peer: str,
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        self._socket = socket
        self._peer = peer
        self._on_text = on_text

    async def receive(self) -> bytes | None:
        """The next frame; None once there are no more. Raises what went wrong there."""
        import aiohttp

        while True:
            message = await self._socket.receive()
            match message.type:
                case aiohttp.WSMsgType.BINARY:
                    frame = self._frame(message.data)
                    match frame.WhichOneof("frame"):
                        case "data" if 0 < len(frame.data) <= MAX_FRAME:
                            return frame.data
                        case "end":
                            return None
                        case "failure":
                            raise tunnel_codec.decode_failure(frame.failure)
                        case _:
                            raise errors.Invalid(f"peer {self._peer} sent a frame that holds nothing")
                case aiohttp.WSMsgType.TEXT if self._on_text is not None:
                    self._on_text(message.data)
                    await asyncio.sleep(_PACE_S)
                case aiohttp.WSMsgType.CLOSE if message.data == _DONE:
                    return None
                case _:
                    raise errors.Unavailable(f"the connection to peer {self._peer} ended")

    async def send(self, frame: bytes) -> None:
        """Send one frame; raises `Unavailable` if the other end is closed."""
        await self.notify(tunnel_codec.encode_data(frame))

    async def end(self) -> None:
        """Send no more."""
        await self.notify(tunnel_codec.END)

    async def fail(self, error: errors.SkerryError) -> None:
        """Tell the other end what went wrong, and send no more."""
        await self.notify(tunnel_codec.encode_failure(error))

    async def notify(self, message: Message) -> None:
        try:
            await self._socket.send_bytes(message.SerializeToString())
        except (ConnectionError, RuntimeError):  # closed, or closing
            raise errors.Unavailable(f"the connection to peer {self._peer} ended") from None

    def _frame(self, data: bytes) -> pb.Frame:
        frame = pb.Frame()
        try:
            frame.ParseFromString(data)
        except DecodeError:
            raise errors.Invalid(f"peer {self._peer} sent what is no frame") from None
        return frame
