"""DNS resolver for the connections of pulls, which rejects addresses by `registry_policy`.

Uses aiohttp, so `registry_http` imports it with the first pull. The addresses that are checked are the ones
that are used: a name that resolves differently a moment later gains nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from skerry.node.images.registry_policy import RegistryPolicy


class GuardedResolver(AbstractResolver):
    """Resolves names, and raises FailedPrecondition for addresses that the policy forbids.

    `on_resolved` is called with the addresses of every name before they are used.
    """

    def __init__(
        self, policy: RegistryPolicy | None, on_resolved: Callable[[str, Iterable[str]], None]
    ) -> None:
        self._policy = policy
        self._on_resolved = on_resolved
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        addresses = [each["host"] for each in found]
        if self._policy is not None:
            self._policy.check(host, port, addresses)
        self._on_resolved(host, addresses)
        return found

    async def close(self) -> None:
        await self._inner.close()
