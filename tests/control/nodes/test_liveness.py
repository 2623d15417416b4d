"""Who is heard, where, and what silence comes to: on one server, on two, and after a start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.control.nodes.liveness import LivenessTracker
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.nodes import Liveness
from skerry.model.settings import FleetSettings
from skerry.model.statuses import NodeStatus
from skerry.store.local.memory import MemoryStore
from tests.support.fleets import Fleet, advance, fleet_on
from tests.support.waiting import eventually

N1 = NodeId("n1")
SETTINGS = FleetSettings(suspect_after_s=8.0, lost_after_s=30.0)


@pytest.fixture
async def fleet(store: MemoryStore, clock: ManualClock) -> AsyncIterator[Fleet]:
    async with fleet_on(store, clock, SETTINGS) as made:
        yield made


async def keys(store: MemoryStore) -> list[str]:
    return [entry.key for entry in (await store.range("alive/")).entries]


async def is_unheard(fleet: Fleet) -> None:
    await eventually(lambda: fleet.nodes.heartbeat(N1) is None)


# judging


def silences() -> LivenessTracker:
    return LivenessTracker(suspect_after_s=8.0, lost_after_s=30.0)


def test_a_node_that_is_heard_is_live_for_ever():
    judge = silences()
    judge.mark_unknown(N1, 0.0)
    judge.mark_live(N1)
    assert judge.liveness(N1, 1e9) is Liveness.LIVE
    assert judge.next_overdue() is None


def test_a_node_that_fell_silent_is_suspect_and_lost_when_its_time_is_up():
    judge = silences()
    judge.mark_suspect(N1, 100.0)  # after 8 s in which its server waited
    assert judge.liveness(N1, 100.0) is Liveness.SUSPECT
    assert judge.next_overdue() == 122.0
    assert judge.take_overdue(121.9) == []
    assert judge.liveness(N1, 121.9) is Liveness.SUSPECT
    assert judge.liveness(N1, 122.0) is Liveness.LOST


def test_a_node_of_which_nothing_is_known_has_the_full_time():
    judge = silences()
    judge.mark_unknown(N1, 100.0)
    judge.mark_unknown(N1, 120.0)  # seen again, and still silent
    assert judge.liveness(N1, 129.9) is Liveness.SUSPECT
    assert judge.liveness(N1, 130.0) is Liveness.LOST


def test_a_node_of_which_nothing_is_known_is_awaited_until_it_would_be_silent():
    judge = silences()
    judge.mark_unknown(N1, 100.0)
    assert judge.is_awaited(N1, 107.9)
    assert not judge.is_awaited(N1, 108.0)
    assert judge.next_overdue() == 108.0
    assert judge.take_overdue(107.9) == []
    assert judge.take_overdue(108.0) == [N1]
    assert judge.next_overdue() == 130.0
    assert judge.take_overdue(130.0) == [N1]
    judge.mark_live(N1)
    judge.mark_suspect(N1, 200.0)
    assert not judge.is_awaited(N1, 200.0), "its server has waited"


def test_a_loss_is_told_once_and_again_after_a_return():
    judge = silences()
    judge.mark_unknown(N1, 0.0)
    assert judge.take_overdue(30.0) == [N1]
    assert judge.take_overdue(31.0) == []
    assert judge.next_overdue() is None
    judge.mark_live(N1)
    judge.mark_unknown(N1, 40.0)
    assert judge.take_overdue(70.0) == [N1]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("hfu"), st.floats(0, 50)), max_size=30))
def test_nobody_is_lost_sooner_than_its_time_after_it_was_heard(moves):
    judge, now, last = silences(), 0.0, dict[NodeId, float]()
    for name, move, pause in moves:
        node = NodeId(name)
        now += pause
        if move == "h":
            judge.mark_live(node)
            last[node] = now
        elif move == "u":
            judge.mark_unknown(node, now)
        elif now - last.get(node, -8.0) >= 8.0:  # a server waits that long before it says so
            judge.mark_suspect(node, now)
        for each, heard_at in last.items():
            if judge.liveness(each, now) is Liveness.LOST:
                assert now - heard_at >= 30.0


# one server


async def test_nothing_is_written_while_nodes_go_on_talking(fleet):
    for id in ("n1", "n2"):
        await fleet.join(id)
    await fleet.hear("n1", "n2")
    before = await fleet.store.revision()
    for _ in range(20):
        fleet.clock.advance(2.0)
        await fleet.hear("n1", "n2")
    assert await fleet.store.revision() == before


async def test_a_silent_node_becomes_suspect_and_then_lost(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    assert fleet.nodes.liveness(N1) is Liveness.LIVE
    await fleet.pass_time(7.9)
    assert fleet.nodes.liveness(N1) is Liveness.LIVE
    await fleet.pass_time(0.1)
    await is_unheard(fleet)
    assert fleet.nodes.liveness(N1) is Liveness.SUSPECT
    condition = fleet.nodes.condition(N1)
    assert condition is not None
    assert condition.view.unschedulable_reason == "is silent"
    assert fleet.nodes.get("n1").status is NodeStatus.READY
    await fleet.pass_time(22.0)
    assert fleet.nodes.liveness(N1) is Liveness.LOST
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.LOST)
    [told] = await fleet.events("node.lost")
    assert told.reason == "no heartbeat for 30 s"


async def test_on_default_settings_a_node_that_is_killed_is_lost_within_about_15_s(store, clock):
    async with fleet_on(store, clock) as fleet:
        await fleet.join("n1")
        await fleet.hear("n1")
        await fleet.pass_time(6.0)
        await is_unheard(fleet)
        await fleet.pass_time(8.5)
        assert fleet.nodes.liveness(N1) is Liveness.SUSPECT
        await fleet.pass_time(0.5)
        assert fleet.nodes.liveness(N1) is Liveness.LOST


async def test_a_pause_of_the_server_is_no_silence_of_its_nodes(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    fleet.clock.advance(60.0)  # stopped, or starved: it heard nobody, and looks before it listens
    await fleet.nodes.heartbeats.publish()
    await fleet.settle()
    assert fleet.nodes.liveness(N1) is Liveness.LIVE
    await fleet.pass_time(6.0)
    assert fleet.nodes.liveness(N1) is Liveness.LIVE
    await fleet.pass_time(2.0)
    await is_unheard(fleet)


async def test_a_pause_of_the_server_brings_no_suspect_nearer_to_its_loss(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    await fleet.pass_time(8.0)
    await is_unheard(fleet)
    fleet.clock.advance(60.0)
    fleet.nodes.notify_overdue()
    assert fleet.nodes.liveness(N1) is Liveness.SUSPECT
    await fleet.pass_time(22.0)
    assert fleet.nodes.liveness(N1) is Liveness.LOST


async def test_a_node_whose_word_is_being_worked_on_is_not_silent(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    with fleet.nodes.heartbeats.busy_with(N1):
        await fleet.pass_time(60.0)
        assert fleet.nodes.liveness(N1) is Liveness.LIVE
    await fleet.pass_time(0.5)
    await is_unheard(fleet)


async def test_the_next_look_is_when_somebody_may_have_fallen_silent(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    advance(7.5, fleet)
    assert fleet.nodes.heartbeats._until_missing() == pytest.approx(0.5)


async def test_those_who_listen_hear_of_a_loss_though_nothing_is_written(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    await fleet.pass_time(8.0)
    await is_unheard(fleet)
    liveness = list[tuple[str, Liveness]]()
    fleet.nodes.listen(lambda node: liveness.append((node, fleet.nodes.liveness(node))))
    advance(22.0, fleet)
    fleet.nodes.notify_overdue()
    assert liveness == [("n1", Liveness.LOST)]


async def test_a_lost_node_that_is_heard_again_is_ready_again(fleet):
    await fleet.join("n1")
    await fleet.pass_time(30.0)
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.LOST)
    await fleet.hear("n1")
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.READY)
    assert fleet.nodes.get("n1").reason == ""
    assert len(await fleet.events("node.returned")) == 1


async def test_a_lost_node_that_registers_again_is_ready_at_once(fleet):
    await fleet.join("n1")
    await fleet.pass_time(30.0)
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.LOST)
    assert (await fleet.join("n1")).status is NodeStatus.READY
    assert fleet.nodes.liveness(N1) is Liveness.SUSPECT
    await fleet.settle()
    assert fleet.nodes.get("n1").status is NodeStatus.READY
    assert len(await fleet.events("node.lost")) == 1


async def test_a_node_that_was_lost_in_a_drain_goes_on_draining_when_it_is_back(fleet):
    await fleet.join("n1")
    await fleet.nodes.drain("n1", actor="test", by=fleet.clock.now() + 1000)
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.DRAINED)
    await fleet.pass_time(30.0)
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.LOST)
    await fleet.hear("n1")
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.DRAINED)


async def test_a_foreign_node_is_lost_by_silence_too_and_is_back_by_its_report(fleet):
    await fleet.join("n1", foreign=True)
    await fleet.nodes.report("n1", NodeStatus.READY)
    await eventually(lambda: fleet.nodes.heartbeat(N1))
    await fleet.pass_time(8.0)
    await is_unheard(fleet)
    await fleet.pass_time(22.0)
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.LOST)
    assert (await fleet.nodes.report("n1", NodeStatus.READY)).status is NodeStatus.READY


async def test_an_unregistered_node_is_not_lost(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    await fleet.nodes.unregister("n1", actor="test")
    await fleet.pass_time(8.0)
    await is_unheard(fleet)
    await fleet.pass_time(60.0)
    assert not await fleet.events("node.lost")
    assert await keys(fleet.store) == []


async def test_many_nodes_are_heard_in_few_transactions(fleet):
    ids = [f"n{number}" for number in range(300)]
    for id in ids:
        fleet.nodes.heartbeats.received(NodeId(id))
    before = await fleet.store.revision()
    await fleet.nodes.heartbeats.publish()
    assert await fleet.store.revision() - before == 3
    assert len(await keys(fleet.store)) == 300
    await fleet.pass_time(8.0)
    assert await keys(fleet.store) == []


async def test_a_server_that_lost_its_lease_says_anew_who_it_hears(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    [entry] = (await fleet.store.range("alive/")).entries
    liveness = []
    fleet.nodes.listen(lambda node: liveness.append(fleet.nodes.heartbeat(node) is not None))
    await fleet.store.revoke_lease(entry.lease)
    await eventually(lambda: liveness == [False, True])
    assert fleet.nodes.liveness(N1) is Liveness.LIVE


# several servers


async def test_a_node_is_live_everywhere_if_it_is_heard_anywhere(store, clock):
    async with (
        fleet_on(store, clock, SETTINGS) as one,
        fleet_on(store, clock, SETTINGS, server="http://two") as two,
    ):
        await one.join("n1")
        await one.hear("n1")
        await eventually(lambda: two.nodes.heartbeat(N1))
        assert two.nodes.liveness(N1) is Liveness.LIVE
        alive = two.nodes.heartbeat(N1)
        assert alive is not None
        assert alive.server == "http://one:8080"


async def test_the_nodes_of_a_dead_server_fall_silent_when_its_lease_ends(store, clock):
    async with fleet_on(store, clock, SETTINGS) as two:
        async with fleet_on(store, clock, SETTINGS, server="http://one") as one:
            await one.join("n1")
            await one.hear("n1")
        await eventually(lambda: two.nodes.heartbeat(N1))
        advance(7.9, two)
        await store.expire()
        assert await keys(store) == ["alive/n1"]
        advance(0.2, two)
        await store.expire()
        await is_unheard(two)
        assert two.nodes.liveness(N1) is Liveness.SUSPECT
        await two.pass_time(22.0)
        assert two.nodes.liveness(N1) is Liveness.LOST


async def test_a_node_that_moves_to_another_server_in_time_was_never_silent(store, clock):
    async with fleet_on(store, clock, SETTINGS, server="http://two") as two:
        async with fleet_on(store, clock, SETTINGS, server="http://one") as one:
            await one.join("n1")
            await one.hear("n1")
        changes = list[Liveness]()
        two.nodes.listen(lambda node: changes.append(two.nodes.liveness(node)))
        await two.pass_time(5.0)
        await two.hear("n1")
        await two.pass_time(5.0)
        alive = two.nodes.heartbeat(N1)
        assert alive is not None
        assert alive.server == "http://two"
        assert set(changes) == {Liveness.LIVE}


async def test_the_server_that_a_node_left_takes_back_nothing(store, clock):
    async with (
        fleet_on(store, clock, SETTINGS, server="http://one") as one,
        fleet_on(store, clock, SETTINGS, server="http://two") as two,
    ):
        overtaken = list[str]()
        one.nodes.heartbeats.listen(overtaken.append)
        await one.join("n1")
        await one.hear("n1")
        await two.hear("n1")
        await eventually(lambda: overtaken == ["n1"])
        await two.pass_time(7.0)
        await two.hear("n1")
        await two.pass_time(2.0)
        await one.nodes.heartbeats.publish()
        assert await keys(store) == ["alive/n1"]


async def test_a_server_that_has_just_started_gives_everybody_the_full_time(store, clock):
    async with fleet_on(store, clock, SETTINGS) as one:
        await one.join("n1")
    clock.advance(1000.0)
    async with fleet_on(store, clock, SETTINGS, server="http://two") as two:
        assert two.nodes.liveness(N1) is Liveness.SUSPECT
        await two.pass_time(29.9)
        assert two.nodes.liveness(N1) is Liveness.SUSPECT
        assert not await two.events("node.lost")
        await two.pass_time(0.1)
        assert two.nodes.liveness(N1) is Liveness.LOST


async def test_two_servers_tell_of_one_loss_once(store, clock):
    async with (
        fleet_on(store, clock, SETTINGS) as one,
        fleet_on(store, clock, SETTINGS, server="http://two") as two,
    ):
        await one.join("n1")
        await eventually(lambda: two.nodes.list())
        advance(30.0, one, two)
        one.nodes.notify_overdue()
        two.nodes.notify_overdue()
        await eventually(lambda: one.nodes.get("n1").status is NodeStatus.LOST)
        await two.settle()
        await one.settle()
        assert len(await one.events("node.lost")) == 1


async def test_a_store_that_is_away_for_a_moment_is_asked_again(fleet, monkeypatch):
    await fleet.join("n1")
    commit, failures = fleet.store.commit, 0

    async def commit_later(*arguments):
        nonlocal failures
        failures += 1
        if failures == 1:
            raise errors.Unavailable("the store is away")
        return await commit(*arguments)

    monkeypatch.setattr(fleet.store, "commit", commit_later)
    fleet.nodes.heartbeats.received(N1)
    await eventually(lambda: fleet.nodes.heartbeat(N1))
    assert failures > 1
