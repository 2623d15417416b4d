"""Contracts: renewed, signed, given back and taken back, on a draft of a decision."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.market import pricing
from skerry.market.accounts import Sale
from skerry.market.drafts import MAX_DOCUMENT, Draft
from skerry.market.requests import Countersign, Reclaim, Release, Renew
from skerry.model import errors
from skerry.model.market import Ending


def release(draft: Draft, request: Release) -> Sale:
    """Its buyer gives the room back; one that is over stays as it ended."""
    sale = draft.own_sale(request.contract, request.buyer)
    if sale.contract.ended_at is not None:
        return sale
    return draft.end_sale(sale, draft.now, Ending.RELEASED)


def renew(draft: Draft, request: Renew) -> Sale:
    """Let it last longer: the time that is added is at the price of now, and the document is made anew."""
    sale = draft.own_sale(request.contract, request.buyer)
    contract = sale.contract
    if not contract.is_live(draft.now):
        raise errors.Expired("this contract is over; reserve and purchase anew")
    if request.until <= contract.ends_at:
        return sale
    if contract.reclaim_at is not None:
        raise errors.Expired("the provider takes this contract back; reserve elsewhere")
    flavor, longest_s = draft.offered().flavor, draft.means.settings.max_contract_s
    if request.until - contract.starts_at > longest_s:
        raise errors.Unprocessable(f"a contract lasts at most {longest_s:.0f} s from its start; ask for less")
    price = pricing.prorate(flavor, contract.room, contract.count)
    added = pricing.total_for(price, request.until - contract.ends_at)
    renewed = replace(
        contract,
        price=price,
        ends_at=request.until,
        total=pricing.EXACT.add(contract.total, added),
        renewals=contract.renewals + 1,
    )
    after = replace(sale, contract=renewed, amended=draft.document(renewed), countersigned=b"")
    draft.sales[contract.id] = after
    draft.tell("contract.renewed", contract.buyer, contract=contract.id)
    return after


def countersign(draft: Draft, request: Countersign) -> Sale:
    """Keep what the buyer signed, once for each document."""
    sale = draft.own_sale(request.contract, request.buyer)
    if sale.countersigned == request.document:
        return sale
    if sale.current != request.over:
        raise errors.Conflict("the contract was renewed meanwhile; sign the document that it has now")
    if sale.countersigned:
        raise errors.Conflict("this contract has its buyer's signature already, and it is another")
    if len(request.document) > MAX_DOCUMENT:
        raise errors.TooLarge(f"a signed contract has at most {MAX_DOCUMENT} bytes; this is none of ours")
    after = replace(sale, countersigned=request.document)
    draft.sales[sale.contract.id] = after
    draft.tell("contract.signed", request.buyer, contract=sale.contract.id)
    return after


def take_back(draft: Draft, request: Reclaim) -> Sale:
    """The provider says that it wants the room again; the contract ends after its notice, or at once."""
    sale = draft.sale(request.contract)
    if not sale.contract.is_live(draft.now):
        return sale
    if request.is_at_once:
        sale = draft.reclaim(sale, request.reason, request.actor, notice_s=0.0)
        return draft.end_sale(sale, draft.now)
    if sale.contract.reclaim_at is not None:
        return sale
    return draft.reclaim(sale, request.reason, request.actor)
