"""Sockets in the network namespaces of others, made by a thread of their own.

A socket stays in the namespace that it was made in, so only making it needs the thread, which goes in and
comes back; the rest of the process never leaves its own. Going there costs more than a socket: a few are made
at once, and wait for those who ask next. Sockets keep a namespace alive, so those that wait are closed
(`forget`) before it is removed. Idle, the thread is at home.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
from dataclasses import dataclass, field
from typing import Final

from skerry.node.kernel import namespaces

_AT_ONCE: Final = 4  # sockets that are made for each that is asked for while none waits


@dataclass(eq=False, slots=True)
class _Spares:
    """Sockets of one namespace that wait to be asked for."""

    namespace: str
    sockets: list[socket.socket] = field(default_factory=list)
    is_forgotten: bool = False
    is_coming: bool = False  # more of them are being made


@dataclass(eq=False, slots=True)
class _Request:
    """Sockets that are to be made: one for `future`, and perhaps others that wait."""

    spares: _Spares
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[socket.socket]
    count: int
    made: list[socket.socket] = field(default_factory=list)
    error: OSError | None = None


class NamespaceSockets:
    """Makes sockets; the thread begins with the first and ends with `close`."""

    def __init__(self) -> None:
        self._spares: dict[str, _Spares] = {}
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, namespace: str) -> asyncio.Future[socket.socket]:
        """A TCP socket in the namespace that is mounted on the file `namespace`; it does not block. Raises
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
        # Of several who ask at once, only the first has others made.
        self._requests.put(_Request(spares, loop, future, 1 if spares.is_coming else _AT_ONCE))
        spares.is_coming = True
        return future

    def forget(self, namespace: str) -> None:
        """Close what waits of a namespace that is about to be removed. Another may have its name later."""
        spares = self._spares.pop(namespace, None)
        if spares is not None:
            spares.is_forgotten = True
            _close_all(spares.sockets)

    def close(self) -> None:
        """The thread ends when what was asked for is done."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._requests.put(None)
            thread.join()
        for namespace in list(self._spares):
            self.forget(namespace)

    def _run(self) -> None:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while batch := self._next_batch():
                for request in batch:
                    _make(request)
                try:
                    namespaces.enter_namespace(home)
                except OSError:
                    return  # the next request begins another thread
                finally:
                    _hand_over(batch)
        finally:
            os.close(home)

    def _next_batch(self) -> list[_Request]:
        """All that is asked for; nothing if the thread is to end. It is handed over together: whoever waits
        for it would take turns with this thread, which costs more than the sockets."""
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
            request.made.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
    except OSError as error:
        request.error = error


def _hand_over(batch: list[_Request]) -> None:
    try:
        batch[0].loop.call_soon_threadsafe(_deliver, batch)
    except RuntimeError:  # it is closed
        for request in batch:
            _close_all(request.made)


def _deliver(batch: list[_Request]) -> None:
    for request in batch:
        future, made = request.future, request.made
        if not future.done():  # else whoever wanted it has gone
            if made:
                future.set_result(made.pop())
            else:
                future.set_exception(request.error or OSError("no socket was made"))
        request.spares.is_coming = False
        if request.spares.is_forgotten:
            _close_all(made)
        else:
            request.spares.sockets.extend(made)


def _close_all(sockets: list[socket.socket]) -> None:
    while sockets:
        sockets.pop().close()
