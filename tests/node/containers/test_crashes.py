"""`kill -9` of the agent after every step of everything it does: nothing is lost and nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterable, Set
from typing import Any

import pytest

from skerry.model.cells import own_name
from skerry.model.containers import ContainerState
from tests.node.cells.real import is_alive
from tests.node.containers.driver import do
from tests.node.containers.real import Agent, Ground, needs_runc, stuck_loops
from tests.support.drivers import Drivers
from tests.support.waiting import eventually_sync

pytestmark = [needs_runc, pytest.mark.root]

Call = tuple[str, ...]
State = dict[str, str]  # containers, and what they are

SCRIPT: list[Call] = [
    ("create", "web1"),
    ("start", "web1"),
    ("create", "other"),
    ("stop", "web1"),
    ("start", "web1"),
    ("start", "other"),
    ("remove", "other"),
    ("remove", "web1"),
    ("create", "alone"),
    ("start", "alone"),
    ("remove", "alone"),
    ("run", "both"),
    ("remove", "both"),
]
STEPS = [
    # The fourth is one that is started at once, as is the fifth start.
    *((f"create.{step}", times) for step in ("recorded", "allocated", "synced") for times in (1, 4)),
    *((f"start.{step}", 5) for step in ("mounted", "running", "recorded")),
    # The second start is one from exited.
    *(
        (f"start.{step}", times)
        for step in (
            *("attached", "layer_opened", "mounted", "bundled"),
            *("published", "running", "recorded"),
        )
        for times in (1, 2)
    ),
    ("start.forgotten", 1),
    *((f"stop.{step}", 1) for step in ("asked", "ended", "recorded")),
    # Once for a stop, then for removals.
    *(
        (f"tidy.{step}", times)
        for step in ("unmounted", "layer_unmounted", "detached", "forgotten", "unbundled")
        for times in (1, 3)
    ),
    *((f"remove.{step}", 1) for step in ("marked", "freed", "discarded", "removed")),
    *((f"cells.start.{step}", 1) for step in ("folder", "group", "running", "recorded")),
    *((f"cells.free.{step}", 1) for step in ("marked", "killed", "group")),
    *((f"network.attach.{step}", 1) for step in ("taken", "recorded")),
    *((f"network.detach.{step}", 1) for step in ("withdrawn", "unrecorded")),
    *((f"{part}.users.{step}", 1) for part in ("network", "containers") for step in ("claimed", "kept")),
]
WISHES = {
    "create": ContainerState.CREATED,
    "start": ContainerState.RUNNING,
    "run": ContainerState.RUNNING,
    "stop": ContainerState.EXITED,
}


def drive(drivers: Drivers, ground: Ground, script: Iterable[Call], *death: str) -> int:
    """Have an agent do `script` until it dies or is done; how many calls were done."""
    arguments = (str(ground.folder), str(ground.image), ground.root, *death)
    text = "".join(json.dumps(call) + "\n" for call in script)
    done = drivers.run("tests.node.containers.driver", *arguments, text=text)
    assert done.returncode == (-signal.SIGKILL if death else 0)
    launcher, *answers = [json.loads(line) for line in done.stdout.splitlines()]
    # It ends by itself, and only then are its inits somebody else's.
    eventually_sync(lambda: not is_alive(launcher["launcher"]))
    return len(answers)


def outcome(calls: Iterable[Call]) -> State:
    """What there is after `calls`."""
    state: State = {}
    for verb, *names in calls:
        for name in names:
            if verb == "remove":
                del state[name]
            else:
                state[name] = WISHES[verb]
    return state


def observed(agent: Agent) -> State:
    return {view.spec.name: view.state for view in agent.containers.list()}


def strays(ground: Ground, agent: Agent) -> list[str]:
    """What belongs to no container, or to one that does not run."""
    state = observed(agent)
    runs = {name for name, what in state.items() if what == ContainerState.RUNNING}
    top = ground.folder / "containers"
    mounted = {path.parent.name for path in ground.mounts() if path.name == "rootfs"}
    layers = {path.parent.name for path in ground.mounts() if path.name == "layer"}
    limited = {view.spec.name for view in agent.containers.list() if view.spec.resources.disk}
    known, bundles = (
        {path.name for path in (top / "boot" / part).glob("*")} for part in ("runtime", "bundles")
    )
    namespaces = {path.name for path in ground.mounts() if path.parent.name == "ns"}
    addresses = {each.address for each in agent.network.attachments().values()}
    found: dict[str, Set[Any]] = {
        "folders": {path.name for path in (top / "all").iterdir()} ^ state.keys(),
        "cells": {view.cell.name for view in agent.cells.list()} - {own_name(name) for name in state},
        "claims": agent.images._claims.keys() ^ state.keys(),
        "mounts": mounted - runs,  # others are mounted in the container alone
        "layers": layers ^ (limited & runs),
        "loop devices": set(stuck_loops(ground.folder)),
        "drafts": set((top / "all").glob("*/.*.new")),
        "runtime": known ^ runs,
        "bundles": bundles ^ runs,
        "addresses": agent.network.attachments().keys() ^ runs,
        "namespaces": addresses - namespaces,
    }
    for view in agent.cells.list():
        alive = {run.pid for run in view.executables if run.exit is None}
        leaves = [leaf for leaf in ground.groups.leaves(view.cell.name) if leaf != "_init"]
        inside = {pid for leaf in leaves for pid in ground.groups.pids(view.cell.name, leaf)}
        found[f"processes of {view.cell.name}"] = inside ^ alive
    return [f"{what}: {sorted(map(str, which))}" for what, which in found.items() if which]


@pytest.mark.parametrize(("step", "times"), STEPS)
async def test_an_agent_that_dies_after_a_step_leaves_what_the_next_one_puts_right(
    drivers: Drivers, ground: Ground, step: str, times: int
) -> None:
    count = await asyncio.to_thread(drive, drivers, ground, SCRIPT, step, str(times))
    done, under_way = SCRIPT[:count], SCRIPT[count]
    before, after = outcome(done), outcome([*done, under_way])
    halfway = {"remove": ContainerState.EXITED, "run": ContainerState.CREATED}
    between = {name: halfway[under_way[0]] for name in under_way[1:] if under_way[0] in halfway}
    async with ground.agent() as agent:
        now = observed(agent)
        assert now in (before, after, before | between)
        for view in agent.containers.list():
            assert (view.pid is not None and is_alive(view.pid)) == (view.state is ContainerState.RUNNING)
        assert strays(ground, agent) == []
        # It is as good as new: what was under way can be done, and so can the rest.
        if now != after:
            await do(agent.containers, *under_way)
        for call in SCRIPT[count + 1 :]:
            await do(agent.containers, *call)
        assert agent.containers.list() == []


@pytest.mark.parametrize(
    "step",
    [
        *("create.recorded", "create.synced", "start.layer_opened", "start.mounted", "start.recorded"),
        *("tidy.unmounted", "tidy.layer_unmounted", "remove.freed", "remove.left", "remove.discarded"),
    ],
)
async def test_the_disk_of_a_stranger_is_left_by_no_dead_agent(
    drivers: Drivers, ground: Ground, step: str
) -> None:
    script = [("create", "guest"), ("start", "guest"), ("remove", "guest")]
    await asyncio.to_thread(drive, drivers, ground, script, step, "1")
    disks = ground.folder / "containers" / "filesystems"
    async with ground.agent() as agent:
        assert strays(ground, agent) == []
        assert len(list(disks.glob("*.ext4"))) in (len(observed(agent)), 0)
        for name, state in observed(agent).items():
            if state != ContainerState.RUNNING:
                await do(agent.containers, "start", name)
            assert len(list(disks.glob("*.ext4"))) == 1
            await do(agent.containers, "remove", name)
        assert list(disks.glob("*.ext4")) == []


async def test_what_is_removed_by_force_goes_on_being_removed(drivers: Drivers, ground: Ground) -> None:
    script = [("create", "web1"), ("start", "web1"), ("create", "web2")]
    count = await asyncio.to_thread(drive, drivers, ground, script, "create.synced", "2")
    assert count == 2
    (ground.folder / "containers/all/web1/removing").touch()
    async with ground.agent() as agent:
        assert observed(agent) in ({}, {"web2": ContainerState.CREATED})
        assert strays(ground, agent) == []
        for view in agent.containers.list():
            await agent.containers.remove(view.spec.name)


async def test_an_end_that_nobody_saw_is_told_with_its_output(drivers: Drivers, ground: Ground) -> None:
    script = [("create", "web1"), ("start", "web1"), ("create", "web2")]
    count = await asyncio.to_thread(drive, drivers, ground, script, "create.recorded", "2")
    assert count == 2
    (pid,) = [pid for name in ground.groups.cells() for pid in ground.groups.pids(name, "_x1")]
    os.kill(pid, signal.SIGKILL)
    eventually_sync(lambda: (ground.folder / "cells/@web1/x1/exit.json").exists())
    async with ground.agent() as agent:
        view = agent.containers.get("web1")
        assert view.exit is not None
        assert (view.state, view.exit.signal) == (ContainerState.EXITED, signal.SIGKILL)
        assert strays(ground, agent) == []
        await do(agent.containers, "remove", *observed(agent))
