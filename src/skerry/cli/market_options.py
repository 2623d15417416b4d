"""Options and formats that the market commands share: amounts, prices, durations and filters."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import Any, Final

import click

from skerry.cli import output as printing
from skerry.cli.amounts import Amount
from skerry.cli.options import option_group
from skerry.client.api import ApiClient, JsonObject

_WHERE: Final = {"location": "where", "architecture": "architecture", "peer": "peer"}
_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_CURRENCY = re.compile(r"[A-Z]{3}")
_KEY = re.compile(r"([a-z]+)=(.*)", re.DOTALL)

# Of the commands that take an amount.
amounts = option_group(
    click.option("--cpu", metavar="CORES", type=click.IntRange(min=0), default=0, help="CPU, whole cores."),
    click.option("--memory", metavar="MB|SIZE", type=Amount("memory"), default=0, help="Memory."),
    click.option("--disk", metavar="GB", type=click.IntRange(min=0), default=0, help="Disk."),
)


class DurationParam(printing.Duration):
    """`90s`, `30m`, `2h`, `1d`, plain seconds, or ISO 8601: `PT2H`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not str(value).upper().startswith("P"):
            return super().convert(value, param, ctx)
        # Imported only for durations in this form: it takes a while.
        from skerry.market.terms import pricing
        from skerry.model import errors

        try:
            seconds = pricing.seconds_of(str(value).upper())
        except errors.Invalid:
            seconds = 0
        if not seconds:
            self.fail(f"'{value}' is not a duration; write 2h, or PT2H or P1D of ISO 8601", param, ctx)
        return float(seconds)


class CurrencyParam(click.ParamType[str, str]):
    """`EUR`, in upper or lower case."""

    name = "currency"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        code = str(value).upper()
        if not _CURRENCY.fullmatch(code):
            self.fail(f"'{value}' is not a currency; write an ISO 4217 code, such as EUR", param, ctx)
        return code


def offer_filter(given: tuple[str, ...]) -> dict[str, str]:
    """`Torino`, or `architecture=arm64`, or `peer=north`, as fields of a request."""
    found: dict[str, str] = {}
    for text in given:
        match = _KEY.fullmatch(text)
        name, value = match.groups() if match else ("location", text)
        if name not in _WHERE:
            raise click.UsageError(f"--where '{text}': write a location, architecture=arm64 or peer=NAME.")
        if name in found:
            raise click.UsageError(f"--where has two values for {name}; give one.")
        found[name] = value
    return {field: found.get(name, "") for name, field in _WHERE.items()}


where = click.option(
    "--where",
    "given",
    multiple=True,
    metavar="LOCATION|KEY=VALUE",
    help="Only offers at this location; also architecture=arm64 and peer=NAME; repeatable.",
)
limit = click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Show at most N; live ones come first.",
)


def first_items(server: ApiClient, what: str, most: int, *, items: str = "") -> tuple[list[JsonObject], int]:
    """The first `most` of a list of the market, and how many there are."""
    found: list[JsonObject] = []
    cursor: str | None = None
    while True:
        page = server.get("market", what, limit=str(min(most - len(found), 1000)), cursor=cursor)
        found += page[items or what]
        cursor = page["cursor"]
        if cursor is None or len(found) >= most:
            return found, page["count"]


def print_remaining_count(limit: int, *counts: int) -> None:
    """Print how many items are not shown, if `limit` of each list are."""
    if more := sum(max(0, count - limit) for count in counts):
        click.echo(f"{more} more; --limit {max(counts)} shows all.", err=True)


def print_result(document: JsonObject, text: str, output: str) -> None:
    """The result for one of several objects: a line of text or of JSON."""
    printing.as_json_line(document) if output == "json" else click.echo(text)


def format_resources(amounts: JsonObject, count: int = 1) -> str:
    """`4 cores, 8192MB`, or `2 x (4 cores, 8192MB)`."""
    parts = [word for word in (_cores(amounts), _memory(amounts), _disk(amounts)) if word]
    one = ", ".join(parts) or "nothing"
    return one if count == 1 else f"{count} x ({one})"


def columns(amounts: JsonObject) -> tuple[str, str, str]:
    """cpu, memory and disk in a table; a dash where there is none."""
    disk, memory = _disk(amounts), _memory(amounts)
    return f"{amounts['cpu']:g}", memory or "-", disk or "-"


def _cores(amounts: JsonObject) -> str:
    cores = amounts["cpu"]
    return f"{cores:g} core{'' if cores == 1 else 's'}" if cores else ""


def _memory(amounts: JsonObject) -> str:
    return f"{amounts['memory']}MB" if amounts["memory"] else ""


def _disk(amounts: JsonObject) -> str:
    return f"{amounts['disk']}GB" if amounts["disk"] else ""


def price(of: JsonObject) -> str:
    """`0.10 EUR`, without the period."""
    return f"{of['amount']} {of['currency']}"


def format_end(contract: JsonObject) -> str:
    """When it ends, or ended."""
    if contract["ended_at"] is not None:
        return printing.ago(contract["ended_at"])
    ends = contract["ends_at"]
    left_s = (ends if contract["reclaim_at"] is None else min(ends, contract["reclaim_at"])) - time.time()
    return f"in {span(left_s)}" if left_s > 0 else "now"


def span(seconds: float) -> str:
    """A duration in its two largest units: `2h`, `1h 30m`."""
    for (unit, size), (part, smaller) in pairwise(_UNITS):
        if seconds >= size - smaller / 2:
            count, rest = divmod(round(seconds / smaller), size // smaller)
            return f"{count}{unit} {rest}{part}" if rest else f"{count}{unit}"
    return f"{round(seconds)}s"
