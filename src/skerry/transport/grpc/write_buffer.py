"""What a connection writes in one turn of the loop, sent as one piece.

A reply is headers, a message and a status, each written by itself; sent so, it would be three TLS records and
wake its client three times. `skerry.transport.grpc.connections` gives this to grpclib in place of the
transport.
"""

from __future__ import annotations

import asyncio
from typing import Final

_MOST: Final = 64 * 1024


class CoalescingTransport(asyncio.Transport):
    """Writes to `transport` at the end of the turn; everything else goes there at once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._pending: list[bytes] = []
        self._bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data:
            return
        if not self._pending:
            self._loop.call_soon(self.flush)
        self._pending.append(bytes(data))
        self._bytes += len(data)
        if self._bytes >= _MOST:  # the transport must see it to ask for a pause
            self.flush()

    def write_now(self, data: bytes) -> None:
        """Write `data`, and what is pending before it, without waiting for the end of the turn."""
        if self._pending:
            self._pending.append(data)
            self.flush()
        elif not self._transport.is_closing():
            self._transport.write(data)

    def flush(self) -> None:
        """Write now what is pending."""
        pending, self._pending, self._bytes = self._pending, [], 0
        if pending and not self._transport.is_closing():
            self._transport.write(b"".join(pending))

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._bytes

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._pending, self._bytes = [], 0
        self._transport.abort()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
