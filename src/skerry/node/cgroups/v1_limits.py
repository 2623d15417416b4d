"""Limits in v1 controllers, each in a hierarchy of its own or mounted together with others.

Every cell has one group in each, which contains its processes directly. Used by the hybrid and the legacy
backends; the membership tree lists and kills processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

import msgspec

from skerry.model import errors
from skerry.model.cells import CellLimits, CellUsage
from skerry.node.cgroups import limit_writes, usage
from skerry.node.cgroups import limits as translation
from skerry.node.cgroups.files import CgroupFiles
from skerry.node.cgroups.hierarchies import ENTER_V1, Hierarchy
from skerry.node.cgroups.limits import ReadFile

REQUIRED = ("cpu", "cpuset", "memory", "pids")
_OPTIONAL = ("cpuacct", "blkio")  # for usage only


class V1Limits:
    """Limits by v1 groups. `mounts` is the mount point of each controller; `other_mounts` are hierarchies
    without limits in which an OCI runtime creates groups nevertheless."""

    def __init__(
        self, files: CgroupFiles, mounts: Mapping[str, str], root: str, other_mounts: Iterable[str] = ()
    ) -> None:
        self._files = files
        shared: dict[str, Hierarchy] = {}
        self._by_controller = {
            name: shared.setdefault(mounts[name], Hierarchy(files, mounts[name], root))
            for name in (*REQUIRED, *_OPTIONAL)
            if name in mounts
        }
        self._hierarchies = tuple(shared.values())
        self._other_hierarchies = tuple(
            Hierarchy(files, mount, root) for mount in other_mounts if mount not in shared
        )

    def prepare(self) -> None:
        for hierarchy in self._hierarchies:
            hierarchy.prepare()
        # No process can enter a cpuset without cpus and memory nodes; with this flag children inherit the
        # parent's.
        cpuset = self._by_controller["cpuset"]
        for file in ("cpuset.cpus", "cpuset.mems"):
            if not cpuset.read("", file).strip():
                cpuset.write("", file, self._files.read(f"{cpuset.mount}/{file}").strip())
        cpuset.write("", "cgroup.clone_children", "1")
        # For the kernel all cells together are one group beside the machine's other processes, each of which
        # has
        # the same weight: without this, one busy process would get half of a processor that they share.
        cpus = len(translation.numbers(cpuset.read("", "cpuset.cpus")))
        self._by_controller["cpu"].write("", "cpu.shares", str(translation.USUAL_SHARES * max(1, cpus)))
        # Before Linux 5.11 a group's memory counts in its parent only with this flag.
        memory = self._by_controller["memory"]
        if memory.read_if_there("", "memory.use_hierarchy").strip() == "0":
            memory.write("", "memory.use_hierarchy", "1")

    def make(self, cell: str, limits: CellLimits) -> None:
        with contextlib.ExitStack() as undo:
            for hierarchy in self._hierarchies:
                self._make_group(hierarchy, cell)
                undo.callback(hierarchy.remove, cell)
            self.change(cell, limits)
            undo.pop_all()

    def change(self, cell: str, limits: CellLimits) -> None:
        parent = self._read(cell.rpartition("/")[0])
        limit_writes.check_lists(limits, lambda: parent("cpuset.cpus"), lambda: parent("cpuset.mems"))
        settings = translation.to_v1(
            self._within_parent(cell, limits), current_memory=self._read(cell)("memory.limit_in_bytes")
        )
        limit_writes.write(self._files, lambda file: self._path(cell, file), settings)

    def lift_cpu_quota(self, cell: str) -> None:
        limit_writes.write(self._files, lambda file: self._path(cell, file), [translation.NO_QUOTA_V1])

    def _make_group(self, hierarchy: Hierarchy, cell: str) -> None:
        try:
            hierarchy.make(cell)
        except FileExistsError:
            # Not in the membership tree: the rest of a cell that was partly removed, or a foreign group.
            try:
                hierarchy.remove(cell)
            except errors.FailedPrecondition as error:
                raise errors.FailedPrecondition(
                    f"the cgroup {hierarchy.path(cell)} exists on this host and is in use, but not by a "
                    "cell: end what runs there and remove it",
                    detail=error.detail,
                ) from error
            hierarchy.make(cell)

    def _within_parent(self, cell: str, limits: CellLimits) -> CellLimits:
        """Clamp the quota to the parent's: v1 refuses a higher one, where v2 enforces both."""
        if limits.cpu_quota is None:
            return limits
        above = cell
        while above := above.rpartition("/")[0]:
            quota = translation.v1_quota(self._read(above))
            if quota is not None:
                return msgspec.structs.replace(limits, cpu_quota=min(quota, limits.cpu_quota))
        return limits

    def _path(self, cell: str, file: str) -> str:
        return self._by_controller[file.partition(".")[0]].path(cell, file)

    def _read(self, path: str) -> ReadFile:
        """Reads files of the group `path`; a controller that is not mounted has no files."""

        def read(file: str) -> str:
            hierarchy = self._by_controller.get(file.partition(".")[0])
            return hierarchy.read_if_there(path, file) if hierarchy else ""

        return read

    def remove(self, path: str) -> None:
        for hierarchy in (*self._hierarchies, *self._other_hierarchies):
            hierarchy.remove(path)

    def enter(self, cell: str) -> tuple[int, ...]:
        cpu = self._by_controller["cpu"]
        rest = [each for each in self._hierarchies if each is not cpu]
        return tuple(self._open([(each, cell) for each in (*rest, cpu)]))

    @property
    def can_leave_cpu_quota(self) -> bool:
        others = (self._by_controller[name] for name in REQUIRED if name != "cpu")
        return all(each is not self._by_controller["cpu"] for each in others)

    def cpu_quota_exit(self, cell: str) -> tuple[int, int] | None:
        if not self.can_leave_cpu_quota:
            return None
        outside, cpu = self._open([(self._by_controller["cpu"], path) for path in ("", cell)])
        return outside, cpu

    def _open(self, groups: list[tuple[Hierarchy, str]]) -> list[int]:
        with contextlib.ExitStack() as undo:
            opened: list[int] = []
            for hierarchy, path in groups:
                descriptor = self._files.open_to_write(hierarchy.path(path, ENTER_V1))
                undo.callback(os.close, descriptor)
                opened.append(descriptor)
            undo.pop_all()
        return opened

    def exists(self, cell: str) -> bool:
        return all(hierarchy.exists(cell) for hierarchy in self._hierarchies)

    def pids(self, cell: str, *, below: bool) -> list[int]:
        return self._by_controller["pids"].pids(cell, below=below)

    def limits(self, cell: str) -> CellLimits:
        return translation.from_v1(self._read(cell), self._read(cell.rpartition("/")[0]))

    def usage(self, cell: str) -> CellUsage:
        own = usage.from_v1(self._read(cell))
        below = self._by_controller["memory"].every(cell)
        return msgspec.structs.replace(
            own, oom_kills=own.oom_kills + sum(self.oom_kills(each, "") for each in below)
        )

    def oom_kills(self, cell: str, leaf: str) -> int:
        return usage.oom_kills(self._read(cell)("memory.oom_control"))

    def cells(self) -> list[str]:
        return [cell for hierarchy in self._hierarchies for cell in hierarchy.cells()]

    def dispose(self) -> None:
        for hierarchy in (*self._hierarchies, *self._other_hierarchies):
            hierarchy.dispose()
