"""What the processes of one cell used, read again when one of them ran.

A process that does nothing is most of them, and must cost little: one read of one file for each. Its line in
/proc stays the same while it neither runs nor has a page added. A process that was started by another whose
line did not change (by vfork, within a tick of the clock) is found a second later.
"""

from __future__ import annotations

from typing import Final

from skerry.model.ids import CellName
from skerry.node.watched import process_table
from skerry.node.watched.groups import WatchedGroups
from skerry.node.watched.process_table import ProcessStatus

_SEARCH_S: Final = 1.0  # until new processes are looked for in a cell in which none ran


class CellSample:
    """The processes of the cell alone, without its init."""

    def __init__(self, groups: WatchedGroups, cell: CellName) -> None:
        self.inside: list[ProcessStatus] = []
        self.is_stale = True  # its limits or its init are others than before
        self._groups = groups
        self._cell = cell
        self._lines: dict[int, bytes] = {}
        self._read_at = 0.0
        self._newest_pid = b""
        self._memory: dict[int, tuple[float, bytes, int]] = {}

    def refresh(self, now: float, newest_pid: bytes) -> bool:
        """True if anything changed, or may have."""
        ran = self.is_stale or any(process_table.line(pid) != line for pid, line in self._lines.items())
        is_young = now - self._read_at < _SEARCH_S
        if not ran and (is_young or (newest_pid and newest_pid == self._newest_pid)):
            return False
        self.is_stale = False
        self._read_at, self._newest_pid = now, newest_pid
        former = self._lines
        init, self.inside = self._groups.processes(self._cell)
        self._lines = {each.pid: each.line for each in (*self.inside, *([] if init is None else [init]))}
        self._memory = {pid: known for pid, known in self._memory.items() if pid in self._lines}
        return ran or self._lines != former

    def memory(self, now: float, *, exact: bool = False) -> dict[int, int]:
        """Bytes of each process, by its part of what several share. For a second, if it does not run, as it
        was: unless `exact`."""
        found = {}
        for each in self.inside:
            at, line, used = self._memory.get(each.pid, (0.0, b"", 0))
            if exact or line != each.line or now - at >= _SEARCH_S:
                at, used = now, process_table.memory(each.pid)
                self._memory[each.pid] = (at, each.line, used)
            found[each.pid] = used
        return found
