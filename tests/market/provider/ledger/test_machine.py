"""Two servers on one store against a small model of the market, at random: buyers, time, crashes.

The model knows nothing of accounts: it is a list of deals and a clock, and what is free is what no live deal
has. What must always hold is in the invariants: nothing is taken twice, everything adds up, what is listed is
what is offered, versions only go up, a contract keeps its bytes and its price, and buyers with keys that are
not on the list never have more, together or each, than they may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from skerry.kit.clock import ManualClock
from skerry.market.provider.ledger.records import ContractRecord
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import Hold, Partition, Price
from skerry.model.market_settings import MarketSettings
from skerry.store.local.memory import MemoryStore
from tests.market.markets import Market, flavor, outcome, resources
from tests.support.waiting import PATIENCE_S

T = TypeVar("T")

SETTINGS = MarketSettings(
    hold_s=10.0,
    contract_s=40.0,
    max_contract_s=200.0,
    notice_s=15.0,
    max_holds=1000,
    sign_s=20.0,
    open_s=30.0,
    unknown_buyers="buy",
    unknown_percent=50,
    unknown_cpu=3,
    unknown_memory=3000,
    unknown_contract_s=60.0,
    unknown_holds=2,
    unknown_total_holds=3,
)
HOUR = 3600
FLAVORS = [OfferId("f"), OfferId("g")]
BUYERS = [CloudId("ann"), CloudId("bob")]
STRANGERS = [CloudId("key.eve"), CloudId("key.mal"), CloudId("key.sue")]
SIZE = 8
SHARE = SIZE * SETTINGS.unknown_percent // 100
LEAST = 2  # cores of a part, so that a rest of one is too little

servers = st.sampled_from([0, 1])
buyers = st.sampled_from(BUYERS)
thieves = st.sampled_from([False, False, False, True])


@dataclass
class Deal:
    """A hold, and the contract that it became."""

    flavor: OfferId
    buyer: CloudId
    cpu: int
    price: Decimal
    made_at: float
    hold_until: float
    is_cancelled: bool = False
    document: bytes = b""
    until: float = 0.0  # of the contract
    is_released: bool = False
    bought_at: float = 0.0
    terms_at: float = 0.0  # bought, or last renewed
    is_signed: bool = False
    signed_until: float = 0.0
    is_opened: bool = False

    @property
    def is_unknown(self) -> bool:
        return self.buyer in STRANGERS

    def is_taken(self, now: float) -> bool:
        return self.is_held(now) or self.is_sold(now)

    def is_held(self, now: float) -> bool:
        return not self.is_cancelled and not self.document and now < self.hold_until

    def is_sold(self, now: float) -> bool:
        return bool(self.document) and not self.is_released and now < self.until


@dataclass
class Model:
    """The market in the plainest words."""

    size: dict[OfferId, int] = field(default_factory=dict)
    price: dict[OfferId, Decimal] = field(default_factory=dict)
    withdrawn: dict[OfferId, bool] = field(default_factory=dict)  # and whether it is reclaimed
    deals: dict[HoldId, Deal] = field(default_factory=dict)

    def taken(self, id: OfferId, now: float) -> tuple[int, int]:
        mine = [deal for deal in self.deals.values() if deal.flavor == id]
        held = sum(deal.cpu for deal in mine if deal.is_held(now))
        return held, sum(deal.cpu for deal in mine if deal.is_sold(now))

    def free(self, id: OfferId, now: float) -> int:
        """A flavor that was made smaller than what is taken of it has nothing free, and no less."""
        return max(0, self.size[id] - sum(self.taken(id, now)))

    def may_reserve(self, id: OfferId, cpu: int, now: float) -> type[Exception] | None:
        if id not in self.size:
            return errors.NotFound
        if id in self.withdrawn:
            return errors.Expired
        rest = self.free(id, now) - cpu
        if rest < 0:
            return errors.ResourcesExhausted
        return errors.Unprocessable if cpu < LEAST or 0 < rest < LEAST else None

    def strangers(self, now: float, buyer: CloudId | None = None, id: OfferId | None = None) -> int:
        """Cores that strangers have: one of them or all, of one flavor or of all."""
        return sum(
            deal.cpu
            for deal in self.deals.values()
            if deal.is_unknown and deal.is_taken(now)
            if buyer in (None, deal.buyer) and id in (None, deal.flavor)
        )

    def made(self, now: float) -> list[CloudId]:
        """Who of the strangers made a hold within the hour, whatever became of it."""
        return [deal.buyer for deal in self.deals.values() if deal.is_unknown and now - deal.made_at < HOUR]

    def may_reserve_as_stranger(
        self, buyer: CloudId, id: OfferId, cpu: int, now: float
    ) -> type[Exception] | None:
        made = self.made(now)
        if made.count(buyer) >= SETTINGS.unknown_holds or len(made) >= SETTINGS.unknown_total_holds:
            return errors.Overloaded
        if refusal := self.may_reserve(id, cpu, now):
            return refusal
        if self.strangers(now, buyer=buyer) + cpu > SETTINGS.unknown_cpu:
            return errors.Unprocessable
        capacity = max(self.size[id], sum(self.taken(id, now)))
        if (self.strangers(now, id=id) + cpu) * 100 > capacity * SETTINGS.unknown_percent:
            return errors.ResourcesExhausted
        return None


class Machine(RuleBasedStateMachine):
    """Rules that do the same to the ledger, at either server, and to the model."""

    holds: Bundle[HoldId] = Bundle("holds")
    contracts: Bundle[tuple[HoldId, ContractId]] = Bundle("contracts")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.model = Model()
        self.markets: list[Market] = []
        self.versions: dict[OfferId, int] = {}
        self.starts = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    def teardown(self) -> None:
        for one in self.markets:
            self.run(one.stop())
        self.run(self.store.close())
        self.loop.close()

    async def open(self) -> Market:
        self.starts += 1
        one = Market(self.store, self.clock, SETTINGS, prefix=f"hold-{self.starts}")
        await one.start()
        return one

    @initialize()
    def start(self) -> None:
        self.markets = [self.run(self.open()), self.run(self.open())]
        self.publish(0, FLAVORS[0], "0.80")

    @property
    def now(self) -> float:
        return round(self.clock.now(), 3)  # as the ledger counts

    def buyer_of(self, hold: HoldId, is_thief: bool = False) -> CloudId:
        """Whose hold it is, or somebody else."""
        deal = self.model.deals.get(hold)
        if deal is None:
            return BUYERS[0]
        return next(buyer for buyer in [*BUYERS, *STRANGERS] if (buyer != deal.buyer) is is_thief)

    @rule(server=servers, id=st.sampled_from(FLAVORS), amount=st.sampled_from(["0.80", "0.07"]))
    def publish(self, server: int, id: OfferId, amount: str) -> None:
        offer = flavor(
            id=id,
            price=Price(Decimal(amount), "EUR", "PT1H"),
            partition=Partition(resources(LEAST, LEAST * 1000), resources(1, 1000)),
        )
        found = self.run(outcome(self.markets[server].ledger.publish(offer, actor="ed")))
        if id in self.model.size and id not in self.model.withdrawn:
            is_same = self.model.price[id] == Decimal(amount) and self.model.size[id] == SIZE
            assert is_same or found is errors.AlreadyExists
            return
        assert found.flavor.id == id
        self.model.size[id] = SIZE
        self.model.price[id] = Decimal(amount)
        self.model.withdrawn.pop(id, None)

    @rule(server=servers, id=st.sampled_from(FLAVORS), cpu=st.integers(1, SIZE))
    def resize(self, server: int, id: OfferId, cpu: int) -> None:
        """Less of it, or more again, as the node has it."""
        work = self.markets[server].ledger.update(
            id, lambda f: f, actor="ed", capacity=resources(cpu, cpu * 1000)
        )
        found = self.run(outcome(work))
        if id not in self.model.size:
            assert found is errors.NotFound
        elif id in self.model.withdrawn:
            assert found is errors.Expired
        else:
            self.model.size[id] = cpu
            assert found.capacity.cpu == max(cpu, sum(self.model.taken(id, self.now))) * 1000

    @rule(server=servers, id=st.sampled_from(FLAVORS), amount=st.sampled_from(["0.80", "0.07", "3"]))
    def reprice(self, server: int, id: OfferId, amount: str) -> None:
        price = Price(Decimal(amount), "EUR", "PT1H")
        found = self.run(
            outcome(self.markets[server].ledger.update(id, lambda f: replace(f, price=price), actor="ed"))
        )
        if not isinstance(found, type):
            self.model.price[id] = Decimal(amount)

    @rule(server=servers, id=st.sampled_from(FLAVORS), reclaim=st.booleans())
    def withdraw(self, server: int, id: OfferId, reclaim: bool) -> None:
        found = self.run(outcome(self.markets[server].ledger.withdraw(id, actor="ed", reclaim=reclaim)))
        if id not in self.model.size:
            assert found is errors.NotFound
            return
        self.model.withdrawn[id] = reclaim or self.model.withdrawn.get(id, False)
        if self.model.withdrawn[id]:
            for deal in self.model.deals.values():
                if deal.flavor == id and deal.is_sold(self.now):
                    deal.until = min(deal.until, self.now + SETTINGS.notice_s)

    @rule(
        target=holds, server=servers, buyer=buyers, id=st.sampled_from(FLAVORS), cpu=st.integers(1, SIZE + 1)
    )
    def reserve(self, server: int, buyer: CloudId, id: OfferId, cpu: int) -> Any:
        found = self.run(outcome(self.markets[server].reserve(buyer, cpu, flavor=id)))
        return self.check_hold(buyer, id, cpu, self.model.may_reserve(id, cpu, self.now), found)

    @rule(
        target=holds,
        server=servers,
        buyer=st.sampled_from(STRANGERS),
        id=st.sampled_from(FLAVORS),
        cpu=st.integers(LEAST, SHARE + 1),
    )
    def reserve_as_stranger(self, server: int, buyer: CloudId, id: OfferId, cpu: int) -> Any:
        found = self.run(outcome(self.markets[server].reserve(buyer, cpu, flavor=id, wait_s=1.0)))
        refusal = self.model.may_reserve_as_stranger(buyer, id, cpu, self.now)
        return self.check_hold(buyer, id, cpu, refusal, found)

    def check_hold(
        self, buyer: CloudId, id: OfferId, cpu: int, refusal: type[Exception] | None, found: Any
    ) -> HoldId:
        if refusal is not None:
            assert found is refusal
            return HoldId("none")
        assert isinstance(found, Hold)
        price = self.model.price[id] * cpu / SIZE
        assert found.price.amount == price
        assert found.total == price * int(SETTINGS.contract_s) // Decimal("3.6e-6") * Decimal("1e-9")
        self.model.deals[found.id] = Deal(id, buyer, cpu, price, self.now, self.now + SETTINGS.hold_s)
        return found.id

    @rule(target=contracts, server=servers, hold=holds, is_thief=thieves)
    def purchase(self, server: int, hold: HoldId, is_thief: bool) -> Any:
        buyer = self.buyer_of(hold, is_thief)
        found = self.run(outcome(self.markets[server].ledger.purchase(hold, buyer)))
        return self.check_purchase(hold, buyer, found)

    @rule(target=contracts, hold=holds)
    def purchase_at_both_servers_at_once(self, hold: HoldId) -> Any:
        buyer = self.buyer_of(hold)

        async def both() -> list[Any]:
            return await asyncio.gather(*(outcome(one.ledger.purchase(hold, buyer)) for one in self.markets))

        first, second = self.run(both())
        assert first == second or first.document == second.document
        return self.check_purchase(hold, buyer, first)

    def check_purchase(self, hold: HoldId, buyer: CloudId, found: Any) -> tuple[HoldId, ContractId]:
        none = (hold, ContractId("none"))
        deal = self.model.deals.get(hold)
        if deal is None:
            assert found is errors.NotFound
        elif deal.buyer != buyer:
            assert found is errors.Forbidden
        elif deal.document:
            assert found.document == deal.document
            return hold, found.contract.id
        elif not deal.is_held(self.now):
            assert found is errors.Expired
        else:
            assert isinstance(found, ContractRecord)
            deal.document = found.document
            deal.bought_at = deal.terms_at = self.now
            deal.until = self.now + SETTINGS.contract_s
            if self.model.withdrawn.get(deal.flavor):
                deal.until = self.now + SETTINGS.notice_s
            assert found.contract.price.amount == deal.price
            assert found.contract.taken == resources(deal.cpu, deal.cpu * 1000)
            return hold, found.contract.id
        return none

    @rule(id=st.sampled_from(FLAVORS), cpu=st.integers(LEAST, SIZE))
    def reserve_at_both_servers_at_once(self, id: OfferId, cpu: int) -> None:
        async def both() -> list[Any]:
            pairs = zip(self.markets, BUYERS, strict=True)
            return await asyncio.gather(
                *(outcome(one.reserve(buyer, cpu, flavor=id)) for one, buyer in pairs)
            )

        for found in sorted(self.run(both()), key=lambda one: isinstance(one, type)):
            if isinstance(found, Hold):
                assert self.model.may_reserve(id, cpu, self.now) is None
                price = self.model.price[id] * cpu / SIZE
                until = self.now + SETTINGS.hold_s
                self.model.deals[found.id] = Deal(id, found.buyer, cpu, price, self.now, until)
            else:
                assert found is self.model.may_reserve(id, cpu, self.now)

    @rule(server=servers, hold=holds, is_thief=thieves)
    def cancel(self, server: int, hold: HoldId, is_thief: bool) -> None:
        buyer = self.buyer_of(hold, is_thief)
        found = self.run(outcome(self.markets[server].ledger.cancel(hold, buyer)))
        deal = self.model.deals.get(hold)
        if deal is None:
            assert found is errors.NotFound
        elif deal.buyer != buyer:
            assert found is errors.Forbidden
        elif deal.document:
            assert found is errors.Conflict
        elif deal.is_cancelled or deal.is_held(self.now):
            assert isinstance(found, Hold)
            deal.is_cancelled = True
        else:
            assert found is errors.Expired

    @rule(server=servers, contract=contracts, is_thief=thieves)
    def release(self, server: int, contract: tuple[HoldId, ContractId], is_thief: bool) -> None:
        buyer = self.buyer_of(contract[0], is_thief)
        found = self.run(outcome(self.markets[server].ledger.release(contract[1], buyer)))
        deal = self.model.deals.get(contract[0])
        if deal is None or contract[1] == "none":
            assert found is errors.NotFound
        elif deal.buyer != buyer:
            assert found is errors.Forbidden
        else:
            assert isinstance(found, ContractRecord)
            deal.is_released = deal.is_released or deal.is_sold(self.now)

    @rule(server=servers, contract=contracts, seconds=st.integers(1, 300))
    def renew(self, server: int, contract: tuple[HoldId, ContractId], seconds: int) -> None:
        deal = self.model.deals.get(contract[0])
        if deal is None or contract[1] == "none":
            return
        before = self.markets[server].ledger.contract(contract[1]).contract
        until = before.ends_at + seconds
        found = self.run(outcome(self.markets[server].ledger.renew(contract[1], deal.buyer, until)))
        if not deal.is_sold(self.now) or before.reclaim_at is not None or deal.flavor in self.model.withdrawn:
            assert found is errors.Expired
        elif until - before.starts_at > (
            SETTINGS.unknown_contract_s if deal.is_unknown else SETTINGS.max_contract_s
        ):
            assert found is errors.Unprocessable
        else:
            assert found.contract.ends_at == until
            deal.until = until
            deal.terms_at, deal.is_signed = self.now, False

    @rule(server=servers, contract=contracts)
    def sign(self, server: int, contract: tuple[HoldId, ContractId]) -> None:
        deal = self.model.deals.get(contract[0])
        if deal is None or contract[1] == "none":
            return
        ledger = self.markets[server].ledger
        sale = ledger.contract(contract[1])
        signed = b"mine:" + sale.current
        self.run(ledger.countersign(contract[1], deal.buyer, signed, over=sale.current))
        deal.is_signed, deal.signed_until = True, sale.contract.ends_at

    @rule(server=servers, contract=contracts)
    def come(self, server: int, contract: tuple[HoldId, ContractId]) -> None:
        deal = self.model.deals.get(contract[0])
        if deal is None or contract[1] == "none":
            return
        found = self.run(outcome(self.markets[server].ledger.mark_opened(contract[1])))
        if deal.is_sold(self.now):
            deal.is_opened = True
            assert found.opened_at is not None
        else:
            assert found is errors.Expired

    @rule(server=servers, contract=contracts, been_there_s=st.sampled_from([0, 20, 30, 1000]))
    def end_unused(self, server: int, contract: tuple[HoldId, ContractId], been_there_s: int) -> None:
        """By a server that could be reached for so long."""
        deal = self.model.deals.get(contract[0])
        if deal is None or contract[1] == "none":
            return
        since = self.now - been_there_s
        self.run(self.markets[server].ledger.end_unused(contract[1], since=since))
        is_unsigned = deal.is_unknown and not deal.is_signed
        if not deal.is_sold(self.now):
            return
        if is_unsigned and self.now - max(deal.terms_at, since) >= SETTINGS.sign_s:
            deal.until = min(deal.until, max(self.now, deal.signed_until))
        elif not deal.is_opened and self.now - max(deal.bought_at, since) >= SETTINGS.open_s:
            deal.until = self.now

    @rule(seconds=st.sampled_from([0.001, 1, 5, 9.999, 15, 40, 1800]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(server=servers)
    def sweep(self, server: int) -> None:
        self.run(self.markets[server].ledger.sweep())

    @rule(server=servers)
    def crash(self, server: int) -> None:
        """All that this server has in memory is gone."""
        self.run(self.markets[server].stop())
        self.markets[server] = self.run(self.open())

    @invariant()
    def everything_adds_up_at_every_server(self) -> None:
        for one in self.markets:
            self.run(self.caught_up(one))
            assert one.ledger.audit() == {}
            for id in self.model.size:
                account = one.ledger.flavor(id)
                held, sold = self.model.taken(id, self.now)
                taken = (account.held.cpu // 1000, account.sold.cpu // 1000)
                assert taken == (held, sold)
                assert account.free + account.held + account.sold == account.capacity
                assert account.free.cpu // 1000 == self.model.free(id, self.now)

    @invariant()
    def strangers_have_no_more_than_they_may(self) -> None:
        for one in self.markets:
            theirs = [hold for hold in one.ledger.holds() if hold.is_unknown]
            made = [hold.buyer for hold in theirs if self.now - hold.created_at < HOUR]
            assert sorted(made) == sorted(self.model.made(self.now))
            assert len(made) <= SETTINGS.unknown_total_holds
            for buyer in STRANGERS:
                assert made.count(buyer) <= SETTINGS.unknown_holds
                assert self.model.strangers(self.now, buyer=buyer) <= SETTINGS.unknown_cpu
        for id in self.model.size:
            assert self.model.strangers(self.now, id=id) <= SHARE

    @invariant()
    def what_is_listed_is_what_is_offered(self) -> None:
        for one in self.markets:
            listed = {account.flavor.id for account in one.ledger.flavors()}
            assert listed == self.model.size.keys() - self.model.withdrawn.keys()

    @invariant()
    def versions_only_go_up(self) -> None:
        for one in self.markets:
            for account in one.ledger.flavors():
                before = self.versions.get(account.flavor.id, 0)
                assert account.flavor.version >= before
                self.versions[account.flavor.id] = account.flavor.version

    async def caught_up(self, one: Market) -> None:
        newest = await self.store.revision()
        await one.ledger._cache._table.wait_for_revision(newest)


def test_two_servers_keep_the_books_of_the_model() -> None:
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )
