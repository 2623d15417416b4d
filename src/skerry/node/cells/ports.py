"""The interface of cells for the gRPC contracts.

`skerry.node.cells.Cells` implements it; tests use fakes. `skerry.wire.own.cells` and `skerry.wire.aurae` use
the node's cells only through it.
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
    """The current state of a cell."""

    @property
    def cell(self) -> Cell: ...

    @property
    def uid(self) -> int:
        """Uid and gid that only this cell has."""
        ...

    @property
    def executables(self) -> Sequence[ExecutableState]: ...


class CellRuntime(Protocol):
    """The cells of a node. Every method raises `skerry.model.errors` and leaves nothing half done."""

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
