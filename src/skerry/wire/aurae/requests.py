"""What the document's `runtime.CellService` and the present `aurae.cells.v0.CellService` have in common."""

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
def aurae_words(within: str = "", **names: str) -> Iterator[None]:
    """A bad field is told as Aurae tells it: a failed precondition that begins with the field's path.

    Fields are those of the message `within` the request; `names` has those that the model calls otherwise.
    """
    try:
        yield
    except errors.Invalid as error:
        field = names.get(error.field, error.field)
        path = field if field == within else ".".join(filter(None, (within, field)))
        raise errors.FailedPrecondition(f"Field = {path}; {error.message}", detail=error.detail) from None


async def stop(keeper: CellRuntime, cell: CellName, executable: str) -> None:
    """Stop the executable of that name, or all of the cell if it is empty; those of cells below go on."""
    if executable:
        await keeper.stop(cell, ExecutableName(executable))
        return
    executables = keeper.get(cell).executables
    # At once, so that a cell of many stubborn executables takes the time of one.
    ends = await asyncio.gather(
        *(keeper.stop(cell, each.name) for each in executables), return_exceptions=True
    )
    for end in ends:
        if isinstance(end, errors.NotFound):
            continue  # another caller stopped it
        if isinstance(end, BaseException):
            raise end
