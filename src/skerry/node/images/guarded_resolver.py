"""From names to addresses for the connections of pulls: what `registry_policy` refuses is not connected to.

On aiohttp, so imported by `registry_http` with the first pull and not before. The addresses that are judged
are the ones that are then used: a name that means something else a moment later gains nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from skerry.node.images.registry_policy import RegistryPolicy


class GuardedResolver(AbstractResolver):
    """Asks as everybody does, and raises FailedPrecondition for names that lead where nobody may be led.

    `seen` is told the addresses of every name before they are used.
    """

    def __init__(self, reach: RegistryPolicy | None, seen: Callable[[str, Iterable[str]], None]) -> None:
        self._reach = reach
        self._seen = seen
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        addresses = [each["host"] for each in found]
        if self._reach is not None:
            self._reach.check(host, port, addresses)
        self._seen(host, addresses)
        return found

    async def close(self) -> None:
        await self._inner.close()
