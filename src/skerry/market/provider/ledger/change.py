"""A change of the ledger in preparation: a flavor's account with its holds and contracts, on top of the
ledger state.

Later decisions see its changes; the ledger state is not touched. Expiry is here too, because it comes first.
`offer_rules`, `hold_rules` and `contract_rules` apply requests, in the order of
`skerry.market.provider.ledger.decisions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from skerry.market.provider.ledger.records import ContractRecord, OfferRecord, OfferWithdrawal, offer_key
from skerry.market.provider.ledger.state import LedgerState, OfferAccount
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, HoldId
from skerry.model.market import MAX_DETAILS, Contact, Contract, EndReason, Hold, Offer
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import NO_AMOUNTS, Amounts, Resources, add_amounts, total
from skerry.store.protocol import MAX_OPS

# So many of them, with all else that one transaction may hold, stay below the store's limit in bytes.
MAX_DOCUMENT: Final = 16 * 1024
# What a buyer says of itself is written with its hold and its contract. Each so many bytes of it count as an
# operation, so that many of them stay below that limit too.
_BYTES_OF_OP: Final = 8 * 1024
_MOST_CONTACT: Final = -(-MAX_DETAILS // _BYTES_OF_OP)
# The most that one request or one deadline writes: a hold, a contract and an event. The account is apart.
_MOST_OPS: Final = 3 + 2 * _MOST_CONTACT
# Of contracts that are on no node yet, so many are listed one by one, and of more only the sum.
_MAX_LISTED: Final = 500


D = TypeVar("D", Hold, Contract)


class UnplacedDemand(NamedTuple):
    """What is held and sold of offers that are carved from no node, and is on no node yet."""

    parts: Sequence[Resources]  # each is to find a node
    more: Amounts = NO_AMOUNTS  # all further ones together
    gpus: int = 0  # of all of them


NO_DEMAND: Final = UnplacedDemand(())

# Raises why no node can take so much of an offer now, besides what is held and sold already.
PlacementCheck = Callable[[Offer, Resources, Callable[[], UnplacedDemand]], None]


class LedgerContext(NamedTuple):
    """What decisions are made with."""

    settings: MarketSettings
    seller: CloudId
    is_known: Callable[[CloudId], bool]  # whether a buyer is free of the limits of unknown ones
    new_hold: Callable[[], HoldId]
    new_contract: Callable[[float], ContractId]
    new_version: Callable[[], int]  # above those of all flavors, also of removed ones
    make_contract: Callable[[Contract], bytes]
    check_placement: PlacementCheck


class LedgerEventDraft(NamedTuple):
    """An event that goes with a decision."""

    kind: str
    subject: str
    actor: str
    reason: str
    data: dict[str, str]


class LedgerChange:
    """The account of one flavor, and what changed of its holds and contracts."""

    def __init__(
        self, state: LedgerState, offer_account: OfferAccount, now: float, deps: LedgerContext
    ) -> None:
        self.state = state
        self.now = now
        self.deps = deps
        self.account = offer_account.account
        self.holds: dict[HoldId, Hold] = {}  # those that changed
        self.sales: dict[ContractId, ContractRecord] = {}
        self.events: list[LedgerEventDraft] = []
        self.once: dict[str, HoldId] = {}
        self._offer_account = offer_account
        self._contact_ops = 0
        self._new: dict[CloudId, int] = {}  # live holds of each buyer, more or less than in the ledger state

    @property
    def has_budget(self) -> bool:
        """True if one more change fits into the transaction."""
        used = 1 + len(self.holds) + len(self.sales) + len(self.events) + self._contact_ops
        return used + _MOST_OPS <= MAX_OPS

    @property
    def final_account(self) -> OfferRecord | None:
        """The account as it is to be written: with the next version if buyers see a difference."""
        before, account = self._offer_account.account, self.account
        if account is None or before is None or _visible_state(before) == _visible_state(account):
            return account
        return replace(account, flavor=replace(account.flavor, version=before.flavor.version + 1))

    def known(self) -> OfferRecord:
        if self.account is None:
            raise errors.NotFound("there is no such flavor; list flavors to see what is offered")
        return self.account

    def offered(self) -> OfferRecord:
        account = self.known()
        if account.withdrawn is not None:
            reason = f": {account.withdrawn.reason}" if account.withdrawn.reason else ""
            raise errors.Expired(f"this flavor is no longer offered{reason}; list flavors to see what is")
        return account

    def holds_of(self, buyer: CloudId) -> int:
        """How many live holds a buyer has, of all flavors."""
        return self.state.buyers.holds(buyer) + self._new.get(buyer, 0)

    def find_hold(self, id: HoldId) -> Hold | None:
        return self.holds.get(id) or self.state.holds.get(id)

    def own_hold(self, id: HoldId, buyer: CloudId) -> Hold:
        hold = self.find_hold(id)
        if hold is None:
            raise no_such_hold()
        if hold.buyer != buyer:
            raise errors.Forbidden("this hold is another buyer's; only its buyer may purchase or cancel it")
        return hold

    def sale(self, id: ContractId) -> ContractRecord:
        sale = self.sales.get(id) or self.state.sales.get(id)
        if sale is None:
            raise no_such_contract()
        return sale

    def own_sale(self, id: ContractId, buyer: CloudId) -> ContractRecord:
        sale = self.sale(id)
        if sale.contract.buyer != buyer:
            raise errors.Forbidden("this contract is another buyer's; only its buyer may change it")
        return sale

    def live_holds(self) -> list[Hold]:
        return [hold for hold in (self._offer_account.holds | self.holds).values() if hold.ending is None]

    def live_sales(self) -> list[ContractRecord]:
        both = (self._offer_account.sales | self.sales).values()
        return [sale for sale in both if sale.contract.ended_at is None]

    def unplaced(self) -> UnplacedDemand:
        """What is held of all flavors that are carved from no node, and sold and on none yet."""
        holds = self.state.loose_holds | self.state.buyers.pending() | self.holds
        live = self._live(hold for hold in holds.values() if not hold.flavor.worker)
        sold = self.unplaced_sold()
        return UnplacedDemand([*map(_taken, live), *sold.parts], sold.more, _gpus(live) + sold.gpus)

    def unplaced_sold(self) -> UnplacedDemand:
        """The same without what is only held."""
        loose = self.state.loose_contracts
        changed = {id: sale.contract for id, sale in self.sales.items() if loose.may_wait(sale.contract)}
        if len(loose.waiting) <= _MAX_LISTED:
            live = self._live((loose.waiting | changed).values())
            return UnplacedDemand([*map(_taken, live)], gpus=_gpus(live))
        before = [loose.waiting[id] for id in changed if id in loose.waiting]
        after = self._live(changed.values())
        more = add_amounts(map(_taken, before), loose.waiting_amounts, times=-1)
        gpus = loose.waiting_gpus - _gpus(before) + _gpus(after)
        return UnplacedDemand((), add_amounts(map(_taken, after), more), gpus)

    def _live(self, records: Iterable[D]) -> list[D]:
        # By its end alone: one that another server has just made may begin a little ahead of our clock.
        return [one for one in records if one.ended_at is None and self.now < one.due_at]

    def unknown_of_flavor(self, counts: Callable[[CloudId], bool]) -> Resources:
        """What unknown buyers that count hold and have bought of this flavor, all together."""
        records = self._offer_account.unknown | self._changed_unknown()
        return self._live_unknown({id: one for id, one in records.items() if counts(one.buyer)})

    def unknown_of_buyer(self, buyer: CloudId) -> Resources:
        """What one of them holds and has bought, of all flavors."""
        changed = {id: one for id, one in self._changed_unknown().items() if one.buyer == buyer}
        return self._live_unknown(self.state.buyers.unknown(buyer) | changed)

    def new_unknown(self) -> list[Hold]:
        """Holds that unknown buyers made in this decision."""
        return [hold for id, hold in self.holds.items() if hold.is_unknown and id not in self.state.holds]

    def _changed_unknown(self) -> dict[str, Hold | Contract]:
        changed: list[Hold | Contract] = [*self.holds.values()]
        changed += [sale.contract for sale in self.sales.values()]
        return {one.id: one for one in changed if one.is_unknown}

    def _live_unknown(self, records: dict[str, Hold | Contract]) -> Resources:
        live = (one for one in records.values() if one.ended_at is None and self.now < one.due_at)
        return total(map(_taken, live))

    def clear_excess(self) -> bool:
        """End what is due and announce what is to be taken back; False if more is left than fits."""
        for due in self._offer_account.due(self.now):
            if not self.has_budget:
                return False
            if due.is_hold:
                self.end_hold(self._offer_account.holds[HoldId(due.id)], EndReason.EXPIRED, due.at)
            else:
                self.end_sale(self._offer_account.sales[ContractId(due.id)], due.at)
        account = self.account
        if account is not None and account.withdrawn is None and not account.is_offered(self.now):
            self.withdraw(OfferWithdrawal(self.now, "its time is over"), "skerry")
        return self.reclaim_withdrawn("skerry")

    def put_sale(self, sale: ContractRecord) -> None:
        """Have it written as it is now."""
        self.sales[sale.contract.id] = sale
        self._contact_ops += _ops_of(sale.contact)

    def _put_hold(self, hold: Hold) -> None:
        self.holds[hold.id] = hold
        self._contact_ops += _ops_of(hold.contact)

    def add_hold(self, hold: Hold) -> None:
        account = self.known()
        self.account = account.moved(held=account.held + hold.taken, sold=account.sold)
        self._put_hold(hold)
        self._new[hold.buyer] = self._new.get(hold.buyer, 0) + 1
        if hold.once:
            self.once[hold.once] = hold.id

    def end_hold(self, hold: Hold, ending: EndReason, at: float) -> Hold:
        account = self.known()
        self.account = account.moved(held=account.held - hold.taken, sold=account.sold)
        self._put_hold(ended := replace(hold, ending=ending, ended_at=at))
        self._new[hold.buyer] = self._new.get(hold.buyer, 0) - 1
        return ended

    def sell(self, hold: Hold, sale: ContractRecord) -> None:
        """The hold becomes the contract."""
        account, contract = self.known(), sale.contract
        self.account = account.moved(held=account.held - hold.taken, sold=account.sold + contract.taken)
        self._put_hold(replace(hold, ending=EndReason.BOUGHT, ended_at=self.now, contract=contract.id))
        self._new[hold.buyer] = self._new.get(hold.buyer, 0) - 1
        self.put_sale(sale)
        self.add_event("contract.made", hold.buyer, contract=contract.id, room=describe_resources(hold.taken))

    def end_sale(self, sale: ContractRecord, at: float, ending: EndReason | None = None) -> ContractRecord:
        account, contract = self.known(), sale.contract
        ending = ending or contract.ending_by(at)
        assert ending is not None, "what ends by itself is due"
        self.account = account.moved(held=account.held, sold=account.sold - contract.taken)
        self.put_sale(after := replace(sale, contract=replace(contract, ended_at=at, ending=ending)))
        actor = contract.buyer if ending is EndReason.RELEASED else "skerry"
        self.add_event(
            f"contract.{ending}", actor, contract=contract.id, room=describe_resources(contract.taken)
        )
        return after

    def withdraw(self, withdrawal: OfferWithdrawal, actor: str) -> None:
        self.account = replace(self.known(), withdrawn=withdrawal)
        self.add_event(
            "flavor.withdrawn", actor, withdrawal.reason, reclaims=str(withdrawal.reclaims).lower()
        )

    def reclaim_withdrawn(self, actor: str) -> bool:
        """Take every contract of a flavor back that was withdrawn so; False if there are more than fit."""
        withdrawn = self.account.withdrawn if self.account is not None else None
        if withdrawn is None or not withdrawn.reclaims:
            return True
        for sale in self.live_sales():
            if sale.contract.reclaim_at is None:
                if not self.has_budget:
                    return False
                self.reclaim(sale, withdrawn.reason, actor)
        return True

    def reclaim(
        self, sale: ContractRecord, reason: str, actor: str, at: float | None = None
    ) -> ContractRecord:
        """Say that the contract ends then, or after its notice."""
        at = self.now + sale.contract.notice_s if at is None else at
        after = replace(sale, contract=replace(sale.contract, reclaim_at=at, reason=reason))
        self.put_sale(after)
        self.add_event("contract.reclaimed", actor, reason, contract=sale.contract.id)
        return after

    def document(self, contract: Contract) -> bytes:
        document = self.deps.make_contract(contract)
        if len(document) > MAX_DOCUMENT:
            raise errors.Internal(
                "the contract cannot be written down", detail=f"its document has {len(document)} bytes"
            )
        return document

    def add_event(self, kind: str, actor: str, reason: str = "", **data: str) -> None:
        """An event of an offer or a contract. Holds have none: a buyer that makes and cancels many would fill
        the log.
        """
        self.events.append(LedgerEventDraft(kind, offer_key(self.known().flavor.id), actor, reason, data))


def _ops_of(contact: Contact) -> int:
    return -(-contact.size // _BYTES_OF_OP)


def no_such_hold() -> errors.NotFound:
    return errors.NotFound("there is no such transaction; reserve a flavor to get one")


def no_such_contract() -> errors.NotFound:
    return errors.NotFound("there is no such contract; purchase a reservation to get one")


def describe_resources(resources: Resources) -> str:
    return f"{resources.cpu}m cpu, {resources.memory} MB memory, {resources.disk} GB disk"


def _visible_state(account: OfferRecord) -> tuple[object, ...]:
    """The state that subscribers see: neither a purchase, which moves resources that were not free, nor
    changes after a withdrawal.
    """
    if account.withdrawn is not None:
        return (account.withdrawn,)
    return account.flavor, account.capacity, account.free


def _taken(one: Hold | Contract) -> Resources:
    return one.taken


def _gpus(records: Iterable[Hold | Contract]) -> int:
    return sum(one.gpus for one in records if one.flavor.gpus)
