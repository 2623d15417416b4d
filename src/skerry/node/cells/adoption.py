"""Adopts the cells that an earlier agent left: a pure decision, and its execution.

The earlier agent may have been killed between any two steps, so records, cgroups and processes may disagree.
`plan` compares them and has no effects; `adopt` observes, plans, and carries out the plan. The rules:

- A cell is adopted if its record is of this boot, its group is complete, it is not being freed, and its
  parent is adopted. Every other group under our root is killed and removed, every other record is removed.
- An executable was acknowledged when `started.json` was written. Without it, the start is undone.
- An init is the process of its record only if that pid, with that start time, is in the cell's init group.
  Executables without an exit record are running if the init is alive, and died with a dead one.
- An adopted cell gets the cpu quota of its record again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
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


class AdoptedCell(msgspec.Struct, frozen=True):
    """An adopted cell, and the state of its executables."""

    found: StoredCell
    record: CellRecord
    has_live_init: bool
    running: tuple[StoredExecutable, ...] = ()
    ended: tuple[StoredExecutable, ...] = ()
    lost: tuple[StoredExecutable, ...] = ()  # were running when the init died
    undone: tuple[StoredExecutable, ...] = ()  # their start was never acknowledged


class CellAdoptionPlan(msgspec.Struct, frozen=True):
    """What to do, in this order."""

    to_remove: tuple[CellName, ...]  # kill, remove group and record; children before parents
    adopted: tuple[AdoptedCell, ...]  # parents before children


def plan(
    found: Sequence[StoredCell],
    groups: Mapping[CellName, bool],
    inits: Mapping[CellName, Mapping[int, int]],
    boot: str,
) -> CellAdoptionPlan:
    """`groups`: the cells that have one, True if it is complete. `inits`: by cell, the pids in its init group
    and their start times."""
    adopted: dict[CellName, AdoptedCell] = {}
    for cell in sorted(found, key=lambda each: each.name):  # a parent sorts before its children
        parent = parent_of(cell.name)
        if (
            cell.record is not None
            and cell.record.boot == boot
            and not cell.is_freeing
            and groups.get(cell.name, False)
            and (parent is None or parent in adopted)
        ):
            adopted[cell.name] = _adopted_cell(cell, cell.record, inits.get(cell.name, {}))
    to_remove = ({cell.name for cell in found} | groups.keys()) - adopted.keys()
    return CellAdoptionPlan(
        to_remove=tuple(sorted(to_remove, key=lambda name: (-name.count("/"), name))),
        adopted=tuple(adopted.values()),
    )


def _adopted_cell(cell: StoredCell, record: CellRecord, processes: Mapping[int, int]) -> AdoptedCell:
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
    deps: CellDeps, executables: ExecutableSupervisor, boot: str, add: Callable[[CellEntry], None]
) -> None:
    """Adopt the cells. `add` gets every adopted cell, and those that could not be removed yet."""
    deps.records.empty_trash()
    found = {cell.name: cell for cell in deps.records.scan()}
    groups = {name: deps.groups.exists(name) for name in deps.groups.cells()}
    decision = plan(list(found.values()), groups, _inits(deps, groups), boot)
    for name in decision.to_remove:
        if not await _remove(deps, name) and name in found and (record := found[name].record) is not None:
            add(CellEntry(record, is_freeing=True))
    for cell in decision.adopted:
        entry = CellEntry(cell.record, had_init=True)
        add(entry)
        await _take_over(deps, executables, cell, entry)
    if decision.adopted or decision.to_remove:
        log.info("cells.adopted", kept=len(decision.adopted), removed=len(decision.to_remove))


def _inits(deps: CellDeps, groups: Mapping[CellName, bool]) -> dict[CellName, dict[int, int]]:
    inits: dict[CellName, dict[int, int]] = {}
    for name, is_whole in groups.items():
        if is_whole:
            times = {pid: deps.processes.start_time(pid) for pid in deps.groups.pids(name, INIT_LEAF)}
            inits[name] = {pid: time for pid, time in times.items() if time is not None}
    return inits


async def _remove(deps: CellDeps, name: CellName) -> bool:
    """Kill and remove; False if that failed."""
    try:
        await termination.terminate_all(deps.groups, name, None, kill_s=_KILL_S, processes=deps.processes)
        deps.groups.remove(name)
    except (termination.Unkillable, errors.SkerryError, OSError) as error:
        log.warning("cell.not_removed", cell=name, error=str(error))
        return False
    deps.records.remove(name)
    return True


def _restore_quota(deps: CellDeps, record: CellRecord) -> None:
    """Restore a quota that an agent lifted for a start and did not restore before it died."""
    limits = CellLimits(cpu_quota=record.cell.limits.cpu_quota)
    try:
        deps.groups.change_limits(record.cell.name, limits)
    except (errors.SkerryError, OSError) as error:
        log.warning("cell.quota_not_put_on", cell=record.cell.name, error=str(error))


async def _take_over(
    deps: CellDeps, executables: ExecutableSupervisor, adopted: AdoptedCell, entry: CellEntry
) -> None:
    _restore_quota(deps, adopted.record)
    entry.last_number = max((each.number for each in adopted.found.executables), default=0)
    init = None
    if adopted.has_live_init and (record := adopted.found.init) is not None:
        init = deps.processes.adopt(record.pid, record.start_time, record.control_fd)
    for each in adopted.undone:
        await executables.undo(entry, each.number)
    for each in sorted((*adopted.running, *adopted.lost, *adopted.ended), key=lambda each: each.number):
        assert each.spec is not None
        assert each.started is not None
        executables.add(entry, ExecutableEntry(each.spec, each.number, each.started, init))
    if init is not None:
        executables.inits.attach(entry, init)
    else:
        try:
            await executables.inits.clear(entry)
        except errors.Unavailable as error:  # the next start or free tries again
            log.warning("init.not_cleared", cell=entry.name, error=error.message)
        deps.records.set_init(entry.name, None)
    # Only now: earlier exits are on disk by now, later ones are reported by the init.
    for executable in list(entry.executables.values()):
        executables.check_exit_record(entry, executable)
    if init is None:
        executables.mark_lost(entry, list(entry.executables.values()))
