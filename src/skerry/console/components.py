"""Components of pages, as data: what `templates/components.html` draws. Views are made of these by pure
functions.

Templates decide nothing, so every choice about words, order and colour is made where it can be tested. A
colour never has a meaning alone: a badge has its text and its shape, a bar its figures.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class Tone(enum.StrEnum):
    """How something is, as colour and shape show it."""

    GOOD = "good"
    BUSY = "busy"
    WARNING = "warning"
    BAD = "bad"
    QUIET = "quiet"


class Badge(msgspec.Struct, frozen=True):
    """A status in one word."""

    text: str
    tone: Tone = Tone.QUIET


class Bar(msgspec.Struct, frozen=True):
    """How much of something is used: `share` is 0 to 1, of which `actual` is really in use."""

    label: str
    text: str
    share: float
    actual: float | None = None  # None: not known
    warns: bool = True  # False: a full one is good

    @property
    def percent(self) -> str:
        return f"{min(1.0, max(0.0, self.share)) * 100:.1f}%"

    @property
    def actual_percent(self) -> str:
        return f"{min(1.0, max(0.0, self.actual or 0.0)) * 100:.1f}%"

    @property
    def tone(self) -> Tone:
        if not self.warns:
            return Tone.GOOD
        if self.share >= 0.95:
            return Tone.BAD
        return Tone.WARNING if self.share >= 0.8 else Tone.GOOD


class Sparkline(msgspec.Struct, frozen=True):
    """A series without axes; `line` and `area` are paths in a box of 100 by 24."""

    label: str
    line: str
    area: str


def sparkline(label: str, values: Sequence[float]) -> Sparkline:
    """The path of these values, the oldest first, from zero to the highest."""
    if len(values) < 2:
        return Sparkline(label, "", "")
    top = max(max(values), 1e-9)
    step = 100 / (len(values) - 1)
    points = [f"{index * step:.1f},{23 - 22 * value / top:.1f}" for index, value in enumerate(values)]
    line = "M" + " L".join(points)
    return Sparkline(label, line, f"{line} L100,24 L0,24 Z")


class Cell(msgspec.Struct, frozen=True):
    """A field of a table or of a list of facts."""

    text: str = ""
    href: str = ""
    badge: Badge | None = None
    bar: Bar | None = None
    spark: Sparkline | None = None
    note: str = ""  # below, smaller
    time: float | None = None  # shown as an age, which the browser keeps right
    mono: bool = False  # an id, an address or a command
    actions: tuple[Action, ...] = ()  # of this row; their ids are unique on the page
    until: float | None = None  # shown as the time that is left, which the browser counts down


class Column(msgspec.Struct, frozen=True):
    """A column; with `key` it can be sorted by."""

    title: str
    key: str = ""
    number: bool = False
    minor: bool = False  # left out on a phone
    href: str = ""  # that sorts by it
    sorted: str = ""  # `ascending` or `descending`, if it is sorted by this one


class Row(msgspec.Struct, frozen=True):
    cells: tuple[Cell, ...]


class EmptyState(msgspec.Struct, frozen=True):
    """Instead of an empty table: what to do first."""

    title: str
    text: str
    command: str = ""


class Table(msgspec.Struct, frozen=True):
    """One page of a list."""

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    total: int
    summary: str = ""  # which part of it this is
    previous: str = ""
    next: str = ""
    empty: EmptyState | None = None
    page: int = 1

    @property
    def page_text(self) -> str:
        """Its page in a query; empty: the first."""
        return str(self.page) if self.page > 1 else ""


class Fact(msgspec.Struct, frozen=True):
    """A line of a list of facts."""

    label: str
    value: Cell


class Figure(msgspec.Struct, frozen=True):
    """A number that stands out, with its name and where it leads."""

    label: str
    text: str
    note: str = ""
    href: str = ""
    tone: Tone = Tone.QUIET
    spark: Sparkline | None = None


class Finding(msgspec.Struct, frozen=True):
    """Something that needs attention: what, why, and what to do."""

    tone: Tone
    title: str
    reason: str
    href: str = ""
    command: str = ""
    kind: FindingKind | None = None  # None: there are never many of it


class FindingKind(msgspec.Struct, frozen=True):
    """What many findings have in common, and where all of them are listed."""

    text: str  # behind their number: `services are degraded`
    href: str
    command: str


class Field(msgspec.Struct, frozen=True):
    """An input of an action."""

    name: str
    label: str
    value: str = ""
    kind: str = "text"  # of the HTML input
    least: str = ""
    most: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # value and label of each, instead of an input
    is_required: bool = False
    flag: str = ""  # of the command, which the browser writes with what is entered
    unit: str = ""  # behind the value there
    is_argument: bool = False  # of the command, which has its value without a flag


class Action(msgspec.Struct, frozen=True):
    """A button that changes something. It opens a dialog that names the object, and shows the CLI line that
    does the same."""

    id: str
    label: str
    path: str
    question: str
    command: str
    is_destructive: bool = False
    fields: tuple[Field, ...] = ()
    note: str = ""  # beside the question
    target: str = ""  # the selector of the element that shows the answer; empty: it is a notice
    stem: str = ""  # of the command, before the flags of its fields


class Tab(msgspec.Struct, frozen=True):
    """A part of a page."""

    text: str
    href: str
    is_current: bool = False


class LogView(msgspec.Struct, frozen=True):
    """Output that the browser follows."""

    source: str
    command: str


class TerminalView(msgspec.Struct, frozen=True):
    """A terminal in an instance, by a WebSocket at `source`."""

    source: str
    command: str


class TreeItem(msgspec.Struct, frozen=True):
    """An item of a tree, with what is below it."""

    label: str
    cells: tuple[Cell, ...] = ()
    children: tuple[TreeItem, ...] = ()
    href: str = ""
    note: str = ""
    is_open: bool = True  # its children are seen at first


class Chart(msgspec.Struct, frozen=True):
    """A chart with axes, drawn by the browser: one list of times and one of values for each series."""

    label: str
    times: tuple[float, ...]
    series: tuple[tuple[str, tuple[float | None, ...]], ...]
    unit: str = ""
