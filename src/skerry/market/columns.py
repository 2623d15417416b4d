"""Finding offers among very many: numpy columns over a catalogue, one row per offer.

Imported only when a catalogue has grown large. A search compares whole columns with the same numbers as
`skerry.market.selecting` does one by one, and so finds the same offers in the same order. What is the same of
many offers is looked at once: words, and policies. A change writes one row.

Orders that do not depend on who asks are kept (`skerry.market.orders`), so the first of very many are found
by looking at the first. Only the price of a part is another for every part: it is worked out for all that may
be taken, and where the first of them begin is guessed from a sample before everything is sorted through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skerry.market.orders import Bits, Floats, Order, Rows
from skerry.market.selecting import (
    EVERYTHING,
    Offer,
    Place,
    Selector,
    Sort,
    cost,
    limit_of,
    may_be_taken,
    place,
    unit_costs,
)
from skerry.model.ids import FlavorId
from skerry.model.room import MOST, NOTHING, Room

Numbers = NDArray[np.int32]

# Columns of whole numbers: words and policies as codes, what is shown, what is free, and the least part.
(
    _AVAILABLE,
    _KIND,
    _ARCHITECTURE,
    _LOCATION,
    _CURRENCY,
    _POLICY,
    _CPU,
    _MEMORY,
    _DISK,
    _FREE_CPU,
    _FREE_MEMORY,
    _FREE_DISK,
    _LEAST_CPU,
    _LEAST_MEMORY,
    _LEAST_DISK,
    _IS_DIVISIBLE,
    _IS_WHOLLY_SOLD,
    _COLUMNS,
) = range(18)
_SHOWN: Final = (_CPU, _MEMORY, _DISK)
_FREE: Final = (_FREE_CPU, _FREE_MEMORY, _FREE_DISK)
_LEAST: Final = (_LEAST_CPU, _LEAST_MEMORY, _LEAST_DISK)
_SORTED_BY: Final = {Sort.CPU: _CPU, Sort.MEMORY: _MEMORY, Sort.DISK: _DISK}
_UNKNOWN: Final = -1
_LEAST_ROWS: Final = 1024
_SPARSE: Final = 8  # if less than one in so many is left, only those are looked at further
_FEW: Final = 128  # so many are put in order one by one
_FEW_CODES: Final = 4  # so many are compared one by one
_SAMPLE: Final = 16


class Policy(NamedTuple):
    """In which parts, and how many at once, an offer is sold."""

    is_divisible: bool
    least: tuple[int, ...]
    step: tuple[int, ...]
    least_count: int
    most_count: int

    @classmethod
    def of(cls, offer: Offer) -> Policy:
        parts, together = offer.flavor.partition, offer.flavor.aggregation
        return cls(
            parts is not None,
            _amounts(NOTHING if parts is None else parts.least),
            _amounts(NOTHING if parts is None else parts.step),
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
            asked >= least and not (step and (asked - least) % step)
            for asked, least, step in zip(amounts, self.least, self.step, strict=True)
        )


class Columns:
    """The offers as columns of numbers."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        ordered = sorted(offers, key=lambda offer: offer.flavor.id)
        self._words: dict[str, int] = {}
        self._policies: dict[Policy, int] = {}
        self._currencies: Counter[str] = Counter(offer.flavor.price.currency for offer in ordered)
        self._offers: list[Offer] = ordered  # by row; a row of nobody keeps who was there last
        self._row_of = {offer.flavor.id: row for row, offer in enumerate(ordered)}
        self._empty: list[int] = []
        room = max(_LEAST_ROWS, 2 * len(ordered))
        self._table = np.zeros((_COLUMNS, room), np.int32)
        self._costs = np.zeros((4, room), np.float64)  # of a unit of each resource, and of what is shown
        if ordered:
            self._table[:, : len(ordered)] = np.array([self._row(offer) for offer in ordered], np.int32).T
            self._costs[:, : len(ordered)] = np.array([_costs(offer) for offer in ordered]).T
        self._by_id = Order(np.arange(len(ordered)), np.zeros(len(ordered)))
        self._ranks: Rows | None = None  # the place of each row in the order of ids
        self._orders: dict[tuple[Sort, bool, str], Order] = {}

    def put(self, offer: Offer) -> None:
        id = offer.flavor.id
        row = self._row_of.get(id)
        if row is None:
            row = self._row_of[id] = self._row_for(offer)
            self._by_id.touch(row)
        else:
            self._currencies[self._offers[row].flavor.price.currency] -= 1
        self._offers[row] = offer
        self._currencies[offer.flavor.price.currency] += 1
        self._table[:, row] = self._row(offer)
        self._costs[:, row] = _costs(offer)
        self._touch(row)

    def drop(self, id: FlavorId) -> None:
        row = self._row_of.pop(id)
        self._currencies[self._offers[row].flavor.price.currency] -= 1
        self._table[_AVAILABLE, row] = 0
        self._empty.append(row)
        self._touch(row)

    def find(self, selector: Selector, limit: int, begin: Place | None) -> tuple[list[Offer], int]:
        """The first `limit` that match, behind `begin`; and how many match at all."""
        view = _View(self._table, self._costs, len(self._offers), selector.part)
        keep = self._admitted(selector)
        if np.count_nonzero(keep) * _SPARSE < len(keep):
            view.rows = np.flatnonzero(keep)
            keep = np.ones(len(view.rows), np.bool_)
        if selector.part is not None or selector.count is not None:
            keep &= self._can_be_taken(selector, view)
        if selector.most_price is not None:
            keep &= view.cost() * (selector.count or 1) <= limit_of(selector.most_price)
        total = int(np.count_nonzero(keep))
        if total <= _FEW:
            few = [self._offers[row] for row in view.rows_at(np.flatnonzero(keep)).tolist()]
            return _sorted(few, selector, limit, begin), total
        if selector.part is not None and selector.sort is Sort.PRICE:
            rows = self._first_by_price(selector, view, keep, limit, begin)
        else:
            rows = self._first_in_order(selector, view.of_all(keep), limit, begin)
        return [self._offers[row] for row in rows], total

    def _admitted(self, selector: Selector) -> Bits:
        """Which rows pass everything that is a comparison with a column."""
        table = self._table[:, : len(self._offers)]
        admitted: Bits = table[_AVAILABLE] == 1
        for word, column in (
            (selector.kind, _KIND),
            (selector.architecture, _ARCHITECTURE),
            (selector.location, _LOCATION),
            ("" if selector.most_price is None else selector.most_price.currency, _CURRENCY),
        ):
            if word:
                admitted &= table[column] == self._words.get(word, _UNKNOWN)
        for exact, least, most, column in (
            (selector.cpu, selector.least_cpu, selector.most_cpu, _CPU),
            (selector.memory, selector.least_memory, selector.most_memory, _MEMORY),
            (selector.disk, selector.least_disk, selector.most_disk, _DISK),
        ):
            if exact is not None:
                admitted &= table[column] == exact
            if least is not None:
                admitted &= table[column] >= least
            if most is not None:
                admitted &= table[column] <= most
        return admitted

    def _can_be_taken(self, selector: Selector, view: _View) -> Bits:
        """Of which offers the part, or without one what is shown, may be taken so many times."""
        part, count = selector.part, 1 if selector.count is None else selector.count
        amounts = None if part is None else _amounts(part)
        codes = view.column(_POLICY)
        if part == NOTHING or (amounts is not None and max(amounts) * count > MOST):
            return np.zeros(len(codes), np.bool_)
        can = _is_one_of(codes, [policy.allows(amounts, count) for policy in self._policies])
        is_divisible = view.column(_IS_DIVISIBLE) == 1
        if amounts is None:
            # All of what is shown of a divisible one is all that is free, and that is there once.
            can &= ~is_divisible | ((view.column(_IS_WHOLLY_SOLD) == 1) & (count == 1))
            for shown, free in zip(_SHOWN, _FREE, strict=True):
                # In numbers of twice the size: so many of it may be more than a column holds.
                can &= view.column(free) - view.column(shown).astype(np.int64) * count >= 0
            return can
        is_whole = ~is_divisible
        for amount, shown, free, least in zip(amounts, _SHOWN, _FREE, _LEAST, strict=True):
            is_whole &= view.column(shown) == amount
            if amount:  # whoever takes nothing of it leaves it as it is
                rest = view.column(free) - np.int32(amount * count)
                can &= (rest == 0) | (rest >= view.column(least))
        can &= is_divisible | is_whole
        return can

    def _first_in_order(self, selector: Selector, keep: Bits, limit: int, begin: Place | None) -> list[int]:
        """The first in an order that is kept."""
        found: list[int] = []
        for group in self._groups(selector):
            if len(found) == limit or (begin is not None and group < begin.group):
                continue
            order = self._order(selector, group)
            start = 0
            if begin is not None and group == begin.group:
                start = order.behind(begin.value, begin.id, self._id_of)
            found += order.first(keep, start, limit - len(found)).tolist()
        return found

    def _first_by_price(
        self, selector: Selector, view: _View, keep: Bits, limit: int, begin: Place | None
    ) -> list[int]:
        """The first by what the part costs."""
        values = view.cost()
        if selector.is_descending:
            values = -values
        groups = list(self._groups(selector))
        found: list[int] = []
        for group in groups:
            if len(found) == limit or (begin is not None and group < begin.group):
                continue
            here = keep if len(groups) == 1 else keep & (view.column(_CURRENCY) == self._words[group])
            if begin is not None and group == begin.group:
                here = here & (values >= begin.value)
            places = np.flatnonzero(here)
            rows, those = view.rows_at(places), values.take(places)
            if begin is not None and group == begin.group:
                # Of those that cost the same, what stands behind it by its id.
                behind = self._rank_behind(begin.id)
                stay = np.flatnonzero((those > begin.value) | (self._ranks_of(rows) >= behind))
                rows, those = rows.take(stay), those.take(stay)
            found += self._first(rows, those, limit - len(found))
        return found

    def _first(self, rows: Rows, values: Floats, count: int) -> list[int]:
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

    def _groups(self, selector: Selector) -> Iterator[str]:
        """Prices by currency, in the order of their names; anything else is one group."""
        if selector.sort is not Sort.PRICE:
            return iter(("",))
        return iter(sorted(word for word, count in self._currencies.items() if count))

    def _order(self, selector: Selector, group: str) -> Order:
        """The order that a selector asks for, of one currency if it is one of prices."""
        key = (selector.sort, selector.is_descending, group)
        order = self._orders.get(key)
        if order is None or order.is_worn:
            rows = self._rows_by_id()
            is_in = self._used(_AVAILABLE) == 1
            if group:
                is_in &= self._used(_CURRENCY) == self._words[group]
            rows = rows[is_in.take(rows)]
            order = self._orders[key] = Order(rows, self._values(selector).take(rows))
        order.settle(self._value_in(selector, group), self._id_of)
        return order

    def _values(self, selector: Selector) -> Floats:
        """What rows are put in order by, unless that is the price of a part."""
        if selector.sort is Sort.PRICE:
            values: Floats = self._costs[3, : len(self._offers)]
        else:
            values = self._used(_SORTED_BY[selector.sort]).astype(np.float64)
        return -values if selector.is_descending else values

    def _value_in(self, selector: Selector, group: str) -> Callable[[int], float | None]:
        """The same of one row; None if it is not in the order."""

        def value(row: int) -> float | None:
            if self._table[_AVAILABLE, row] != 1:
                return None
            found = place(self._offers[row], selector)
            return found.value if found.group == group else None

        return value

    def _ranks_of(self, rows: Rows) -> Rows:
        ordered = self._rows_by_id()
        if self._ranks is None:
            self._ranks = np.zeros(len(self._offers), np.intp)
            self._ranks[ordered] = np.arange(len(ordered))
        ranks: Rows = self._ranks.take(rows)
        return ranks

    def _rank_behind(self, id: FlavorId) -> int:
        """The rank of the first that stands behind that id."""
        self._rows_by_id()
        return self._by_id.behind(0.0, id, self._id_of)

    def _rows_by_id(self) -> Rows:
        """All rows in the order of ids; those of nobody are somewhere among them."""
        if self._by_id.settle(lambda row: 0.0, self._id_of):
            self._ranks = None
        return self._by_id.rows

    def _id_of(self, row: int) -> FlavorId:
        return self._offers[row].flavor.id

    def _touch(self, row: int) -> None:
        for order in self._orders.values():
            order.touch(row)

    def _used(self, column: int) -> Numbers:
        return self._table[column, : len(self._offers)]

    def _row_for(self, offer: Offer) -> int:
        if self._empty:
            return self._empty.pop()
        row = len(self._offers)
        self._offers.append(offer)
        self._ranks = None
        if row == self._table.shape[1]:
            self._table = np.pad(self._table, ((0, 0), (0, row)))
            self._costs = np.pad(self._costs, ((0, 0), (0, row)))
        return row

    def _row(self, offer: Offer) -> tuple[int, ...]:
        flavor = offer.flavor
        policy = Policy.of(offer)
        return (
            int(offer.is_available),
            self._code(flavor.kind),
            self._code(flavor.architecture),
            self._code(flavor.location),
            self._code(flavor.price.currency),
            self._policies.setdefault(policy, len(self._policies)),
            *_amounts(offer.shown),
            *_amounts(offer.free),
            *policy.least,
            int(policy.is_divisible),
            int(may_be_taken(offer, EVERYTHING)),
        )

    def _code(self, word: str) -> int:
        return self._words.setdefault(word, len(self._words))


