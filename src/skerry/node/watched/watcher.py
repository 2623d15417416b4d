"""Holds cells to their limits by looking at them: memory, and processes where the kernel does not count them.

A cell that uses more memory than its limit loses its largest process, as the kernel would have it; its exit
is told as an OOM kill. It may use more until the next look, and nobody looks while no agent runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Final

import structlog

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import CellName
from skerry.node.watched import decisions, process_table
from skerry.node.watched.groups import WatchedGroups, limit_of

log = structlog.get_logger(__name__)

_IDLE_S: Final = 0.25  # without a cell that has limits and processes, until the next look


class LimitWatcher:
    """Looks at all cells of `groups`."""

    def __init__(self, groups: WatchedGroups, clock: Clock) -> None:
        self._groups = groups
        self._clock = clock
        self._due: dict[CellName, float] = {}  # cells with limits, and when they are looked at
        self._limits: dict[CellName, tuple[int | None, int | None]] = {}  # bytes, processes
        groups.changed = self._read
        for cell in groups.cells():
            self._read(cell)

    def _read(self, cell: CellName) -> None:
        try:
            limits = self._groups.read_limits(cell)
        except errors.NotFound:
            self._due.pop(cell, None)
            self._limits.pop(cell, None)
            return
        if limits.memory is not None or limits.pids is not None:
            self._limits[cell] = limit_of(limits), limits.pids
            self._due[cell] = self._clock.monotonic()

    async def run(self) -> None:
        """For ever."""
        while True:
            now = self._clock.monotonic()
            for cell in [each for each, due in self._due.items() if due <= now]:
                pause = self.look(cell)
                if cell in self._due:
                    self._due[cell] = self._clock.monotonic() + pause
                await asyncio.sleep(0)
            soonest = min(self._due.values(), default=now + _IDLE_S)
            await asyncio.sleep(max(soonest - self._clock.monotonic(), 0.0))

    def look(self, cell: CellName) -> float:
        """Kill what exceeds its limits; seconds until the next look."""
        most, processes = self._limits.get(cell, (None, None))
        found = [
            status for pid in self._groups.members(cell) if (status := process_table.status(pid)) is not None
        ]
        if not found:
            return _IDLE_S
        if processes is not None and sum(each.threads for each in found) > processes:
            log.warning("cell.too_many_processes", cell=cell, limit=processes)
            self._groups.kill_members(cell)
            return _IDLE_S
        if most is None:
            return _IDLE_S
        used = {each.pid: each.resident for each in found}
        if sum(used.values()) > most:  # pages that several share were counted more than once
            used = {pid: process_table.memory(pid) for pid in used}
        total = sum(used.values())
        self._groups.note_memory(cell, total)
        if (pid := decisions.victim(used, most)) is not None:
            self._kill(cell, pid, total, most)
        return decisions.pause_s(total, most)

    def _kill(self, cell: CellName, pid: int, used: int, limit: int) -> None:
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                if pid not in self._groups.members(cell):  # pids are reused
                    return
                self._groups.count_oom(cell, pid)  # first: the exit is told with it
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                log.warning("cell.out_of_memory", cell=cell, pid=pid, used=used, limit=limit)
            finally:
                os.close(pidfd)
