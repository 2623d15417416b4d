"""Workers in real cells, on a machine of their own whose agents may come and go."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skerry.kit.clock import SystemClock
from skerry.kit.tasks import TaskSupervisor
from skerry.model.calls import CallResult
from skerry.model.containers import NetworkMode
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName
from skerry.model.resources import Megabytes
from skerry.model.settings import FunctionSettings, NetworkSettings, NodeSettings
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.detection import detect
from skerry.node.containers import overlays
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.client import LauncherClient
from skerry.node.network.network import Network
from skerry.node.workers.function_logs import FunctionLogs
from skerry.node.workers.prestarted import WorkerDeps
from skerry.node.workers.process_workers import ProcessWorker, ProcessWorkers
from tests.node.cells import real as cells_real
from tests.node.network import machines

KEY = "f00d0001"
SUBNET = "10.97.0.0/24"
NO_NETWORK = "nft is not installed"
WITHIN_S = 60.0  # far more than anything here takes
_CODE = Digest("sha256:" + "0" * 64)
_numbers = itertools.count()

needs_root = pytest.mark.root(tries=1)


@dataclass
class Agent:
    """An agent that is up."""

    cells: Cells
    workers: ProcessWorkers
    network: Network | None
    launcher: LauncherClient


@dataclass
class Ground:
    """A machine, and the data folder of its agent."""

    folder: Path
    has_network: bool = False
    root: str = field(default_factory=lambda: f"skt-wrk-{os.getpid()}-{next(_numbers)}")
    settings: FunctionSettings = field(default_factory=lambda: FunctionSettings(spare_workers=1))
    node_settings: NodeSettings = field(default_factory=NodeSettings)
    memory_mb: int = 1024

    def __post_init__(self) -> None:
        self.groups = detect(self.root)

    def code(self, name: str = "hello", **files: str) -> Path:
        """The unpacked code of a function: `main="..."` is the file main.py, or main.js if it says so."""
        folder = self.folder / "code" / name
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        for stem, text in files.items():
            path = folder / (stem.removesuffix("_js") + (".js" if stem.endswith("_js") else ".py"))
            path.write_text(text)
            path.chmod(0o644)
        return folder

    @contextlib.asynccontextmanager
    async def agent(self, failpoint: Callable[[str], None] = lambda step: None) -> AsyncIterator[Agent]:
        clock = SystemClock()
        async with contextlib.AsyncExitStack() as undo:
            launcher = await LauncherClient.start(view=HostView(hidden=(str(self.folder),)))
            undo.push_async_callback(launcher.stop)
            cells = await Cells.open(
                self.folder / "cells",
                self.groups,
                launcher,
                self.node_settings,
                clock,
                failpoint=failpoint,
            )
            undo.push_async_callback(cells.close)
            network = None
            if self.has_network:
                network = await Network(
                    self.folder / "network",
                    NetworkSettings(subnet=SUBNET, pool=2, dns=("192.0.2.53",)),
                    clock,
                    key=KEY,
                ).open()
                undo.push_async_callback(network.close)
            logs = FunctionLogs(self.folder / "logs", self.settings.log_bytes)
            folder = self.folder / "workers"
            workers = await ProcessWorkers(
                WorkerDeps(cells, network or NO_NETWORK, logs, clock, folder, failpoint),
                self.settings,
                memory_mb=self.memory_mb,
                kind_of=lambda runtime: runtime.rstrip("0123456789"),
            ).open()
            undo.push_async_callback(workers.close)
            loops = await undo.enter_async_context(TaskSupervisor("test", clock=clock))
            for run in (cells.run, workers.run, *([network.run] if network is not None else [])):
                loops.forever("loop", run)
            yield Agent(cells, workers, network, launcher)

    def function(self, handler: str = "main.handle", **more: Any) -> Function:
        parts: dict[str, Any] = {
            "name": FunctionName("hello"),
            "runtime": "python311",
            "memory": Megabytes(64),
            "created_at": 0.0,
            "handler": handler,
            "code": _CODE,
            "network": NetworkMode.BRIDGE if self.has_network else NetworkMode.NONE,
        }
        return Function(**(parts | more))

    def leftovers(self) -> list[str]:
        """Everything there is of any worker: processes, groups, records, mounts, namespaces and links."""
        cells = cells_real.Ground.__new__(cells_real.Ground)
        cells.root, cells.folder = self.root, self.folder / "cells"
        return [
            *cells.leftovers(),
            *(f"mount {path}" for path in self.mounts()),
            *map(str, (*self.folder.glob("network/attached/*"), *self.folder.glob("network/ns/*"))),
            *map(str, self.folder.glob("logs/.blank/*")),
            *(f"link {name}" for name in self._links()),
        ]

    def mounts(self) -> list[Path]:
        points = overlays.mount_points(Path("/proc/self/mountinfo").read_bytes())
        return [point for point in reversed(points) if point.is_relative_to(self.folder)]

    def _links(self) -> list[str]:
        if not self.has_network:
            return []
        lines = machines.run("ip", "-o", "link").splitlines()
        return [line.split(":")[1].strip() for line in lines if " lo:" not in line]

    async def clear(self) -> None:
        """Whatever a failed test left goes; the machine takes its links with it."""
        for name in reversed(self.groups.cells()):
            self.groups.kill(name)
            await self.groups.emptied(name, within_s=10)
            self.groups.remove(name)
        self.groups.dispose()
        for path in self.mounts():
            machines.run("umount", "-l", str(path))


async def answered(worker: ProcessWorker, params: bytes = b"null", within_s: float = WITHIN_S) -> CallResult:
    return await worker.call(params, wants_output=False, within_s=within_s)
