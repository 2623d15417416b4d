"""What is offered: flavors put up, changed and withdrawn, on a draft of a decision."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from skerry.market.provider.ledger.change import LedgerChange, describe_resources
from skerry.market.provider.ledger.records import OfferRecord, OfferWithdrawal
from skerry.market.provider.ledger.requests import PublishOffer, UpdateOffer, WithdrawOffer
from skerry.model import errors
from skerry.model.currencies import check_currency
from skerry.model.market import Offer
from skerry.model.resources import NO_RESOURCES

_FIXED: Final = ("id", "provider", "kind", "created_at", "version")


def publish(draft: LedgerChange, request: PublishOffer) -> OfferRecord:
    """Publish a flavor; a withdrawn one is offered again, and its contracts stay."""
    before, flavor = draft.account, request.flavor
    _check(flavor)
    if flavor.expires_at is not None and flavor.expires_at <= draft.now:
        raise errors.Invalid(
            "an offer ends after it begins; name a time to come, or none", field="expires_at"
        )
    if before is not None and before.withdrawn is None:
        if _terms(before.flavor) != _terms(flavor) or before.size != request.capacity:
            raise errors.AlreadyExists(
                f"flavor {flavor.id} is offered on other terms; withdraw it first, or choose another id"
            )
        return before
    if before is None:
        first = draft.deps.new_version()
        after = OfferRecord(flavor=replace(flavor, version=first), capacity=request.capacity)
    else:
        after = replace(
            before,
            flavor=replace(flavor, version=before.flavor.version, created_at=before.flavor.created_at),
            withdrawn=None,
        ).sized(request.capacity)
    draft.account = after
    draft.add_event("flavor.offered", request.actor, room=describe_resources(after.capacity))
    return after


def update(draft: LedgerChange, request: UpdateOffer) -> OfferRecord:
    """Change terms or capacity; holds and contracts beyond it stay until they end."""
    before = draft.offered()
    flavor = request.change(before.flavor)
    if any(getattr(flavor, name) != getattr(before.flavor, name) for name in _FIXED):
        raise errors.Invalid("a flavor keeps its id, provider and kind; publish another instead")
    _check(flavor)
    wanted = request.capacity
    if wanted is None:
        wanted = flavor.whole if flavor.whole != before.flavor.whole else before.size
    after = replace(before, flavor=flavor).sized(wanted)
    if after != before:
        draft.account = after
        draft.add_event("flavor.changed", request.actor, room=describe_resources(after.capacity))
    return after


def withdraw(draft: LedgerChange, request: WithdrawOffer) -> OfferRecord:
    """Offer it no longer. Contracts to be taken back that do not fit into this turn follow in the next."""
    before = draft.known().withdrawn
    if before is None:
        draft.withdraw(OfferWithdrawal(draft.now, request.reason, request.reclaims), request.actor)
    elif request.reclaims and not before.reclaims:
        draft.withdraw(replace(before, reclaims=True), request.actor)
    draft.reclaim_withdrawn(request.actor)
    return draft.known()


def _check(flavor: Offer) -> None:
    """Raise unless all of it could be sold to one buyer, in a valid currency."""
    check_currency(flavor.price.currency)
    if flavor.resources == NO_RESOURCES:
        raise errors.Invalid("an offer needs resources; set cpu, memory or disk", field="room")
    if flavor.partition is not None:
        try:
            flavor.partition.check(flavor.resources, flavor.resources)
        except errors.Unprocessable as error:
            raise errors.Invalid(
                f"all of it would be no part that may be taken: {error.message}", field="partition"
            ) from error


def _terms(flavor: Offer) -> Offer:
    return replace(flavor, version=1, created_at=0.0)
