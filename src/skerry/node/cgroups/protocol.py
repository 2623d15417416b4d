"""What the rest of the node asks of cgroups, whichever kind the machine has.

A cell `a/b` is the group `<root>/a/b` in every hierarchy that is used. Processes sit in leaves below it, such
as `_init`: the `_` keeps leaves and child cells apart, and gives the unified tree what it wants, that a group
holds processes or groups and never both. `skerry.node.cells` decides what cells there are; the launcher gets
an `CgroupEntryFds` and walks a new process through it. Nothing here starts a process.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Protocol

from skerry.model.cells import CellLimits, CellUsage
from skerry.model.ids import CellName

INIT_LEAF = "_init"  # the leaf that a cell's init belongs to


class CgroupEntryFds:
    """The way into one leaf of a cell, as open descriptors; close it when the process is in.

    `clone_into` is the group's folder for CLONE_INTO_CGROUP, where the kernel has that. To each file of
    `procs` the new process, which has one thread, writes `0` before it does anything else. The last of these
    may be `cpu`, the group that holds the cpu quota, for a start whose work is done outside of that: a new
    init enters it with the first process that it forks. One that is in it already writes `0` to `outside`
    before it forks a process, and then to `cpu`.
    """

    def __init__(
        self,
        clone_into: int | None,
        procs: tuple[int, ...],
        *,
        cpu: int | None = None,
        outside: int | None = None,
    ) -> None:
        self.clone_into = clone_into
        self.procs = procs if cpu is None else (*procs, cpu)
        self.has_cpu = cpu is not None
        self.outside = outside
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
    """Groups of cells in every hierarchy at once. Every method but `create` and `emptied` is idempotent."""

    @property
    def kind(self) -> str:
        """`unified`, `hybrid` or `legacy`."""
        ...

    @property
    def limits_in_v2(self) -> bool:
        """True if the limits are held by cgroup v2; in a hybrid they are not."""
        ...

    def create(self, cell: CellName, limits: CellLimits) -> None:
        """Make the cell's groups with its limits written and read back; all of it, or nothing.

        A child may ask for more than its parent has and is still held to the parent's limits:
        `effective_limits` tells. Only cpus and memory nodes must be among the parent's.

        Raises AlreadyExists, NotFound (the parent), Invalid (naming the limit), FailedPrecondition (a group
        of that name is in use by somebody else).
        """
        ...

    def change_limits(self, cell: CellName, limits: CellLimits) -> None:
        """Hold the cell to those of `limits` that are given, written and read back; the others stay.

        Raises NotFound, Invalid (naming the limit: what is in the cell may use more already). Some of them
        may be changed then.
        """
        ...

    def lift_cpu_quota(self, cell: CellName) -> None:
        """Let the cell use any cpu that its ancestors may, until `change_limits` gives it a quota again."""
        ...

    def read_limits(self, cell: CellName) -> CellLimits:
        """The limits of its own that the kernel holds for the cell."""
        ...

    def effective_limits(self, cell: CellName) -> CellLimits:
        """The limits that bite: the tightest of the cell's and its ancestors'."""
        ...

    def add_leaf(self, cell: CellName, leaf: str) -> None:
        """Make a group for processes below the cell; `leaf` begins with `_`."""
        ...

    def remove_leaf(self, cell: CellName, leaf: str) -> None:
        """Remove a leaf that is empty of processes. Raises FailedPrecondition if it is not."""
        ...

    def leaves(self, cell: CellName) -> list[str]:
        """The leaves that the cell has now."""
        ...

    def runtime_group(self, cell: CellName, leaf: str) -> str:
        """Where an OCI runtime, which insists on making groups itself, is to make them for what it runs in
        the leaf. They count as part of the leaf everywhere here, and go with it."""
        ...

    def entrance(
        self, cell: CellName, leaf: str, *, from_within: bool = False, outside_quota: bool = False
    ) -> CgroupEntryFds:
        """The way into a leaf. `from_within`: the new process is forked by one that is in the cell already,
        so that it has inherited all of the cell and only enters the leaf. `outside_quota`: the cell's init,
        which is that one or the new process, is to work outside of the cpu quota, if `has_way_out`."""
        ...

    @property
    def has_way_out(self) -> bool:
        """True if a process can leave the group of the cpu quota and stay in all others of its cell. In v2
        there are no others."""
        ...

    def spare_entrance(self) -> CgroupEntryFds | None:
        """The way to where a process waits that is to be the init of some cell.

        None where the kernel would make it and everybody else wait when it goes from there into a cell.
        """
        ...

    def spare_way(self, cell: CellName, *, outside_quota: bool = False) -> CgroupEntryFds:
        """The way from there into a cell; whoever has gone it counts as in `INIT_LEAF`. `outside_quota` as
        for `entrance`."""
        ...

    def pids(self, cell: CellName, leaf: str | None = None) -> list[int]:
        """Processes in the leaf, or in the cell with everything below it, as the host counts them."""
        ...

    def kill(self, cell: CellName, leaf: str | None = None) -> None:
        """SIGKILL for everything in the leaf, or in the cell and below; what forks meanwhile too."""
        ...

    async def emptied(self, cell: CellName, leaf: str | None = None, *, within_s: float) -> bool:
        """Wait until no process is there any more; False if some are after `within_s`."""
        ...

    def freeze(self, cell: CellName) -> None:
        """Stop everything in the cell and below from running until `thaw`; it can still be killed."""
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
        """Cells that have a group in any hierarchy, parents first; also those that are only half there."""
        ...

    def usage(self, cell: CellName) -> CellUsage:
        """What the cell has used, with everything below it."""
        ...

    def oom_kills(self, cell: CellName, leaf: str) -> int:
        """Processes killed for memory in the leaf, or in any leaf of the cell if the kernel counts no finer;
        never those of child cells. Does not go down while the leaf is there."""
        ...

    def dispose(self) -> None:
        """Remove the root group everywhere, unless something is in it."""
        ...
