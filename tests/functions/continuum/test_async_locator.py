"""Async calls are found at any member; code comes from whoever has it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum import async_locator
from skerry.functions.continuum.code_sources import CodeSources
from skerry.functions.continuum.member_api import ForwardedCall
from skerry.model import errors, ids
from skerry.model.calls import CallRequest, CallState
from skerry.model.ids import Digest, FunctionName, NodeId
from tests.functions.continuum.simulated_members import Resident, Town
from tests.support.simulated import passes
from tests.support.workers import CODE, function, in_simulated_time

ASK = CallRequest(FunctionName("f"))


@given(st.from_regex(r"[a-z0-9-]{1,40}[a-z0-9]", fullmatch=True), st.floats(0, 2**40))
def test_an_id_is_safe_in_a_path_and_ends_in_the_mark_of_its_origin(node: str, now: float) -> None:
    id = async_locator.id_maker(NodeId(node))(ASK, now)
    assert ids.check_id(id).startswith("f-")
    assert id.rpartition("-")[2] == async_locator.origin_suffix(NodeId(node))


def three(town: Town) -> list[Resident]:
    return [town.join("one"), town.join("two"), town.join("three", area="cloud")]


@in_simulated_time
async def test_a_call_that_was_accepted_anywhere_is_polled_anywhere() -> None:
    async with Town() as town:
        one, two, three_ = three(town)
        await town.meet()
        accepted = [await resident.polls.accept(ASK) for resident in (one, two, three_) for _ in range(2)]
        two.kept.calls[accepted[2]] = AsyncCallResult(CallState.RUNNING)
        await one.polls.poll(accepted[2])
        assert (one.kept.polled, two.kept.polled) == ([], accepted[2:3]), "it is looked for where it is"
        for resident in (one, two, three_):
            told = [await resident.polls.poll(id) for id in accepted]
            assert [polled.state for polled in told if polled] == [
                "queued",
                "queued",
                "running",
                *["queued"] * 3,
            ]
            assert await resident.polls.poll(accepted[0].replace("f-", "g-")) is None
            assert await resident.polls.poll("f-01m7gtfpsmxr1dcp2kdcyztdzr-aaaaaa") is None


@in_simulated_time
async def test_the_end_of_a_call_of_another_member_can_be_waited_for() -> None:
    async with Town() as town:
        one, two, _ = three(town)
        await town.meet()
        id = await two.polls.accept(ASK)
        began = asyncio.get_running_loop().time()
        assert await one.polls.poll(id, wait_s=3.0) == AsyncCallResult(CallState.QUEUED)
        assert asyncio.get_running_loop().time() - began == pytest.approx(3.0, abs=0.3)
        waiting = asyncio.create_task(one.polls.poll(id, wait_s=60.0))
        await passes(2.0)
        two.kept.calls[id] = AsyncCallResult(CallState.DONE)
        assert await waiting == AsyncCallResult(CallState.DONE)
        assert asyncio.get_running_loop().time() - began < 10.0


@in_simulated_time
async def test_ids_of_a_node_that_was_alone_are_still_known_there() -> None:
    async with Town() as town:
        one, *_ = three(town)
        old = "f-01m7gtfpsmxr1dcp2kdcyztdzr"
        one.kept.calls[old] = AsyncCallResult(CallState.DONE)
        assert await one.polls.poll(old) == AsyncCallResult(CallState.DONE)


@in_simulated_time
async def test_while_the_origin_is_away_that_is_said() -> None:
    async with Town() as town:
        one, two, _ = three(town)
        await town.meet()
        id = await two.polls.accept(ASK)
        town.cut(one, two)
        with pytest.raises(
            errors.Unavailable, match=r"cannot be reached \(two: two cannot be reached\); poll again"
        ):
            await one.polls.poll(id)
        town.cuts.clear()
        assert await one.polls.poll(id) == AsyncCallResult(CallState.QUEUED)


@in_simulated_time
async def test_of_two_origins_with_the_same_mark_the_right_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(async_locator, "origin_suffix", lambda node: "aaaaaa")
    async with Town() as town:
        residents = three(town)
        await town.meet()
        for resident in residents:
            resident.polls = async_locator.AsyncCallLocator(
                resident.kept, resident.links, resident.continuum.places
            )
        id = await residents[2].polls.accept(ASK)
        assert await residents[0].polls.poll(id) == AsyncCallResult(CallState.QUEUED)
        town.dead.add(residents[1].member.node)
        assert await residents[0].polls.poll(id) == AsyncCallResult(CallState.QUEUED)
        town.dead.add(residents[2].member.node)
        with pytest.raises(errors.Unavailable):
            await residents[0].polls.poll(id)


# Code


@in_simulated_time
async def test_code_comes_from_the_nearest_that_has_it_and_else_from_a_server() -> None:
    async with Town() as town:
        here = town.join("here", remote_area="cloud")
        near, far = town.join("near"), town.join("far", area="cloud")
        strange = town.join("strange", area="elsewhere")
        server = town.join("server", area="office", memory=0, cpus=0.0, is_server=True)
        await town.meet()
        asked: list[str] = []

        class Noting:
            async def fetch(self, member: object, digest: Digest) -> bytes:
                asked.append(member.name)  # type: ignore[attr-defined]
                return await here.links.fetch(member, digest)  # type: ignore[arg-type]

        here.continuum.places.peers[near.member.node].rtt_s = 0.0001

        async def at_server(address: str, digest: Digest) -> bytes:
            asked.append(address)
            raise errors.NotFound("not there")

        sources = CodeSources(
            Noting(),  # type: ignore[arg-type]  # only for its code
            here.continuum.places,
            lambda: ["192.0.2.1:50052"],
            at_server,
        )
        with pytest.raises(errors.NotFound, match="no member has the code"):
            await sources.fetch(CODE)
        assert asked == ["near", "far", "server", "strange", "192.0.2.1:50052"]
        for resident in (strange, server, far, near):
            resident.shelf.archives[CODE] = resident.member.name.encode()
            asked.clear()
            assert await sources.fetch(CODE) == resident.member.name.encode()
            assert asked[-1] == resident.member.name
        town.dead |= {near.member.node, far.member.node}
        assert await sources.fetch(CODE) == b"server"
        town.dead |= {server.member.node, strange.member.node}
        with pytest.raises(errors.Unavailable, match="server: server cannot be reached"):
            await sources.fetch(CODE)


# What a member does for others


@in_simulated_time
async def test_a_member_tells_how_it_is() -> None:
    f = function("f", memory=256, cpu=1000)
    async with Town(f) as town:
        one = town.join("one")
        await one.continuum.prewarm("f", 2)
        told = one.guests.load()
        assert (told.memory_free, told.cpus_free, told.waiting, told.warm) == (1024, 4.0, 0, {"f": 2})
        assert one.guests.has_warm(FunctionName("F"))
        assert not one.guests.has_warm(FunctionName("g"))
        one.host.run_s = 10.0
        calls = [one.begin("f") for _ in range(6)]
        await passes(1)
        told = one.guests.load()
        assert (told.memory_free, told.cpus_free, told.waiting, told.warm) == (0, 0.0, 2, {})
        assert not one.guests.has_warm(FunctionName("f"))
        await asyncio.gather(*calls)


@in_simulated_time
async def test_while_others_wait_nobody_is_sure_to_be_served_at_once() -> None:
    f, large = function("f", memory=16), function("large", memory=16, cpu=4000)
    async with Town(f, large) as town:
        one = town.join("one")
        await one.continuum.prewarm("f", 1)
        one.host.run_s = 5.0
        calls = [one.begin("large") for _ in range(2)]
        await passes(1)
        assert one.guests.load().waiting == 1
        assert not one.guests.has_warm(f.name)
        await asyncio.gather(*calls)
        assert one.guests.has_warm(f.name)


@in_simulated_time
async def test_a_worker_of_an_older_version_is_not_warm() -> None:
    async with Town(function("f")) as town:
        one = town.join("one")
        await one.continuum.prewarm("f", 1)
        one.shelf.add(function("f", version=2))
        assert not one.guests.has_warm(FunctionName("f"))


@in_simulated_time
async def test_a_member_without_workers_or_room_refuses_the_calls_of_others() -> None:
    async with Town(function("f", memory=512)) as town:
        server = town.join("server", memory=0, cpus=0.0)
        small = town.join("small", memory=256)

        async def begins() -> None:
            raise AssertionError("it has no worker")

        for resident, message in ((server, "this node runs no functions"), (small, "needs 512 MB")):
            with pytest.raises(errors.ResourcesExhausted, match=message):
                await resident.guests.invoke(ForwardedCall(ASK, 1), begins=begins)
            with pytest.raises(errors.ResourcesExhausted):
                await resident.guests.invoke(ForwardedCall(ASK, 1), begins=None)


@in_simulated_time
async def test_a_member_that_stops_while_a_call_waits_has_not_run_it() -> None:
    async with Town(function("f", memory=1024)) as town:
        one = town.join("one")
        one.host.run_s = 60.0
        first = one.begin("f")
        await passes(0.1)

        async def begins() -> None:
            raise AssertionError("it has no worker")

        waiting = asyncio.ensure_future(one.guests.invoke(ForwardedCall(ASK, 1), begins=begins))
        await passes(0.1)
        await one.invoker.close()
        with pytest.raises(errors.Unavailable, match="the node stopped while the call waited"):
            await waiting
        assert (await first).answer.failure == "Interrupted"
