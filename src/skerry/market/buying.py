"""Buying: the best offer is held, bought, checked, signed and kept, or else nothing of it is left.

A record of the deal is durable before the provider is asked to hold anything, and becomes the contract in one
transaction (`skerry.market.loans`). Until then a failure, a crash or a buyer that hangs up means that it is
undone: by `Buyer` itself, or by that of the server that leads once the deal is overdue. From then on it is
kept, and whoever keeps contracts alive opens it or gives it back (`skerry.market.borrowing`). A peer that
fails, has no room or lies falls to the next best offer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import structlog
from msgspec.structs import replace

from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import finish
from skerry.market import bidding, borrowing, dealing, signing
from skerry.market.dealing import Bought, Provider, Providers, Reserved
from skerry.market.keys import SigningKey
from skerry.market.listing import Lister
from skerry.market.loans import Deal, Loan, Loans
from skerry.market.peers import Peers
from skerry.market.trading import Borrowed, Found, Listing, Progress, State, Wish, of_peer
from skerry.model import errors, nodes
from skerry.model.ids import CloudId
from skerry.model.market import Contract
from skerry.model.settings import MarketSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")

# A deal is bounded by its own timer; only after that and a while is it anybody else's to undo.
_GRACE_S: Final = 5.0
_SWEEP_S: Final = 2.0
# How long a peer that is gone is left alone: of each try the log tells.
_BACKOFF: Final = Backoff(first_s=_SWEEP_S, cap_s=300.0)
# A contract that could not be given back for this long beyond its end needs no giving back.
_FORGET_S: Final = 3600.0
# Answers that mean that nothing is held for us.
_NOTHING: Final = (
    errors.NoRoom,
    errors.NotFound,
    errors.Expired,
    errors.Unprocessable,
    errors.Invalid,
    errors.Refused,
    errors.Forbidden,
)


class _Failed(NamedTuple):
    """A deal that could not be undone so far."""

    times: int
    again_at: float  # by the monotonic clock


class Buyer:
    """Buys with `key`; `run` for ever undoes what was left behind."""

    def __init__(
        self,
        loans: Loans,
        peers: Peers,
        lister: Lister,
        providers: Providers,
        key: SigningKey,
        clock: Clock,
        settings: MarketSettings,
        *,
        is_leading: Callable[[], bool],
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._loans = loans
        self._peers = peers
        self._lister = lister
        self._providers = providers
        self._key = key
        self._clock = clock
        self._settings = settings
        self._is_leading = is_leading
        self._new_id = new_id
        self._left: dict[str, Deal] = {}  # to be undone by this server
        self._failed: dict[str, _Failed] = {}
        self._wake = asyncio.Event()

    async def buy(self, wish: Wish, *, actor: str) -> AsyncIterator[Progress]:
        """Buy what is wished for at the best price, and wait for its node."""
        yield Progress("listing", "asking " + (f"peer {wish.peer}" if wish.peer else "all peers"))
        listing = await self._lister.offers(wish)
        candidates = _candidates(listing, wish)
        failures = {failure.peer: failure.message for failure in listing.failures}
        if not self._peers.all():
            raise errors.NoRoom("there is no peer to buy of; name one with `skerry market peers add`")
        if not candidates:
            raise errors.NoRoom(
                "no peer offers what is wished for; see `skerry market offers` for what there is"
                + _because(failures)
            )
        yield Progress("listing", _listed(listing, candidates))
        time = asyncio.get_running_loop().time
        deadlines: dict[str, float] = {}  # of peers, or with many offers one could hold us up for as often
        for found in candidates:
            deadline = deadlines.setdefault(found.peer, time() + self._settings.deal_timeout_s)
            if time() >= deadline:
                continue
            deal = self._deal(found, wish)
            try:
                yield Progress(
                    "reserving", f"{found.flavor.id} of {found.peer} for {dealing.spoken(found.price)}"
                )
                held = await _by(deadline, self._reserve(deal, found))
                deal = replace(deal, hold=held.id)
                yield Progress("buying", f"hold {held.id} of {found.peer}")
                bought, contract = await _by(deadline, self._purchase(deal, found, held))
                yield Progress("signing", f"contract {contract.id} of {found.peer}")
                document = await _by(deadline, self._sign(deal, contract, bought))
            except errors.SkerryError as error:
                log.info("deal.failed", peer=found.peer, flavor=found.flavor.id, error=error.message)
                failures[found.peer] = of_peer(found.peer, error.message)
                if _is_away(error):
                    deadlines[found.peer] = 0.0
                await self._compensate(deal, error)
                continue
            except BaseException:
                self._leave(deal)
                raise
            borrowed = await self._keep(deal, contract, document, deadline, actor)
            yield Progress("opening", f"waiting for node {borrowed.node}", borrowed)
            yield Progress("done", f"node {borrowed.node} takes work", await self._opened(borrowed))
            return
        raise errors.Unavailable("nothing could be bought" + _because(failures))

    # Steps

    def _deal(self, found: Found, wish: Wish) -> Deal:
        now = self._clock.now()
        return Deal(
            id=self._new_id(),
            peer=found.peer,
            flavor=found.flavor.id,
            room=found.room,
            count=found.count,
            made_at=now,
            due_at=now + self._settings.deal_timeout_s + _GRACE_S,
            duration_s=wish.duration_s,
        )

    async def _reserve(self, deal: Deal, found: Found) -> Reserved:
        await self._loans.begin(deal)
        held = await self._held(deal)
        dealing.check_reserved(held, room=found.room, count=found.count, most=found.price)
        # Before it is bought: who finds this record knows the hold that may be a contract.
        await self._loans.note(replace(deal, hold=held.id))
        return held

    async def _held(self, deal: Deal) -> Reserved:
        return await self._provider(deal).reserve(
            deal.flavor, deal.room, deal.count, deal.duration_s, key=deal.id
        )

    async def _purchase(self, deal: Deal, found: Found, held: Reserved) -> tuple[Bought, Contract]:
        bought = await self._provider(deal).purchase(held.id)
        contract = dealing.check_contract(
            bought.document,
            seller=CloudId(self._peers.get(deal.peer).cloud),
            buyer=self._key.cloud,
            flavor=found.flavor,
            held=held,
            duration_s=deal.duration_s,
            now=self._clock.now(),
        )
        if self._loans.find(contract.id) is not None:
            raise errors.Refused("its contract has an id that another one has")
        return bought, contract

    async def _sign(self, deal: Deal, contract: Contract, bought: Bought) -> bytes:
        document = signing.countersign(self._key, bought.document)
        await self._provider(deal).sign(contract.id, document)
        return document

    async def _keep(
        self, deal: Deal, contract: Contract, document: bytes, deadline: float, actor: str
    ) -> Borrowed:
        """Make it ours. If that fails it is not tried elsewhere: it may have happened all the same."""
        left_s = deadline - asyncio.get_running_loop().time()
        borrowed = Borrowed(
            id=contract.id,
            peer=deal.peer,
            cloud=contract.seller,
            node=nodes.borrowed_id(contract.id),
            flavor=contract.flavor.id,
            room=contract.room,
            count=contract.count,
            price=contract.price,
            total=contract.total,
            starts_at=contract.starts_at,
            ends_at=contract.ends_at,
            state=State.OPENING,
            reclaim_at=None,
            reason="",
            ended_at=None,
            document=document.decode("ascii"),
            actor=actor,
        )
        loan = Loan(
            borrowed,
            hold=contract.hold,
            signed_until=contract.ends_at,
            open_by=self._clock.now() + max(left_s, 0.0),
        )
        try:
            await finish(self._loans.keep(deal, loan))
        except errors.SkerryError as error:
            await self._compensate(deal, error)
            raise
        log.info("contract.borrowed", contract=contract.id, peer=deal.peer, actor=actor)
        return borrowed

    async def _opened(self, borrowed: Borrowed) -> Borrowed:
        """The contract once its node takes work; raises why it never will. Who leads sees to either."""
        try:
            async with asyncio.timeout(self._settings.deal_timeout_s + _GRACE_S):
                return await self._settled(borrowed)
        except TimeoutError:
            now = self._clock.now()
            await self._loans.change(
                borrowed.id, lambda loan: borrowing.leave(loan, now), actor=borrowed.actor
            )
            raise errors.TimedOut(
                f"contract {borrowed.id} of {borrowed.peer} was not opened in time, and is given back"
            ) from None

    async def _settled(self, borrowed: Borrowed) -> Borrowed:
        while True:
            moved = self._loans.moved
            loan = self._loans.find(borrowed.id)
            if loan is None or loan.is_over:
                reason = loan.borrowed.reason if loan is not None else "it is forgotten"
                raise errors.Unavailable(f"contract {borrowed.id} of {borrowed.peer} ended: {reason}")
            if loan.borrowed.state is not State.OPENING:
                return loan.borrowed
            await moved.wait()

    # Undoing

    async def run(self) -> None:
        """Undo what is left of deals, for ever."""
        while True:
            self._wake.clear()
            await self.sweep()
            with suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_S):
                    await self._wake.wait()

    async def sweep(self) -> None:
        """One look: deals that were left here, and if this server leads, those that are overdue.

        Happens by itself; a test with its own clock calls it.
        """
        todo, self._left = self._left, {}
        deals = {deal.id: deal for deal in self._loans.deals()}
        self._failed = {id: failed for id, failed in self._failed.items() if id in deals}
        if self._is_leading():
            todo |= {id: deal for id, deal in deals.items() if self._is_due(deal)}
        # All at once: a peer that hangs takes its time, and others need not wait for it.
        await asyncio.gather(*(self._try_to_undo(deal) for deal in todo.values()))

    def _is_due(self, deal: Deal) -> bool:
        failed = self._failed.get(deal.id)
        is_time = failed is None or self._clock.monotonic() >= failed.again_at
        return is_time and self._clock.now() >= deal.due_at

    async def _compensate(self, deal: Deal, error: errors.SkerryError) -> None:
        """Undo it before anything else is tried, unless that would mean to wait for a peer that is away."""
        if _is_away(error):
            self._leave(deal)
        else:
            await self._try_to_undo(deal)

    def _leave(self, deal: Deal) -> None:
        self._left[deal.id] = deal
        self._wake.set()

    async def _try_to_undo(self, deal: Deal) -> None:
        """Undo it now, if that can be; else it stays on record, and is tried again."""
        try:
            async with asyncio.timeout(self._settings.deal_timeout_s):
                await self._undo(deal)
        except (errors.SkerryError, TimeoutError) as error:
            before = self._failed[deal.id].times if deal.id in self._failed else 0
            again_at = self._clock.monotonic() + _BACKOFF.delay(before)
            self._failed[deal.id] = _Failed(before + 1, again_at)
            log.warning("deal.not-undone", deal=deal.id, peer=deal.peer, error=str(error))
            if self._clock.now() >= deal.made_at + (deal.duration_s or _FORGET_S) + _FORGET_S:
                await self._loans.drop(deal)
            return
        log.info("deal.undone", deal=deal.id, peer=deal.peer)

    async def _undo(self, deal: Deal) -> None:
        provider = self._provider(deal)
        hold = deal.hold
        if hold is None:
            try:
                hold = (await self._held(deal)).id  # with the same key: what was held, if anything was
            except _NOTHING:
                await self._loans.drop(deal)
                return
        try:
            await provider.cancel(hold)
        except errors.Conflict:
            await provider.release((await provider.purchase(hold)).id)
        except (errors.NotFound, errors.Expired):
            pass  # its time was over, and with it all that it held
        await self._loans.drop(deal)

    def _provider(self, deal: Deal) -> Provider:
        return self._providers(self._peers.get(deal.peer))


async def _by(deadline: float, work: Awaitable[T]) -> T:
    """The result of `work`, by a time of the event loop's clock."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise errors.TimedOut("it did not answer in the time for a deal (market.deal_timeout_s)") from None


def _is_away(error: errors.SkerryError) -> bool:
    return isinstance(error, errors.TimedOut | errors.Unavailable)


def _candidates(listing: Listing, wish: Wish) -> list[Found]:
    """Offers to try, the best first, all of one currency."""
    currency = wish.currency or bidding.common_currency(listing.found)
    return [one for one in listing.found if one.price.currency == currency]


def _listed(listing: Listing, candidates: list[Found]) -> str:
    best = candidates[0]
    count = len(candidates)
    text = f"{count} offer{'' if count == 1 else 's'} in {best.price.currency}, the best of {best.peer}"
    if others := len(listing.found) - count:
        text += f"; not compared with {others} in other currencies"
    if listing.failures:
        text += f"; no answer of {', '.join(failure.peer for failure in listing.failures)}"
    return text


def _because(failures: Mapping[str, str]) -> str:
    """What each peer said last."""
    return "".join(f"; {message}" for message in failures.values())
