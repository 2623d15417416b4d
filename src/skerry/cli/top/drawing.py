"""Draws `skerry top`: lines of a screen of a given size, from the state and the last snapshot.

Imported only when something is drawn: rich is not quick to import.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from skerry.cli.top import state as top_state
from skerry.cli.top.snapshots import CloudSnapshot
from skerry.cli.top.state import TopMode, TopState
from skerry.cli.top.tables import (
    TABLES,
    NodeUsage,
    TopColumn,
    TopRow,
    TopTable,
    memory,
    node_usage,
    percent,
)
from skerry.kit import terminal_text

_NARROWEST: Final = 20
_NAME_WIDTH: Final = 24  # of names, before columns are left out for them
_METER: Final = 12  # cells inside the brackets, at least
_METER_ROWS: Final = 6  # one line of meters for so many lines of the screen
_HIGH, _FULL = 0.7, 0.9

HELP: Final = (
    "skerry top shows what runs, and refreshes by itself.",
    "",
    "  1 2 3 4, Tab, Left, Right   instances, services, functions, nodes",
    "  Up, Down, PgUp, PgDn, Home  select; j and k too",
    "  Enter                       details of the selected one, with its events",
    "  /                           filter by name, namespace, status or node; Esc clears it",
    "  c m n                       sort by cpu (or calls), memory, name",
    "  < > s                       sort by the column beside",
    "  r                           reverse the order",
    "  p                           pause, and go on",
    "  ? h                         this help",
    "  q, Ctrl-C                   quit",
    "",
    "CPU% is of one core. Usage is what nodes last reported, every few seconds.",
    "CALLS/S counts calls that ended on the machine of this server.",
    "Rows in yellow need attention: 'skerry describe' and 'skerry explain' say why.",
)


class TopFrame(NamedTuple):
    """All that is drawn."""

    state: TopState
    snapshot: CloudSnapshot | None
    url: str
    failure: str = ""  # why the snapshot is not newer
    details: dict[str, Any] | None = None  # None: not read yet


def draw(frame: TopFrame, width: int, height: int) -> list[Text]:
    """Exactly `height` lines of `width` cells."""
    width = max(width, _NARROWEST)
    head = _head(frame, width, height)
    foot = [_foot(frame, width)]
    space = max(0, height - len(head) - len(foot))
    body = _body(frame, width, space)
    body += [_line("", width)] * (space - len(body))
    return [*head, *body, *foot][: max(1, height)]


def table_space(frame: TopFrame, width: int, height: int) -> int:
    """How many rows of a table fit."""
    return max(1, height - len(_head(frame, max(width, _NARROWEST), height)) - 2)


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(
        set_cell_size(terminal_text.visible(text).replace("\n", " ").replace("\t", " "), width), style
    )


def _head(frame: TopFrame, width: int, height: int) -> list[Text]:
    lines = [_title(frame, width)]
    if frame.snapshot is None:
        lines.append(
            _line(frame.failure or f"Reading {frame.url}...", width, "yellow" if frame.failure else "")
        )
        return lines
    usage = node_usage(frame.snapshot)
    if usage is not None:
        lines += _meters(usage, width, max(1, height // _METER_ROWS))
    lines.append(_summary(frame.snapshot, width))
    if frame.failure:
        lines.append(_line(f"No answer: {frame.failure}", width, "bold red"))
    lines.append(_tabs(frame.state, width))
    return lines


def _title(frame: TopFrame, width: int) -> Text:
    left = f"skerry top  {frame.url}"
    right = "paused" if frame.state.is_paused else ""
    if frame.snapshot is not None:
        about = frame.snapshot.about
        left += f"  {about['version']}"
        clock = time.strftime("%H:%M:%S", time.localtime(frame.snapshot.at))
        right = f"{right}  {clock}".strip()
    gap = width - cell_len(right)
    return _line(set_cell_size(terminal_text.visible(left), max(0, gap)) + right, width, "bold")


def _meters(usage: list[NodeUsage], width: int, most: int) -> list[Text]:
    """A line for each node, the busiest first; the last line counts the others."""
    busiest = sorted(usage, key=lambda node: -(node.cpu / node.cpu_total if node.cpu_total else 0))
    shown = busiest if len(busiest) <= most else busiest[: max(0, most - 1)]
    name_width = min(16, max((cell_len(terminal_text.visible(node.name)) for node in shown), default=0))
    lines = [_meter_line(node, name_width, width) for node in shown]
    if len(shown) < len(busiest):
        lines.append(
            _line(f"{'and ' if shown else ''}{len(busiest) - len(shown)} nodes more: key 4", width, "dim")
        )
    return lines


def _meter_line(node: NodeUsage, name_width: int, width: int) -> Text:
    line = Text(set_cell_size(terminal_text.visible(node.name), name_width), "" if node.is_live else "yellow")
    space = max(_METER, (width - name_width - 14) // 2)
    line.append(" CPU")
    line.append_text(_meter(node.cpu, node.cpu_total, f"{percent(node.cpu)}%", space))
    line.append(" MEM")
    label = f"{memory(node.memory)}/{memory(node.memory_total)}"
    line.append_text(_meter(node.memory, node.memory_total, label, space))
    line.truncate(width, pad=True)
    return line


def _meter(used: float, total: float, label: str, width: int) -> Text:
    """`[|||||      12.3%]`, as htop has it; `width` is inside the brackets."""
    part = min(1.0, used / total) if total else 0.0
    bars = "|" * round(part * width)
    text = bars.ljust(width)[: max(0, width - len(label))] + label[:width]
    colour = "red" if part >= _FULL else "yellow" if part >= _HIGH else "green"
    meter = Text("[")
    meter.append(text[: len(bars)], colour)
    meter.append(text[len(bars) :])
    meter.append("]")
    return meter


def _summary(snapshot: CloudSnapshot, width: int) -> Text:
    running = sum(one["status"] == "RUNNING" for one in snapshot.instances)
    unready = sum(one["status"] == "RUNNING" and not one["ready"] for one in snapshot.instances)
    parts = [f"{_count(len(snapshot.instances), 'instance')}, {running} running"]
    if unready:
        parts.append(f"{unready} not ready")
    if snapshot.nodes is not None:
        lost = sum(node["liveness"] != "live" for node in snapshot.nodes)
        parts.insert(0, f"{_count(len(snapshot.nodes), 'node')}{f', {lost} silent' if lost else ''}")
    if snapshot.functions is not None:
        rates = [one.calls_per_s for one in snapshot.functions if one.calls_per_s is not None]
        parts.append(f"{sum(rates):.1f} calls/s")
        if snapshot.counters is not None and snapshot.counters.missing:
            parts.append(f"calls of {_count(len(snapshot.counters.missing), 'node')} unknown")
    return _line("; ".join(parts), width)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _tabs(state: TopState, width: int) -> Text:
    line = Text()
    for number, table in enumerate(TABLES):
        line.append(f" {number + 1} {table.title} ", "reverse" if number == state.tab else "")
    if state.filter or state.mode is TopMode.FILTER:
        cursor = "_" if state.mode is TopMode.FILTER else ""
        line.append(f"  filter: {terminal_text.visible(state.filter)}{cursor}", "bold")
    line.truncate(width, pad=True)
    return line


def _body(frame: TopFrame, width: int, space: int) -> list[Text]:
    if frame.state.mode is TopMode.HELP:
        return _scrolled([_line(text, width) for text in HELP], frame.state.offset, space)
    if frame.snapshot is None or space == 0:
        return []
    if frame.state.mode is TopMode.DETAILS:
        return _scrolled(_details(frame, width), frame.state.offset, space)
    return _table(frame, width, space)


def _scrolled(lines: list[Text], offset: int, space: int) -> list[Text]:
    first = max(0, min(offset, len(lines) - space))
    return lines[first : first + space]


def _table(frame: TopFrame, width: int, space: int) -> list[Text]:
    state, snapshot = frame.state, frame.snapshot
    assert snapshot is not None
    table = state.table
    shown = top_state.rows(state, snapshot)
    longest = max((len(str(row.cells["name"])) for row in shown), default=0)
    columns = _fitting(table, width, min(longest, _NAME_WIDTH))
    lines = [_heading(state, columns, width)]
    if not shown:
        return [*lines, _line(_empty(state, snapshot), width, "dim")]
    at = top_state.position(state, shown)
    page = max(1, space - 1)
    first = max(0, min(at - page // 2, len(shown) - page))
    for index, row in enumerate(shown[first : first + page], first):
        lines.append(_row(row, columns, width, is_selected=index == at))
    return lines


def _empty(state: TopState, snapshot: CloudSnapshot) -> str:
    if state.table.rows(snapshot) is None:
        return f"Your token does not let you see {state.table.title.lower()}."
    if state.filter:
        return "Nothing fits the filter; Esc clears it."
    hints = {
        "instance": "There are no instances: skerry run --name web $(skerry image sample)",
        "service": "There are no services: skerry service create NAME IMAGE --replicas 3",
        "function": "No function was called yet: skerry fn deploy FILE, skerry fn invoke NAME",
        "node": "There are no nodes: skerry token create --role node",
    }
    return hints[state.table.kind]


def _fitting(table: TopTable, width: int, name_width: int) -> list[TopColumn]:
    """The columns that have space beside names of `name_width`; those of the highest rank are left out
    first."""
    name, *others = table.columns
    columns = [name._replace(width=max(name.width, name_width)), *others]
    while sum(column.width + 1 for column in columns) > width:
        least = max(columns, key=lambda column: column.rank)
        if not least.rank:
            break
        columns.remove(least)
    return columns


def _cells(columns: list[TopColumn], texts: list[str], width: int) -> str:
    """The first column takes the space that the others leave."""
    rest = sum(column.width + 1 for column in columns[1:])
    widths = [max(columns[0].width, width - rest), *(column.width for column in columns[1:])]
    return " ".join(
        _right(text, size) if column.is_number else set_cell_size(text, size)
        for column, text, size in zip(columns, texts, widths, strict=True)
    )


def _right(text: str, size: int) -> str:
    return set_cell_size(text, size) if cell_len(text) > size else " " * (size - cell_len(text)) + text


def _heading(state: TopState, columns: list[TopColumn], width: int) -> Text:
    def title(column: TopColumn) -> str:
        if column.name != state.sort:
            return column.title
        descends = column.is_number != state.is_reversed
        return f"{column.title}{'v' if descends else '^'}"

    return _line(_cells(columns, [title(column) for column in columns], width), width, "black on green")


def _row(row: TopRow, columns: list[TopColumn], width: int, *, is_selected: bool) -> Text:
    texts = [terminal_text.visible(column.show(row.cells[column.name])) for column in columns]
    style = "reverse" if is_selected else "yellow" if row.is_wrong else ""
    return _line(_cells(columns, texts, width), width, style)


def _details(frame: TopFrame, width: int) -> list[Text]:
    state = frame.state
    shown = top_state.rows(state, frame.snapshot)
    row = next((row for row in shown if (row.id, row.namespace) == state.selected), None)
    if row is None:
        return [_line("It is gone. Esc goes back.", width, "yellow")]
    lines = [_line(f"{state.table.kind} {row.cells['name']}", width, "bold")]
    lines += [
        _line(f"  {column.title.lower():<12} {column.show(row.cells[column.name])}", width)
        for column in state.table.columns[1:]
    ]
    if frame.details is None:
        return [*lines, _line("  ...", width, "dim")]
    found = frame.details.get("object", {})
    for name in (
        "reason",
        "check_message",
        "image",
        "uri",
        "ip",
        "address",
        "ports",
        "subnet",
        "Runtime",
        "Handler",
    ):
        if value := found.get(name):
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            lines.append(_line(f"  {name:<12} {text}", width))
    lines += [_line(f"  try          {text}", width, "cyan") for text in _commands(state, row)]
    if events := frame.details.get("events"):
        lines += [_line("", width), _line("  events", width, "bold")]
        lines += [_line(f"  {_event(event)}", width) for event in events]
    return lines


def _commands(state: TopState, row: TopRow) -> list[str]:
    name = row.cells["name"]
    within = "" if row.namespace in (None, "default") else f" -n {row.namespace}"
    if state.table.kind == "instance":
        return [f"skerry logs -f {row.id}{within}", f"skerry exec -it {row.id}{within} sh"]
    if state.table.kind == "service":
        return [f"skerry service describe {name}{within}"]
    if state.table.kind == "function":
        return [f"skerry fn logs {name}{within.replace('-n', '--namespace')}"]
    return [f"skerry describe node {name}"]


def _event(event: dict[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.get("at", 0)))
    return f"{at} {event.get('kind', '')} {event.get('reason', '')}"


def _foot(frame: TopFrame, width: int) -> Text:
    if frame.state.mode is TopMode.FILTER:
        text = "type to filter   Enter keep   Esc clear"
    elif frame.state.mode in (TopMode.DETAILS, TopMode.HELP):
        text = "Esc back   Up Down scroll   q quit"
    else:
        text = "? help  / filter  Enter details  c m n sort  r reverse  p pause  q quit"
    return _line(text, width, "black on cyan")
