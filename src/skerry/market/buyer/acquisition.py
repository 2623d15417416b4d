"""Purchases: the best offer is reserved, purchased, verified, signed and stored, or all of it is undone.

A record of the deal is durable before the reservation, and becomes the contract in one transaction
(`skerry.market.buyer.contract_table`). Until then a failure, a crash or a client that disconnects undoes it:
by `ContractBuyer` itself, or by the leader once the deal is overdue. From then on it is kept, and opened or
released (`skerry.market.buyer.node_decisions`). After a peer that fails, has no capacity or breaks the terms,
the next best offer is tried.
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
from skerry.kit.tasks import run_to_completion
from skerry.market.buyer import node_decisions, provider_client, ranking
from skerry.market.buyer.contract_table import BorrowedContractRecord, BorrowedContractTable, PendingContract
from skerry.market.buyer.peers import MarketPeerTable
from skerry.market.buyer.provider_client import ProviderClient, ProviderClients, RemoteContract, RemoteHold
from skerry.market.buyer.quotes import (
    BorrowedContract,
    BorrowedContractState,
    BuyProgress,
    CapacityRequest,
    OfferQuote,
    OfferSearchResult,
    peer_error,
)
from skerry.market.buyer.search import OfferSearch
from skerry.market.terms import signatures
from skerry.market.terms.keys import SigningKey
from skerry.model import errors, nodes
from skerry.model.ids import CloudId
from skerry.model.market import Contract
from skerry.model.market_settings import MarketSettings
from skerry.store.protocol import Expect

log = structlog.get_logger(__name__)

T = TypeVar("T")

# A deal has a time limit of its own; only some time after that may another server undo it.
_GRACE_S: Final = 5.0
_PAUSE_S: Final = 0.05
_AT_MOST_S: Final = 60.0  # times are those of the wall clock, which may be set while we wait
# How long an unreachable peer is not tried again: each attempt is logged.
_BACKOFF: Final = Backoff(first_s=2.0, cap_s=300.0)
# A contract that could not be given back for this long beyond its end needs no giving back.
_RETRY_PEER_S: Final = 3600.0
# Answers that mean that nothing is held for us.
_NOTHING: Final = (
    errors.ResourcesExhausted,
    errors.NotFound,
    errors.Expired,
    errors.Unprocessable,
    errors.Invalid,
    errors.FailedPrecondition,
    errors.Forbidden,
)


class _RollbackAttempt(NamedTuple):
    """A deal that could not be undone so far."""

    times: int
    again_at: float  # by the monotonic clock


class ContractBuyer:
    """Buys with `key`; `run` for ever undoes what is left here, `lead` what others left."""

    def __init__(
        self,
        contracts: BorrowedContractTable,
        peers: MarketPeerTable,
        lister: OfferSearch,
        providers: ProviderClients,
        key: SigningKey,
        clock: Clock,
        settings: MarketSettings,
        *,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._contracts = contracts
        self._peers = peers
        self._lister = lister
        self._providers = providers
        self._key = key
        self._clock = clock
        self._settings = settings
        self._new_id = new_id
        self._left: dict[str, PendingContract] = {}  # to be undone by this server
        self._failed: dict[str, _RollbackAttempt] = {}
        self._wake = asyncio.Event()

    async def buy(self, request: CapacityRequest, *, actor: str) -> AsyncIterator[BuyProgress]:
        """Buy the requested capacity at the best price, and wait for its node."""
        yield BuyProgress("listing", "querying " + (f"peer {request.peer}" if request.peer else "all peers"))
        listing = await self._lister.offers(request)
        candidates = _candidates(listing, request)
        failures = {failure.peer: failure.message for failure in listing.failures}
        if not self._peers.all():
            raise errors.ResourcesExhausted(
                "there is no peer to buy of; name one with `skerry market peers add`"
            )
        if not candidates:
            raise errors.ResourcesExhausted(
                "no peer offers what is requested; see `skerry market offers` for what there is"
                + _because(failures)
            )
        yield BuyProgress("listing", _listed(listing, candidates))
        time = asyncio.get_running_loop().time
        deadlines: dict[str, float] = {}  # of peers, or with many offers one could hold us up for as often
        for found in candidates:
            deadline = deadlines.setdefault(found.peer, time() + self._settings.deal_timeout_s)
            if time() >= deadline:
                continue
            deal = self._deal(found, request)
            try:
                yield BuyProgress(
                    "reserving",
                    f"{found.flavor.id} of {found.peer} for {provider_client.format_price(found.price)}",
                )
                hold = await _by(deadline, self._reserve(deal, found))
                deal = replace(deal, hold=hold.id)
                yield BuyProgress("buying", f"hold {hold.id} of {found.peer}")
                bought, contract = await _by(deadline, self._purchase(deal, found, hold))
                yield BuyProgress("signing", f"contract {contract.id} of {found.peer}")
                document = await _by(deadline, self._sign(deal, contract, bought))
            except errors.SkerryError as error:
                log.info("deal.failed", peer=found.peer, flavor=found.flavor.id, error=error.message)
                failures[found.peer] = peer_error(found.peer, error.message)
                if _is_unreachable(error):
                    deadlines[found.peer] = 0.0
                await self._compensate(deal, error)
                continue
            except BaseException:
                self._leave(deal)
                raise
            borrowed = await self._keep(deal, contract, document, deadline, actor)
            yield BuyProgress("opening", f"waiting for node {borrowed.node}", borrowed)
            yield BuyProgress("done", f"node {borrowed.node} takes work", await self._opened(borrowed))
            return
        raise errors.Unavailable("nothing could be bought" + _because(failures))

    # Steps

    def _deal(self, found: OfferQuote, request: CapacityRequest) -> PendingContract:
        now = self._clock.now()
        return PendingContract(
            id=self._new_id(),
            peer=found.peer,
            flavor=found.flavor.id,
            resources=found.resources,
            count=found.count,
            made_at=now,
            due_at=now + self._settings.deal_timeout_s + _GRACE_S,
            duration_s=request.duration_s,
        )

    async def _reserve(self, deal: PendingContract, found: OfferQuote) -> RemoteHold:
        await self._contracts.begin(deal)
        hold = await self._place_hold(deal)
        provider_client.check_hold(hold, resources=found.resources, count=found.count, most=found.price)
        # Before it is purchased: the record has the hold, which may have become a contract.
        await self._contracts.note(replace(deal, hold=hold.id))
        return hold

    async def _place_hold(self, deal: PendingContract) -> RemoteHold:
        return await self._provider(deal).reserve(
            deal.flavor, deal.resources, deal.count, deal.duration_s, key=deal.id
        )

    async def _purchase(
        self, deal: PendingContract, found: OfferQuote, hold: RemoteHold
    ) -> tuple[RemoteContract, Contract]:
        bought = await self._provider(deal).purchase(hold.id)
        contract = provider_client.check_contract(
            bought.document,
            seller=CloudId(self._peers.get(deal.peer).cloud),
            buyer=self._key.cloud,
            flavor=found.flavor,
            hold=hold,
            duration_s=deal.duration_s,
            now=self._clock.now(),
        )
        if self._contracts.find(contract.id) is not None:
            raise errors.FailedPrecondition("its contract has an id that another one has")
        return bought, contract

    async def _sign(self, deal: PendingContract, contract: Contract, bought: RemoteContract) -> bytes:
        document = signatures.countersign(self._key, bought.document)
        await self._provider(deal).sign(contract.id, document)
        return document

    async def _keep(
        self, deal: PendingContract, contract: Contract, document: bytes, deadline: float, actor: str
    ) -> BorrowedContract:
        """Make it ours. If that fails it is not tried elsewhere: it may have happened all the same."""
        left_s = deadline - asyncio.get_running_loop().time()
        borrowed = BorrowedContract(
            id=contract.id,
            peer=deal.peer,
            cloud=contract.seller,
            node=nodes.borrowed_id(contract.id),
            flavor=contract.flavor.id,
            resources=contract.resources,
            count=contract.count,
            price=contract.price,
            total=contract.total,
            starts_at=contract.starts_at,
            ends_at=contract.ends_at,
            state=BorrowedContractState.OPENING,
            reclaim_at=None,
            reason="",
            ended_at=None,
            document=document.decode("ascii"),
            actor=actor,
        )
        record = BorrowedContractRecord(
            borrowed,
            hold=contract.hold,
            signed_until=contract.ends_at,
            open_by=self._clock.now() + max(left_s, 0.0),
        )
        try:
            await run_to_completion(self._contracts.keep(deal, record))
        except errors.SkerryError as error:
            await self._compensate(deal, error)
            raise
        log.info("contract.borrowed", contract=contract.id, peer=deal.peer, actor=actor)
        return borrowed

    async def _opened(self, borrowed: BorrowedContract) -> BorrowedContract:
        """The contract once its node takes work; raises why it never will. Who leads sees to either."""
        try:
            async with asyncio.timeout(self._settings.deal_timeout_s + _GRACE_S):
                return await self._is_settled(borrowed)
        except TimeoutError:
            now = self._clock.now()
            await self._contracts.change(
                borrowed.id, lambda record: node_decisions.request_release(record, now), actor=borrowed.actor
            )
            raise errors.TimedOut(
                f"contract {borrowed.id} of {borrowed.peer} was not opened in time, and is given back"
            ) from None

    async def _is_settled(self, borrowed: BorrowedContract) -> BorrowedContract:
        while True:
            moved = self._contracts.moved
            record = self._contracts.find(borrowed.id)
            if record is None or record.is_over:
                reason = record.borrowed.reason if record is not None else "it is no longer stored"
                raise errors.Unavailable(f"contract {borrowed.id} of {borrowed.peer} ended: {reason}")
            if record.borrowed.state is not BorrowedContractState.OPENING:
                return record.borrowed
            await moved.wait()

    # Undoing

    async def run(self) -> None:
        """Undo what is left here of deals, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.undo_left()

    async def lead(self, fence: Expect) -> None:
        """Undo deals that are overdue, whichever server left them, while this one leads."""
        while True:
            moved = self._contracts.moved
            await self.undo_overdue(fence)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_overdue()):
                    await moved.wait()

    async def undo_left(self) -> None:
        """Try once to undo the deals that were left here."""
        left, self._left = self._left, {}
        # All at once: a peer that hangs takes its time, and others need not wait for it.
        await asyncio.gather(*(self._try_to_undo(deal) for deal in left.values()))

    async def undo_overdue(self, fence: Expect | None = None) -> None:
        """Try once to undo the deals that are overdue. Happens by itself; a test with its own clock calls
        it."""
        deals = {deal.id: deal for deal in self._contracts.deals()}
        self._failed = {id: failed for id, failed in self._failed.items() if id in deals}
        due = [deal for deal in deals.values() if self._wait_s(deal) <= 0]
        await asyncio.gather(*(self._try_to_undo(deal, fence) for deal in due))

    def _until_overdue(self) -> float | None:
        """Seconds until a recorded deal must be undone; None if there is none."""
        waits = (self._wait_s(deal) for deal in self._contracts.deals())
        return min((min(max(wait_s, _PAUSE_S), _AT_MOST_S) for wait_s in waits), default=None)

    def _wait_s(self, deal: PendingContract) -> float:
        failed = self._failed.get(deal.id)
        rest_s = 0.0 if failed is None else failed.again_at - self._clock.monotonic()
        return max(rest_s, deal.due_at - self._clock.now())

    async def _compensate(self, deal: PendingContract, error: errors.SkerryError) -> None:
        """Undo it before anything else is tried, unless that would mean to wait for a peer that is away."""
        if _is_unreachable(error):
            self._leave(deal)
        else:
            await self._try_to_undo(deal)

    def _leave(self, deal: PendingContract) -> None:
        self._left[deal.id] = deal
        self._wake.set()

    async def _try_to_undo(self, deal: PendingContract, fence: Expect | None = None) -> None:
        """Undo it now, if that can be; else it stays on record, and is tried again."""
        try:
            async with asyncio.timeout(self._settings.deal_timeout_s):
                await self._undo(deal, fence)
        except (errors.SkerryError, TimeoutError) as error:
            before = self._failed[deal.id].times if deal.id in self._failed else 0
            again_at = self._clock.monotonic() + _BACKOFF.delay(before)
            self._failed[deal.id] = _RollbackAttempt(before + 1, again_at)
            log.warning("deal.not_undone", deal=deal.id, peer=deal.peer, error=str(error))
            if self._clock.now() >= deal.made_at + (deal.duration_s or _RETRY_PEER_S) + _RETRY_PEER_S:
                await self._contracts.drop(deal, fence=fence)
            return
        log.info("deal.undone", deal=deal.id, peer=deal.peer)

    async def _undo(self, deal: PendingContract, fence: Expect | None) -> None:
        provider = self._provider(deal)
        hold = deal.hold
        if hold is None:
            try:
                hold = (await self._place_hold(deal)).id  # with the same key: what was held, if anything was
            except _NOTHING:
                await self._contracts.drop(deal, fence=fence)
                return
        try:
            await provider.cancel(hold)
        except errors.Conflict:
            await provider.release((await provider.purchase(hold)).id)
        except (errors.NotFound, errors.Expired):
            pass  # its time was over, and with it all that it held
        await self._contracts.drop(deal, fence=fence)

    def _provider(self, deal: PendingContract) -> ProviderClient:
        return self._providers(self._peers.get(deal.peer))


async def _by(deadline: float, work: Awaitable[T]) -> T:
    """The result of `work`, by a time of the event loop's clock."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise errors.TimedOut("it did not answer in the time for a deal (market.deal_timeout_s)") from None


def _is_unreachable(error: errors.SkerryError) -> bool:
    return isinstance(error, errors.TimedOut | errors.Unavailable)


def _candidates(listing: OfferSearchResult, request: CapacityRequest) -> list[OfferQuote]:
    """Offers to try, the best first, all of one currency."""
    currency = request.currency or ranking.common_currency(listing.found)
    return [one for one in listing.found if one.price.currency == currency]


def _listed(listing: OfferSearchResult, candidates: list[OfferQuote]) -> str:
    best = candidates[0]
    count = len(candidates)
    text = f"{count} offer{'' if count == 1 else 's'} in {best.price.currency}, the best of {best.peer}"
    if others := len(listing.found) - count:
        text += f"; not compared with {others} in other currencies"
    if listing.failures:
        text += f"; no answer of {', '.join(failure.peer for failure in listing.failures)}"
    return text


def _because(failures: Mapping[str, str]) -> str:
    """The last error of each peer."""
    return "".join(f"; {message}" for message in failures.values())
