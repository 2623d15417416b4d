"""From names to addresses for connections on behalf of strangers: what `reach` refuses is not connected to.

On aiohttp, so imported by `transport` with the first pull of that kind and not before. The addresses that
are judged are the ones that are then used: a name that means something else a moment later gains nothing.
"""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from skerry.node.images.reach import Reach


class GuardedResolver(AbstractResolver):
    """Asks as everybody does, and raises Refused for names that lead where nobody may be led."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        self._reach.check(host, port, [each["host"] for each in found])
        return found

    async def close(self) -> None:
        await self._inner.close()
