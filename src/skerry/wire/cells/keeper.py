"""What the contracts for cells need of the node that keeps them.

`skerry.node.cells.Cells` fits it; tests use fakes. Both `skerry.wire.cells` and `skerry.wire.aurae` speak to
the node only through this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skerry.model.cells import Cell, Executable, ExecutableState, Exit, Sandbox, Stream, Usage
from skerry.model.ids import CellName, ExecutableName
from skerry.node.logs.merging import Output


class CellView(Protocol):
    """A cell as it is now."""

    @property
    def cell(self) -> Cell: ...

    @property
    def executables(self) -> Sequence[ExecutableState]: ...


class CellKeeper(Protocol):
    """The cells of a node. Every method raises `skerry.model.errors` and leaves nothing half-done."""

    @property
    def limits_in_v2(self) -> bool: ...

    async def allocate(self, cell: Cell) -> None: ...

    async def free(self, name: CellName) -> None: ...

    async def start(self, executable: Executable, sandbox: Sandbox | None = None) -> ExecutableState: ...

    async def stop(self, cell: CellName, name: ExecutableName, *, grace_s: float | None = None) -> Exit: ...

    async def wait(self, cell: CellName, name: ExecutableName) -> Exit: ...

    def list(self) -> Sequence[CellView]: ...

    def by_pid(self, pid: int) -> ExecutableState: ...

    def logs(self, cell: CellName, name: ExecutableName, stream: Stream) -> Output: ...

    def usage(self, name: CellName) -> Usage: ...
