"""What came of an async call is with a second member, and is found there when its origin is gone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from skerry.functions.asynchronous import results
from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.asynchronous.runner import AsyncCallRunner
from skerry.functions.continuum.replica_placement import (
    find_holder,
    origin_holder,
    origin_suffix,
    queried_holders,
    result_holders,
)
from skerry.functions.continuum.result_replication import ResultCopies
from skerry.kit.backoff import Backoff
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallResult, CallState
from skerry.model.ids import FunctionName, NodeId
from skerry.model.members import ContinuumMember
from tests.functions.asynchronous.callers import Echo, as_after_a_kill, ask, asynchronous, ended
from tests.functions.continuum.simulated_members import Resident, Town, accepting
from tests.support.waiting import eventually
from tests.support.workers import function

ASK = CallRequest(FunctionName("f"), b"[1]")
REPORT = CallReport(CallResult(0.5, b"[1]"), 1.0, node="n")
DONE = AsyncCallResult(CallState.DONE, REPORT)
NAMES = ("origin", "one", "two")


class DurableTown:
    """Members with async calls on disk, each of which copies its results once it is told to."""

    def __init__(self, town: Town, folder: Path, stack: AsyncExitStack) -> None:
        self.town = town
        self.folder = folder
        self._stack = stack
        self.calls: dict[str, AsyncCallRunner] = {}
        self._lives: dict[str, AsyncExitStack] = {}

    async def start(self, name: str) -> None:
        """A process of this member, with what is on its disk."""
        life = self._lives[name] = await self._stack.enter_async_context(AsyncExitStack())
        folder = self.folder / name
        self.calls[name] = await life.enter_async_context(accepting(self.resident(name), folder))
        self.town.dead.discard(NodeId(name))

    async def copy(self, name: str) -> ResultCopies:
        resident = self.resident(name)
        peers = resident.continuum.places.peers
        copies = ResultCopies(
            resident.links,
            lambda: [peer.member for peer in peers.values()],
            self.calls[name].store,
            self.town.clock,
            check_s=0.02,
            unreachable_s=0.1,
            backoff=Backoff(first_s=0.01, cap_s=0.05),
        )
        self.calls[name].listen(copies.check_soon)
        running = asyncio.create_task(copies.run())
        self._lives[name].push_async_callback(cancel_and_wait, [running])
        return copies

    async def kill(self, name: str, *, disk: Path | None = None) -> None:
        """End its process; its disk is `disk` then, or lost."""
        self.town.dead.add(NodeId(name))
        await self._lives.pop(name).aclose()
        del self.calls[name]
        shutil.rmtree(self.folder / name)
        if disk is not None:
            disk.rename(self.folder / name)

    async def finish_call(self, name: str) -> str:
        id = await self.resident(name).polls.accept(ASK)
        await eventually(lambda: ended(self.calls[name], id))
        return id

    async def has(self, name: str, id: str) -> bool:
        return name in self.calls and await self.calls[name].store.read(id) is not None

    async def holders(self, id: str) -> set[str]:
        return {name for name in self.calls if await self.has(name, id)}

    def resident(self, name: str) -> Resident:
        return self.town.residents[NodeId(name)]


@asynccontextmanager
async def durable_town(folder: Path, *names: str) -> AsyncIterator[DurableTown]:
    async with AsyncExitStack() as stack:
        town = await stack.enter_async_context(Town(function("f", memory=16), timeout_s=0.01))
        made = DurableTown(town, folder, stack)
        for name in names:
            town.join(name, ping_s=0.02, is_server=name.startswith("server"))
            await made.start(name)
        await town.meet()
        yield made


def test_servers_come_first_and_only_a_few_members_may_have_a_copy() -> None:
    members = [
        ContinuumMember(NodeId(f"n{n}"), f"n{n}", "a", address=f"n{n}:1", is_server=n in (3, 5))
        for n in range(12)
    ]
    likely = result_holders("f-1", members)
    assert {member.node for member in likely[:2]} == {"n3", "n5"}
    assert len(likely) == 4
    assert result_holders("f-1", reversed(members)) == likely
    sought = queried_holders("f-1", members)
    assert (sought[:4], len(sought)) == (likely, 8)


def test_a_holder_is_a_member_by_its_id_or_as_the_origin_of_a_call() -> None:
    members = [ContinuumMember(NodeId(f"n{n}"), f"n{n}", "a", address=f"n{n}:1") for n in range(3)]
    assert find_holder("n1", members) is members[1]
    assert find_holder(origin_holder(f"f-1-{origin_suffix(NodeId('n2'))}"), members) is members[2]
    assert find_holder("n7", members) is None
    assert find_holder(origin_holder("f-01k0000000000000000000000"), members) is None


async def test_a_result_is_found_anywhere_after_its_origin_is_gone(tmp_path: Path) -> None:
    async with durable_town(tmp_path, *NAMES, "server") as cloud:
        await cloud.copy("origin")
        done = await cloud.finish_call("origin")
        await eventually(lambda: cloud.has("server", done))
        assert await cloud.holders(done) == {"origin", "server"}
        waiting = f"f-1-{origin_suffix(NodeId('origin'))}"
        await cloud.kill("origin")
        for name in ("one", "two", "server"):
            polled = await cloud.resident(name).polls.poll(done)
            assert polled is not None
            assert polled.state is CallState.DONE
            with pytest.raises(errors.Unavailable, match="cannot be reached"):
                await cloud.resident(name).polls.poll(waiting)
        # Also when nobody remembers that there was such a member.
        members = [cloud.resident(name).member for name in ("one", "two", "server")]
        for name in ("one", "two", "server"):
            cloud.resident(name).continuum.follow(members)
            polled = await cloud.resident(name).polls.poll(done)
            assert polled is not None
            assert polled.state is CallState.DONE
            assert await cloud.resident(name).polls.poll(waiting) is None


async def test_a_result_whose_origin_was_killed_before_it_was_copied_is_copied_after_its_restart(
    tmp_path: Path,
) -> None:
    async with durable_town(tmp_path / "disks", *NAMES) as cloud:
        id = await cloud.finish_call("origin")  # and nothing is copied
        disk = as_after_a_kill(tmp_path / "disks/origin", tmp_path / "disk")
        await cloud.kill("origin", disk=disk)
        await cloud.start("origin")
        await cloud.copy("origin")
        await eventually(lambda: are_holders(cloud, id, 2))
        await cloud.kill("origin")
        for name in ("one", "two"):
            polled = await cloud.resident(name).polls.poll(id)
            assert polled is not None
            assert polled.report is not None
            assert polled.report.answer.result == b"[1]"


async def are_holders(cloud: DurableTown, id: str, count: int) -> bool:
    return len(await cloud.holders(id)) == count


async def test_a_call_that_a_kill_interrupted_is_told_so_by_others_too(tmp_path: Path) -> None:
    async with durable_town(tmp_path / "disks", *NAMES) as cloud:
        store = cloud.calls["origin"].store
        id = f"f-1-{origin_suffix(NodeId('origin'))}"
        await store.accept(id, "0/f", 0.0, results.pack_request(ASK))
        await store.start(id)
        disk = as_after_a_kill(tmp_path / "disks/origin", tmp_path / "disk")
        await cloud.kill("origin", disk=disk)
        await cloud.start("origin")
        await cloud.copy("origin")
        await eventually(lambda: are_holders(cloud, id, 2))
        await cloud.kill("origin")
        polled = await cloud.resident("one").polls.poll(id)
        assert polled is not None
        assert polled.report is not None
        assert polled.report.answer.failure is CallFailure.INTERRUPTED


async def test_a_member_that_is_away_leaves_the_copy_to_the_next(tmp_path: Path) -> None:
    async with durable_town(tmp_path, *NAMES) as cloud:
        id = await cloud.finish_call("origin")
        first, other = result_holders(id, [cloud.resident(name).member for name in ("one", "two")])
        cloud.town.dead.add(first.node)
        await cloud.copy("origin")
        await eventually(lambda: cloud.has(other.name, id))
        assert await cloud.holders(id) == {"origin", other.name}


async def test_a_result_that_all_members_refuse_is_tried_until_one_takes_it(tmp_path: Path) -> None:
    async with durable_town(tmp_path, *NAMES) as cloud:
        cloud.town.full = {NodeId(name): errors.Unavailable("full") for name in ("one", "two")}
        await cloud.copy("origin")
        id = await cloud.finish_call("origin")

        async def was_tried() -> bool:
            waiting = await cloud.calls["origin"].store.uncopied(cloud.town.clock.now() + 1e9, 10)
            return [result.id for result in waiting if result.tries > 1] == [id]

        await eventually(was_tried)
        assert await cloud.holders(id) == {"origin"}
        cloud.town.full.clear()
        await eventually(lambda: are_holders(cloud, id, 2))


async def test_results_of_a_member_that_was_alone_are_copied_when_another_joins(tmp_path: Path) -> None:
    async with durable_town(tmp_path, "origin") as cloud:
        copies = await cloud.copy("origin")
        ids = [await cloud.finish_call("origin") for _ in range(3)]
        cloud.town.join("late", ping_s=0.02)
        await cloud.start("late")
        await cloud.town.meet()
        copies.members_changed()
        for id in ids:
            await eventually(lambda id=id: cloud.has("late", id))


async def test_when_the_holder_of_a_copy_or_the_origin_is_lost_another_copy_is_made(tmp_path: Path) -> None:
    async with durable_town(tmp_path, *NAMES, "three") as cloud:
        for name in cloud.calls:
            await cloud.copy(name)
        id = await cloud.finish_call("origin")
        await eventually(lambda: are_holders(cloud, id, 2))
        (holder,) = await cloud.holders(id) - {"origin"}
        await cloud.kill(holder)
        await eventually(lambda: are_holders(cloud, id, 2))
        await cloud.kill("origin")
        await eventually(lambda: are_holders(cloud, id, 2))
        for name in cloud.calls:
            polled = await cloud.resident(name).polls.poll(id)
            assert polled is not None
            assert polled.state is CallState.DONE


async def test_a_holder_that_comes_back_without_its_disk_is_given_its_copies_again(tmp_path: Path) -> None:
    async with durable_town(tmp_path, "origin", "one") as cloud:
        await cloud.copy("origin")
        id = await cloud.finish_call("origin")
        await eventually(lambda: cloud.has("one", id))
        await cloud.kill("one")
        await cloud.start("one")
        await eventually(lambda: cloud.has("one", id))


async def test_a_copy_is_durable_found_again_and_expires_like_any_result(tmp_path: Path) -> None:
    clock = ManualClock()
    body = results.pack_report(REPORT)
    async with asynchronous(tmp_path, Echo(), clock, is_run=False) as calls:
        await calls.keep_copy("f-1-aaaaaa", CallState.DONE, clock.now() + 1e9, body, holder="*")
        await calls.keep_copy("f-1-aaaaaa", CallState.FAILED, clock.now(), body, holder="*")
        assert await calls.poll("f-1-aaaaaa") == DONE, "the first one stays"
        for state in (CallState.QUEUED, CallState.RUNNING, CallState.EXPIRED):
            with pytest.raises(errors.Invalid):
                await calls.keep_copy("f-2-aaaaaa", state, clock.now(), body, holder="*")
        with pytest.raises(errors.Invalid, match="no report"):
            await calls.keep_copy("f-2-aaaaaa", CallState.DONE, clock.now(), b"nonsense", holder="*")
        assert await calls.poll("f-2-aaaaaa") is None
    async with asynchronous(tmp_path, Echo(), clock, is_run=False) as calls:
        assert await calls.poll("f-1-aaaaaa") == DONE
        clock.advance(1801)
        await calls.sweep()
        assert await calls.poll("f-1-aaaaaa") == AsyncCallResult(CallState.EXPIRED), (
            "whatever time its origin said"
        )


async def test_who_listens_is_told_when_a_call_has_ended_and_it_can_be_read(tmp_path: Path) -> None:
    heard: list[bool] = []
    async with asynchronous(tmp_path, Echo()) as calls:
        calls.listen(lambda: heard.append(True))
        id = await calls.accept(ask(b"[1]"))
        await eventually(lambda: ended(calls, id))
        await eventually(lambda: heard == [True])
        (waiting,) = await calls.store.uncopied(1e18, 10)
        assert (waiting.id, waiting.tries) == (id, 0)
