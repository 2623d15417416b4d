"""What is known of members, and the views that are made of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.functions.continuum.candidates import Candidate, CandidateView
from skerry.functions.continuum.member_api import MemberLoad
from skerry.functions.continuum.member_table import MemberState, MemberTable
from skerry.functions.coordinates import START, Coordinate, distance_s
from skerry.model.ids import FunctionName, NodeId
from skerry.model.members import ContinuumMember
from tests.functions.continuum.making import F, demand, here

G = FunctionName("g")


def member(name: str, area: str = "edge", **fields: Any) -> ContinuumMember:
    usual: dict[str, Any] = {"address": f"{name}:1", "memory": 1024, "cpus": 4.0}
    return ContinuumMember(NodeId(name), name, area, **{**usual, **fields})


def load(**fields: Any) -> MemberLoad:
    usual: dict[str, Any] = {
        "coordinate": START,
        "memory_free": 1024,
        "cpus_free": 4.0,
        "waiting": 0,
        "warm": {},
    }
    return MemberLoad(**{**usual, **fields})


def known(*members: ContinuumMember, me: ContinuumMember | None = None) -> MemberTable:
    """Places whose members are all up, and farther the later they come."""
    places = MemberTable(me or member("here", remote_area="cloud"))
    places.follow(members)
    for number, one in enumerate(members):
        peer = places.peers.get(one.node)
        if peer is not None:
            places.update_load(peer, load(), START, now=0.0)
            places.measured(peer, 0.01 * (number + 1))
    return places


def view(places: MemberTable, now: float = 1.0, function: FunctionName = F) -> CandidateView:
    return places.view(function, here(), now)


def nodes(places: tuple[Candidate, ...]) -> list[str]:
    return [place.node for place in places]


def peer(places: MemberTable, name: str) -> MemberState:
    return places.peers[NodeId(name)]


def test_a_view_has_the_neighbours_and_the_remote_area_and_the_nearest_first() -> None:
    places = known(
        member("b"),
        member("a"),
        member("here"),
        member("y", "cloud"),
        member("x", "cloud"),
        member("z", "elsewhere"),
        member("silent", address=""),
        member("server", memory=0, is_server=True),
    )
    seen = view(places)
    assert (nodes(seen.neighbours), nodes(seen.remote)) == (["b", "a"], ["y", "x"])
    assert seen.here == here()
    first = seen.neighbours[0]
    assert (first.area, first.is_here, first.memory_total, first.cpus_total) == ("edge", False, 1024, 4.0)
    assert (first.rtt_s, first.heard_s) == (0.01, 1.0)
    places.measured(peer(places, "b"), 0.5)
    places.rank()
    assert nodes(view(places).neighbours) == ["a", "b"]


def test_a_member_without_workers_sees_everybody_who_has_some() -> None:
    places = known(
        member("a"),
        member("x", "cloud"),
        member("y", "elsewhere"),
        me=member("server", memory=0, remote_area="cloud"),
    )
    assert (nodes(view(places).neighbours), nodes(view(places).remote)) == (["a"], ["x", "y"])


def test_who_has_not_answered_yet_or_no_longer_is_in_no_view() -> None:
    places = known(member("a"), member("b"))
    places.follow([member("a"), member("b"), member("new")])
    assert nodes(view(places).neighbours) == ["a", "b"]
    places.update_load(peer(places, "new"), load(), START, now=1.0)
    assert nodes(view(places).neighbours) == ["a", "b"], "it was only heard"
    places.measured(peer(places, "new"), 0.001)
    assert nodes(view(places).neighbours) == ["new", "a", "b"]
    places.lose(peer(places, "a"))
    assert nodes(view(places).neighbours) == ["new", "b"]
    places.follow([member("b")])
    assert nodes(view(places).neighbours) == ["b"]


def test_a_member_that_moved_is_down_until_it_answers_there() -> None:
    places = known(member("a"), member("b"))
    places.follow([member("a", memory=2048), member("b", address="b:2")])
    assert [(one.node, one.memory_total) for one in view(places).neighbours] == [("a", 2048)]
    assert peer(places, "b").due_at == -math.inf


def test_what_a_member_says_of_itself_cannot_be_more_than_it_has() -> None:
    places = known(member("a"))
    far = Coordinate((math.nan, 0.0, 0.0), 1.0, 0.1)
    for free in (9999.0, math.nan, -1.0):
        said = load(memory_free=99999, cpus_free=free, coordinate=far)
        places.update_load(peer(places, "a"), said, START, now=2.0)
        [place] = view(places, 2.0).neighbours
        assert (place.memory_free, place.cpus_free) == (1024, 4.0)
    assert peer(places, "a").coordinate == START


def test_until_it_is_measured_the_way_to_a_member_is_what_coordinates_say() -> None:
    places = MemberTable(member("here"))
    places.follow([member("a")])
    there, mine = Coordinate((0.03, 0.0, 0.0), 0.001, 0.1), Coordinate((0.0, 0.04, 0.0), 0.002, 0.1)
    places.update_load(peer(places, "a"), load(coordinate=there), mine, now=0.0)
    assert peer(places, "a").rtt_s == pytest.approx(distance_s(mine, there))
    places.measured(peer(places, "a"), 0.02)
    places.update_load(peer(places, "a"), load(coordinate=there), mine, now=1.0)
    assert peer(places, "a").rtt_s == 0.02


def test_a_call_that_was_sent_takes_its_room_before_the_other_tells() -> None:
    places = known(member("a"), member("b"))
    one = peer(places, "a")
    places.update_load(one, load(memory_free=256, cpus_free=1.5, warm={F: 1}), START, now=1.0)
    assert view(places).neighbours[0].warm == 1
    places.take(one, demand(memory=128, cpu=1.0))
    [first, second] = view(places).neighbours
    assert (first.memory_free, first.cpus_free, first.warm) == (128, 0.5, 0)
    assert second.memory_free == 1024
    places.take(one, demand(memory=512, cpu=1.0))
    assert (one.memory_free, one.cpus_free) == (0, 0.0)
    places.give_back(one, demand(memory=512, cpu=1.0), leaves_worker=True)
    [first, _] = view(places).neighbours
    assert (first.memory_free, first.cpus_free, first.warm) == (512, 1.0, 1)
    places.give_back(one, demand(memory=1024, cpu=4.0), leaves_worker=False)
    assert (one.memory_free, one.cpus_free, one.warm[F]) == (1024, 4.0, 1)


def test_each_function_sees_its_own_warm_workers_and_a_view_is_kept_while_nothing_changes() -> None:
    places = known(member("a"))
    places.update_load(peer(places, "a"), load(warm={F: 2}), START, now=1.0)
    assert [view(places, function=name).neighbours[0].warm for name in (F, G)] == [2, 0]
    assert view(places).neighbours is view(places).neighbours
    before = view(places).neighbours
    places.rank()
    assert view(places).neighbours is before, "the order is as it was"
    assert view(places, now=9.0).neighbours[0].heard_s == 8.0


def test_a_view_of_a_large_area_shows_the_nearest() -> None:
    places = known(*(member(f"n{number}") for number in range(100)))
    assert nodes(view(places).neighbours) == [f"n{number}" for number in range(32)]


changes = st.lists(
    st.tuples(
        st.sampled_from(["hear", "measure", "lose", "take", "give", "leave", "join", "look"]),
        st.integers(0, 5),
        st.integers(0, 2000),
    ),
    max_size=40,
)


@given(changes)
def test_a_kept_view_is_the_same_as_one_that_is_made_anew(steps: list[tuple[str, int, int]]) -> None:
    members = [member(f"n{number}", "cloud" if number > 3 else "edge") for number in range(6)]
    there = list(members)
    places = known(*members)
    for now, (step, number, amount) in enumerate(steps):
        one = places.peers.get(members[number].node)
        if step == "leave" and members[number] in there:
            there.remove(members[number])
            places.follow(there)
        elif step == "join" and members[number] not in there:
            there.append(members[number])
            places.follow(there)
        elif one is None:
            continue
        elif step == "hear":
            places.update_load(one, load(memory_free=amount, warm={F: amount % 3}), START, float(now))
        elif step == "measure":
            places.measured(one, amount / 1000)
        elif step == "lose":
            places.lose(one)
        elif step == "take":
            places.take(one, demand(memory=amount + 1))
        elif step == "give":
            places.give_back(one, demand(memory=amount + 1), leaves_worker=bool(amount % 2))
        kept = view(places, now=1000.0)
        places._views.clear()
        assert view(places, now=1000.0) == kept
        assert {place.node for place in (*kept.neighbours, *kept.remote)} == {
            one.member.node for one in places.peers.values() if one.is_up
        }
