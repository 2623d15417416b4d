"""Limits in the v2 tree: controllers are delegated down the path, and every limit is a file of the cell's
group.

A group has controllers only if its parent delegates them in `cgroup.subtree_control`, which the kernel allows
only while the parent contains no process: ours are in leaves. A cell delegates controllers when its first
child cell is created, so that leaves of other cells cost nothing more.
"""

from __future__ import annotations

import errno
from collections.abc import Collection

from skerry.model import errors
from skerry.model.cells import CellLimits, CellUsage
from skerry.node.cgroups import limit_writes, usage
from skerry.node.cgroups import limits as translation
from skerry.node.cgroups.hierarchies import Hierarchy
from skerry.node.cgroups.limits import ReadFile

REQUIRED = ("cpu", "cpuset", "memory", "pids")
_WELCOME = ("io",)
_MOST_WEIGHT = 10_000


class V2Limits:
    """Limits by v2 group. The membership tree, which is the same one, creates and removes the groups."""

    def __init__(
        self, hierarchy: Hierarchy, *, top: str = "", controllers: Collection[str] = REQUIRED
    ) -> None:
        """`top` is the group that is the parent of the root group: that of the mount, unless it is given.
        Limits of which `controllers` has none are not held."""
        self._hierarchy = hierarchy
        self._top = top or hierarchy.mount
        self._controllers = [name for name in REQUIRED if name in controllers]

    def prepare(self) -> None:
        try:
            self._delegate(self._top)
            self._delegate(self._hierarchy.path(""))
            if not {"cpu", "cpuset"}.issubset(self._controllers):
                return
            # For the kernel all cells together are one group beside the machine's others.
            cpus = len(translation.numbers(self._read("")("cpuset.cpus.effective")))
            weight = min(translation.USUAL_WEIGHT * max(1, cpus), _MOST_WEIGHT)
            self._hierarchy.write("", "cpu.weight", str(weight))
        except OSError as error:
            raise errors.Unavailable(
                f"cannot delegate the controllers {', '.join(self._controllers)} to "
                f"{self._hierarchy.path('')}: {error.strerror}"
                + (
                    "; processes are in a group above it: move them into a group of their own"
                    if error.errno == errno.EBUSY
                    else ""
                )
            ) from error

    def _delegate(self, group: str) -> None:
        files = self._hierarchy.files
        path = f"{group}/cgroup.subtree_control"
        handed = set(files.read(path).split())
        if missing := [name for name in self._controllers if name not in handed]:
            files.write(path, " ".join(f"+{name}" for name in missing))
        for name in _WELCOME:
            if name not in handed and name in files.read(f"{group}/cgroup.controllers").split():
                files.write(path, f"+{name}")

    def make(self, cell: str, limits: CellLimits) -> None:
        parent = cell.rpartition("/")[0]
        try:
            self._delegate(self._hierarchy.path(parent))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise errors.FailedPrecondition(
                f"processes are in the group of cell {parent} itself and not in its leaves, so it can "
                "have no child cells: somebody moved them there"
            ) from error
        self.change(cell, limits)

    def change(self, cell: str, limits: CellLimits) -> None:
        above = self._read(cell.rpartition("/")[0])
        limit_writes.check_lists(
            limits, lambda: above("cpuset.cpus.effective"), lambda: above("cpuset.mems.effective")
        )
        settings = [
            each for each in translation.to_v2(limits) if each.file.partition(".")[0] in self._controllers
        ]
        limit_writes.write(self._hierarchy.files, lambda file: self._hierarchy.path(cell, file), settings)

    def lift_cpu_quota(self, cell: str) -> None:
        if "cpu" not in self._controllers:
            return
        limit_writes.write(
            self._hierarchy.files, lambda file: self._hierarchy.path(cell, file), [translation.NO_QUOTA_V2]
        )

    def _read(self, path: str) -> ReadFile:
        return lambda file: self._hierarchy.read_if_there(path, file)

    def remove(self, path: str) -> None:
        """Does nothing: the membership tree removes the group."""

    can_leave_cpu_quota = False

    def enter(self, cell: str) -> tuple[int, ...]:
        return ()

    def cpu_quota_exit(self, cell: str) -> None:
        """None: a process is in exactly one group of the tree."""

    def limits(self, cell: str) -> CellLimits:
        return translation.from_v2(self._read(cell))

    def usage(self, cell: str) -> CellUsage:
        return usage.from_v2(self._read(cell))

    def oom_kills(self, cell: str, leaf: str) -> int:
        """Counted in the leaf while the cell delegates memory, else in the cell; that may change."""
        paths = (cell, f"{cell}/{leaf}") if leaf else (cell,)
        return sum(usage.oom_kills(self._read(path)("memory.events.local")) for path in paths)

    def exists(self, cell: str) -> bool:
        return True  # if the membership tree has it

    def pids(self, cell: str, *, below: bool) -> list[int]:
        return []  # the membership tree is the same one

    def cells(self) -> list[str]:
        return []

    def dispose(self) -> None:
        """Likewise."""
