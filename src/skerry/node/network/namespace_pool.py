"""Network namespaces made ahead of time, each with its address: whoever needs one need not wait for it.

The addresses of those that wait belong to nobody yet, but are no reserve: whoever asks gets one of them, so
the pool never keeps the last addresses of a subnet from anybody. What waits goes when the agent ends, and
what a killed one left is removed by the next: nobody was ever told of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address

import structlog

from skerry.kit.batching import Batcher
from skerry.node.network.addresses import AddressAllocator
from skerry.node.network.bridge import Bridge

log = structlog.get_logger(__name__)

# Whoever took one is busy with it now; the next is made when that is over.
_PATIENCE_S = 0.1
_RETRY_S = 1.0
# So that the first of many who wait has not to wait for the last.
_MOST_AT_ONCE = 8


class NamespacePool:
    """Whole namespaces by their addresses, which `prepare` was called with. `run` keeps `count` ready."""

    def __init__(
        self,
        links: Bridge,
        addresses: AddressAllocator,
        count: int,
        prepare: Callable[[IPv4Address], Awaitable[None]],
    ) -> None:
        self._links = links
        self._prepare = prepare
        self._addresses = addresses
        self._count = count
        self._ready: deque[IPv4Address] = deque()
        self._making: set[asyncio.Task[None]] = set()
        self._makes: Batcher[IPv4Address] = Batcher(links.make, most=_MOST_AT_ONCE)
        self._removals: Batcher[IPv4Address] = Batcher(links.remove)
        self._wanted = asyncio.Event()
        self._wanted.set()

    async def take(self) -> IPv4Address:
        """One that is whole, and the caller's now. Raises ResourcesExhausted, Unavailable."""
        while not self._ready:
            # What is under way may be meant for the pool, for another, or for one who has gone meanwhile.
            # Whoever comes first gets it, so there must be as many under way as there are who wait.
            task = self._start_making()
            if task is not None:
                await asyncio.shield(task)
            elif self._making:
                await asyncio.wait(self._making, return_when=asyncio.FIRST_COMPLETED)
            else:
                self._addresses.take()  # raises ResourcesExhausted
        self._wanted.set()
        return self._ready.popleft()

    def put_back(self, address: IPv4Address) -> None:
        """For one that was taken and not used."""
        self._ready.appendleft(address)

    async def remove(self, address: IPv4Address) -> None:
        """Take away one that was used. Its address is kept from others until it is given back."""
        await self._removals.do(address)

    def give_back(self, address: IPv4Address) -> None:
        """The namespace of `address` is gone; another may have the address."""
        self._addresses.give_back(address)
        self._wanted.set()

    async def run(self) -> None:
        """Make what is missing, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await asyncio.sleep(_PATIENCE_S)
            missing = self._count - len(self._ready) - len(self._making)
            tasks = [task for _ in range(missing) if (task := self._start_making()) is not None]
            if not tasks:
                continue
            await asyncio.wait(tasks)
            if failure := next((error for task in tasks if (error := task.exception())), None):
                log.warning("network.namespaces_not_made", error=str(failure))
                await asyncio.sleep(_RETRY_S)
                self._wanted.set()

    async def close(self) -> None:
        """Remove what waits, and what is being made. `run` has ended."""
        await asyncio.gather(*self._making, return_exceptions=True)
        left, self._ready = list(self._ready), deque()
        await asyncio.gather(*(self._removals.do(address) for address in left))
        await self._removals.drain()

    def _start_making(self) -> asyncio.Task[None] | None:
        """One more for the pool; None if no address is free."""
        if self._addresses.free == 0:
            return None
        task = asyncio.create_task(self._make(self._addresses.take()))
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
            self._addresses.give_back(address)
            raise
        self._ready.append(address)
