"""Code is on two members before its function is registered, and again after one of them is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.functions.continuum.code_replication import CodeCopies, CodeReplicator, ReplicationStatus
from skerry.functions.continuum.member_table import MemberState
from skerry.functions.continuum.replica_placement import COPIES, plan_copies, rank_members
from skerry.model import errors
from skerry.model.functions import Function
from skerry.model.ids import Digest, NodeId
from skerry.model.members import ContinuumMember
from tests.functions.continuum.simulated_members import Resident, Town
from tests.support.simulated import passes
from tests.support.workers import CODE, function, in_simulated_time

F = replace(function("f"), code=CODE)
EVERY_S = 1.0
NODES = tuple(NodeId(f"n{number}") for number in range(6))


def member(node: str) -> ContinuumMember:
    return ContinuumMember(NodeId(node), node, "edge", address=f"{node}:1")


# Where copies go


def test_the_order_of_members_is_the_same_everywhere_and_stays_when_others_come_or_go() -> None:
    members = [member(node) for node in NODES]
    ranked = rank_members("key", members)
    assert rank_members("key", reversed(members)) == ranked
    assert rank_members("key", [each for each in members if each != ranked[2]]) == ranked[:2] + ranked[3:]
    firsts = {rank_members(f"key {number}", members)[0].node for number in range(100)}
    assert firsts == set(NODES), "everybody has its share"
    assert rank_members("key", [replace(members[0], address="")]) == [], "nobody could ask it"


@given(
    st.dictionaries(st.sampled_from(NODES), st.sets(st.integers(0, 5)), min_size=1),
    st.sets(st.integers(0, 5)),
)
def test_after_a_plan_is_carried_out_all_that_anybody_has_is_on_two_members(
    has: dict[NodeId, set[int]], away: set[int]
) -> None:
    needed = {Digest(str(number)) for number in range(4)}
    code: Mapping[NodeId, Set[Digest]] = {
        node: {Digest(str(n)) for n in digests} for node, digests in has.items()
    }
    up = [member(node) for index, node in enumerate(NODES) if node in code and index not in away]
    plan = plan_copies(needed, code, up)
    names = {each.node for each in up}
    holders = {digest: {node for node in code if digest in code[node]} for digest in needed}
    assert plan.missing == {digest for digest in needed if not holders[digest]}
    assert plan.under_replicated == {
        digest for digest in needed if 0 < len(holders[digest]) < min(COPIES, len(code))
    }
    for copy in plan.copies:
        assert copy.digest in plan.under_replicated
        assert {copy.source, copy.target.node} <= names
        assert copy.digest in code[copy.source]
        assert copy.target.node not in holders[copy.digest]
        holders[copy.digest].add(copy.target.node)
    for digest in needed:
        if holders[digest] & names and len(names | holders[digest]) >= COPIES:
            assert len(holders[digest]) >= COPIES
        assert len(holders[digest]) <= max(COPIES, sum(digest in held for held in code.values()))


# Having them made


class Registered:
    def __init__(self, *functions: Function) -> None:
        self.functions = functions

    def all(self) -> tuple[Function, ...]:
        return self.functions


class Here:
    """The code of a resident as the replicator sees it."""

    def __init__(self, resident: Resident) -> None:
        self._archives = resident.shelf.archives

    @property
    def archived(self) -> set[Digest]:
        return set(self._archives)

    def has_archive(self, digest: Digest) -> bool:
        return digest in self._archives


class Around:
    """Everybody in town, whom the resident hears of at once: its prober and table of members."""

    def __init__(self, resident: Resident) -> None:
        self.me = resident.member
        self._residents = resident.town.residents
        self.places = self

    @property
    def peers(self) -> dict[NodeId, MemberState]:
        members = [resident.member for resident in self._residents.values()]
        return {member.node: MemberState(member) for member in members if member != self.me}

    def member_answered(self, node: NodeId) -> None:
        pass


def replicator(resident: Resident, *functions: Function, leads: bool = True) -> CodeReplicator:
    town = resident.town
    return CodeReplicator(
        Around(resident),  # type: ignore[arg-type]  # as much of it as is needed
        Registered(*functions),
        Here(resident),  # type: ignore[arg-type]
        resident,  # type: ignore[arg-type]
        resident.links,
        town.clock,
        every_s=EVERY_S,
        leads=lambda: leads,
    )


def holders(town: Town) -> set[str]:
    return {resident.member.name for resident in town.residents.values() if CODE in resident.shelf.archives}


async def ran(made: CodeReplicator, seconds: float) -> None:
    running = asyncio.ensure_future(made.run())
    await passes(seconds)
    running.cancel()
    await asyncio.wait([running])


@in_simulated_time
async def test_a_member_that_is_alone_needs_no_other() -> None:
    async with Town() as town:
        here = town.join("here")
        here.shelf.archives[CODE] = b"code"
        made = replicator(here)
        await made.replicate(CODE)
        assert made.copies(CODE).count == 1


@in_simulated_time
async def test_code_is_on_a_second_member_before_its_function_is_registered() -> None:
    async with Town() as town:
        here, *_ = (town.join(name) for name in ("here", "one", "two"))
        here.shelf.archives[CODE] = b"code"
        made = replicator(here)
        await made.replicate(CODE)
        assert len(holders(town)) == 2
        assert made.copies(CODE) == CodeCopies(2, 2)
        await made.replicate(CODE)
        assert len(holders(town)) == 2, "who has it is asked first"


@in_simulated_time
async def test_one_that_is_dead_is_passed_over_and_one_that_refuses_leaves_it_to_the_next() -> None:
    async with Town() as town:
        here, dead, full, good = (town.join(name) for name in ("here", "dead", "full", "good"))
        here.shelf.archives[CODE] = b"code"
        town.dead.add(dead.member.node)
        town.full[full.member.node] = errors.Unavailable("its disk is full")
        await replicator(here).replicate(CODE)
        assert holders(town) == {"here", "good"}
        assert good.shelf.archives[CODE] == b"code"


@in_simulated_time
async def test_if_somebody_is_there_and_nobody_takes_it_that_is_an_error_in_bounded_time() -> None:
    async with Town() as town:
        here, full = town.join("here"), town.join("full")
        here.shelf.archives[CODE] = b"code"
        town.full[full.member.node] = errors.Unavailable("its disk is full")
        made = replicator(here)
        with pytest.raises(errors.Unavailable, match=r"second member \(full: its disk is full\)"):
            await made.replicate(CODE)
        assert made.copies(CODE).count == 1

        async def hangs(digest: Digest, source: NodeId) -> None:
            await asyncio.Event().wait()

        full.store = hangs  # type: ignore[method-assign]
        await made.list_code()
        began = town.clock.monotonic()
        with pytest.raises(errors.Unavailable, match=r"full: not within 10 s"):
            await made.replicate(CODE)
        assert town.clock.monotonic() - began < 21


@in_simulated_time
async def test_if_nobody_else_is_there_one_copy_is_enough_and_another_follows() -> None:
    async with Town() as town:
        here, away = town.join("here"), town.join("away")
        here.shelf.archives[CODE] = b"code"
        town.dead.add(away.member.node)
        made = replicator(here, F)
        began = town.clock.monotonic()
        await made.replicate(CODE)
        assert town.clock.monotonic() - began < 6, "one that went a moment ago is waited for, not long"
        assert made.copies(CODE).count == 1
        running = asyncio.ensure_future(made.run())
        await passes(8 * EVERY_S)
        assert made.status == ReplicationStatus(), "there is no second member"
        town.dead.clear()
        await passes(3 * EVERY_S)
        assert holders(town) == {"here", "away"}
        running.cancel()
        await asyncio.wait([running])


@in_simulated_time
async def test_a_member_that_comes_a_moment_later_is_waited_for() -> None:
    async with Town() as town:
        here, late = town.join("here"), town.join("late")
        here.shelf.archives[CODE] = b"code"
        town.timeout_s = 0.01
        town.dead.add(late.member.node)
        asyncio.get_running_loop().call_later(1.0, town.dead.clear)
        await replicator(here).replicate(CODE)
        assert holders(town) == {"here", "late"}


# Mending


@in_simulated_time
async def test_what_a_dead_member_had_is_copied_again_but_not_for_a_short_absence() -> None:
    async with Town() as town:
        here, first, _ = (town.join(name) for name in ("here", "first", "second"))
        for resident in (here, first):
            resident.shelf.archives[CODE] = b"code"
        made = replicator(here, F)
        running = asyncio.ensure_future(made.run())
        await passes(2 * EVERY_S)
        town.dead.add(first.member.node)
        await passes(3 * EVERY_S)
        assert CODE not in town.residents[NodeId("second")].shelf.archives
        town.dead.clear()
        await passes(10 * EVERY_S)
        assert holders(town) == {"here", "first"}
        town.dead.add(first.member.node)
        await passes(12 * EVERY_S)
        assert holders(town) == {"here", "first", "second"}
        assert made.copies(CODE) == CodeCopies(2, 2)
        running.cancel()
        await asyncio.wait([running])


@in_simulated_time
async def test_code_comes_back_from_members_to_a_server_that_has_lost_it() -> None:
    async with Town() as town:
        here, node = town.join("here"), town.join("node")
        node.shelf.archives[CODE] = b"code"
        made = replicator(here, F)
        await ran(made, 1.5 * EVERY_S)
        assert here.shelf.archives[CODE] == b"code"
        assert made.status == ReplicationStatus()


@in_simulated_time
async def test_only_who_leads_repairs_and_everybody_knows_what_is_wrong() -> None:
    async with Town() as town:
        here, other = town.join("here"), town.join("other")
        here.shelf.archives[CODE] = b"code"
        gone = replace(function("gone"), code=Digest("sha256:" + "1" * 64))
        made = replicator(here, F, gone, leads=False)
        await ran(made, 3 * EVERY_S)
        assert holders(town) == {"here"}
        assert made.status == ReplicationStatus(under_replicated=("f",), missing=("gone",))
        assert other.shelf.archives == {}


@in_simulated_time
async def test_nothing_is_copied_until_everybody_could_say_what_it_has() -> None:
    async with Town() as town:
        here, has, _ = (town.join(name) for name in ("here", "has", "third"))
        for resident in (here, has):
            resident.shelf.archives[CODE] = b"code"
        town.dead.add(has.member.node)
        made = replicator(here, F)
        running = asyncio.ensure_future(made.run())
        await passes(3 * EVERY_S)
        assert holders(town) == {"here", "has"}, "a server that has just started asks first"
        running.cancel()
        await asyncio.wait([running])


@in_simulated_time
async def test_copies_are_made_a_few_at_a_time() -> None:
    many = [replace(function(f"f{n}"), code=Digest(f"sha256:{n:064x}")) for n in range(20)]
    async with Town() as town:
        here, other = town.join("here"), town.join("other")
        under_way, most = 0, 0

        async def store(digest: Digest, source: NodeId) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.1)
            under_way -= 1
            other.shelf.archives[digest] = b"code"

        other.store = store  # type: ignore[method-assign]
        for each in many:
            assert each.code is not None
            here.shelf.archives[each.code] = b"code"
        await ran(replicator(here, *many), 5 * EVERY_S)
        assert len(other.shelf.archives) == 20
        assert most == 2
