"""A response that comes in parts: a head, then chunks, from one producer to one consumer in the same loop.

The producer may be ahead of the consumer by a window of bytes; it is told what the consumer has read, and
when that has left. Nobody copies more than the window, so a slow consumer delays its own producer and takes
no memory. What a head is, and where chunks come from or go to, is not known here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

H = TypeVar("H")

WINDOW: Final = 256 * 1024  # bytes that a producer may be ahead
_MOST: Final = 2 * WINDOW  # a producer that counts what it reads, not what it may read, has one read more
_GRANT: Final = WINDOW // 4  # less is not reported to the producer yet


class StreamOverrun(ValueError):
    """The producer wrote more than it may be ahead, or out of turn."""


class ResponseStream(Generic[H]):
    """`attach` at the producer, then `begin`, `write` and `end`; `wait_head` and `read` at the consumer."""

    __slots__ = (
        "_head",
        "_is_over",
        "_on_abandon",
        "_on_read",
        "_parts",
        "_unreported",
        "_waiter",
        "is_abandoned",
        "unread",
    )

    def __init__(self) -> None:
        self._head: H | None = None
        self._parts: deque[bytes] = deque()
        self.unread = 0  # bytes
        self._unreported = 0  # bytes that were read since the last report
        self._is_over = False
        self.is_abandoned = False  # the consumer has left
        self._waiter: asyncio.Future[None] | None = None
        self._on_read: Callable[[int], None] | None = None
        self._on_abandon: Callable[[], None] | None = None

    # The producer

    def attach(self, on_read: Callable[[int], None], on_abandon: Callable[[], None]) -> None:
        """A producer takes over, in place of one before it that has not begun. `on_read` is called with the
        number of bytes that were read since its last call, `on_abandon` once if the consumer leaves."""
        self._on_read, self._on_abandon = on_read, on_abandon
        if self.is_abandoned:
            on_abandon()

    @property
    def has_begun(self) -> bool:
        return self._head is not None

    def begin(self, head: H) -> None:
        """Raises `StreamOverrun` if it has begun already."""
        if self._head is not None or self._is_over:
            raise StreamOverrun("a second head of one response")
        self._head = head
        self._wake()

    def write(self, data: bytes) -> None:
        """Raises `StreamOverrun` before the head, and for more than the window ahead of the consumer."""
        if self._head is None or self._is_over:
            raise StreamOverrun("a part of a response outside of it")
        if not data:
            return
        if self.is_abandoned:
            self._note_read(len(data))
            return
        self.unread += len(data)
        if self.unread > _MOST:
            raise StreamOverrun(f"more than {WINDOW} bytes of a response ahead of its reader")
        self._parts.append(data)
        self._wake()

    def end(self) -> None:
        """Nothing more comes. May be repeated."""
        self._is_over = True
        self._on_read = self._on_abandon = None
        self._wake()

    # The consumer

    async def wait_head(self) -> H | None:
        """The head; None if it ended without one, or was abandoned before."""
        while self._head is None and not self._is_over and not self.is_abandoned:
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """All that has come since the last time, when there is any; empty at the end, or if it was
        abandoned."""
        while not self._parts and not self._is_over and not self.is_abandoned:
            await self._wait()
        if not self._parts:
            return b""
        data = self._parts.popleft() if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.unread -= len(data)
        self._note_read(len(data))
        return data

    def abandon(self) -> None:
        """The consumer leaves, and whoever reads is woken; what comes from now on is dropped. May be
        repeated."""
        if self.is_abandoned:
            return
        self.is_abandoned = True
        self._parts.clear()
        unread, self.unread = self.unread, 0
        left = self._on_abandon
        if left is not None:
            left()
        self._note_read(unread)
        self._wake()

    def _note_read(self, count: int) -> None:
        self._unreported += count
        if self._unreported >= _GRANT and self._on_read is not None:
            count, self._unreported = self._unreported, 0
            self._on_read(count)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
