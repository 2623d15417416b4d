"""Finding the first of very many offers: what matches by `skerry.market.provider.catalog.columns`, in orders
that are kept.

Most pages are found quickly: the first thousand of an order are checked, and if they fill the page, that is
all. Else everything is. The price of a part is another for every part; there the first ones are those that
are cheap for a typical part, and they suffice if no later one can be cheaper. Where they do not, the price is
worked out for all that may be taken, and where the first of them end is guessed from a sample. Few have much
cpu, or just so much; where that is asked for, only those are checked, which the order of cpu has together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

from skerry.market.provider.catalog.columns import ColumnView, OfferColumns
from skerry.market.provider.catalog.sorted_rows import BoolColumn, FloatColumn, RowNumbers, SortedRows
from skerry.market.terms.selectors import OfferCursor, OfferSelector, OfferSnapshot, OfferSort, cursor_for
from skerry.model.ids import OfferId
from skerry.model.resources import MAX_AMOUNT, NO_RESOURCES, Megabytes, Millicores, Resources

_FIRST_ROWS: Final = 1024
_FEW: Final = 1024  # so many are put in order anew
_SAMPLE: Final = 64  # one in so many
_MARGIN: Final = 16
_TYPICAL: Final = OfferSelector(part=Resources(Millicores(1000), Megabytes(4096)))
_MOST_UNLIKE: Final = 8.0
_ROUNDING: Final = 1 - 1e-9
_BY_CPU: Final = OfferSelector(sort=OfferSort.CPU, is_descending=True)
_RANGE_SHARE: Final = 8  # if one in so many has that much cpu, only those are checked
_TOUCHED: Final = 64  # rows, from where on they are put in their places in the order of cpu


class OfferColumnIndex:
    """The offers of a catalogue, found by selector."""

    def __init__(self, offers: Iterable[OfferSnapshot]) -> None:
        self._columns = OfferColumns(offers)
        self._by_id = SortedRows(self._columns.rows_by_id, np.zeros(len(self._columns)))
        self._ranks: RowNumbers | None = None  # the place of each row in the order of ids
        self._orders: dict[tuple[OfferSelector, str], SortedRows] = {}

    def put(self, offer: OfferSnapshot) -> None:
        row, before = self._columns.put(offer)
        if before is None:
            self._by_id.touch(row)
            self._ranks = None
        for (meant, group), order in self._orders.items():
            # Where it stands as before nothing has to be put in its place: a hold does not change the price.
            if before is None or _value(before, meant, group) != _value(offer, meant, group):
                order.touch(row)

    def drop(self, id: OfferId) -> None:
        row = self._columns.drop(id)
        for order in self._orders.values():
            order.touch(row)

    def find(self, selector: OfferSelector, limit: int, begin: OfferCursor | None) -> list[OfferSnapshot]:
        """The first `limit` that match, behind `begin`."""
        among = self._of_that_size(selector)
        rows = self._first_matches(selector, limit, begin) if among is None else None
        if rows is None:
            view, keep = self._columns.matching(selector, among)
            if _is_by_part(selector) or np.count_nonzero(keep) <= _FEW:
                rows = self._first_by_value(selector, view, keep, limit, begin)
            else:
                rows = self._first_in_order(selector, view.of_all(keep), limit, begin)
        return self._columns.offers(rows)

    def _first_matches(
        self, selector: OfferSelector, limit: int, begin: OfferCursor | None
    ) -> list[int] | None:
        """The first, if they are among the first of an order; else nobody knows yet."""
        group = next((each for each in self._groups(selector) if begin is None or each >= begin.group), None)
        if group is None or not limit:
            return []
        if _is_by_part(selector) and (
            begin is not None or selector.is_descending or not _is_like_typical(selector)
        ):
            return None
        order = self._order(selector, group)
        start = self._start(order, group, begin)
        rows = order.rows[start : start + max(_FIRST_ROWS, 2 * limit)]
        matching = self._matching(rows, selector, limit)
        if len(matching) < limit:
            return None
        if _is_by_part(selector):
            return self._cheapest(selector, matching, limit, order.values[len(rows) : len(rows) + 1])
        found: list[int] = matching[:limit].tolist()
        return found

    def _of_that_size(self, selector: OfferSelector) -> RowNumbers | None:
        """The rows that may have as much cpu as is asked for, if those are few; None for all.

        What is shown of an offer is at least the part that may be taken of it.
        """
        part = NO_RESOURCES if selector.part is None else selector.part
        least = max(selector.cpu or 0, selector.least_cpu or 0, part.cpu)
        bounds = [each for each in (selector.cpu, selector.most_cpu) if each is not None]
        if not least and not bounds:
            return None
        low, high = -min(bounds, default=MAX_AMOUNT), -least  # the order is descending
        order = self._orders.get((_BY_CPU, ""))
        if order is None or (order.touched > _TOUCHED and self._are_few(order.count_between(low, high))):
            order = self._order(_BY_CPU, "")
        return order.between_or_touched(low, high) if self._are_few(order.count_between(low, high)) else None

    def _are_few(self, count: int) -> bool:
        return count * _RANGE_SHARE <= len(self._columns)

    def _cheapest(
        self, selector: OfferSelector, matching: RowNumbers, limit: int, after: FloatColumn
    ) -> list[int] | None:
        """The cheapest of what matches, unless what is behind it may be cheaper."""
        part, typical = selector.part, _TYPICAL.part
        assert part is not None
        assert typical is not None
        found = self._first(matching, self._columns.values(selector, matching), limit)
        # Whatever a part costs, it is at least so many times what a typical one costs.
        times = min(part.cpu / typical.cpu, part.memory / typical.memory)
        highest = self._columns.values(selector, np.array(found[-1:]))
        return None if (highest > after * times * _ROUNDING).any() else found

    def _matching(self, rows: RowNumbers, selector: OfferSelector, least: int) -> RowNumbers:
        """Which of `rows` match; perhaps none if those are less than `least`."""
        view, keep = self._columns.matching(selector, rows, least)
        return view.rows_at(np.flatnonzero(keep))

    def _first_in_order(
        self, selector: OfferSelector, keep: BoolColumn, limit: int, begin: OfferCursor | None
    ) -> list[int]:
        """The first in an order that is kept."""
        found: list[int] = []
        for group in self._groups(selector):
            if len(found) == limit or (begin is not None and group < begin.group):
                continue
            order = self._order(selector, group)
            found += order.first(keep, self._start(order, group, begin), limit - len(found)).tolist()
        return found

    def _first_by_value(
        self,
        selector: OfferSelector,
        view: ColumnView,
        keep: BoolColumn,
        limit: int,
        begin: OfferCursor | None,
    ) -> list[int]:
        """The first by what it is that they are put in order by."""
        values = view.values(selector)
        groups = list(self._groups(selector))
        found: list[int] = []
        for group in groups:
            if len(found) == limit or (begin is not None and group < begin.group):
                continue
            here = keep if len(groups) == 1 else keep & self._columns.in_currency(view, group)
            if begin is not None and group == begin.group:
                here = here & (values >= begin.value)
                # Of those that are level with it, what stands behind it by its id.
                level = np.flatnonzero(here & (values == begin.value))
                before = self._ranks_of(view.rows_at(level)) < self._rank_after(begin.id)
                here[level.take(np.flatnonzero(before))] = False
            places = _likely(here, values, limit - len(found))
            found += self._first(view.rows_at(places), values.take(places), limit - len(found))
        return found

    def _first(self, rows: RowNumbers, values: FloatColumn, count: int) -> list[int]:
        """The `count` rows of the least values, in order; of equals the first by id."""
        if len(rows) > count:
            below, level = _split(values, count)
            missing = count - len(below)
            if len(level) > missing:
                ranks = self._ranks_of(rows.take(level))
                level = level.take(np.concatenate(_split(ranks, missing)))
            chosen = np.concatenate((below, level))
            rows, values = rows.take(chosen), values.take(chosen)
        found: list[int] = rows.take(np.lexsort((self._ranks_of(rows), values))).tolist()
        return found

    def _groups(self, selector: OfferSelector) -> Iterator[str]:
        """Prices by currency, in the order of their names; anything else is one group."""
        if selector.sort is not OfferSort.PRICE:
            return iter(("",))
        known, most = sorted(self._columns.currencies), selector.most_price
        # An order is kept for each group that was asked for, so it is not whoever asks who makes them up.
        return iter(known if most is None else [each for each in known if each == most.currency])

    def _order(self, selector: OfferSelector, group: str) -> SortedRows:
        """The order that a selector asks for, of one currency if it is of prices; of parts, typical ones."""
        if _is_by_part(selector):
            meant = _TYPICAL
        else:
            meant = OfferSelector(sort=selector.sort, is_descending=selector.is_descending)
        order = self._orders.get((meant, group))
        if order is None or order.is_stale:
            rows = self._columns.available(self._rows_by_id(), group)
            order = self._orders[meant, group] = SortedRows(rows, self._columns.values(meant, rows))
        order.merge_changes(self._value_in(meant, group), self._id_of)
        return order

    def _value_in(self, selector: OfferSelector, group: str) -> Callable[[int], float | None]:
        """The value of one row in an order; None if it is not in it."""

        def value(row: int) -> float | None:
            return _value(self._columns[row], selector, group) if self._columns.is_available(row) else None

        return value

    def _start(self, order: SortedRows, group: str, begin: OfferCursor | None) -> int:
        """Where in the order of a group those begin that stand behind a place."""
        if begin is None or group != begin.group:
            return 0
        return order.after(begin.value, begin.id, self._id_of)

    def _ranks_of(self, rows: RowNumbers) -> RowNumbers:
        ordered = self._rows_by_id()
        if self._ranks is None:
            self._ranks = np.zeros(len(self._columns), np.intp)
            self._ranks[ordered] = np.arange(len(ordered))
        ranks: RowNumbers = self._ranks.take(rows)
        return ranks

    def _rank_after(self, id: OfferId) -> int:
        """The rank of the first that stands behind that id."""
        self._rows_by_id()
        return self._by_id.after(0.0, id, self._id_of)

    def _rows_by_id(self) -> RowNumbers:
        """All rows in the order of ids; those of nobody are somewhere among them."""
        if self._by_id.merge_changes(lambda row: 0.0, self._id_of):
            self._ranks = None
        return self._by_id.rows

    def _id_of(self, row: int) -> OfferId:
        return self._columns[row].flavor.id


def _value(offer: OfferSnapshot, selector: OfferSelector, group: str) -> float | None:
    """What an offer is put in order by; None if it is not in the order of that group."""
    found = cursor_for(offer, selector)
    return found.value if offer.is_available and found.group == group else None


def _is_by_part(selector: OfferSelector) -> bool:
    """True if the order is one of prices of parts."""
    return selector.part is not None and selector.sort is OfferSort.PRICE


def _is_like_typical(selector: OfferSelector) -> bool:
    """True if what is cheap for a typical part is likely to be cheap for this one."""
    part, typical = selector.part, _TYPICAL.part
    assert part is not None
    assert typical is not None
    times = part.cpu / typical.cpu, part.memory / typical.memory
    return max(times) <= _MOST_UNLIKE * min(times)


def _likely(keep: BoolColumn, values: FloatColumn, count: int) -> RowNumbers:
    """Where to find the `count` least of what is to be kept: there, or by chance somewhere else too."""
    # Of what is wanted the sample has its share, and of twice that and a margin more than that almost surely.
    sample = values[::_SAMPLE][keep[::_SAMPLE]]
    place = 2 * count // _SAMPLE + _MARGIN
    if place < len(sample):
        likely = np.flatnonzero(keep & (values <= np.partition(sample, place)[place]))
        if len(likely) >= count:
            return likely
    return np.flatnonzero(keep)


def _split(values: FloatColumn | RowNumbers, count: int) -> tuple[RowNumbers, RowNumbers]:
    """Where the values are below the `count`-th least, and where they are equal to it."""
    if count < 1:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    bound = np.partition(values, count - 1)[count - 1]
    return np.flatnonzero(values < bound), np.flatnonzero(values == bound)
