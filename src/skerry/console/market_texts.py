"""Amounts, prices and states of the market as pages write them. Pure."""

from __future__ import annotations

from decimal import ROUND_UP, Decimal

from skerry.console import formats
from skerry.console.components import Badge, Tone
from skerry.market.buyer.quotes import BorrowedContractState
from skerry.market.terms import pricing
from skerry.model.market import Price
from skerry.model.resources import Resources

_HOUR_S = 3600
_PERIODS = {60: "minute", _HOUR_S: "hour", 86_400: "day", 7 * 86_400: "week", 30 * 86_400: "30 days"}
_STATES = {
    "held": Tone.BUSY,
    "bought": Tone.GOOD,
    "live": Tone.GOOD,
    "reclaimed": Tone.WARNING,
    BorrowedContractState.OPENING: Tone.BUSY,
    BorrowedContractState.OPEN: Tone.GOOD,
    BorrowedContractState.DRAINING: Tone.WARNING,
}


def amount(resources: Resources, count: int = 1) -> str:
    """`4 cores, 8 GB, 20 GB disk`, or so many times that."""
    cpu = formats.cores(resources.cpu)
    parts = [
        f"{cpu} {'core' if cpu == '1' else 'cores'}" if resources.cpu else "",
        formats.megabytes(resources.memory) if resources.memory else "",
        f"{formats.gigabytes(resources.disk)} disk" if resources.disk else "",
    ]
    text = ", ".join(filter(None, parts)) or "–"
    return text if count == 1 else f"{count} × ({text})"


def price(one: Price) -> str:
    """`0.40 EUR per hour`."""
    seconds = pricing.seconds_of(one.period)
    return f"{formats.money(one.amount, one.currency)} per {_PERIODS.get(seconds, formats.duration(seconds))}"


def hourly(one: Price) -> Decimal:
    """The price of an hour, rounded up to four digits: what somebody who agrees to it agrees to at most."""
    exact = one.amount * _HOUR_S / pricing.seconds_of(one.period)
    return exact.quantize(Decimal("0.0001"), ROUND_UP).normalize()


def state(text: str) -> Badge:
    return Badge(text.upper(), _STATES.get(text, Tone.QUIET))
