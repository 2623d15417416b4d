"""Ending what runs in a group: first asked, then killed, always waited for.

`Cells` uses it for one executable and for whole cells. It knows groups and processes; it neither removes
groups nor touches records.
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
    """These processes were killed and did not die in time: the kernel holds them, mostly waiting for a
    disk."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__(f"processes {list(pids)} do not die")
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
    """End everything in the group: ask, wait, kill, wait `kill_s`. Raises `Unkillable`.

    `grace` says how many seconds to wait from now on until the killing; while we wait it may become less.
    `on_kill` is told before the killing, so that a death by it is not put down to somebody else.
    """
    if not groups.pids(cell, leaf):
        return
    if grace() > 0 and await _asked(groups, cell, leaf, grace, processes):
        return
    on_kill()
    groups.kill(cell, leaf)
    if not await groups.emptied(cell, leaf, within_s=kill_s):
        raise Unkillable(groups.pids(cell, leaf))


async def _asked(
    groups: Cgroups,
    cell: CellName,
    leaf: str | None,
    grace: Callable[[], float],
    processes: HostProcesses,
) -> bool:
    """Ask, and wait; True if nothing is left. Looks for strays now and then, the first time very soon."""

    def listing() -> list[int]:
        return groups.pids(cell, leaf)

    asked = processes.ask(listing)
    pause = _FIRST_LOOK_S
    while (left := grace()) > 0:
        if await groups.emptied(cell, leaf, within_s=min(pause, left)):
            return True
        processes.ask_strays(listing, asked)
        pause = min(pause * _SLOWER, _LONGEST_LOOK_S)
    return False
