"""Workloads: unique names, versions, and what deleting one means for its instances."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from skerry.control.placement import rollout
from skerry.model import errors
from skerry.model.ids import WorkloadId
from skerry.model.images import ImageAccess
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import InstanceSpec, RolloutStrategy, Workload
from tests.control.worlds import alone, condition, held, instance, spec
from tests.support.waiting import eventually


def louder(before: InstanceSpec) -> InstanceSpec:
    return replace(before, environment=(*before.environment, f"LEVEL{len(before.environment)}=1"))


async def test_a_workload_is_found_by_id_and_by_name() -> None:
    async with alone(leads=False) as (server, _):
        workload, is_new = await server.workloads.create(spec(), actor="me")
        assert is_new
        assert server.workloads.get(workload.id) == server.workloads.get("web") == workload
        with pytest.raises(errors.NotFound):
            server.workloads.get("other")


async def test_a_name_belongs_to_one_workload_however_many_want_it_at_once() -> None:
    async with alone(leads=False) as (server, _):
        made = await asyncio.gather(
            *(server.workloads.create(spec(cpu=number), actor="me") for number in range(5)),
            return_exceptions=True,
        )
        assert sum(isinstance(one, tuple) for one in made) == 1
        assert sum(isinstance(one, errors.AlreadyExists) for one in made) == 4
        assert server.workloads.list().total == 1


async def test_the_same_request_again_gives_the_same_workload() -> None:
    async with alone(leads=False) as (server, _):
        by_id, _ = await server.workloads.create(spec("a"), id="mine", actor="me")
        assert await server.workloads.create(spec("a"), id="mine", actor="me") == (by_id, False)
        with pytest.raises(errors.AlreadyExists):
            await server.workloads.create(spec("b"), id="mine", actor="me")
        by_key, _ = await server.workloads.create(spec("c"), idempotency_key="k", actor="me")
        assert await server.workloads.create(spec("c"), idempotency_key="k", actor="me") == (by_key, False)
        with pytest.raises(errors.AlreadyExists):
            await server.workloads.create(spec("d"), idempotency_key="k", actor="me")


async def test_a_change_is_a_new_version_and_leaves_the_instances_alone() -> None:
    async with alone(leads=False) as (server, _):
        workload, _ = await server.workloads.create(spec(), actor="me")
        old, _ = await server.instances.create("web", actor="me")
        changed = await server.workloads.change("web", louder, actor="me")
        assert (changed.version, changed.spec.environment) == (2, ("LEVEL0=1",))
        assert await server.workloads.change("web", lambda same: same, actor="me") == changed
        assert server.instances.get(old.id).version == 1
        new, _ = await server.instances.create("web", actor="me")
        assert (new.version, new.spec) == (2, changed.spec)
        with pytest.raises(errors.FailedPrecondition):
            await server.workloads.change("web", louder, if_match=1, actor="me")
        current = server.workloads.revision(workload.id)
        assert (await server.workloads.change("web", louder, if_match=current, actor="me")).version == 3


async def test_a_new_name_is_taken_and_the_old_one_given_up() -> None:
    async with alone(leads=False) as (server, _):
        await server.workloads.create(spec("taken"), actor="me")
        workload, _ = await server.workloads.create(spec("old"), actor="me")
        with pytest.raises(errors.AlreadyExists):
            await server.workloads.change("old", lambda one: replace(one, name="taken"), actor="me")
        await server.workloads.change("old", lambda one: replace(one, name="new"), actor="me")
        assert server.workloads.get("new").id == workload.id
        _, is_new = await server.workloads.create(spec("old"), actor="me")
        assert is_new


async def test_lists_of_workloads_come_in_pages() -> None:
    async with alone(leads=False) as (server, _):
        made = []
        for name in "cab":
            made.append((await server.workloads.create(spec(name), actor="me"))[0])
            server.clock.advance(1)
        page = server.workloads.list(limit=2)
        assert (page.total, list(page.items)) == (3, made[:2])
        assert list(server.workloads.list(cursor=page.cursor).items) == made[2:]
        assert list(server.workloads.list(offset=1).items) == made[1:]


async def test_deleting_a_workload_deletes_all_its_instances_and_frees_its_name_at_once() -> None:
    async with alone(condition("n")) as (server, _):
        await server.workloads.create(spec(), actor="me")
        ids = [(await server.instances.create("web", actor="me"))[0].id for _ in range(3)]
        for id in ids:
            await server.becomes(id, InstanceStatus.SCHEDULED)
        deleted = await server.workloads.delete("web", actor="me")
        with pytest.raises(errors.NotFound):
            server.workloads.get("web")
        with pytest.raises(errors.NotFound):
            await server.instances.create("web", actor="me")
        again, is_new = await server.workloads.create(spec(), actor="me")
        assert is_new
        for id in ids:
            await server.becomes(id, InstanceStatus.DESTROYING)
        await server.obey("n")
        assert server.instances.list().total == 0
        await eventually(lambda: [kept.value.id for kept in server.workloads.records()] == [again.id])
        assert deleted.id != again.id


async def test_without_cascade_a_workload_with_instances_is_kept() -> None:
    async with alone(leads=False) as (server, _):
        await server.workloads.create(spec(), actor="me")
        one, _ = await server.instances.create("web", actor="me")
        with pytest.raises(errors.Conflict, match="1 instances"):
            await server.workloads.delete("web", cascade=False, actor="me")
        await server.instances.destroy(one.id, actor="me")
        await server.workloads.delete("web", cascade=False, actor="me")
        assert server.workloads.list().total == 0


async def test_an_instance_made_while_its_workload_is_deleted_goes_with_it_or_is_refused() -> None:
    async with alone(condition("n")) as (server, _):
        await server.workloads.create(spec(), actor="me")
        made, _ = await asyncio.gather(
            asyncio.gather(
                *(server.instances.create("web", actor="me") for _ in range(10)), return_exceptions=True
            ),
            server.workloads.delete("web", actor="me"),
        )
        assert all(isinstance(one, tuple | errors.NotFound) for one in made)
        await eventually(lambda: not server.workloads.records())

        async def are_gone() -> bool:
            await server.obey("n")
            return server.instances.list().total == 0

        await eventually(are_gone)


def of_version(id: str, version: int, status: InstanceStatus = InstanceStatus.RUNNING, **more: object):
    return held(instance(id, status, node="n", version=version, **more))


TWO = Workload(WorkloadId("w"), spec(), 1.0, version=2, rollout=RolloutStrategy.ROLLING)


def turn(*instances: object) -> list[str]:
    return [known.value.id for known in rollout.next_rollout_targets(TWO, instances)]


def test_in_a_rollout_the_eldest_follows_when_all_new_ones_run() -> None:
    assert turn(of_version("b", 1), of_version("a", 1)) == ["a"]
    assert turn(of_version("a", 2), of_version("b", 1)) == ["b"]
    assert turn(of_version("a", 2), of_version("b", 2)) == []


@pytest.mark.parametrize(
    "status", sorted(set(InstanceStatus) - {InstanceStatus.RUNNING, InstanceStatus.TERMINATED})
)
def test_a_rollout_is_held_up_by_a_new_one_that_does_not_run(status: InstanceStatus) -> None:
    assert turn(of_version("a", 2, status), of_version("b", 1)) == []


def test_a_rollout_is_not_held_up_by_what_is_done_stopped_or_to_go() -> None:
    assert turn(of_version("a", 2, InstanceStatus.TERMINATED), of_version("b", 1)) == ["b"]
    assert turn(
        of_version("a", 2, InstanceStatus.STOPPED, desired=DesiredStatus.STOPPED), of_version("b", 1)
    ) == ["b"]
    assert turn(
        of_version("a", 2, InstanceStatus.FAILED, desired=DesiredStatus.DESTROYED), of_version("b", 1)
    ) == ["b"]


def test_what_is_stopped_follows_at_once_and_what_is_over_not_at_all() -> None:
    stopped = of_version("s", 1, InstanceStatus.STOPPED, desired=DesiredStatus.STOPPED)
    assert turn(
        of_version("a", 2, InstanceStatus.STARTING), stopped, of_version("f", 1, InstanceStatus.FAILED)
    ) == ["s"]


async def test_a_rolling_change_reaches_every_instance_one_after_the_other() -> None:
    async with alone(condition("n")) as (server, _):
        workload, _ = await server.workloads.create(spec(), actor="me")
        ids = [(await server.instances.create("web", actor="me"))[0].id for _ in range(3)]
        for id in ids:
            await server.becomes(id, InstanceStatus.SCHEDULED)
        await server.obey("n")
        await server.workloads.change("web", louder, rollout=RolloutStrategy.ROLLING, actor="me")
        least = 3

        async def has_rolled() -> bool:
            nonlocal least
            await server.obey("n")
            there = server.instance_table.index.of_workload(workload.id)
            whole = [one for one in there if one.value.observed.status is InstanceStatus.RUNNING]
            least = min(least, len(whole))
            return len(whole) == 3 and all(one.value.version == 2 for one in there)

        await eventually(has_rolled)
        assert least >= 2
        assert all(server.instances.get(id).spec.environment == ("LEVEL0=1",) for id in ids)


async def test_a_workload_that_is_going_may_be_deleted_again_by_its_id() -> None:
    async with alone(leads=False) as (server, _):
        made, _ = await server.workloads.create(spec(), actor="me")
        await server.workloads.delete("web", actor="me")
        assert (await server.workloads.delete(made.id, actor="me")).id == made.id
        with pytest.raises(errors.NotFound):
            await server.workloads.delete("web", actor="me")


async def test_a_path_for_which_nobody_answers_gets_into_no_record_whichever_way_it_comes() -> None:
    path, granted = replace(spec(), uri="rootfs:/srv"), replace(spec(), granted_access=ImageAccess.ALL)
    async with alone(leads=False) as (server, _):
        workload, _ = await server.workloads.create(granted, actor="me")
        one, _ = await server.instances.create(granted, actor="me")
        for refused in (
            server.workloads.create(path, actor="me"),
            server.workloads.change(workload.id, lambda before: path, actor="me"),
            server.instances.create(path, actor="me"),
            server.instances.change(one.id, merge=lambda before: path, actor="me"),
        ):
            with pytest.raises(errors.Forbidden, match="only an admin"):
                await refused
        own = replace(path, granted_access=ImageAccess.ALL)
        await server.workloads.change(workload.id, lambda before: own, actor="me")
        made, _ = await server.instances.create(workload.id, actor="you")
        assert made.spec.image_access is ImageAccess.ALL
