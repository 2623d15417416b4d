"""Creates sockets in other network namespaces, with a thread for that.

A socket stays in the namespace that it was created in, so only creating it needs the thread, which enters the
namespace and leaves it; the rest of the process is not affected. Entering costs more than a socket: a few are
created at once, for all who wait and for later requests. Sockets keep a namespace alive, so unused ones are
closed (`forget`) before it is removed. Idle, the thread is in the namespace of the bridge.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import queue
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from skerry.node.kernel import namespaces
from skerry.node.network.bridge_namespace import OWN_NAMESPACE, BridgeNamespace

# Sockets that are created at once, if none is kept: more if the last ones were used up soon.
_FEWEST: Final = 2
_MOST: Final = 16
_SOON_S: Final = 5.0


@dataclass(eq=False, slots=True)
class _Spares:
    """Unused sockets of one namespace, and who waits for one."""

    namespace: str
    sockets: list[socket.socket] = field(default_factory=list)
    waiting: deque[asyncio.Future[socket.socket]] = field(default_factory=deque)
    is_forgotten: bool = False
    is_coming: bool = False  # some are being created
    count: int = _FEWEST  # to create at once
    created_at: float = -math.inf

    def next_count(self, now: float) -> int:
        """How many to create now."""
        is_used_up_soon = now - self.created_at < _SOON_S
        self.created_at = now
        self.count = min(self.count * 2, _MOST) if is_used_up_soon else max(self.count // 2, _FEWEST)
        return max(self.count, len(self.waiting))


@dataclass(eq=False, slots=True)
class _Request:
    """Sockets to create."""

    spares: _Spares
    loop: asyncio.AbstractEventLoop
    count: int
    sockets: list[socket.socket] = field(default_factory=list)
    error: OSError | None = None


class NamespaceSockets:
    """Creates sockets; the thread starts with the first, waits in `home`, and ends with `close`."""

    def __init__(self, home: BridgeNamespace = OWN_NAMESPACE) -> None:
        self._home = home
        self._spares: dict[str, _Spares] = {}
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, namespace: str) -> asyncio.Future[socket.socket]:
        """A non-blocking TCP socket in the namespace that is mounted on the file `namespace`. Raises
        OSError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[socket.socket] = loop.create_future()
        spares = self._spares.get(namespace)
        if spares is None:
            spares = self._spares[namespace] = _Spares(namespace)
        if spares.sockets:
            future.set_result(spares.sockets.pop())
            return future
        spares.waiting.append(future)
        if not spares.is_coming:
            self._request(spares, loop)
        return future

    def _request(self, spares: _Spares, loop: asyncio.AbstractEventLoop) -> None:
        spares.is_coming = True
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="namespace-sockets", daemon=True)
            self._thread.start()
        self._requests.put(_Request(spares, loop, spares.next_count(loop.time())))

    def _deliver(self, batch: list[_Request]) -> None:
        for request in batch:
            spares, sockets = request.spares, request.sockets
            spares.is_coming = False
            error = request.error
            if spares.is_forgotten and error is None:
                error = OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
            while spares.waiting and (sockets or error is not None):
                future = spares.waiting.popleft()
                if future.done():
                    continue  # the caller was cancelled
                if sockets:
                    future.set_result(sockets.pop())
                elif error is not None:
                    future.set_exception(error)
            if spares.is_forgotten:
                _close_all(sockets)
            else:
                spares.sockets.extend(sockets)
                if spares.waiting:
                    self._request(spares, request.loop)

    def forget(self, namespace: str) -> None:
        """Close unused sockets of a namespace that is about to be removed. The path may be reused later."""
        spares = self._spares.pop(namespace, None)
        if spares is not None:
            spares.is_forgotten = True
            _close_all(spares.sockets)

    def close(self) -> None:
        """End the thread after the pending requests."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._requests.put(None)
            thread.join()
        for namespace in list(self._spares):
            self.forget(namespace)

    def _run(self) -> None:
        if (home := self._home.descriptor) is None:
            home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        else:
            home = os.dup(home)
        try:
            while batch := self._next_batch():
                for request in batch:
                    _make(request)
                try:
                    namespaces.enter_namespace(home)
                except OSError:
                    return  # the next request starts another thread
                finally:
                    self._post(batch)
        finally:
            os.close(home)

    def _post(self, batch: list[_Request]) -> None:
        try:
            batch[0].loop.call_soon_threadsafe(self._deliver, batch)
        except RuntimeError:  # it is closed
            for request in batch:
                _close_all(request.sockets)

    def _next_batch(self) -> list[_Request]:
        """All pending requests; empty if the thread is to end. They are delivered together: switching between
        this thread and the waiters would cost more than the sockets."""
        batch: list[_Request] = []
        while not batch or not self._requests.empty():
            request = self._requests.get()
            if request is None:
                if batch:
                    self._requests.put(None)  # after these
                break
            batch.append(request)
        return batch


def _make(request: _Request) -> None:
    try:
        descriptor = os.open(request.spares.namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            namespaces.enter_namespace(descriptor)
        finally:
            os.close(descriptor)
        for _ in range(request.count):
            request.sockets.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
    except OSError as error:
        request.error = error


def _close_all(sockets: list[socket.socket]) -> None:
    while sockets:
        sockets.pop().close()
