"""Servers that know of each other: who is there, and who is no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skerry.control.cluster.servers import PREFIX, ServerDirectory
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Put
from tests.support.waiting import eventually


@asynccontextmanager
async def server(store: MemoryStore, name: str, lease_s: int = 10) -> AsyncIterator[ServerDirectory]:
    made = ServerDirectory(store, name=f"http://{name}:80", address=f"{name}:81", lease_s=lease_s)
    running = asyncio.ensure_future(made.run())
    try:
        yield made
    finally:
        await cancel_and_wait([running])


async def test_know_of_each_other_until_they_stop(store: MemoryStore) -> None:
    async with server(store, "one") as one:
        async with server(store, "two") as two:
            for each in (one, two):
                await eventually(lambda each=each: each.addresses == ("one:81", "two:81"))
        await eventually(lambda: one.addresses == ("one:81",))


async def test_forget_one_that_died_when_its_lease_is_over(store: MemoryStore, clock: ManualClock) -> None:
    lease = await store.grant_lease(100)
    await store.commit([Put(f"{PREFIX}http://dead:80", b'{"grpc":"dead:81"}', lease)])
    async with server(store, "one", lease_s=3600) as one:
        await eventually(lambda: one.addresses == ("dead:81", "one:81"))
        clock.advance(101)
        await store.expire()
        await eventually(lambda: one.addresses == ("one:81",))


async def test_are_there_again_though_their_lease_was_lost(store: MemoryStore) -> None:
    async with server(store, "one", lease_s=1) as one:
        await eventually(lambda: one.addresses)
        (entry,) = (await store.range(PREFIX)).entries
        await store.revoke_lease(entry.lease)
        await eventually(lambda: not one.addresses)
        await eventually(lambda: one.addresses == ("one:81",))


async def test_tell_of_changes_and_of_nothing_else(store: MemoryStore) -> None:
    seen: list[tuple[str, ...]] = []
    async with server(store, "one") as one:
        await eventually(lambda: one.addresses)
        one.listen(lambda: seen.append(one.addresses))
        async with server(store, "one"):  # as after a restart: the same name and address
            await eventually(lambda: one.addresses)
            async with server(store, "two"):
                await eventually(lambda: seen)
    assert seen[0] == ("one:81", "two:81")
