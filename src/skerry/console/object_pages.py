"""The page of one object, as most kinds have it: its status, facts and actions, and one of its parts as a
table or as output. `templates/object.html` draws it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from skerry.console.components import Action, Bar, Cell, EmptyState, Fact, LogView, Tab, Table, TreeItem
from skerry.console.rendering import url
from skerry.transport.http.endpoints import RequestContext


class ObjectView(msgspec.Struct, frozen=True, kw_only=True):
    """What is on the page."""

    name: str
    namespace: str  # empty: it is in none
    path: str  # of the page
    kind: str  # of the list that it is in
    list_path: str
    status: Cell = Cell()
    note: str = ""  # what is going on, in a sentence
    facts: tuple[Fact, ...] = ()
    bars: tuple[Bar, ...] = ()
    actions: tuple[Action, ...] = ()
    tabs: tuple[Tab, ...] = ()
    tab: str = ""
    table: Table | None = None
    logs: LogView | None = None
    tree: tuple[TreeItem, ...] = ()
    text: str = ""  # instead of a table
    tree_heads: tuple[str, ...] = ()  # of the columns of `tree`
    waiting: str = ""  # instead of all of these, which the page asks for when it is open
    empty: EmptyState | None = None  # likewise, if there is nothing to show
    ticks: bool = False  # its part has figures, which are asked for again every ten seconds

    @property
    def href(self) -> str:
        """The address of what is shown now, by which it is asked for again."""
        page = "" if self.table is None else self.table.page_text
        return url(self.path, namespace=self.namespace, tab=self.tab, page=page)


def is_part(call: RequestContext) -> bool:
    """True if the part below the tabs is asked for alone, by a page that is open."""
    return call.headers.get(b"hx-target") == b"part"


def tabs(path: str, namespace: str, all: Sequence[tuple[str, str]], current: str) -> tuple[Tab, ...]:
    """Links to the parts, which are pairs of a key and a title."""
    return tuple(Tab(title, url(path, namespace=namespace, tab=key), key == current) for key, title in all)


def chosen(tab: str, all: Sequence[tuple[str, str]]) -> str:
    """The key of the part that is asked for, or of the first."""
    return tab if tab in dict(all) else all[0][0]
