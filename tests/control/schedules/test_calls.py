"""Calls of functions by schedules: made by the server that the run names, once, and followed to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from skerry.control.schedules.calls import CallOutcome, ScheduledCalls
from skerry.control.schedules.registry import ScheduleSettings
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import FunctionName
from skerry.model.schedules import FunctionTarget, RunStatus, ScheduledRun
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from tests.control.jobs.worlds import MARK, JobServer, ShiftedClock
from tests.support.waiting import eventually

START = 1_763_337_600.0
SETTINGS = ScheduleSettings("0 0 1 1 *", FunctionTarget(FunctionName("there"), {"n": 3}))


class FakeCaller:
    """Calls that a test ends."""

    mark = MARK
    known_for_s = 1800.0

    def __init__(self) -> None:
        self.accepted: dict[str, bytes] = {}
        self.outcomes: dict[str, asyncio.Future[CallOutcome | None]] = {}
        self.refusals: list[errors.SkerryError] = []

    async def accept(self, id: str, function: FunctionName, parameters: bytes) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.accepted.setdefault(id, parameters)

    async def outcome(self, id: str) -> CallOutcome | None:
        if id not in self.accepted:
            return None
        future = self.outcomes.setdefault(id, asyncio.get_running_loop().create_future())
        return await asyncio.shield(future)

    def end(self, id: str, outcome: CallOutcome) -> None:
        self.outcomes.setdefault(id, asyncio.get_running_loop().create_future()).set_result(outcome)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = MemoryStore(SystemClock())
    yield made
    await made.close()


@asynccontextmanager
async def calling(server: JobServer, caller: FakeCaller) -> AsyncIterator[None]:
    calls = ScheduledCalls(server.schedule_table, caller, server.events, server.clock)
    loop = asyncio.ensure_future(calls.run())
    try:
        yield
    finally:
        await cancel_and_wait([loop])


def run_of(server: JobServer) -> ScheduledRun:
    return server.schedules.find("tick").value.runs[-1]


async def begin(server: JobServer, mark: str = MARK, started_at: float = START) -> str:
    """A run that the leader has written down."""
    made, _ = await server.schedules.create("tick", SETTINGS, actor="me")
    id = f"there-{made.id}-1763337600-{mark}"
    run = ScheduledRun(START, RunStatus.RUNNING, started_at=started_at, target=id)
    table = server.schedule_table
    await table.commit([table.put("default/tick", replace(made, runs=(run,)))])
    return id


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(CallOutcome(True), RunStatus.SUCCEEDED), (CallOutcome(False, "ValueError: no"), RunStatus.FAILED)],
)
async def test_a_call_is_made_with_its_parameters_and_its_end_is_that_of_the_run(
    store: Store, outcome: CallOutcome, status: RunStatus
) -> None:
    caller = FakeCaller()
    async with JobServer(store, ShiftedClock(START)).running(leads=False) as server, calling(server, caller):
        id = await begin(server)
        await eventually(lambda: id in caller.accepted)
        assert caller.accepted[id] == b'{"n":3}'
        assert run_of(server).status is RunStatus.RUNNING
        caller.end(id, outcome)
        await eventually(lambda: run_of(server).status is status)
        assert run_of(server).reason == outcome.message


async def test_a_call_that_is_another_servers_is_left_to_it(store: Store) -> None:
    caller = FakeCaller()
    async with JobServer(store, ShiftedClock(START)).running(leads=False) as server, calling(server, caller):
        await begin(server, mark="other")
        await server.schedules.set_paused("tick", True, actor="me")
        assert caller.accepted == {}


async def test_a_server_that_was_killed_before_it_made_the_call_makes_it_when_it_is_back(
    store: Store,
) -> None:
    caller = FakeCaller()
    async with JobServer(store, ShiftedClock(START + 60)).running(leads=False) as server:
        id = await begin(server)
        async with calling(server, caller):
            await eventually(lambda: id in caller.accepted)
        async with calling(server, caller):  # and once more
            caller.end(id, CallOutcome(True))
            await eventually(lambda: run_of(server).status is RunStatus.SUCCEEDED)
        assert list(caller.accepted) == [id]


async def test_a_call_that_may_be_forgotten_is_not_made_again(store: Store) -> None:
    caller = FakeCaller()
    clock = ShiftedClock(START + caller.known_for_s + 1)
    async with JobServer(store, clock).running(leads=False) as server, calling(server, caller):
        await begin(server)
        await eventually(lambda: run_of(server).status is RunStatus.FAILED)
        assert "no longer known" in run_of(server).reason
        assert caller.accepted == {}


async def test_a_call_that_is_refused_for_good_is_a_failure_with_the_reason(store: Store) -> None:
    caller = FakeCaller()
    caller.refusals = [errors.TooLarge("it is too large")]
    async with JobServer(store, ShiftedClock(START)).running(leads=False) as server, calling(server, caller):
        await begin(server)
        await eventually(lambda: run_of(server).status is RunStatus.FAILED)
        assert run_of(server).reason == "it is too large"


async def test_a_server_that_is_busy_tries_again(store: Store) -> None:
    caller = FakeCaller()
    caller.refusals = [errors.Overloaded("later")]
    async with JobServer(store, ShiftedClock(START)).running(leads=False) as server, calling(server, caller):
        id = await begin(server)
        await eventually(lambda: id in caller.accepted)
