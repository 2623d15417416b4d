"""Lists in pages of a table: searched, sorted and cut on the server, by the query of the page.

A page of 1,000 objects has as many rows as one of 50. `ListQuery` is the query of every list, `build_table`
makes the table; a page gives its columns, and how an object becomes a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from skerry.console.components import Cell, Column, EmptyState, Row, Table
from skerry.model import ids
from skerry.model.namespace_scope import ListedNamespaces, NamespaceScope
from skerry.transport.access.namespaces import EVERY, SEPARATOR

T = TypeVar("T")

PAGE_SIZE = 50
_MAX_SEARCH = 200
_NUMBERS = re.compile(r"([0-9]{1,18})")


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which part of a list: of which namespaces, with which text, in which order."""

    lists_namespaces: ClassVar[bool] = True

    namespace: str = EVERY
    q: Annotated[str, Meta(max_length=_MAX_SEARCH)] = ""
    sort: Annotated[str, Meta(max_length=40)] = ""  # the key of a column; with `-` before it, descending
    page: Annotated[int, Meta(ge=1, le=100_000)] = 1

    @property
    def listed(self) -> ListedNamespaces:
        """The namespaces, as registries take them; None: all."""
        if self.namespace in ("", EVERY):
            return None
        return NamespaceScope(tuple(map(ids.check_namespace, self.namespace.split(SEPARATOR))))

    def lists(self, namespace: ids.Namespace) -> bool:
        """Whether objects of this namespace are in the list."""
        return self.namespace in ("", EVERY) or namespace in self.namespace.split(SEPARATOR)

    def href(self, path: str, **changes: Any) -> str:
        """The address of this list with these changes."""
        changed = msgspec.structs.replace(self, **changes)
        defaults = ListQuery()
        given = {
            name: getattr(changed, name)
            for name in ("namespace", "q", "sort", "page")
            if getattr(changed, name) != getattr(defaults, name)
        }
        return f"{path}?{urlencode(given)}" if given else path


class ObjectQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The namespace of an object, which tab of its page, and which page of the table in it."""

    namespace: str = ""
    tab: Annotated[str, Meta(max_length=20)] = ""
    page: Annotated[int, Meta(ge=1, le=100_000)] = 1  # of the table in the tab

    @property
    def named(self) -> ids.Namespace | None:
        return ids.check_namespace(self.namespace) if self.namespace else None


class TableContext(NamedTuple):
    """Where a table is part of another page: which page of it, and where its others are."""

    page: int
    href: Callable[[int], str]

    @classmethod
    def of(cls, path: str, query: ObjectQuery, tab: str) -> TableContext:
        base = {"namespace": query.namespace, "tab": tab}

        def href(page: int) -> str:
            given = {name: value for name, value in {**base, "page": str(page)}.items() if value}
            return f"{path}?{urlencode(given)}"

        return cls(query.page, href)


class TableColumn(NamedTuple):
    """A column with the value that it is sorted by."""

    title: str
    key: str
    by: Callable[[Any], Any]
    number: bool = False
    minor: bool = False


class TableShape(NamedTuple):
    """What a list looks like: where it is, its columns, and how an object is searched and drawn."""

    id: str
    caption: str
    path: str
    columns: Sequence[TableColumn]
    text_of: Callable[[Any], str]  # that is searched
    cells_of: Callable[[Any], Sequence[Cell]]
    empty: EmptyState
    page_href: Callable[[int], str] | None = None  # of a part of another page, which is in its own order


def build_table(shape: TableShape, objects: Iterable[T], query: ListQuery) -> Table:
    """The page of `objects` that `query` asks for; in their own order if it names no column."""
    every = list(objects)
    words = query.q.lower().split()
    found = [one for one in every if _has(shape.text_of(one), words)] if words else every
    key = query.sort.lstrip("-")
    is_descending = query.sort.startswith("-")
    for column in shape.columns:
        if column.key and column.key == key:
            found = sorted(found, key=lambda one: natural(column.by(one)), reverse=is_descending)
    pages = max(1, -(-len(found) // PAGE_SIZE))
    page = min(query.page, pages)
    start = (page - 1) * PAGE_SIZE
    shown = found[start : start + PAGE_SIZE]
    return Table(
        id=shape.id,
        caption=shape.caption,
        columns=tuple(_head(column, shape, query, key, is_descending) for column in shape.columns),
        rows=tuple(Row(tuple(shape.cells_of(one))) for one in shown),
        total=len(found),
        summary=_summary(len(every), len(found), start, len(shown)),
        previous=_page(shape, query, page - 1) if page > 1 else "",
        next=_page(shape, query, page + 1) if page < pages else "",
        empty=_empty(shape.empty, query) if not shown else None,
        page=page,
    )


def natural(value: Any) -> Any:
    """A key to sort by: numbers in names count as numbers, so `edge-12` is before `edge-102`."""
    if not isinstance(value, str):
        return value
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(value.lower())]


def _has(text: str, words: Sequence[str]) -> bool:
    lower = text.lower()
    return all(word in lower for word in words)


def _page(shape: TableShape, query: ListQuery, page: int) -> str:
    return query.href(shape.path, page=page) if shape.page_href is None else shape.page_href(page)


def _head(column: TableColumn, shape: TableShape, query: ListQuery, key: str, is_descending: bool) -> Column:
    is_sorted = bool(column.key) and column.key == key
    sort = f"-{column.key}" if is_sorted and not is_descending else column.key
    return Column(
        column.title,
        column.key,
        column.number,
        column.minor,
        query.href(shape.path, sort=sort, page=1) if column.key and shape.page_href is None else "",
        ("descending" if is_descending else "ascending") if is_sorted else "",
    )


def _summary(every: int, found: int, start: int, shown: int) -> str:
    if not shown:
        return f"none of {every:,}" if every else ""
    part = f"{start + 1:,}–{start + shown:,} of {found:,}" if found > shown else f"{found:,} in all"
    return part if found == every else f"{part.removesuffix(' in all')} found, {every:,} in all"


def _empty(empty: EmptyState, query: ListQuery) -> EmptyState:
    if query.q:
        return EmptyState("Nothing found", f"Nothing here contains “{query.q}”.")
    return empty
