"""The renewal loop, with a clock that moves only when the loop sleeps."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit import renewal
from skerry.kit.clock import ManualClock


class Enough(BaseException):
    """Ends a loop that never ends; no `except Exception` may swallow it."""


@given(start=st.floats(0, 2e9), life=st.floats(1, 1e9), chance=st.floats(0, 1, exclude_max=True))
def test_renewal_is_due_past_half_of_the_life_and_before_two_thirds(
    start: float, life: float, chance: float
) -> None:
    due = renewal.due_at(start, start + life, chance)
    assert start + life * 0.5 < due < start + life * 2 / 3


class Holder:
    """A certificate of 1000 seconds, and the loop's sleep, which moves the clock."""

    def __init__(self, enough: int) -> None:
        self.clock = ManualClock(0.0)
        self.renewed: list[float] = []
        self.naps: list[float] = []
        self.failures = 0
        self.due = 1000.0
        self._enough = enough

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.clock.advance(seconds)
        if len(self.naps) >= self._enough:
            raise Enough

    async def renew(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the server is away")
        self.renewed.append(self.clock.now())
        self.due = self.clock.now() + 1000.0

    async def run(self) -> None:
        with pytest.raises(Enough):
            await renewal.renew_when_due(
                lambda: self.due, self.renew, clock=self.clock, sleep=self.sleep, what="test"
            )


async def test_the_loop_sleeps_in_bounded_naps_and_renews_when_due() -> None:
    holder = Holder(enough=5)
    await holder.run()
    assert holder.renewed == [1000.0, 2000.0]
    assert max(holder.naps) <= 600


async def test_failures_are_tried_again_with_growing_pauses_until_it_works() -> None:
    holder = Holder(enough=7)
    holder.failures = 4
    await holder.run()
    pauses = holder.naps[2:6]
    assert pauses == sorted(pauses)
    assert pauses[0] < 2 < pauses[-1]
    assert len(holder.renewed) == 1


async def test_a_certificate_that_is_due_at_once_does_not_make_the_loop_spin() -> None:
    holder = Holder(enough=4)
    holder.due = -1.0

    async def renew() -> None:
        holder.renewed.append(holder.clock.now())

    with pytest.raises(Enough):
        await renewal.renew_when_due(
            lambda: holder.due, renew, clock=holder.clock, sleep=holder.sleep, what="test"
        )
    assert len(holder.renewed) == len(holder.naps) == 4


async def test_cancelling_ends_the_loop() -> None:
    async def never() -> None:
        raise AssertionError

    loop = asyncio.ensure_future(
        renewal.renew_when_due(lambda: 1e12, never, clock=ManualClock(), what="test")
    )
    await asyncio.sleep(0)
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
