"""Sockets in the network namespaces of others, made by a thread of their own.

A socket stays in the namespace that it was made in, so only making it needs the thread, which goes in and
comes back; the rest of the process never leaves its own. Idle, the thread is at home and keeps no namespace
alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import threading
from typing import NamedTuple

from skerry.node.kernel import namespaces


class _Request(NamedTuple):
    namespace: str
    loop: asyncio.AbstractEventLoop
    made: asyncio.Future[socket.socket]


class NamespaceSockets:
    """Makes sockets; the thread begins with the first and ends with `close`."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, namespace: str) -> asyncio.Future[socket.socket]:
        """A TCP socket in the namespace that is mounted on the file `namespace`; it does not block. Raises
        OSError."""
        loop = asyncio.get_running_loop()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="namespace-sockets", daemon=True)
            self._thread.start()
        made: asyncio.Future[socket.socket] = loop.create_future()
        self._requests.put(_Request(namespace, loop, made))
        return made

    def close(self) -> None:
        """The thread ends when what was asked for is done."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._requests.put(None)
            thread.join()

    def _run(self) -> None:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while (request := self._requests.get()) is not None:
                try:
                    made: socket.socket | OSError = _make(request.namespace)
                except OSError as error:
                    made = error
                is_home = True
                try:
                    namespaces.enter_namespace(home)
                except OSError as error:
                    _discard(made)
                    made, is_home = error, False
                try:
                    request.loop.call_soon_threadsafe(_deliver, request.made, made)
                except RuntimeError:  # the loop is closed
                    _discard(made)
                if not is_home:
                    return  # the next request begins another thread
        finally:
            os.close(home)


def _make(namespace: str) -> socket.socket:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.enter_namespace(descriptor)
    finally:
        os.close(descriptor)
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def _deliver(future: asyncio.Future[socket.socket], made: socket.socket | OSError) -> None:
    if future.done():  # whoever wanted it has gone
        _discard(made)
    elif isinstance(made, OSError):
        future.set_exception(made)
    else:
        future.set_result(made)


def _discard(made: socket.socket | OSError) -> None:
    if isinstance(made, socket.socket):
        with contextlib.suppress(OSError):
            made.close()
