"""Neighbours are asked often enough to be known, and no more often than that costs."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from skerry.functions.continuum.member_api import MemberLoad
from skerry.functions.continuum.member_table import MemberTable
from skerry.functions.continuum.prober import MemberProber
from skerry.functions.coordinates import START, Coordinate, Vivaldi, distance_s
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.members import ContinuumMember
from skerry.model.settings import FunctionSettings
from skerry.sim.simulated_time import LoopClock
from tests.functions.continuum.test_member_table import load, member, peer
from tests.support.simulated import passes
from tests.support.workers import in_simulated_time


class Pings:
    """Links that only answer pings: after `ways[node]`, or not at all."""

    def __init__(self) -> None:
        self.asked: Counter[NodeId] = Counter()
        self.told: list[MemberLoad] = []
        self.ways: dict[NodeId, float] = {}
        self.away: set[NodeId] = set()
        self.coordinates: dict[NodeId, Coordinate] = {}
        self.under_way = 0
        self.most_under_way = 0

    async def ping(self, member: ContinuumMember, mine: MemberLoad) -> tuple[MemberLoad, float]:
        node = member.node
        self.asked[node] += 1
        self.told.append(mine)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if node in self.away:
                await passes(2.0)
                raise errors.Unavailable("it does not answer")
            way_s = self.ways.get(node, 0.01)
            await passes(way_s)
        finally:
            self.under_way -= 1
        return load(coordinate=self.coordinates.get(node, START)), way_s


class Watch:
    """A member that does nothing but measure."""

    def __init__(self, *members: ContinuumMember, ping_s: float = 5.0) -> None:
        self.links = Pings()
        self.places = MemberTable(member("here", remote_area="cloud"))
        self.vivaldi = Vivaldi(random.Random(1))
        self.measuring = MemberProber(
            self.links,  # type: ignore[arg-type]  # it sends nothing but pings
            self.places,
            self.vivaldi,
            lambda: load(memory_free=77),
            FunctionSettings(ping_s=ping_s),
            LoopClock(asyncio.get_running_loop()),
            random.Random(2),
        )
        self.places.follow(members)

    async def __aenter__(self) -> Watch:
        self._running = asyncio.ensure_future(self.measuring.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait([self._running])
        assert self.links.under_way == 0


@in_simulated_time
async def test_all_of_a_small_area_and_of_the_remote_one_are_asked_in_turn() -> None:
    members = [
        member("a"),
        member("b"),
        member("x", "cloud"),
        member("z", "elsewhere"),
        member("s", memory=0),
    ]
    async with Watch(*members) as watch:
        await passes(0.1)
        assert watch.links.asked == {"a": 1, "b": 1, "x": 1}
        await passes(100)
        assert watch.links.asked.keys() == {"a", "b", "x"}
        assert all(18 <= times <= 24 for times in watch.links.asked.values())
        assert watch.links.told[0].memory_free == 77


@in_simulated_time
async def test_of_a_large_area_the_nearest_are_asked_often_and_the_others_by_turns() -> None:
    members = [member(f"n{number}", "edge" if number % 2 else "cloud") for number in range(160)]
    async with Watch(*members) as watch:
        watch.links.ways = {one.node: 0.001 * (number + 1) for number, one in enumerate(members)}
        await passes(0.4)
        assert 64 <= sum(watch.links.asked.values()) <= 70, "but not at once"
        await passes(120)
        asked = watch.links.asked
        assert len(asked) == 160, "all are known in the end"
        before = dict(asked)
        await passes(200)
        often = [node for node in asked if asked[node] - before[node] > 30]
        assert set(often) == {one.node for one in members[:64]}
        assert sum(asked.values()) - sum(before.values()) <= 200 / 5 * 2 * (32 + 8) * 1.15
        assert watch.links.most_under_way == 32


@in_simulated_time
async def test_who_does_not_answer_is_down_until_it_does() -> None:
    async with Watch(member("a"), member("b")) as watch:
        await passes(1)
        assert peer(watch.places, "a").is_up
        watch.links.away.add(NodeId("a"))
        await passes(10)
        assert not peer(watch.places, "a").is_up
        assert peer(watch.places, "b").is_up
        watch.links.away.clear()
        await passes(10)
        assert peer(watch.places, "a").is_up


@in_simulated_time
async def test_who_lost_a_call_is_down_at_once_and_asked_at_once() -> None:
    async with Watch(member("a"), ping_s=60.0) as watch:
        await passes(1)
        watch.measuring.lost(peer(watch.places, "a"), "it ended")
        assert not peer(watch.places, "a").is_up
        await passes(0.1)
        assert peer(watch.places, "a").is_up, "it was only the link"
        assert watch.links.asked == {"a": 2}


@in_simulated_time
async def test_who_is_down_and_speaks_up_is_asked_at_once() -> None:
    async with Watch(member("a"), ping_s=60.0) as watch:
        watch.links.away.add(NodeId("a"))
        await passes(4.5)  # between the second time that it was asked and the third
        watch.links.away.clear()
        watch.measuring.load_reported(NodeId("a"), load(memory_free=5))
        watch.measuring.load_reported(NodeId("a"), load(memory_free=6))
        watch.measuring.load_reported(NodeId("stranger"), load())
        assert peer(watch.places, "a").memory_free == 6
        assert not peer(watch.places, "a").is_up, "that it can talk to us says not that we can to it"
        await passes(0.1)
        assert peer(watch.places, "a").is_up
        asked = dict(watch.links.asked)
        watch.measuring.load_reported(NodeId("a"), load())
        await passes(0.1)
        assert watch.links.asked == asked, "it is up: its time will come"


@in_simulated_time
async def test_a_member_that_is_new_is_asked_at_once_and_one_that_left_is_not_missed() -> None:
    async with Watch(member("a"), ping_s=60.0) as watch:
        await passes(1)
        watch.links.ways[NodeId("b")] = 5.0
        watch.places.follow([member("a"), member("b"), member("c")])
        watch.measuring.update_nearest()
        await passes(1)
        assert peer(watch.places, "c").is_up
        watch.places.follow([member("a"), member("b", address="b:2")])
        watch.measuring.update_nearest()
        await passes(5)
        assert not peer(watch.places, "b").is_up, "the old one answered"
        await passes(6)
        assert peer(watch.places, "b").is_up
        assert watch.links.asked[NodeId("b")] == 2


@in_simulated_time
async def test_who_does_not_answer_is_asked_again_soon_and_then_as_rarely_as_all() -> None:
    async with Watch(member("a"), ping_s=60.0) as watch:
        watch.links.away.add(NodeId("a"))
        await passes(4.5)
        assert watch.links.asked == {"a": 2}
        await passes(40)
        before = watch.links.asked[NodeId("a")]
        await passes(600)
        assert 10 <= watch.links.asked[NodeId("a")] - before <= 14
        watch.links.away.clear()
        await passes(70)
        assert peer(watch.places, "a").is_up
        watch.links.away.add(NodeId("a"))
        watch.measuring.lost(peer(watch.places, "a"), "it ended")
        await passes(3.0)
        watch.links.away.clear()
        await passes(3.0)
        assert peer(watch.places, "a").is_up, "soon again, after it was up"


@in_simulated_time
async def test_nobody_is_asked_again_before_it_has_answered() -> None:
    async with Watch(member("a"), ping_s=0.5) as watch:
        watch.links.away.add(NodeId("a"))
        await passes(20)
        assert watch.links.most_under_way == 1
        assert 8 <= watch.links.asked[NodeId("a")] <= 11


@in_simulated_time
async def test_round_trips_move_the_coordinate() -> None:
    async with Watch(member("a")) as watch:
        there = watch.links.coordinates[NodeId("a")] = Coordinate((0.0, 0.0, 0.0), 1e-5, 0.1)
        watch.links.ways[NodeId("a")] = 0.08
        await passes(600)
        assert distance_s(watch.vivaldi.coordinate, there) == pytest.approx(0.08, rel=0.2)


@in_simulated_time
async def test_whoever_needs_anybody_waits_for_the_first_answer_of_those_that_are_new() -> None:
    async with Watch(member("a"), member("b")) as watch:
        watch.links.away.add(NodeId("a"))
        await watch.measuring.first_answer()
        assert peer(watch.places, "b").is_up
        watch.places.follow([member("a")])
        watch.links.away.add(NodeId("b"))
        await passes(3)
        before = asyncio.get_running_loop().time()
        await watch.measuring.first_answer()
        assert asyncio.get_running_loop().time() == before, "nobody that was asked in vain is waited for"


@in_simulated_time
async def test_a_member_that_answered_somebody_else_is_asked_at_once() -> None:
    async with Watch(member("a"), ping_s=60.0) as watch:
        watch.links.away.add(NodeId("a"))
        await passes(2.05)
        assert not peer(watch.places, "a").is_probing
        watch.links.away.clear()
        watch.measuring.member_answered(NodeId("a"))
        watch.measuring.member_answered(NodeId("stranger"))
        await watch.measuring.first_answer()
        assert peer(watch.places, "a").is_up
        watch.measuring.member_answered(NodeId("a"))
        await passes(0.1)
        assert watch.links.asked[NodeId("a")] == 2
