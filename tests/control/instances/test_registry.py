"""Instances as callers see them: wishes that are durable, requests that may be repeated, lists, watches."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from skerry.control.idempotency import PREFIX
from skerry.control.instances.registry import InstanceFilter
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.nodes import Liveness
from skerry.model.orders import InstanceOrder
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec
from tests.control.worlds import Server, Standings, alone, condition, spec
from tests.support.waiting import eventually


def bigger(before: InstanceSpec) -> InstanceSpec:
    return replace(before, environment=("A=1",))


async def test_a_wish_is_in_the_store_before_it_is_acknowledged() -> None:
    async with alone(leads=False) as (server, _):
        one, is_new = await server.instances.create(spec(), actor="me")
        assert is_new
        assert await server.store.get(f"instance/{one.id}") is not None
        assert server.instances.get(one.id) == one
        assert (one.observed.status, one.desired) == (InstanceStatus.SCHEDULING, DesiredStatus.RUNNING)


async def test_the_same_id_and_spec_is_the_same_instance_and_another_spec_is_refused() -> None:
    async with alone(leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), id="mine", actor="me")
        assert await server.instances.create(spec(), id="mine", actor="me") == (one, False)
        with pytest.raises(errors.AlreadyExists):
            await server.instances.create(spec(cpu=2), id="mine", actor="me")
        assert server.instances.list().total == 1


async def test_an_id_that_is_used_again_begins_above_every_generation_there_was() -> None:
    async with alone(leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), id="mine", actor="me")
        for cpu in range(5):
            one = await server.instances.change("mine", merge=lambda _, cpu=cpu: spec(cpu=cpu), actor="me")
        await server.instances.destroy("mine", actor="me")
        again, is_new = await server.instances.create(spec(), id="mine", actor="me")
        assert is_new
        assert again.generation > one.generation


async def test_many_who_create_the_same_at_once_create_it_once() -> None:
    async with alone(leads=False) as (server, _):
        made = await asyncio.gather(
            *(server.instances.create(spec(), id="mine", actor="me") for _ in range(10)),
            *(server.instances.create(spec("other"), idempotency_key="k", actor="me") for _ in range(10)),
        )
        assert sum(is_new for _, is_new in made) == 2
        assert len({one.id for one, _ in made}) == 2


async def test_a_key_repeats_its_own_request_and_no_other() -> None:
    async with alone(leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), idempotency_key="k", actor="me")
        assert await server.instances.create(spec(), idempotency_key="k", actor="me") == (one, False)
        with pytest.raises(errors.AlreadyExists, match="another request"):
            await server.instances.create(spec(cpu=2), idempotency_key="k", actor="me")
        _, is_new = await server.instances.create(spec(), idempotency_key="k", actor="somebody else")
        assert is_new
        await server.instances.destroy(one.id, actor="me")
        with pytest.raises(errors.Expired, match="which is gone"):
            await server.instances.create(spec(), idempotency_key="k", actor="me")
        with pytest.raises(errors.Invalid):
            await server.instances.create(spec(), idempotency_key="x" * 300, actor="me")


async def test_a_key_is_forgotten_after_a_day() -> None:
    async with alone(leads=False) as (server, _):
        await server.instances.create(spec(), idempotency_key="k", actor="me")
        await server.instances.create(spec(), idempotency_key="l", actor="me")
        server.clock.advance(23 * 3600)
        await server.store.expire()
        assert len((await server.store.range(PREFIX)).entries) == 2
        server.clock.advance(2 * 3600)
        await server.store.expire()
        assert not (await server.store.range(PREFIX)).entries


async def test_an_instance_of_a_workload_is_made_by_its_id_or_its_name() -> None:
    async with alone(leads=False) as (server, _):
        workload, _ = await server.workloads.create(spec(), actor="me")
        by_id, _ = await server.instances.create(workload.id, actor="me")
        by_name, _ = await server.instances.create("web", actor="me")
        assert by_id.spec == by_name.spec == workload.spec
        assert by_id.workload == by_name.workload == workload.id
        with pytest.raises(errors.NotFound, match="no workload 'nothing'"):
            await server.instances.create("nothing", actor="me")


async def test_nothing_of_what_is_too_large_is_stored() -> None:
    async with alone(leads=False) as (server, _):
        large = spec(environment=tuple(f"K{number}={'x' * 30_000}" for number in range(10)))
        with pytest.raises(errors.TooLarge):
            await server.instances.create(large, idempotency_key="k", actor="me")
        assert await server.revision() == 0


async def test_an_unknown_id_is_not_found_by_any_verb() -> None:
    async with alone(leads=False) as (server, _):
        instances = server.instances
        for verb in (instances.start, instances.stop, instances.destroy):
            with pytest.raises(errors.NotFound):
                await verb("nothing", actor="me")
        for look in (instances.get, instances.revision, instances.explain):
            with pytest.raises(errors.NotFound):
                look("nothing")
        with pytest.raises(errors.NotFound):
            await instances.events("nothing")
        with pytest.raises(errors.NotFound):
            await anext(instances.watch("nothing"))


async def test_starting_stopping_and_destroying_go_all_the_way() -> None:
    async with alone(condition("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.obey("n")
        assert server.status(one.id) is InstanceStatus.RUNNING
        await server.instances.stop(one.id, actor="me")
        await server.instances.stop(one.id, actor="me")
        await server.obey("n")
        assert server.status(one.id) is InstanceStatus.STOPPED
        await server.instances.start(one.id, actor="me")
        await server.obey("n")
        assert server.status(one.id) is InstanceStatus.RUNNING
        gone = await server.instances.destroy(one.id, actor="me")
        assert gone.observed.status is InstanceStatus.DESTROYING
        again = await server.instances.destroy(one.id, actor="me")
        assert again.observed.status is InstanceStatus.DESTROYING
        with pytest.raises(errors.FailedPrecondition, match="cannot be undone"):
            await server.instances.start(one.id, actor="me")
        await server.obey("n")
        with pytest.raises(errors.NotFound):
            server.instances.get(one.id)
        kinds = [told.event.kind.removeprefix("instance.") for told in await server.instances.events(one.id)]
        assert kinds == [
            *("scheduling", "scheduled", "starting", "running"),
            *("wished", "stopping", "stopped", "wished", "starting", "running"),
            *("wished", "destroying", "terminated"),
        ]


async def test_a_finished_job_is_not_run_again_and_cannot_be_started() -> None:
    async with alone(condition("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.say(one.id, InstanceStatus.STARTING, InstanceStatus.RUNNING)
        await server.say(one.id, InstanceStatus.TERMINATED, exit_code=0)
        (order,) = server.instances.orders(NodeId("n"))
        assert order.desired is DesiredStatus.STOPPED
        with pytest.raises(errors.FailedPrecondition, match="final"):
            await server.instances.start(one.id, actor="me")
        assert server.instances.get(one.id).observed.exit_code == 0


async def test_a_patch_of_the_spec_replaces_the_copy_and_one_of_the_wish_does_not() -> None:
    async with alone(condition("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.obey("n")
        await server.instances.change(one.id, merge=bigger, actor="me")
        (order,) = server.instances.orders(NodeId("n"))
        assert (order.desired, order.generation) == (DesiredStatus.DESTROYED, 2)
        await server.obey("n")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        (order,) = server.instances.orders(NodeId("n"))
        assert (order.desired, order.generation, order.spec.environment) == (
            DesiredStatus.RUNNING,
            3,
            ("A=1",),
        )
        changed = await server.instances.change(one.id, desired=DesiredStatus.STOPPED, actor="me")
        assert (changed.desired, changed.generation) == (DesiredStatus.STOPPED, 3)


async def test_a_patch_may_do_both_or_name_a_workload_and_is_refused_if_it_comes_too_late() -> None:
    async with alone(leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        workload, _ = await server.workloads.create(spec("other", cpu=7), actor="me")
        before = server.instances.revision(one.id)
        changed = await server.instances.change(
            one.id, workload="other", merge=bigger, desired=DesiredStatus.STOPPED, if_match=before, actor="me"
        )
        assert changed.spec == bigger(workload.spec)
        assert (changed.workload, changed.observed.status) == (workload.id, InstanceStatus.STOPPED)
        with pytest.raises(errors.FailedPrecondition, match="has changed since"):
            await server.instances.change(one.id, merge=bigger, if_match=before, actor="me")
        same = await server.instances.change(one.id, merge=bigger, actor="me")
        assert same == changed, "what changes nothing is no change"


async def test_a_list_is_by_age_in_pages_with_the_total() -> None:
    async with alone(leads=False) as (server, _):
        made: list[Instance] = []
        for number in range(5):
            made.append((await server.instances.create(spec(cpu=number), actor="me"))[0])
            server.clock.advance(1)
        page = server.instances.list(limit=2)
        assert (page.total, list(page.items)) == (5, made[:2])
        await server.instances.destroy(made[0].id, actor="me")
        page = server.instances.list(limit=2, cursor=page.cursor)
        assert list(page.items) == made[2:4], "a cursor skips nothing when others go"
        page = server.instances.list(limit=2, cursor=page.cursor)
        assert (list(page.items), page.cursor) == (made[4:], None)
        assert list(server.instances.list(limit=10, offset=2).items) == made[3:]
        assert server.instances.list(offset=100).items == ()
        for bad in ({"limit": 0}, {"offset": -1}, {"cursor": "%%%"}, {"cursor": "AAAA", "offset": 1}):
            with pytest.raises(errors.Invalid):
                server.instances.list(**bad)


async def test_a_list_shows_only_the_states_the_node_and_the_workload_that_are_asked_for() -> None:
    async with alone(leads=False) as (server, _):
        workload, _ = await server.workloads.create(spec(), actor="me")
        waiting, _ = await server.instances.create(workload.id, actor="me")
        placed, _ = await server.instances.create(spec(), actor="me")
        await server.place(placed.id, "n")

        def ids(**wanted: object) -> list[str]:
            page = server.instances.list(InstanceFilter(**wanted))
            assert page.total == len(page.items)
            return [one.id for one in page.items]

        assert ids(states=frozenset({InstanceStatus.SCHEDULING})) == [waiting.id]
        assert ids(node=NodeId("n")) == [placed.id]
        assert ids(workload=workload.id) == [waiting.id]
        assert ids(node=NodeId("m")) == []


async def test_what_is_on_a_silent_node_says_so_and_keeps_its_status() -> None:
    async with alone(condition("n")) as (server, conditions):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.obey("n")
        revision = await server.revision()
        conditions.put(condition("n", liveness=Liveness.SUSPECT))
        seen = server.instances.get(one.id).observed
        assert (seen.status, seen.reason) == (InstanceStatus.RUNNING, "node unreachable")
        assert server.instances.list().items[0].observed.reason == "node unreachable"
        conditions.put(condition("n"))
        assert server.instances.get(one.id).observed.reason != "node unreachable"
        assert await server.revision() == revision, "silence costs no writes"


async def test_who_waits_can_be_explained_node_by_node() -> None:
    async with alone(condition("small", cpu=1), condition("shut", unschedulable_reason="is cordoned")) as (
        server,
        _,
    ):
        one, _ = await server.instances.create(spec(), actor="me")
        await eventually(lambda: "is cordoned" in server.instances.get(one.id).observed.reason)
        verdicts = {verdict.node: verdict for verdict in server.instances.explain(one.id)}
        assert [refusal.lack.cpu for refusal in verdicts["small"].rejections] == [99]
        assert [refusal.why for refusal in verdicts["shut"].rejections] == ["is cordoned"]


async def watched(server: Server, id: str) -> list[InstanceStatus]:
    async with aclosing(server.instances.watch(id)) as seen:
        return [one.observed.status async for one in seen]


async def test_a_watch_begins_with_what_is_and_ends_when_it_is_over() -> None:
    async with alone(condition("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        watch = asyncio.ensure_future(watched(server, one.id))
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        for status in (
            InstanceStatus.STARTING,
            InstanceStatus.RUNNING,
            InstanceStatus.CRASHED,
            InstanceStatus.FAILED,
        ):
            await server.say(one.id, status)
            await asyncio.sleep(0)
        seen = await watch
        assert seen[0] in (InstanceStatus.SCHEDULING, InstanceStatus.SCHEDULED)
        assert seen[-2:] == [InstanceStatus.CRASHED, InstanceStatus.FAILED]
        assert await watched(server, one.id) == [InstanceStatus.FAILED]


async def test_a_watch_of_what_is_destroyed_ends_with_terminated() -> None:
    async with alone(leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        watch = asyncio.ensure_future(watched(server, one.id))
        await asyncio.sleep(0)
        await server.instances.destroy(one.id, actor="me")
        assert (await watch)[-1] is InstanceStatus.TERMINATED


async def test_who_hangs_up_a_watch_changes_nothing() -> None:
    async with alone(leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        async with aclosing(server.instances.watch(one.id)) as seen:
            await anext(seen)
        assert server.instances.get(one.id) == one


async def test_a_node_is_ordered_exactly_what_is_bound_to_it() -> None:
    async with alone(leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.instances.create(spec(), actor="me")
        await server.place(one.id, "n")
        await server.instances.sync()
        assert server.instances.orders(NodeId("n")) == [
            InstanceOrder(one.id, 1, one.spec, DesiredStatus.RUNNING)
        ]
        assert server.instances.orders(NodeId("m")) == []


async def test_a_change_that_crosses_another_is_made_on_what_is_there() -> None:
    async with alone(leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await asyncio.gather(
            *(
                server.instances.change(
                    one.id,
                    merge=lambda before, n=number: replace(
                        before, environment=(*before.environment, f"K{n}=1")
                    ),
                    actor="me",
                )
                for number in range(5)
            )
        )
        assert sorted(server.instances.get(one.id).spec.environment) == [f"K{n}=1" for n in range(5)]


async def test_who_waits_to_catch_up_sees_all_that_was_durable_before() -> None:
    async with alone(leads=False) as (server, _):
        other = Server(server.store, Standings(), server.clock, "b")
        async with other.running(leads=False):
            for _ in range(3):
                one, _ = await server.instances.create(spec(), actor="me")
                await asyncio.gather(*(other.instances.sync() for _ in range(20)))
                assert other.instances.get(one.id) == one
