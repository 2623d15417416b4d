"""The runner: whole walks over a real store, crossings, restarts, two servers on one store, rest."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skerry.control.instance_index import InstanceRecord
from skerry.control.instances.registry import InstanceFilter
from skerry.kit.clock import ManualClock, SystemClock
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.nodes import Liveness
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Put
from skerry.store.sqlite.store import SqliteStore
from tests.control.worlds import Server, Standings, alone, condition, spec
from tests.support.waiting import eventually


async def test_an_instance_goes_all_the_way_from_wish_to_running() -> None:
    async with alone(condition("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        placed = await server.becomes(one.id, InstanceStatus.SCHEDULED)
        assert placed is not None
        assert placed.node == "n"
        await server.obey("n")
        assert server.status(one.id) is InstanceStatus.RUNNING


async def test_who_waits_is_placed_when_a_node_comes_and_costs_nothing_until_then() -> None:
    async with alone() as (server, conditions):
        one, _ = await server.instances.create(spec(), actor="me")
        await eventually(lambda: server.instances.get(one.id).observed.reason == "there are no nodes")
        revision = await server.revision()
        for _ in range(100):
            await asyncio.sleep(0)
        assert await server.revision() == revision, "no hot loop"
        conditions.put(condition("n"))
        await server.becomes(one.id, InstanceStatus.SCHEDULED)


async def test_what_is_on_a_lost_node_is_placed_elsewhere_and_the_stale_copy_is_told_to_stop() -> None:
    async with alone(condition("old")) as (server, conditions):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.obey("old")
        conditions.put(condition("old", liveness=Liveness.LOST))
        conditions.put(condition("new"))
        moved = await server.becomes(one.id, InstanceStatus.SCHEDULED)
        assert moved is not None
        assert (moved.node, moved.generation) == ("new", 2)
        conditions.put(condition("old"))
        assert server.instances.orders(NodeId("old")) == []
        await server.obey("new")
        assert server.status(one.id) is InstanceStatus.RUNNING


async def test_a_drained_node_is_empty_in_the_end_and_nothing_ran_twice() -> None:
    async with alone(condition("old"), condition("new", unschedulable_reason="is cordoned")) as (
        server,
        conditions,
    ):
        ids = [(await server.instances.create(spec(), actor="me"))[0].id for _ in range(5)]
        for id in ids:
            await server.becomes(id, InstanceStatus.SCHEDULED)
        await server.obey("old")
        conditions.put(condition("new"))
        conditions.put(condition("old", drain_by=server.clock.now() + 60))
        await eventually(lambda: all(known.value.leaving for known in server.instance_table.index))
        assert not server.instances.orders(NodeId("new")), "it is placed anew when it is gone, and not before"
        await server.obey("old")
        for id in ids:
            await server.becomes(id, InstanceStatus.SCHEDULED)
        assert len(server.instances.orders(NodeId("new"))) == 5


async def test_a_wish_that_crosses_a_placement_wins() -> None:
    async with alone(condition("n", cpu=100_000)) as (server, _):

        async def create_and_destroy() -> None:
            one, _ = await server.instances.create(spec(), actor="me")
            await server.instances.destroy(one.id, actor="me")

        await asyncio.gather(*(create_and_destroy() for _ in range(50)))
        kept, _ = await server.instances.create(spec(cpu=100_000), actor="me")

        async def is_rid_of_them() -> bool:
            await server.obey("n")
            return server.instances.list().total == 1

        await eventually(is_rid_of_them)
        await eventually(lambda: server.status(kept.id) in (InstanceStatus.SCHEDULED, InstanceStatus.RUNNING))


async def test_a_full_node_takes_no_more_than_fits_however_many_come_at_once() -> None:
    async with alone(condition("n", cpu=1000)) as (server, _):
        await asyncio.gather(*(server.instances.create(spec(), actor="me") for _ in range(200)))
        waiting = InstanceFilter(states=frozenset({InstanceStatus.SCHEDULING}))
        await eventually(
            lambda: (
                len(server.instances.orders(NodeId("n"))) == 10
                and all("lacks" in one.observed.reason for one in server.instances.list(waiting).items)
            )
        )
        assert server.instances.list(waiting).total == 190


async def test_everything_is_taken_up_again_after_a_restart(tmp_path: Path) -> None:
    clock = SystemClock()
    store = await SqliteStore.open(tmp_path / "store.db", clock)
    async with Server(store, Standings(), clock).running() as server:
        waiting, _ = await server.instances.create(spec(), actor="me")
        going, _ = await server.workloads.create(spec("other"), actor="me")
        of_it, _ = await server.instances.create("other", actor="me")
    async with Server(store, Standings(), clock).running(leads=False) as server:
        await server.workloads.delete("other", actor="me")
    await store.close()
    store = await SqliteStore.open(tmp_path / "store.db", clock)
    async with Server(store, Standings([condition("n")]), clock).running() as server:
        await server.becomes(waiting.id, InstanceStatus.SCHEDULED)
        await eventually(lambda: not server.workloads.records())

        async def is_gone() -> bool:
            await server.obey("n")
            return server.status(of_it.id) is None

        await eventually(is_gone)
        assert going.id not in server.workloads.list().items
    await store.close()


async def test_of_two_servers_on_one_store_one_places_at_a_time_and_nothing_is_placed_twice() -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    conditions = Standings([condition(f"n{number}", cpu=1000) for number in range(20)])
    binds: dict[tuple[str, int], set[str]] = {}

    def note(before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        if after is not None and after.value.node is not None:
            binds.setdefault((after.value.id, after.value.generation), set()).add(after.value.node)

    one, two = Server(store, conditions, clock, "one"), Server(store, conditions, clock, "two")
    two.instance_table.listen(note)
    async with two.running():
        async with one.running():
            await eventually(lambda: one.leader.is_leading or two.leader.is_leading)
            made = await asyncio.gather(
                *(server.instances.create(spec(), actor="me") for server in (one, two) for _ in range(100))
            )
            if one.leader.is_leading:
                entry = await store.get("leader")
                assert entry is not None
                await store.revoke_lease(entry.lease)  # and it does not know
        await eventually(lambda: two.leader.is_leading)
        for instance, _ in made:
            await two.becomes(instance.id, InstanceStatus.SCHEDULED)
    assert len(binds) == 200
    assert all(len(nodes) == 1 for nodes in binds.values())
    await store.close()


async def test_a_leader_that_was_overtaken_writes_nothing_more() -> None:
    clock = ManualClock()  # leases do not end, and renewals are not due
    store = MemoryStore(clock)
    async with Server(store, Standings([condition("n")]), clock).running() as server:
        await eventually(lambda: server.leader.is_leading)
        entry = await store.get("leader")
        assert entry is not None
        other = await store.grant_lease(3600)
        await store.commit([Put("leader", b"other", other)])
        one, _ = await server.instances.create(spec(), actor="me")
        await eventually(lambda: not server.leader.is_leading)
        assert server.status(one.id) is InstanceStatus.SCHEDULING
    await store.close()


class LameStore(MemoryStore):
    """A store that is away for as many commits as it is told."""

    failures = 0

    async def commit(self, ops, expect=()):
        if self.failures and any(one.key == "leader" and one.revision for one in expect):
            self.failures -= 1
            raise errors.Unavailable("away")
        return await super().commit(ops, expect)


async def test_a_store_that_was_away_for_a_moment_is_tried_again() -> None:
    clock = ManualClock()
    store = LameStore(clock)
    store.failures = 2
    async with Server(store, Standings([condition("n")]), clock).running() as server:
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
    await store.close()


async def test_a_server_that_does_not_lead_explains_and_places_nothing() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    lease = await store.grant_lease(3600)
    await store.commit([Put("leader", b"other", lease)])
    async with Server(store, Standings([condition("n")]), clock).running() as server:
        one, _ = await server.instances.create(spec(), actor="me")
        await eventually(lambda: [verdict.node for verdict in server.instances.explain(one.id)] == ["n"])
        assert server.status(one.id) is InstanceStatus.SCHEDULING
    await store.close()


@pytest.mark.parametrize("desired", [DesiredStatus.STOPPED, DesiredStatus.DESTROYED])
async def test_what_is_wished_while_the_node_is_away_holds_when_it_is_lost(desired: DesiredStatus) -> None:
    async with alone(condition("n")) as (server, conditions):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.obey("n")
        conditions.put(condition("n", liveness=Liveness.SUSPECT))
        await server.instances.change(one.id, desired=desired, actor="me")
        conditions.put(condition("n", liveness=Liveness.LOST))
        await server.becomes(one.id, InstanceStatus.STOPPED if desired is DesiredStatus.STOPPED else None)
