"""Calls, pings, code and results over real links, and links that come and go."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import AsyncExitStack

import pytest
import uvloop

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.member_api import CallNotStarted, CallOutcomeUnknown, StaleFunction
from skerry.kit.backoff import Backoff
from skerry.kit.clock import ManualClock, SystemClock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallResult, CallState
from skerry.model.members import ContinuumMember
from skerry.model.settings import FunctionSettings
from skerry.transport.links.members.link_pool import LinkPool
from skerry.transport.links.members.server_link import MemberLinkLimits
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.transport.links.members.conftest import HERE, LOAD, THERE, Cloud, FakeServes, call, member

SMALL = FunctionSettings(max_params_bytes=1024, max_result_bytes=1024, max_output_bytes=1024)


def through(proxy: Proxy) -> ContinuumMember:
    """The member, reached by way of `proxy`."""
    return member(int(proxy.address.rpartition(":")[2]))


async def linked(links: LinkPool, there: ContinuumMember) -> None:
    """Have a link, though its time is short and this machine may be busy."""

    async def is_linked() -> bool:
        try:
            return bool(await links.ping(there, LOAD))
        except errors.Unavailable:
            return False

    await eventually(is_linked)


async def test_a_call_goes_there_and_its_report_comes_back(cloud, serves):
    links, there = cloud.links(), cloud.serve(serves).member()
    asked = call(b'{"a": 1}', hops_left=2, deadline_s=30.0)
    report = await links.invoke(there, asked, at_once=True)
    assert report == CallReport(CallResult(0.25, b'{"a": 1}'), 0.5, is_warm=True, node=THERE)
    assert serves.asked == [asked]


@pytest.mark.parametrize(("at_once", "is_warm"), [(True, True), (True, False), (False, True)])
async def test_a_worker_is_asked_for_only_where_the_call_may_not_start_at_once(
    cloud, serves, at_once, is_warm
):
    serves.is_warm = is_warm
    report = await cloud.links().invoke(cloud.serve(serves).member(), call(), at_once=at_once)
    assert report.is_warm == (at_once and is_warm)  # the fake's way to tell that nobody had to say go
    assert len(serves.begun) == 1


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_refusal_says_why_and_that_nothing_was_started(cloud, serves, at_once):
    serves.error = StaleFunction("version 3 of f is not here yet")
    with pytest.raises(CallNotStarted) as refused:
        await cloud.links().invoke(cloud.serve(serves).member(), call(), at_once=at_once)
    assert (refused.value.kind, refused.value.reason) == ("stale", "version 3 of f is not here yet")


async def test_a_fault_of_the_neighbour_says_nothing_of_it_and_that_the_call_may_have_run(
    cloud, serves, logged
):
    serves.fault = RuntimeError("secret")
    with pytest.raises(CallOutcomeUnknown, match="its log has the reason") as told:
        await cloud.links().invoke(cloud.serve(serves).member(), call(), at_once=True)
    assert "secret" not in told.value.reason
    assert [line["error"] for line in logged if line["event"] == "neighbour.call_broke"] == [
        "RuntimeError('secret')"
    ]


@pytest.mark.parametrize(("at_once", "told"), [(False, CallNotStarted), (True, CallOutcomeUnknown)])
async def test_a_call_that_is_ended_there_by_somebody_else_is_told(cloud, serves, at_once, told):
    serves.has_room.clear()
    links, there = cloud.links(), cloud.serve(serves).member()
    calling = asyncio.create_task(links.invoke(there, call(), at_once=at_once))
    await eventually(lambda: serves.tasks)
    serves.tasks[0].cancel()
    with pytest.raises(told, match="ended there before it was done"):
        await calling


async def test_two_hundred_calls_at_once_share_one_link_and_each_gets_its_own_answer(cloud, serves):
    serves.may_end.clear()
    served = cloud.serve(serves)
    async with Proxy(served.port) as proxy:
        links, there = cloud.links(), through(proxy)
        calls = [
            asyncio.create_task(links.invoke(there, call(b"%d" % turn), at_once=turn % 2 == 0))
            for turn in range(200)
        ]
        await eventually(lambda: len(serves.begun) == 200)
        serves.may_end.set()
        reports = await asyncio.gather(*calls)
        assert [report.answer.result for report in reports] == [b"%d" % turn for turn in range(200)]
        assert proxy.connections == 1


# Where the call is when the link is cut; what the caller is told, and whether the call was run.
CUTS = [
    ("queued", False, True, CallNotStarted, False),
    ("ready", False, True, CallNotStarted, False),
    ("going", False, True, CallOutcomeUnknown, False),
    ("running", False, True, CallOutcomeUnknown, True),
    ("queued", True, False, CallOutcomeUnknown, False),
    ("ready", True, False, CallOutcomeUnknown, False),
    ("running", True, False, CallOutcomeUnknown, True),
    ("running", True, True, CallOutcomeUnknown, True),
]


@pytest.mark.parametrize(("where", "at_once", "is_warm", "told", "has_run"), CUTS)
async def test_a_cut_link_tells_whether_the_call_may_have_run(
    cloud, serves, where, at_once, is_warm, told, has_run
):
    serves.is_warm = is_warm
    serves.may_end.clear()
    served = cloud.serve(serves)
    async with Proxy(served.port) as proxy:
        links, there = cloud.links(), through(proxy)
        await links.ping(there, LOAD)
        serves.has_room.clear()
        calling = asyncio.create_task(links.invoke(there, call(), at_once=at_once))
        await eventually(lambda: serves.asked)
        proxy.loses_answers, proxy.loses_requests = where == "ready", where == "going"
        if where != "queued":
            serves.has_room.set()
            await eventually(lambda: serves.begun if where == "running" else proxy.lost)
        await proxy.cut()
        with pytest.raises(told, match="the link to there"):
            await calling
        await eventually(lambda: serves.cancelled)
        assert bool(serves.begun) == has_run


@pytest.mark.parametrize(("at_once", "told"), [(False, CallNotStarted), (True, CallOutcomeUnknown)])
async def test_a_neighbour_that_falls_silent_costs_one_timeout(cloud, serves, at_once, told):
    serves.has_room.clear()
    served = cloud.serve(serves)
    async with Proxy(served.port) as proxy:
        links, there = cloud.links(timeout_s=0.6), through(proxy)
        await linked(links, there)
        calling = asyncio.create_task(links.invoke(there, call(), at_once=at_once))
        await eventually(lambda: serves.asked)
        proxy.loses_answers = proxy.loses_requests = True
        with pytest.raises(told, match=r"nothing came for 0\.6 s"):
            await calling


async def test_a_call_may_take_longer_than_a_neighbour_may_be_silent(cloud, serves):
    serves.may_end.clear()
    links, there = cloud.links(timeout_s=0.5), cloud.serve(serves).member()
    await linked(links, there)
    calling = asyncio.create_task(links.invoke(there, call(), at_once=True))
    began = asyncio.get_running_loop().time()
    await eventually(lambda: asyncio.get_running_loop().time() > began + 1.5)
    serves.may_end.set()
    assert (await calling).answer.failure is None


async def test_a_cancelled_call_is_cancelled_there(cloud, serves):
    serves.may_end.clear()
    links, there = cloud.links(), cloud.serve(serves).member()
    calling = asyncio.create_task(links.invoke(there, call(), at_once=True))
    await eventually(lambda: serves.begun)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await eventually(lambda: serves.cancelled)
    serves.may_end.set()
    assert (await links.invoke(there, call(), at_once=True)).node == THERE  # the link goes on


async def test_a_call_that_is_cancelled_as_soon_as_it_is_sent_does_no_harm(cloud, serves):
    links, there = cloud.links(), cloud.serve(serves).member()
    await links.ping(there, LOAD)
    for _ in range(3):
        calling = asyncio.create_task(links.invoke(there, call(), at_once=False))
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    await links.invoke(there, call(), at_once=True)
    assert len(serves.begun) == 1


async def test_a_call_past_its_deadline_is_given_up_and_cancelled_there(cloud, serves):
    serves.has_room.clear()
    links, there = cloud.links(timeout_s=0.6), cloud.serve(serves).member()
    await linked(links, there)
    with pytest.raises(CallNotStarted, match="did not answer within"):
        await links.invoke(there, call(deadline_s=0.01), at_once=False)
    await eventually(lambda: serves.cancelled)
    assert serves.begun == []


async def test_a_worker_does_not_wait_for_long_for_the_word_to_go(cloud, serves):
    served = cloud.serve(serves, limits=MemberLinkLimits(start_timeout_s=0.05))
    async with Proxy(served.port) as proxy:
        links, there = cloud.links(), through(proxy)
        await links.ping(there, LOAD)
        serves.has_room.clear()
        calling = asyncio.create_task(links.invoke(there, call(), at_once=False))
        await eventually(lambda: serves.asked)
        proxy.loses_requests = True
        serves.has_room.set()
        with pytest.raises(CallNotStarted) as told:
            await calling
        assert told.value.kind == "timed-out"
        assert serves.begun == []


async def test_pings_tell_both_sides_how_the_other_is_also_while_calls_are_under_way(cloud, serves):
    serves.may_end.clear()
    links, there = cloud.links(), cloud.serve(serves).member()
    calling = asyncio.create_task(links.invoke(there, call(), at_once=True))
    await eventually(lambda: serves.begun)
    began = SystemClock().monotonic()
    load, took_s = await links.ping(there, LOAD)
    assert load == LOAD
    assert 0 < took_s <= SystemClock().monotonic() - began
    assert serves.loads == [(HERE, LOAD)]
    serves.may_end.set()
    await calling


async def test_of_the_last_round_trips_the_shortest_counts(cloud, serves, clock: ManualClock):
    takes = iter([0.05, 0.02, 0.07, 0.07, 0.07, 0.07])
    serves.on_load = lambda: clock.advance(next(takes))
    links, there = cloud.links(clock=clock), cloud.serve(serves).member()
    measured = [round((await links.ping(there, LOAD))[1], 3) for _ in range(6)]
    assert measured == [0.05, 0.02, 0.02, 0.02, 0.02, 0.07]


async def test_code_is_fetched_by_its_digest_while_others_call(cloud, serves):
    code = os.urandom(20 * 1000 * 1000)
    digest = "sha256:" + hashlib.sha256(code).hexdigest()
    serves.codes[digest] = code
    links, there = cloud.links(), cloud.serve(serves).member()
    fetching = asyncio.create_task(links.fetch(there, digest))
    while not fetching.done():
        await links.invoke(there, call(), at_once=True)
    assert fetching.result() == code
    assert len(serves.begun) > 1


async def test_code_may_be_empty_or_not_there_and_is_never_something_else(cloud, serves):
    empty, other = (f"sha256:{hashlib.sha256(text).hexdigest()}" for text in (b"", b"other"))
    serves.codes = {empty: b"", other: b"forged"}
    links, there = cloud.links(), cloud.serve(serves).member()
    assert await links.fetch(there, empty) == b""
    with pytest.raises(errors.Unavailable, match="something else"):
        await links.fetch(there, other)
    with pytest.raises(errors.NotFound):
        await links.fetch(there, "sha256:" + "0" * 64)


async def test_results_of_async_calls_are_polled(cloud, serves):
    done = AsyncCallResult(CallState.DONE, CallReport(CallResult(0.1, b"7"), 0.2))
    serves.results["f-1"] = done
    links, there = cloud.links(), cloud.serve(serves).member()
    assert await links.poll(there, "f-1") == done
    assert await links.poll(there, "f-2") is None


async def test_what_is_too_long_for_the_other_side_is_told_and_the_link_goes_on(cloud, serves):
    there = cloud.serve(serves, settings=SMALL).member()
    links = cloud.links()
    with pytest.raises(CallNotStarted) as refused:
        await links.invoke(there, call(b"x" * 600_000), at_once=True)
    assert refused.value.kind == "too-large"
    little = cloud.links(settings=SMALL)
    serves.answers = lambda _: b"x" * 600_000
    serves.results["f-1"] = AsyncCallResult(CallState.DONE, CallReport(CallResult(0.1, b"x" * 600_000), 0.2))
    report = await little.invoke(there, call(), at_once=True)
    assert (report.answer.failure, report.answer.duration_s) == (CallFailure.RESULT, 0.25)
    with pytest.raises(errors.Unavailable, match="600"):
        await little.poll(there, "f-1")
    assert (await little.ping(there, LOAD))[0] == LOAD


async def test_a_link_that_was_cut_is_dialled_again_when_it_is_needed(cloud, serves):
    served = cloud.serve(serves)
    async with Proxy(served.port) as proxy:
        links, there = cloud.links(), through(proxy)
        await links.invoke(there, call(), at_once=True)
        await proxy.cut()

        async def is_back() -> bool:
            try:
                return bool(await links.invoke(there, call(), at_once=True))
            except (CallNotStarted, CallOutcomeUnknown):
                return False  # our end has not heard of it yet

        await eventually(is_back)
        assert proxy.connections == 2


async def test_calls_to_a_neighbour_that_is_away_fail_at_once_until_a_ping_finds_it(
    cloud, serves, clock: ManualClock
):
    served = cloud.serve(serves)
    async with Proxy(served.port) as proxy:
        links = cloud.links(clock=clock, backoff=Backoff(first_s=60.0, jitter=0.0))
        there = through(proxy)
        await proxy.refuse()
        with pytest.raises(CallNotStarted, match="cannot be reached"):
            await links.invoke(there, call(), at_once=True)
        await proxy.listen()
        with pytest.raises(CallNotStarted, match="cannot be reached"):
            await links.invoke(there, call(), at_once=True)
        assert proxy.connections == 0
        assert list(links.unreachable()) == [there.node]
        assert links.unreachable()[there.node].startswith(f"{there.name} ({there.address}) cannot be reached")
        await links.ping(there, LOAD)
        assert links.unreachable() == {}
        await links.invoke(there, call(), at_once=True)
        await proxy.refuse()
        with pytest.raises(errors.Unavailable):
            await links.ping(there, LOAD)
        await proxy.listen()
        clock.advance(61.0)
        await links.invoke(there, call(), at_once=True)


async def test_those_who_need_a_link_at_the_same_time_share_one_dial(cloud, serves):
    served = cloud.serve(serves)
    async with Proxy(served.port) as proxy:
        links, there = cloud.links(), through(proxy)
        first = asyncio.create_task(links.invoke(there, call(), at_once=True))
        others = [asyncio.create_task(links.invoke(there, call(), at_once=True)) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()  # who gives up ends it for nobody else
        await asyncio.gather(*others)
        assert proxy.connections == 1


async def test_a_member_that_leaves_is_let_go_when_what_it_was_asked_is_answered(cloud, serves, logged):
    served = cloud.serve(serves)
    links, there = cloud.links(), served.member()
    serves.may_end.clear()
    calling = asyncio.create_task(links.invoke(there, call(), at_once=True))
    await eventually(lambda: serves.begun)
    links.keep([there])
    links.keep([])
    serves.may_end.set()
    assert (await calling).node == THERE
    await eventually(lambda: [line for line in logged if line["event"] == "neighbour.left"])


async def test_a_member_with_a_new_address_is_dialled_there(cloud, serves):
    links = cloud.links()
    await links.invoke(cloud.serve(serves).member(), call(), at_once=True)
    moved = FakeServes()
    await links.invoke(cloud.serve(moved).member(), call(), at_once=True)
    assert (len(serves.begun), len(moved.begun)) == (1, 1)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:x", ":1", "127.0.0.1:0", "127.0.0.1:70000"])
async def test_an_address_that_cannot_be_dialled_is_told(cloud, serves, address):
    there = cloud.serve(serves).member()
    with pytest.raises(CallNotStarted, match="no HOST:PORT"):
        await cloud.links().invoke(
            type(there)(there.node, there.name, there.area, address=address), call(), at_once=True
        )


async def test_closing_ends_what_is_under_way_and_takes_nothing_more(cloud, serves):
    serves.may_end.clear()
    links, there = cloud.links(), cloud.serve(serves).member()
    calling = asyncio.create_task(links.invoke(there, call(), at_once=True))
    await eventually(lambda: serves.begun)
    await links.close()
    with pytest.raises(CallOutcomeUnknown):
        await calling
    with pytest.raises(CallNotStarted, match="stopping"):
        await links.invoke(there, call(), at_once=True)


async def test_a_listener_that_stops_answers_what_ends_in_time_and_refuses_what_is_new(cloud, serves):
    served = cloud.serve(serves)
    links, there = cloud.links(), served.member()
    serves.may_end.clear()
    calling = asyncio.create_task(links.invoke(there, call(), at_once=True))
    await eventually(lambda: serves.begun)
    stopping = asyncio.create_task(served.server.stop(10.0))
    await asyncio.sleep(0)
    with pytest.raises(CallNotStarted, match="stopping"):
        await links.invoke(there, call(), at_once=True)
    serves.may_end.set()
    assert (await calling).answer.failure is None
    await stopping
    with pytest.raises(CallNotStarted):
        await links.invoke(there, call(), at_once=True)


def test_all_of_it_works_on_uvloop(authority):
    async def main() -> None:
        code = os.urandom(3_000_000)
        digest = "sha256:" + hashlib.sha256(code).hexdigest()
        async with AsyncExitStack() as stack:
            cloud, serves = Cloud(authority, stack), FakeServes()
            served = cloud.serve(serves)
            links, there = cloud.links(), served.member()
            serves.codes[digest] = code
            assert (await links.invoke(there, call(b"1"), at_once=True)).answer.result == b"1"
            assert (await links.invoke(there, call(b"x" * 2_000_000), at_once=False)).node == THERE
            assert (await links.ping(there, LOAD))[0] == LOAD
            assert await links.fetch(there, digest) == code
            serves.may_end.clear()
            calling = asyncio.create_task(links.invoke(there, call(), at_once=True))
            await eventually(lambda: len(serves.begun) == 3)
            await served.server.stop(0.0)
            try:
                await calling
            except CallOutcomeUnknown:
                return
            raise AssertionError("its link ended")

    uvloop.run(main())
