"""Contracts that are bought and not taken up: not signed or not opened in time, they end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from skerry.market.provider.heartbeats import BuyerHeartbeats
from skerry.market.provider.ledger import activation_rules
from skerry.market.provider.ledger.records import ContractRecord
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId
from skerry.model.market import EndReason
from skerry.model.market_settings import MarketSettings
from tests.market.markets import ANN, F, Market, market, outcome
from tests.support.deals import CONTRACT, NOW

KEY = CloudId("key.home")
SETTINGS = MarketSettings(sign_s=100.0, open_s=300.0)
TIMES: dict[str, Any] = {"sign_s": 100.0, "open_s": 300.0, "is_known": lambda _: True}
BOUGHT = ContractRecord(replace(CONTRACT, starts_at=NOW, ends_at=NOW + 7200), b"document")


def visits_of(m: Market) -> BuyerHeartbeats:
    return BuyerHeartbeats(m.store, m.ledger, m.settings)


async def sign(m: Market, id: ContractId) -> ContractRecord:
    over = m.ledger.contract(id).current
    return await m.ledger.countersign(id, KEY, b"mine:" + over, over=over)


def end_of(sale: ContractRecord, now: float, since: float = 0.0) -> tuple[float, str] | None:
    return activation_rules.early_termination(sale, SETTINGS, since=since, now=now)


def test_a_contract_ends_when_it_was_not_signed_or_not_opened_in_time() -> None:
    assert end_of(BOUGHT, NOW + 99.9) is None
    assert end_of(BOUGHT, NOW + 100) == (NOW + 100, "its buyer did not sign it within 100 s")
    signed = replace(BOUGHT, countersigned=b"both", signed_until=NOW + 7200)
    assert end_of(signed, NOW + 299.9) is None
    assert end_of(signed, NOW + 300) == (NOW + 300, "its buyer did not open it within 300 s")
    assert end_of(replace(signed, opened_at=NOW + 1), NOW + 7000) is None


def test_a_renewal_that_is_not_signed_does_not_hold_and_what_was_signed_before_does() -> None:
    renewed = replace(
        BOUGHT, amended=b"longer", amended_at=NOW + 50, signed_until=NOW + 200, opened_at=NOW + 1
    )
    assert end_of(renewed, NOW + 149) is None
    assert end_of(renewed, NOW + 150) == (NOW + 200, "its buyer did not sign its renewal within 100 s")
    assert end_of(renewed, NOW + 250) == (NOW + 250, "its buyer did not sign its renewal within 100 s")


def test_a_renewal_that_is_not_signed_is_no_way_around_opening_the_contract() -> None:
    renewed = replace(BOUGHT, amended=b"longer", amended_at=NOW + 1, signed_until=NOW + 3600)
    assert end_of(renewed, NOW + 150) == (NOW + 3600, "its buyer did not sign its renewal within 100 s")
    assert end_of(renewed, NOW + 300) == (NOW + 300, "its buyer did not open it within 300 s")
    announced = replace(renewed, contract=replace(renewed.contract, reclaim_at=NOW + 3600))
    assert end_of(announced, NOW + 300) == (NOW + 300, "its buyer did not open it within 300 s")


def test_time_in_which_the_provider_could_not_be_reached_does_not_count() -> None:
    assert end_of(BOUGHT, NOW + 5000, since=NOW + 4901) is None
    assert end_of(BOUGHT, NOW + 5001, since=NOW + 4901) is not None


def test_who_has_no_key_cannot_sign_and_need_not() -> None:
    of_account = replace(BOUGHT, contract=replace(BOUGHT.contract, buyer=ANN))
    assert end_of(of_account, NOW + 299) is None
    assert end_of(of_account, NOW + 300) == (NOW + 300, "its buyer did not open it within 300 s")


def test_what_ends_sooner_anyway_ends_as_was_said() -> None:
    reclaimed = replace(BOUGHT, contract=replace(BOUGHT.contract, reclaim_at=NOW + 120, reason="needed here"))
    assert end_of(reclaimed, NOW + 119) is not None
    assert end_of(reclaimed, NOW + 120) is None
    ended = replace(BOUGHT, contract=replace(BOUGHT.contract, ended_at=NOW + 10, ending=EndReason.RELEASED))
    assert end_of(ended, NOW + 500) is None


async def test_a_contract_that_nobody_signs_ends_and_its_buyer_is_told_why() -> None:
    async with market(**TIMES) as m:
        await m.publish()
        id = (await m.buy(KEY, cpu=3)).contract.id
        visits = visits_of(m)
        await visits.check()
        m.clock.advance(99.9)
        await visits.check()
        assert m.split() == (5, 0, 3)
        m.clock.advance(0.1)
        await visits.check()
        ended = m.ledger.contract(id).contract
        assert (ended.ending, ended.reason) == (EndReason.WITHDRAWN, "its buyer did not sign it within 100 s")
        assert m.split() == (8, 0, 0)
        assert (await m.kinds())[-2:] == ["contract.reclaimed", "contract.withdrawn"]


async def test_a_contract_that_nobody_opens_ends_and_its_room_is_offered_again() -> None:
    async with market(**TIMES) as m:
        await m.publish()
        signed, opened = (await m.buy(KEY, cpu=3)).contract.id, (await m.buy(KEY)).contract.id
        for id in (signed, opened):
            await sign(m, id)
        visits = visits_of(m)
        await visits.check()
        await visits.mark_connected(opened)
        m.clock.advance(300)
        _, follower = m.ledger.changes.snapshot()
        await visits.check()
        reason = m.ledger.contract(signed).contract.reason
        assert reason == "its buyer did not open it within 300 s"
        assert m.ledger.contract(opened).contract.ending is None
        assert m.split() == (7, 0, 1)
        told = follower.take()
        assert told is not None
        [(_, [change])] = told
        assert change.after is not None
        assert (change.after.flavor.id, change.after.free.cpu) == (F, 7000)
        with pytest.raises(errors.Expired, match="did not open it"):
            await m.ledger.mark_opened(signed)


async def test_after_a_restart_the_buyer_has_the_whole_time_again() -> None:
    async with market(**TIMES) as m:
        await m.publish()
        id = (await m.buy(KEY)).contract.id
        await visits_of(m).check()
        m.clock.advance(1000)
        async with market(store=m.store, clock=m.clock, prefix="b", **TIMES) as again:
            visits = visits_of(again)
            await visits.check()
            again.clock.advance(99)
            await visits.check()
            assert again.ledger.contract(id).contract.ending is None
            again.clock.advance(1)
            await visits.check()
            assert again.ledger.contract(id).contract.ending is EndReason.WITHDRAWN


async def test_a_renewal_that_is_not_signed_ends_with_what_was_signed() -> None:
    async with market(**TIMES) as m:
        await m.publish()
        sale = await m.buy(KEY, duration_s=1000.0)
        id, until = sale.contract.id, sale.contract.ends_at
        visits = visits_of(m)
        await visits.check()
        await visits.mark_connected(id)
        await sign(m, id)
        await m.ledger.renew(id, KEY, until + 5000)
        m.clock.advance(100)
        await visits.check()
        told = m.ledger.contract(id).contract
        assert (told.ending, told.reclaim_at) == (None, until)
        assert told.reason == "its buyer did not sign its renewal within 100 s"
        await m.pass_time(until - m.clock.now())
        assert m.split() == (8, 0, 0)


async def test_who_signs_at_the_last_moment_keeps_the_contract() -> None:
    """The server that leads may not have heard of it when it looks."""
    async with market(**TIMES) as m:
        await m.publish()
        id = (await m.buy(KEY)).contract.id
        await m.ledger.mark_opened(id)
        m.clock.advance(1000)
        await sign(m, id)
        assert (await m.ledger.end_unused(id, since=0.0)).contract.ending is None
        assert await outcome(m.ledger.end_unused(ContractId("none"), since=0.0)) is errors.NotFound


async def test_who_comes_once_and_not_again_is_gone_after_the_time_for_silence() -> None:
    async with market(**TIMES, buyer_silence_s=400.0) as m:
        await m.publish()
        id = (await m.buy(KEY)).contract.id
        await sign(m, id)
        visits = visits_of(m)
        await visits.check()
        await visits.mark_connected(id)  # to a cell that is not there yet
        m.clock.advance(399)
        await visits.check()
        assert m.ledger.contract(id).contract.ending is None
        m.clock.advance(1)
        await visits.check()
        assert m.ledger.contract(id).contract.reason == "its buyer was not connected for 400 s"
