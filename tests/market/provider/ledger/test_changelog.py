"""Changes of flavors: a snapshot and then every change once, in order, or the word that some are missed."""

from __future__ import annotations

import asyncio

import pytest

from skerry.market.provider.ledger.cache import LedgerCache
from skerry.market.provider.ledger.changelog import OfferChangeLog, OfferWatcher
from skerry.model import errors
from skerry.model.ids import OfferId
from tests.market.markets import F, market


def versions(told: list[tuple[int, tuple[object, ...]]] | None) -> list[tuple[str, int]]:
    assert told is not None
    return [
        (changed.after.flavor.id, changed.after.flavor.version)  # type: ignore[attr-defined]  # Changed
        for _, batch in told
        for changed in batch
    ]


async def test_a_follower_gets_every_change_after_its_snapshot() -> None:
    async with market() as m:
        await m.publish()
        accounts, follower = m.ledger.changes.snapshot()
        assert [account.flavor.version for account in accounts] == [1]
        assert follower.take() == []
        hold = await m.reserve()
        await m.ledger.cancel(hold.id, hold.buyer)
        await m.ledger.withdraw(F, actor="ed", reason="repair")
        told = follower.take()
        assert versions(told) == [(F, 2), (F, 3), (F, 4)]
        assert told is not None
        last = told[-1][1][-1]
        assert last.before is not None
        assert last.before.withdrawn is None
        assert last.after is not None
        assert last.after.withdrawn is not None
        assert last.after.withdrawn.reason == "repair"


async def test_a_follower_that_waits_is_woken_by_a_change() -> None:
    async with market() as m:
        _, follower = m.ledger.changes.snapshot()
        waiter = asyncio.create_task(follower.wait())
        await asyncio.sleep(0)
        assert not waiter.done()
        await m.publish()
        await waiter
        assert versions(follower.take()) == [(F, 1)]
        assert follower.take() == []


async def test_who_comes_back_gets_all_that_it_missed_and_nothing_twice() -> None:
    async with market() as m:
        await m.publish()
        await m.reserve()
        _, follower = m.ledger.changes.snapshot()
        place = m.ledger.changes.revision
        await m.reserve()
        seen = m.ledger.changes.revision
        assert [revision for revision, _ in follower.take() or []] == [seen]
        await m.publish(id=OfferId("g"))
        assert versions(m.ledger.changes.resume(place).take()) == [(F, 3), ("g", seen + 1)]
        assert versions(m.ledger.changes.resume(seen).take()) == [("g", seen + 1)]
        assert m.ledger.changes.resume(m.ledger.changes.revision).take() == []


async def test_who_missed_more_than_is_kept_is_told_to_take_a_snapshot() -> None:
    async with market(history=2) as m:
        await m.publish()
        _, follower = m.ledger.changes.snapshot()
        place = m.ledger.changes.revision
        for _ in range(3):
            await m.reserve()
        await follower.wait()
        assert follower.take() is None
        with pytest.raises(errors.Compacted, match="take a new snapshot"):
            m.ledger.changes.resume(place)
        with pytest.raises(errors.Compacted):
            m.ledger.changes.resume(m.ledger.changes.revision + 1)


async def test_after_a_restart_a_place_is_good_if_nothing_was_missed() -> None:
    async with market() as m:
        await m.publish()
        early = m.ledger.changes.revision
        await m.reserve()
        place = m.ledger.changes.revision
        async with market(store=m.store, clock=m.clock, prefix="again") as again:
            with pytest.raises(errors.Compacted):
                again.ledger.changes.resume(early)
            follower = again.ledger.changes.resume(place)
            await again.reserve()
            assert versions(follower.take()) == [(F, 3)]


async def test_a_new_start_tells_every_follower() -> None:
    changes = OfferChangeLog(4, list)
    changes.start(7)
    followers: list[OfferWatcher] = [changes.snapshot()[1], changes.resume(7)]
    changes.start(9)
    for follower in followers:
        await follower.wait()
        assert follower.take() is None


async def test_changes_that_are_learnt_together_have_a_place_each() -> None:
    """Else who was told some of them, and resumes, would never hear of the others."""
    async with market() as m:
        changes = OfferChangeLog(4, list)
        cache = LedgerCache(m.store, m.events, changes, lambda touched: None)
        await cache._table._refresh()
        _, follower = changes.snapshot()
        await m.publish(id=OfferId("g"))
        await m.publish()
        await cache._table._refresh()  # as after an interruption of its watch
        told = follower.take()
        assert versions(told) == [("g", 1), (F, 2)]
        assert versions(changes.resume((told or [])[0][0]).take()) == [(F, 2)]