class _View:
    """All rows, or some of them if few are left."""

    def __init__(self, table: Numbers, costs: Floats, used: int, part: Room | None) -> None:
        self._table = table[:, :used]
        self._costs = costs[:, :used]
        self._part = part
        self._cost: Floats | None = None
        self.rows: Rows | None = None  # to be said before any cost is asked for

    def column(self, column: int) -> Numbers:
        values: Numbers = self._table[column]
        return values if self.rows is None else values.take(self.rows)

    def rows_at(self, places: Rows) -> Rows:
        return places if self.rows is None else self.rows.take(places)

    def of_all(self, keep: Bits) -> Bits:
        """The same of all rows."""
        if self.rows is None:
            return keep
        all_ = np.zeros(self._table.shape[1], np.bool_)
        all_[self.rows] = keep
        return all_

    def cost(self) -> Floats:
        """What one part costs a second, or all that is shown if no part is asked for."""
        if self._cost is None:
            part = self._part
            if part is None:
                self._cost = self._costs_of(3)
            else:
                self._cost = self._costs_of(0) * part.cpu + self._costs_of(1) * part.memory
                if part.disk:
                    self._cost += self._costs_of(2) * part.disk
        return self._cost

    def _costs_of(self, number: int) -> Floats:
        values: Floats = self._costs[number]
        return values if self.rows is None else values.take(self.rows)


