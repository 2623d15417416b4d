"""Containers as the agent has them in memory, and what working on them takes.

`Containers` owns these, with the records on disk beside them.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from skerry.kit.clock import Clock
from skerry.model.cells import MAX_COMMAND, Cell, Limits
from skerry.model.containers import ContainerSpec, ContainerState, ContainerView
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import NodeSettings
from skerry.node.cells.cells import Cells
from skerry.node.containers.disks import Disks, LimitKind
from skerry.node.containers.overlays import Overlays
from skerry.node.containers.records import ContainerRecord, Place, Records, RunRecord
from skerry.node.containers.runtimes import OciRuntime
from skerry.node.images.images import Images
from skerry.node.network.network import Network

MAIN = ExecutableName("main")  # what the container runs, as an executable of its cell
_GIGABYTE = 1024**3


@dataclass(frozen=True, slots=True)
class Means:
    """What working on containers takes."""

    records: Records
    cells: Cells
    images: Images
    network: Network
    runtime: OciRuntime
    overlays: Overlays
    disks: Disks
    settings: NodeSettings
    clock: Clock
    boot: str
    # Told after every step that a crash may follow: tests end the process there.
    reached: Callable[[str], None] = lambda step: None


@dataclass(slots=True, eq=False)
class Container:
    """A container that was created and not yet removed."""

    record: ContainerRecord
    place: Place
    run: RunRecord | None = None  # the last one
    pid: int | None = None
    address: str = ""
    is_removing: bool = False
    has_leftovers: bool = False  # a run has ended and still holds something
    watcher: asyncio.Task[None] | None = None
    # Of the run that goes on: what became of it, told when everything that it held is free again.
    ended: asyncio.Future[RunRecord] | None = None
    patience: asyncio.Timeout | None = None  # while it is asked to end; when it is over, it is killed
    reason: str = ""  # why it is being ended, if nobody asked for that
    disk_limit_kind: LimitKind = LimitKind.NONE

    @property
    def name(self) -> str:
        return self.record.spec.name

    @property
    def cell(self) -> CellName:
        return self.record.cell.name

    @property
    def is_running(self) -> bool:
        return self.ended is not None

    @property
    def disk_limit(self) -> int | None:
        """In bytes; None if it has none."""
        return self.record.spec.room.disk * _GIGABYTE or None

    @property
    def state(self) -> ContainerState:
        if self.is_removing:
            return ContainerState.REMOVING
        if self.is_running:
            return ContainerState.RUNNING
        return ContainerState.CREATED if self.run is None else ContainerState.EXITED

    def view(self) -> ContainerView:
        return ContainerView(
            spec=self.record.spec,
            image=self.record.image,
            state=self.state,
            created_at=self.record.created_at,
            address=self.address,
            pid=self.pid,
            started_at=self.run.started_at if self.run is not None else None,
            exit=self.run.exit if self.run is not None else None,
            reason=self.run.reason if self.run is not None else "",
        )


def make_container(means: Means, record: ContainerRecord, run: RunRecord | None = None) -> Container:
    """A container that does not run."""
    container = Container(record, means.records.place(record.spec.name), run)
    if container.disk_limit is not None:
        container.disk_limit_kind = means.disks.kind  # as it will be; a start finds out how it is
    return container


def in_words(arguments: tuple[str, ...]) -> str:
    """A command line for people who look at the cell, cut off where that takes no more."""
    return shlex.join(arguments)[:MAX_COMMAND]


def cell_name(spec: ContainerSpec) -> CellName:
    """What the cell of a container is called."""
    return CellName(f"{spec.inside}/{spec.name}" if spec.inside else spec.name)


def cell_for(spec: ContainerSpec, settings: NodeSettings) -> Cell:
    """The cell that a container runs in. Namespaces are the runtime's to make."""
    return Cell(
        name=cell_name(spec),
        limits=Limits(
            cpu_quota=spec.room.cpu or None,
            memory=spec.room.memory or None,
            pids=spec.pids or settings.container_pids,
        ),
        isolates_processes=False,
    )
