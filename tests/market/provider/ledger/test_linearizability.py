"""The checker of histories: it must find an order where there is one, and refuse where there is none."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.linearizability import Amounts, Kind, NotLinearizable, Operation, Undecided, check


def op(kind: str, amount: int, asked: float, answered: float | None) -> Operation:
    return Operation(Kind(kind), amount, asked, answered)


RIGHT = {
    "nothing at all": [],
    "one after the other": [
        op("reserved", 2, 0, 1),
        op("bought", 2, 2, 3),
        op("seen", 0, 4, 5),
        op("refused", 1, 6, 7),
        op("released", 2, 8, 9),
        op("seen", 2, 10, 11),
    ],
    "refused because of somebody whose answer came later": [op("reserved", 2, 0, 9), op("refused", 1, 1, 2)],
    "refused before what somebody gives up, which is answered first": [
        op("reserved", 2, 0, 1),
        op("cancelled", 2, 2, 4),
        op("refused", 1, 3, 5),
        op("seen", 2, 6, 7),
    ],
    "two who take what a third gives up meanwhile": [
        op("reserved", 2, 0, 1),
        op("cancelled", 2, 2, 9),
        op("reserved", 1, 3, 4),
        op("reserved", 1, 3, 5),
    ],
    "what was never answered happened": [op("reserved", 2, 0, None), op("refused", 1, 1, 2)],
    "what was never answered did not happen": [op("reserved", 2, 0, None), op("reserved", 2, 1, 2)],
    "what was never answered happened late": [
        op("reserved", 1, 0, None),
        op("seen", 2, 1, 2),
        op("seen", 1, 3, 4),
    ],
    "a look that was never answered says nothing": [op("seen", 99, 0, None), op("seen", 2, 1, 2)],
    # Whoever waits is not served in the order of answers here: only the first two together make it right.
    "a refusal that needs two others of those who wait": [
        op("reserved", 1, 0, 7),
        op("reserved", 1, 0, 8),
        op("refused", 1, 1, 2),
        op("cancelled", 1, 1, 9),
    ],
}
WRONG = {
    "sold twice": [op("reserved", 2, 0, 1), op("reserved", 1, 2, 3)],
    "sold twice at once": [op("reserved", 2, 0, 3), op("reserved", 1, 1, 2)],
    "refused though it was free": [op("refused", 1, 0, 1)],
    "refused though it was free again": [
        op("reserved", 2, 0, 1),
        op("cancelled", 2, 2, 3),
        op("refused", 1, 4, 5),
    ],
    "a hold that was lost": [op("reserved", 2, 0, 1), op("seen", 2, 2, 3)],
    "an answer before the question of who caused it": [op("refused", 1, 0, 1), op("reserved", 2, 2, 3)],
    "a look at what never was": [op("reserved", 2, 0, 5), op("seen", 1, 1, 2)],
    "two looks that go back": [
        op("reserved", 1, 0, 9),
        op("seen", 1, 1, 2),
        op("seen", 2, 3, 4),
    ],
    "bought without a hold": [op("bought", 1, 0, 1)],
    "given up twice": [op("reserved", 1, 0, 1), op("cancelled", 1, 2, 3), op("cancelled", 1, 4, 5)],
    "what was never answered is seen once and not again": [
        op("reserved", 1, 0, None),
        op("seen", 1, 1, 2),
        op("seen", 2, 3, 4),
    ],
}


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_history_with_an_order_is_right(name: str) -> None:
    check(2, RIGHT[name])


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_history_without_an_order_is_refused(name: str) -> None:
    with pytest.raises(NotLinearizable, match="no order fits"):
        check(2, WRONG[name])


def test_it_says_so_when_it_gives_up() -> None:
    with pytest.raises(Undecided, match="no order was found"):
        check(2, WRONG["two looks that go back"], [(1, -3)])


def lived_through(chance: random.Random, buyers: int, length: int) -> tuple[int, list[Operation]]:
    """A history that did happen: each has its moment somewhere between its question and its answer."""
    capacity = chance.randint(2, 12)
    amounts = Amounts(capacity)
    history: list[Operation] = []
    owned: dict[int, tuple[str, int]] = {}  # what each buyer has
    for moment in range(length):
        buyer = chance.randrange(buyers)
        has = owned.pop(buyer, None)
        if has is None:
            n = chance.randint(1, 3)
            kind = "seen" if chance.random() < 0.2 else "reserved" if amounts.free >= n else "refused"
            n = amounts.free if kind == "seen" else n
            if kind == "reserved":
                owned[buyer] = ("held", n)
        else:
            state, n = has
            kind = "released" if state == "sold" else chance.choice(["bought", "cancelled"])
            if kind == "bought":
                owned[buyer] = ("sold", n)
        asked, answered = moment - chance.random() * buyers, moment + chance.random() * buyers
        one = Operation(Kind(kind), n, asked, None if chance.random() < 0.05 else answered, f"buyer {buyer}")
        after = amounts.after(one)
        assert after is not None
        amounts = after
        history.append(one)
    return capacity, history


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_what_did_happen_is_right(seed: int, buyers: int) -> None:
    check(*lived_through(random.Random(seed), buyers, 40))


def test_two_hundred_buyers_at_once_are_no_matter() -> None:
    check(*lived_through(random.Random(7), 200, 3000))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
def test_a_hold_that_was_never_counted_is_found_out(seed: int) -> None:
    """Once all is quiet, what is seen to be free decides it."""
    capacity, history = lived_through(random.Random(seed), 4, 30)
    history = [one for one in history if one.answered is not None or one.kind is Kind.REFUSED]
    amounts = Amounts(capacity)
    for one in history:
        after = amounts.after(one)
        if after is None:
            return  # without those that were never answered, it did not happen so
        amounts = after
    end = max((one.answered or 0.0 for one in history), default=0.0) + 1
    check(capacity, [*history, Operation(Kind.SEEN, amounts.free, end, end + 1)])
    with pytest.raises(NotLinearizable):
        check(capacity, [*history, Operation(Kind.SEEN, amounts.free + 1, end, end + 1)], [(2, 5_000)])
