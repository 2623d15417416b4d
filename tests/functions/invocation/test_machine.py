"""Whatever happens in whatever order: the books are right at every moment, and the limits are kept.

What must never be: more memory or cpu than there is; books that differ from the workers there are; more calls
in a worker than it takes; a call in a dead worker or in one of an older version; a call that outlives its
time; a worker, a call or a place in the queue that is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport
from skerry.model.functions import Function
from skerry.sim.simulated_time import SimulatedLoop
from tests.support.simulated import passes
from tests.support.workers import Site, broken, function, without_room

NAMES = ("a", "b", "c", "d")
SLACK_S = 0.01  # rounds of the loop take a moment each

names = st.sampled_from(NAMES)
picks = st.integers(0, 1000)
moments = st.sampled_from([0.0, 0.001, 0.01, 0.1, 1.0, 10.0])


class CheckedLoop(SimulatedLoop):
    """Simulated time that has something checked in every round."""

    def __init__(self) -> None:
        self.check: Callable[[], None] = lambda: None
        super().__init__()

    def _jump(self, seconds: float) -> None:
        super()._jump(seconds)
        self.check()


class Books(RuleBasedStateMachine):
    """Any order of calls, deaths, failures, cancellations, updates, deletions, prewarms and expiries."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=CheckedLoop)
        self.loop = self.runner.get_loop()
        self.calls: dict[asyncio.Task[CallReport], float | None] = {}
        self.others: list[asyncio.Task[object]] = []
        self.site = self.runner.run(self._open())
        assert isinstance(self.loop, CheckedLoop)
        self.loop.check = self.check_books

    async def _open(self) -> Site:
        site = Site(memory_mb=600, cpus=2.0, queue_length=6, queue_wait_s=8.0, keep_alive_s=15.0)
        return await site.__aenter__()

    def pass_time(self, seconds: float) -> None:
        self.runner.run(passes(seconds))

    @initialize(memory=st.sampled_from([50, 100, 300]), seats=st.sampled_from([1, 3]))
    def begin(self, memory: int, seats: int) -> None:
        self.site.registry.add(function("a", memory=memory, seats=seats))

    @rule(
        name=names,
        memory=st.sampled_from([50, 100, 250, 600, 700]),
        cpu=st.sampled_from([None, 500, 1500, 2000]),
        seats=st.sampled_from([1, 1, 2, 5]),
    )
    def create_or_update(self, name: str, memory: int, cpu: int | None, seats: int) -> None:
        old = self.site.registry.functions.get(name)
        version = old.version + 1 if old else self.site.host.oldest.get(name, 1)
        new = function(name, memory=memory, cpu=cpu, seats=seats, version=version)
        self.site.registry.add(new)
        self.runner.run(self._updated(new))

    async def _updated(self, new: Function) -> None:
        await self.site.invoker.updated(new)
        self.site.host.oldest[new.name] = new.version

    @rule(name=names)
    def delete(self, name: str) -> None:
        old = self.site.registry.functions.pop(name, None)
        if old is not None:
            self.runner.run(self._removed(old))

    async def _removed(self, old: Function) -> None:
        await self.site.invoker.removed(old.name)
        self.site.host.oldest[old.name] = old.version + 1

    @rule(
        name=names,
        times=st.integers(1, 6),
        max_response_s=st.sampled_from([None, None, 0.005, 0.5, 5.0, 60.0]),
        is_direct=st.booleans(),
    )
    def call(self, name: str, times: int, max_response_s: float | None, is_direct: bool) -> None:
        async def begin() -> None:
            self.site.is_direct = is_direct
            for number in range(times):
                task = self.site.begin(name, qos_class=number % 3, max_response_s=max_response_s)
                self.calls[task] = max_response_s

        self.runner.run(begin())

    @rule(name=names, instances=st.integers(0, 8))
    def prewarm(self, name: str, instances: int) -> None:
        async def begin() -> None:
            self.others.append(asyncio.ensure_future(self.site.invoker.prewarm(name, instances)))

        self.runner.run(begin())

    @rule(name=names)
    def validate(self, name: str) -> None:
        async def begin() -> None:
            new = function(name, memory=100, cpu=700)
            code = self.site.registry.code_folder(new)
            self.others.append(asyncio.ensure_future(self.site.invoker.validate(new, code)))

        self.runner.run(begin())

    @precondition(lambda self: self.calls)
    @rule(pick=picks)
    def caller_goes_away(self, pick: int) -> None:
        list(self.calls)[pick % len(self.calls)].cancel()

    @precondition(lambda self: self.others)
    @rule(pick=picks)
    def other_goes_away(self, pick: int) -> None:
        self.others[pick % len(self.others)].cancel()

    @precondition(lambda self: self.site.host.workers)
    @rule(pick=picks)
    def worker_dies(self, pick: int) -> None:
        async def die() -> None:
            workers = sorted(self.site.host.workers, key=lambda one: one.id)
            if workers:  # others had their turn before this one
                workers[pick % len(workers)].die(CallFailure.MEMORY)

        self.runner.run(die())

    @rule(
        fault=st.sampled_from([lambda _: None, broken, without_room, lambda _: OSError("no")]),
        init_s=moments,
        run_s=moments,
        close_s=moments,
    )
    def weather(
        self, fault: Callable[[Function], Exception | None], init_s: float, run_s: float, close_s: float
    ) -> None:
        host = self.site.host
        host.fault, host.init_s, host.run_s, host.close_s = fault, init_s, run_s, close_s

    @rule(seconds=moments)
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    def check_books(self) -> None:
        pool = self.site.invoker._pool
        slots = pool.slots
        assert pool.memory_used == sum(slot.memory for slot in slots) <= pool.memory_total
        assert self.site.host.memory <= pool.memory_used
        idle = {slot for slot in slots if slot.is_open and not slot.busy}
        assert idle == set(pool.idle)
        assert pool.memory_idle == sum(slot.memory for slot in idle)
        assert pool.memory_ending == sum(slot.memory for slot in slots if slot.is_ending)
        assert pool.cpu_used == sum(slot.cpu for slot in slots if slot not in idle) <= pool.cpu_total
        assert pool.starting == sum(not slot.is_started for slot in slots)
        busy = sum(worker.in_flight * (worker.function.cpu or 0) > 0 for worker in self.site.host.workers)
        assert busy <= sum(slot.cpu > 0 for slot in slots if slot not in idle)
        for group in {slot.group for slot in slots} | set(self.site.invoker._groups.values()):
            own = {slot for slot in slots if slot.group is group}
            assert group.slots == own
            assert group.workers == sum(slot.is_open for slot in own)
            assert group.starting == sum(not slot.is_started for slot in own)
            assert set(group.idle) == own & idle
            assert set(group.open) == {
                slot for slot in own if slot.is_started and slot.is_open and 0 < slot.busy < slot.seats
            }
        queue = self.site.invoker._queue
        assert queue.count == len(queue.all_waiting()) == sum(group.waiting for group in queue.groups())
        self.check_that_decided_functions_need_nothing()

    def check_that_decided_functions_need_nothing(self) -> None:
        dispatcher, queue = self.site.invoker._dispatcher, self.site.invoker._queue
        undecided, now = queue.groups(undecided=True), self.site.clock.monotonic()
        assert undecided == [group for group in queue.groups() if group in undecided]
        for group in set(queue.groups()) - set(undecided):
            assert dispatcher._shortage(group, now) <= 0
            assert not dispatcher._is_overdue(group, now)
            assert not dispatcher.pool.can_take(group)

    @invariant()
    def what_is_done_was_done_right(self) -> None:
        assert self.site.host.wrongs == []
        for task in [task for task in self.calls if task.done()]:
            max_response_s = self.calls.pop(task)
            if task.cancelled():
                continue
            error = task.exception()
            if error is not None:
                assert isinstance(error, errors.NotFound | errors.Overloaded), error
                continue
            report = task.result()
            if max_response_s is not None:
                assert report.response_s <= max_response_s + SLACK_S
            parts = report.queueing_s + report.init_s
            assert -1e-9 <= parts <= report.response_s + 1e-9
        for other in [task for task in self.others if task.done()]:
            self.others.remove(other)
            if not other.cancelled():
                other.exception()  # load failures and the like are its right

    def teardown(self) -> None:
        try:
            host = self.site.host
            host.fault, host.init_s, host.close_s = lambda _: None, 0.01, 0.01
            self.pass_time(400)  # nothing waits longer than its queue, and nothing idle is kept for ever
            assert all(task.done() for task in [*self.calls, *self.others])
            self.what_is_done_was_done_right()
            status = self.site.invoker.status()
            assert (status.workers, status.free_memory_mb, status.used_cpus) == (0, 600, 0.0)
            assert status.queue_length == 0
        finally:
            self.runner.run(cancel_and_wait([*self.calls, *self.others]))
            self.runner.run(self.site.__aexit__())
            self.runner.close()


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestBooks = Books.TestCase
