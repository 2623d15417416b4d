"""What the contracts for cells need of the node that keeps them.

`skerry.node.cells.Cells` fits it; tests use fakes. Both `skerry.wire.own.cells` and `skerry.wire.aurae` speak
to the node only through this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skerry.model.cells import (
    Cell,
    CellUsage,
    Executable,
    ExecutableState,
    ExitStatus,
    OutputChannel,
    Sandbox,
)
from skerry.model.ids import CellName, ExecutableName
from skerry.node.logs.readers import RingReader


class CellDescription(Protocol):
    """A cell as it is now."""

    @property
    def cell(self) -> Cell: ...

    @property
    def uid(self) -> int:
        """Of the user, and of the group, that only this cell has."""
        ...

    @property
    def executables(self) -> Sequence[ExecutableState]: ...


class CellRuntime(Protocol):
    """The cells of a node. Every method raises `skerry.model.errors` and leaves nothing half-done."""

    @property
    def limits_in_v2(self) -> bool: ...

    async def allocate(self, cell: Cell) -> None: ...

    async def free(self, name: CellName) -> None: ...

    async def start(self, executable: Executable, sandbox: Sandbox | None = None) -> ExecutableState: ...

    async def stop(
        self, cell: CellName, name: ExecutableName, *, grace_s: float | None = None
    ) -> ExitStatus: ...

    async def wait(self, cell: CellName, name: ExecutableName) -> ExitStatus: ...

    def list(self) -> Sequence[CellDescription]: ...

    def get(self, name: CellName) -> CellDescription: ...

    def by_pid(self, pid: int) -> ExecutableState: ...

    def logs(self, cell: CellName, name: ExecutableName, stream: OutputChannel) -> RingReader: ...

    def usage(self, name: CellName) -> CellUsage: ...
