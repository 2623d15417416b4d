"""Calls of the whole cloud: counters of members that come, go and restart add up to totals that only grow."""

from __future__ import annotations

import asyncio

import pytest

from skerry.functions.continuum import cloud_calls
from skerry.functions.continuum.cloud_calls import CloudCalls
from skerry.functions.continuum.member_api import FunctionCalls
from skerry.functions.continuum.member_table import MemberTable
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import FunctionName, NodeId
from skerry.model.members import ContinuumMember
from tests.functions.continuum.making import F

G = FunctionName("g")


def member(name: str, memory: int = 512) -> ContinuumMember:
    return ContinuumMember(NodeId(name), name, "edge", address=f"{name}:1", memory=memory)


class FakeMembers:
    """Members by name, with what each has counted; one without counters does not answer."""

    def __init__(self) -> None:
        self.counted: dict[str, tuple[FunctionCalls, ...]] = {}
        self.asked: list[str] = []

    async def read_calls(self, member: ContinuumMember) -> tuple[FunctionCalls, ...]:
        self.asked.append(member.name)
        await asyncio.sleep(0)
        if member.name not in self.counted:
            raise errors.Unavailable("it does not answer")
        return self.counted[member.name]


class Lab:
    """A server that runs no functions, and two members that do."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.links = FakeMembers()
        self.places = MemberTable(member("server", memory=0))
        self.places.follow([member("a"), member("b"), member("other-server", memory=0)])
        self.own: tuple[FunctionCalls, ...] = ()
        self.calls = CloudCalls(lambda: self.own, self.links, self.places, self.clock)

    async def read(self, **counted: int) -> dict[str, int]:
        """Totals of calls by function, when members have counted so many successful calls of F."""
        self.links.counted = {name: (FunctionCalls(F, ended),) for name, ended in counted.items()}
        self.clock.advance(1.0)
        return {one.function: one.ended for one in (await self.calls.read()).functions}


async def test_the_calls_of_all_members_add_up() -> None:
    lab = Lab()
    lab.own = (FunctionCalls(F, 1, 1, 1, 0.5), FunctionCalls(G, 9))
    lab.links.counted = {"a": (FunctionCalls(F, 10, 2, 3, 1.5),), "b": (FunctionCalls(F, 5),)}
    read = await lab.calls.read()
    assert read.functions == [FunctionCalls(F, 16, 3, 4, 2.0), FunctionCalls(G, 9)]
    assert (read.members, read.missing) == (3, [])
    assert sorted(lab.links.asked) == ["a", "b"], "another server runs nothing"


async def test_totals_grow_by_what_happened_whatever_members_do() -> None:
    lab = Lab()
    assert await lab.read(a=10, b=5) == {F: 15}
    assert await lab.read(a=12, b=5) == {F: 17}
    assert await lab.read(a=13) == {F: 18}, "one that does not answer takes nothing away"
    assert await lab.read(a=13, b=9) == {F: 22}, "and is counted when it is back"
    assert await lab.read(a=2, b=9) == {F: 24}, "one that restarted counts from zero"
    lab.places.follow([member("a"), member("c")])
    assert await lab.read(a=2, c=1000) == {F: 24}, "a new one counts from now on"
    assert await lab.read(a=2, c=1001) == {F: 25}


async def test_a_member_that_does_not_answer_is_named() -> None:
    lab = Lab()
    await lab.read(a=1)
    read = await lab.calls.read()
    assert (read.members, read.missing) == (2, ["b: it does not answer"])


async def test_a_function_that_all_have_forgotten_is_forgotten() -> None:
    lab = Lab()
    lab.own = (FunctionCalls(G, 3),)
    assert await lab.read(a=1, b=1) == {F: 2, G: 3}
    lab.own = ()
    assert await lab.read(a=1, b=1) == {F: 2}


async def test_readers_of_one_moment_share_a_round_of_requests() -> None:
    lab = Lab()
    await lab.read(a=1, b=1)
    lab.links.asked.clear()
    lab.clock.advance(1.0)
    await asyncio.gather(*(lab.calls.read() for _ in range(20)))
    assert sorted(lab.links.asked) == ["a", "b"]


async def test_what_a_member_reports_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_calls, "MAX_COUNTED", 2)
    lab = Lab()
    many = tuple(FunctionCalls(FunctionName(f"f{n}"), n) for n in range(5))
    lab.links.counted = {"a": many, "b": (FunctionCalls(G, 1, run_s=float("nan")),)}
    assert len((await lab.calls.read()).functions) == 2
