"""The leader's loop of jobs: tries that are made, followed, stopped and removed; also when it is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, MARKET_NAMESPACE, Namespace
from skerry.model.jobs import JobStatus
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, OwnerKind
from skerry.sim.cluster.faulty_store import FaultyWatch
from skerry.store.fencing import LeadershipLost
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Batch, Expect, Op, Put, RangePage, Store, Watch
from tests.control.jobs.worlds import (
    SPEC,
    CrashingStore,
    JobServer,
    PlayedNode,
    find_job,
    job_spec,
    succeed,
)
from tests.support.waiting import eventually


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = MemoryStore(SystemClock())
    yield made
    await made.close()


def fail_once(instance: Instance) -> int:
    assert instance.owner is not None
    return int(instance.owner.index == 1 and instance.owner.attempt == 0)


def never_end(instance: Instance) -> None:
    return None


def status_of(server: JobServer, name: str) -> JobStatus | None:
    job = find_job(server, name)
    return None if job is None else job.status


async def test_a_job_runs_all_its_completions_and_tries_again_what_failed(store: Store) -> None:
    clock = SystemClock()
    node = PlayedNode(store, clock, fail_once)
    async with node.running(), JobServer(store, clock).running() as server:
        job, is_new = await server.jobs.create("sums", job_spec(completions=3, parallelism=2), actor="me")
        assert is_new
        await eventually(lambda: status_of(server, "sums") is JobStatus.SUCCEEDED)
        done = server.jobs.get("sums")
        assert (done.succeeded, done.failures, done.failed) == ((0, 1, 2), 1, {1: 1})
        assert sorted(node.runs) == [("sums", 0, 0), ("sums", 1, 0), ("sums", 1, 1), ("sums", 2, 0)]
        assert len(server.jobs.tries(job)) == 4  # with their logs
        kinds = [stored.event.kind for stored in await server.events.of("job/default/sums")]
        assert kinds == ["job.created", "job.try-failed", "job.succeeded"]


async def test_a_job_that_is_cancelled_stops_its_tries_and_keeps_them_and_a_deleted_one_goes(
    store: Store,
) -> None:
    clock = SystemClock()
    async with (
        PlayedNode(store, clock, never_end).running(),
        JobServer(store, clock).running() as server,
    ):
        job, _ = await server.jobs.create("long", job_spec(completions=2, parallelism=2), actor="me")
        await eventually(lambda: len(server.tries()) == 2)
        cancelled = await server.jobs.cancel("long", actor="me")
        assert cancelled.status is JobStatus.CANCELLED
        assert await server.jobs.cancel("long", actor="me") == server.jobs.get("long")
        await eventually(
            lambda: all(each.desired is not DesiredStatus.RUNNING for each in server.jobs.tries(job))
        )
        await server.jobs.delete("long", actor="me")
        await eventually(lambda: status_of(server, "long") is None)
        assert server.tries() == []


async def test_a_try_that_somebody_destroys_is_made_again(store: Store) -> None:
    clock = SystemClock()
    async with (
        PlayedNode(store, clock, never_end).running(),
        JobServer(store, clock).running() as server,
    ):
        job, _ = await server.jobs.create("long", job_spec(), actor="me")
        await eventually(
            lambda: [
                each for each in server.jobs.tries(job) if each.observed.status is InstanceStatus.RUNNING
            ]
        )
        (first,) = server.jobs.tries(job)
        gone = replace(first, desired=DesiredStatus.DESTROYED)
        key = server.instances.key(first.id)
        await server.instances.commit([server.instances.put(first.id, gone)])
        await eventually(lambda: first.id not in {each.id for each in server.jobs.tries(job)}, what=key)
        (second,) = await eventually(lambda: server.jobs.tries(job))
        assert second.owner is not None
        assert second.owner.attempt == 0
        assert server.jobs.get("long").failures == 0


async def test_what_is_kept_for_no_time_is_gone_at_once(store: Store) -> None:
    clock = SystemClock()
    async with PlayedNode(store, clock, succeed).running(), JobServer(store, clock).running() as server:
        await server.jobs.create("short", job_spec(keep_for_s=0.0), actor="me")
        await eventually(lambda: status_of(server, "short") is None and not server.tries())


async def test_tries_of_a_job_that_the_store_has_forgotten_are_destroyed(store: Store) -> None:
    clock = SystemClock()
    node = PlayedNode(store, clock, never_end)
    async with node.running():
        async with JobServer(store, clock).running() as server:
            await server.jobs.create("lost", job_spec(), actor="me")
            await eventually(lambda: server.tries())
        async with JobServer(store, clock).running(leads=False) as server:
            await server.job_table.commit([server.job_table.delete("default/lost")])
        async with JobServer(store, clock).running() as server:
            await eventually(lambda: not server.tries())


async def test_a_leader_that_was_replaced_makes_nothing(store: Store) -> None:
    clock = SystemClock()
    async with JobServer(store, clock).running() as server:
        await store.commit([Put("leader", b"another")])
        await server.jobs.create("sums", job_spec(), actor="me")
        controller = server.leading[0]
        await eventually(controller.done)
        with pytest.raises(LeadershipLost):
            controller.result()
        assert server.tries() == []


async def test_a_name_belongs_to_one_job_and_the_same_request_gives_the_same_one(store: Store) -> None:
    async with JobServer(store, SystemClock()).running(leads=False) as server:
        job, _ = await server.jobs.create("sums", job_spec(), actor="me")
        assert await server.jobs.create("sums", job_spec(), actor="me") == (job, False)
        with pytest.raises(errors.AlreadyExists, match="another spec"):
            await server.jobs.create("sums", job_spec(retries=9), actor="me")
        other, is_new = await server.jobs.create(
            "sums", job_spec(retries=9), actor="me", namespace=Namespace("shop")
        )
        assert is_new
        assert server.jobs.find(other.id).value == other
        with pytest.raises(errors.NotFound):
            server.jobs.find("sums", Namespace("elsewhere"))
        assert [each.id for each in server.jobs.list(namespace=DEFAULT_NAMESPACE).items] == [job.id]
        assert server.jobs.list().total == 2


async def test_an_idempotency_key_makes_one_job(store: Store) -> None:
    async with JobServer(store, SystemClock()).running(leads=False) as server:
        made = await asyncio.gather(
            *(server.jobs.create("sums", job_spec(), actor="me", idempotency_key="k") for _ in range(5))
        )
        assert len({job.id for job, _ in made}) == 1
        assert sum(is_new for _, is_new in made) == 1
        with pytest.raises(errors.AlreadyExists, match="another request"):
            await server.jobs.create("sums", job_spec(retries=1), actor="me", idempotency_key="k")


async def test_what_no_try_could_be_made_of_is_refused(store: Store) -> None:
    async with JobServer(store, SystemClock()).running(leads=False) as server:
        many = tuple(f"V{number}=1" for number in range(99))
        with pytest.raises(errors.Invalid, match="too many"):
            await server.jobs.create(
                "sums", replace(job_spec(), template=replace(SPEC, environment=many)), actor="me"
            )
        with pytest.raises(errors.Forbidden):
            await server.jobs.create("sums", job_spec(), actor="me", namespace=MARKET_NAMESPACE)
        assert len(server.job_table) == 0


@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after the write"])
async def test_a_leader_that_is_killed_at_any_write_loses_nothing_and_runs_nothing_twice(
    is_written: bool,
) -> None:
    for crash_at in range(1, 100):
        clock = SystemClock()
        store = MemoryStore(clock)
        node = PlayedNode(store, clock, fail_once)
        try:
            async with node.running():
                async with JobServer(store, clock).running(leads=False) as server:
                    spec = job_spec(completions=3, parallelism=2, keep_for_s=3600.0)
                    job, _ = await server.jobs.create("sums", spec, actor="me")
                crashing = CrashingStore(store, crash_at, is_written=is_written)
                # The first of its transactions is the one by which it leads.
                try:
                    async with JobServer(crashing, clock).running() as first:
                        await eventually(
                            lambda first=first: (
                                first.leading[0].done() or status_of(first, "sums") is JobStatus.SUCCEEDED
                            )
                        )
                except Exception:  # noqa: BLE001 - it may crash before it leads
                    assert crashing.has_crashed
                async with JobServer(store, clock).running() as second:
                    await eventually(
                        lambda second=second: status_of(second, "sums") is JobStatus.SUCCEEDED,
                        what=f"done after a crash at write {crash_at}",
                    )
                    done = second.jobs.get("sums")
                    assert (done.succeeded, done.failures) == ((0, 1, 2), 1)
                    made = Counter(
                        (each.owner.index, each.owner.attempt) for each in second.tries() if each.owner
                    )
                    assert made == {(0, 0): 1, (1, 0): 1, (1, 1): 1, (2, 0): 1}, crash_at
                    assert Counter(node.runs).most_common(1)[0][1] == 1
                    await second.jobs.delete("sums", actor="me")
                    await eventually(lambda second=second: not second.tries() and not len(second.job_table))
                    assert second.instances.index.of_owner(OwnerKind.JOB, job.id) == []
        finally:
            await store.close()
        if not crashing.has_crashed:
            assert crash_at > 3
            return
    raise AssertionError("it never ended without a crash")


class LateStore(CrashingStore):
    """A store that says of one transaction that it does not know, and does it when the next one comes."""

    def __init__(self, store: Store, late_at: int) -> None:
        super().__init__(store, late_at, is_written=False)
        self._late: list[tuple[Sequence[Op], Sequence[Expect]]] = []
        self.was_late = False

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        self._left -= 1
        if self._left == 0:
            self._late.append((ops, expect))
            self.was_late = True
            raise errors.Unavailable("nobody knows whether that has happened")
        while self._late:
            await self._store.commit(*self._late.pop())
        return await self._store.commit(ops, expect)


async def test_a_transaction_that_happens_though_nobody_knew_makes_no_try_twice() -> None:
    for late_at in range(2, 100):
        clock = SystemClock()
        store = MemoryStore(clock)
        node = PlayedNode(store, clock, fail_once)
        late = LateStore(store, late_at)
        try:
            async with node.running():
                async with JobServer(store, clock).running(leads=False) as server:
                    await server.jobs.create("sums", job_spec(completions=3, parallelism=2), actor="me")
                async with JobServer(late, clock).running() as server:
                    await eventually(lambda server=server: status_of(server, "sums") is JobStatus.SUCCEEDED)
                    assert sorted(node.runs) == [
                        ("sums", 0, 0),
                        ("sums", 1, 0),
                        ("sums", 1, 1),
                        ("sums", 2, 0),
                    ], late_at
                    assert server.jobs.get("sums").tries == 4
        finally:
            await store.close()
        if not late.was_late:
            assert late_at > 3
            return
    raise AssertionError("it never ended without one")


class SplitStore(CrashingStore):
    """A store that does the transaction of the first try and says that it does not know. The watch of the
    instances says nothing from then on, until they are read or more tries are sent."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, 1, is_written=True)
        self.was_split = False
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        if not any(op.key.startswith("instance/") for op in ops):
            return await self._store.commit(ops, expect)
        if self.was_split:
            self._goes_on.set()
            return await self._store.commit(ops, expect)
        self.was_split = True
        self._goes_on.clear()
        await self._store.commit(ops, expect)
        raise errors.Unavailable("nobody knows whether that has happened")

    async def range(self, prefix: str, **more: Any) -> RangePage:
        page = await self._store.range(prefix, **more)
        if prefix == "instance/":
            self._goes_on.set()
        return page

    @asynccontextmanager
    async def watch(self, prefix: str, *, since: int) -> AsyncIterator[Watch]:
        async def held_back(batch: Batch) -> None:
            await self._goes_on.wait()

        async with self._store.watch(prefix, since=since) as watch:
            yield watch if prefix != "instance/" else FaultyWatch(watch, since, held_back)


async def test_a_job_that_is_known_before_its_try_is_not_tried_again(store: Store) -> None:
    clock = SystemClock()
    node = PlayedNode(store, clock, succeed)
    split = SplitStore(store)
    async with node.running(), JobServer(split, clock).running() as server:
        await server.jobs.create("sums", job_spec(parallelism=2), actor="me")
        await eventually(lambda: status_of(server, "sums") is JobStatus.SUCCEEDED)
        assert split.was_split
        assert node.runs == [("sums", 0, 0)]
        assert server.jobs.get("sums").tries == 1
