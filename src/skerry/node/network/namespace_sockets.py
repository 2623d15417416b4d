"""Creates sockets in other network namespaces, with a thread for that.

A socket stays in the namespace that it was created in, so only creating it needs the thread, which enters the
namespace and leaves it; the rest of the process is not affected. Entering costs more than a socket: a few are
created at once, and kept for later requests. Sockets keep a namespace alive, so unused ones are closed
(`forget`) before it is removed. Idle, the thread is in the namespace of the bridge.
"""

from __future__ import annotations

import asyncio
import math
import os
import queue
import socket
import threading
from dataclasses import dataclass, field
from typing import Final

from skerry.node.kernel import namespaces
from skerry.node.network.bridge_namespace import OWN_NAMESPACE, BridgeNamespace

# Sockets per request, if none is kept: more if the last ones were used up soon.
_FEWEST: Final = 2
_MOST: Final = 16
_SOON_S: Final = 5.0


@dataclass(eq=False, slots=True)
class _Spares:
    """Unused sockets of one namespace."""

    namespace: str
    sockets: list[socket.socket] = field(default_factory=list)
    is_forgotten: bool = False
    is_coming: bool = False  # more are being created
    count: int = _FEWEST  # to create at once
    created_at: float = -math.inf

    def next_count(self, now: float) -> int:
        """How many to create now."""
        is_used_up_soon = now - self.created_at < _SOON_S
        self.created_at = now
        self.count = min(self.count * 2, _MOST) if is_used_up_soon else max(self.count // 2, _FEWEST)
        return self.count


@dataclass(eq=False, slots=True)
class _Request:
    """Sockets to create: one for `future`, and perhaps spares."""

    spares: _Spares
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[socket.socket]
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
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="namespace-sockets", daemon=True)
            self._thread.start()
        # Of concurrent requests, only the first creates spares.
        count = 1 if spares.is_coming else spares.next_count(loop.time())
        self._requests.put(_Request(spares, loop, future, count))
        spares.is_coming = True
        return future

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
                    _post(batch)
        finally:
            os.close(home)

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


def _post(batch: list[_Request]) -> None:
    try:
        batch[0].loop.call_soon_threadsafe(_deliver, batch)
    except RuntimeError:  # it is closed
        for request in batch:
            _close_all(request.sockets)


def _deliver(batch: list[_Request]) -> None:
    for request in batch:
        future, sockets = request.future, request.sockets
        if not future.done():  # else the caller was cancelled
            if sockets:
                future.set_result(sockets.pop())
            else:
                future.set_exception(request.error or OSError("no socket was made"))
        request.spares.is_coming = False
        if request.spares.is_forgotten:
            _close_all(sockets)
        else:
            request.spares.sockets.extend(sockets)


def _close_all(sockets: list[socket.socket]) -> None:
    while sockets:
        sockets.pop().close()
