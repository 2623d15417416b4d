"""The ledger: offers, holds and contracts, durable before a request is answered.

Requests about a flavor are decided together (`skerry.market.provider.ledger.decisions`: no I/O) and written
in one transaction, which expects the flavor's account at the revision that was decided on. If another server
was quicker, its change is read and the same requests are decided again. Requests are answered when the
transaction is durable and in memory, so a caller can read what it wrote. Deadlines are in the records, on the
provider's clock; they are checked at every decision and every read, and by a loop of the leader. Limits of a
buyer over all flavors are counted by each server on what it knows. This module is the interface: it checks
what comes in, and reads; `service` does the work.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.kit import ulid
from skerry.kit.clock import Clock
from skerry.market import plain
from skerry.market.provider import allowlist
from skerry.market.provider.ledger import unknown_buyer_rules
from skerry.market.provider.ledger.change import (
    LedgerChange,
    LedgerContext,
    PlacementCheck,
    no_such_contract,
    no_such_hold,
)
from skerry.market.provider.ledger.changelog import OfferChangeLog
from skerry.market.provider.ledger.deadlines import SteadyClock
from skerry.market.provider.ledger.decisions import LedgerAnswer
from skerry.market.provider.ledger.records import (
    ContractRecord,
    OfferRecord,
    contract_key,
    hold_key,
    offer_key,
)
from skerry.market.provider.ledger.requests import (
    CancelHold,
    ConvertHold,
    CountersignContract,
    CreateHold,
    EndUnusedContract,
    MarkContractOpened,
    PublishOffer,
    ReclaimContract,
    ReleaseContract,
    RenewContract,
    UpdateOffer,
    WithdrawOffer,
    idempotency_key_for,
)
from skerry.market.provider.ledger.service import LedgerService, OfferListener
from skerry.market.provider.ledger.state import OfferAccount
from skerry.market.terms import pricing
from skerry.market.terms.signatures import ContractSigner
from skerry.model import errors, ids
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import NO_CONTACT, Contact, Contract, EndReason, Hold, Offer, Price, check_cloud
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import Resources
from skerry.store.protocol import Expect, Store


class Ledger:
    """`run` for ever; requests are taken while it does, and read once it is `ready`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: MarketSettings,
        events: EventLog,
        *,
        signer: ContractSigner,
        has_leader: bool = False,
        is_known: Callable[[CloudId], bool] | None = None,
        new_hold: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """`signer` gives the signed document of a contract: the same bytes for the same contract.

        Where one of several servers leads (`has_leader`), deadlines are checked while `lead` runs. `is_known`
        is the allowlist, or if there is none the settings. `new_hold` gives ids that cannot be guessed.
        """
        self._settings = settings
        self._provider = signer.cloud
        self._time = SteadyClock(clock)
        is_listed = is_known or (lambda buyer: allowlist.is_listed(buyer, settings.buyers))
        self._deps = LedgerContext(
            settings=settings,
            seller=signer.cloud,
            is_known=lambda buyer: not plain.is_plain(buyer) and is_listed(buyer),
            new_hold=lambda: HoldId(new_hold()),
            new_contract=lambda now: ContractId(ulid.new_id(now)),
            new_version=lambda: self._cache.revision + 1,
            make_contract=signer.sign,
            check_placement=lambda flavor, resources, unplaced: self._check_placement(
                flavor, resources, unplaced
            ),
        )
        self._check_placement: PlacementCheck = lambda flavor, resources, unplaced: None
        self.changes = OfferChangeLog(settings.history, self.flavors)
        self._service = LedgerService(
            store, events, self.changes, self._time, self._deps, has_leader=has_leader
        )
        self.lead = self._service.lead
        self._cache = self._service.cache
        self._state = self._cache.state
        self._under_way: set[str] = set()  # names of requests that are done once

    async def run(self) -> None:
        """Follow the store, take requests and check deadlines, for ever."""
        await self._service.run()

    async def ready(self) -> None:
        """Wait until the ledger has been read and requests are taken."""
        await self._service.ready()

    async def sweep(self) -> None:
        """End what is due. Happens by itself; a test with its own clock calls it."""
        await self._service.sweep()

    def now(self) -> float:
        """The time that deadlines are judged by."""
        return self._time.now()

    def follow_nodes(self, check_placement: PlacementCheck) -> None:
        """Hold and sell only what `check_placement` lets pass, which knows what the nodes have free, and is
        given what is held and sold already of offers that are carved from no node."""
        self._check_placement = check_placement

    def set_placed(self, id: ContractId, *, is_placed: bool) -> None:
        """Whether the cell of a contract is on a node; if not, it counts as unplaced demand."""
        self._state.loose_contracts.set_placed(id, is_placed=is_placed)

    def listen(self, moved: OfferListener) -> Callable[[], None]:
        """Call `moved` with flavors that have changed, also by a hold or a contract, before the request is
        answered; the result ends that."""
        return self._service.listen(moved)

    # Offers

    async def publish(
        self,
        flavor: Offer,
        *,
        actor: str,
        capacity: Resources | None = None,
        fence: Expect | None = None,
    ) -> OfferRecord:
        """Offer it, `capacity` of it if not all; one that was withdrawn may be offered again.

        The same again is no change; `AlreadyExists` if the id is that of another.
        """
        if flavor.provider != self._provider:
            raise errors.Invalid(f"this provider is {self._provider}; it offers nothing of others")
        state = self._state
        is_another = flavor.id not in state.flavors or flavor.id in state.over_flavors
        if is_another and len(state.flavors) - len(state.over_flavors) >= self._settings.max_flavors:
            raise errors.TooLarge(
                f"{self._settings.max_flavors} flavors are offered, the most; withdraw some"
            )
        request = PublishOffer(flavor, flavor.whole if capacity is None else capacity, actor)
        return _account(await self._service.submit(flavor.id, request, fence))

    async def update(
        self,
        id: OfferId,
        change: Callable[[Offer], Offer],
        *,
        actor: str,
        capacity: Resources | None = None,
        fence: Expect | None = None,
    ) -> OfferRecord:
        """Change terms or capacity; never below what is held or sold, whose terms stay."""
        request = UpdateOffer(change, capacity, actor)
        return _account(await self._service.submit(await self._find_flavor(id), request, fence))

    async def reprice(self, id: OfferId, price: Price, *, actor: str) -> OfferRecord:
        """Change the price; holds and contracts keep theirs. `FailedPrecondition` for one whose
        price follows the settings."""

        def change(flavor: Offer) -> Offer:
            if flavor.worker:
                raise errors.FailedPrecondition(
                    f"the price of {flavor.id} follows the settings; set market.sell_price instead"
                )
            return replace(flavor, price=price)

        return await self.update(id, change, actor=actor)

    async def withdraw(
        self,
        id: OfferId,
        *,
        actor: str,
        reason: str = "",
        reclaim: bool = False,
        fence: Expect | None = None,
    ) -> OfferRecord:
        """Offer it no longer; with `reclaim`, take its contracts back after the notice of each."""
        request = WithdrawOffer(ids.check_display_text(reason, "reason"), reclaim, actor)
        return _account(await self._service.submit(await self._find_flavor(id), request, fence))

    async def reclaim(
        self,
        id: ContractId,
        *,
        actor: str,
        reason: str = "",
        at_once: bool = False,
        fence: Expect | None = None,
    ) -> ContractRecord:
        """Reclaim one contract; it ends after its notice.

        With `at_once` it ends now: for an absent buyer, which would not get the notice.
        """
        request = ReclaimContract(id, ids.check_display_text(reason, "reason"), actor, at_once)
        return _sale(await self._service.submit(await self._flavor_of_contract(id), request, fence))

    # Holds

    async def reserve(
        self,
        buyer: CloudId,
        flavor: OfferId,
        *,
        resources: Resources | None = None,
        count: int | None = None,
        duration_s: float | None = None,
        wait_s: float = 0.0,
        idempotency_key: str | None = None,
        contact: Contact = NO_CONTACT,
    ) -> Hold:
        """Hold `count` times `resources`, or all that is free, until the hold's deadline.

        Without a `count` it is as few as may be taken together.

        `ResourcesExhausted` if it is not free; with `wait_s`, after waiting in line that long. At once if no
        node can take it, or `Unavailable` while they are silent. `NotFound` for
        an unknown flavor, `Expired` for one that is withdrawn, `Unprocessable` against its policies, or for
        another request with the same key; `Conflict` while a request with the key is under way; `Overloaded`
        for a buyer that holds too much, or too often without buying.
        """
        settings = self._settings
        check_cloud(buyer, "buyer")
        self.check_access(buyer, is_read=False)
        if count is not None and (type(count) is not int or count < 1):
            raise errors.Invalid("count is a whole number above 0", field="count")
        if resources is not None and count is not None:
            resources * count  # raises for invalid amounts, before the request waits
        if duration_s is None:
            is_known = self._deps.is_known(buyer)
            of_unknown = unknown_buyer_rules.limits_of(settings, buyer).contract_s
            most_s = settings.max_contract_s if is_known else of_unknown
            duration_s = min(settings.contract_s, most_s)
        longest_s = pricing.in_years(settings.max_contract_s)
        if not 1 <= duration_s <= longest_s:
            raise errors.Invalid(
                f"a contract lasts 1 to {longest_s:.0f} s, not {duration_s:.12g}",
                field="duration",
            )
        if not wait_s >= 0:
            raise errors.Invalid("the time to wait is 0 or more seconds", field="wait")
        once, digest = idempotency_key_for(idempotency_key, buyer, flavor, resources, count or 1, duration_s)
        wait_until = self._time.now() + min(wait_s, settings.max_wait_s) if wait_s else None
        request = CreateHold(flavor, buyer, resources, count, duration_s, wait_until, once, digest, contact)
        if not once:
            return _hold(await self._service.submit(await self._find_flavor(flavor), request))
        if once in self._under_way:
            raise errors.Conflict("a request with this Idempotency-Key is under way; wait for its answer")
        self._under_way.add(once)
        try:
            return _hold(await self._service.submit(await self._find_flavor(flavor), request))
        finally:
            self._under_way.remove(once)

    async def purchase(self, id: HoldId, buyer: CloudId) -> ContractRecord:
        """Turn the hold into its contract; repeated, it is the same contract.

        `NotFound`, `Forbidden` for another buyer, `Expired` if it was cancelled or has expired.
        `ResourcesExhausted` if no node can take it now, or `Unavailable` while they are not live; the hold
        stays.
        """
        return _sale(await self._service.submit(await self._flavor_of_hold(id), ConvertHold(id, buyer)))

    async def cancel(self, id: HoldId, buyer: CloudId) -> Hold:
        """Give the hold up; `Conflict` if it was bought."""
        return _hold(await self._service.submit(await self._flavor_of_hold(id), CancelHold(id, buyer)))

    # Contracts

    async def release(self, id: ContractId, buyer: CloudId) -> ContractRecord:
        """Release the contract now."""
        return _sale(
            await self._service.submit(await self._flavor_of_contract(id), ReleaseContract(id, buyer))
        )

    async def renew(self, id: ContractId, buyer: CloudId, until: float) -> ContractRecord:
        """Let the contract last until then, at the price of now for the time that is added.

        No change if it lasts that long already. `Expired` if it, or its flavor, is over.
        """
        return _sale(
            await self._service.submit(await self._flavor_of_contract(id), RenewContract(id, buyer, until))
        )

    async def countersign(
        self, id: ContractId, buyer: CloudId, document: bytes, *, over: bytes
    ) -> ContractRecord:
        """Store the contract with its buyer's signature; the caller has verified that it is over the document
        `over`, and if that is not the present one it is `Conflict`."""
        signed = CountersignContract(id, buyer, document, over)
        return _sale(await self._service.submit(await self._flavor_of_contract(id), signed))

    async def mark_opened(self, id: ContractId) -> ContractRecord:
        """The buyer has opened the contract's tunnel."""
        return _sale(await self._service.submit(await self._flavor_of_contract(id), MarkContractOpened(id)))

    async def end_unused(
        self, id: ContractId, *, since: float, fence: Expect | None = None
    ) -> ContractRecord:
        """End the contract if it was not signed or opened in time, counted from `since` at the earliest."""
        request = EndUnusedContract(id, since)
        return _sale(await self._service.submit(await self._flavor_of_contract(id), request, fence))

    # Reading

    def check_access(self, buyer: CloudId, *, is_read: bool, is_own: bool = False) -> None:
        """Raise `Forbidden` unless the buyer may list offers, or buy; its own (`is_own`) holds and contracts
        it may always read and change."""
        if self._deps.is_known(buyer) or (is_own and self._state.buyers.has_deals(buyer)):
            return
        unknown_buyer_rules.check_access(self._settings, buyer, is_read=is_read)

    def flavors(self) -> Sequence[OfferRecord]:
        """All that is offered, in the order of ids, also if nothing of it is free."""
        now = self._time.now()
        accounts = (self._as_of(account, now) for _, account in sorted(self._state.flavors.items()))
        return [account for account in accounts if account is not None and account.withdrawn is None]

    def accounts(self) -> Sequence[OfferRecord]:
        """All that is offered, and what was withdrawn and is still held or sold, in the order of ids."""
        found = {account.flavor.id: account for account in self.flavors()}
        now = self._time.now()
        taken = {hold.flavor.id for hold in self.holds() if hold.is_live(now)}
        taken |= {sale.contract.flavor.id for sale in self.contracts() if sale.contract.ended_at is None}
        for id in taken - found.keys():
            with suppress(errors.NotFound):  # which the audit reports
                found[id] = self.flavor(id)
        return [account for _, account in sorted(found.items())]

    def flavors_of_nodes(self) -> Sequence[OfferRecord]:
        """All that are carved from a node, also those that were withdrawn and are kept."""
        now = self._time.now()
        accounts = (self._as_of(self._state.flavors[id], now) for id in sorted(self._state.of_nodes))
        return [account for account in accounts if account is not None]

    def flavor(self, id: OfferId) -> OfferRecord:
        """Raises `NotFound`; one that was withdrawn is found while it is kept."""
        account = self._as_of(self._state.account_of(id), self._time.now())
        if account is None:
            raise errors.NotFound("there is no such flavor; list flavors to see what is offered")
        return account

    def hold(self, id: HoldId) -> Hold:
        """Live or ended; raises `NotFound`."""
        if id not in self._state.holds:
            raise no_such_hold()
        return self._hold_as_of(self._state.holds[id], self._time.now())

    def contract(self, id: ContractId) -> ContractRecord:
        """Live or ended; raises `NotFound`."""
        if id not in self._state.sales:
            raise no_such_contract()
        return self._state.sales[id]

    def holds(self, buyer: CloudId | None = None) -> Sequence[Hold]:
        """Holds that are kept, live or ended, of one buyer or of all."""
        now = self._time.now()
        return [
            self._hold_as_of(hold, now)
            for hold in self._state.holds.values()
            if buyer is None or hold.buyer == buyer
        ]

    def contracts(self, buyer: CloudId | None = None) -> Sequence[ContractRecord]:
        """Contracts that are kept, live or ended, of one buyer or of all."""
        sales = self._state.sales.values()
        return [sale for sale in sales if buyer is None or sale.contract.buyer == buyer]

    def live_contracts(self, flavor: OfferId | None = None) -> Sequence[Contract]:
        """Contracts that have not ended, of one flavor or of all."""
        live = self._state.live_sales if flavor is None else self._state.account_of(flavor).sales
        return [sale.contract for sale in live.values()]

    def live_sales(self) -> Sequence[ContractRecord]:
        """Contracts that have not ended, with their documents."""
        return list(self._state.live_sales.values())

    async def find_hold(self, id: HoldId) -> Hold:
        """As `hold`, but found also if another server has only just made it."""
        await self._flavor_of_hold(id)
        return self.hold(id)

    async def find_contract(self, id: ContractId) -> ContractRecord:
        """As `contract`, but found also if another server has only just made it."""
        await self._flavor_of_contract(id)
        return self.contract(id)

    def audit(self) -> dict[OfferId, list[str]]:
        """Flavors whose free, held and sold do not add up, and why; empty, unless there is a fault."""
        return {id: wrong for id, wrong in self.audits() if wrong}

    def audits(self) -> Iterator[tuple[OfferId, list[str]]]:
        """The same flavor by flavor, so that other work can run in between; also those that add up."""
        return ((id, account.audit()) for id, account in list(self._state.flavors.items()))

    def _as_of(self, account: OfferAccount, now: float) -> OfferRecord | None:
        """The account with what is due by now ended, though it may not be written yet."""
        if account.next_due is None or account.next_due > now:
            return account.account
        draft = LedgerChange(self._state, account, now, self._deps)
        draft.clear_excess()
        return draft.account

    def _hold_as_of(self, hold: Hold, now: float) -> Hold:
        if hold.ending is None and not hold.is_live(now):
            return replace(hold, ending=EndReason.EXPIRED, ended_at=hold.expires_at)
        return hold

    async def _find_flavor(self, id: OfferId) -> OfferId:
        if id not in self._state.flavors:
            await self._cache.look_up(offer_key(id))
        return id

    async def _flavor_of_hold(self, id: HoldId) -> OfferId:
        if id not in self._state.holds:
            await self._cache.look_up(hold_key(id))
        if id not in self._state.holds:
            raise no_such_hold()
        return self._state.holds[id].flavor.id

    async def _flavor_of_contract(self, id: ContractId) -> OfferId:
        if id not in self._state.sales:
            await self._cache.look_up(contract_key(id))
        if id not in self._state.sales:
            raise no_such_contract()
        return self._state.sales[id].contract.flavor.id


def _account(answer: LedgerAnswer) -> OfferRecord:
    assert isinstance(answer, OfferRecord)
    return answer


def _hold(answer: LedgerAnswer) -> Hold:
    assert isinstance(answer, Hold)
    return answer


def _sale(answer: LedgerAnswer) -> ContractRecord:
    assert isinstance(answer, ContractRecord)
    return answer
