"""Activation of a contract: signed by its buyer, and opened, both in time.

Capacity that was bought and is not used is lost to other buyers. A buyer with a key signs the terms, and
those of each renewal, within `market.sign_s`; every buyer opens the contract's tunnel within `market.open_s`.
Terms that are not signed do not hold: a contract ends at once, and a renewal at the end that was signed
before. Both times count from `since` at the earliest, when the provider could be reached. Pure;
`skerry.market.provider.heartbeats` checks, and the ledger decides.
"""

from __future__ import annotations

from typing import NamedTuple

from skerry.market.provider.ledger.records import ContractRecord
from skerry.market.terms import keys
from skerry.model.market_settings import MarketSettings


class EarlyTermination(NamedTuple):
    """When and why a contract ends before its time."""

    at: float
    reason: str


def early_termination(
    sale: ContractRecord, settings: MarketSettings, *, since: float, now: float
) -> EarlyTermination | None:
    """When the contract is to end because its buyer has not signed or opened it; None: as agreed on."""
    contract = sale.contract
    if contract.ended_at is not None:
        return None
    ends: list[EarlyTermination] = []
    terms_since = max(sale.amended_at, contract.starts_at, since)
    if keys.is_key_id(contract.buyer) and not sale.countersigned and now - terms_since >= settings.sign_s:
        what = "its renewal" if sale.amended else "it"
        reason = f"its buyer did not sign {what} within {settings.sign_s:g} s"
        ends.append(EarlyTermination(max(now, sale.signed_until), reason))
    if sale.opened_at is None and now - max(contract.starts_at, since) >= settings.open_s:
        ends.append(EarlyTermination(now, f"its buyer did not open it within {settings.open_s:g} s"))
    end = min(ends, key=lambda each: each.at, default=None)
    return end if end is not None and end.at < contract.due_at else None
