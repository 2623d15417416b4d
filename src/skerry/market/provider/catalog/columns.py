"""Offers as columns of numbers, one row each: which of very many match is found by comparing whole columns.

Imported only when a catalogue has grown large. What is compared are the same numbers that
`skerry.market.terms.selectors` compares one by one, so the same offers match. What is the same of many offers
is looked at once: words, and policies. A change writes one row. In which order offers are is known to
`skerry.market.provider.catalog.column_index`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skerry.market.provider.catalog.sorted_rows import BoolColumn, FloatColumn, RowNumbers
from skerry.market.terms.selectors import (
    EVERYTHING,
    OfferSelector,
    OfferSnapshot,
    OfferSort,
    cost,
    count_of,
    max_cost,
    may_be_taken,
    unit_costs,
)
from skerry.model.ids import OfferId
from skerry.model.resources import MAX_AMOUNT, NO_RESOURCES, Resources

IntColumn = NDArray[np.int32]
CodeColumn = NDArray[Any]  # of 16 bits while that is enough

# Most of a search is waiting for memory, so a column is no wider than what is in it has to be.
_FLAGS: Final = 2
_AVAILABLE, _IS_WHOLLY_SOLD = range(_FLAGS)
_CODES: Final = 5
_KIND, _ARCHITECTURE, _LOCATION, _CURRENCY, _POLICY = range(_CODES)
_AMOUNTS: Final = 6
_CPU, _MEMORY, _DISK, _FREE_CPU, _FREE_MEMORY, _FREE_DISK = range(_AMOUNTS)
_COSTS: Final = 4  # of a unit of each resource, and of what is shown
_SHOWN: Final = (_CPU, _MEMORY, _DISK)
_FREE: Final = (_FREE_CPU, _FREE_MEMORY, _FREE_DISK)
_SORTED_BY: Final = {OfferSort.CPU: _CPU, OfferSort.MEMORY: _MEMORY, OfferSort.DISK: _DISK}
_NARROW: Final = 2**16 - 1  # codes below it, and no word has this one
_LEAST_ROWS: Final = 1024
_SPARSE: Final = 8  # if less than one in so many is left, only those are looked at further
_MAX_CACHED: Final = 64  # sets of policies


class PartitionPolicy(NamedTuple):
    """In which parts, and how many at once, an offer is sold."""

    is_divisible: bool
    least: tuple[int, ...]
    step: tuple[int, ...]
    least_count: int
    most_count: int

    @classmethod
    def of(cls, offer: OfferSnapshot) -> PartitionPolicy:
        parts, together = offer.flavor.partition, offer.flavor.aggregation
        return cls(
            parts is not None,
            _amounts(NO_RESOURCES if parts is None else parts.least),
            _amounts(NO_RESOURCES if parts is None else parts.step),
            1 if together is None else together.least,
            1 if together is None else together.most,
        )

    def allows(self, amounts: tuple[int, ...] | None, count: int) -> bool:
        """Whether such a part may be taken so many times, as far as the policy alone says."""
        if not self.least_count <= count <= self.most_count:
            return False
        if amounts is None or not self.is_divisible:
            return True
        return all(
            amount >= least and not (step and (amount - least) % step)
            for amount, least, step in zip(amounts, self.least, self.step, strict=True)
        )


class OfferColumns:
    """The offers by row. A row of nobody keeps who was there last, and matches nothing."""

    def __init__(self, offers: Iterable[OfferSnapshot]) -> None:
        by_id = sorted(offers, key=lambda offer: offer.flavor.id)
        # Those with much cpu stand together: what is searched among them alone is near in memory.
        by_cpu = sorted(range(len(by_id)), key=[-offer.shown.cpu for offer in by_id].__getitem__)
        self.rows_by_id: Final = np.argsort(np.array(by_cpu, np.intp))  # as they are now
        ordered = [by_id[place] for place in by_cpu]
        self._words: dict[str, int] = {}
        self._policies: dict[PartitionPolicy, int] = {}
        self._by_policies: dict[tuple[int, ...], BoolColumn] = {}
        self._currencies: Counter[str] = Counter(offer.flavor.price.currency for offer in ordered)
        self._offers: list[OfferSnapshot] = []
        self._row_of: dict[OfferId, int] = {}
        self._empty: list[int] = []
        resources = max(_LEAST_ROWS, 2 * len(ordered))
        self._flags = np.zeros((_FLAGS, resources), np.bool_)
        self._codes: CodeColumn = np.zeros((_CODES, resources), np.uint16)
        self._amounts = np.zeros((_AMOUNTS, resources), np.int32)
        self._costs = np.zeros((_COSTS, resources), np.float64)
        for row, offer in enumerate(ordered):
            self._offers.append(offer)
            self._row_of[offer.flavor.id] = row
            self._write(row, offer)

    def __len__(self) -> int:
        """Rows, also those of nobody."""
        return len(self._offers)

    def __getitem__(self, row: int) -> OfferSnapshot:
        return self._offers[row]

    def offers(self, rows: Iterable[int]) -> list[OfferSnapshot]:
        return [self._offers[row] for row in rows]

    @property
    def currencies(self) -> Iterator[str]:
        return (word for word, count in self._currencies.items() if count)

    def put(self, offer: OfferSnapshot) -> tuple[int, OfferSnapshot | None]:
        """Its row, and how it was in it before."""
        id = offer.flavor.id
        row = self._row_of.get(id)
        before = None if row is None else self._offers[row]
        if row is None or before is None:
            row = self._row_of[id] = self._row_for(offer)
        else:
            self._currencies[before.flavor.price.currency] -= 1
        self._offers[row] = offer
        self._currencies[offer.flavor.price.currency] += 1
        self._write(row, offer)
        return row, before

    def drop(self, id: OfferId) -> int:
        """The row that was its own."""
        row = self._row_of.pop(id)
        self._currencies[self._offers[row].flavor.price.currency] -= 1
        self._flags[_AVAILABLE, row] = False
        self._empty.append(row)
        return row

    def is_available(self, row: int) -> bool:
        return bool(self._flags[_AVAILABLE, row])

    def available(self, rows: RowNumbers, currency: str) -> RowNumbers:
        """Those of `rows` that can be had, in that currency if one is said."""
        can = self._flags[_AVAILABLE].take(rows)
        if currency:
            can &= self._codes[_CURRENCY].take(rows) == self._code_of(currency)
        found: RowNumbers = rows[can]
        return found

    def values(self, selector: OfferSelector, rows: RowNumbers) -> FloatColumn:
        """What these rows are put in order by."""
        return self._view(selector, rows).values(selector)

    def matching(
        self, selector: OfferSelector, rows: RowNumbers | None = None, least: int = 0
    ) -> tuple[ColumnView, BoolColumn]:
        """Where in a view of `rows`, or of all, there is what matches. The view is of less if few are left,
        and of nothing if those are less than `least`."""
        view = self._view(selector, rows)
        view, keep = self._thinned(view, self._admitted(selector, view), selector, least)
        if selector.part is not None or selector.count is not None:
            keep &= self._can_be_taken(selector, view)
            view, keep = self._thinned(view, keep, selector, least)
        if selector.most_price is not None:
            count = self._counts(selector, view)
            keep &= (view.cost() if count is None else view.cost() * count) <= max_cost(selector.most_price)
        return view, keep

    def _view(self, selector: OfferSelector, rows: RowNumbers | None) -> ColumnView:
        return ColumnView(self._amounts, self._costs, len(self), selector.part, rows)

    def _thinned(
        self, view: ColumnView, keep: BoolColumn, selector: OfferSelector, least: int
    ) -> tuple[ColumnView, BoolColumn]:
        """The same, or if little is to be kept a view of only that."""
        count = int(np.count_nonzero(keep))
        if count >= least and count * _SPARSE >= len(keep):
            return view, keep
        places = np.flatnonzero(keep) if count >= least else np.zeros(0, np.intp)
        return self._view(selector, view.rows_at(places)), np.ones(len(places), np.bool_)

    def in_currency(self, view: ColumnView, currency: str) -> BoolColumn:
        """Where in a view prices are in that currency."""
        found: BoolColumn = view.of(self._codes[_CURRENCY]) == self._code_of(currency)
        return found

    def _admitted(self, selector: OfferSelector, view: ColumnView) -> BoolColumn:
        """Where everything holds that is a comparison with a column."""
        admitted: BoolColumn = view.of(self._flags[_AVAILABLE]).copy()
        for word, column in (
            (selector.kind, _KIND),
            (selector.architecture, _ARCHITECTURE),
            (selector.location, _LOCATION),
            ("" if selector.most_price is None else selector.most_price.currency, _CURRENCY),
        ):
            if word:
                admitted &= view.of(self._codes[column]) == self._code_of(word)
        for exact, least, most, column in (
            (selector.cpu, selector.least_cpu, selector.most_cpu, _CPU),
            (selector.memory, selector.least_memory, selector.most_memory, _MEMORY),
            (selector.disk, selector.least_disk, selector.most_disk, _DISK),
        ):
            if exact is None and least is None and most is None:
                continue
            amounts = view.amounts(column)
            if exact is not None:
                admitted &= amounts == exact
            if least is not None:
                admitted &= amounts >= least
            if most is not None:
                admitted &= amounts <= most
        return admitted

    def _counts(self, selector: OfferSelector, view: ColumnView) -> FloatColumn | None:
        """How many are taken of each; None: one of all."""
        counts = np.ones(1 + max(self._policies.values(), default=0))
        for policy, code in self._policies.items():
            counts[code] = count_of(selector, policy.least_count)
        if (counts == 1).all():
            return None
        found: FloatColumn = counts.take(view.of(self._codes[_POLICY]), mode="clip")
        return found

    def _can_be_taken(self, selector: OfferSelector, view: ColumnView) -> BoolColumn:
        """Of which offers the part, or without one what is shown, may be taken so many times."""
        part = selector.part
        can = np.zeros(view.size, np.bool_)
        if part == NO_RESOURCES:
            return can
        # Policies of which the rest is the same.
        alike: dict[tuple[bool, tuple[int, ...], tuple[int, ...], int], list[int]] = {}
        for policy, code in self._policies.items():
            count = count_of(selector, policy.least_count)
            if part is not None and max(_amounts(part)) * count > MAX_AMOUNT:
                continue
            if policy.allows(None if part is None else _amounts(part), count):
                alike.setdefault((policy.is_divisible, policy.least, policy.step, count), []).append(code)
        for (is_divisible, least, step, count), codes in alike.items():
            among = view.of(self._with_policies(tuple(codes)))
            if part is not None and is_divisible:
                can |= self._parts_of(view, among, part * count, least, step)
            elif part is not None:
                can |= self._wholes_like(view, among, part, count)
            elif not is_divisible:
                can |= self._wholes_of(view, among, count)
            elif count == 1:
                # All of what is shown of a divisible one is all that is free, and that is there once.
                can |= among & view.of(self._flags[_IS_WHOLLY_SOLD])
        return can

    def _parts_of(
        self,
        view: ColumnView,
        among: BoolColumn,
        taken: Resources,
        least: tuple[int, ...],
        step: tuple[int, ...],
    ) -> BoolColumn:
        """Where so much may be taken, as what stays is at least that, or of nothing as much as a step."""
        can = among
        for amount, column, at_least in zip(_amounts(taken), _FREE, least, strict=True):
            if amount:  # whoever takes nothing of it leaves it as it is
                can = can & (view.amounts(column) >= amount + at_least)
        places: RowNumbers | None = None
        rest = among ^ can
        if np.count_nonzero(rest) * _SPARSE <= len(rest):
            places = np.flatnonzero(rest)
        for amount, column, each in zip(_amounts(taken), _FREE, step, strict=True):
            free, end = view.amounts(column), amount + max(each, 1)
            if places is None:
                places = np.flatnonzero(rest & (free >= amount) & (free < end))  # few are just so large
            else:
                there = free.take(places)
                places = places[(there >= amount) & (there < end)]
        can[places] = True
        return can

    def _with_policies(self, codes: tuple[int, ...]) -> BoolColumn:
        """Which rows have one of these policies; kept, as offers change more often than their policies."""
        rows = self._by_policies.get(codes)
        if rows is None or len(rows) != len(self._offers):
            column = self._codes[_POLICY, : len(self._offers)]
            rows = column == codes[0]
            for code in codes[1:]:
                rows |= column == code
            if len(self._by_policies) >= _MAX_CACHED:
                self._by_policies.clear()
            self._by_policies[codes] = rows
        return rows

    def _wholes_like(self, view: ColumnView, among: BoolColumn, part: Resources, count: int) -> BoolColumn:
        """Where the part is a whole one, and there are so many."""
        places = np.flatnonzero(among & (view.amounts(_CPU) == part.cpu))  # few are just so large
        for amount, shown, free in zip(_amounts(part), _SHOWN, _FREE, strict=True):
            places = places[view.amounts(shown).take(places) == amount]
            places = places[view.amounts(free).take(places) >= amount * count]
        can = np.zeros(view.size, np.bool_)
        can[places] = True
        return can

    def _wholes_of(self, view: ColumnView, among: BoolColumn, count: int) -> BoolColumn:
        """Where there are so many of what is shown."""
        can = among
        for shown, free in zip(_SHOWN, _FREE, strict=True):
            # In numbers of twice the size: so many of it may be more than a column holds.
            can = can & (view.amounts(free) - view.amounts(shown).astype(np.int64) * count >= 0)
        return can

    def _code_of(self, word: str) -> int:
        return self._words.get(word, _NARROW)

    def _row_for(self, offer: OfferSnapshot) -> int:
        if self._empty:
            return self._empty.pop()
        row = len(self._offers)
        self._offers.append(offer)
        if row == self._flags.shape[1]:
            more = ((0, 0), (0, row))
            self._flags, self._amounts = np.pad(self._flags, more), np.pad(self._amounts, more)
            self._codes, self._costs = np.pad(self._codes, more), np.pad(self._costs, more)
        return row

    def _write(self, row: int, offer: OfferSnapshot) -> None:
        flavor = offer.flavor
        codes = [self._code(word) for word in (flavor.kind, flavor.architecture, flavor.location)]
        codes.append(self._code(flavor.price.currency))
        codes.append(self._policies.setdefault(PartitionPolicy.of(offer), len(self._policies)))
        if max(codes) >= _NARROW and self._codes.dtype == np.uint16:
            self._codes = self._codes.astype(np.int32)
        if self._codes[_POLICY, row] != codes[-1]:
            self._by_policies.clear()
        self._flags[:, row] = offer.is_available, may_be_taken(offer, EVERYTHING)
        self._codes[:, row] = codes
        self._amounts[:, row] = *_amounts(offer.shown), *_amounts(offer.free)
        self._costs[:, row] = *unit_costs(flavor), cost(offer, None)

    def _code(self, word: str) -> int:
        # One code is for what is not known, wherever codes are still narrow.
        code = self._words.get(word)
        if code is None:
            number = len(self._words)
            code = self._words[word] = number if number < _NARROW else number + 1
        return code


class ColumnView:
    """All rows, or some of them if few are left."""

    def __init__(
        self,
        amounts: IntColumn,
        costs: FloatColumn,
        used: int,
        part: Resources | None,
        rows: RowNumbers | None,
    ) -> None:
        self._amounts = amounts
        self._costs = costs
        self._used = used
        self._part = part
        self._cost: FloatColumn | None = None
        self._taken: dict[int, IntColumn] = {}
        self.rows = rows

    @property
    def size(self) -> int:
        return self._used if self.rows is None else len(self.rows)

    def of(self, column: NDArray[Any]) -> NDArray[Any]:
        """What a column has in these rows."""
        return column[: self._used] if self.rows is None else column.take(self.rows)

    def amounts(self, column: int) -> IntColumn:
        """The same of a column of amounts; not to be changed."""
        found = self._taken.get(column)
        if found is None:
            found = self._taken[column] = self.of(self._amounts[column])
        return found

    def rows_at(self, places: RowNumbers) -> RowNumbers:
        return places if self.rows is None else self.rows.take(places)

    def of_all(self, keep: BoolColumn) -> BoolColumn:
        """The same of all rows."""
        if self.rows is None:
            return keep
        all_ = np.zeros(self._used, np.bool_)
        all_[self.rows] = keep
        return all_

    def values(self, selector: OfferSelector) -> FloatColumn:
        """What they are put in order by."""
        if selector.sort is OfferSort.PRICE:
            values = self.cost()
        else:
            values = self.amounts(_SORTED_BY[selector.sort]).astype(np.float64)
        return -values if selector.is_descending else values

    def cost(self) -> FloatColumn:
        """What one part costs a second, or all that is shown if no part is asked for."""
        if self._cost is None:
            part = self._part
            if part is None:
                self._cost = self.of(self._costs[3])
            else:
                self._cost = self.of(self._costs[0]) * part.cpu
                self._cost += self.of(self._costs[1]) * part.memory
                if part.disk:
                    self._cost += self.of(self._costs[2]) * part.disk
        return self._cost


def _amounts(resources: Resources) -> tuple[int, int, int]:
    return resources.cpu, resources.memory, resources.disk
