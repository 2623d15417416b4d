"""The network namespace that the bridge of the containers is in.

That of this process, on a node that runs as root. A node of an ordinary user has one that belongs to the
holder of its user namespace (`skerry.node.rootless.holder`), while the process itself is in that of the
machine, which a thread cannot enter again: so work there is done in threads that end with it. Sockets stay
where they were created, and may be used in any thread.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from skerry.node.kernel import namespaces

T = TypeVar("T")


class BridgeNamespace:
    """The namespace open as `descriptor`, which belongs to the caller, or that of this process."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = descriptor
        self._here = threading.local()

    def run(self, work: Callable[[], T]) -> T:
        """Call `work` in the namespace, in this thread or in another one, and wait."""
        if self.descriptor is None or getattr(self._here, "is_inside", False):
            return work()
        return namespaces.in_own_thread(lambda: self._enter_and(work))

    def open_socket(self, family: socket.AddressFamily, kind: int, protocol: int = 0) -> socket.socket:
        """A socket there."""
        return self.run(lambda: socket.socket(family, kind, protocol))

    def _enter_and(self, work: Callable[[], T]) -> T:
        assert self.descriptor is not None
        namespaces.enter_namespace(self.descriptor)
        self._here.is_inside = True
        return work()


OWN_NAMESPACE = BridgeNamespace()
