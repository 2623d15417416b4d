"""Whether what buyers saw of one flavor could have happened one thing after the other.

Each operation has a time when it was asked for and one when it was answered; what was never answered may have
happened at any time after, or never. A history is linearizable if every operation can be given a moment
between its two times so that, in the order of these moments, each is right by the plain model: so much is
free, held and sold, and nothing else.

The search is Wing and Gong's, with Lowe's rule that moments are given only when an answer comes: to who is
answered, and before it to others who wait. What makes it quick here: operations with the same effect are
alike, so of these the one that is answered first goes first; what only looks is given its moment as soon as
it is right, which takes nothing away from others; and first of all those who wait are tried in the order of
their answers, which is mostly how it was: only those that lead to what the answer needs, or all of them. How
many others are tried, and for how long, is raised in steps: a wrong turn long before is found sooner by
trying more at each place than by coming back to it.
"""

from __future__ import annotations

import enum
import math
from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Kind(enum.Enum):
    """What was done, and how it was answered."""

    RESERVED = "reserved"
    REFUSED = "refused"  # so much was not free
    BOUGHT = "bought"
    CANCELLED = "cancelled"
    RELEASED = "released"
    SEEN = "seen"  # so much was free


LOOKS = (Kind.REFUSED, Kind.SEEN)


@dataclass(frozen=True)
class Operation:
    """`amount` is what it is about; `answered` is None if nobody knows whether it happened."""

    kind: Kind
    amount: int
    asked: float
    answered: float | None
    who: str = ""

    @property
    def last_moment(self) -> float:
        return math.inf if self.answered is None else self.answered

    def is_nearer(self, free: int, then: int) -> bool:
        """True if `then` is nearer than `free` to where this is right, and not past it."""
        match self.kind:
            case Kind.SEEN:
                return free < then <= self.amount or self.amount <= then < free
            case Kind.REFUSED:
                return then < free
            case Kind.RESERVED:
                return then > free
        return False


class Amounts(NamedTuple):
    """The model: what there is of a flavor, and where."""

    free: int
    held: int = 0
    sold: int = 0

    def after(self, operation: Operation) -> Amounts | None:
        """What it comes to; None if it cannot happen now."""
        free, held, sold = self
        n = operation.amount
        match operation.kind:
            case Kind.RESERVED if free >= n:
                return Amounts(free - n, held + n, sold)
            case Kind.BOUGHT if held >= n:
                return Amounts(free, held - n, sold + n)
            case Kind.CANCELLED if held >= n:
                return Amounts(free + n, held - n, sold)
            case Kind.RELEASED if sold >= n:
                return Amounts(free + n, held, sold - n)
            case Kind.REFUSED if free < n:
                return self
            case Kind.SEEN if free == n:
                return self
        return None


class Moment(NamedTuple):
    """Where a search stands: what there is, and who had its moment and not yet its answer."""

    amounts: Amounts
    done: frozenset[int]


class NotLinearizable(AssertionError):
    """There is no such order."""


class Undecided(AssertionError):
    """None was found in the number of steps allowed."""


# How many of any kind are moved before an answer, and for how many steps back that is tried.
EFFORTS = ((1, 500), (2, 1_000), (3, 2_000), (4, 8_000), (6, 20_000))


def check(capacity: int, history: Sequence[Operation], efforts: Sequence[tuple[int, int]] = EFFORTS) -> None:
    """Raise unless there is an order, as far as these efforts go."""
    # What nobody was told says nothing.
    history = [one for one in history if one.kind not in LOOKS or one.answered is not None]
    search = _Search(capacity, history)
    for early, most_steps in efforts:
        if search.finds(early, most_steps):
            return
    culprit = history[search.answers[search.furthest]]
    told = f"the first {search.furthest + 1} answers, the last of which is {culprit}"
    if search.is_cut_short:
        raise Undecided(f"no order was found that fits {told}")
    raise NotLinearizable(f"no order fits {told}")


class _Pending(NamedTuple):
    """Who was asked and not answered before some moment, each by the time of its answer."""

    looks: list[int]
    moves: list[int]


