"""A pool of network namespaces, created ahead of use, each with its address.

Addresses in the pool are no reserve: every request can use them, so the pool never withholds the last
addresses of a subnet. The pool is removed when the agent ends, and what a killed one left is removed by the
next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ipaddress import IPv4Address

import structlog

from skerry.kit import tasks
from skerry.kit.batching import Batcher
from skerry.node.network.addresses import AddressAllocator
from skerry.node.network.bridge import Bridge

log = structlog.get_logger(__name__)

# The next is created when the start that took one is over.
_PATIENCE_S = 0.1
_RETRY_S = 1.0
# In small batches, so that the first waiter does not wait for the last.
_MOST_AT_ONCE = 8
# One takes 140 KB of the kernel's memory, no process, and a millisecond and a half of processor time.
_MOST_EXPECTED = 64
_SURPLUS_S = 10.0  # after the last change, before those that nobody expects to need are removed


class NamespacePool:
    """Complete namespaces by address, on which `prepare` was called. `run` keeps `count` ready, and as many
    as are expected to be taken at once."""

    def __init__(
        self,
        links: Bridge,
        addresses: AddressAllocator,
        count: int,
        prepare: Callable[[IPv4Address], Awaitable[None]],
        *,
        has_rules: bool = False,
        with_users: bool = True,
    ) -> None:
        """`has_rules`: as in `AddressAllocator.allocate`; `with_users`: as in `Bridge.make`."""
        self._prepare = prepare
        self._has_rules = has_rules
        self._addresses = addresses
        self._count = self._target = count
        self._ready: deque[IPv4Address] = deque()
        self._making: set[asyncio.Task[None]] = set()
        make = links.make if with_users else partial(links.make, with_users=False)
        self._makes: Batcher[IPv4Address] = Batcher(make, most=_MOST_AT_ONCE)
        self._removals: Batcher[IPv4Address] = Batcher(links.remove)
        self._refill = asyncio.Event()
        self._refill.set()

    def expect(self, count: int) -> None:
        """So many may be taken at once."""
        target = max(self._count, min(count, _MOST_EXPECTED))
        if target != self._target:
            self._target = target
            self._refill.set()

    async def take(self) -> IPv4Address:
        """A complete one, which the caller owns now. Raises ResourcesExhausted, Unavailable."""
        while not self._ready:
            # Namespaces in progress may be for the pool, for another caller, or for one that was cancelled.
            # The first
            # waiter gets them, so there must be as many in progress as there are waiters.
            task = self._start_making()
            if task is not None:
                await asyncio.shield(task)
            elif self._making:
                await asyncio.wait(self._making, return_when=asyncio.FIRST_COMPLETED)
            else:
                self._addresses.allocate(has_rules=self._has_rules)  # raises ResourcesExhausted
        self._refill.set()
        return self._ready.popleft()

    def take_ready(self) -> IPv4Address | None:
        """One that is ready; None if there is none."""
        return self._ready.popleft() if self._ready else None

    def put_back(self, address: IPv4Address) -> None:
        """Return one that was taken and not used."""
        self._ready.appendleft(address)

    async def remove(self, address: IPv4Address) -> None:
        """Remove one that was used. Its address stays reserved until `release`."""
        await self._removals.do(address)

    def release(self, address: IPv4Address) -> None:
        """The namespace of `address` is removed; the address may be reused."""
        self._addresses.release(address)
        self._refill.set()

    async def run(self) -> None:
        """Fill the pool, for ever."""
        while True:
            try:
                async with asyncio.timeout(_SURPLUS_S if len(self._ready) > self._target else None):
                    await self._refill.wait()
            except TimeoutError:
                await self._remove_surplus()
                continue
            self._refill.clear()
            await asyncio.sleep(_PATIENCE_S)
            missing = self._target - len(self._ready) - len(self._making)
            making = [task for _ in range(missing) if (task := self._start_making()) is not None]
            if not making:
                continue
            await asyncio.wait(making)
            if failure := next((error for task in making if (error := task.exception())), None):
                log.warning("network.namespaces_not_made", error=str(failure))
                await asyncio.sleep(_RETRY_S)
                self._refill.set()

    async def _remove_surplus(self) -> None:
        surplus = [self._ready.popleft() for _ in range(len(self._ready) - self._target)]
        await tasks.run_to_completion(self._remove_all(surplus))

    async def _remove_all(self, addresses: Sequence[IPv4Address]) -> None:
        removals = (self._removals.do(address) for address in addresses)
        results = await asyncio.gather(*removals, return_exceptions=True)
        for address, error in zip(addresses, results, strict=True):
            if error is None:
                self._addresses.release(address)
            else:  # it stays reserved, and the next agent removes it
                log.warning("network.namespace_not_removed", address=str(address), error=str(error))

    async def close(self) -> None:
        """Remove the pool, and what is being created. `run` has ended."""
        await asyncio.gather(*self._making, return_exceptions=True)
        ready, self._ready = list(self._ready), deque()
        await asyncio.gather(*(self._removals.do(address) for address in ready))
        await self._removals.drain()

    def _start_making(self) -> asyncio.Task[None] | None:
        """Create one more for the pool; None if no address is free."""
        if self._addresses.free == 0:
            return None
        task = asyncio.create_task(self._make(self._addresses.allocate(has_rules=self._has_rules)))
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        return task

    async def _make(self, address: IPv4Address) -> None:
        try:
            await self._makes.do(address)
            try:
                await self._prepare(address)
            except BaseException:
                await self._removals.do(address)
                raise
        except BaseException:
            self._addresses.release(address)
            raise
        self._ready.append(address)
