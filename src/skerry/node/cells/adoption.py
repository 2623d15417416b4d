"""What an agent that starts makes of what an earlier one left: the decision, and the doing.

The earlier agent may have been killed between any two steps, so the records, the groups and the processes
need not agree. `plan` compares them and touches nothing; `adopt` looks, plans, and does what the plan says.
The rules:

- A cell goes on if its record is of this boot, its group is whole, its freeing was not begun, and its parent
  goes on. Every other group under our root is killed and removed, every other record is dropped.
- An executable was acknowledged when `started.json` was written. Without it, it is undone.
- An init is the process of its record only if that pid, with that start time, is in the cell's init group.
  Executables without an exit record go on with a live init, and died with a dead one.
- A cell that goes on has the cpu quota of its record, whatever it has now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from skerry.model import errors
from skerry.model.cells import CellLimits, parent_of
from skerry.model.ids import CellName
from skerry.node.cells import termination
from skerry.node.cells.executables import ExecutableSupervisor
from skerry.node.cells.records import CellRecord, StoredCell, StoredExecutable
from skerry.node.cells.state import CellDeps, CellEntry, ExecutableEntry
from skerry.node.cgroups.protocol import INIT_LEAF

log = structlog.get_logger(__name__)

_KILL_S = 5.0


@dataclass(frozen=True, slots=True)
class AdoptedCell:
    """A cell that goes on, and what becomes of its executables."""

    found: StoredCell
    record: CellRecord
    has_live_init: bool
    running: tuple[StoredExecutable, ...] = ()
    ended: tuple[StoredExecutable, ...] = ()
    lost: tuple[StoredExecutable, ...] = ()  # ran when the init died
    undone: tuple[StoredExecutable, ...] = ()  # nobody was ever told of their start


@dataclass(frozen=True, slots=True)
class CellAdoptionPlan:
    """What to do, and in which order."""

    doomed: tuple[CellName, ...]  # first: kill, remove group and record; children before parents
    kept: tuple[AdoptedCell, ...]  # parents before children


def plan(
    found: Sequence[StoredCell],
    groups: Mapping[CellName, bool],
    inits: Mapping[CellName, Mapping[int, int]],
    boot: str,
) -> CellAdoptionPlan:
    """`groups`: the cells that have one, True if it is whole. `inits`: by cell, the pids in its init group
    and their start times."""
    kept: dict[CellName, AdoptedCell] = {}
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
    return CellAdoptionPlan(
        doomed=tuple(sorted(doomed, key=lambda name: (-name.count("/"), name))),
        kept=tuple(kept.values()),
    )


def _keep(cell: StoredCell, record: CellRecord, processes: Mapping[int, int]) -> AdoptedCell:
    init = cell.init
    alive = init is not None and processes.get(init.pid) == init.start_time
    whole = [each for each in cell.executables if each.spec is not None and each.started is not None]
    open_ended = tuple(each for each in whole if each.exit is None)
    return AdoptedCell(
        found=cell,
        record=record,
        has_live_init=alive,
        running=open_ended if alive else (),
        lost=() if alive else open_ended,
        ended=tuple(each for each in whole if each.exit is not None),
        undone=tuple(each for each in cell.executables if each not in whole),
    )


async def adopt(
    deps: CellDeps, executables: ExecutableSupervisor, boot: str, keep: Callable[[CellEntry], None]
) -> None:
    """Take over what is there. `keep` gets every cell that goes on, and those that must go and cannot yet."""
    deps.records.empty_trash()
    found = {cell.name: cell for cell in deps.records.scan()}
    groups = {name: deps.groups.exists(name) for name in deps.groups.cells()}
    decision = plan(list(found.values()), groups, _inits(deps, groups), boot)
    for name in decision.doomed:
        if not await _doom(deps, name) and name in found and (record := found[name].record) is not None:
            keep(CellEntry(record, is_freeing=True))
    for kept in decision.kept:
        entry = CellEntry(kept.record, had_init=True)
        keep(entry)
        await _take_over(deps, executables, kept, entry)
    if decision.kept or decision.doomed:
        log.info("cells.adopted", kept=len(decision.kept), removed=len(decision.doomed))


def _inits(deps: CellDeps, groups: Mapping[CellName, bool]) -> dict[CellName, dict[int, int]]:
    inits: dict[CellName, dict[int, int]] = {}
    for name, is_whole in groups.items():
        if is_whole:
            times = {pid: deps.processes.start_time(pid) for pid in deps.groups.pids(name, INIT_LEAF)}
            inits[name] = {pid: time for pid, time in times.items() if time is not None}
    return inits


async def _doom(deps: CellDeps, name: CellName) -> bool:
    """Kill and remove; False if that is not possible now."""
    try:
        await termination.terminate_all(deps.groups, name, None, kill_s=_KILL_S, processes=deps.processes)
        deps.groups.remove(name)
    except (termination.Unkillable, errors.SkerryError, OSError) as error:
        log.warning("cell.not_removed", cell=name, error=str(error))
        return False
    deps.records.remove(name)
    return True


def _put_quota_on(deps: CellDeps, record: CellRecord) -> None:
    """The agent before this one may have died while it started something, with the quota lifted for that."""
    limits = CellLimits(cpu_quota=record.cell.limits.cpu_quota)
    try:
        deps.groups.change_limits(record.cell.name, limits)
    except (errors.SkerryError, OSError) as error:
        log.warning("cell.quota_not_put_on", cell=record.cell.name, error=str(error))


async def _take_over(
    deps: CellDeps, executables: ExecutableSupervisor, kept: AdoptedCell, entry: CellEntry
) -> None:
    _put_quota_on(deps, kept.record)
    entry.last_number = max((each.number for each in kept.found.executables), default=0)
    init = None
    if kept.has_live_init and (record := kept.found.init) is not None:
        init = deps.processes.adopt(record.pid, record.start_time, record.control_fd)
    for each in kept.undone:
        await executables.undo(entry, each.number)
    for each in sorted((*kept.running, *kept.lost, *kept.ended), key=lambda each: each.number):
        assert each.spec is not None
        assert each.started is not None
        executables.add(entry, ExecutableEntry(each.spec, each.number, each.started, init))
    if init is not None:
        executables.inits.keep(entry, init)
    else:
        try:
            await executables.inits.clear(entry)
        except errors.Unavailable as error:  # the next start or free tries again
            log.warning("init.not_cleared", cell=entry.name, error=error.message)
        deps.records.set_init(entry.name, None)
    # After the init is listened to: what ended before is on disk by now, what ends later will be told.
    for known in list(entry.executables.values()):
        executables.look(entry, known)
    if init is None:
        executables.lose(entry, list(entry.executables.values()))
