"""What a reader of an instance misses while it is busy: nothing but repeats."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from skerry.model import errors
from skerry.model.statuses import Status
from tests.control.worlds import Server, alone, spec


async def on_a_node(server: Server) -> str:
    one, _ = await server.instances.create(spec(), actor="me")
    await server.place(one.id, "n")
    return one.id


async def test_every_status_comes_in_order_also_to_a_reader_that_was_busy() -> None:
    async with alone(leads=False) as (server, _):
        id = await on_a_node(server)
        async with aclosing(server.instances.watch(id)) as seen:
            assert (await anext(seen)).observed.status is Status.SCHEDULED
            happened = [Status.STARTING, Status.RUNNING, Status.CRASHED, Status.STARTING, Status.FAILED]
            for status in happened:
                await server.say(id, status)
            assert [one.observed.status async for one in seen] == happened


async def test_of_several_changes_within_one_status_the_latest_comes() -> None:
    async with alone(leads=False) as (server, _):
        id = await on_a_node(server)
        async with aclosing(server.instances.watch(id)) as seen:
            await anext(seen)
            for reason in ("pulls", "still pulls", "unpacks"):
                await server.say(id, Status.STARTING, reason=reason)
            await server.say(id, Status.RUNNING)
            told = [await anext(seen) for _ in range(2)]
            assert [one.observed.status for one in told] == [Status.STARTING, Status.RUNNING]
            assert told[0].observed.reason == "unpacks"


async def test_a_reader_that_is_far_behind_is_told_so() -> None:
    async with alone(leads=False) as (server, _):
        id = await on_a_node(server)
        async with aclosing(server.instances.watch(id)) as seen:
            await anext(seen)
            for _ in range(150):
                for status in (Status.STARTING, Status.RUNNING):
                    await server.say(id, status)
            with pytest.raises(errors.Overloaded, match="read faster"):
                await anext(seen)
