"""Limits of unknown buyers: keys that are not on the allowlist, and addresses without credentials.

A key costs nothing, so one person can be fifty buyers. So beside the limits of each there are limits of all
together, of which the share of a flavor is exact: it is decided with the flavor. What counts is whether the
buyer was known when the hold was made, which the hold and its contract record. Buyers without credentials
(`skerry.market.plain`) have the same kinds of limits, from settings of their own, and are counted separately.
Pure; `skerry.market.provider.allowlist` knows the known buyers, and
`skerry.market.provider.ledger.hold_rules` has the limits of all buyers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from skerry.market import plain
from skerry.market.provider.ledger.change import LedgerChange
from skerry.market.provider.ledger.state import WINDOW_S
from skerry.market.terms import pricing
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.market import resources_text
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources

_REFUSE: Final = "refuse"
_BUY: Final = "buy"


class Limits(NamedTuple):
    """Of one kind of buyers: of each, and of all of them together."""

    kind: str  # which buyers, and what they may do about it, for the error
    remedy: str
    resources: Resources  # that each may hold and have bought
    percent: int  # of a flavor, that all may
    contract_s: float
    holds: int  # that each may make in an hour
    total_holds: int  # that all may


def limits_of(settings: MarketSettings, buyer: CloudId) -> Limits:
    """What holds for a buyer that is not known."""
    if plain.is_plain(buyer):
        return Limits(
            "without credentials",
            "buy with a key",
            _resources(settings.plain_cpu, settings.plain_memory, settings.plain_disk),
            settings.plain_percent,
            settings.plain_contract_s,
            settings.plain_holds,
            settings.plain_total_holds,
        )
    return Limits(
        "not on the list",
        _request_access_hint(buyer),
        _resources(settings.unknown_cpu, settings.unknown_memory, settings.unknown_disk),
        settings.unknown_percent,
        settings.unknown_contract_s,
        settings.unknown_holds,
        settings.unknown_total_holds,
    )


def check_access(settings: MarketSettings, buyer: CloudId, *, is_read: bool) -> None:
    """Raise `Forbidden` unless an unknown buyer may see offers, or buy."""
    if plain.is_plain(buyer):
        if not settings.plain_listen:
            raise errors.Forbidden("this market is closed to buyers without credentials; buy with a key")
        return
    may_do = settings.unknown_buyers
    if may_do == _REFUSE or (may_do != _BUY and not is_read):
        raise errors.Forbidden(
            f"this market is closed to buyers that are not on its list; {_request_access_hint(buyer)}"
        )


def check_hold(draft: LedgerChange, buyer: CloudId, resources: Resources, duration_s: float) -> None:
    """Raise unless an unknown buyer may hold `resources` of this flavor, for a contract of that length."""
    limits = limits_of(draft.deps.settings, buyer)
    check_length(draft, buyer, duration_s)
    if not limits.resources.fits(draft.unknown_of_buyer(buyer) + resources):
        raise errors.Unprocessable(
            f"a buyer {limits.kind} may have {resources_text(limits.resources)} at once; request less, or "
            f"{limits.remedy}"
        )
    share = _share(draft.known().capacity, limits.percent)
    if not share.fits(draft.unknown_of_flavor(lambda other: _are_alike(buyer, other)) + resources):
        raise errors.ResourcesExhausted(
            f"buyers {limits.kind} may have {limits.percent} % of this offer, all of them together "
            f"{resources_text(share)}; request less, try again later, or {limits.remedy}"
        )


def check_length(draft: LedgerChange, buyer: CloudId, duration_s: float) -> None:
    """Raise if a contract of an unknown buyer would last too long."""
    limits = limits_of(draft.deps.settings, buyer)
    longest_s = pricing.in_years(limits.contract_s)
    if duration_s > longest_s:
        raise errors.Unprocessable(
            f"a contract of a buyer {limits.kind} lasts at most {longest_s:.0f} s from its start; request "
            f"less, or {limits.remedy}"
        )


def check_number(draft: LedgerChange, buyer: CloudId) -> None:
    """Raise if an unknown buyer, or all of them, made too many holds within the hour, however those ended."""
    limits = limits_of(draft.deps.settings, buyer)
    made = draft.state.buyers.made_by_unknown(draft.now)
    made += [(hold.created_at, hold.buyer) for hold in draft.new_unknown()]
    made = [(at, owner) for at, owner in made if _are_alike(buyer, owner)]
    theirs = [at for at, owner in made if owner == buyer]
    for owner, times, most in (
        ("each buyer", theirs, limits.holds),
        ("all buyers together", [at for at, _ in made], limits.total_holds),
    ):
        if len(times) >= most:
            wait_s = max(1.0, times[-most] + WINDOW_S - draft.now) if most else WINDOW_S
            raise errors.Overloaded(
                f"{most} holds in an hour are the most for {owner} {limits.kind}, however they end; try "
                f"again in {wait_s:.0f} s, or {limits.remedy}",
                retry_after_s=wait_s,
            )


def _are_alike(one: CloudId, other: CloudId) -> bool:
    """Whether the same limits hold for both together."""
    return plain.is_plain(one) == plain.is_plain(other)


def _resources(cores: int, megabytes: int, gigabytes: int) -> Resources:
    return Resources(Millicores(cores * 1000), Megabytes(megabytes), Gigabytes(gigabytes))


def _share(capacity: Resources, percent: int) -> Resources:
    return Resources(
        Millicores(capacity.cpu * percent // 100),
        Megabytes(capacity.memory * percent // 100),
        Gigabytes(capacity.disk * percent // 100),
    )


def _request_access_hint(buyer: CloudId) -> str:
    return f"ask the provider to allow you: `skerry market buyers add {buyer}`"
