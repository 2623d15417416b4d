"""Holds: made, bought and given up, on a draft of a decision."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.market.provider.ledger import unknown_buyer_rules
from skerry.market.provider.ledger.change import LedgerChange
from skerry.market.provider.ledger.records import ContractRecord, OfferRecord
from skerry.market.provider.ledger.requests import CancelHold, ConvertHold, CreateHold
from skerry.market.provider.ledger.state import WINDOW_S
from skerry.market.terms import pricing
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.market import Contract, EndReason, Hold, Offer
from skerry.model.resources import NO_RESOURCES, Resources


def reserve(draft: LedgerChange, request: CreateHold) -> Hold:
    """The requested hold, or the one that the same request made before."""
    if again := find_by_idempotency_key(draft, request):
        return again
    account = check_buyer(draft, request.buyer)
    flavor, is_unknown = account.flavor, not draft.deps.is_known(request.buyer)
    count = _count(flavor, request)
    resources = request.resources if request.resources is not None else _all_of(account, count)
    _check_share(draft, account, request.buyer, resources * count)
    flavor.check_part(resources, account.free, count)
    draft.deps.check_placement(flavor, resources * count, draft.unplaced)
    if is_unknown:
        unknown_buyer_rules.check_hold(draft, request.buyer, resources * count, request.duration_s)
    price = pricing.prorate(flavor, resources, count)
    settings = draft.deps.settings
    hold = Hold(
        id=draft.deps.new_hold(),
        flavor=flavor,
        buyer=request.buyer,
        resources=resources,
        price=price,
        created_at=draft.now,
        expires_at=draft.now + settings.hold_s,
        total=pricing.total_for(price, request.duration_s),
        duration_s=request.duration_s,
        notice_s=settings.notice_s,
        count=count,
        once=request.once,
        digest=request.digest,
        contact=request.contact,
        is_unknown=is_unknown,
    )
    draft.add_hold(hold)
    return hold


def find_by_idempotency_key(draft: LedgerChange, request: CreateHold) -> Hold | None:
    """The hold that the same request made before, if it did."""
    if not request.once:
        return None
    id = draft.once.get(request.once) or draft.state.once.get(request.once)
    hold = draft.find_hold(id) if id is not None else None
    if hold is not None and hold.digest != request.digest:
        raise errors.Unprocessable(
            "this Idempotency-Key was used for another request; use a new one for each hold"
        )
    return hold


def check_buyer(draft: LedgerChange, buyer: CloudId) -> OfferRecord:
    """The account, if the flavor is offered and the buyer may hold more."""
    if not draft.deps.is_known(buyer):
        unknown_buyer_rules.check_access(draft.deps.settings, buyer, is_read=False)
        unknown_buyer_rules.check_number(draft, buyer)
    account, settings = draft.offered(), draft.deps.settings
    if draft.holds_of(buyer) >= settings.max_holds:
        raise errors.Overloaded(
            f"you have {settings.max_holds} holds, the most at once; buy or cancel some",
            retry_after_s=settings.hold_s,
        )
    lapsed = draft.state.buyers.lapsed(buyer, draft.now)
    if len(lapsed) >= settings.max_lapsed:
        # Once that one is too old to count, fewer are left than may be.
        wait_s = lapsed[-settings.max_lapsed] + WINDOW_S - draft.now
        raise errors.Overloaded(
            f"you let {settings.max_lapsed} holds expire within an hour; try again in {wait_s:.0f} s, "
            "and cancel what you do not buy",
            retry_after_s=wait_s,
        )
    return account


def refusal(draft: LedgerChange, request: CreateHold) -> errors.SkerryError | None:
    """Why such a part is not sold, however much is free of the offer."""
    part = request.resources
    try:
        flavor = draft.known().flavor
        count = _count(flavor, request)
        if part is not None:
            flavor.check_part(part, part * count, count)
        least = flavor.resources if flavor.partition is None else flavor.partition.least
        draft.deps.check_placement(flavor, (part or least) * count, draft.unplaced_sold)
    except errors.SkerryError as error:
        return error
    return None


def can_become_free(draft: LedgerChange, request: CreateHold) -> bool:
    """True if ending holds could free enough."""
    account = draft.account
    if account is None or account.held == NO_RESOURCES:
        return False
    part = request.resources
    resources = NO_RESOURCES if part is None else part * _count(account.flavor, request)
    return account.moved(held=NO_RESOURCES, sold=account.sold).free.fits(resources)


def purchase(draft: LedgerChange, request: ConvertHold) -> ContractRecord:
    """The contract that the hold becomes, or has become."""
    hold = draft.own_hold(request.hold, request.buyer)
    if hold.contract is not None:
        return draft.sale(hold.contract)
    if not hold.is_live(draft.now):
        raise _over(hold)
    contract = Contract(
        id=draft.deps.new_contract(draft.now),
        hold=hold.id,
        flavor=hold.flavor,
        buyer=hold.buyer,
        seller=draft.deps.seller,
        resources=hold.resources,
        price=hold.price,
        starts_at=draft.now,
        ends_at=draft.now + hold.duration_s,
        total=hold.total,
        notice_s=hold.notice_s,
        count=hold.count,
        is_unknown=hold.is_unknown,
    )
    # Signed without what may happen to it later: taking it back is no term of the deal.
    document = draft.document(contract)
    withdrawn = draft.known().withdrawn
    if withdrawn is not None and withdrawn.reclaims:
        contract = replace(contract, reclaim_at=draft.now + hold.notice_s, reason=withdrawn.reason)
    sale = ContractRecord(contract=contract, document=document, contact=hold.contact)
    draft.sell(hold, sale)
    return sale


def cancel(draft: LedgerChange, request: CancelHold) -> Hold:
    """The hold, given up."""
    hold = draft.own_hold(request.hold, request.buyer)
    if hold.ending is EndReason.CANCELLED:
        return hold
    if hold.contract is not None:
        raise errors.Conflict(f"this hold was bought; release contract {hold.contract} instead")
    if not hold.is_live(draft.now):
        raise _over(hold)
    return draft.end_hold(hold, EndReason.CANCELLED, draft.now)


def _check_share(draft: LedgerChange, account: OfferRecord, buyer: CloudId, resources: Resources) -> None:
    percent = draft.deps.settings.hold_percent
    if percent == 100 or account.flavor.partition is None:
        return
    for hold in draft.live_holds():
        resources = resources + hold.taken if hold.buyer == buyer else resources
    for (name, unit, taken), (_, _, there) in zip(resources.parts(), account.capacity.parts(), strict=True):
        if taken * 100 > there * percent:
            raise errors.Unprocessable(
                f"one buyer holds at most {percent} % of this offer at once, which is "
                f"{there * percent // 100} {unit} of {name}; request less, or purchase your holds"
            )


def _count(flavor: Offer, request: CreateHold) -> int:
    return flavor.least_count if request.count is None else request.count


def _all_of(account: OfferRecord, count: int) -> Resources:
    """What is reserved if no part is named: all that is free, if it is sold in parts, or else a whole one.
    Where several are taken, equal parts of it.

    Less than the smallest part cannot be taken: then the error for a whole one names what is missing.
    """
    flavor, free = account.flavor, account.free
    if flavor.partition is None or free == NO_RESOURCES or not free.fits(flavor.partition.least * count):
        return flavor.resources
    return flavor.partition.largest(free // count)


def _over(hold: Hold) -> errors.Expired:
    how = "was cancelled" if hold.ending is EndReason.CANCELLED else "was not bought in time"
    return errors.Expired(f"this hold {how} and is over; reserve again")
