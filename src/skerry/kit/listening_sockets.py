"""The listening sockets of this process, by name, so that the next process can go on with them.

A process has one set of them. Whoever binds a socket asks `adopt` first, which returns the one that an
earlier process handed over, and calls `register` for its own. `hold` duplicates all of them before the
listeners close: the kernel goes on queueing connections, which the next owner accepts, so no client is
refused meanwhile. `skerry.daemon.handover` passes them on. A name is an option with its value as it was
given, such as `--http 127.0.0.1:0`, by which the same settings find the same socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class ListeningSockets:
    """All listening sockets of one process. Used by the event loop's thread alone."""

    def __init__(self) -> None:
        self._own: dict[str, socket.socket] = {}
        self._inherited: dict[str, socket.socket] = {}
        self._connections: list[socket.socket] = []
        self._retirees: list[Callable[[], Sequence[asyncio.Future[None]]]] = []
        self.is_shared = False  # another process has them, too: who closes one must leave it working

    def register(self, name: str, sock: socket.socket) -> None:
        """`sock` is listened on; it may be closed at any time."""
        self._own = {key: own for key, own in self._own.items() if own.fileno() >= 0}
        self._own[name] = sock

    def adopt(
        self, name: str, address: Any = None, kind: socket.SocketKind = socket.SOCK_STREAM
    ) -> socket.socket | None:
        """The socket of that name from the process before, else the one with that address. It is registered,
        and belongs to the caller."""
        found = name if name in self._inherited else None
        if found is None and address is not None:
            found = next((key for key, sock in self._inherited.items() if _is_at(sock, address, kind)), None)
        if found is None:
            return None
        sock = self._inherited.pop(found)
        self.register(name, sock)
        return sock

    def inherit(
        self, sockets: Mapping[str, socket.socket], connections: Sequence[socket.socket] = ()
    ) -> None:
        """Offer `sockets`, which belong to this from now on, to those who bind next. `connections` had been
        accepted at some of them."""
        self.is_shared = True
        self._inherited.update(sockets)
        self._connections += connections

    def adopt_connections(self, port: int) -> list[socket.socket]:
        """The connections to that TCP port from the process before; they belong to the caller."""
        found = [sock for sock in self._connections if sock.getsockname()[1] == port]
        self._connections = [sock for sock in self._connections if sock not in found]
        return found

    def end_sharing(self) -> list[str]:
        """The process before does not need them any more. What nobody adopted is closed; the names."""
        self.is_shared = False
        dropped, self._inherited = self._inherited, {}
        for sock in (*dropped.values(), *self._connections):
            sock.close()
        self._connections.clear()
        return sorted(dropped)

    def when_retired(self, retire: Callable[[], Sequence[asyncio.Future[None]]]) -> Callable[[], None]:
        """Call `retire` when the listeners are about to be handed over: clients are to connect anew. It
        returns what is done when the requests that run are. Returns what undoes this."""
        self._retirees.append(retire)
        return lambda: self._retirees.remove(retire)

    def retire(self) -> list[asyncio.Future[None]]:
        """Have clients connect anew. What is returned is done when their present requests are."""
        return [answered for retire in list(self._retirees) for answered in retire()]

    def hold(self) -> dict[str, socket.socket]:
        """Duplicates of all sockets that are open, for the next owner."""
        self.is_shared = True
        held = {}
        for name, sock in self._own.items():
            with contextlib.suppress(OSError):  # it has just been closed
                held[name] = sock.dup()
        self._own.clear()
        return held


def _is_at(sock: socket.socket, address: Any, kind: socket.SocketKind) -> bool:
    """Whether `sock` is a socket of that kind at that HOST and PORT; a port of 0 is no address."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != kind:
        return False
    return bool(address[1]) and sock.getsockname()[:2] == tuple(address[:2])


_current = ListeningSockets()


def current() -> ListeningSockets:
    """Those of this process."""
    return _current
