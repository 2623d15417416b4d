"""What `skerry top` shows, and how keys change it. Pure."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from skerry.cli.top.snapshots import CloudSnapshot
from skerry.cli.top.tables import TABLES, TopRow, TopTable, arranged

_SORTS: Final = tuple(each.sort for each in TABLES)


class TopMode(enum.Enum):
    LIST = "list"
    FILTER = "filter"  # text is typed
    DETAILS = "details"
    HELP = "help"
    QUIT = "quit"


class TopState(NamedTuple):
    """`selected` is the id of a row, so that the selection stays when the order changes."""

    mode: TopMode = TopMode.LIST
    tab: int = 0
    sorts: tuple[str, ...] = _SORTS  # by tab
    is_reversed: bool = False
    filter: str = ""
    selected: tuple[str, str | None] | None = None  # id and namespace
    offset: int = 0  # of the first line in DETAILS
    is_paused: bool = False

    @property
    def table(self) -> TopTable:
        return TABLES[self.tab]

    @property
    def sort(self) -> str:
        return self.sorts[self.tab]


_BUSY: Final = ("cpu_millicores", "calls_per_s")
_SHORTCUTS: Final = {"c": _BUSY, "P": _BUSY, "m": ("memory_mb",), "M": ("memory_mb",), "n": ("name",)}
_STEPS: Final = {"up": -1, "k": -1, "down": 1, "j": 1}
_QUIT: Final = ("q", "ctrl-c", "f10")
_MAX_FILTER: Final = 40


def rows(state: TopState, snapshot: CloudSnapshot | None) -> list[TopRow]:
    """The rows of the tab, as they are shown."""
    found = None if snapshot is None else state.table.rows(snapshot)
    return arranged(state.table, found or [], state.sort, state.filter, is_reversed=state.is_reversed)


def position(state: TopState, shown: list[TopRow]) -> int:
    """Where the selected row is; the first one if it is gone."""
    for index, row in enumerate(shown):
        if (row.id, row.namespace) == state.selected:
            return index
    return 0


def press(state: TopState, key: str, shown: list[TopRow], page: int) -> TopState:
    """What is shown after a key; `page` rows fit on the screen."""
    if state.mode is TopMode.FILTER:
        return _type(state, key)
    if key in _QUIT:
        return state._replace(mode=TopMode.QUIT)
    if state.mode in (TopMode.HELP, TopMode.DETAILS):
        return _read(state, key, page)
    return _browse(state, key, shown, page)


def _type(state: TopState, key: str) -> TopState:
    if key == "ctrl-c":
        return state._replace(mode=TopMode.QUIT)
    if key == "enter":
        return state._replace(mode=TopMode.LIST)
    if key == "escape":
        return state._replace(mode=TopMode.LIST, filter="")
    if key == "backspace":
        return state._replace(filter=state.filter[:-1])
    if len(key) == 1 and key.isprintable() and len(state.filter) < _MAX_FILTER:
        return state._replace(filter=state.filter + key)
    return state


def _read(state: TopState, key: str, page: int) -> TopState:
    if key in ("escape", "enter", "backspace", "left", "?", "h", "f1"):
        return state._replace(mode=TopMode.LIST, offset=0)
    moves = {**_STEPS, "page-up": -page, "page-down": page, " ": page, "home": -state.offset}
    return state._replace(offset=max(0, state.offset + moves.get(key, 0)))


def _browse(state: TopState, key: str, shown: list[TopRow], page: int) -> TopState:
    if key in ("?", "h", "f1"):
        return state._replace(mode=TopMode.HELP, offset=0)
    if key in ("/", "f4"):
        return state._replace(mode=TopMode.FILTER)
    if key == "escape":
        return state._replace(filter="")
    if key == "p":
        return state._replace(is_paused=not state.is_paused)
    if key in ("r", "I"):
        return state._replace(is_reversed=not state.is_reversed)
    if key in ("tab", "right"):
        return _open_tab(state, state.tab + 1)
    if key in ("back-tab", "left"):
        return _open_tab(state, state.tab - 1)
    if key.isdigit() and 1 <= int(key) <= len(TABLES):
        return _open_tab(state, int(key) - 1)
    if key in ("<", ">", "s", "f6"):
        return _sort_beside(state, -1 if key == "<" else 1)
    if key in _SHORTCUTS:
        names = [column.name for column in state.table.columns]
        found = next((name for name in _SHORTCUTS[key] if name in names), None)
        return state if found is None else _sort_by(state, found)
    return _move(state, key, shown, page)


def _move(state: TopState, key: str, shown: list[TopRow], page: int) -> TopState:
    if not shown:
        return state
    at = position(state, shown)
    if key == "enter":
        return state._replace(mode=TopMode.DETAILS, offset=0, selected=(shown[at].id, shown[at].namespace))
    moves = {**_STEPS, "page-up": -page, "page-down": page, "home": -at, "end": len(shown)}
    if key not in moves:
        return state
    to = shown[max(0, min(len(shown) - 1, at + moves[key]))]
    return state._replace(selected=(to.id, to.namespace))


def _open_tab(state: TopState, tab: int) -> TopState:
    return state._replace(tab=tab % len(TABLES), selected=None, is_reversed=False)


def _sort_beside(state: TopState, step: int) -> TopState:
    names = [column.name for column in state.table.columns]
    return _sort_by(state, names[(names.index(state.sort) + step) % len(names)])


def _sort_by(state: TopState, name: str) -> TopState:
    sorts = [name if index == state.tab else sort for index, sort in enumerate(state.sorts)]
    return state._replace(sorts=tuple(sorts), is_reversed=False)
