"""Admission under quotas: what is refused, by how much, and that nobody gets past it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.writer import TransitionWriter
from skerry.control.named_table import key_of
from skerry.control.namespaces.admission import AdmissionStore
from skerry.control.namespaces.registry import NamespaceRegistry
from skerry.control.namespaces.usage import NamespaceUsage, instance_use
from skerry.kit import tasks
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import InstanceId, Namespace, NodeId, VolumeId
from skerry.model.namespaces import NO_QUOTA, NamespaceRecord, Quota, QuotaAmounts
from skerry.model.resources import Gigabytes
from skerry.model.settings import EventSettings
from skerry.model.snapshots import Snapshot, SnapshotLocation, SnapshotStatus
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.volumes import Volume
from skerry.model.workloads import Instance, ObservedState
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Entry, Expect, Op, Put
from skerry.store.tables import table as tables
from skerry.store.tables.table import Record
from tests.control.worlds import instance, resources, spec
from tests.support.controls import Control, control_on

SHOP, LAB = Namespace("shop"), Namespace("lab")


class Recorded(MemoryStore):
    """A store that shows what came to it."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.commits: list[tuple[list[Op], list[Expect]]] = []

    async def commit(self, ops, expect=()):  # type: ignore[no-untyped-def]
        self.commits.append((list(ops), list(expect)))
        return await super().commit(ops, expect)


@asynccontextmanager
async def servers(store: MemoryStore, count: int = 1) -> AsyncIterator[list[Control]]:
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(control_on(store, EventLog(store, clock, EventSettings()), clock))
            for _ in range(count)
        ]


def with_quota(quota: Quota) -> Callable[[NamespaceRecord], NamespaceRecord]:
    """The change of a namespace to this quota."""
    return lambda record: replace(record, quota=quota)


async def limit(control: Control, quota: Quota, namespace: Namespace = SHOP) -> None:
    await control.namespaces.change(namespace, with_quota(quota), actor="admin")


async def create(control: Control, cpu: int = 1000, namespace: Namespace = SHOP) -> Instance:
    made, _ = await control.instances.create(spec(cpu=cpu), namespace=namespace, actor="me")
    return made


async def test_a_request_above_the_quota_says_by_how_much() -> None:
    async with servers(Recorded()) as [control]:
        await limit(control, Quota(cpu=4000, instances=5))
        await create(control, 3500)
        with pytest.raises(errors.QuotaExceeded) as refused:
            await create(control, 1000)
        assert refused.value.message.startswith(
            "namespace shop has 3500 of 4000 milli-cores in use; this needs 1000: 500 too many; "
        )
        assert "`skerry namespace quota shop`" in refused.value.message
        await create(control, 500)
        await create(control, 1000, LAB)  # of another namespace
        assert control.store.quotas.usage.of(SHOP) == QuotaAmounts(cpu=4000, instances=2)


async def test_a_hundred_at_once_on_two_servers_get_exactly_the_quota() -> None:
    async with servers(Recorded(), 2) as [one, two]:
        await limit(one, Quota(cpu=10_000))
        results = await asyncio.gather(
            *(create(control) for control in (one, two) for _ in range(50)), return_exceptions=True
        )
        assert sum(isinstance(result, Instance) for result in results) == 10
        assert sum(isinstance(result, errors.QuotaExceeded) for result in results) == 90
        for control in (one, two):
            await control.instance_table.sync()
            assert control.store.quotas.usage.of(SHOP) == QuotaAmounts(cpu=10_000, instances=10)


async def test_a_quota_counts_what_was_created_before_it_also_on_a_server_that_does_not_know_it_yet() -> None:
    async with servers(Recorded(), 2) as [one, two]:
        for _ in range(3):
            await create(two)
        await one.namespaces.change(SHOP, with_quota(Quota(instances=3)), actor="admin")
        with pytest.raises(errors.QuotaExceeded, match="3 of 3 instances in use; this needs 1: 1 too many"):
            await create(two)


