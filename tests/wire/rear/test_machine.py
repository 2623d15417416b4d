"""The same deals at random in each dialect, over HTTP, against a small model of the market.

Three markets live through the same: one is spoken to as the document has it, the others in versions 1 and 2.
The model is a list of deals and a clock, and what is free is what no live deal has. All three must say what
the model says, after each step: nothing is taken twice, a hold can be bought until its deadline and not at
it, a purchase is always the same bytes, parts and counts are within the policy, prices are exact and fixed
when the hold is made, and listed is what is offered and matches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

import structlog
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from skerry.kit.clock import ManualClock
from skerry.market.terms import signatures
from skerry.market.terms.keys import SigningKey
from skerry.model.ids import ContractId, OfferId
from skerry.model.market_settings import MarketSettings
from tests.support.waiting import PATIENCE_S
from tests.transport.http.talking import Answer
from tests.wire.rear.worlds import CORE_MB, World

T = TypeVar("T")

SETTINGS = MarketSettings(hold_s=10.0, contract_s=40.0, max_contract_s=200.0, notice_s=15.0, max_holds=1000)
DIALECTS = ("document", "v1", "v2")
PARTS, WHOLE = "parts", "whole"
SIZE = {PARTS: 8, WHOLE: 12}  # cores; of the one that is sold whole, four times three
LEAST, ONE, MOST_COUNT = 2, 3, 3  # cores of a part, so that a rest of one is too little; of a whole; together

flavors = st.sampled_from([PARTS, WHOLE])
buyers = st.sampled_from(["ann", "bob"])


@dataclass
class Deal:
    """A hold, and the contract that it became."""

    flavor: str
    cpu: int
    price: Decimal
    hold_until: float
    ask: tuple[str, str, int, int, str]  # as it was reserved
    is_cancelled: bool = False
    bought: list[bytes] = field(default_factory=list)  # what each market answered
    contracts: list[str] = field(default_factory=list)
    until: float = 0.0  # of the contract
    is_released: bool = False

    def is_held(self, now: float) -> bool:
        return not self.is_cancelled and not self.bought and now < self.hold_until

    def is_sold(self, now: float) -> bool:
        return bool(self.bought) and not self.is_released and now < self.until


@dataclass
class Model:
    """The market in the plainest words."""

    price: dict[str, Decimal] = field(default_factory=dict)
    withdrawn: dict[str, bool] = field(default_factory=dict)  # and whether it is reclaimed
    deals: dict[str, Deal] = field(default_factory=dict)

    def free(self, id: str, now: float) -> int:
        live = (one for one in self.deals.values() if one.flavor == id)
        return SIZE[id] - sum(one.cpu for one in live if one.is_held(now) or one.is_sold(now))

    def reserve(self, id: str, cpu: int, count: int, now: float) -> int:
        """The status of the answer."""
        if id not in self.price:
            return 404
        if id in self.withdrawn:
            return 410
        if count > MOST_COUNT:
            return 422
        rest = self.free(id, now) - cpu * count
        if id == WHOLE:
            return 422 if cpu != ONE else 409 if rest < 0 else 200
        return 409 if rest < 0 else 422 if cpu < LEAST or 0 < rest < LEAST else 200

    def listed(self, least: int, most: int, now: float) -> dict[str, int]:
        """Flavors of which something can be had, and how much is shown of each."""
        shown = {id: self.free(id, now) for id in self.price if id not in self.withdrawn}
        there = {id: ONE if id == WHOLE else cpu for id, cpu in shown.items() if cpu >= _piece(id)}
        return {id: cpu for id, cpu in there.items() if least <= cpu <= most}


def _piece(id: str) -> int:
    return ONE if id == WHOLE else LEAST


class Machine(RuleBasedStateMachine):
    """Rules that do the same to all three markets and to the model."""

    key = SigningKey.generate()
    holds: Bundle[str] = Bundle("holds")
    bought: Bundle[str] = Bundle("bought")  # those of them that became contracts

    def __init__(self) -> None:
        super().__init__()
        self.loop = uvloop.new_event_loop()
        self.clock = ManualClock()
        self.model = Model()
        self.worlds = [World(name, self.key, self.clock, SETTINGS) for name in DIALECTS]
        self.versions: dict[str, int] = {}
        self.keys = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    def each(self, work: Callable[[World], Coroutine[Any, Any, T]]) -> list[T]:
        """The same in every market, at once."""

        async def all_of_them() -> list[T]:
            return await asyncio.gather(*(work(world) for world in self.worlds))

        return self.run(all_of_them())

    def ask(self, method: str, path: str, body: Any = None) -> list[Answer]:
        """The same request to every market, which answer alike."""
        answers = self.each(lambda world: world.ask(method, path, body))
        assert len({answer.status for answer in answers}) == 1, answers
        return answers

    def teardown(self) -> None:
        self.each(lambda world: world.end())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    @initialize()
    def start(self) -> None:
        self.each(lambda world: world.start())
        self.publish(PARTS, "0.80")
        self.publish(WHOLE, "0.07")

    @property
    def now(self) -> float:
        return round(self.clock.now(), 3)  # as the ledger counts

    @rule(id=flavors, amount=st.sampled_from(["0.80", "0.07"]))
    def publish(self, id: str, amount: str) -> None:
        body: dict[str, Any] = {
            "FlavorID": id,
            "Characteristics": {"Cpu": SIZE[PARTS], "Memory": SIZE[PARTS] * CORE_MB},
            "Price": {"Amount": amount, "Currency": "EUR", "Period": "PT1H"},
            "Policy": {"Aggregatable": {"MinCount": 1, "MaxCount": MOST_COUNT}},
        }
        if id == PARTS:
            least, step = LEAST * CORE_MB, CORE_MB
            parts = {"CpuMin": LEAST, "MemoryMin": least, "CpuStep": 1, "MemoryStep": step}
            body["Policy"]["Partitionable"] = parts
        else:
            body |= {"Count": SIZE[id] // ONE, "Characteristics": {"Cpu": ONE, "Memory": ONE * CORE_MB}}
        status = self.ask("POST", "/api/flavors", body)[0].status
        if id in self.model.price and id not in self.model.withdrawn:
            assert status == (201 if self.model.price[id] == Decimal(amount) else 409)
            return
        assert status == 201
        self.model.price[id] = Decimal(amount)
        self.model.withdrawn.pop(id, None)

    @rule(id=flavors, reclaim=st.booleans())
    def withdraw(self, id: str, reclaim: bool) -> None:
        status = self.ask("DELETE", f"/api/flavors/{id}?reclaim={str(reclaim).lower()}")[0].status
        assert status == (200 if id in self.model.price else 404)
        if status == 404:
            return
        self.model.withdrawn[id] = reclaim or self.model.withdrawn.get(id, False)
        if self.model.withdrawn[id]:
            for deal in self.model.deals.values():
                if deal.flavor == id and deal.is_sold(self.now):
                    deal.until = min(deal.until, self.now + SETTINGS.notice_s)

    @rule(
        target=holds,
        buyer=buyers,
        id=flavors,
        cpu=st.sampled_from([3, 2, 4, 7, 1, 8, 9]),
        count=st.sampled_from([1, 2, 3, 4]),
    )
    def reserve(self, buyer: str, id: str, cpu: int, count: int) -> Any:
        self.keys += 1
        ask = (buyer, id, cpu, count, f"key-{self.keys}")
        answers = self.each(lambda world: world.reserve(*ask))
        status = self.model.reserve(id, cpu, count, self.now)
        assert [answer[0] for answer in answers] == [status] * len(answers)
        if status != 200:
            return multiple()
        (hold,) = {answer[1] for answer in answers}  # they count alike
        size = ONE if id == WHOLE else SIZE[id]
        price = self.model.price[id] * cpu * count / size
        self.model.deals[hold] = Deal(id, cpu * count, price, self.now + SETTINGS.hold_s, ask)
        for shown in self.ask("GET", f"/api/reservations/{hold}"):
            assert Decimal(shown.json["Price"]["Amount"]) == price
            total = price * int(SETTINGS.contract_s) // Decimal("3.6e-6") * Decimal("1e-9")
            assert Decimal(shown.json["Total"]) == total
            assert shown.json["Partition"]["Cpu"] * shown.json["Partition"]["Count"] == cpu * count
        return hold

    @rule(hold=holds)
    def reserve_again(self, hold: str) -> None:
        """The same request is done once, whatever became of it; another one with its key is refused."""
        deal = self.model.deals[hold]
        assert self.each(lambda world: world.reserve(*deal.ask)) == [(200, hold)] * len(self.worlds)
        buyer, id, cpu, count, key = deal.ask
        for status, _ in self.each(lambda world: world.reserve(buyer, id, cpu + 1, count, key)):
            assert status == 422

    @rule(target=bought, hold=holds)
    def purchase_at_the_last_moment(self, hold: str) -> Any:
        self.wait_until(self.model.deals[hold].hold_until - 0.001)
        return self.purchase(hold)

    @rule(target=bought, hold=holds)
    def purchase_too_late(self, hold: str) -> Any:
        self.wait_until(self.model.deals[hold].hold_until)
        return self.purchase(hold)

    def wait_until(self, then: float) -> None:
        self.clock.advance(max(0.0, then - self.now))

    @rule(target=bought, hold=holds)
    def purchase(self, hold: str) -> Any:
        deal = self.model.deals[hold]
        answers = self.each(lambda world: world.purchase(hold))
        expected = 200 if deal.bought or deal.is_held(self.now) else 410
        assert [answer.status for answer in answers] == [expected] * len(answers), answers
        if expected != 200:
            return multiple()
        if deal.bought:
            assert [answer.body for answer in answers] == deal.bought
            return multiple()
        deal.bought = [answer.body for answer in answers]
        lasts_s = SETTINGS.notice_s if self.model.withdrawn.get(deal.flavor) else SETTINGS.contract_s
        deal.until = self.now + lasts_s
        for world, answer in zip(self.worlds, answers, strict=True):
            id, document = world.contract(answer)
            deal.contracts.append(id)
            terms = signatures.verify(document, seller=self.key.cloud).contract
            assert (terms.id, terms.hold, terms.buyer) == (id, hold, deal.ask[0])
            assert (terms.taken.cpu, terms.taken.memory) == (deal.cpu * 1000, deal.cpu * CORE_MB)
            assert (terms.price.amount, terms.count) == (deal.price, deal.ask[3])
            assert (terms.starts_at, terms.ends_at) == (self.now, self.now + SETTINGS.contract_s)
        return hold

    @rule(target=bought, buyer=buyers, id=flavors, count=st.sampled_from([1, 2]))
    def buy(self, buyer: str, id: str, count: int) -> Any:
        """Both at once, so that there is something to do with contracts."""
        hold = self.reserve(buyer, id, _piece(id), count)
        return self.purchase(hold) if isinstance(hold, str) else hold

    def check_purchase_again(self, hold: str) -> None:
        """It is the same, whatever became of the contract."""
        answers = self.each(lambda world: world.purchase(hold))
        assert [answer.body for answer in answers] == self.model.deals[hold].bought

    @rule(hold=holds)
    def cancel(self, hold: str) -> None:
        status = self.ask("DELETE", f"/api/reservations/{hold}")[0].status
        deal = self.model.deals[hold]
        if deal.bought:
            assert status == 409
        elif deal.is_cancelled or deal.is_held(self.now):
            assert status == 200
            deal.is_cancelled = True
        else:
            assert status == 410

    @rule(hold=bought)
    def release(self, hold: str) -> None:
        deal = self.model.deals[hold]
        for answer in self.of_contract(deal, "release"):
            assert answer.status == 200
        deal.is_released = deal.is_released or deal.is_sold(self.now)
        self.check_purchase_again(hold)

    @rule(hold=bought, seconds=st.sampled_from([20, 1, 160, 161]))
    def renew(self, hold: str, seconds: int) -> None:
        deal = self.model.deals[hold]
        before = [
            world.ledger.contract(ContractId(id)).contract
            for world, id in zip(self.worlds, deal.contracts, strict=True)
        ]
        statuses = {
            answer.status for answer in self.of_contract(deal, "renew", {"Duration": f"PT{seconds}S"})
        }
        until = before[0].ends_at + seconds
        is_over = deal.flavor in self.model.withdrawn or before[0].reclaim_at is not None
        if not deal.is_sold(self.now) or is_over:
            assert statuses == {410}
        elif until - before[0].starts_at > SETTINGS.max_contract_s:
            assert statuses == {422}
        else:
            assert statuses == {200}
            deal.until = until
        self.check_purchase_again(hold)

    def of_contract(self, deal: Deal, verb: str, body: Any = None) -> list[Answer]:
        """The same to each market's contract."""

        async def ask(world: World) -> Answer:
            id = deal.contracts[self.worlds.index(world)]
            return await world.ask("POST", f"/api/contracts/{id}/{verb}", body)

        return self.each(ask)

    @rule(seconds=st.sampled_from([0.001, 1, 9.999, 10, 15, 40]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(hold=bought, before=st.sampled_from([0.0, 0.001]))
    def wait_for_the_end_of_a_contract(self, hold: str, before: float) -> None:
        self.wait_until(self.model.deals[hold].until - before)

    @rule(bounds=st.sampled_from([(1, 99), (3, 3), (1, 4), (5, 8), (9, 99)]))
    def select(self, bounds: tuple[int, int]) -> None:
        self.each(lambda world: world.ledger.sweep())
        expected = self.model.listed(*bounds, self.now)
        by_document, by_v1, by_v2 = self.each(lambda world: world.select(*bounds))
        assert dict(by_document) == dict(by_v2) == expected
        assert [id for id, _ in by_document] == [id for id, _ in by_v2], "in the same order"
        largest = sorted(expected.items(), key=lambda shown: (-shown[1], shown[0]))
        assert by_v1 == largest[:1]

    @rule()
    def crash(self) -> None:
        self.each(lambda world: world.crash())
        self.each(lambda world: world.start())
        for hold in list(self.model.deals)[-2:]:
            self.reserve_again(hold)

    @rule(id=flavors)
    def look(self, id: str) -> None:
        answers = self.ask("GET", f"/api/flavors/{id}")
        if id not in self.model.price:
            assert answers[0].status == 404
            return
        free = self.model.free(id, self.now)
        for shown in (answer.json for answer in answers):
            if id == WHOLE:
                count = 0 if id in self.model.withdrawn else free // ONE
                assert (shown["Count"], shown["Characteristics"]["Cpu"]) == (count, ONE)
            else:
                has = shown["Characteristics"]
                assert (has["Cpu"], has["Memory"]) == (free, free * CORE_MB)
            assert shown["Version"] == answers[0].json["Version"] >= self.versions.get(id, 0)
        self.versions[id] = answers[0].json["Version"]

    @invariant()
    def everything_adds_up_in_every_market(self) -> None:
        for world in self.worlds:
            for id in self.model.price:
                account = world.ledger.flavor(OfferId(id))
                assert account.free + account.held + account.sold == account.capacity
                assert account.capacity.cpu == SIZE[id] * 1000
                assert account.free.cpu == self.model.free(id, self.now) * 1000
            assert world.ledger.audit() == {}


def test_three_dialects_keep_the_books_of_the_model() -> None:
    with structlog.testing.capture_logs():
        run_state_machine_as_test(
            Machine,
            settings=settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True),
        )
