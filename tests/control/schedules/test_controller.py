"""The leader's loop of schedules: due times make jobs, once, also if leaders are killed around the minute."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from skerry.control.schedules.registry import ScheduleSettings
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.ids import FunctionName
from skerry.model.jobs import JobStatus
from skerry.model.schedules import FunctionTarget, JobTarget, OverlapPolicy, RunStatus, Schedule
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from tests.control.jobs.worlds import (
    MARK,
    CrashingStore,
    JobServer,
    PlayedNode,
    ShiftedClock,
    job_spec,
    succeed,
)
from tests.support.waiting import eventually

MINUTE = 60.0
START = 1_763_337_600.0  # a whole minute
EVERY_MINUTE = ScheduleSettings("* * * * *", JobTarget(job_spec()))


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = MemoryStore(SystemClock())
    yield made
    await made.close()


def shown(server: JobServer, name: str = "tick") -> Schedule:
    return server.schedules.find(name).value


def statuses(server: JobServer) -> list[RunStatus]:
    return [run.status for run in shown(server).runs]


async def test_a_due_time_makes_a_job_and_the_run_is_over_when_it_is(store: Store) -> None:
    clock = ShiftedClock(START + MINUTE - 1.0)
    async with PlayedNode(store, clock, succeed).running(), JobServer(store, clock).running() as server:
        await server.schedules.create("tick", EVERY_MINUTE, actor="me")
        assert server.schedules.next_times(shown(server))[0] == START + MINUTE
        await eventually(lambda: statuses(server) == [RunStatus.SUCCEEDED])
        (run,) = shown(server).runs
        job = server.jobs.get(run.target)
        assert job.status is JobStatus.SUCCEEDED
        assert job.schedule == shown(server).id
        assert run.due_at == START + MINUTE
        assert server.jobs.list(schedule=job.schedule).total == 1


async def test_a_call_is_written_down_for_this_server(store: Store) -> None:
    clock = ShiftedClock(START + MINUTE - 0.1)
    settings = replace(EVERY_MINUTE, target=FunctionTarget(FunctionName("there"), {"n": 3}))
    async with JobServer(store, clock).running() as server:
        made, _ = await server.schedules.create("tick", settings, actor="me")
        (run,) = await eventually(lambda: shown(server).runs)
        assert run.status is RunStatus.RUNNING
        assert run.target == f"there-{made.id}-{int(START + MINUTE)}-{MARK}"


async def test_a_run_that_somebody_wants_now_begins_also_while_it_is_paused(store: Store) -> None:
    clock = ShiftedClock(START + 1)
    async with PlayedNode(store, clock, succeed).running(), JobServer(store, clock).running() as server:
        await server.schedules.create("tick", replace(EVERY_MINUTE, is_paused=True), actor="me")
        first = await server.schedules.run_now("tick", actor="me")
        await eventually(lambda: statuses(server) == [RunStatus.SUCCEEDED])
        second = await server.schedules.run_now("tick", actor="me")
        assert second.due_at != first.due_at
        await eventually(lambda: statuses(server) == [RunStatus.SUCCEEDED] * 2)


async def test_two_runs_at_once_that_the_rule_forbids_are_refused(store: Store) -> None:
    async with JobServer(store, ShiftedClock(START + 1)).running(leads=False) as server:
        await server.schedules.create("tick", EVERY_MINUTE, actor="me")
        await server.schedules.run_now("tick", actor="me")
        with pytest.raises(errors.FailedPrecondition, match="goes on"):
            await server.schedules.run_now("tick", actor="me")


async def test_a_schedule_is_paused_resumed_changed_and_deleted(store: Store) -> None:
    clock = ShiftedClock(START + 1)
    async with JobServer(store, clock).running(leads=False) as server:
        made, is_new = await server.schedules.create("tick", EVERY_MINUTE, actor="me")
        assert is_new
        assert await server.schedules.create("tick", EVERY_MINUTE, actor="me") == (made, False)
        with pytest.raises(errors.AlreadyExists):
            await server.schedules.create("tick", replace(EVERY_MINUTE, window_s=1.0), actor="me")
        paused = await server.schedules.set_paused("tick", True, actor="me")
        assert server.schedules.next_times(paused) == []
        clock.advance(3600)
        resumed = await server.schedules.set_paused("tick", False, actor="me")
        assert resumed.handled_until >= START + 3600  # what was due meanwhile is not made up for
        changed = await server.schedules.change(
            "tick", lambda before: replace(before, cron="0 3 * * *", timezone="Asia/Tokyo"), actor="me"
        )
        assert (changed.cron, changed.timezone) == ("0 3 * * *", "Asia/Tokyo")
        with pytest.raises(errors.FailedPrecondition):
            await server.schedules.change("tick", lambda before: before, actor="me", if_match=1)
        await server.schedules.delete("tick", actor="me")
        with pytest.raises(errors.NotFound):
            server.schedules.find("tick")


@pytest.mark.parametrize(
    ("settings", "kind", "reason"),
    [
        (replace(EVERY_MINUTE, cron="0 0 30 2 *"), errors.Invalid, "never due"),
        (replace(EVERY_MINUTE, timezone="Mars/Olympus"), errors.Invalid, "no time zone"),
        (replace(EVERY_MINUTE, window_s=1e9), errors.Invalid, "0 to 7 days"),
        (
            replace(EVERY_MINUTE, target=FunctionTarget(FunctionName("missing"))),
            errors.Unprocessable,
            "no function 'missing'",
        ),
        (
            replace(
                EVERY_MINUTE,
                target=FunctionTarget(FunctionName("there")),
                overlap=OverlapPolicy.REPLACE,
            ),
            errors.Invalid,
            "cannot be cancelled",
        ),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_stored(
    store: Store, settings: ScheduleSettings, kind: type[errors.SkerryError], reason: str
) -> None:
    async with JobServer(store, ShiftedClock(START)).running(leads=False) as server:
        with pytest.raises(kind, match=reason):
            await server.schedules.create("tick", settings, actor="me")
        assert len(server.schedule_table) == 0
        await server.schedules.create("tick", EVERY_MINUTE, actor="me")
        with pytest.raises(kind, match=reason):
            await server.schedules.change("tick", lambda before: settings, actor="me")
        assert shown(server).cron == EVERY_MINUTE.cron


@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after the write"])
async def test_a_leader_that_is_killed_at_any_write_around_the_minute_runs_it_once(is_written: bool) -> None:
    for crash_at in range(1, 100):
        clock = ShiftedClock(START + MINUTE - 0.05)
        store = MemoryStore(clock)
        node = PlayedNode(store, clock, succeed)
        try:
            async with node.running():
                async with JobServer(store, clock).running(leads=False) as server:
                    await server.schedules.create("tick", EVERY_MINUTE, actor="me")
                crashing = CrashingStore(store, crash_at, is_written=is_written)
                try:
                    async with JobServer(crashing, clock).running() as first:
                        await eventually(
                            lambda first=first, crashing=crashing: (
                                crashing.has_crashed or statuses(first) == [RunStatus.SUCCEEDED]
                            )
                        )
                except Exception:  # noqa: BLE001 - it may crash before it leads
                    assert crashing.has_crashed
                async with JobServer(store, clock).running() as second:
                    await eventually(
                        lambda second=second: statuses(second) == [RunStatus.SUCCEEDED],
                        what=f"done after a crash at write {crash_at}",
                    )
                    (run,) = shown(second).runs
                    assert run.due_at == START + MINUTE
                    assert second.jobs.list().total == 1
                    assert len(second.tries()) == 1
                    assert len(node.runs) == 1
        finally:
            await store.close()
        if not crashing.has_crashed:
            assert crash_at > 3
            return
    raise AssertionError("it never ended without a crash")
