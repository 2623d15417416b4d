"""The ledger's mirror of the store: a book for each flavor, and where each hold and contract is found.

Fed with what moved in the store and with nothing else. `decisions` reads it; nobody but the ledger writes it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from skerry.market.accounts import Account, Sale
from skerry.model.ids import CloudId, ContractId, FlavorId, HoldId
from skerry.model.market import Ending, Hold
from skerry.model.room import NOTHING, total

LAPSE_WINDOW_S: Final = 3600.0


class Due(NamedTuple):
    """What ends at a time if nothing else happens."""

    at: float
    id: str
    is_hold: bool


class Book:
    """One flavor: its account, and what is live on it."""

    def __init__(self) -> None:
        self.account: Account | None = None
        self.revision = 0  # of the account
        self.holds: dict[HoldId, Hold] = {}  # live ones
        self.sales: dict[ContractId, Sale] = {}  # live ones
        self._dues: list[Due] = []  # of both, in the order of time

    @property
    def is_empty(self) -> bool:
        """True if nothing is known of the flavor."""
        return self.account is None and not self.holds and not self.sales

    @property
    def next_due(self) -> float | None:
        """When there is something to do, if nobody asks for anything; None: never."""
        times = [self._dues[0].at] if self._dues else []
        if self.account is not None:
            withdrawn, expires_at = self.account.withdrawn, self.account.flavor.expires_at
            if withdrawn is None and expires_at is not None:
                times.append(expires_at)
            if withdrawn is not None and withdrawn.reclaims and self._has_untold:
                times.append(withdrawn.at)
        return min(times, default=None)

    @property
    def _has_untold(self) -> bool:
        """True if there are contracts that are not to be taken back yet."""
        return any(sale.contract.reclaim_at is None for sale in self.sales.values())

    def due(self, now: float) -> Iterator[Due]:
        """What ended by `now`, the oldest first."""
        for one in self._dues:
            if one.at > now:
                return
            yield one

    def audit(self) -> list[str]:
        """What does not add up; empty if all does."""
        if self.account is None:
            return ["there are holds or contracts on no flavor"] if not self.is_empty else []
        wrong = []
        for name, kept, found in (
            ("held", self.account.held, total(hold.taken for hold in self.holds.values())),
            ("sold", self.account.sold, total(sale.contract.taken for sale in self.sales.values())),
        ):
            if kept != found:
                wrong.append(f"{name} is {kept}, but what is {name} makes {found}")
        if not self.account.capacity.fits(self.account.held + self.account.sold):
            wrong.append(f"more is held and sold than {self.account.capacity}")
        return wrong

    def _mind(self, before: Due | None, after: Due | None) -> None:
        if before is not None:
            place = bisect_left(self._dues, before)
            assert self._dues[place] == before
            del self._dues[place]
        if after is not None:
            insort(self._dues, after)

    def put_hold(self, before: Hold | None, after: Hold | None) -> None:
        self._mind(_due_of_hold(before), _due_of_hold(after))
        if after is not None and after.ending is None:
            self.holds[after.id] = after
        elif before is not None:
            self.holds.pop(before.id, None)

    def put_sale(self, before: Sale | None, after: Sale | None) -> None:
        self._mind(_due_of_sale(before), _due_of_sale(after))
        if after is not None and after.contract.ended_at is None:
            self.sales[after.contract.id] = after
        elif before is not None:
            self.sales.pop(before.contract.id, None)


class Buyers:
    """What each buyer holds, and when it let holds expire."""

    def __init__(self) -> None:
        self._holds: defaultdict[CloudId, int] = defaultdict(int)
        self._promised: set[HoldId] = set()
        self._lapsed: defaultdict[CloudId, deque[float]] = defaultdict(deque)
        self._lapses: deque[tuple[float, CloudId]] = deque()  # of all buyers, the oldest first

    def holds(self, buyer: CloudId) -> int:
        """Live holds, with those that are decided and not durable yet."""
        return self._holds.get(buyer, 0)

    def lapsed(self, buyer: CloudId, now: float) -> Sequence[float]:
        """When it let holds expire within the last hour, the oldest first."""
        while self._lapses and self._lapses[0][0] <= now - LAPSE_WINDOW_S:
            _, whose = self._lapses.popleft()
            self._lapsed[whose].popleft()
            if not self._lapsed[whose]:
                del self._lapsed[whose]
        return self._lapsed.get(buyer, ())

    def promise(self, hold: Hold) -> None:
        """Count a hold that is on its way into the store."""
        self._promised.add(hold.id)
        self._count(hold.buyer, 1)

    def forget(self, hold: Hold) -> None:
        """It did not get there; no matter if it did."""
        if hold.id in self._promised:
            self._promised.remove(hold.id)
            self._count(hold.buyer, -1)

    def put_hold(self, before: Hold | None, after: Hold | None) -> None:
        if after is not None:
            self.forget(after)
        if before is not None and before.ending is None:
            self._count(before.buyer, -1)
        if after is None:
            return
        if after.ending is None:
            self._count(after.buyer, 1)
        elif after.ending is Ending.EXPIRED and (before is None or before.ending is None):
            self._lapses.append((after.expires_at, after.buyer))
            self._lapsed[after.buyer].append(after.expires_at)

    def sort(self) -> None:
        self._lapses = deque(sorted(self._lapses))
        self._lapsed.clear()
        for at, buyer in self._lapses:
            self._lapsed[buyer].append(at)

    def _count(self, buyer: CloudId, number: int) -> None:
        """Nobody is kept of whom there is nothing to count."""
        self._holds[buyer] += number
        if not self._holds[buyer]:
            del self._holds[buyer]


class Books:
    """All of it."""

    def __init__(self) -> None:
        self.flavors: dict[FlavorId, Book] = {}
        self.holds: dict[HoldId, Hold] = {}
        self.sales: dict[ContractId, Sale] = {}
        self.live_sales: dict[ContractId, Sale] = {}  # those that have not ended
        self.of_nodes: dict[FlavorId, None] = {}  # flavors that are carved from a node
        self.once: dict[str, HoldId] = {}  # which hold a request made that may be repeated
        self.buyers = Buyers()
        # What is over, in the order in which it ended, to be forgotten one day; a bought hold goes with its
        # contract.
        self.over_holds: dict[HoldId, None] = {}
        self.over_sales: dict[ContractId, None] = {}
        self.over_flavors: dict[FlavorId, None] = {}

    def book(self, flavor: FlavorId) -> Book:
        """The book of a flavor, empty if it is not known."""
        return self.flavors.get(flavor) or Book()

    def put_account(self, before: Account | None, after: Account | None, revision: int) -> FlavorId:
        """A flavor changed; `revision` is that of its account now. Gives its id."""
        account = after or before
        assert account is not None
        id = account.flavor.id
        book = self.flavors.setdefault(id, Book())
        book.account, book.revision = after, revision
        if after is not None and after.flavor.worker:
            self.of_nodes[id] = None
        else:
            self.of_nodes.pop(id, None)
        if after is not None and after.withdrawn is not None and after.held == after.sold == NOTHING:
            self.over_flavors.setdefault(id)
        else:
            self.over_flavors.pop(id, None)
        self._drop_if_empty(id, book)
        return id

    def put_hold(self, before: Hold | None, after: Hold | None) -> FlavorId:
        """A hold changed; gives its flavor."""
        hold = after or before
        assert hold is not None
        flavor = hold.flavor.id
        book = self.flavors.setdefault(flavor, Book())
        book.put_hold(before, after)
        self.buyers.put_hold(before, after)
        if after is None:
            self.holds.pop(hold.id, None)
            self.over_holds.pop(hold.id, None)
            if self.once.get(hold.once) == hold.id:
                del self.once[hold.once]
        else:
            self.holds[hold.id] = after
            if after.once:
                self.once[after.once] = hold.id
            if after.ending not in (None, Ending.BOUGHT):
                self.over_holds.setdefault(hold.id)
        self._drop_if_empty(flavor, book)
        return flavor

    def put_sale(self, before: Sale | None, after: Sale | None) -> FlavorId:
        """A contract changed; gives its flavor."""
        sale = after or before
        assert sale is not None
        id, flavor = sale.contract.id, sale.contract.flavor.id
        book = self.flavors.setdefault(flavor, Book())
        book.put_sale(before, after)
        if after is not None and after.contract.ended_at is None:
            self.live_sales[id] = after
        else:
            self.live_sales.pop(id, None)
        if after is None:
            self.sales.pop(id, None)
            self.over_sales.pop(id, None)
        else:
            self.sales[id] = after
            if after.contract.ended_at is not None:
                self.over_sales.setdefault(id)
        self._drop_if_empty(flavor, book)
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

    def _withdrawn_at(self, id: FlavorId) -> float:
        account = self.flavors[id].account
        return account.withdrawn.at if account is not None and account.withdrawn is not None else 0.0

    def _drop_if_empty(self, id: FlavorId, book: Book) -> None:
        if book.is_empty:
            self.flavors.pop(id, None)


def _due_of_hold(hold: Hold | None) -> Due | None:
    return None if hold is None or hold.ending is not None else Due(hold.expires_at, hold.id, True)


def _due_of_sale(sale: Sale | None) -> Due | None:
    if sale is None or sale.contract.ended_at is not None:
        return None
    return Due(sale.contract.due_at, sale.contract.id, False)
