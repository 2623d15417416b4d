"""What `runtime.CellService` and `aurae.cells.v0.CellService` have in common: errors, and stopping
executables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from skerry.model import errors
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.ports import CellRuntime


def require(is_there: bool, field: str) -> None:
    if not is_there:
        raise errors.Invalid("it is required", field=field)


@contextmanager
def aurae_errors(within: str = "", **names: str) -> Iterator[None]:
    """Raises an invalid field as Aurae does: as a failed precondition whose text begins with the field's
    path. `within` is the message in the request that has the fields; `names` maps those that have another
    name in the model.
    """
    try:
        yield
    except errors.Invalid as error:
        field = names.get(error.field, error.field)
        path = field if field == within else ".".join(filter(None, (within, field)))
        raise errors.FailedPrecondition(f"Field = {path}; {error.message}", detail=error.detail) from None


async def stop(cells: CellRuntime, cell: CellName, executable: str) -> None:
    """Stop the executable of that name, or all of the cell if the name is empty; those of nested cells keep
    running."""
    if executable:
        await cells.stop(cell, ExecutableName(executable))
        return
    executables = cells.get(cell).executables
    # At once, so that a cell of many stubborn executables takes the time of one.
    ends = await asyncio.gather(
        *(cells.stop(cell, each.name) for each in executables), return_exceptions=True
    )
    for end in ends:
        if isinstance(end, errors.NotFound):
            continue  # another caller stopped it
        if isinstance(end, BaseException):
            raise end
