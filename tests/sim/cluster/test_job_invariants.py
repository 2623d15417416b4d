"""What the witness of jobs and schedules objects to, and what it lets be."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.control.jobs.controller import new_try
from skerry.control.jobs.decisions import NewTry
from skerry.kit import json_codec
from skerry.model.ids import InstanceId, JobId, NodeId, ScheduleId
from skerry.model.jobs import Job, JobSpec, JobStatus
from skerry.model.schedules import JobTarget, RunStatus, Schedule, ScheduledRun
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState
from skerry.sim.cluster.job_invariants import JobInvariants
from skerry.store.protocol import Batch, Change, Entry

SPEC = JobSpec(InstanceSpec(name="sums", uri="example.org/sums:1"), completions=3, retries=1)
JOB = Job(JobId("01job"), "sums", SPEC, 1.0)
SCHEDULE = Schedule(ScheduleId("01tick"), "tick", "* * * * *", JobTarget(SPEC), 1.0, handled_until=60.0)


class Witnessed:
    """Transactions, and what is said of them."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.checker = JobInvariants(self.violations.append)
        self.revision = 0

    def write(self, *records: Job | Instance | Schedule) -> list[str]:
        self.revision += 1
        changes = []
        for record in records:
            key = {Job: "job/default/", Schedule: "schedule/default/", Instance: "instance/"}[type(record)]
            key += record.id if isinstance(record, Instance) else record.name
            entry = Entry(key, json_codec.encode(record), self.revision, self.revision)
            changes.append(Change(key, entry))
        self.checker.observe(Batch(self.revision, tuple(changes)))
        return self.violations

    def remove(self, key: str) -> None:
        self.revision += 1
        self.checker.observe(Batch(self.revision, (Change(key, None),)))

    def differences(self, *, fits: bool = True) -> list[str]:
        return list(self.checker.unfulfilled(lambda each: fits))


def a_try(id: str, index: int = 0, attempt: int = 0, status: InstanceStatus | None = None) -> Instance:
    made = new_try(JOB, NewTry(index, attempt), InstanceId(id), 1.0)
    seen = ObservedState(status or InstanceStatus.RUNNING, 1.0, exit_code=0)
    return replace(made, node=NodeId("n1"), observed=seen)


def test_tries_one_after_the_other_are_well() -> None:
    cloud = Witnessed()
    cloud.write(JOB)
    cloud.write(a_try("a"))
    cloud.write(a_try("a", status=InstanceStatus.TERMINATED))
    assert cloud.write(replace(JOB, succeeded=(0,)), a_try("b", 1)) == []


def test_more_tries_at_once_than_parallelism_are_not() -> None:
    cloud = Witnessed()
    cloud.write(JOB, a_try("a"))
    assert "2 tries at once" in cloud.write(a_try("b", 1))[0]


def test_two_tries_of_one_completion_at_once_are_not() -> None:
    cloud = Witnessed()
    wide = replace(JOB, spec=replace(SPEC, parallelism=3))
    cloud.write(wide, a_try("a"))
    assert "two tries of one completion" in cloud.write(a_try("b"))[0]


def test_more_attempts_than_retries_are_not() -> None:
    cloud = Witnessed()
    assert cloud.write(JOB, a_try("a", attempt=1)) == []
    cloud.remove("instance/a")
    assert "more often" in cloud.write(a_try("b", attempt=2))[0]


def test_a_job_that_forgets_or_begins_again_is_not() -> None:
    cloud = Witnessed()
    cloud.write(replace(JOB, succeeded=(0,)))
    assert "forgotten" in cloud.write(JOB.end(JobStatus.FAILED, "", 2.0))[0]
    assert "goes on" in cloud.write(JOB)[1]


def test_a_run_that_is_made_twice_is_not() -> None:
    cloud = Witnessed()
    run = replace(JOB, name="tick-60", schedule=SCHEDULE.id)
    cloud.write(run)
    cloud.remove("job/default/tick-60")
    assert "made twice" in cloud.write(replace(run, id=JobId("02job")))[0]


def test_a_schedule_that_goes_back_or_runs_two_at_once_is_not() -> None:
    cloud = Witnessed()
    cloud.write(SCHEDULE)
    assert "goes back" in cloud.write(replace(SCHEDULE, handled_until=1.0))[0]
    runs = tuple(ScheduledRun(float(at), RunStatus.RUNNING) for at in range(2))
    assert "at once" in cloud.write(replace(SCHEDULE, runs=runs))[1]


def test_at_rest_jobs_are_over_and_nothing_is_without_its_job() -> None:
    cloud = Witnessed()
    waits = replace(a_try("a", status=InstanceStatus.SCHEDULING), node=None)
    cloud.write(JOB, waits)
    assert cloud.differences() == ["job sums is still RUNNING"]
    assert cloud.differences(fits=False) == []  # there is no place for it
    cloud.write(JOB.end(JobStatus.SUCCEEDED, "", 2.0))
    assert cloud.differences() == []
    cloud.remove("job/default/sums")
    assert cloud.differences() == ["a is a try of job 01job, which is gone"]


def test_at_rest_no_run_waits_for_a_job_that_is_over() -> None:
    cloud = Witnessed()
    run = ScheduledRun(60.0, RunStatus.RUNNING, target="tick-60")
    cloud.write(replace(SCHEDULE, runs=(run,)))
    assert cloud.differences() == ["schedule tick still waits for tick-60, which is over"]
    cloud.write(replace(SCHEDULE, runs=(ScheduledRun(60.0, RunStatus.QUEUED),)))
    assert cloud.differences() == ["schedule tick has a run that waits for nothing"]
