"""How commands print: tables for people, JSON for scripts.

`rich` is imported only here and only to print a table; colours and boxes appear only on a terminal.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from skerry.kit import terminal_text

F = TypeVar("F", bound=Callable[..., Any])

_DURATION: Final = re.compile(r"(.*?)(ms|[smhd])?")
_UNITS: Final = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

DETAILS: Final = ("field", "value")  # columns of a table about one object


def option(command: F) -> F:
    """`--output table|json` of a command."""
    chosen = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output format; scripts should use json.",
    )
    return chosen(command)


def styled(text: str, **style: Any) -> None:
    """A line in a style of our own, whatever characters it contains."""
    click.echo(click.style(terminal_text.visible(text), **style), file=terminal_text.unfiltered(sys.stdout))


def styled_start(start: str, rest: str, **style: Any) -> None:
    """A line that begins in a style of our own."""
    shown = f"{click.style(terminal_text.visible(start), **style)}{terminal_text.visible(rest)}"
    click.echo(shown, file=terminal_text.unfiltered(sys.stdout))


def show(
    value: Any, output: str, *, columns: Sequence[str], rows: Callable[[Any], list[Sequence[str]]]
) -> None:
    """Print `value` as JSON, or as the table that `rows` makes of it."""
    if output == "json":
        as_json(value)
        return
    table(columns, rows(value))


def as_json(value: Any) -> None:
    """Print `value` as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def as_json_line(value: Any) -> None:
    """Print `value` as JSON on one line, for streams."""
    click.echo(json.dumps(value, ensure_ascii=False))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns under upper-case headings; plain text when the output is not a terminal."""
    if not sys.stdout.isatty():
        StreamingTable(columns).show(rows)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        drawn.add_column(name.upper(), overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(terminal_text.visible(str(cell))) for cell in row))
    Console(file=terminal_text.unfiltered(sys.stdout)).print(drawn)


class StreamingTable:
    """A table whose rows come one by one: the first rows decide how wide its columns are."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = [name.upper() for name in columns]
        self._widths: list[int] | None = None

    def show(self, rows: Sequence[Sequence[str]]) -> None:
        if self._widths is None:
            self._widths = _widths(self._columns, rows)
            rows = [self._columns, *rows]
        for row in rows:
            click.echo(_aligned(row, self._widths))


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(str(cell)) for cell in column) for column in zip(columns, *rows, strict=True)]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(str(cell).ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def size(number: int) -> str:
    """Bytes with a unit: `1.5MB`."""
    for unit, bytes_ in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if number >= bytes_:
            return f"{number / bytes_:.1f}{unit}"
    return f"{number}B"


def ago(seconds: float | None, now: float | None = None) -> str:
    """A time relative to now: `3m ago`, `in 2h`."""
    if seconds is None:
        return "never"
    distance = (time.time() if now is None else now) - seconds
    return f"{duration(distance)} ago" if distance >= 0 else f"in {duration(-distance, is_rounded=True)}"


def next_try(at: float) -> str:
    """When something is retried: `in 2m`, and `now` once that time has come."""
    return "now" if at <= time.time() else ago(at)


def age(since: float) -> str:
    """How long ago that was: `3m`."""
    return ago(since).removesuffix(" ago")


def duration(seconds: float, *, is_rounded: bool = False) -> str:
    """`45s`, `3m`, `2h`, `5d`: the largest unit that fits, if asked for after rounding to the next smaller:
    what was set to 7 days a moment ago ends in `7d`."""
    for unit, size, smaller in (("d", 86400, 3600), ("h", 3600, 60), ("m", 60, 1)):
        whole = int((seconds + smaller / 2 if is_rounded else seconds) // size)
        if whole:
            return f"{whole}{unit}"
    return f"{round(seconds) if is_rounded else int(seconds)}s"


class Duration(click.ParamType[float, str]):
    """`500ms`, `90s`, `15m`, `2h`, `7d`, or plain seconds."""

    name = "duration"

    def __init__(self, *, allows_zero: bool = False) -> None:
        self._allows_zero = allows_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        form = _DURATION.fullmatch(text)
        try:
            seconds = float(form[1]) * _UNITS[form[2]] if form else -1.0
        except ValueError:
            seconds = -1.0
        if not (0 < seconds < 1e10 or (self._allows_zero and seconds == 0)):
            self.fail(f"'{value}' is not a duration; write 500ms, 90s, 15m, 2h or 7d", param, ctx)
        return seconds
