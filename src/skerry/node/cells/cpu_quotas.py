"""Lifts the cpu quota of a cell while something is started in it, and restores it before the program begins.

An OCI runtime, the cell's init and a process before exec work in the cell, which takes long under a small
quota. `Cells` says when a start begins, `ExecutableSupervisor` when the program is next. An agent that dies
in between leaves a lifted quota, and `adoption` restores it.

Meanwhile processes that already run in the cell have no quota either, and a restored quota begins with a full
period. So a runtime, which works long and alone in its cell, gets a lifted quota only while nothing runs in
the cell. For programs lifting is rationed: each time is followed by a pause, in which starts happen under the
quota. Over time they get at most a tenth more than the quota, however often something is started.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import structlog

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.cells import CellLimits, upwards
from skerry.model.ids import CellName
from skerry.model.resources import Millicores
from skerry.node.cells.state import CellEntry
from skerry.node.cgroups.limits import period_s
from skerry.node.cgroups.protocol import Cgroups

log = structlog.get_logger(__name__)

_SMALL_QUOTA: Final = 500  # half a core: 50 ms per period, of which a start and a new init take 10
_EXTRA: Final = 0.1  # share of the quota that lifting may add to it
_LONGEST_S: Final = 0.05  # for which a quota may be lifted while a program runs in the cell


def slows_starts(limits: CellLimits) -> bool:
    """True if the work of a start takes a notable part of the quota of a period."""
    return limits.cpu_quota is not None and limits.cpu_quota < _SMALL_QUOTA


class QuotaLift(enum.Enum):
    """When a start lifts the quota of its cell."""

    NEVER = enum.auto()
    WHILE_EMPTY = enum.auto()  # if nothing runs in the cell
    RATIONED = enum.auto()  # if it was not lifted too often


class LiftedQuota(msgspec.Struct, frozen=True):
    """A lifted quota, and since when."""

    millicores: Millicores
    since: float
    # If something runs in the cell: the cell's usage until then, and the timer that restores the quota.
    used_ns: int = 0
    timer: asyncio.TimerHandle | None = None


class CpuQuotas:
    """Lifts the quotas of cells for starts, and restores them."""

    def __init__(self, groups: Cgroups, clock: Clock) -> None:
        self._groups = groups
        self._clock = clock
        self._lifted: dict[CellName, LiftedQuota] = {}
        self._starting: Counter[CellName] = Counter()  # starts in progress, in each cell or below it
        self._not_before: dict[CellName, float] = {}  # time until which a quota may not be lifted again

    @contextmanager
    def lift_for_start(self, entry: CellEntry, lift: QuotaLift) -> Iterator[Callable[[], None] | None]:
        """Lift the quota of the cell for a start, if it has one and `lift` allows it.

        Yields a function that restores the quota, to be called before the program begins, or None if it was
        not lifted. It is restored on exit in any case. Starts in one cell share a lifted quota until the
        first of their programs begins; a start that lifts none, in the cell or below it, restores the quota
        at once.
        """
        path = list(upwards(entry.name))
        for name in path[lift is not QuotaLift.NEVER :]:
            self.restore(name)
        self._lift(entry, lift)
        self._starting.update(path)
        try:
            yield (lambda: self.restore(entry.name)) if entry.name in self._lifted else None
        finally:
            self._starting.subtract(path)
            for name in path:
                if not self._starting[name]:
                    del self._starting[name]
            self._try_restore(entry.name)

    def restore(self, name: CellName) -> None:
        """Restore the quota, if it was lifted."""
        lifted = self._lifted.get(name)
        if lifted is None:
            return
        self._groups.change_limits(name, CellLimits(cpu_quota=lifted.millicores))
        del self._lifted[name]
        now, rate = self._clock.monotonic(), lifted.millicores / 1000
        extra_s = period_s(lifted.millicores) * rate
        if lifted.timer is not None:
            lifted.timer.cancel()
            used_s = (self._groups.usage(name).cpu_ns - lifted.used_ns) / 1e9
            # the kernel accounts for running processes a little later
            extra_s += max(used_s, now - lifted.since)
        self._not_before[name] = now + extra_s / (_EXTRA * rate)

    def restore_ancestors(self, name: CellName) -> None:
        """Restore the quotas of the ancestors of `name`, so that its own can be set: v1 takes no quota of a
        parent below a child's."""
        for above in list(upwards(name))[1:]:
            self.restore(above)

    def forget(self, name: CellName) -> None:
        """The cell was removed."""
        self._lifted.pop(name, None)
        self._not_before.pop(name, None)

    def _lift(self, entry: CellEntry, lift: QuotaLift) -> None:
        name, quota = entry.name, entry.record.cell.limits.cpu_quota
        if quota is None or lift is QuotaLift.NEVER or name in self._lifted:
            return
        now = self._clock.monotonic()
        is_rationed = lift is QuotaLift.RATIONED
        if is_rationed and now < self._not_before.get(name, now):
            return
        if not self._starting[name] and self._is_empty(entry):
            self._lifted[name] = LiftedQuota(quota, now)
        elif is_rationed:
            timer = asyncio.get_running_loop().call_later(_LONGEST_S, self._try_restore, name)
            self._lifted[name] = LiftedQuota(quota, now, self._groups.usage(name).cpu_ns, timer)
        else:
            return
        self._groups.lift_cpu_quota(name)

    def _try_restore(self, name: CellName) -> None:
        try:
            self.restore(name)
        except (errors.SkerryError, OSError) as error:  # the next start or agent tries again
            log.warning("cell.quota_not_put_on", cell=name, error=str(error))

    def _is_empty(self, entry: CellEntry) -> bool:
        init = () if entry.init is None else (entry.init.pid,)
        return set(self._groups.pids(entry.name)).issubset(init)
