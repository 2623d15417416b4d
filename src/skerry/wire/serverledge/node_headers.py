"""Headers about the node in every response to a call, for Serverledge's load balancer.

They are measured from time to time and not for every call; one of them has the time. Free memory includes
that of idle workers, which are evicted for a call: the load balancer skips a node that seems full.
"""

from __future__ import annotations

from typing import Final

from skerry.kit.clock import Clock
from skerry.node import host
from skerry.wire.serverledge.ports import InvocationService

FRESH_S: Final = 0.1

ExtraHeaders = tuple[tuple[bytes, bytes], ...]


class NodeHeaders:
    """The headers of one node; `node` is its name, as reports have it."""

    def __init__(self, invoker: InvocationService, clock: Clock, node: str) -> None:
        self._invoker = invoker
        self._clock = clock
        self._fixed: ExtraHeaders = (
            (b"serverledge-node-name", node.encode()),
            (b"serverledge-node-arch", host.architecture().encode()),
        )
        self._headers: ExtraHeaders = ()
        self._measured_at = float("-inf")

    def headers(self) -> ExtraHeaders:
        now = self._clock.monotonic()
        if now - self._measured_at >= FRESH_S:
            self._headers = self._measure()
            self._measured_at = now
        return self._headers

    def _measure(self) -> ExtraHeaders:
        pool = self._invoker.status()
        return (
            *self._fixed,
            (b"serverledge-free-mem", str(pool.available_memory_mb).encode()),
            (b"serverledge-free-cpu", f"{pool.total_cpus - pool.used_cpus:.6f}".encode()),
            (b"serverledge-timestamp", str(int(self._clock.now())).encode()),
        )