def _costs(offer: Offer) -> tuple[float, float, float, float]:
    return *unit_costs(offer.flavor), cost(offer, None)


def _amounts(room: Room) -> tuple[int, int, int]:
    return room.cpu, room.memory, room.disk


def _sorted(offers: list[Offer], selector: Selector, limit: int, begin: Place | None) -> list[Offer]:
    placed = sorted(((place(offer, selector), offer) for offer in offers), key=lambda pair: pair[0])
    return [offer for where, offer in placed if begin is None or where > begin][:limit]


def _is_one_of(codes: Numbers, allowed: list[bool]) -> Bits:
    """Where the codes are those of what is allowed."""
    good = [code for code, is_allowed in enumerate(allowed) if is_allowed]
    bad = len(allowed) - len(good)
    if min(len(good), bad) > _FEW_CODES:
        found: Bits = np.array(allowed, np.bool_).take(codes)
        return found
    is_bad = bad < len(good)
    among = np.zeros(len(codes), np.bool_)
    for code, is_allowed in enumerate(allowed):
        if is_allowed is not is_bad:
            among |= codes == code
    return ~among if is_bad else among


def _split(values: Floats | Rows, count: int) -> tuple[Rows, Rows]:
    """Where the values are below the `count`-th least, and where they are equal to it."""
    if count < 1:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    likely: Rows | None = None
    if len(values) > max(_SAMPLE * _SAMPLE, _SAMPLE * count // 2):
        # Among a sixteenth of them, the second sixteenth of what is wanted is above it almost surely.
        sample = values[::_SAMPLE]
        place = 2 * count // _SAMPLE + _SAMPLE
        likely = np.flatnonzero(values <= np.partition(sample, place)[place])
        if len(likely) < count:
            likely = None
    those = values if likely is None else values.take(likely)
    bound = np.partition(those, count - 1)[count - 1]
    below, level = np.flatnonzero(those < bound), np.flatnonzero(those == bound)
    return (below, level) if likely is None else (likely.take(below), likely.take(level))
