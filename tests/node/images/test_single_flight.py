"""Work that is shared: done once, cancelled by the last who wants it, and told of not too often."""

from __future__ import annotations

import asyncio

import pytest

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.node.images.progress import LayerCounter, PullTracker
from skerry.node.images.single_flight import SingleFlight
from tests.node.images.ground import Listener
from tests.support.waiting import eventually


class Work:
    """Counts how often it is begun and cancelled; ends when it is told to, as it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> str:
        self.begun += 1
        try:
            return await asyncio.shield(self.end)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_work_is_done_once_for_all_who_come_meanwhile() -> None:
    flights, work = SingleFlight[str](shares_failures=True), Work()
    joined = [asyncio.create_task(flights.join("a", work)) for _ in range(3)]
    await eventually(lambda: work.begun)
    work.end.set_result("done")
    assert await asyncio.gather(*joined) == ["done"] * 3
    assert work.begun == 1
    assert await flights.join("a", work) == "done"
    assert work.begun == 2


async def test_only_the_last_who_gives_up_ends_the_work_and_waits_for_its_end() -> None:
    flights, work = SingleFlight[str](shares_failures=True), Work()
    first, last = (asyncio.create_task(flights.join("a", work)) for _ in range(2))
    await eventually(lambda: work.begun)
    first.cancel()
    await asyncio.wait([first])
    assert work.cancelled == 0
    last.cancel()
    await asyncio.wait([last])
    assert (first.cancelled(), last.cancelled(), work.cancelled) == (True, True, 1)


@pytest.mark.parametrize("shares", [True, False])
async def test_a_failure_is_shared_or_tried_again_by_who_did_not_begin(shares: bool) -> None:
    flights, work = SingleFlight[str](shares_failures=shares), Work()

    async def again() -> str:
        return "again"

    first = asyncio.create_task(flights.join("a", work))
    await eventually(lambda: work.begun)
    second = asyncio.create_task(flights.join("a", again))
    await asyncio.sleep(0)
    work.end.set_exception(errors.Unavailable("gone"))
    with pytest.raises(errors.Unavailable):
        await first
    if shares:
        with pytest.raises(errors.Unavailable):
            await second
    else:
        assert await second == "again"


async def test_closing_ends_all_work_and_tells_who_waits() -> None:
    flights, work = SingleFlight[str](shares_failures=False), Work()
    joined = [asyncio.create_task(flights.join("a", work)) for _ in range(2)]
    await eventually(lambda: work.begun)
    await flights.close()
    for each in joined:
        with pytest.raises(errors.Unavailable, match="stopping"):
            await each
    assert (work.begun, work.cancelled) == (1, 1)


def test_progress_is_told_at_every_new_state_and_else_ten_times_a_second() -> None:
    clock, listener = ManualClock(), Listener()
    pull = PullTracker("web", clock)
    count = LayerCounter(Digest("sha256:1"), 1000)
    with pull.reporting_to(listener):
        pull.report("asking")
        pull.count([count])
        count.become("pulling")
        for _ in range(100):
            count.add(5)
            clock.advance(0.01)
        count.become("done")
    count.add(1)
    reported = [(progress.layers[0].state, progress.layers[0].bytes) for progress in listener.reported[1:]]
    assert reported[:2] == [("waiting", 0), ("pulling", 0)]
    assert reported[-1] == ("done", 500)
    assert 9 <= len(reported) - 3 <= 10
    assert listener.reported[0].message == "asking"
    assert listener.reported[-1].message == "1 of 1 layers, 0.0 of 0.0 MB"
