"""Containers that are created to be started at once: all or nothing, and the disk meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

import pytest

from skerry.model import errors
from skerry.model.containers import ContainerState
from skerry.model.ports import PortMapping
from skerry.node.containers import containers as containers_module
from skerry.node.containers import startup
from skerry.node.containers.records import ContainerRecords
from skerry.node.containers.start_slots import StartSlots
from tests.node.containers.nodes import Node, spec
from tests.support.waiting import PATIENCE_S, eventually


async def test_what_is_created_and_started_at_once_runs_and_is_durable(node: Node) -> None:
    containers = await node.agent()
    view = await containers.create(spec(ports=(PortMapping(8080, 80),)), starts=True)
    assert view.state is ContainerState.RUNNING
    assert node.steps[-1] == "create.synced"
    await node.leave()
    assert (await node.agent()).get("web").state is ContainerState.RUNNING


@pytest.mark.parametrize("call", ["attach", "mount", "start", "publish"])
async def test_nothing_is_left_of_what_was_created_to_be_started_and_does_not_start(
    node: Node, call: str
) -> None:
    containers = await node.agent()
    node.machine.failing[call] = errors.Unavailable("not now")
    with pytest.raises(errors.Unavailable, match="not now"):
        await containers.create(spec(ports=(PortMapping(8080, 80),)), starts=True)
    assert containers.list() == []
    assert node.leftovers() == []
    await containers.create(spec(), starts=True)


async def test_what_runs_and_cannot_be_made_durable_is_not_left_running(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    containers = await node.agent()
    monkeypatch.setattr(ContainerRecords, "sync", refuse)
    with pytest.raises(errors.Unavailable, match="No space left"):
        await containers.create(spec(), starts=True)
    assert "start.running" in node.steps
    assert containers.list() == []
    assert node.leftovers() == []


async def test_what_is_started_for_a_caller_that_goes_away_is_removed(node: Node) -> None:
    def go(step: str) -> None:
        if step == "start.attached":
            starting.cancel()

    containers = await node.agent(failpoint=go)
    starting = asyncio.create_task(containers.create(spec(), starts=True))
    with pytest.raises(asyncio.CancelledError):
        await starting
    await eventually(lambda: node.leftovers() == [])
    assert containers.list() == []


async def test_starts_wait_for_slots_and_those_of_guests_do_not(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "StartSlots", lambda: slots)
    slots = StartSlots(1, longest_s=3600.0)
    containers = await node.agent()
    async with slots.hold():
        waiting = asyncio.create_task(containers.create(spec("ours"), starts=True))
        await eventually(lambda: "start.attached" in node.steps)
        guest = await containers.create(spec("guest", is_isolated=True, inside="lent"), starts=True)
        assert guest.state is ContainerState.RUNNING
        assert not waiting.done()
    assert (await waiting).state is ContainerState.RUNNING


async def test_of_starts_that_are_not_prepared_yet_there_is_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers_module, "StartSlots", lambda: preparing)
    preparing = StartSlots(1, longest_s=3600.0)
    containers = await node.agent()
    async with preparing.hold():
        waiting = asyncio.create_task(containers.create(spec("ours"), starts=True))
        guest = await containers.create(spec("guest", is_isolated=True, inside="lent"), starts=True)
        assert guest.state is ContainerState.RUNNING
        assert node.steps.count("create.recorded") == 1
        assert not waiting.done()
    assert (await waiting).state is ContainerState.RUNNING
    await containers.stop("ours")
    assert (await containers.start("ours")).state is ContainerState.RUNNING


async def test_a_start_is_prepared_until_its_runtime_works_and_no_longer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(self: ContainerRecords, names: Iterable[str]) -> None:
        assert may_end.wait(PATIENCE_S)

    monkeypatch.setattr(containers_module, "StartSlots", lambda: StartSlots(1, longest_s=3600.0))
    monkeypatch.setattr(ContainerRecords, "sync", sync)
    may_end = threading.Event()
    containers = await node.agent()
    starts = [asyncio.create_task(containers.create(spec(name), starts=True)) for name in ("a", "b")]
    await eventually(lambda: node.steps.count("start.running") == 2)
    assert not any(start.done() for start in starts)
    may_end.set()
    await asyncio.gather(*starts)


async def test_the_lock_that_the_runtime_needs_is_taken_when_that_is_requested_and_no_earlier(
    node: Node,
) -> None:
    class Lock:
        steps: tuple[str, ...] = ()
        ended: tuple[str, ...] = ()

        async def begin(self, start: str) -> None:
            assert start == "web"
            self.steps = tuple(node.steps)

        def end(self, start: str) -> None:
            assert start == "web"
            self.ended = tuple(node.steps)

        async def close(self) -> None: ...

    lock = Lock()
    containers = await node.agent(move_lock=lock)
    await containers.create(spec(), starts=True)
    assert "start.bundled" in lock.steps
    assert "start.running" in lock.ended


async def test_creations_that_come_while_the_disk_syncs_share_the_next_sync(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_syncing, may_end = threading.Event(), threading.Event()
    synced: list[list[str]] = []

    def sync(self: ContainerRecords, names: Iterable[str]) -> None:
        synced.append(sorted(names))
        is_syncing.set()
        assert may_end.wait(PATIENCE_S)

    monkeypatch.setattr(ContainerRecords, "sync", sync)
    containers = await node.agent()
    first = asyncio.create_task(containers.create(spec("a")))
    await asyncio.to_thread(is_syncing.wait, PATIENCE_S)
    others = [asyncio.create_task(containers.create(spec(name))) for name in ("b", "c", "d")]
    await eventually(lambda: node.steps.count("create.allocated") == 4)
    assert not any(task.done() for task in (first, *others))
    may_end.set()
    await asyncio.gather(first, *others)
    assert synced == [["a"], ["b", "c", "d"]]
