"""Somebody outside of Skerry who is told by each call and each copy of an instance that it runs.

A call says `call NAME` once and hangs up after the answer. A copy of an instance keeps its connection and
says `copy NAME` again and again, for as long as it lives. So runs are counted by who ran and copies by who is
alive, whatever Skerry says of them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

# What a call does, and what an instance runs, to be noticed.
FUNCTION = """
import socket
def handler(params):
    with socket.create_connection(params["witness"], timeout=20) as witness:
        witness.sendall(b"call %s\\n" % params["name"].encode())
        assert witness.recv(1), "the witness is gone"
    return params["name"]
"""
_SCRIPT = "while echo copy {name}; do sleep 0.2; done | nc {host} {port}"
# A copy that still speaks this long after the next one of the same name began is a second copy, and not a
# last word that was under way.
_OVERLAP_S = 2.0
# One that is silent for this long is dead, though its connection was never closed: its network went first.
_SILENCE_S = 3.0
_LONGEST_LINE = 4096


@dataclass(eq=False)
class _Caller:
    connection: socket.socket
    name: str = ""  # of a copy; empty until it has said it
    began: float = field(default_factory=time.monotonic)
    heard: float = 0.0
    rest: bytes = b""


class Witness:
    """Listens in a thread of its own."""

    def __init__(self, host: str, overlap_s: float = _OVERLAP_S) -> None:
        self._overlap_s = overlap_s
        self.calls: Counter[str] = Counter()  # how often each call ran
        self.doubled: set[str] = set()  # instances of which two copies ran at once
        self._copies: dict[str, list[_Caller]] = {}  # the living, the oldest first
        self._listener = socket.create_server((host, 0), backlog=256)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="witness")
        self._thread.start()

    def program(self, name: str) -> list[str]:
        """The arguments of an instance of that name."""
        host, port = self.address
        return ["sh", "-c", _SCRIPT.format(name=name, host=host, port=port)]

    def copies(self, name: str) -> int:
        """How many of an instance are alive."""
        since = time.monotonic() - _SILENCE_S
        return sum(copy.heard > since for copy in tuple(self._copies.get(name, ())))

    def living(self) -> list[str]:
        """The names of all instances of which there is a copy."""
        return sorted(name for name in tuple(self._copies) if self.copies(name))

    def close(self) -> None:
        self._stop.close()
        self._thread.join()

    def _listen(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stopped:
                    self._end()
                    return
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ, _Caller(connection))
                else:
                    self._hear(key.data)

    def _hear(self, caller: _Caller) -> None:
        try:
            said = caller.connection.recv(65536)
        except OSError:
            said = b""
        if not said or len(caller.rest) > _LONGEST_LINE:
            self._forget(caller)
            return
        *lines, caller.rest = (caller.rest + said).split(b"\n")
        for line in lines:
            kind, _, name = line.decode(errors="replace").partition(" ")
            if kind == "call":
                self.calls[name] += 1
                with contextlib.suppress(OSError):
                    caller.connection.sendall(b"!")
            elif kind == "copy":
                self._hear_copy(caller, name)

    def _hear_copy(self, caller: _Caller, name: str) -> None:
        living = self._copies.setdefault(name, [])
        if not caller.name:
            caller.name = name
            living.append(caller)
        caller.heard = time.monotonic()
        if any(
            other.began > caller.began and other.began + self._overlap_s < caller.heard for other in living
        ):
            self.doubled.add(name)

    def _forget(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        caller.connection.close()
        if caller.name:
            self._copies[caller.name].remove(caller)

    def _end(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
