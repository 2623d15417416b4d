"""Cells of nodes as a server lists them: once for all who look, and only of nodes that can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from skerry.control.events.log import EventLog
from skerry.control.sessions.cell_lister import FRESH_S, CellLister
from skerry.control.sessions.tunnels import TunnelEndpoint
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import NodeFacts
from skerry.model.settings import EventSettings
from skerry.model.streams import CellListRequest
from skerry.store.local.memory import MemoryStore
from tests.support.controls import ROOM, Control, control_on
from tests.support.far_nodes import FarNode


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def control(clock: ManualClock) -> AsyncIterator[Control]:
    store = MemoryStore(clock)
    async with control_on(store, EventLog(store, clock, EventSettings()), clock) as control:
        await control.join("n1")
        yield control
    await store.close()


@pytest.fixture
async def node() -> AsyncIterator[FarNode]:
    async def play(tunnel: TunnelEndpoint) -> None:
        await tunnel.send(b'{"name":"a"}\n{"name":"a/b"}\n')
        await tunnel.send(b'{"name":"c"}\n')

    played = FarNode(play)
    yield played
    await played.close()


async def test_all_who_look_share_one_list_until_it_is_old(
    control: Control, node: FarNode, clock: ManualClock
) -> None:
    lister = CellLister(control.nodes, node, clock)
    first, second = await asyncio.gather(lister.list("n1"), lister.list("machine-n1"))
    assert [one.name for one in first] == ["a", "a/b", "c"]
    assert second == first
    assert node.asked == [CellListRequest()]
    clock.advance(FRESH_S)
    await lister.list("n1")
    assert len(node.asked) == 2


async def test_a_node_of_before_says_what_to_do(control: Control, node: FarNode, clock: ManualClock) -> None:
    await control.nodes.register("n2", NodeHello("old", NodeFacts("amd64", "Debian 12"), ROOM))
    with pytest.raises(errors.FailedPrecondition, match="skerry cell list"):
        await CellLister(control.nodes, node, clock).list("n2")
    assert node.asked == []


async def test_a_list_that_cannot_be_read_is_asked_for_again(control: Control, clock: ManualClock) -> None:
    answers = [b"not JSON\n", b'{"name":"a"}\n']

    async def play(tunnel: TunnelEndpoint) -> None:
        await tunnel.send(answers.pop(0))

    node = FarNode(play)
    lister = CellLister(control.nodes, node, clock)
    with pytest.raises(errors.Unavailable):
        await lister.list("n1")
    assert [one.name for one in await lister.list("n1")] == ["a"]
    await node.close()


async def test_what_went_wrong_at_the_node_is_said_here(control: Control, clock: ManualClock) -> None:
    async def play(tunnel: TunnelEndpoint) -> None:
        raise errors.FailedPrecondition("this node does not list its cells")

    node = FarNode(play)
    with pytest.raises(errors.FailedPrecondition, match="does not list"):
        await CellLister(control.nodes, node, clock).list("n1")
    await node.close()
