"""Numbers and times as pages write them: short, with their unit, and never more exact than they are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from skerry.model.health_checks import HealthCheck
from skerry.model.ports import PortMapping


def age(since: float, now: float) -> str:
    """How long ago that was: `45s`, `3m`, `2h`, `5d`."""
    return duration(now - since)


def duration(seconds: float) -> str:
    """In the largest unit that fits."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def latency(seconds: float | None) -> str:
    """A short time: `0.4 ms`, `12 ms`, `1.8 s`; a dash if it is not known."""
    if seconds is None:
        return "–"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def latencies(*seconds: float | None) -> str:
    """Several short times, with one unit if it is that of all: `12 / 250 ms`, `40 ms / 1.8 s`."""
    texts = [latency(one) for one in seconds]
    units = {text.partition(" ")[2] for text in texts}
    if len(units) == 1:
        texts[:-1] = [text.partition(" ")[0] for text in texts[:-1]]
    return " / ".join(texts)


def cores(millicores: int) -> str:
    """`0.25`, `2`, `12.5`, `4,596`."""
    if millicores >= 100_000:
        return f"{millicores / 1000:,.0f}"
    digits = 1 if millicores >= 10_000 else 2
    return f"{millicores / 1000:.{digits}f}".rstrip("0").rstrip(".")


def megabytes(amount: int) -> str:
    """`512 MB`, `1.5 GB`, `244 GB`, `2 TB`."""
    for unit, size in (("TB", 1024 * 1024), ("GB", 1024)):
        if amount >= size:
            digits = 0 if amount >= 100 * size else 1
            return f"{amount / size:,.{digits}f}".removesuffix(".0") + f" {unit}"
    return f"{amount} MB"


def data_size(amount: int) -> str:
    """Bytes that are not measured in whole megabytes: `640 KB`, `2.4 MB`, `31 MB`, `1.5 GB`."""
    kilobytes = amount / 1024
    if kilobytes < 1000:
        return f"{kilobytes:.0f} KB"
    if kilobytes < 10 * 1024:
        return f"{kilobytes / 1024:.1f}".removesuffix(".0") + " MB"
    return megabytes(round(kilobytes / 1024))


def gigabytes(amount: int) -> str:
    return megabytes(amount * 1024)


def rate(per_second: float) -> str:
    """`0`, `<0.1`, `0.4`, `12`, `3.2k`: calls each second."""
    if per_second >= 1000:
        return f"{per_second / 1000:.1f}k"
    if 0 < per_second < 0.05:
        return "<0.1"
    return f"{per_second:.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def money(amount: Decimal, currency: str) -> str:
    """`12.50 EUR`, with as many digits as are there, and at least two."""
    text = f"{amount:f}"
    whole, _, part = text.partition(".")
    part = part.rstrip("0")
    return f"{int(whole):,}.{part.ljust(2, '0')} {currency}"


def ports(mappings: Sequence[PortMapping]) -> str:
    """`8080→80`, of the node and of the instance."""
    return listed([f"{one.source}→{one.destination}" for one in mappings])


def checks(given: Sequence[HealthCheck]) -> str:
    """`ready (http), alive (command)`."""
    return listed([f"{one.role.value} ({one.method.value})" for one in given])


def listed(values: Sequence[str], *, none: str = "none") -> str:
    """Several values in one field."""
    return ", ".join(values) or none
