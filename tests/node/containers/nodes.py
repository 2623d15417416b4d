"""A node in memory: a machine that lasts, and agents on it that come and go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from skerry.model.cells import OWN_MARK
from skerry.model.containers import ContainerSpec
from skerry.model.settings import NodeSettings
from skerry.node.containers.containers import Containers
from skerry.node.containers.records import ContainerRecords
from skerry.node.containers.state import ContainerDeps
from tests.node.containers.fakes import (
    FakeCells,
    FakeDisks,
    FakeImages,
    FakeNetwork,
    FakeOverlays,
    FakeRuntime,
    FakeUserNamespaces,
    Machine,
)
from tests.support.folders import paths_below


class Node:
    """The folder of an agent, which may be opened again and again."""

    def __init__(self, folder: Path) -> None:
        self.top = folder / "containers"
        self.folder = self.top / "all"
        self.machine = Machine(self.top)
        self.settings = NodeSettings(stop_grace_s=5.0)
        self.boot = "boot-1"
        self.images = FakeImages(self.machine)
        self.overlays = FakeOverlays(self.machine)
        self.disks = FakeDisks(self.machine)
        self.agents: list[Containers] = []
        self.steps: list[str] = []

    async def agent(self, **more: Any) -> Containers:
        parts = ContainerDeps(
            ContainerRecords(self.top),
            FakeCells(self.machine),  # type: ignore[arg-type]
            self.images,  # type: ignore[arg-type]
            FakeNetwork(self.machine),  # type: ignore[arg-type]
            FakeRuntime(self.machine),  # type: ignore[arg-type]
            settings=self.settings,
            clock=self.machine.clock,
            boot=self.boot,
            overlays=self.overlays,  # type: ignore[arg-type]
            disks=self.disks,  # type: ignore[arg-type]
            users=FakeUserNamespaces(),  # type: ignore[arg-type]
            **({"failpoint": self.steps.append} | more),
        )
        containers = await Containers(parts).open()
        self.agents.append(containers)
        return containers

    async def leave(self) -> None:
        """The agents end, and the machine goes on."""
        while self.agents:
            await self.agents.pop().close()

    def reboot(self) -> None:
        """The machine goes down and comes up; what is on disk stays."""
        self.boot += "'"
        self.machine.cells.clear()
        self.machine.processes.clear()
        self.machine.attached.clear()
        self.machine.published.clear()
        self.machine.mounts.clear()
        self.machine.claims.clear()

    def downgrade(self, *, has_owners: bool) -> None:
        """Have everything as a version left it that did not mark the names of its own cells."""
        self.machine.unmark(has_owners=has_owners)
        for path in self.folder.glob("*/container.json"):
            unmark_record(path, has_owners=has_owners)

    def leftovers(self) -> list[str]:
        """Everything there is of any container."""
        return [
            *self.machine.held(),
            *(
                str(path.relative_to(self.top))
                for path in paths_below(self.top)
                if path not in (self.folder, self.machine.runtime_folder)
            ),
        ]


def unmark_record(path: Path, *, has_owners: bool) -> None:
    """Have a record that names a cell as a version wrote it that did not mark the names of its own."""
    record = json.loads(path.read_bytes())
    record["cell"]["name"] = record["cell"]["name"].removeprefix(OWN_MARK)
    if not has_owners:
        del record["cell"]["owner"]
    path.write_text(json.dumps(record))


def spec(name: str = "web", **more: Any) -> ContainerSpec:
    return ContainerSpec(name, **({"image": "web:1"} | more))


async def running(node: Node, name: str = "web", **more: object) -> Containers:
    """An agent with a container that runs."""
    containers = await node.agent()
    await containers.create(spec(name, **more))
    await containers.start(name)
    return containers
