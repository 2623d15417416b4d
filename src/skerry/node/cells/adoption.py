"""What an agent that starts makes of what an earlier one left: a decision without effects.

The earlier agent may have been killed between any two steps, so the records, the groups and the processes
need not agree. `plan` compares them; `Cells.open` does what it says. The rules:

- A cell goes on if its record is of this boot, its group is whole, its freeing was not begun, and its parent
  goes on. Every other group under our root is killed and removed, every other record is dropped.
- An executable was acknowledged when `started.json` was written. Without it, it is undone.
- An init is the process of its record only if that pid, with that start time, is in the cell's init group.
  Executables without an exit record go on with a live init, and died with a dead one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skerry.model.cells import parent_of
from skerry.model.ids import CellName
from skerry.node.cells.records import CellRecord, FoundCell, FoundExecutable


@dataclass(frozen=True, slots=True)
class Kept:
    """A cell that goes on, and what becomes of its executables."""

    found: FoundCell
    record: CellRecord
    has_live_init: bool
    running: tuple[FoundExecutable, ...] = ()
    ended: tuple[FoundExecutable, ...] = ()
    lost: tuple[FoundExecutable, ...] = ()  # ran when the init died
    undone: tuple[FoundExecutable, ...] = ()  # nobody was ever told of their start


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and in which order."""

    doomed: tuple[CellName, ...]  # first: kill, remove group and record; children before parents
    kept: tuple[Kept, ...]  # parents before children


def plan(
    found: Sequence[FoundCell],
    groups: Mapping[CellName, bool],
    inits: Mapping[CellName, Mapping[int, int]],
    boot: str,
) -> Plan:
    """`groups`: the cells that have one, True if it is whole. `inits`: by cell, the pids in its init group
    and their start times."""
    kept: dict[CellName, Kept] = {}
    for cell in sorted(found, key=lambda each: each.name):  # a parent sorts before what is in it
        parent = parent_of(cell.name)
        if (
            cell.record is not None
            and cell.record.boot == boot
            and not cell.is_freeing
            and groups.get(cell.name, False)
            and (parent is None or parent in kept)
        ):
            kept[cell.name] = _keep(cell, cell.record, inits.get(cell.name, {}))
    doomed = ({cell.name for cell in found} | groups.keys()) - kept.keys()
    return Plan(
        doomed=tuple(sorted(doomed, key=lambda name: (-name.count("/"), name))),
        kept=tuple(kept.values()),
    )


def _keep(cell: FoundCell, record: CellRecord, processes: Mapping[int, int]) -> Kept:
    init = cell.init
    alive = init is not None and processes.get(init.pid) == init.start_time
    whole = [each for each in cell.executables if each.spec is not None and each.started is not None]
    open_ended = tuple(each for each in whole if each.exit is None)
    return Kept(
        found=cell,
        record=record,
        has_live_init=alive,
        running=open_ended if alive else (),
        lost=() if alive else open_ended,
        ended=tuple(each for each in whole if each.exit is not None),
        undone=tuple(each for each in cell.executables if each not in whole),
    )
