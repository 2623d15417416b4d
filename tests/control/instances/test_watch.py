"""What a reader of an instance misses while it is busy: nothing but repeats."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from skerry.model import errors
from skerry.model.statuses import InstanceStatus
from tests.control.worlds import Server, alone, resources, spec


async def on_a_node(server: Server) -> str:
    one, _ = await server.instances.create(spec(), actor="me")
    await server.place(one.id, "n")
    return one.id


async def test_every_status_comes_in_order_also_to_a_reader_that_was_busy() -> None:
    async with alone(leads=False) as (server, _):
        id = await on_a_node(server)
        async with aclosing(server.instances.watch(id)) as seen:
            assert (await anext(seen)).observed.status is InstanceStatus.SCHEDULED
            happened = [
                InstanceStatus.STARTING,
                InstanceStatus.RUNNING,
                InstanceStatus.CRASHED,
                InstanceStatus.STARTING,
                InstanceStatus.FAILED,
            ]
            for status in happened:
                await server.say(id, status)
            assert [one.observed.status async for one in seen] == happened


async def test_of_several_changes_within_one_status_the_latest_comes() -> None:
    async with alone(leads=False) as (server, _):
        id = await on_a_node(server)
        async with aclosing(server.instances.watch(id)) as seen:
            await anext(seen)
            for reason in ("pulls", "still pulls", "unpacks"):
                await server.say(id, InstanceStatus.STARTING, reason=reason)
            await server.say(id, InstanceStatus.RUNNING)
            told = [await anext(seen) for _ in range(2)]
            assert [one.observed.status for one in told] == [InstanceStatus.STARTING, InstanceStatus.RUNNING]
            assert told[0].observed.reason == "unpacks"


async def test_what_runs_comes_again_and_again_and_what_does_not_run_does_not() -> None:
    async with alone(leads=False) as (server, _):
        id = await on_a_node(server)
        await server.say(id, InstanceStatus.STARTING, InstanceStatus.RUNNING)
        async with aclosing(server.instances.watch(id, repeat_s=0.001)) as seen:
            for cpu in (1, 2, 3):
                await server.say(id, InstanceStatus.RUNNING, usage=resources(cpu=cpu))
                assert (await anext(seen)).observed.status is InstanceStatus.RUNNING
                assert server.instances.usage(id) == resources(cpu=cpu)
            await server.say(id, InstanceStatus.STOPPING)
            while (await anext(seen)).observed.status is InstanceStatus.RUNNING:
                pass
            waiting = asyncio.ensure_future(anext(seen))
            await server.say(id, InstanceStatus.STOPPED)
            assert (await waiting).observed.status is InstanceStatus.STOPPED


async def test_whoever_waits_for_the_removal_of_an_instance_is_told_of_it() -> None:
    async with alone(leads=False) as (server, _):
        id = await on_a_node(server)
        await server.say(id, InstanceStatus.STARTING, InstanceStatus.FAILED)
        waiting = asyncio.ensure_future(server.instances.removed(id))
        await server.instances.destroy(id, actor="me")
        assert not waiting.done()
        await server.say(id, InstanceStatus.TERMINATED)
        await waiting
        await server.instances.removed(id)  # nor is one waited for that is gone


async def test_a_reader_that_is_far_behind_is_told_so() -> None:
    async with alone(leads=False) as (server, _):
        id = await on_a_node(server)
        async with aclosing(server.instances.watch(id)) as seen:
            await anext(seen)
            for _ in range(150):
                for status in (InstanceStatus.STARTING, InstanceStatus.RUNNING):
                    await server.say(id, status)
            with pytest.raises(errors.Overloaded, match="read faster"):
                await anext(seen)
