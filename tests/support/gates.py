"""A gate that calls in workers stop at until a test lets them through: who runs is known, not guessed."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterator

from tests.support.skerry import Skerry

# In a function: waits at the gate of `params["gate"]` with `params["name"]` until it is let through.
WAIT = """
import socket
def wait_at(params):
    with socket.create_connection(params["gate"], timeout=60) as gate:
        gate.sendall(params["name"].encode() + b"\\n")
        assert gate.recv(1), "nobody opens it any more"
"""


class Gate:
    """Listens where the workers of a node reach it: at the node's own address in their network."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.place = listener.getsockname()
        self._waiting: dict[str, socket.socket] = {}

    def params(self, name: str) -> dict[str, object]:
        return {"gate": self.place, "name": name}

    def wait_for(self, *names: str) -> None:
        """Until calls of these names are there."""
        while not set(names) <= self._waiting.keys():
            if not _is_readable(self._listener):
                raise AssertionError(f"only {sorted(self._waiting)} came, of {names}")
            one, _ = self._listener.accept()
            with one.makefile("rb") as said:
                self._waiting[said.readline().decode().strip()] = one

    def open(self, name: str) -> None:
        """Let a call through that is there."""
        with self._waiting.pop(name) as one:
            one.sendall(b"!")

    def close(self) -> None:
        for one in self._waiting.values():
            one.close()
        self._listener.close()


def _is_readable(one: socket.socket) -> bool:
    with selectors.DefaultSelector() as waiting:
        waiting.register(one, selectors.EVENT_READ)
        return bool(waiting.select(30))


@contextlib.contextmanager
def gate_of(skerry: Skerry) -> Iterator[Gate]:
    gate = Gate(socket.create_server((skerry.subnet.replace("0/24", "1"), 0)))
    try:
        yield gate
    finally:
        gate.close()
