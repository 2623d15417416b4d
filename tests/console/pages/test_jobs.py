"""The pages of jobs and schedules: progress, what can be done now, and by whom."""

from __future__ import annotations

from skerry.console.pages import jobs, schedules
from skerry.console.tables import ListQuery, TableContext
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import FunctionName, JobId, Namespace, ScheduleId
from skerry.model.jobs import Job, JobSpec, JobStatus
from skerry.model.schedules import FunctionTarget, RunStatus, Schedule, ScheduledRun
from skerry.model.workloads import InstanceSpec

NOW = 1_000_000.0
WITHIN = TableContext(1, lambda page: f"?page={page}")
DEPLOYER = Caller(origin=AuthMethod.TOKEN, name="d", role=Role.DEPLOYER)
VIEWER = Caller(origin=AuthMethod.TOKEN, name="v", role=Role.VIEWER)


def job(name: str = "sums", status: JobStatus = JobStatus.RUNNING, **fields: object) -> Job:
    spec = JobSpec(InstanceSpec(name=name, uri="example.org/sums:1"), completions=4, parallelism=2)
    return Job(JobId(name), name, spec, NOW - 90, status=status, **fields)  # type: ignore[arg-type]


def schedule(**fields: object) -> Schedule:
    target = FunctionTarget(FunctionName("report"), {"password": "hidden"})
    made = {"runs": (), "namespace": Namespace("shop")} | fields
    return Schedule(ScheduleId("s"), "nightly", "30 3 * * *", target, NOW - 500, **made)  # type: ignore[arg-type]


def test_the_list_of_jobs_shows_completions_and_the_reason_of_a_failure() -> None:
    found = [job(succeeded=(0, 2)), job("bad", JobStatus.FAILED, reason="too many tries failed", failures=9)]
    made = jobs.job_table(found, ListQuery(sort="name"), NOW)
    assert [row.cells[0].text for row in made.rows] == ["bad", "sums"]
    assert made.rows[0].cells[1].note == "too many tries failed"
    assert made.rows[1].cells[2].text == "2/4"


def test_a_running_job_can_be_cancelled_and_an_ended_one_only_deleted() -> None:
    running = jobs.job_view(job(succeeded=(1,)), 2, DEPLOYER, NOW)
    assert [one.id for one in running.actions] == ["cancel", "delete"]
    assert running.actions[0].command == "skerry job cancel sums"
    assert running.bars[0].text == "1 of 4 succeeded"
    ended = jobs.job_view(job(status=JobStatus.SUCCEEDED, ended_at=NOW - 10), 0, DEPLOYER, NOW)
    assert [one.id for one in ended.actions] == ["delete"]
    assert all(one.is_destructive for one in (*running.actions, *ended.actions))


def test_a_viewer_has_no_actions() -> None:
    assert jobs.job_view(job(), 1, VIEWER, NOW).actions == ()
    assert schedules.schedule_view(schedule(), [], VIEWER, NOW).actions == ()


def test_a_schedule_is_paused_or_resumed_and_can_be_run_now() -> None:
    active = schedules.schedule_view(schedule(), [NOW + 60], DEPLOYER, NOW)
    assert [one.id for one in active.actions] == ["run", "pause", "delete"]
    assert active.actions[0].command == "skerry schedule run nightly --namespace shop"
    paused = schedules.schedule_view(schedule(is_paused=True), [], DEPLOYER, NOW)
    assert [one.id for one in paused.actions] == ["run", "resume", "delete"]
    assert paused.note


def test_values_of_parameters_are_not_shown() -> None:
    shown = schedules.schedule_view(schedule(), [], DEPLOYER, NOW)
    texts = " ".join(f"{fact.value.text} {fact.value.note}" for fact in shown.facts)
    assert "password" in texts
    assert "hidden" not in texts


def test_due_times_are_counted_down_and_asked_for_the_rows_that_are_shown() -> None:
    asked: list[Schedule] = []

    def next_times(one: Schedule) -> list[float]:
        asked.append(one)
        return [NOW + 90]

    made = schedules.schedule_table([schedule()] * 1000, next_times, ListQuery(), NOW)
    assert len(asked) == len(made.rows) == 50
    assert (made.rows[0].cells[4].text, made.rows[0].cells[4].until) == ("1m", NOW + 90)


def test_runs_are_newest_first_with_their_reasons() -> None:
    runs = (
        ScheduledRun(NOW - 100, RunStatus.MISSED, reason="no server was running"),
        ScheduledRun(NOW - 20, RunStatus.SUCCEEDED, NOW - 20, NOW - 15, "call-1", is_manual=True),
    )
    made = schedules.run_table(schedule(runs=runs), WITHIN, NOW)
    assert [row.cells[1].badge.text for row in made.rows if row.cells[1].badge] == ["SUCCEEDED", "MISSED"]
    assert made.rows[0].cells[0].note == "by hand"
    assert made.rows[0].cells[3].text == "5.0 s"
    assert made.rows[1].cells[1].note == "no server was running"
