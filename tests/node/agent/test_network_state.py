"""Network objects on a node: they reach their users, outlive the agent, and are reported in every session."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.kit.clock import ManualClock
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NodeLocation
from skerry.model.node_messages import NetworkUpdate
from skerry.model.offline_tokens import TokenKey
from skerry.node.agent import network_state
from skerry.node.agent.network_state import NetworkState
from tests.support.waiting import eventually

ONE, TWO = NodeLocation(NodeId("n1"), "one"), NodeLocation(NodeId("n2"), "two")


async def test_users_get_all_objects_of_their_kind_now_and_at_every_change(tmp_path: Path) -> None:
    state, seen = NetworkState(tmp_path / "network.json"), []
    state.subscribe(NodeLocation, lambda nodes: seen.append(sorted(nodes)))
    state.apply(NetworkUpdate(True, (ONE,)))
    state.apply(NetworkUpdate(False, (TWO,)))
    state.apply(NetworkUpdate(False, (TWO,)))  # nothing new
    state.apply(NetworkUpdate(False, removed=(NetworkKey("node", "n1"), NetworkKey("node", "n9"))))
    state.apply(NetworkUpdate(True, ()))
    assert seen == [[], ["n1"], ["n1", "n2"], ["n2"], []]


async def test_objects_that_a_server_sends_again_stay_the_same_ones(tmp_path: Path) -> None:
    """Users see by identity what has changed: a new session costs them nothing, also at the next change."""
    state, seen = NetworkState(tmp_path / "network.json"), []
    state.subscribe(NodeLocation, seen.append)
    state.apply(NetworkUpdate(True, (ONE, TWO)))
    other = NodeLocation(NodeId("n2"), "other")
    state.apply(NetworkUpdate(True, (copy.copy(ONE), copy.copy(TWO))))
    state.apply(NetworkUpdate(False, (copy.copy(ONE), other)))
    assert [list(each.values()) for each in seen] == [[], [ONE, TWO], [ONE, other]]
    assert seen[1]["n1"] is ONE
    assert seen[2]["n1"] is ONE


async def test_another_agent_begins_with_the_last_state(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    state = NetworkState(path)
    state.apply(NetworkUpdate(True, (ONE, TWO)))
    await state.save()
    assert path.stat().st_mode & 0o077 == 0
    after = NetworkState(path)
    assert after.all(NodeLocation) == {"n1": ONE, "n2": TWO}
    assert not after.is_current
    path.write_bytes(b"{broken")
    assert NetworkState(path).all(NodeLocation) == {}


async def test_what_a_node_reports_is_sent_once_a_session_and_when_it_changes(tmp_path: Path) -> None:
    state = NetworkState(tmp_path / "network.json")
    state.report(ONE)
    state.report(TWO)
    state.begin_session()
    assert await state.next_reports(1) == (ONE,)
    assert await state.next_reports(9) == (TWO,)
    state.report(ONE)  # as before
    state.report(NodeLocation(NodeId("n2"), "other"))
    assert await state.next_reports(9) == (NodeLocation(NodeId("n2"), "other"),)
    state.begin_session()
    assert len(await state.next_reports(9)) == 2


async def test_the_state_ages_from_the_end_of_a_session(tmp_path: Path) -> None:
    clock = ManualClock()
    state = NetworkState(tmp_path / "network.json", clock)
    state.end_session()  # in which nothing came
    assert state.age_s == math.inf
    state.apply(NetworkUpdate(True, ()))
    clock.advance(100)
    assert state.age_s == 0
    state.end_session()
    clock.advance(7)
    state.end_session()
    assert state.age_s == 7
    state.apply(NetworkUpdate(True, ()))
    assert state.age_s == 0


@contextlib.asynccontextmanager
async def written(state: NetworkState) -> AsyncIterator[None]:
    writing = asyncio.create_task(state.run())
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.wait({writing})


async def test_a_change_is_on_disk_at_once_and_what_follows_at_the_latest_when_the_agent_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_state, "_PAUSE_RATIO", 1e9)
    path = tmp_path / "network.json"
    state = NetworkState(path)
    async with written(state):
        state.apply(NetworkUpdate(True, (ONE,)))
        await eventually(lambda: NetworkState(path).all(NodeLocation) == {"n1": ONE})
        state.apply(NetworkUpdate(False, (TWO,)))
    assert NetworkState(path).all(NodeLocation) == {"n1": ONE, "n2": TWO}


async def test_keys_of_tokens_are_on_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is killed right after a key arrived knows it when it starts again without a server."""
    monkeypatch.setattr(network_state, "_PAUSE_RATIO", 1e9)
    path, key = tmp_path / "network.json", TokenKey("k1", "00")
    state = NetworkState(path)
    async with written(state):
        state.apply(NetworkUpdate(True, (ONE,)))
        await eventually(lambda: NetworkState(path).all(NodeLocation) == {"n1": ONE})
        state.apply(NetworkUpdate(False, (key,)))
        await eventually(lambda: NetworkState(path).all(TokenKey) == {"k1": key})
        state.apply(NetworkUpdate(False, removed=(key.network_key,)))
        await eventually(lambda: NetworkState(path).all(TokenKey) == {})
