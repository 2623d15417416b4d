"""Terminates the processes of a group: SIGTERM, grace, SIGKILL, and waits for their end.

`Cells` uses it for one executable and for whole cells. It neither removes groups nor touches records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skerry.model.ids import CellName
from skerry.node.cells.processes import HostProcesses
from skerry.node.cgroups.protocol import Cgroups

_FIRST_LOOK_S = 0.02
_LONGEST_LOOK_S = 0.5
_SLOWER = 4.0


class Unkillable(Exception):
    """These processes were killed and did not exit in time: the kernel blocks them, mostly on a disk."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__(f"processes {list(pids)} do not exit")
        self.pids = tuple(pids)


async def terminate_all(
    groups: Cgroups,
    cell: CellName,
    leaf: str | None,
    *,
    kill_s: float,
    processes: HostProcesses,
    grace: Callable[[], float] = lambda: 0.0,
    on_kill: Callable[[], None] = lambda: None,
) -> None:
    """End everything in the group: SIGTERM, wait, SIGKILL, wait `kill_s`. Raises `Unkillable`.

    `grace` returns the seconds from now until SIGKILL; it may shrink meanwhile. `on_kill` is called before
    SIGKILL, so that a death by it is not taken for an OOM kill.
    """
    if not groups.pids(cell, leaf):
        return
    if grace() > 0 and await _sigterm_and_wait(groups, cell, leaf, grace, processes):
        return
    on_kill()
    groups.kill(cell, leaf)
    if not await groups.emptied(cell, leaf, within_s=kill_s):
        raise Unkillable(groups.pids(cell, leaf))


async def _sigterm_and_wait(
    groups: Cgroups,
    cell: CellName,
    leaf: str | None,
    grace: Callable[[], float],
    processes: HostProcesses,
) -> bool:
    """Send SIGTERM and wait; True if nothing is left. Looks for orphans now and then, the first time very
    soon."""

    def list_pids() -> list[int]:
        return groups.pids(cell, leaf)

    signalled = processes.sigterm(list_pids)
    pause = _FIRST_LOOK_S
    while (remaining_s := grace()) > 0:
        if await groups.emptied(cell, leaf, within_s=min(pause, remaining_s)):
            return True
        processes.sigterm_orphans(list_pids, signalled)
        pause = min(pause * _SLOWER, _LONGEST_LOOK_S)
    return False