async def test_snapshots_count_as_disk_unless_they_are_outside_the_cloud() -> None:
    async with servers(Recorded()) as [control]:
        await limit(control, Quota(disk=3))
        table = control.snapshots.snapshots

        async def write(name: str, before: Record[Snapshot] | None = None, **more: object) -> None:
            snapshot = Snapshot(name, name, "db", "v1", Gigabytes(2), 0.0, namespace=SHOP, **more)  # type: ignore[arg-type]
            key = key_of(snapshot)
            await table.commit([table.put(key, snapshot)], [table.expect(key, before)])

        await write("one")
        with pytest.raises(errors.QuotaExceeded, match="2 of 3 GB of disk in use; this needs 2: 1 too many"):
            await write("two")
        await write("outside", location=SnapshotLocation.S3)
        # It has been taken, and less was written than the volume may hold.
        await write("one", table.by_name("one", SHOP), status=SnapshotStatus.READY, data_bytes=1024**3 - 1)
        assert control.store.quotas.usage.of(SHOP) == QuotaAmounts(disk=1)
        await write("two")


async def test_what_has_no_quota_writes_nothing_more() -> None:
    store = Recorded()
    async with servers(store) as [control]:
        made = await create(control)
        ops, expect = store.commits[-1]
        assert [op.key.partition("/")[0] for op in ops] == ["instance", "event"]
        assert [each.key for each in expect] == [f"instance/{made.id}", "namespace/shop"]
        await control.join("n1")
        await control.bind(made.id, "n1")
        ops, expect = store.commits[-1]
        assert [op.key.partition("/")[0] for op in ops] == ["instance", "event"]
        assert [each.key for each in expect] == [f"instance/{made.id}"]


async def test_what_is_destroyed_or_has_ended_gives_its_quota_back_and_what_is_stopped_does_not() -> None:
    async with servers(Recorded()) as [control]:
        await control.join("n1")
        await limit(control, Quota(cpu=2000))
        first, second = await create(control), await create(control)
        for each in (first, second):
            await control.bind(each.id, "n1")
            await control.report(each.id, InstanceStatus.STARTING, InstanceStatus.RUNNING)
        await control.instances.stop(first.id, actor="me")
        with pytest.raises(errors.QuotaExceeded):
            await create(control)
        await control.instances.start(first.id, actor="me")
        await control.instances.destroy(first.id, actor="me")  # from now on, not when its node is done
        third = await create(control)
        await control.report(second.id, InstanceStatus.TERMINATED, exit_code=0)
        await create(control)
        with pytest.raises(errors.QuotaExceeded):
            await create(control)
        assert control.instances.get(third.id).desired is DesiredStatus.RUNNING


async def test_a_larger_spec_is_refused_and_a_smaller_one_is_not() -> None:
    async with servers(Recorded()) as [control]:
        await limit(control, Quota(cpu=1000, memory=64))
        made = await create(control, 800)
        with pytest.raises(errors.QuotaExceeded, match="800 of 1000 milli-cores in use; this needs 400"):
            await control.instances.change(
                made.id, actor="me", merge=lambda spec: replace(spec, resources=resources(1200))
            )
        await control.instances.change(
            made.id, actor="me", merge=lambda spec: replace(spec, resources=resources(900, 64))
        )
        assert control.store.quotas.usage.of(SHOP) == QuotaAmounts(cpu=900, memory=64, instances=1)


async def test_a_quota_below_what_is_used_stops_nothing_and_is_shown() -> None:
    async with servers(Recorded()) as [control]:
        made = [await create(control) for _ in range(3)]
        await limit(control, Quota(cpu=1500))
        state = await control.namespaces.read(SHOP)
        assert state.excess == {"cpu": 1500}
        assert {control.instances.get(each.id).desired for each in made} == {DesiredStatus.RUNNING}
        with pytest.raises(errors.QuotaExceeded, match="3000 of 1500 milli-cores in use; this needs 1"):
            await create(control, 1)
        await create(control, 0)  # what needs nothing of the limited resource is not refused
        await control.instances.change(
            made[0].id, actor="me", merge=lambda spec: replace(spec, resources=resources(400))
        )
        await limit(control, NO_QUOTA)
        await create(control)


