"""A node in memory, on which agents come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skerry.model.settings import NodeSettings
from skerry.node.cells.cells import Cells
from tests.node.cells.fakes import FakeCgroups, FakeLauncher, FakeProcesses, Host
from tests.node.cells.real import Ground
from tests.support.folders import paths_below


class Node:
    """A host and the folder of its agent, which may be opened again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cells"
        self.host = Host()
        self.groups = FakeCgroups(self.host)
        self.launcher = FakeLauncher(self.host)
        self.settings = NodeSettings(max_cells=64)
        self.boot = "boot-1"
        self.agents: list[Cells] = []

    async def agent(self, **more: Any) -> Cells:
        cells = await Cells.open(
            self.folder,
            self.groups,
            self.launcher,  # type: ignore[arg-type]
            self.settings,
            self.host.clock,
            boot=self.boot,
            processes=FakeProcesses(self.host, self.launcher),  # type: ignore[arg-type]
            **more,
        )
        self.agents.append(cells)
        return cells

    def leftovers(self) -> list[str]:
        """Everything there is of any cell: processes, groups, leaves, files."""
        return [
            *(f"process {pid}" for pid in self.host.processes),
            *(f"group {name}" for name in self.host.groups),
            *(f"leaf {name}" for name in sorted(self.host.leaves)),
            *(str(path.relative_to(self.folder)) for path in paths_below(self.folder)),
        ]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    for agent in node.agents:
        await agent.close()


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    ground = Ground(tmp_path)
    yield ground
    leftovers = ground.leftovers()
    await ground.clear()
    assert leftovers == []


@pytest.fixture
async def cells(ground: Ground) -> AsyncIterator[Cells]:
    """An agent on real ground; what it still has at the end is freed."""
    async with ground.agent() as cells:
        yield cells
        for view in reversed(cells.list()):
            await cells.free(view.cell.name)
