"""One decision in the making: a flavor's account with its holds and contracts, on top of the books.

What changes is kept here and seen by whatever is decided after it; the books are not touched. Ending what is
due is here too, because it comes before everything. `offering`, `holding` and `contracting` say what requests
change, and `skerry.market.decisions` puts them in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from skerry.market.accounts import Account, Sale, Withdrawal, flavor_key
from skerry.market.books import Book, Books
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, HoldId
from skerry.model.market import Contract, Ending, Hold
from skerry.model.room import Room
from skerry.model.settings import MarketSettings
from skerry.store.protocol import MAX_OPS

# So many of them, with all else that one transaction may hold, stay below the store's limit in bytes.
MAX_DOCUMENT: Final = 16 * 1024
# The most that one request or one deadline writes: a hold, a contract and an event. The account is apart.
_MOST_OPS: Final = 3


class Means(NamedTuple):
    """What decisions are made with."""

    settings: MarketSettings
    seller: CloudId
    new_hold: Callable[[], HoldId]
    new_contract: Callable[[float], ContractId]
    new_version: Callable[[], int]  # above those of all flavors, also of those that are forgotten
    make_contract: Callable[[Contract], bytes]


class Told(NamedTuple):
    """An event that goes with a decision."""

    kind: str
    subject: str
    actor: str
    reason: str
    data: dict[str, str]


class Draft:
    """The account of one flavor, and what changed of its holds and contracts."""

    def __init__(self, books: Books, book: Book, now: float, means: Means) -> None:
        self.books = books
        self.now = now
        self.means = means
        self.account = book.account
        self.holds: dict[HoldId, Hold] = {}  # those that changed
        self.sales: dict[ContractId, Sale] = {}
        self.events: list[Told] = []
        self.once: dict[str, HoldId] = {}
        self._book = book
        self._new: dict[CloudId, int] = {}  # live holds of each buyer, more or less than in the books

    @property
    def has_budget(self) -> bool:
        """True if one more change fits into the transaction."""
        used = 1 + len(self.holds) + len(self.sales) + len(self.events)
        return used + _MOST_OPS <= MAX_OPS

    @property
    def final_account(self) -> Account | None:
        """The account as it is to be written: with the next version if buyers see a difference."""
        before, account = self._book.account, self.account
        if account is None or before is None or _shown(before) == _shown(account):
            return account
        return replace(account, flavor=replace(account.flavor, version=before.flavor.version + 1))

    def known(self) -> Account:
        if self.account is None:
            raise errors.NotFound("there is no such flavor; list flavors to see what is offered")
        return self.account

    def offered(self) -> Account:
        account = self.known()
        if account.withdrawn is not None:
            reason = f": {account.withdrawn.reason}" if account.withdrawn.reason else ""
            raise errors.Expired(f"this flavor is no longer offered{reason}; list flavors to see what is")
        return account

    def holds_of(self, buyer: CloudId) -> int:
        """How many live holds a buyer has, of all flavors."""
        return self.books.buyers.holds(buyer) + self._new.get(buyer, 0)

    def find_hold(self, id: HoldId) -> Hold | None:
        return self.holds.get(id) or self.books.holds.get(id)

    def own_hold(self, id: HoldId, buyer: CloudId) -> Hold:
        hold = self.find_hold(id)
        if hold is None:
            raise no_such_hold()
        if hold.buyer != buyer:
            raise errors.Forbidden("this hold is another buyer's; only who made it may buy or cancel it")
        return hold

    def sale(self, id: ContractId) -> Sale:
        sale = self.sales.get(id) or self.books.sales.get(id)
        if sale is None:
            raise no_such_contract()
        return sale

    def own_sale(self, id: ContractId, buyer: CloudId) -> Sale:
        sale = self.sale(id)
        if sale.contract.buyer != buyer:
            raise errors.Forbidden("this contract is another buyer's; only its buyer may change it")
        return sale

    def live_holds(self) -> list[Hold]:
        return [hold for hold in (self._book.holds | self.holds).values() if hold.ending is None]

    def live_sales(self) -> list[Sale]:
        both = (self._book.sales | self.sales).values()
        return [sale for sale in both if sale.contract.ended_at is None]

    def tidy(self) -> bool:
        """End what is due and announce what is to be taken back; False if more is left than fits."""
        for due in self._book.due(self.now):
            if not self.has_budget:
                return False
            if due.is_hold:
                self.end_hold(self._book.holds[HoldId(due.id)], Ending.EXPIRED, due.at)
            else:
                self.end_sale(self._book.sales[ContractId(due.id)], due.at)
        account = self.account
        if account is not None and account.withdrawn is None and not account.is_offered(self.now):
            self.withdraw(Withdrawal(self.now, "its time is over"), "skerry")
        return self.reclaim_withdrawn("skerry")

    def add_hold(self, hold: Hold) -> None:
        account = self.known()
        self.account = account.moved(held=account.held + hold.taken, sold=account.sold)
        self.holds[hold.id] = hold
        self._new[hold.buyer] = self._new.get(hold.buyer, 0) + 1
        if hold.once:
            self.once[hold.once] = hold.id

    def end_hold(self, hold: Hold, ending: Ending, at: float) -> Hold:
        account = self.known()
        self.account = account.moved(held=account.held - hold.taken, sold=account.sold)
        self.holds[hold.id] = ended = replace(hold, ending=ending, ended_at=at)
        self._new[hold.buyer] = self._new.get(hold.buyer, 0) - 1
        return ended

    def sell(self, hold: Hold, sale: Sale) -> None:
        """The hold becomes the contract."""
        account, contract = self.known(), sale.contract
        self.account = account.moved(held=account.held - hold.taken, sold=account.sold + contract.taken)
        self.holds[hold.id] = replace(hold, ending=Ending.BOUGHT, ended_at=self.now, contract=contract.id)
        self._new[hold.buyer] = self._new.get(hold.buyer, 0) - 1
        self.sales[contract.id] = sale
        self.tell("contract.made", hold.buyer, contract=contract.id, room=words(hold.taken))

    def end_sale(self, sale: Sale, at: float, ending: Ending | None = None) -> Sale:
        account, contract = self.known(), sale.contract
        ending = ending or contract.ending_by(at)
        assert ending is not None, "what ends by itself is due"
        self.account = account.moved(held=account.held, sold=account.sold - contract.taken)
        self.sales[contract.id] = after = replace(
            sale, contract=replace(contract, ended_at=at, ending=ending)
        )
        actor = contract.buyer if ending is Ending.RELEASED else "skerry"
        self.tell(f"contract.{ending}", actor, contract=contract.id, room=words(contract.taken))
        return after

    def withdraw(self, withdrawal: Withdrawal, actor: str) -> None:
        self.account = replace(self.known(), withdrawn=withdrawal)
        self.tell("flavor.withdrawn", actor, withdrawal.reason, reclaims=str(withdrawal.reclaims).lower())

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

    def reclaim(self, sale: Sale, reason: str, actor: str, notice_s: float | None = None) -> Sale:
        at = self.now + (sale.contract.notice_s if notice_s is None else notice_s)
        after = replace(sale, contract=replace(sale.contract, reclaim_at=at, reason=reason))
        self.sales[sale.contract.id] = after
        self.tell("contract.reclaimed", actor, reason, contract=sale.contract.id)
        return after

    def document(self, contract: Contract) -> bytes:
        document = self.means.make_contract(contract)
        if len(document) > MAX_DOCUMENT:
            raise errors.Internal(
                "the contract cannot be written down", detail=f"its document has {len(document)} bytes"
            )
        return document

    def tell(self, kind: str, actor: str, reason: str = "", **data: str) -> None:
        """An event of an offer or a contract. Holds have none: who makes and cancels many would push all else
        out of the log.
        """
        self.events.append(Told(kind, flavor_key(self.known().flavor.id), actor, reason, data))


def no_such_hold() -> errors.NotFound:
    return errors.NotFound("there is no such transaction; reserve a flavor to get one")


def no_such_contract() -> errors.NotFound:
    return errors.NotFound("there is no such contract; purchase a reservation to get one")


def words(room: Room) -> str:
    return f"{room.cpu}m cpu, {room.memory} MB memory, {room.disk} GB disk"


def _shown(account: Account) -> tuple[object, ...]:
    """What buyers are told of: neither a purchase, which moves room that was not free before, nor whatever
    becomes of a flavor after it was withdrawn.
    """
    if account.withdrawn is not None:
        return (account.withdrawn,)
    return account.flavor, account.capacity, account.free
