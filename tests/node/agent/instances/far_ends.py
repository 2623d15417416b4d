"""The other end of a tunnel, for tests: keeps what the node sends, and says what the test says."""

from __future__ import annotations

import asyncio

from skerry.model import errors
from skerry.model.streams import TunnelChannel, TunnelFrame


class FakeTunnel:
    """A tunnel of which the test is the other end."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.incoming: asyncio.Queue[bytes | errors.SkerryError | None] = asyncio.Queue()
        self.failure: errors.SkerryError | None = None
        self.is_ended = False
        self.is_closed = False

    async def receive(self) -> bytes | None:
        frame = await self.incoming.get()
        if isinstance(frame, errors.SkerryError):
            raise frame
        return frame

    async def send(self, frame: bytes) -> None:
        if self.is_ended:
            raise AssertionError("nothing comes after the end")
        self.sent.append(frame)

    async def end(self) -> None:
        self.is_ended = True

    async def fail(self, error: errors.SkerryError) -> None:
        self.failure, self.is_ended = error, True

    def say(self, channel: TunnelChannel, data: bytes = b"") -> None:
        self.incoming.put_nowait(TunnelFrame(channel, data).pack())

    def received(self, channel: TunnelChannel = TunnelChannel.OUTPUT) -> bytes:
        """All that came over one channel so far."""
        frames = map(TunnelFrame.unpack, self.sent)
        return b"".join(frame.data for frame in frames if frame.channel is channel)

    def hang_up(self) -> None:
        self.incoming.put_nowait(errors.Unavailable("the tunnel was closed at its other end"))
