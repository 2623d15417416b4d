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
from skerry.model.cells import is_within, upwards
from skerry.model.ids import CellName
from skerry.node.watched import decisions, process_table
from skerry.node.watched.groups import WatchedGroups, limit_of
from skerry.node.watched.samples import CellSample

log = structlog.get_logger(__name__)

_IDLE_S: Final = 0.25  # between two looks at what has no limits, or no processes
_SHORTEST_S: Final = 0.01  # of a sleep: event loops end them a little early
_MOST_WORK: Final = 0.05  # of the time, so that many cells do not cost a processor


class LimitWatcher:
    """Looks at all cells of `groups`."""

    def __init__(self, groups: WatchedGroups, clock: Clock) -> None:
        self._groups = groups
        self._clock = clock
        self._due: dict[CellName, float] = {}  # cells at the top, and when each is looked at
        self._limits: dict[CellName, tuple[int | None, int | None]] = {}  # bytes, processes
        self._samples: dict[CellName, dict[CellName, CellSample]] = {}  # of all cells, by those at the top
        self._ran: dict[CellName, float] = {}  # when something ran in those at the top
        groups.changed = self._read
        for cell in groups.cells():
            self._read(cell)

    def _read(self, cell: CellName) -> None:
        """The cell was created, changed or removed, or has its init."""
        *_, top = upwards(cell)
        try:
            limits = self._groups.read_limits(cell)
        except errors.NotFound:
            self._limits.pop(cell, None)
            self._samples.get(top, {}).pop(cell, None)
            if cell == top:
                for known in (self._due, self._samples, self._ran):
                    known.pop(top, None)
            return
        samples = self._samples.setdefault(top, {})
        samples.setdefault(cell, CellSample(self._groups, cell)).is_stale = True
        if limits.memory is not None or limits.pids is not None:
            self._limits[cell] = limit_of(limits), limits.pids
            now = self._clock.monotonic()
            self._due[top] = min(self._due.get(top, now), now + _IDLE_S)

    async def run(self) -> None:
        """For ever."""
        while True:
            now = self._clock.monotonic()
            for top in [each for each, due in self._due.items() if due <= now]:
                began = self._clock.monotonic()
                pause = self.look(top)
                ended = self._clock.monotonic()
                if top in self._due:
                    self._due[top] = ended + max(pause, (ended - began) / _MOST_WORK)
                await asyncio.sleep(0)
            soonest = min(self._due.values(), default=now + _IDLE_S)
            await asyncio.sleep(min(max(soonest - self._clock.monotonic(), _SHORTEST_S), _IDLE_S))

    def look(self, top: CellName) -> float:
        """Kill what exceeds its limits in the cell and below; seconds until the next look."""
        now, newest_pid = self._clock.monotonic(), process_table.newest_pid()
        samples = self._samples.get(top, {})
        ran = {cell for cell, sample in samples.items() if sample.refresh(now, newest_pid)}
        if not ran:  # who does nothing allocates nothing
            return decisions.idle_pause_s(now - self._ran.get(top, now))
        self._ran[top] = now
        pause = _IDLE_S
        for cell in {limited for each in ran for limited in upwards(each) if limited in self._limits}:
            inside = [sample for name, sample in samples.items() if is_within(name, cell)]
            pause = min(pause, self._hold(cell, inside, now))
        return pause

    def _hold(self, cell: CellName, samples: list[CellSample], now: float) -> float:
        most, processes = self._limits[cell]
        inside = [each for sample in samples for each in sample.inside]
        if processes is not None and sum(each.threads for each in inside) > processes:
            log.warning("cell.too_many_processes", cell=cell, limit=processes)
            self._groups.kill_members(cell)
            return _IDLE_S
        if most is None or not inside:
            return _IDLE_S
        used = {each.pid: each.resident for each in inside}
        # Pages that several share were counted more than once.
        for exact in (False, True):
            if sum(used.values()) > most:
                used = {
                    pid: amount
                    for sample in samples
                    for pid, amount in sample.memory(now, exact=exact).items()
                }
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
