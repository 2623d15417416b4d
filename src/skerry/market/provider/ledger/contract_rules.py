"""Contracts: renewed, signed, given back and taken back, on a draft of a decision."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.market.provider.ledger import activation_rules, unknown_buyer_rules
from skerry.market.provider.ledger.change import MAX_DOCUMENT, LedgerChange
from skerry.market.provider.ledger.records import ContractRecord
from skerry.market.provider.ledger.requests import (
    CountersignContract,
    EndUnusedContract,
    MarkContractOpened,
    ReclaimContract,
    ReleaseContract,
    RenewContract,
)
from skerry.market.terms import pricing
from skerry.model import errors
from skerry.model.market import EndReason


def release(draft: LedgerChange, request: ReleaseContract) -> ContractRecord:
    """Its buyer releases it; an ended contract is not changed."""
    sale = draft.own_sale(request.contract, request.buyer)
    if sale.contract.ended_at is not None:
        return sale
    return draft.end_sale(sale, draft.now, EndReason.RELEASED)


def renew(draft: LedgerChange, request: RenewContract) -> ContractRecord:
    """Extend it: the added time is at the present price, and there is a new document."""
    sale = draft.own_sale(request.contract, request.buyer)
    contract = sale.contract
    if not contract.is_live(draft.now):
        raise errors.Expired("this contract has ended; reserve and purchase again")
    if request.until <= draft.now:
        raise errors.Unprocessable(
            "a contract is renewed until a time to come, and that is over; name another"
        )
    if request.until <= contract.ends_at:
        return sale
    if contract.reclaim_at is not None:
        raise errors.Expired("the provider takes this contract back; reserve elsewhere")
    flavor, longest_s = draft.offered().flavor, pricing.in_years(draft.deps.settings.max_contract_s)
    if request.until - contract.starts_at > longest_s:
        raise errors.Unprocessable(f"a contract lasts at most {longest_s:.0f} s from its start; request less")
    if not draft.deps.is_known(request.buyer):
        unknown_buyer_rules.check_access(draft.deps.settings, request.buyer, is_read=False)
        unknown_buyer_rules.check_length(draft, request.buyer, request.until - contract.starts_at)
    price = pricing.prorate(flavor, contract.resources, contract.count)
    added = pricing.total_for(price, request.until - contract.ends_at)
    renewed = replace(
        contract,
        price=price,
        ends_at=request.until,
        total=pricing.EXACT.add(contract.total, added),
        renewals=contract.renewals + 1,
    )
    after = replace(
        sale,
        contract=renewed,
        amended=draft.document(renewed),
        amended_at=draft.now,
        countersigned=b"",
    )
    draft.put_sale(after)
    draft.add_event("contract.renewed", contract.buyer, contract=contract.id)
    return after


def countersign(draft: LedgerChange, request: CountersignContract) -> ContractRecord:
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
    after = replace(sale, countersigned=request.document, signed_until=sale.contract.ends_at)
    draft.put_sale(after)
    draft.add_event("contract.signed", request.buyer, contract=sale.contract.id)
    return after


def reclaim(draft: LedgerChange, request: ReclaimContract) -> ContractRecord:
    """The provider reclaims it; the contract ends after its notice, or at once."""
    sale = draft.sale(request.contract)
    if not sale.contract.is_live(draft.now):
        return sale
    if request.is_at_once:
        sale = draft.reclaim(sale, request.reason, request.actor, at=draft.now)
        return draft.end_sale(sale, draft.now)
    if sale.contract.reclaim_at is not None:
        return sale
    return draft.reclaim(sale, request.reason, request.actor)


def mark_opened(draft: LedgerChange, request: MarkContractOpened) -> ContractRecord:
    """Its buyer has come, for the first time or again."""
    sale = draft.sale(request.contract)
    if (ending := sale.contract.ending_by(draft.now)) is not None:
        raise errors.Expired(f"this contract is over ({sale.contract.reason or ending}); reserve again")
    if sale.opened_at is not None:
        return sale
    after = replace(sale, opened_at=draft.now)
    draft.put_sale(after)
    draft.add_event("contract.opened", sale.contract.buyer, contract=sale.contract.id)
    return after


def end_unused(draft: LedgerChange, request: EndUnusedContract) -> ContractRecord:
    """End what its buyer has not signed or opened in time, unless it has done so meanwhile."""
    sale = draft.sale(request.contract)
    end = activation_rules.early_termination(sale, draft.deps.settings, since=request.since, now=draft.now)
    if end is None:
        return sale
    sale = draft.reclaim(sale, end.reason, "skerry", at=end.at)
    return sale if end.at > draft.now else draft.end_sale(sale, draft.now)
