"""The interface to a provider, and the checks of its responses.

`ProviderClient` is one peer, over any transport: `skerry.wire.rear.client`, or in tests a ledger. Nothing
that a provider states about a contract is trusted unless it is signed: `check_contract` is called between a
purchase and its use. Values only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from skerry.kit.clock import iso
from skerry.market.buyer.quotes import CapacityRequest, MarketPeer
from skerry.market.terms import pricing, request_proofs, signatures
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model import errors, nodes
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import Contract, Offer, Price
from skerry.model.resources import Resources

# An offer is shown at a price that was rounded, and the price of a part of it is rounded again.
_ROUNDING: Final = Decimal(2).scaleb(-pricing.DIGITS)
_MOMENT_S: Final = 1.0  # times in documents are rounded too


class RemoteHold(msgspec.Struct, frozen=True):
    """A hold, as the provider reported it."""

    id: HoldId
    resources: Resources
    count: int
    price: Price  # of all of it, for each period


class RemoteContract(msgspec.Struct, frozen=True):
    """The answer to a purchase. `document` is what counts; the id is for giving back what is not good."""

    id: str
    document: bytes
    credential: str  # opens the contract's tunnel, and nothing else

    def __repr__(self) -> str:
        return f"Bought(id={self.id!r})"


class RemoteContractStatus(msgspec.Struct, frozen=True):
    """The provider's status of a contract while its tunnel is open."""

    ends_at: float
    reclaim_at: float | None = None
    reason: str = ""
    ended: str = ""  # how; empty while it is not over
    cell: str = ""  # the status of the contract cell
    cell_reason: str = ""


class ProviderClient(Protocol):
    """One peer that sells."""

    async def check(self) -> None:
        """Raise `FailedPrecondition` if another cloud answers, whether or not it sells to us."""

    async def offers(self, request: CapacityRequest) -> Sequence[OfferSnapshot]:
        """Its offers that match the request; all without one, as many as fit in one response."""

    async def reserve(
        self, flavor: OfferId, resources: Resources, count: int, duration_s: float | None, *, key: str
    ) -> RemoteHold:
        """Hold it; again with the same key, it is the same hold."""

    async def purchase(self, hold: HoldId) -> RemoteContract:
        """Buy it; again, it is the same contract."""

    async def cancel(self, hold: HoldId) -> None:
        """Give the hold up; `Conflict` if it was bought."""

    async def sign(self, contract: ContractId, document: bytes) -> None:
        """Send the contract as we signed it."""

    async def release(self, contract: str) -> None:
        """Give it back; one that is over stays so."""

    async def renew(self, contract: ContractId, until: float) -> bytes:
        """Let it last until then; the new document. Again, it is the same."""


ProviderClients = Callable[[MarketPeer], ProviderClient]


def check_hold(found: RemoteHold, *, resources: Resources, count: int, most: Price) -> None:
    """Raise `FailedPrecondition` if the hold is not what was requested, or costs more than was offered."""
    if (found.resources, found.count) != (resources, count):
        raise errors.FailedPrecondition("it reserved something else than was requested")
    if not is_price_within(found.price, most):
        raise errors.FailedPrecondition(
            f"it offered this for {format_price(most)} and now costs {format_price(found.price)}"
        )


def check_contract(
    document: bytes,
    *,
    seller: CloudId,
    buyer: CloudId,
    flavor: Offer,
    hold: RemoteHold,
    duration_s: float | None,
    now: float,
) -> Contract:
    """The contract in `document`, if the seller signed it, for us, and on the terms of the hold, from now on.

    `flavor` is the offer. Raises `Invalid` or `FailedPrecondition`. Clocks may differ as much as those of
    proofs.
    """
    contract = signatures.verify(document, seller=seller, buyer=buyer).contract
    if contract.hold != hold.id:
        raise errors.FailedPrecondition("the contract is for another hold")
    if _described(contract.flavor) != _described(flavor):
        raise errors.FailedPrecondition("the contract is for something else than was offered")
    if (contract.resources, contract.count) != (hold.resources, hold.count):
        raise errors.FailedPrecondition("the contract is for another amount than was held")
    if not is_price_within(contract.price, hold.price):
        raise errors.FailedPrecondition(
            f"it was held for {format_price(hold.price)}, and the contract says "
            f"{format_price(contract.price)}"
        )
    length_s = contract.ends_at - contract.starts_at
    if contract.total > _most_for(contract.price, length_s):
        raise errors.FailedPrecondition("the total of the contract is more than its price for its length")
    # Whole seconds are requested, rounded up.
    if duration_s is not None and not -_MOMENT_S <= length_s - duration_s <= 2 * _MOMENT_S:
        raise errors.FailedPrecondition(
            f"the contract lasts {length_s:g} s, and {duration_s:g} s were requested"
        )
    if contract.starts_at > now + request_proofs.LEEWAY_S or contract.ends_at <= now:
        raise errors.FailedPrecondition("the contract is not in force now")
    nodes.borrowed_id(contract.id)  # raises what cannot be the name of a node
    return contract


def check_renewed(document: bytes, contract: Contract, *, until: float, most: Price) -> Contract:
    """The renewed contract in `document`, if only its length and its price have changed, and it ends as
    requested."""
    after = signatures.verify(document, seller=contract.seller, buyer=contract.buyer).contract
    may_differ = {name: getattr(contract, name) for name in ("ends_at", "price", "total", "renewals")}
    if replace(after, **may_differ) != contract:
        raise errors.FailedPrecondition("the response is no renewal of this contract")
    if abs(after.ends_at - until) > _MOMENT_S:
        raise errors.FailedPrecondition(
            f"the renewed contract ends at {iso(after.ends_at)}, not at {iso(until)}"
        )
    if not is_price_within(after.price, most):
        raise errors.FailedPrecondition(
            f"it now costs {format_price(after.price)}, and it was bought for {format_price(most)}"
        )
    if after.total > contract.total + _most_for(after.price, after.ends_at - contract.ends_at):
        raise errors.FailedPrecondition("the renewed contract costs more than its price for the added time")
    return after


def _described(flavor: Offer) -> tuple[object, ...]:
    """The description of an offer without its amounts."""
    return flavor.id, flavor.kind, flavor.architecture, flavor.location, flavor.gpus, flavor.persistent


def _most_for(price: Price, length_s: float) -> Decimal:
    return pricing.total_for(price, length_s + _MOMENT_S) + _ROUNDING


def is_price_within(price: Price, most: Price) -> bool:
    """True if `price` is not above `most`, but for rounding."""
    return (price.currency, price.period) == (most.currency, most.period) and (
        price.amount <= most.amount + _ROUNDING
    )


def format_price(price: Price) -> str:
    """Such as `0.10 EUR for PT1H`."""
    return f"{price.amount:f} {price.currency} for {price.period}"
