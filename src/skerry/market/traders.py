"""The buyer's part of a cloud as one door: `skerry.market.trading.Trader`.

Only puts together: peers are `skerry.market.peers`, asking them `skerry.market.listing`, buying
`skerry.market.buying`. Contracts are given back by a wish on their record, which whoever keeps them alive
carries out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from skerry.kit.clock import Clock
from skerry.market import borrowing, dealing, signing
from skerry.market.buying import Buyer
from skerry.market.dealing import Providers
from skerry.market.keys import SigningKey
from skerry.market.listing import Lister
from skerry.market.loans import Loan, Loans
from skerry.market.peers import Peers
from skerry.market.trading import Borrowed, Listing, Peer, PeerState, Progress, Wish
from skerry.model import errors
from skerry.model.settings import MarketSettings


class Desk:
    """Keeps the protocol `Trader`."""

    def __init__(
        self,
        loans: Loans,
        peers: Peers,
        lister: Lister,
        buyer: Buyer,
        providers: Providers,
        key: SigningKey,
        clock: Clock,
        settings: MarketSettings,
    ) -> None:
        self._loans = loans
        self._peers = peers
        self._lister = lister
        self._buyer = buyer
        self._providers = providers
        self._key = key
        self._clock = clock
        self._settings = settings

    # Peers

    def peers(self) -> Sequence[PeerState]:
        return self._lister.states()

    async def set_peer(self, peer: Peer, *, actor: str) -> None:
        """Its way may change at any time; whose it is only when nothing of it is borrowed."""
        known = next((one for one in self._peers.all() if one.name == peer.name), None)
        if known is not None and known.cloud != peer.cloud:
            self._require_unused(peer.name, "becomes another cloud")
        await self._peers.put(peer, actor=actor)

    async def remove_peer(self, name: str, *, actor: str) -> None:
        self._peers.get(name)
        self._require_unused(name, "is removed")
        await self._peers.remove(name, actor=actor)

    def _require_unused(self, name: str, becoming: str) -> None:
        live = [
            loan.borrowed.id for loan in self._loans.all() if not loan.is_over and loan.borrowed.peer == name
        ]
        if live:
            others = f" and {len(live) - 1} more" if len(live) > 1 else ""
            raise errors.Conflict(
                f"contract {live[0]} of peer {name}{others} is live; release what is bought of it before it "
                f"{becoming}"
            )
        if any(deal.peer == name for deal in self._loans.deals()):
            raise errors.Conflict(f"a purchase of peer {name} is under way; try again in a minute")

    # Buying

    async def offers(self, wish: Wish, *, own: bool = False) -> Listing:
        return await self._lister.offers(wish, own=own)

    def buy(self, wish: Wish, *, actor: str) -> AsyncIterator[Progress]:
        wish.check_amount()
        return self._buyer.buy(wish, actor=actor)

    # Contracts

    def borrowed(self) -> Sequence[Borrowed]:
        return [loan.borrowed for loan in self._loans.all()]

    def get(self, id: str) -> Borrowed:
        return self._loans.get(id).borrowed

    async def release(self, id: str, *, actor: str) -> Borrowed:
        """Its node is drained first, for at most `market.drain_s`; one that is over stays as it is."""
        by = self._clock.now() + self._settings.drain_s
        loan = await self._loans.change(self.get(id).id, lambda loan: borrowing.leave(loan, by), actor=actor)
        return loan.borrowed

    async def renew(self, id: str, duration_s: float, *, actor: str) -> Borrowed:
        """`Refused` if it ends anyway, or if its provider asks for more money than before."""
        loan = self._loans.get(id)
        borrowed = loan.borrowed
        if loan.is_over or loan.leave_by is not None or borrowed.reclaim_at is not None:
            raise errors.Refused(f"contract {borrowed.id} ends: {borrowed.reason or 'it is over'}; buy anew")
        if not duration_s >= 1:
            raise errors.Invalid("a contract is renewed for at least a second", field="duration_s")
        before = signing.verify(borrowed.document.encode("ascii")).contract
        provider = self._providers(self._peers.get(borrowed.peer))
        until = before.ends_at + duration_s
        document = await provider.renew(borrowed.id, until)
        after = dealing.check_renewed(document, before, until=until, most=borrowed.price)
        both = signing.countersign(self._key, document)
        await provider.sign(borrowed.id, both)

        def renewed(loan: Loan) -> Loan:
            terms = replace(
                loan.borrowed,
                price=after.price,
                total=after.total,
                ends_at=after.ends_at,
                document=both.decode("ascii"),
            )
            return replace(loan, borrowed=terms, signed_until=after.ends_at)

        return (await self._loans.change(borrowed.id, renewed, actor=actor, told="renewed")).borrowed
