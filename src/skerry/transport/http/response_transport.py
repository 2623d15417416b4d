"""The transport as a running request sees it, in place of the connection's own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable


@functools.lru_cache(maxsize=64)
def header_lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Headers as they are written; those of most responses are the same."""
    return b"".join(b"%b: %b\r\n" % line for line in headers)


class ResponseTransport:
    """What a running request sees of the transport: it closes gently, and never while input is unread.

    The head of an answer is held until the first part of its body, which mostly comes at once, or until the
    loop turns: an answer in one piece is one system call instead of two.
    """

    __slots__ = ("_close", "_holds", "_loop", "_pending_head", "_transport", "is_closing")

    def __init__(
        self,
        transport: asyncio.Transport,
        close: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        *,
        holds: bool,
    ) -> None:
        self._transport = transport
        self._close = close
        self._loop = loop
        self._holds = holds  # nothing has been written yet, and something will follow the head
        self._pending_head = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._holds:
            self._holds = False
            self._pending_head = data
            self._loop.call_soon(self.flush)
        elif self._pending_head:
            head, self._pending_head = self._pending_head, b""
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Write what is held, if anything is."""
        if self._pending_head:
            head, self._pending_head = self._pending_head, b""
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._close()
