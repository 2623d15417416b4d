"""A node in memory: a machine that lasts, and agents on it that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skerry.model.containers import ContainerSpec
from skerry.model.settings import NodeSettings
from skerry.node.containers.containers import Containers
from tests.node.containers.fakes import (
    FakeCells,
    FakeDisks,
    FakeImages,
    FakeNetwork,
    FakeOverlays,
    FakeRuntime,
    Machine,
)


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
        containers = await Containers.open(
            self.top,
            FakeCells(self.machine),  # type: ignore[arg-type]
            self.images,  # type: ignore[arg-type]
            FakeNetwork(self.machine),  # type: ignore[arg-type]
            FakeRuntime(self.machine),  # type: ignore[arg-type]
            self.settings,
            self.machine.clock,
            boot=self.boot,
            overlays=self.overlays,  # type: ignore[arg-type]
            disks=self.disks,  # type: ignore[arg-type]
            **({"reached": self.steps.append} | more),
        )
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

    def left(self) -> list[str]:
        """Everything there is of any container."""
        return [
            *self.machine.held(),
            *(
                str(path.relative_to(self.top))
                for path in sorted(self.top.rglob("*"))
                if path not in (self.folder, self.machine.runtime_folder)
            ),
        ]


def spec(name: str = "web", **more: Any) -> ContainerSpec:
    return ContainerSpec(name, **({"image": "web:1"} | more))