async def test_an_instance_that_a_node_runs_already_is_counted_and_not_refused() -> None:
    async with servers(Recorded()) as [control]:
        await limit(control, Quota(instances=0))
        adopted = instance("adopted", InstanceStatus.RUNNING, node="n1", namespace=SHOP, is_adopted=True)
        writer = TransitionWriter(control.events, control.instance_table)
        await control.instance_table.commit(
            writer.ops(transitions.create(adopted, actor="node/n1")),
            [control.instance_table.expect(adopted.id, None)],
        )
        assert (await control.namespaces.read(SHOP)).excess == {"instances": 1}
        with pytest.raises(errors.QuotaExceeded):
            await create(control)
        # That it was there before the quota does not let it grow.
        await limit(control, Quota(cpu=1000))
        with pytest.raises(errors.QuotaExceeded, match="milli-cores"):
            await control.instances.change(
                adopted.id, actor="me", merge=lambda spec: replace(spec, resources=resources(64_000))
            )


async def test_a_volume_that_a_node_has_already_is_counted_and_not_refused() -> None:
    async with servers(Recorded()) as [control]:
        await limit(control, Quota(volumes=0))
        table = control.volumes.table
        new = Volume(VolumeId("v1"), "db", Gigabytes(1), 0.0, namespace=SHOP)
        with pytest.raises(errors.QuotaExceeded):
            await table.commit([table.put(key_of(new), new)], [table.expect(key_of(new), None)])
        recovered = replace(new, node=NodeId("n1"))
        await table.commit([table.put(key_of(new), recovered)], [table.expect(key_of(new), None)])
        assert (await control.namespaces.read(SHOP)).excess == {"volumes": 1}


async def test_a_transaction_of_two_namespaces_is_refused_whole() -> None:
    async with servers(Recorded()) as [control]:
        await limit(control, Quota(instances=1), SHOP)
        await limit(control, Quota(instances=0), LAB)
        table = control.instance_table
        both = [instance("one", namespace=SHOP), instance("two", namespace=LAB)]
        with pytest.raises(errors.QuotaExceeded, match="namespace lab has 0 of 0 instances"):
            await table.commit(
                [table.put(each.id, each) for each in both], [table.expect(each.id, None) for each in both]
            )
        assert len(table) == 0
        await create(control)


async def test_a_replacement_in_one_transaction_needs_no_room_for_both() -> None:
    async with servers(Recorded()) as [control]:
        await limit(control, Quota(instances=1))
        old = await create(control)
        table = control.instance_table
        record = table.get(old.id)
        gone, new = replace(old, desired=DesiredStatus.DESTROYED), instance("new", namespace=SHOP)
        await table.commit(
            [table.put(gone.id, gone), table.put(new.id, new)],
            [table.expect(gone.id, record), table.expect(new.id, None)],
        )
        assert control.store.quotas.usage.of(SHOP) == QuotaAmounts(cpu=100, instances=1)


async def test_a_conflict_of_the_caller_s_own_is_raised_as_it_is() -> None:
    async with servers(Recorded()) as [control]:
        await limit(control, Quota(instances=5))
        made = await create(control)
        table = control.instance_table
        with pytest.raises(errors.Conflict, match=made.id):
            await table.commit([table.put(made.id, made)], [table.expect(made.id, None)])
        with pytest.raises(errors.Conflict):
            await control.store.commit(
                [table.put(made.id, replace(made, restarts=1))], [Expect(f"instance/{made.id}", 1)]
            )


# Any interleaving


class Interleaved(MemoryStore):
    """A store in which every access takes some turns of the loop, and some transactions lose their answer."""

    def __init__(self, turns: Callable[[], int], fails: Callable[[], bool]) -> None:
        super().__init__(ManualClock())
        self._turns = turns
        self._fails = fails

    async def _wait(self) -> None:
        for _ in range(self._turns()):
            await asyncio.sleep(0)

    async def get(self, key: str) -> Entry | None:
        await self._wait()
        return await super().get(key)

    async def commit(self, ops, expect=()):  # type: ignore[no-untyped-def]
        await self._wait()
        revision = await super().commit(ops, expect)
        if any(op.key.startswith("instance/") for op in ops) and self._fails():
            raise errors.Unavailable("it may have happened")
        await self._wait()
        return revision


