"""Pools of network namespaces, one for each network policy that is prepared, all of one subnet.

`skerry.node.network.network` takes from here, and creates new ones when the node's subnet changes.
`skerry.node.network.namespace_pool` is one pool.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.network import OPEN_POLICY, NetworkPolicy
from skerry.node.network.addresses import AddressAllocator
from skerry.node.network.bridge import Bridge
from skerry.node.network.namespace_pool import NamespacePool
from skerry.node.network.subnets import NodeSubnet


class NamespacePools:
    """Namespaces with addresses of `subnet`, except those that are `in_use`."""

    def __init__(
        self,
        subnet: NodeSubnet,
        in_use: Iterable[IPv4Address],
        links: Bridge,
        count: int,
        restrict: Callable[[IPv4Address, NetworkPolicy], Awaitable[None]],
    ) -> None:
        self._links = links
        self._count = count
        self._restrict = restrict
        self._addresses = AddressAllocator(subnet)
        for address in in_use:
            self._addresses.claim(address)
        self._pools: dict[NetworkPolicy, NamespacePool] = {}  # of each policy that was requested so far
        self._loops: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._pool_of(OPEN_POLICY)

    async def take(self, policy: NetworkPolicy) -> IPv4Address:
        """If no address is left, one is taken from the pool of another policy. Raises ResourcesExhausted,
        Unavailable."""
        try:
            return await self._pool_of(policy).take()
        except errors.ResourcesExhausted:
            for pool in list(self._pools.values()):
                with contextlib.suppress(errors.ResourcesExhausted):
                    return await pool.take()
            raise

    def put_back(self, address: IPv4Address, policy: NetworkPolicy) -> None:
        """Return one that was taken and not used."""
        self._pool_of(policy).put_back(address)

    async def remove(self, address: IPv4Address) -> None:
        """Remove one that was used, also one of a former subnet. Its address stays reserved until
        `release`."""
        await self._pool_of(OPEN_POLICY).remove(address)

    def release(self, address: IPv4Address) -> None:
        """The namespace of `address` is removed; the address may be reused."""
        self._pool_of(OPEN_POLICY).release(address)

    def start_filling(self, loops: asyncio.TaskGroup) -> None:
        """Keep namespaces ready, in tasks of `loops`."""
        self._loops = loops
        self._tasks = [loops.create_task(pool.run()) for pool in self._pools.values()]

    async def close(self) -> None:
        """Remove the pools, and what is being created."""
        self._loops = None
        await cancel_and_wait(self._tasks)
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    def _pool_of(self, policy: NetworkPolicy) -> NamespacePool:
        """Namespaces with `policy` already applied, but for its namespace: the first caller waits, the next
        do not."""
        policy = policy.shared
        if (pool := self._pools.get(policy)) is None:

            async def prepare(address: IPv4Address) -> None:
                await self._restrict(address, policy)

            pool = self._pools[policy] = NamespacePool(self._links, self._addresses, self._count, prepare)
            if self._loops is not None:
                self._tasks.append(self._loops.create_task(pool.run()))
        return pool
