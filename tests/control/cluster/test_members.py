"""Members of a cloud: nodes that say so, servers that keep saying so, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

from skerry.control.cluster.members import PREFIX, MemberDirectory
from skerry.kit import json_codec
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.ids import NodeId
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import NodeHello
from skerry.store.protocol import Put
from tests.support.fleets import FACTS, ROOM, Fleet
from tests.support.waiting import eventually

SERVER = ContinuumMember(NodeId("s1"), "core", "cloud", address="core:7", is_server=True)


@asynccontextmanager
async def members_of(
    fleet: Fleet, own: ContinuumMember | None = None, pause_s: float = 0.01
) -> AsyncIterator[MemberDirectory]:
    made = MemberDirectory(fleet.store, fleet.nodes, pause_s=pause_s)
    running = [asyncio.ensure_future(made.run())]
    if own is not None:
        running.append(asyncio.ensure_future(made.register(own, lease_s=30)))
    try:
        await made.ready()
        yield made
    finally:
        await cancel_and_wait(running)


def names(members: MemberDirectory) -> list[str]:
    return [member.node for member in members.all]


async def join(fleet: Fleet, id: str, area: str = "edge") -> None:
    member = ContinuumMember(NodeId(id), id, area)
    await fleet.nodes.register(id, NodeHello(id, FACTS, ROOM, member=member))


async def test_nodes_that_say_so_are_members_as_long_as_they_are_registered(fleet: Fleet) -> None:
    await join(fleet, "n2")
    await fleet.join("n3")
    async with members_of(fleet) as members:
        assert names(members) == ["n2"]
        await join(fleet, "n1")
        await eventually(lambda: names(members) == ["n1", "n2"])
        await fleet.nodes.unregister("n2", actor="test")
        await eventually(lambda: names(members) == ["n1"])


async def test_a_member_that_is_lost_stays_one(fleet: Fleet) -> None:
    await join(fleet, "n1")
    async with members_of(fleet) as members:
        await fleet.pass_time(60.0)
        assert fleet.nodes.get("n1").status == "lost"
        await join(fleet, "n2")
        await eventually(lambda: names(members) == ["n1", "n2"])


async def test_servers_are_members_for_as_long_as_their_lease(fleet: Fleet, clock: ManualClock) -> None:
    async with members_of(fleet) as members:
        async with members_of(fleet, SERVER):
            await eventually(lambda: members.all == (SERVER,))
        # It has stopped, and what it keeps for callers is still there when it comes back.
        await join(fleet, "n1")
        await eventually(lambda: names(members) == ["n1", "s1"])
        clock.advance(31.0)
        await fleet.store.expire()
        await eventually(lambda: names(members) == ["n1"])


async def test_changes_that_come_together_are_told_once_and_what_is_no_change_never(fleet: Fleet) -> None:
    told: list[tuple[ContinuumMember, ...]] = []
    async with members_of(fleet, pause_s=0.1) as members:
        members.listen(lambda: told.append(members.all))
        await asyncio.gather(*(join(fleet, f"n{number:02}") for number in range(20)))
        await eventually(lambda: len(members.all) == 20)
        assert len(told) < 20
        await fleet.hear("n01")
        await fleet.store.commit([Put(PREFIX + SERVER.node, json_codec.encode(SERVER))])
        await eventually(lambda: SERVER in members.all)
        assert all(before != after for before, after in pairwise(told))


async def test_what_a_node_says_anew_is_known(fleet: Fleet) -> None:
    await join(fleet, "n1")
    async with members_of(fleet) as members:
        await join(fleet, "n1", area="cloud")
        await eventually(lambda: members.all[0].area == "cloud")
