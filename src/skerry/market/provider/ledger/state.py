"""The ledger's state in memory: an account for each flavor, and indexes of holds and contracts.

It is fed only by changes of the store. `decisions` reads it; only the ledger writes it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from skerry.market.provider.ledger.records import ContractRecord, OfferRecord
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import Contract, EndReason, Hold
from skerry.model.resources import NO_AMOUNTS, NO_RESOURCES, Amounts, add_amounts, total

WINDOW_S: Final = 3600.0  # for which holds that lapsed, and those of unknown buyers, are counted


class Deadline(NamedTuple):
    """What ends at a time if nothing else happens."""

    at: float
    id: str
    is_hold: bool


class OfferAccount:
    """One flavor: its account, and what is live on it."""

    def __init__(self) -> None:
        self.account: OfferRecord | None = None
        self.revision = 0  # of the account
        self.holds: dict[HoldId, Hold] = {}  # live ones
        self.sales: dict[ContractId, ContractRecord] = {}  # live ones
        self.unknown: dict[str, Hold | Contract] = {}  # those of both that unknown buyers have
        self._due_times: list[Deadline] = []  # of both, in the order of time

    @property
    def is_empty(self) -> bool:
        """True if nothing is known of the flavor."""
        return self.account is None and not self.holds and not self.sales

    @property
    def next_due(self) -> float | None:
        """The next deadline; None: none."""
        times = [self._due_times[0].at] if self._due_times else []
        if self.account is not None:
            withdrawn, expires_at = self.account.withdrawn, self.account.flavor.expires_at
            if withdrawn is None and expires_at is not None:
                times.append(expires_at)
            if withdrawn is not None and withdrawn.reclaims and self._has_unreported:
                times.append(withdrawn.at)
        return min(times, default=None)

    @property
    def _has_unreported(self) -> bool:
        """True if there are contracts that are not to be taken back yet."""
        return any(sale.contract.reclaim_at is None for sale in self.sales.values())

    def due(self, now: float) -> Iterator[Deadline]:
        """What ended by `now`, the oldest first."""
        for one in self._due_times:
            if one.at > now:
                return
            yield one

    def audit(self) -> list[str]:
        """What does not add up; empty if all does."""
        if self.account is None:
            return ["there are holds or contracts on no flavor"] if not self.is_empty else []
        wrong = []
        for name, stored, found in (
            ("held", self.account.held, total(hold.taken for hold in self.holds.values())),
            ("sold", self.account.sold, total(sale.contract.taken for sale in self.sales.values())),
        ):
            if stored != found:
                wrong.append(f"{name} is {stored}, but what is {name} makes {found}")
        if not self.account.capacity.fits(self.account.held + self.account.sold):
            wrong.append(f"more is held and sold than {self.account.capacity}")
        return wrong

    def _track(self, before: Deadline | None, after: Deadline | None) -> None:
        if before is not None:
            place = bisect_left(self._due_times, before)
            assert self._due_times[place] == before
            del self._due_times[place]
        if after is not None:
            insort(self._due_times, after)

    def put_hold(self, before: Hold | None, after: Hold | None) -> None:
        self._track(_due_of_hold(before), _due_of_hold(after))
        _put_unknown(self.unknown, before, after)
        if after is not None and after.ending is None:
            self.holds[after.id] = after
        elif before is not None:
            self.holds.pop(before.id, None)

    def put_sale(self, before: ContractRecord | None, after: ContractRecord | None) -> None:
        self._track(_due_of_sale(before), _due_of_sale(after))
        _put_unknown(self.unknown, _contract(before), _contract(after))
        if after is not None and after.contract.ended_at is None:
            self.sales[after.contract.id] = after
        elif before is not None:
            self.sales.pop(before.contract.id, None)


class HourlyCounter:
    """Moments of the last hour, of each buyer and of all together."""

    def __init__(self) -> None:
        self._of: defaultdict[CloudId, deque[float]] = defaultdict(deque)
        self._all: deque[tuple[float, CloudId]] = deque()  # the oldest first

    def add(self, at: float, buyer: CloudId) -> None:
        self._all.append((at, buyer))
        self._of[buyer].append(at)

    def of(self, buyer: CloudId, now: float) -> Sequence[float]:
        """The oldest first."""
        self._drop_old(now)
        return self._of.get(buyer, ())

    def all(self, now: float) -> Sequence[tuple[float, CloudId]]:
        """The oldest first."""
        self._drop_old(now)
        return self._all

    def sort(self) -> None:
        """For what was added in no order."""
        ordered = sorted(self._all)
        self._all.clear()
        self._of.clear()
        for at, buyer in ordered:
            self.add(at, buyer)

    def _drop_old(self, now: float) -> None:
        while self._all and self._all[0][0] <= now - WINDOW_S:
            _, buyer = self._all.popleft()
            self._of[buyer].popleft()
            if not self._of[buyer]:
                del self._of[buyer]


class BuyerUsage:
    """What each buyer holds, when it let holds expire, and of unknown ones all that their limits count."""

    def __init__(self) -> None:
        self._lapsed = HourlyCounter()
        self._made = HourlyCounter()  # by unknown buyers
        self._unknown: defaultdict[CloudId, dict[str, Hold | Contract]] = defaultdict(dict)  # live ones
        self._holds: defaultdict[CloudId, int] = defaultdict(int)
        self._pending: dict[HoldId, Hold] = {}
        self._records: defaultdict[CloudId, int] = defaultdict(
            int
        )  # holds, live or over; contracts have one each

    def holds(self, buyer: CloudId) -> int:
        """Live holds, with those that are decided and not durable yet."""
        return self._holds.get(buyer, 0)

    def has_deals(self, buyer: CloudId) -> bool:
        """Whether it has holds or contracts, or had some that are kept."""
        return buyer in self._records

    def lapsed(self, buyer: CloudId, now: float) -> Sequence[float]:
        """When it let holds expire within the last hour, the oldest first."""
        return self._lapsed.of(buyer, now)

    def unknown(self, buyer: CloudId) -> dict[str, Hold | Contract]:
        """Live holds and contracts of an unknown buyer, with those that are decided and not durable yet."""
        return self._unknown.get(buyer, {}) | {
            str(hold.id): hold for hold in self._pending_unknown() if hold.buyer == buyer
        }

    def made_by_unknown(self, now: float) -> list[tuple[float, CloudId]]:
        """The holds of unknown buyers within the last hour, with their times, however they ended."""
        pending = [(hold.created_at, hold.buyer) for hold in self._pending_unknown()]
        return [*self._made.all(now), *pending]

    def pending(self) -> dict[HoldId, Hold]:
        """Holds that are decided and not durable yet."""
        return self._pending

    def add_pending(self, hold: Hold) -> None:
        """Count a hold that is on its way into the store."""
        self._pending[hold.id] = hold
        _count(self._holds, hold.buyer, 1)

    def forget(self, hold: Hold) -> None:
        """It was not written; if it was, nothing changes."""
        if self._pending.pop(hold.id, None) is not None:
            _count(self._holds, hold.buyer, -1)

    def put_hold(self, before: Hold | None, after: Hold | None) -> None:
        if after is not None:
            self.forget(after)
        if before is not None and before.ending is None:
            _count(self._holds, before.buyer, -1)
        self._put_unknown(before, after)
        if after is None:
            if before is not None:
                _count(self._records, before.buyer, -1)
            return
        if before is None:
            _count(self._records, after.buyer, 1)
        if before is None and after.is_unknown:
            self._made.add(after.created_at, after.buyer)
        if after.ending is None:
            _count(self._holds, after.buyer, 1)
        elif after.ending is EndReason.EXPIRED and (before is None or before.ending is None):
            self._lapsed.add(after.expires_at, after.buyer)

    def put_sale(self, before: ContractRecord | None, after: ContractRecord | None) -> None:
        self._put_unknown(_contract(before), _contract(after))

    def sort(self) -> None:
        self._lapsed.sort()
        self._made.sort()

    def _pending_unknown(self) -> list[Hold]:
        return [hold for hold in self._pending.values() if hold.is_unknown]

    def _put_unknown(self, before: Hold | Contract | None, after: Hold | Contract | None) -> None:
        record = after or before
        if record is not None and record.is_unknown:
            _put_unknown(self._unknown[record.buyer], before, after)
            if not self._unknown[record.buyer]:
                del self._unknown[record.buyer]


class LooseContracts:
    """Live contracts of flavors that are carved from no node, and which of them are on no node yet."""

    def __init__(self) -> None:
        self.waiting: dict[ContractId, Contract] = {}  # have none yet
        self.waiting_amounts: Amounts = NO_AMOUNTS  # what these take, all together
        self.waiting_gpus = 0
        self._live: dict[ContractId, Contract] = {}
        self._placed: set[ContractId] = set()  # also of contracts that are not known here

    def may_wait(self, contract: Contract) -> bool:
        """False for one that is carved from a node, or is on one."""
        return not contract.flavor.worker and contract.id not in self._placed

    def put(self, id: ContractId, contract: Contract | None) -> None:
        """The present state of a contract; None: it has ended, or does not exist."""
        if contract is None or contract.flavor.worker:
            self._live.pop(id, None)
        else:
            self._live[id] = contract
        self._recompute(id)

    def set_placed(self, id: ContractId, *, is_placed: bool) -> None:
        """What a contract takes is on a node now, or is not."""
        if is_placed:
            self._placed.add(id)
        else:
            self._placed.discard(id)
        self._recompute(id)

    def _recompute(self, id: ContractId) -> None:
        before, after = self.waiting.pop(id, None), self._live.get(id)
        if before is not None:
            self.waiting_amounts = add_amounts([before.taken], self.waiting_amounts, times=-1)
            self.waiting_gpus -= before.gpus
        if after is not None and self.may_wait(after):
            self.waiting[id] = after
            self.waiting_amounts = add_amounts([after.taken], self.waiting_amounts)
            self.waiting_gpus += after.gpus


class LedgerState:
    """All of it."""

    def __init__(self) -> None:
        self.flavors: dict[OfferId, OfferAccount] = {}
        self.holds: dict[HoldId, Hold] = {}
        self.sales: dict[ContractId, ContractRecord] = {}
        self.live_sales: dict[ContractId, ContractRecord] = {}  # those that have not ended
        # Live ones of flavors without a node, which any node may deliver.
        self.loose_holds: dict[HoldId, Hold] = {}
        self.loose_contracts = LooseContracts()
        self.of_nodes: dict[OfferId, None] = {}  # flavors that are carved from a node
        self.once: dict[str, HoldId] = {}  # which hold a request made that may be repeated
        self.buyers = BuyerUsage()
        # Ended ones, in the order of their end, to be removed later; a bought hold goes with its
        # contract.
        self.over_holds: dict[HoldId, None] = {}
        self.over_sales: dict[ContractId, None] = {}
        self.over_flavors: dict[OfferId, None] = {}

    def account_of(self, flavor: OfferId) -> OfferAccount:
        """The account of an offer, empty if it is not known."""
        return self.flavors.get(flavor) or OfferAccount()

    def put_account(self, before: OfferRecord | None, after: OfferRecord | None, revision: int) -> OfferId:
        """A flavor changed; `revision` is that of its account now. Gives its id."""
        account = after or before
        assert account is not None
        id = account.flavor.id
        offer_account = self.flavors.setdefault(id, OfferAccount())
        offer_account.account, offer_account.revision = after, revision
        if after is not None and after.flavor.worker:
            self.of_nodes[id] = None
        else:
            self.of_nodes.pop(id, None)
        if after is not None and after.withdrawn is not None and after.held == after.sold == NO_RESOURCES:
            self.over_flavors.setdefault(id)
        else:
            self.over_flavors.pop(id, None)
        self._drop_if_empty(id, offer_account)
        return id

    def put_hold(self, before: Hold | None, after: Hold | None) -> OfferId:
        """A hold changed; gives its flavor."""
        hold = after or before
        assert hold is not None
        flavor = hold.flavor.id
        offer_account = self.flavors.setdefault(flavor, OfferAccount())
        offer_account.put_hold(before, after)
        self.buyers.put_hold(before, after)
        if after is not None and after.ending is None and not after.flavor.worker:
            self.loose_holds[hold.id] = after
        else:
            self.loose_holds.pop(hold.id, None)
        if after is None:
            self.holds.pop(hold.id, None)
            self.over_holds.pop(hold.id, None)
            if self.once.get(hold.once) == hold.id:
                del self.once[hold.once]
        else:
            self.holds[hold.id] = after
            if after.once:
                self.once[after.once] = hold.id
            if after.ending not in (None, EndReason.BOUGHT):
                self.over_holds.setdefault(hold.id)
        self._drop_if_empty(flavor, offer_account)
        return flavor

    def put_sale(self, before: ContractRecord | None, after: ContractRecord | None) -> OfferId:
        """A contract changed; gives its flavor."""
        sale = after or before
        assert sale is not None
        id, flavor = sale.contract.id, sale.contract.flavor.id
        offer_account = self.flavors.setdefault(flavor, OfferAccount())
        offer_account.put_sale(before, after)
        self.buyers.put_sale(before, after)
        if after is not None and after.contract.ended_at is None:
            self.live_sales[id] = after
            self.loose_contracts.put(id, after.contract)
        else:
            self.live_sales.pop(id, None)
            self.loose_contracts.put(id, None)
        if after is None:
            self.sales.pop(id, None)
            self.over_sales.pop(id, None)
        else:
            self.sales[id] = after
            if after.contract.ended_at is not None:
                self.over_sales.setdefault(id)
        self._drop_if_empty(flavor, offer_account)
        return flavor

    def sort(self) -> None:
        """Put what is over in the order of its end; what was read from the store all at once has none."""
        self.over_holds = dict.fromkeys(
            sorted(self.over_holds, key=lambda id: self.holds[id].ended_at or 0.0)
        )
        self.over_sales = dict.fromkeys(
            sorted(self.over_sales, key=lambda id: self.sales[id].contract.ended_at or 0.0)
        )
        self.over_flavors = dict.fromkeys(sorted(self.over_flavors, key=self._withdrawn_at))
        self.buyers.sort()

    def _withdrawn_at(self, id: OfferId) -> float:
        account = self.flavors[id].account
        return account.withdrawn.at if account is not None and account.withdrawn is not None else 0.0

    def _drop_if_empty(self, id: OfferId, offer_account: OfferAccount) -> None:
        if offer_account.is_empty:
            self.flavors.pop(id, None)


def _put_unknown(
    records: dict[str, Hold | Contract], before: Hold | Contract | None, after: Hold | Contract | None
) -> None:
    """Keep `records` to those that are live and of unknown buyers."""
    if after is not None and after.is_unknown and after.ended_at is None:
        records[after.id] = after
    elif before is not None:
        records.pop(before.id, None)


def _count(counts: defaultdict[CloudId, int], buyer: CloudId, number: int) -> None:
    """Buyers with a count of 0 are not kept."""
    counts[buyer] += number
    if not counts[buyer]:
        del counts[buyer]


def _contract(sale: ContractRecord | None) -> Contract | None:
    return None if sale is None else sale.contract


def _due_of_hold(hold: Hold | None) -> Deadline | None:
    return None if hold is None or hold.ending is not None else Deadline(hold.expires_at, hold.id, True)


def _due_of_sale(sale: ContractRecord | None) -> Deadline | None:
    if sale is None or sale.contract.ended_at is not None:
        return None
    return Deadline(sale.contract.due_at, sale.contract.id, False)
