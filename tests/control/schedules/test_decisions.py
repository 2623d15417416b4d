"""What a schedule does next: due times, overlap, the window for missed runs, and what never happens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.schedules import decisions, due_times
from skerry.control.schedules.decisions import RunContext, SchedulePlan, decide
from skerry.model.ids import FunctionName, JobId, ScheduleId
from skerry.model.jobs import Job, JobSpec, JobStatus
from skerry.model.schedules import (
    MAX_RUNS_KEPT,
    FunctionTarget,
    JobTarget,
    OverlapPolicy,
    RunStatus,
    Schedule,
    ScheduledRun,
)
from skerry.model.workloads import InstanceSpec

MINUTE = 60.0
START = 1_763_337_600.0  # a whole minute
SPEC = JobSpec(InstanceSpec(name="sums", uri="example.org/sums:1"))
GIVE_UP_S = 3600.0


def a_schedule(**more: object) -> Schedule:
    fields: dict[str, object] = {"cron": "* * * * *", "target": JobTarget(SPEC), "handled_until": START}
    return Schedule(ScheduleId("01sched"), "nightly", created_at=START, **(fields | more))


class Jobs:
    """The jobs that plans made."""

    def __init__(self) -> None:
        self.known: dict[str, Job] = {}
        self.context = RunContext(
            self.known.get,
            lambda schedule, run: decisions.call_id("f", schedule.id, run.due_at, "mark"),
            GIVE_UP_S,
        )

    def apply(self, plan: SchedulePlan, now: float) -> Schedule:
        for name in plan.cancels:
            self.known[name] = self.known[name].end(JobStatus.CANCELLED, plan.cancel_reason, now)
        if plan.start is not None and isinstance(plan.schedule.target, JobTarget):
            assert plan.start.target not in self.known, "a run twice"
            self.known[plan.start.target] = Job(
                JobId(plan.start.target), plan.start.target, SPEC, now, schedule=plan.schedule.id
            )
        return plan.schedule

    def settle(self, schedule: Schedule, now: float) -> tuple[Schedule, float | None]:
        for _ in range(1000):
            plan = decide(schedule, self.context, now)
            is_done = plan.schedule == schedule
            schedule = self.apply(plan, now)
            if is_done and plan.wake_at != now:
                return schedule, plan.wake_at
        raise AssertionError("it does not settle")

    def end(self, name: str, status: JobStatus, at: float) -> None:
        job = self.known[name]
        done = tuple(range(SPEC.completions)) if status is JobStatus.SUCCEEDED else ()
        self.known[name] = replace(job.end(status, "why", at), succeeded=done)


def statuses(schedule: Schedule) -> list[tuple[float, RunStatus]]:
    return [((run.due_at - START) / MINUTE, run.status) for run in schedule.runs]


def test_a_due_time_makes_a_job_in_the_same_decision_and_the_next_is_waited_for() -> None:
    jobs = Jobs()
    schedule, wake_at = jobs.settle(a_schedule(), START + 59)
    assert (schedule.runs, wake_at) == ((), START + 60)
    plan = decide(schedule, jobs.context, START + 60)
    assert plan.start is not None
    assert plan.start.target == f"nightly-{int(START + 60)}"
    assert plan.schedule.handled_until == START + 60
    assert [event.kind for event in plan.events] == ["run-started"]


def test_a_run_that_is_due_while_another_goes_on_is_skipped() -> None:
    jobs = Jobs()
    schedule, _ = jobs.settle(a_schedule(), START + MINUTE)
    schedule, _ = jobs.settle(schedule, START + 2 * MINUTE)
    assert statuses(schedule) == [(1, RunStatus.RUNNING), (2, RunStatus.SKIPPED)]
    jobs.end(schedule.runs[0].target, JobStatus.SUCCEEDED, START + 150)
    schedule, _ = jobs.settle(schedule, START + 3 * MINUTE)
    assert statuses(schedule) == [(1, RunStatus.SUCCEEDED), (2, RunStatus.SKIPPED), (3, RunStatus.RUNNING)]
    assert schedule.runs[0].ended_at == START + 150


def test_a_run_that_is_due_while_another_goes_on_waits_with_queue() -> None:
    jobs = Jobs()
    schedule, _ = jobs.settle(a_schedule(overlap=OverlapPolicy.QUEUE), START + MINUTE)
    schedule, _ = jobs.settle(schedule, START + 3 * MINUTE)
    assert statuses(schedule) == [(1, RunStatus.RUNNING), (2, RunStatus.QUEUED), (3, RunStatus.QUEUED)]
    jobs.end(schedule.runs[0].target, JobStatus.FAILED, START + 190)
    schedule, _ = jobs.settle(schedule, START + 190)
    assert statuses(schedule) == [(1, RunStatus.FAILED), (2, RunStatus.RUNNING), (3, RunStatus.QUEUED)]
    assert schedule.runs[1].started_at == START + 190


def test_a_run_that_is_due_while_another_goes_on_replaces_it_with_replace() -> None:
    jobs = Jobs()
    schedule, _ = jobs.settle(a_schedule(overlap=OverlapPolicy.REPLACE), START + MINUTE)
    first = schedule.runs[0].target
    schedule, _ = jobs.settle(schedule, START + 2 * MINUTE)
    assert statuses(schedule) == [(1, RunStatus.CANCELLED), (2, RunStatus.RUNNING)]
    assert jobs.known[first].status is JobStatus.CANCELLED
    assert jobs.known[first].reason.startswith("replaced by the run of")


def test_of_several_that_replace_each_other_only_the_last_begins() -> None:
    jobs = Jobs()
    schedule, _ = jobs.settle(a_schedule(overlap=OverlapPolicy.REPLACE), START + 10 * MINUTE)
    assert [status for _, status in statuses(schedule)] == [RunStatus.CANCELLED] * 9 + [RunStatus.RUNNING]
    assert len(jobs.known) == 1


def test_what_was_due_while_no_server_was_there_is_made_up_for_within_the_window() -> None:
    jobs = Jobs()
    schedule, _ = jobs.settle(a_schedule(cron="0 * * * *", window_s=3600.0), START + 50 * 3600)
    kinds = [run.status for run in schedule.runs]
    assert kinds == [RunStatus.MISSED, RunStatus.RUNNING]
    assert "49 runs were due" in schedule.runs[0].reason


def test_a_window_of_nothing_still_lets_another_server_take_over() -> None:
    jobs = Jobs()
    schedule, _ = jobs.settle(a_schedule(window_s=0.0), START + MINUTE + 20)
    assert statuses(schedule) == [(1, RunStatus.RUNNING)]
    schedule, _ = Jobs().settle(a_schedule(window_s=0.0), START + MINUTE + 31)
    assert statuses(schedule) == [(1, RunStatus.MISSED)]


def test_a_clock_that_is_set_back_repeats_nothing() -> None:
    jobs = Jobs()
    schedule, _ = jobs.settle(a_schedule(), START + MINUTE)
    jobs.end(schedule.runs[0].target, JobStatus.SUCCEEDED, START + 61)
    schedule, wake_at = jobs.settle(schedule, START - 3600)
    assert wake_at == START + 2 * MINUTE
    assert len(schedule.runs) == 1
    # Also after it was begun anew meanwhile.
    again, _ = jobs.settle(replace(schedule, handled_until=START - 3600), START + MINUTE)
    assert len([run for run in again.runs if run.due_at == START + MINUTE]) == 1


def test_a_paused_schedule_begins_nothing_but_what_somebody_wants_now() -> None:
    jobs = Jobs()
    schedule, wake_at = jobs.settle(a_schedule(is_paused=True), START + 600)
    assert (schedule.runs, wake_at) == ((), None)
    manual = replace(schedule, runs=(ScheduledRun(START + 601, RunStatus.QUEUED, is_manual=True),))
    schedule, _ = jobs.settle(manual, START + 601)
    assert schedule.runs[0].status is RunStatus.RUNNING


def test_a_run_whose_job_was_deleted_or_cancelled_is_cancelled() -> None:
    jobs = Jobs()
    schedule, _ = jobs.settle(a_schedule(), START + MINUTE)
    jobs.known.clear()
    schedule, _ = jobs.settle(schedule, START + 61)
    assert statuses(schedule) == [(1, RunStatus.CANCELLED)]


def test_a_run_whose_job_has_the_name_of_another_fails_and_the_next_one_begins() -> None:
    jobs = Jobs()
    name = f"nightly-{int(START + MINUTE)}"
    jobs.known[name] = Job(JobId("x"), name, SPEC, START)
    schedule, _ = jobs.settle(a_schedule(), START + MINUTE)
    assert statuses(schedule) == [(1, RunStatus.FAILED)]
    assert name in schedule.runs[0].reason


def test_a_call_of_which_nothing_is_heard_is_given_up_in_the_end() -> None:
    jobs = Jobs()
    target = FunctionTarget(FunctionName("f"))
    schedule, _ = jobs.settle(a_schedule(target=target, cron="0 0 * * *", window_s=0.0), START)
    schedule = replace(
        schedule, runs=(ScheduledRun(START, RunStatus.RUNNING, started_at=START, target="f-x-mark"),)
    )
    schedule, wake_at = jobs.settle(schedule, START + 1)
    assert wake_at == START + GIVE_UP_S
    schedule, _ = jobs.settle(schedule, START + GIVE_UP_S)
    assert schedule.runs[0].status is RunStatus.FAILED


def test_the_latest_runs_are_kept_and_all_that_are_not_over() -> None:
    over = [ScheduledRun(float(at), RunStatus.SKIPPED) for at in range(50)]
    active = ScheduledRun(0.5, RunStatus.RUNNING)
    kept = decisions.trim([active, *over])
    assert kept == (active, *over[-MAX_RUNS_KEPT:])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_due_time_runs_twice_and_none_is_lost_inside_the_window(data: st.DataObject) -> None:
    """Over hours with servers away, jobs that end or not, and clocks that are set."""
    jobs = Jobs()
    window_s = data.draw(st.sampled_from([0.0, 120.0, 1800.0]))
    cron = data.draw(st.sampled_from(["* * * * *", "*/5 * * * *", "7 * * * *"]))
    schedule = a_schedule(
        cron=cron, window_s=window_s, overlap=data.draw(st.sampled_from(list(OverlapPolicy)))
    )
    now, latest, missed_until = START, START, START
    decided: set[str] = set()
    started: list[str] = []
    for _ in range(data.draw(st.integers(1, 15))):
        now += data.draw(st.sampled_from([1.0, 20.0, 60.0, 61.0, 300.0, 4000.0, -30.0, -600.0]))
        before = schedule
        for _ in range(200):
            plan = decide(schedule, jobs.context, now)
            for event in plan.events:
                if event.kind == "run-missed":
                    missed_until = max(missed_until, plan.schedule.handled_until)
                decided.add(event.data["due_at"])
                started += [event.data["due_at"]] if event.kind == "run-started" else []
            decided |= {due_times.display(run.due_at, "UTC") for run in plan.schedule.runs}
            is_done = plan.schedule == schedule
            schedule = jobs.apply(plan, now)
            assert sum(run.status is RunStatus.RUNNING for run in schedule.runs) <= 1
            if is_done and plan.wake_at != now:
                break
        assert schedule.handled_until >= before.handled_until
        for name, job in list(jobs.known.items()):
            if not job.is_over and data.draw(st.booleans()):
                jobs.end(name, data.draw(st.sampled_from([JobStatus.SUCCEEDED, JobStatus.FAILED])), now)
        horizon = max(now - max(window_s, decisions.GRACE_S), missed_until, START)
        due = [at for at in islice(due_times.after(cron, "UTC", horizon), 100) if at <= now]
        if now >= latest:
            assert {due_times.display(at, "UTC") for at in due} <= decided
        latest = max(latest, now)
    assert len(started) == len(set(started))


def test_due_times_are_looked_for_no_further_than_they_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs up to tens of milliseconds, and a new leader looks at all schedules."""
    found: list[float] = []

    def counted(cron: str, timezone: str, time: float) -> Iterator[float]:
        for at in due_times_after(cron, timezone, time):
            found.append(at)
            yield at

    due_times_after = due_times.after
    monkeypatch.setattr(due_times, "after", counted)
    decide(a_schedule(cron="30 3 * * *", window_s=60.0), Jobs().context, START + 3 * 86_400.0)
    assert len(found) <= 6, "three that were missed, and the next one, twice"
