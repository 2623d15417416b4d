"""Cells and executables in the agent's memory, and the OOM verdict on an exit.

`Cells` owns these, with the records on disk beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from skerry.kit.clock import Clock
from skerry.model.cells import Cell, Executable, ExecutableState, ExitStatus
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import NodeSettings
from skerry.node.cells.processes import HostProcesses
from skerry.node.cells.records import CellRecord, CellRecords, ExitRecord, ProcessRecord
from skerry.node.cgroups.protocol import Cgroups
from skerry.node.launcher.cell_inits import CellInit
from skerry.node.launcher.client import LauncherClient
from skerry.node.launcher.specs import ProcessExit

_SIGKILL = 9
_SHELL_CODE_OF_SIGKILL = 128 + _SIGKILL


class CellDeps(msgspec.Struct, frozen=True):
    """Dependencies of the modules that work on cells."""

    groups: Cgroups
    launcher: LauncherClient
    records: CellRecords
    settings: NodeSettings
    clock: Clock
    processes: HostProcesses
    # Called after every step that a crash may follow: tests end the process there.
    failpoint: Callable[[str], None] = lambda step: None


class CellView(msgspec.Struct, frozen=True):
    """The public state of a cell."""

    cell: Cell
    uid: int
    allocated_at: float
    is_freeing: bool
    executables: tuple[ExecutableState, ...]


@dataclass(slots=True, eq=False)
class ExecutableEntry:
    """An executable that was started and not yet removed."""

    spec: Executable
    number: int  # of its folder and its group
    started: ProcessRecord
    init: CellInit | None  # that runs it; None if that is dead
    exit: asyncio.Future[ExitStatus] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    was_killed: bool = False  # by the agent
    kill_at: float | None = None  # while it is being ended: monotonic time of the SIGKILL

    @property
    def leaf(self) -> str:
        return leaf_of(self.number)

    @property
    def has_ended(self) -> bool:
        return self.exit.done()

    def state(self) -> ExecutableState:
        return ExecutableState(
            name=self.spec.name,
            cell=self.spec.cell,
            command=self.spec.command,
            description=self.spec.description,
            pid=self.started.pid,
            started_at=self.started.at,
            exit=self.exit.result() if self.exit.done() else None,
        )


@dataclass(slots=True, eq=False)
class CellEntry:
    """A cell and what is in it."""

    record: CellRecord
    init: CellInit | None = None
    follower: asyncio.Task[None] | None = None
    had_init: bool = False  # or may have had: its group may be left
    making: asyncio.Lock = field(default_factory=asyncio.Lock)  # one init is created at a time
    executables: dict[ExecutableName, ExecutableEntry] = field(default_factory=dict)
    last_number: int = 0
    early_exit: ProcessExit | None = None  # of the last executable, reported before its start was
    is_freeing: bool = False

    @property
    def name(self) -> CellName:
        return self.record.cell.name

    def number(self) -> int:
        """A fresh number for an executable; unique in this agent's lifetime."""
        self.last_number += 1
        return self.last_number

    def by_number(self, number: int) -> ExecutableEntry | None:
        return next((each for each in self.executables.values() if each.number == number), None)

    def running(self) -> list[ExecutableEntry]:
        return [each for each in self.executables.values() if not each.has_ended]

    def view(self) -> CellView:
        return CellView(
            cell=self.record.cell,
            uid=self.record.uid,
            allocated_at=self.record.at,
            is_freeing=self.is_freeing,
            executables=tuple(each.state() for each in self.executables.values()),
        )


def leaf_of(number: int) -> str:
    """The group of an executable; no cell name begins with `_`."""
    return f"_x{number}"


def may_be_oom(record: ExitRecord) -> bool:
    """True if it was killed by SIGKILL; a shell reports the death of its child as an exit code."""
    return record.signal == _SIGKILL or record.code == _SHELL_CODE_OF_SIGKILL


def with_oom_verdict(record: ExitRecord, executable: ExecutableEntry, ooms: Callable[[], int]) -> ExitRecord:
    """`record` with `oom` set; `ooms` reads the kernel's counter.

    The kernel counts OOM kills without saying whom. So it was one if the executable was killed, not by us,
    and the count has increased.
    """
    if record.oom is not None:
        return record
    oom = may_be_oom(record) and not executable.was_killed and ooms() > executable.started.ooms
    return msgspec.structs.replace(record, oom=oom)


def exit_of(record: ExitRecord) -> ExitStatus:
    return ExitStatus(at=record.at, code=record.code, signal=record.signal, oom=bool(record.oom))
