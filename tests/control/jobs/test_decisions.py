"""What a job does next: tries, retries, the end, and what never happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.jobs import decisions
from skerry.control.jobs.controller import new_try
from skerry.control.jobs.decisions import JobPlan, NewTry, RetryPauses, decide
from skerry.kit import ulid
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, JobId, NodeId
from skerry.model.jobs import Job, JobSpec, JobStatus
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState, RestartMode

START = 1_000.0
PAUSES = RetryPauses(10.0, 300.0)


def a_job(**more: object) -> Job:
    template = InstanceSpec(name="sums", uri="example.org/sums:1")
    return Job(JobId("01job"), "sums", JobSpec(template, **more), START, namespace=DEFAULT_NAMESPACE)


def a_try(job: Job, index: int = 0, attempt: int = 0, at: float = START) -> Instance:
    made = new_try(job, NewTry(index, attempt), InstanceId(ulid.new_id(at)), at)
    return replace(made, node=NodeId("n1"))


def ended(instance: Instance, exit_code: int, at: float = START) -> Instance:
    status = InstanceStatus.TERMINATED if exit_code == 0 else InstanceStatus.FAILED
    return replace(instance, observed=ObservedState(status, at, exit_code=exit_code))


def running(instance: Instance) -> Instance:
    return replace(instance, observed=ObservedState(InstanceStatus.RUNNING, START))


def test_as_many_tries_begin_as_may_run_at_once() -> None:
    job = a_job(completions=5, parallelism=2)
    assert decide(job, [], START).creates == [NewTry(0, 0), NewTry(1, 0)]
    assert decide(job, [running(a_try(job, 0))], START).creates == [NewTry(1, 0)]


def test_a_completion_that_succeeded_is_written_down_and_the_next_begins() -> None:
    job = a_job(completions=2)
    plan = decide(job, [ended(a_try(job), 0)], START)
    assert plan.job.succeeded == (0,)
    assert plan.creates == [NewTry(1, 0)]


def test_a_job_is_done_when_all_completions_are() -> None:
    job = a_job(completions=2, parallelism=2)
    plan = decide(job, [ended(a_try(job, 0), 0), ended(a_try(job, 1), 0)], START + 5)
    assert plan.job.status is JobStatus.SUCCEEDED
    assert plan.job.ended_at == START + 5
    assert [event.kind for event in plan.events] == ["succeeded"]


def test_a_try_that_failed_is_followed_by_another_after_a_pause_that_doubles() -> None:
    job = a_job()
    tries = [ended(a_try(job), 1)]
    plan = decide(job, tries, START + 9, PAUSES)
    assert (plan.creates, plan.wake_at) == ([], START + 10)
    assert (plan.job.failures, plan.job.failed) == (1, {0: 1})
    assert decide(plan.job, tries, START + 10, PAUSES).creates == [NewTry(0, 1)]
    tries.append(ended(a_try(job, 0, 1, START + 10), 1, START + 20))
    plan = decide(plan.job, tries, START + 39, PAUSES)
    assert (plan.creates, plan.wake_at) == ([], START + 40)


def test_a_job_fails_when_the_retries_of_a_completion_are_used_up_and_says_why() -> None:
    job = a_job(retries=1)
    tries = [ended(a_try(job), 1), ended(a_try(job, 0, 1), 7)]
    plan = decide(job, tries, START + 50)
    assert plan.job.status is JobStatus.FAILED
    assert plan.job.reason == "completion 0 failed 2 times, and is not tried again: exit code 7"
    assert plan.creates == []


def test_the_other_tries_of_a_failed_job_are_stopped_and_keep_their_logs() -> None:
    job = a_job(completions=3, parallelism=3).end(JobStatus.FAILED, "it failed", START)
    runs = running(a_try(job, 1))
    waits = replace(a_try(job, 2), node=None)
    plan = decide(job, [ended(a_try(job), 1), runs, waits], START + 1)
    assert plan.stops == [runs]
    assert plan.destroys == [waits]
    assert plan.wake_at == START + job.spec.keep_for_s


def test_a_try_that_somebody_stopped_cannot_be_started_again_when_its_job_is_over() -> None:
    job = a_job().end(JobStatus.CANCELLED, "", START)
    seen = ObservedState(InstanceStatus.STOPPED, START)
    stopped = replace(a_try(job), desired=DesiredStatus.STOPPED, observed=seen)
    assert decide(job, [stopped], START + 1).stops == [stopped]
    retired = replace(stopped, retiring_at=START)
    plan = decide(job, [retired], START + 1)
    assert (plan.stops, plan.releases) == ([], [retired])
    plan = decide(job, [replace(retired, is_released=True)], START + 1)
    assert (plan.stops, plan.releases) == ([], [])


def test_a_job_that_takes_too_long_has_failed() -> None:
    job = a_job(deadline_s=60.0)
    tries = [running(a_try(job))]
    assert decide(job, tries, START + 59).wake_at == START + 60
    plan = decide(job, tries, START + 60)
    assert plan.job.status is JobStatus.FAILED
    assert plan.job.reason.startswith("deadline")


def test_after_its_time_a_job_and_its_tries_are_removed() -> None:
    job = a_job(keep_for_s=100.0).end(JobStatus.SUCCEEDED, "", START)
    done = ended(a_try(job), 0)
    plan = decide(job, [done], START + 100)
    assert plan.job.status is JobStatus.DELETING
    plan = decide(plan.job, [done], START + 100)
    assert plan.destroys == [done]
    assert not plan.is_removed
    assert decide(plan.job, [], START + 101).is_removed


def test_a_try_that_somebody_destroyed_is_made_again_and_is_no_failure() -> None:
    job = a_job()
    going = replace(running(a_try(job)), desired=DesiredStatus.DESTROYED)
    plan = decide(job, [going], START)
    assert plan.creates == []
    plan = decide(plan.job, [], START)
    assert plan.creates == [NewTry(0, 0)]
    assert plan.job.failures == 0


def test_failures_count_also_if_the_instance_that_failed_is_gone() -> None:
    job = a_job(retries=0, completions=2, parallelism=2)
    seen = decide(job, [ended(a_try(job), 1)], START).job
    assert seen.status is JobStatus.FAILED
    assert decide(a_job(retries=5), [], START).creates == [NewTry(0, 0)]
    again = decide(replace(a_job(retries=5), failed={0: 2}, failures=2), [], START)
    assert again.creates == [NewTry(0, 2)]


def test_a_success_counts_also_if_the_instance_is_just_being_destroyed() -> None:
    job = a_job()
    going = replace(ended(a_try(job), 0), desired=DesiredStatus.DESTROYED)
    assert decide(job, [going], START).job.status is JobStatus.SUCCEEDED


def test_a_try_that_cannot_be_started_is_a_failure_with_its_reason() -> None:
    job = a_job(retries=0)
    seen = ObservedState(InstanceStatus.FAILED, START, "there is no such image")
    plan = decide(job, [replace(a_try(job), observed=seen)], START)
    assert plan.job.reason.endswith("there is no such image")


def test_a_try_knows_which_one_it_is_and_never_restarts_by_itself() -> None:
    template = InstanceSpec(name="sums", uri="example.org/sums:1", environment=("SKERRY_JOB_ATTEMPT=mine",))
    job = replace(a_job(), spec=JobSpec(template, completions=9))
    spec = decisions.try_spec(job, 7, 2)
    assert spec.environment == ("SKERRY_JOB_ATTEMPT=mine", "SKERRY_JOB_INDEX=7")
    assert spec.restart.when is RestartMode.NEVER
    assert spec.name == "sums-7-2"


def test_much_is_done_in_steps_that_fit_into_a_transaction() -> None:
    job = a_job(completions=1000, parallelism=1000)
    plan = decide(job, [], START)
    assert len(plan.creates) == decisions.MAX_CREATES
    assert plan.wake_at == START
    over = job.end(JobStatus.CANCELLED, "", START)
    many = [running(a_try(job, index)) for index in range(100)]
    plan = decide(over, many, START)
    assert len(plan.stops) == decisions.MAX_ENDINGS
    assert plan.wake_at == START


class _World:
    """A job with nodes that do as chance has it."""

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.tries: dict[str, Instance] = {}
        self.now = START
        self.most_at_once = 0

    def apply(self, plan: JobPlan) -> None:
        assert self.job is not None
        assert set(self.job.succeeded) <= set(plan.job.succeeded)
        for new in plan.creates:
            made = new_try(plan.job, new, InstanceId(ulid.new_id(self.now)), self.now)
            assert new.attempt <= plan.job.spec.retries
            assert new.index not in plan.job.succeeded
            self.tries[made.id] = replace(made, node=NodeId("n1"))
        for each in plan.stops:
            stopped = ObservedState(InstanceStatus.STOPPED, self.now)
            self.tries[each.id] = replace(
                each, desired=DesiredStatus.STOPPED, observed=stopped, retiring_at=self.now
            )
        for each in plan.releases:
            self.tries[each.id] = replace(each, is_released=True)
        for each in plan.destroys:
            del self.tries[each.id]
        self.job = None if plan.is_removed else plan.job
        live = [each for each in self.tries.values() if decisions.is_live(each)]
        busy = [decisions.owner_of(each).index for each in live]
        assert len(busy) == len(set(busy)), "two tries of one completion at once"
        self.most_at_once = max(self.most_at_once, len(live))

    def settle(self) -> float | None:
        for _ in range(1000):
            if self.job is None:
                return None
            plan = decide(self.job, list(self.tries.values()), self.now, PAUSES)
            is_done = plan.job == self.job and not (
                plan.creates or plan.stops or plan.releases or plan.destroys
            )
            self.apply(plan)
            if is_done and not plan.is_removed and plan.wake_at != self.now:
                return plan.wake_at
        raise AssertionError("it does not settle")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_job_never_runs_too_many_tries_at_once_or_too_often_and_ends(data: st.DataObject) -> None:
    job = a_job(
        completions=data.draw(st.integers(1, 6)),
        parallelism=data.draw(st.integers(1, 4)),
        retries=data.draw(st.integers(0, 3)),
        deadline_s=data.draw(st.none() | st.floats(1, 500)),
        keep_for_s=data.draw(st.sampled_from([0.0, 50.0])),
    )
    world = _World(job)
    seen = job
    for _ in range(200):
        wake_at = world.settle()
        if world.job is None:
            break
        seen = world.job
        assert world.most_at_once <= job.spec.parallelism
        assert all(count <= job.spec.retries + 1 for count in seen.failed.values())
        live = [each for each in world.tries.values() if each.observed.status not in TERMINAL]
        live = [each for each in live if each.desired is DesiredStatus.RUNNING]
        deed = data.draw(st.sampled_from(["end", "fail", "destroy", "wait"])) if live else "wait"
        if deed == "wait":
            world.now = max(world.now + 1, wake_at or 0.0)
            continue
        one = data.draw(st.sampled_from(decisions.in_order(live)))
        if deed == "destroy":
            del world.tries[one.id]
        else:
            world.tries[one.id] = ended(one, int(deed == "fail"), world.now)
    else:
        # Nothing but bad luck: it has to be a job whose tries are destroyed or waited for.
        assert seen.status is JobStatus.RUNNING or world.tries
        return
    if seen.status is JobStatus.SUCCEEDED:
        assert set(seen.succeeded) == set(range(job.spec.completions))


def test_a_node_whose_clock_is_ahead_does_not_hold_up_the_next_try() -> None:
    job = replace(a_job(), failed={0: 1}, failures=1)
    tries = [ended(a_try(job), 1, at=START + 86_400)]
    assert decide(job, tries, START + 9, PAUSES).creates == []
    assert decide(job, tries, START + 10, PAUSES).creates == [NewTry(0, 1)]


@pytest.mark.parametrize(("failures", "pause"), [(1, 10.0), (2, 20.0), (5, 160.0), (6, 300.0), (999, 300.0)])
def test_pauses_double_up_to_the_cap(failures: int, pause: float) -> None:
    assert PAUSES.after(failures) == pause
