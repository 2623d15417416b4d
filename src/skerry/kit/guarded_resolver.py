"""DNS resolver for connections to hosts that others name, which rejects addresses.

Uses aiohttp, so it is imported with the first connection. The addresses that are checked are the ones that
are used: a name that resolves differently a moment later gains nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver


class GuardedResolver(AbstractResolver):
    """Resolves names; `check` is called with host, port and all addresses before they are used, and raises if
    they are forbidden."""

    def __init__(self, check: Callable[[str, int, Sequence[str]], None]) -> None:
        self._check = check
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        self._check(host, port, [each["host"] for each in found])
        return found

    async def close(self) -> None:
        await self._inner.close()
