"""Pools of network namespaces, one for each kind that is prepared, all of one subnet.

`skerry.node.network.network` takes from here, and creates new ones when the node's subnet changes.
`skerry.node.network.namespace_pool` is one pool.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address
from typing import Final, NamedTuple, Protocol

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.network import OPEN_POLICY, NetworkPolicy
from skerry.node.network.addresses import AddressAllocator
from skerry.node.network.bridge import Bridge
from skerry.node.network.namespace_pool import NamespacePool
from skerry.node.network.subnets import NodeSubnet

# Addresses that get the rules of a policy together with one that needs them now.
_AHEAD: Final = 128


class NamespaceKind(NamedTuple):
    """What namespaces of one pool have in common."""

    policy: NetworkPolicy  # already applied, but for its namespace
    with_users: bool  # owned by a user namespace, where the node has them


class RestrictAddress(Protocol):
    """`Firewall.restrict`."""

    async def __call__(
        self,
        address: IPv4Address,
        policy: NetworkPolicy,
        *,
        ahead: Callable[[], Sequence[IPv4Address]] = tuple,
    ) -> None: ...


class NamespacePools:
    """Namespaces with addresses of `subnet`, except those that are `in_use`."""

    def __init__(
        self,
        subnet: NodeSubnet,
        in_use: Iterable[IPv4Address],
        links: Bridge,
        count: int,
        restrict: RestrictAddress,
    ) -> None:
        self._links = links
        self._count = count
        self._restrict = restrict
        self._addresses = AddressAllocator(subnet)
        for address in in_use:
            self._addresses.claim(address)
        self._pools: dict[NamespaceKind, NamespacePool] = {}  # of each kind that was requested so far
        self._loops: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._any = self._pool_of(OPEN_POLICY)

    async def take(self, policy: NetworkPolicy, *, with_users: bool = True) -> IPv4Address:
        """If no address is left, that of a namespace in the pool of another kind is used. Raises
        ResourcesExhausted, Unavailable."""
        own = self._pool_of(policy, with_users=with_users)
        try:
            return await own.take()
        except errors.ResourcesExhausted:
            for kind, pool in list(self._pools.items()):
                if kind.with_users or not with_users:
                    with contextlib.suppress(errors.ResourcesExhausted):
                        return await pool.take()
                elif (address := pool.take_ready()) is not None:
                    await self.remove(address)
                    self.release(address)
                    return await own.take()
            raise

    def expect(self, policy: NetworkPolicy, count: int, *, with_users: bool) -> None:
        """So many may be taken at once: keep them ready, up to a limit."""
        self._pool_of(policy, with_users=with_users).expect(count)

    def put_back(self, address: IPv4Address, policy: NetworkPolicy, *, with_users: bool = True) -> None:
        """Return one that was taken and not used."""
        self._pool_of(policy, with_users=with_users).put_back(address)

    async def remove(self, address: IPv4Address) -> None:
        """Remove one that was used, also one of a former subnet. Its address stays reserved until
        `release`."""
        await self._any.remove(address)

    def release(self, address: IPv4Address) -> None:
        """The namespace of `address` is removed; the address may be reused."""
        self._any.release(address)

    def start_filling(self, loops: asyncio.TaskGroup) -> None:
        """Keep namespaces ready, in tasks of `loops`."""
        self._loops = loops
        self._tasks = [loops.create_task(pool.run()) for pool in self._pools.values()]

    async def close(self) -> None:
        """Remove the pools, and what is being created."""
        self._loops = None
        await cancel_and_wait(self._tasks)
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    def _pool_of(self, policy: NetworkPolicy, *, with_users: bool = True) -> NamespacePool:
        """The first caller of a kind waits, the next do not."""
        kind = NamespaceKind(policy.shared, with_users)
        if (pool := self._pools.get(kind)) is None:
            # Rules for single addresses: the next ones get them in the same transaction.
            has_rules = kind.policy != OPEN_POLICY

            def ahead() -> Sequence[IPv4Address]:
                return self._addresses.upcoming(_AHEAD, has_rules=True) if has_rules else ()

            async def prepare(address: IPv4Address) -> None:
                await self._restrict(address, kind.policy, ahead=ahead)

            pool = self._pools[kind] = NamespacePool(
                self._links, self._addresses, self._count, prepare, has_rules=has_rules, with_users=with_users
            )
            if self._loops is not None:
                self._tasks.append(self._loops.create_task(pool.run()))
        return pool