class Small:
    """As much of a server as writes instances: it can be killed, and started again."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = AdmissionStore(store)
        self.table = InstanceTable(self.store)
        self.store.count(self.table, instance_use)
        events = EventLog(store, ManualClock(), EventSettings())
        self.namespaces = NamespaceRegistry(events, ManualClock(), self.store.quotas, dict)
        self._loops = [
            asyncio.ensure_future(self.table.run()),
            asyncio.ensure_future(self.store.quotas.table.run()),
        ]

    async def ready(self) -> Small:
        await self.table.ready()
        await self.store.quotas.table.ready()
        return self

    async def kill(self) -> None:
        await tasks.cancel_and_wait(self._loops)

    async def create(self, id: str, cpu: int) -> None:
        one = _waiting(id, cpu)
        await self.table.commit([self.table.put(one.id, one)], [self.table.expect(one.id, None)])

    async def remove(self, id: str) -> None:
        record = await self.table.read(id)
        if record is not None:
            gone = replace(record.value, desired=DesiredStatus.DESTROYED)
            await self.table.commit([self.table.put(id, gone)], [self.table.expect(id, record)])


def _waiting(id: str, cpu: int) -> Instance:
    observed = ObservedState(InstanceStatus.SCHEDULING, 1.0)
    return Instance(InstanceId(id), spec(cpu=cpu), 1.0, observed, namespace=SHOP)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(1, 5)),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("quota"), st.integers(3, 12)),
        st.tuples(st.just("kill"), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.integers(0, 3)),
    ),
    min_size=4,
    max_size=30,
)


@given(_STEPS, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_what_is_admitted_never_exceeds_the_quota_whatever_the_order(
    steps: list[tuple[str, int]], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tables, "_PATIENCE_S", 0.001)  # a store in memory is at hand
        asyncio.run(_interleave(steps, random.Random(seed)))


async def _interleave(steps: list[tuple[str, int]], chance: random.Random) -> None:
    store = Interleaved(lambda: chance.randint(0, 3), lambda: chance.random() < 0.1)
    up = [await Small(store).ready(), await Small(store).ready()]
    await up[0].namespaces.change(SHOP, with_quota(Quota(cpu=6, instances=4)), actor="admin")
    begin = await store.revision()
    running: set[asyncio.Task[None]] = set()

    async def quietly(work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except (errors.QuotaExceeded, errors.Conflict, errors.Unavailable):
            pass

    for number, (kind, amount) in enumerate(steps):
        server = chance.choice(up)
        match kind:
            case "create":
                running.add(asyncio.ensure_future(quietly(partial(server.create, f"i{number}", amount))))
            case "remove":
                running.add(asyncio.ensure_future(quietly(partial(server.remove, f"i{amount}"))))
            case "quota":
                quota = Quota(cpu=amount)
                change = partial(server.namespaces.change, SHOP, with_quota(quota), actor="admin")
                running.add(asyncio.ensure_future(quietly(change)))
            case "kill":
                await tasks.cancel_and_wait(running)  # in the middle of what they do
                running.clear()
                await up[amount].kill()
                up[amount] = await Small(store).ready()
            case _:
                for _ in range(amount):
                    await asyncio.sleep(0)
    await asyncio.gather(*running)
    await _check_history(store, begin)
    fresh = await Small(store).ready()
    for server in (*up, fresh):
        await server.table.sync()
        assert server.store.quotas.usage.of(SHOP) == _recount(fresh)
        await server.kill()
    await store.close()


async def _check_history(store: MemoryStore, begin: int) -> None:
    """Replay every revision: one that adds to what is used leaves it within the quota of that moment."""
    end = await store.revision()
    if end == begin:
        return
    reader = Small(store)
    uses: dict[str, QuotaAmounts] = {}
    quota = Quota(cpu=6, instances=4)
    async with store.watch("", since=begin) as batches:
        async for batch in batches:
            before = sum(uses.values(), start=QuotaAmounts())
            for change in batch.changes:
                if change.entry is not None and change.key.startswith("instance/"):
                    value = reader.table.value_of(Put(change.key, change.entry.value))
                    uses[change.key] = instance_use(value)[1]
                elif change.entry is not None and change.key == "namespace/shop":
                    value = reader.store.quotas.table.value_of(Put(change.key, change.entry.value))
                    quota = value.quota
            after = sum(uses.values(), start=QuotaAmounts())
            if (after - before).grows:
                assert not quota.excess(before, after - before), (batch.revision, quota, before, after)
            if batch.revision >= end:
                break
    await reader.kill()


def _recount(server: Small) -> QuotaAmounts:
    usage = NamespaceUsage()
    count = usage.listener(instance_use)
    for id in server.table.ids():
        count(None, server.table.get(id))
    return usage.of(SHOP)
