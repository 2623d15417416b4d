"""Whatever is lost wherever on its way: no call is run twice that may not be, and every one has an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallRequest
from skerry.model.ids import FunctionName, NodeId
from skerry.sim import simulated_time
from tests.functions.continuum.simulated_members import TIMEOUT_S, Fault, Town
from tests.support.simulated import passes
from tests.support.workers import function, in_simulated_time

RUN_S = 0.2
POLICIES = ["default", "localonly", "edgeonly", "edgecloud", "cloudonly", "qosaware"]


class _NotBegun(errors.Unavailable):
    """As when the disk does not take it."""


class Caller:
    """One call with its own parameters, and all that is known of it."""

    def __init__(self, town: Town, number: int, *, is_async: bool, begins_badly: bool, **ask: Any) -> None:
        self.params = b"%d" % number
        self.ask = CallRequest(FunctionName("f"), self.params, **ask)
        self.is_async = is_async
        self._town = town
        self._begins_badly = begins_badly
        self.begun = 0
        self.outcome: CallReport | BaseException | None = None
        self.took_s = 0.0

    async def begins(self) -> None:
        assert self._town.runs[self.params] == 0, "it ran before that was written down"
        await passes(0.005)
        if self._begins_badly:
            raise _NotBegun("disk full")
        self.begun += 1

    async def call(self, town_entry: Any) -> None:
        arrived = self._town.clock.monotonic()
        try:
            self.outcome = await town_entry.continuum.invoke(
                self.ask, begins=self.begins if self.is_async else None
            )
        except errors.SkerryError as error:
            self.outcome = error
        self.took_s = self._town.clock.monotonic() - arrived

    def check(self, is_idempotent: bool) -> None:
        runs, outcome = self._town.runs[self.params], self.outcome
        assert outcome is not None
        assert is_idempotent or runs <= 1
        if self.ask.max_response_s is not None:
            assert self.took_s <= self.ask.max_response_s + TIMEOUT_S + 0.1
        if self.is_async:
            assert self.begun <= 1
            assert runs == 0 or self.begun == 1
            assert not self._begins_badly or runs == 0
        if isinstance(outcome, CallReport):
            if outcome.answer.failure is None:
                assert outcome.answer.result == self.params
                assert runs >= 1
            assert outcome.response_s == pytest.approx(self.took_s, abs=0.01)
        elif not is_idempotent:
            assert runs == 0, "it was refused, and so may be called again"


callers = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from([False, False, False, True]),
        st.none() | st.floats(0.05, 8.0),
        st.integers(0, 2),
        st.floats(0.0, 6.0),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    neighbours=st.integers(0, 3),
    cloud=st.integers(0, 2),
    memory=st.sampled_from([0, 128, 512]),
    is_idempotent=st.booleans(),
    prewarmed=st.booleans(),
    max_hops=st.integers(0, 2),
    calls=callers,
    faults=st.lists(st.none() | st.sampled_from(Fault), max_size=12),
    cut=st.booleans(),
)
def test_no_call_is_run_twice_or_left_without_an_answer(
    policy: str,
    neighbours: int,
    cloud: int,
    memory: int,
    is_idempotent: bool,
    prewarmed: bool,
    max_hops: int,
    calls: list[tuple[bool, bool, float | None, int, float]],
    faults: list[Fault | None],
    cut: bool,
) -> None:
    async def main() -> None:
        one = replace(function("f", memory=128), is_idempotent=is_idempotent, policy=policy)
        async with Town(one) as town:
            usual: dict[str, Any] = {"queue_length": 2, "queue_wait_s": 4.0, "max_hops": max_hops}
            entry = town.join("entry", memory=memory, cpus=float(memory > 0), remote_area="cloud", **usual)
            for number in range(neighbours):
                town.join(f"edge-{number}", memory=128, cpus=1.0, remote_area="cloud", **usual)
            for number in range(cloud):
                town.join(f"cloud-{number}", area="cloud", memory=256, cpus=2.0, **usual)
            await town.meet()
            for resident in town.residents.values():
                resident.host.run_s = RUN_S
                if prewarmed and resident.member.memory:
                    await resident.invoker.prewarm("f", 1)
            await passes(6)  # a round of pings later all know of it
            left: Iterator[Fault | None] = iter(faults)
            town.fault = lambda here, there: next(left, None)
            made = [
                Caller(
                    town,
                    number,
                    is_async=is_async,
                    begins_badly=is_async and begins_badly,
                    max_response_s=max_response_s,
                    qos_class=qos_class,
                )
                for number, (is_async, begins_badly, max_response_s, qos_class, _) in enumerate(calls)
            ]

            async def later(caller: Caller, delay_s: float) -> None:
                await passes(delay_s)
                await caller.call(entry)

            async def cut_all() -> None:
                await passes(1.0)
                nodes = list(town.residents)
                town.cuts |= {frozenset((entry.member.node, node)) for node in nodes[1:]}
                await passes(3.0)
                town.cuts.clear()

            async with asyncio.TaskGroup() as group:
                for caller, (*_, delay_s) in zip(made, calls, strict=True):
                    group.create_task(later(caller, delay_s))
                if cut:
                    group.create_task(cut_all())
            for caller in made:
                caller.check(is_idempotent)

    simulated_time.run(main())


@pytest.mark.parametrize("fault", list(Fault))
def test_a_call_that_is_lost_at_each_step_is_told_for_what_it_is(fault: Fault) -> None:
    async def main() -> None:
        one = replace(function("f", memory=128), policy="cloudonly")
        async with Town(one) as town:
            here = town.join("here", remote_area="cloud")
            cloud = town.join("cloud", area="cloud")
            await town.meet()
            cloud.host.run_s = RUN_S
            town.fault = lambda _here, _there: fault
            report = await here.call("f", params=b"x")
            may_have_run = fault in (Fault.RUNNING, Fault.ANSWERED)
            assert report.answer.failure is (CallFailure.INTERRUPTED if may_have_run else None)
            assert report.node == ("cloud" if may_have_run else "here")
            assert town.runs[b"x"] == 1
            assert report.response_s == pytest.approx(TIMEOUT_S, abs=0.5)

    simulated_time.run(main())


@in_simulated_time
async def test_a_warm_call_that_is_lost_may_have_run_and_a_cold_one_has_not() -> None:
    one = replace(function("f", memory=128), policy="cloudonly")
    async with Town(one) as town:
        here = town.join("here", remote_area="cloud")
        cloud = town.join("cloud", area="cloud")
        await town.meet()
        town.fault = lambda _here, _there: Fault.SENT
        assert (await here.call("f")).node == "here"
        await passes(10)
        await cloud.invoker.prewarm("f", 1)
        await passes(10)
        assert (await here.call("f")).answer.failure is CallFailure.INTERRUPTED
        assert [at_once for *_, at_once in town.sent] == [False, True]


@in_simulated_time
async def test_a_worker_that_an_answered_call_left_behind_is_known_before_the_next_ping() -> None:
    one = replace(function("f", memory=128), policy="cloudonly")
    async with Town(one) as town:
        here = town.join("here", remote_area="cloud", ping_s=600.0)
        town.join("cloud", area="cloud", ping_s=600.0)
        await town.meet()
        for _ in range(3):
            assert (await here.call("f")).node == "cloud"
        assert [at_once for *_, at_once in town.sent] == [False, True, True]


@in_simulated_time
async def test_an_async_call_is_written_down_at_its_origin_before_a_far_worker_hears_of_it() -> None:
    one = replace(function("f", memory=128), policy="cloudonly")
    async with Town(one) as town:
        here = town.join("here", remote_area="cloud")
        cloud = town.join("cloud", area="cloud")
        await town.meet()
        await cloud.invoker.prewarm("f", 1)
        told: list[int] = []

        async def begins() -> None:
            told.append(cloud.served)

        report = await here.call("f", begins=begins)
        assert (report.node, told, cloud.served) == ("cloud", [0], 1)

        async def fails() -> None:
            raise _NotBegun("disk full")

        with pytest.raises(_NotBegun):
            await here.call("f", begins=fails)
        assert (cloud.served, here.served) == (1, 0), "it was tried nowhere else"
        town.dead.add(NodeId("cloud"))
        with pytest.raises(_NotBegun):
            await here.call("f", begins=fails)
        assert here.served == 0


@in_simulated_time
async def test_an_async_call_that_cannot_be_written_down_here_is_not_sent_elsewhere() -> None:
    one = replace(function("f", memory=128), policy="edgecloud")
    async with Town(one) as town:
        here = town.join("here", remote_area="cloud")
        town.join("cloud", area="cloud")
        await town.meet()

        async def fails() -> None:
            raise _NotBegun("disk full")

        with pytest.raises(_NotBegun):
            await here.call("f", begins=fails)
        assert town.sent == []


@in_simulated_time
async def test_an_async_call_that_is_lost_before_it_ran_is_written_down_once() -> None:
    one = replace(function("f", memory=128), policy="cloudonly")
    async with Town(one) as town:
        here = town.join("here", remote_area="cloud")
        town.join("cloud", area="cloud")
        await town.meet()
        town.fault = lambda _here, _there: Fault.BEGUN
        begun = 0

        async def begins() -> None:
            nonlocal begun
            begun += 1

        assert (await here.call("f", begins=begins)).node == "here"
        assert begun == 1
