"""Calls that the caller writes down before they run: the neighbour waits until that is done."""

from __future__ import annotations

import asyncio

import pytest

from skerry.functions.continuum.member_api import CallNotStarted, CallOutcomeUnknown
from skerry.transport.links.members.server_link import MemberLinkLimits
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.transport.links.members.conftest import LOAD, call
from tests.transport.links.members.test_link_pool import through


class Book:
    """Written into when a call begins; a test may hold or spoil that."""

    def __init__(self) -> None:
        self.began = 0
        self.is_written = asyncio.Event()
        self.fault: Exception | None = None

    async def begins(self) -> None:
        self.began += 1
        await self.is_written.wait()
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def book() -> Book:
    return Book()


async def test_a_call_runs_only_after_it_was_written_down(cloud, serves, book):
    links, there = cloud.links(), cloud.serve(serves).member()
    serves.has_room.clear()
    calling = asyncio.create_task(links.invoke(there, call(b"1"), at_once=False, begins=book.begins))
    await eventually(lambda: serves.asked)
    assert book.began == 0, "there is no worker for it yet"
    serves.has_room.set()
    await eventually(lambda: book.began)
    assert serves.begun == []
    book.is_written.set()
    assert (await calling).answer.result == b"1"
    assert book.began == 1


async def test_a_call_that_cannot_be_written_down_is_taken_back(cloud, serves, book):
    links, there = cloud.links(), cloud.serve(serves).member()
    book.fault = OSError("disk full")
    book.is_written.set()
    with pytest.raises(OSError, match="disk full"):
        await links.invoke(there, call(), at_once=False, begins=book.begins)
    await eventually(lambda: serves.cancelled)
    assert serves.begun == []


async def test_a_caller_that_leaves_while_it_writes_takes_the_call_back(cloud, serves, book):
    links, there = cloud.links(), cloud.serve(serves).member()
    calling = asyncio.create_task(links.invoke(there, call(), at_once=False, begins=book.begins))
    await eventually(lambda: book.began)
    calling.cancel()
    await asyncio.wait([calling])
    await eventually(lambda: serves.cancelled)
    assert serves.begun == []


@pytest.mark.parametrize(("is_written_first", "told"), [(False, CallNotStarted), (True, CallOutcomeUnknown)])
async def test_a_link_that_is_cut_tells_whether_the_call_may_have_run(
    cloud, serves, book, is_written_first, told
):
    served = cloud.serve(serves)
    serves.may_end.clear()
    async with Proxy(served.port) as proxy:
        links, there = cloud.links(), through(proxy)
        await links.ping(there, LOAD)
        calling = asyncio.create_task(links.invoke(there, call(), at_once=False, begins=book.begins))
        await eventually(lambda: book.began)
        if is_written_first:
            book.is_written.set()
            await eventually(lambda: serves.begun)
        await proxy.cut()
        await eventually(lambda: serves.cancelled)
        book.is_written.set()
        with pytest.raises(told, match="the link to there"):
            await calling
        assert len(serves.begun) == is_written_first


async def test_a_cut_link_and_a_book_that_cannot_be_written_are_told_as_the_latter(cloud, serves, book):
    served = cloud.serve(serves)
    async with Proxy(served.port) as proxy:
        links, there = cloud.links(), through(proxy)
        await links.ping(there, LOAD)
        calling = asyncio.create_task(links.invoke(there, call(), at_once=False, begins=book.begins))
        await eventually(lambda: book.began)
        await proxy.cut()
        await eventually(lambda: serves.cancelled)
        book.fault = OSError("disk full")
        book.is_written.set()
        with pytest.raises(OSError, match="disk full"):
            await calling


async def test_a_neighbour_does_not_wait_for_ever_until_it_is_written(cloud, serves, book):
    there = cloud.serve(serves, limits=MemberLinkLimits(start_timeout_s=0.05)).member()
    calling = asyncio.create_task(cloud.links().invoke(there, call(), at_once=False, begins=book.begins))
    await eventually(lambda: book.began)
    await eventually(lambda: serves.tasks[0].done())
    book.is_written.set()
    with pytest.raises(CallNotStarted, match="did not start the call in time"):
        await calling
    assert serves.begun == []
