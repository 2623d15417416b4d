"""Reports of cells: what a node says of each of its cells when somebody asks, with what it uses now.

One line of JSON each, over a tunnel (`skerry.model.streams.CellListRequest`). `tree` puts them below each
other as their names say. Only readers of nodes get them: a node has cells of all namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from skerry.model import errors
from skerry.model.cells import CellLimits, CellOwner, upwards
from skerry.model.ids import CellName, FunctionName, InstanceId
from skerry.model.resources import Millicores

MAX_CELLS = 20_000  # of one node
MAX_BYTES = 16 * 1024 * 1024
MAX_EXECUTABLES = 16  # that are named; more are counted


class CellReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cell, with everything in it."""

    name: CellName
    owner: CellOwner | None = None  # None: a client's
    instance: InstanceId = InstanceId("")  # that it is the container, or the leased cell, of
    limits: CellLimits = CellLimits()
    cpu: Millicores = Millicores(0)  # average of a moment
    memory_bytes: int = 0
    pids: int = 0
    executables: tuple[str, ...] = ()  # names of those that run, at most `MAX_EXECUTABLES`
    running: int = 0  # how many run
    is_freeing: bool = False
    function: FunctionName = FunctionName("")  # that it is a worker of


def decode_lines(data: bytes) -> list[CellReport]:
    """The reports of some whole lines."""
    try:
        return _decoder.decode_lines(data)
    except msgspec.DecodeError as error:
        raise errors.Unavailable("the node sent a list of cells that cannot be read") from error


def tree(reports: Iterable[CellReport]) -> tuple[Sequence[CellReport], Mapping[CellName, list[CellReport]]]:
    """Those at the top, and those directly in each cell, by name. One whose parent is not there stands below
    the nearest cell that is."""
    known = {one.name: one for one in reports}
    top: list[CellReport] = []
    inside: dict[CellName, list[CellReport]] = {}
    for name in sorted(known, key=lambda name: name.split("/")):
        above = next((one for one in upwards(name) if one != name and one in known), None)
        (top if above is None else inside.setdefault(above, [])).append(known[name])
    return top, inside


_decoder = msgspec.json.Decoder(CellReport)
