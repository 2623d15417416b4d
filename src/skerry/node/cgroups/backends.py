"""A cgroup backend: one tree for the membership of processes, and a controller for limits.

| kind    | membership                   | limits               |
|---------|------------------------------|----------------------|
| unified | `v2_membership.V2Membership` | `v2_limits.V2Limits` |
| hybrid  | `v2_membership.V2Membership` | `v1_limits.V1Limits` |
| legacy  | `v1_freezer.V1Freezer`       | `v1_limits.V1Limits` |

The order of operations: the membership tree comes first when a cell is created and last when it is removed,
so that a crash in between leaves something that `cells` lists. `detection` decides which kind it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Protocol

from skerry.model import cells as names
from skerry.model import errors
from skerry.model.cells import CellLimits, CellUsage
from skerry.model.ids import CellName
from skerry.node.cgroups import killing, waiting
from skerry.node.cgroups import limits as translation
from skerry.node.cgroups.hierarchies import Hierarchy, check_leaf, is_leaf
from skerry.node.cgroups.protocol import INIT_LEAF, CgroupEntryFds

_SPARES = "_spares"
# Beside its leaf, not in it: in v2, a group that delegates controllers can contain no process itself.
_RUNTIME_GROUP = "-box"


class ProcessMembership(Protocol):
    """Which processes are in a group. Paths are relative to the root group."""

    @property
    def hierarchy(self) -> Hierarchy: ...

    def prepare(self) -> None: ...

    def make(self, path: str) -> None: ...

    def enter(self, path: str) -> tuple[int | None, tuple[int, ...]]: ...

    def kill(self, path: str) -> None: ...

    async def emptied(self, path: str, *, within_s: float) -> bool: ...

    def freeze(self, path: str) -> None: ...

    def thaw(self, path: str) -> None: ...


class LimitController(Protocol):
    """Enforces limits. `make` leaves nothing behind when it fails."""

    def prepare(self) -> None: ...

    def make(self, cell: str, limits: CellLimits) -> None: ...

    def change(self, cell: str, limits: CellLimits) -> None: ...

    def lift_cpu_quota(self, cell: str) -> None: ...

    def remove(self, path: str) -> None: ...

    @property
    def can_leave_cpu_quota(self) -> bool: ...

    def enter(self, cell: str) -> tuple[int, ...]:
        """Descriptors to write to; the last one is that of the cpu quota if `can_leave_cpu_quota`."""
        ...

    def cpu_quota_exit(self, cell: str) -> tuple[int, int] | None:
        """Two descriptors to write to: one leaves the cell's cpu quota, the other enters it again; None
        unless `can_leave_cpu_quota`."""
        ...

    def limits(self, cell: str) -> CellLimits: ...

    def usage(self, cell: str) -> CellUsage: ...

    def oom_kills(self, cell: str, leaf: str) -> int: ...

    def exists(self, cell: str) -> bool: ...

    def pids(self, cell: str, *, below: bool) -> list[int]:
        """Processes under the limits, if that is separate from membership in the cell."""
        ...

    def cells(self) -> list[str]: ...

    def dispose(self) -> None: ...


class CgroupBackend:
    """`protocol.Cgroups`, of a membership tree and a limit controller."""

    def __init__(
        self, kind: str, membership: ProcessMembership, limits: LimitController, *, limits_in_v2: bool
    ) -> None:
        self.kind = kind
        self.limits_in_v2 = limits_in_v2
        self._membership = membership
        self._tree = membership.hierarchy
        self._limits = limits

    def prepare(self) -> None:
        """Create the root group in every hierarchy. Raises Unavailable."""
        self._membership.prepare()
        self._limits.prepare()

    def create(self, cell: CellName, limits: CellLimits) -> None:
        parent = names.parent_of(names.parse_any_name(cell))
        if parent is None:
            if not self._tree.exists(""):
                self.prepare()  # somebody removed the root group while it was empty
        elif not self._tree.exists(parent):
            raise errors.NotFound(f"there is no parent cell {parent} for {cell}: allocate that first")
        try:
            self._membership.make(cell)
        except FileExistsError:
            raise errors.AlreadyExists(f"cell {cell} already exists") from None
        except OSError as error:
            raise _failure("make", cell, error) from error
        try:
            self._limits.make(cell, limits)
        except BaseException as error:
            self._tree.remove(cell)
            if isinstance(error, OSError):
                raise _failure("make", cell, error) from error
            raise

    def change_limits(self, cell: CellName, limits: CellLimits) -> None:
        self._check_exists(cell)
        try:
            self._limits.change(cell, limits)
        except OSError as error:
            raise _failure("change", cell, error) from error

    def lift_cpu_quota(self, cell: CellName) -> None:
        self._check_exists(cell)
        try:
            self._limits.lift_cpu_quota(cell)
        except OSError as error:
            raise _failure("change", cell, error) from error

    def read_limits(self, cell: CellName) -> CellLimits:
        self._check_exists(cell)
        return self._limits.limits(cell)

    def effective_limits(self, cell: CellName) -> CellLimits:
        self._check_exists(cell)
        return translation.tightest(self._limits.limits(each) for each in names.upwards(cell))

    def add_leaf(self, cell: CellName, leaf: str) -> None:
        try:
            self._membership.make(_path(cell, leaf))
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise _missing(cell) from None

    def remove_leaf(self, cell: CellName, leaf: str) -> None:
        path = _path(cell, leaf)
        self._limits.remove(path + _RUNTIME_GROUP)
        self._tree.remove(path + _RUNTIME_GROUP)
        self._tree.remove(path)

    def leaves(self, cell: CellName) -> list[str]:
        names = (each.rpartition("/")[2] for each in self._tree.below(cell) if is_leaf(each))
        return sorted({name.removesuffix(_RUNTIME_GROUP) for name in names})

    def runtime_group(self, cell: CellName, leaf: str) -> str:
        return self._tree.within_mount(_path(cell, leaf) + _RUNTIME_GROUP)

    @property
    def can_leave_cpu_quota(self) -> bool:
        return self._limits.can_leave_cpu_quota

    def entry(
        self, cell: CellName, leaf: str, *, from_within: bool = False, outside_quota: bool = False
    ) -> CgroupEntryFds:
        path = _path(cell, leaf)
        try:
            clone_into, procs = self._membership.enter(path)
        except FileNotFoundError:
            raise errors.NotFound(f"there is no group {path}") from None
        try:
            if not from_within:
                return self._cell_entry(cell, clone_into, procs, outside_quota=outside_quota)
            if outside_quota and (fds := self._limits.cpu_quota_exit(cell)) is not None:
                outside, cpu = fds
                return CgroupEntryFds(clone_into, procs, cpu=cpu, outside=outside)
        except BaseException:
            CgroupEntryFds(clone_into, procs).close()
            raise
        return CgroupEntryFds(clone_into, procs)

    def pool_entry(self) -> CgroupEntryFds | None:
        # Between v2 groups the kernel moves a process only with a lock on every fork and every cgroup of the
        # machine,
        # held for some 20 ms. In v1 a single-threaded process moves itself at once.
        if self.limits_in_v2:
            return None
        with contextlib.suppress(FileExistsError):
            self._membership.make(_SPARES)
        return CgroupEntryFds(*self._membership.enter(_SPARES))

    def entry_from_pool(self, cell: CellName, *, outside_quota: bool = False) -> CgroupEntryFds:
        return self._cell_entry(cell, None, (), outside_quota=outside_quota)

    def _cell_entry(
        self, cell: CellName, clone_into: int | None, procs: tuple[int, ...], *, outside_quota: bool
    ) -> CgroupEntryFds:
        limit_fds = self._limits.enter(cell)
        if outside_quota and self.can_leave_cpu_quota:
            return CgroupEntryFds(clone_into, (*limit_fds[:-1], *procs), cpu=limit_fds[-1])
        return CgroupEntryFds(clone_into, (*limit_fds, *procs))

    def pids(self, cell: CellName, leaf: str | None = None) -> list[int]:
        inside = [pid for path in _paths(cell, leaf) for pid in self._tree.pids(path)]
        return [*inside, *self._outside(cell, leaf)]

    def kill(self, cell: CellName, leaf: str | None = None) -> None:
        for path in _paths(cell, leaf):
            self._membership.kill(path)
        killing.kill_all(lambda: self._outside(cell, leaf))

    async def emptied(self, cell: CellName, leaf: str | None = None, *, within_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        for path in _paths(cell, leaf):
            if not await self._membership.emptied(path, within_s=deadline - loop.time()):
                return False
        remaining_s = deadline - loop.time()
        return await waiting.until(lambda: not self._outside(cell, leaf), None, within_s=remaining_s)

    def _outside(self, cell: CellName, leaf: str | None) -> list[int]:
        """Inits from the pool: under the cell's limits, not in its membership tree."""
        if leaf not in (None, INIT_LEAF):
            return []
        limited = self._limits.pids(cell, below=leaf is None)
        inside = set(self._tree.pids(cell)) if limited else set()
        if outside := set(limited) - inside:
            # A process that ended before the second read is in neither tree: only those still under limits
            # are outside.
            outside &= set(self._limits.pids(cell, below=leaf is None))
        return [pid for pid in limited if pid in outside]

    def freeze(self, cell: CellName) -> None:
        self._check_exists(cell)
        self._membership.freeze(cell)

    def thaw(self, cell: CellName) -> None:
        self._check_exists(cell)
        self._membership.thaw(cell)

    def remove(self, cell: CellName) -> None:
        below = self._tree.below(cell)
        if children := [each for each in below if not is_leaf(each)]:
            raise errors.FailedPrecondition(f"cell {cell} has the child cell {children[0]}: free that first")
        for leaf in below:
            self._tree.remove(leaf)
        self._limits.remove(cell)
        self._tree.remove(cell)

    def exists(self, cell: CellName) -> bool:
        return self._tree.exists(cell) and self._limits.exists(cell)

    def cells(self) -> list[CellName]:
        return [CellName(path) for path in sorted({*self._tree.cells(), *self._limits.cells()})]

    def usage(self, cell: CellName) -> CellUsage:
        self._check_exists(cell)
        return self._limits.usage(cell)

    def oom_kills(self, cell: CellName, leaf: str) -> int:
        self._check_exists(cell)
        return self._limits.oom_kills(cell, leaf) + self._limits.oom_kills(
            _path(cell, leaf) + _RUNTIME_GROUP, ""
        )

    def dispose(self) -> None:
        self._limits.dispose()
        with contextlib.suppress(errors.FailedPrecondition):
            self._tree.remove(_SPARES)
        self._tree.dispose()

    def _check_exists(self, cell: CellName) -> None:
        if not self._tree.exists(cell):
            raise _missing(cell)


def _path(cell: CellName, leaf: str | None) -> str:
    if leaf is None:
        return cell
    check_leaf(leaf)
    return f"{cell}/{leaf}"


def _paths(cell: CellName, leaf: str | None) -> tuple[str, ...]:
    """The groups of a leaf, or the cell's one."""
    path = _path(cell, leaf)
    return (path,) if leaf is None else (path, path + _RUNTIME_GROUP)


def _missing(cell: CellName) -> errors.NotFound:
    return errors.NotFound(f"cell {cell} has no cgroup on this host")


def _failure(verb: str, cell: CellName, error: OSError) -> errors.SkerryError:
    return errors.Internal(
        f"cannot {verb} the cgroups of cell {cell}: {os.strerror(error.errno or 0)}", detail=str(error)
    )