class _Search:
    def __init__(self, capacity: int, history: Sequence[Operation]) -> None:
        self._history = history
        self._capacity = capacity
        self.is_cut_short = False
        self.furthest = 0  # the number of the first answer that nothing was found for
        numbers = range(len(history))
        self.answers = sorted(
            (number for number in numbers if history[number].answered is not None),
            key=lambda number: (history[number].last_moment, number),
        )
        self._pending: list[_Pending] = list(self._waiting())

    def _waiting(self) -> Iterator[_Pending]:
        """For each answer, who waits then."""
        asked = sorted(range(len(self._history)), key=lambda number: self._history[number].asked)
        questions = deque(asked)
        waiting: list[tuple[float, int]] = []
        for answered in self.answers:
            now = self._history[answered].last_moment
            while questions and self._history[questions[0]].asked <= now:
                number = questions.popleft()
                insort(waiting, (self._history[number].last_moment, number))
            looks, moves = [], []
            for _, number in waiting:
                (looks if self._history[number].kind in LOOKS else moves).append(number)
            yield _Pending(looks, moves)
            waiting.remove((now, answered))

    def finds(self, early: int, most_steps: int) -> bool:
        """True if there is an order that moves at most so many of any kind before each answer."""
        stack = [self._through(0, Moment(Amounts(self._capacity), frozenset()), early)]
        seen: set[tuple[int, Moment]] = set()
        self.is_cut_short = False
        while stack and len(stack) <= len(self.answers):
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
            elif (len(stack), following) not in seen:
                seen.add((len(stack), following))
                if len(seen) > len(self.answers) + most_steps:
                    self.is_cut_short = True
                    return False
                self.furthest = max(self.furthest, min(len(stack), len(self.answers) - 1))
                stack.append(self._through(len(stack), following, early))
        return bool(stack)

    def _through(self, place: int, moment: Moment, early: int) -> Iterator[Moment]:
        """Where one can stand once the answer at `place` was given; nowhere behind the last."""
        if place == len(self.answers):
            return
        answered, pending = self.answers[place], self._pending[place]
        start = self._look(moment, pending)
        yield from self._given(start, answered, pending)
        yield from self._in_turn(start, answered, pending, is_directed=True)
        yield from self._in_turn(start, answered, pending, is_directed=False)
        level = known = {start}
        for _ in range(early):
            found = (one for before in level for one in self._alike(before, pending))
            level = {self._look(one, pending) for one in found} - known
            known = known | level
            for one in sorted(level, key=lambda one: sorted(one.done)):
                yield from self._given(one, answered, pending)

    def _given(self, moment: Moment, answered: int, pending: _Pending) -> Iterator[Moment]:
        """The answer is given, if it is right."""
        if answered in moment.done:
            yield Moment(moment.amounts, moment.done - {answered})
        elif (amounts := moment.amounts.after(self._history[answered])) is not None:
            after = self._look(Moment(amounts, moment.done), pending)
            yield Moment(after.amounts, after.done - {answered})

    def _in_turn(
        self, moment: Moment, answered: int, pending: _Pending, *, is_directed: bool
    ) -> Iterator[Moment]:
        """Those who wait have their moments one after the other, until the answer is right."""
        asked = self._history[answered]
        for number in pending.moves:
            amounts = moment.amounts.after(self._history[number])
            if number == answered or number in moment.done or amounts is None:
                continue
            if is_directed and not asked.is_nearer(moment.amounts.free, amounts.free):
                continue
            moment = self._look(Moment(amounts, moment.done | {number}), pending)
            yield from self._given(moment, answered, pending)

    def _alike(self, moment: Moment, pending: _Pending) -> Iterator[Moment]:
        """One more of those that wait has its moment: of each effect the one that is answered first."""
        tried = set()
        for number in pending.moves:
            one = self._history[number]
            effect = (one.kind, one.amount)
            if number in moment.done or effect in tried:
                continue
            tried.add(effect)
            if (amounts := moment.amounts.after(one)) is not None:
                yield Moment(amounts, moment.done | {number})

    def _look(self, moment: Moment, pending: _Pending) -> Moment:
        """All that only look, and are right now, have their moment."""
        amounts, history = moment.amounts, self._history
        looks = [number for number in pending.looks if amounts.after(history[number]) is not None]
        return Moment(amounts, moment.done.union(looks))
