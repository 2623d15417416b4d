"""The allowlist of buyers: durable, the same at every server, beside what the setting names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from skerry.control.events.log import EventLog
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.provider.allowlist import BuyerAllowlist
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from tests.support.waiting import eventually

HOME, TOKEN = CloudId("key.home"), CloudId("token.deploy")


@asynccontextmanager
async def allowlist(
    store: Store, clock: ManualClock, named: Collection[str] = ()
) -> AsyncIterator[BuyerAllowlist]:
    one = BuyerAllowlist(store, EventLog(store, clock, EventSettings()), clock, named=named)
    running = asyncio.ensure_future(one.run())
    try:
        await one.ready()
        yield one
    finally:
        await cancel_and_wait([running])


async def test_a_key_is_known_once_it_was_added_at_every_server_and_after_a_restart() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with allowlist(store, clock) as one, allowlist(store, clock) as other:
        assert not one.is_known(HOME)
        added = await one.add(HOME, note="home", actor="ed")
        assert one.is_known(HOME)
        await eventually(lambda: other.is_known(HOME))
        assert await other.add(HOME, note="home", actor="ed") == added
        await other.remove(HOME, actor="ed")
        assert not other.is_known(HOME)
        await eventually(lambda: not one.is_known(HOME))
        await one.add(HOME, actor="ed")
        with pytest.raises(errors.NotFound, match="list buyers"):
            await one.remove("key.other", actor="ed")
        with pytest.raises(errors.Invalid):
            await one.add("no/name", actor="ed")
        kinds = [told.event.kind for told in await EventLog(store, clock, EventSettings()).list_after("0")]
        assert kinds == ["buyer.allowed", "buyer.removed", "buyer.allowed"]
    async with allowlist(store, clock) as again:
        assert again.is_known(HOME)
        assert [(buyer.id, buyer.note) for buyer in again.all()] == [(HOME, "")]
    await store.close()


async def test_accounts_are_known_unless_the_setting_names_somebody() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with allowlist(store, clock) as nobody, allowlist(store, clock, [HOME]) as somebody:
        assert (nobody.is_known(TOKEN), nobody.is_known(HOME)) == (True, False)
        assert (somebody.is_known(TOKEN), somebody.is_known(HOME)) == (False, True)
        with pytest.raises(errors.Conflict, match=r"market\.buyers"):
            await somebody.remove(HOME, actor="ed")
        await somebody.add(TOKEN, actor="ed")
        assert somebody.is_known(TOKEN)
        assert [(buyer.id, buyer.added_at is None) for buyer in somebody.all()] == [
            (HOME, True),
            (TOKEN, False),
        ]
    await store.close()
