"""The interface of cgroups for the rest of the node, independent of the cgroup version.

A cell `a/b` is the group `<root>/a/b` in every hierarchy that is used. Processes are in leaves below it, such
as `_init`: the `_` separates leaves from child cells, and in v2 a group contains processes or groups, never
both. `skerry.node.cells` decides which cells exist; the launcher moves a new process in with a
`CgroupEntryFds`. Nothing here starts a process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from skerry.model.cells import CellLimits, CellUsage
from skerry.model.ids import CellName
from skerry.node.kernel.process_marks import ProcessMarks

INIT_LEAF = "_init"  # the leaf of a cell's init


class CgroupEntryFds:
    """Open descriptors by which a process enters one leaf of a cell; close it when the process is in.

    `clone_into` is the group's folder for CLONE_INTO_CGROUP, where the kernel supports that. The new process,
    which has one thread, writes `0` to each file of `procs` before it does anything else. The last of these
    may be `cpu`, the group of the cpu quota, for a start that works outside the quota: a new init enters it
    with the first process that it forks. An init that is in it already writes `0` to `outside` before it
    forks a process, and then to `cpu`.

    Where there are no cgroups there are no descriptors, and the process gets `marks` before it does anything
    else; `began` is called with the pid of an init that has.
    """

    def __init__(
        self,
        clone_into: int | None,
        procs: tuple[int, ...],
        *,
        cpu: int | None = None,
        outside: int | None = None,
        marks: ProcessMarks | None = None,
        began: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self.clone_into = clone_into
        self.procs = procs if cpu is None else (*procs, cpu)
        self.has_cpu = cpu is not None
        self.outside = outside
        self.marks = marks
        self.began = began
        self._open = [each for each in (clone_into, *self.procs, outside) if each is not None]

    def close(self) -> None:
        while self._open:
            with contextlib.suppress(OSError):
                os.close(self._open.pop())

    def __enter__(self) -> CgroupEntryFds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Cgroups(Protocol):
    """Groups of cells in all hierarchies. Every method but `create` and `emptied` is idempotent."""

    @property
    def kind(self) -> str:
        """`unified`, `hybrid` or `legacy`; `watched` without cgroups."""
        ...

    @property
    def limits_in_v2(self) -> bool:
        """True if cgroup v2 enforces the limits; in a hybrid it does not."""
        ...

    def create(self, cell: CellName, limits: CellLimits) -> None:
        """Create the cell's groups with its limits written and verified; atomically.

        A child may have higher limits than its parent, which are enforced as well: see `effective_limits`.
        Only cpus and memory nodes must be among the parent's.

        Raises AlreadyExists, NotFound (the parent), Invalid (with the name of the limit), FailedPrecondition
        (a foreign group of that name is in use).
        """
        ...

    def change_limits(self, cell: CellName, limits: CellLimits) -> None:
        """Set those of `limits` that are given, written and verified; the others stay.

        Raises NotFound, Invalid (with the name of the limit: the cell may use more already). Some of them may
        be changed then.
        """
        ...

    def lift_cpu_quota(self, cell: CellName) -> None:
        """Remove the cell's own cpu quota until `change_limits` sets it again; those of its ancestors
        stay."""
        ...

    def read_limits(self, cell: CellName) -> CellLimits:
        """The cell's own limits, as the kernel has them."""
        ...

    def effective_limits(self, cell: CellName) -> CellLimits:
        """The effective limits: the tightest of the cell's and its ancestors'."""
        ...

    def add_leaf(self, cell: CellName, leaf: str) -> None:
        """Create a group for processes below the cell; `leaf` begins with `_`."""
        ...

    def remove_leaf(self, cell: CellName, leaf: str) -> None:
        """Remove a leaf without processes. Raises FailedPrecondition if it has some."""
        ...

    def leaves(self, cell: CellName) -> list[str]:
        """The leaves of the cell."""
        ...

    def runtime_group(self, cell: CellName, leaf: str) -> str:
        """The group in which an OCI runtime, which creates groups itself, is to create them for what it runs
        in the leaf. They count as part of the leaf, and are removed with it."""
        ...

    def entry(
        self, cell: CellName, leaf: str, *, from_within: bool = False, outside_quota: bool = False
    ) -> CgroupEntryFds:
        """Descriptors to enter a leaf. `from_within`: the new process is forked by one that is in the cell
        already, so it only enters the leaf. `outside_quota`: the cell's init, which is the forking or the new
        process, works outside the cpu quota, if `can_leave_cpu_quota`."""
        ...

    @property
    def can_leave_cpu_quota(self) -> bool:
        """True if a process can leave the group of the cpu quota and stay in all others of its cell. In v2
        there are no others."""
        ...

    def pool_entry(self) -> CgroupEntryFds | None:
        """Descriptors to enter the group in which inits of the pool wait.

        None where moving them from there into a cell would block the whole machine.
        """
        ...

    def entry_from_pool(self, cell: CellName, *, outside_quota: bool = False) -> CgroupEntryFds:
        """Descriptors to move from the pool into a cell; the process then counts as in `INIT_LEAF`.
        `outside_quota` as for `entry`."""
        ...

    def pids(self, cell: CellName, leaf: str | None = None) -> list[int]:
        """Processes in the leaf, or in the cell and below, by their pids on the host."""
        ...

    def kill(self, cell: CellName, leaf: str | None = None) -> None:
        """Kill everything in the leaf, or in the cell and below, including concurrent forks."""
        ...

    async def emptied(self, cell: CellName, leaf: str | None = None, *, within_s: float) -> bool:
        """Wait until there are no processes; False after `within_s`."""
        ...

    def freeze(self, cell: CellName) -> None:
        """Freeze everything in the cell and below until `thaw`; it can still be killed."""
        ...

    def thaw(self, cell: CellName) -> None: ...

    def remove(self, cell: CellName) -> None:
        """Remove the cell's leaves and groups. Raises FailedPrecondition if there are processes or child
        cells."""
        ...

    def exists(self, cell: CellName) -> bool:
        """True if the cell has all of its groups."""
        ...

    def cells(self) -> list[CellName]:
        """Cells that have a group in any hierarchy, parents first; also incomplete ones."""
        ...

    def usage(self, cell: CellName) -> CellUsage:
        """Usage of the cell and everything below it."""
        ...

    def oom_kills(self, cell: CellName, leaf: str) -> int:
        """OOM kills in the leaf, or in any leaf of the cell if the kernel has no finer counter; never those
        of child cells. Does not decrease while the leaf exists."""
        ...

    def dispose(self) -> None:
        """Remove the root group everywhere, unless it is in use."""
        ...
