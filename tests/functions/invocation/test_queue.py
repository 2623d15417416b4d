"""The order of calls that wait: shares of classes, deadlines, and who came first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from skerry.functions.invocation.queue import AwaitedCall, CallQueue, QueuedCall
from skerry.functions.invocation.worker_pool import FunctionWorkers
from skerry.model import errors
from tests.support.simulated import passes
from tests.support.workers import Site, function, in_simulated_time


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def workers_of(name: str = "f") -> FunctionWorkers:
    return FunctionWorkers(function(name), lambda _: None, 1.0)


def waiting(
    loop: asyncio.AbstractEventLoop,
    queue: CallQueue,
    group: FunctionWorkers,
    qos_class: int,
    limit: float = 9.0,
) -> QueuedCall:
    waiter = AwaitedCall(group, qos_class, 0.0, limit, loop.create_future())
    queue.add(waiter)
    return waiter


def serve(queue: CallQueue, group: FunctionWorkers) -> QueuedCall:
    waiter = queue.first(group)
    assert waiter is not None
    queue.serve(waiter, 0.0)
    return waiter


def test_classes_share_the_turns_by_their_weights(loop: asyncio.AbstractEventLoop) -> None:
    queue, group = CallQueue((1, 4, 16)), workers_of()
    for qos_class in (0, 1, 2):
        for _ in range(200):
            waiting(loop, queue, group, qos_class)
    served = Counter(serve(queue, group).qos_class for _ in range(210))
    assert served == {0: 10, 1: 40, 2: 160}


def test_the_shares_hold_across_functions(loop: asyncio.AbstractEventLoop) -> None:
    queue, groups = CallQueue((1, 3)), [workers_of("f"), workers_of("g")]
    for qos_class, group in enumerate(groups):
        for _ in range(50):
            waiting(loop, queue, group, qos_class)
    served = Counter(serve(queue, queue.groups()[0]).group.name for _ in range(40))
    assert served == {"f": 10, "g": 30}


def test_a_class_that_was_away_saves_nothing_up(loop: asyncio.AbstractEventLoop) -> None:
    queue, group = CallQueue((1, 1)), workers_of()
    for _ in range(300):
        waiting(loop, queue, group, 0)
    for _ in range(100):
        serve(queue, group)
    for _ in range(100):
        waiting(loop, queue, group, 1)
    assert Counter(serve(queue, group).qos_class for _ in range(20)) == {0: 10, 1: 10}


def test_a_class_without_a_weight_of_its_own_counts_as_the_last(loop: asyncio.AbstractEventLoop) -> None:
    queue = CallQueue((1, 2))
    assert waiting(loop, queue, workers_of(), 200).qos_class == 1


@pytest.mark.parametrize("weights", [(), (1, 0), (-1,)])
def test_weights_that_make_no_shares_are_refused(weights: tuple[int, ...]) -> None:
    with pytest.raises(errors.Invalid, match="weights of classes"):
        CallQueue(weights)


@given(limits=st.lists(st.integers(0, 5), max_size=20), leaving=st.sets(st.integers(0, 19)))
def test_within_a_class_the_earliest_deadline_is_first_then_whoever_came_first(
    loop: asyncio.AbstractEventLoop, limits: list[int], leaving: set[int]
) -> None:
    queue, group = CallQueue((1,)), workers_of()
    waiters = [waiting(loop, queue, group, 0, float(limit)) for limit in limits]
    for number, waiter in enumerate(waiters):
        if number in leaving:
            queue.remove(waiter)
            queue.remove(waiter)  # once more does nothing
    stayed = [waiter for number, waiter in enumerate(waiters) if number not in leaving]
    assert (queue.count, group.waiting) == (len(stayed), len(stayed))
    assert [serve(queue, group) for _ in stayed] == sorted(stayed, key=lambda one: one.limit)
    assert queue.first(group) is None
    assert queue.groups() == []


def test_a_function_is_undecided_until_workers_that_start_have_a_place_for_each_of_its_calls(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue, group, other = CallQueue((1,)), workers_of("f"), workers_of("g")
    for each in (group, group, other):
        waiting(loop, queue, each, 0)
    group.starting = group.workers = 1
    assert queue.groups(undecided=True) == queue.groups() == [group, other]
    group.starting = group.workers = 2
    assert queue.groups(undecided=True) == [other]
    group.workers = 0  # both will end, and take no calls
    assert queue.groups(undecided=True) == [group, other]


@in_simulated_time
async def test_calls_are_served_by_class_and_deadline() -> None:
    async with Site(function("f"), memory_mb=128, classes=("low:1:60:1", "high:2:60:1")) as site:
        site.host.run_s = 1.0
        order: list[str] = []

        async def call(tag: str, qos_class: int, max_response_s: float | None = None) -> None:
            await site.call("f", qos_class=qos_class, max_response_s=max_response_s)
            order.append(tag)

        first = asyncio.ensure_future(call("first", 0))
        await passes(0.5)
        await asyncio.gather(
            first,
            call("low 1", 0),
            call("low 2", 0),
            call("high 1", 1),
            call("high 2", 1),
            call("high 3", 1),
            call("high urgent", 1, 20.0),
        )
        assert order[0] == "first"
        high = [tag for tag in order if tag.startswith("high")]
        assert high == ["high urgent", "high 1", "high 2", "high 3"]
        assert [tag.split()[0] for tag in order[1:4]].count("high") == 2
