"""Requests that wait for a service without copies: HAProxy asks here, and is answered when one is ready.

A connection of HAProxy is one request: it sends the id of its route, and goes on when it gets a line. The
socket is in a folder that only root and HAProxy's group can enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger(__name__)

_MAX_LINE = 256
_FIRST_LINE_S = 5.0
_AGAIN_S = 5.0  # while nothing has come of it, the server is asked again
MAX_WAITING = 10_000


class WakeListener:
    """Takes requests of HAProxy."""

    def __init__(
        self,
        path: Path,
        *,
        hold_s: float,
        is_ready: Callable[[str], bool],
        wake: Callable[[str], bool],
        settled: Callable[[str], None],
        group: int | None,
    ) -> None:
        """`is_ready` says whether a route has a copy that takes requests; `wake` has one started, and is
        False if there is no such route; `settled` is called when no request waits for a route any more. The
        socket is for that `group`."""
        self._path = path
        self._hold_s = hold_s
        self._is_ready = is_ready
        self._wake = wake
        self._settled = settled
        self._group = group
        self._changed = asyncio.Event()
        self._waiting: Counter[str] = Counter()  # by route
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """How many requests are held."""
        return self._waiting.total()

    def is_waiting(self, route: str) -> bool:
        """Whether a request is held for that route."""
        return route in self._waiting

    async def open(self) -> None:
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self._path, limit=_MAX_LINE)
        if self._group is not None:
            os.chown(self._path, -1, self._group)
        self._path.chmod(0o660)

    def notify(self) -> None:
        """Copies have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for one in self._connections:
            one.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            answer = await self._answer(reader)
            with contextlib.suppress(ConnectionError):
                writer.write(answer)
                await writer.drain()
        except asyncio.CancelledError:
            pass  # the agent stops; HAProxy goes on with its request, and answers 503
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(_FIRST_LINE_S):
                line = await reader.readline()
        except (TimeoutError, ValueError, ConnectionError):
            return b"no\n"
        route = line.decode(errors="replace").strip()
        if self.waiting >= MAX_WAITING:
            return b"no\n"
        self._waiting[route] += 1
        gone = asyncio.ensure_future(reader.read(1))  # the client has given up, and HAProxy with it
        try:
            return b"ok\n" if await self._wait(route, gone) else b"no\n"
        finally:
            self._waiting[route] -= 1
            if not self._waiting[route]:
                del self._waiting[route]
                self._settled(route)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _wait(self, route: str, gone: asyncio.Future[bytes]) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hold_s
        ask_at = loop.time()
        while not self._is_ready(route):
            now = loop.time()
            if now >= deadline or gone.done():
                return False
            if now >= ask_at:
                if not self._wake(route):
                    return False
                ask_at = now + _AGAIN_S
            change = asyncio.ensure_future(self._changed.wait())
            waits: list[asyncio.Future[Any]] = [change, gone]
            try:
                await asyncio.wait(
                    waits,
                    timeout=min(deadline, ask_at) - now,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                change.cancel()
                await asyncio.gather(change, return_exceptions=True)
        return True
