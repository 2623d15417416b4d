"""Containers that are created to be started at once: all or nothing, and the disk meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from skerry.model import errors
from skerry.model.containers import ContainerState
from skerry.model.ports import PortMapping
from skerry.node.containers.records import ContainerRecords
from tests.node.containers.nodes import Node, spec
from tests.support.waiting import eventually


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
