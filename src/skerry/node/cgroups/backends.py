"""A back end: one tree that knows who is in a cell, and whatever holds the limits.

| kind    | membership                   | limits               |
|---------|------------------------------|----------------------|
| unified | `v2_membership.V2Membership` | `v2_limits.V2Limits` |
| hybrid  | `v2_membership.V2Membership` | `v1_limits.V1Limits` |
| legacy  | `v1_freezer.V1Freezer`       | `v1_limits.V1Limits` |

Here is the order of things: the membership tree first when a cell is made and last when it is removed, so
that a crash between leaves something that `cells` shows. `detection` decides which kind it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import Protocol

from skerry.model import cells as names
from skerry.model import errors
from skerry.model.cells import CellLimits, CellUsage
from skerry.model.ids import CellName
from skerry.node.cgroups import killing, waiting
from skerry.node.cgroups import limits as translation
from skerry.node.cgroups.hierarchies import Hierarchy, is_leaf
from skerry.node.cgroups.protocol import INIT_LEAF, CgroupEntryFds

_SPARES = "_spares"
_LEAF = re.compile(r"_[a-z0-9]{1,58}")
# Beside its leaf and not in it: in v2, a group that hands controllers down can hold no process itself.
_RUNTIME_GROUP = "-box"


class ProcessMembership(Protocol):
    """Who is in a group. Places are relative to the root group."""

    @property
    def hierarchy(self) -> Hierarchy: ...

    def prepare(self) -> None: ...

    def make(self, place: str) -> None: ...

    def enter(self, place: str) -> tuple[int | None, tuple[int, ...]]: ...

    def kill(self, place: str) -> None: ...

    async def emptied(self, place: str, *, within_s: float) -> bool: ...

    def freeze(self, place: str) -> None: ...

    def thaw(self, place: str) -> None: ...


class LimitController(Protocol):
    """What holds limits. `make` leaves nothing behind when it fails."""

    def prepare(self) -> None: ...

    def make(self, cell: str, limits: CellLimits) -> None: ...

    def change(self, cell: str, limits: CellLimits) -> None: ...

    def lift_cpu_quota(self, cell: str) -> None: ...

    def remove(self, place: str) -> None: ...

    @property
    def has_way_out(self) -> bool: ...

    def enter(self, cell: str) -> tuple[int, ...]:
        """To be written to; the last one is that of the cpu quota if `has_way_out`."""
        ...

    def way_out(self, cell: str) -> tuple[int, int] | None:
        """Two to be written to, to be out of the cell's cpu quota and to be in it again; None unless
        `has_way_out`."""
        ...

    def limits(self, cell: str) -> CellLimits: ...

    def usage(self, cell: str) -> CellUsage: ...

    def oom_kills(self, cell: str, leaf: str) -> int: ...

    def exists(self, cell: str) -> bool: ...

    def pids(self, cell: str, *, below: bool) -> list[int]:
        """Processes that are held to the limits, if that is told apart from who is in the cell."""
        ...

    def cells(self) -> list[str]: ...

    def dispose(self) -> None: ...


class CgroupBackend:
    """`protocol.Cgroups`, put together of a membership and a holder of limits."""

    def __init__(
        self, kind: str, membership: ProcessMembership, holder: LimitController, *, limits_in_v2: bool
    ) -> None:
        self.kind = kind
        self.limits_in_v2 = limits_in_v2
        self._membership = membership
        self._tree = membership.hierarchy
        self._holder = holder

    def prepare(self) -> None:
        """Make the root group everywhere and whatever it needs. Raises Unavailable."""
        self._membership.prepare()
        self._holder.prepare()

    def create(self, cell: CellName, limits: CellLimits) -> None:
        parent = names.parent_of(names.parse_any_name(cell))
        if parent is None:
            if not self._tree.exists(""):
                self.prepare()  # somebody removed the root group, which is theirs to do while it is empty
        elif not self._tree.exists(parent):
            raise errors.NotFound(f"there is no cell {parent} for {cell} to be in: allocate that first")
        try:
            self._membership.make(cell)
        except FileExistsError:
            raise errors.AlreadyExists(f"cell {cell} already exists") from None
        except OSError as error:
            raise _failure("make", cell, error) from error
        try:
            self._holder.make(cell, limits)
        except BaseException as error:
            self._tree.remove(cell)
            if isinstance(error, OSError):
                raise _failure("make", cell, error) from error
            raise

    def change_limits(self, cell: CellName, limits: CellLimits) -> None:
        self._check_exists(cell)
        try:
            self._holder.change(cell, limits)
        except OSError as error:
            raise _failure("change", cell, error) from error

    def lift_cpu_quota(self, cell: CellName) -> None:
        self._check_exists(cell)
        try:
            self._holder.lift_cpu_quota(cell)
        except OSError as error:
            raise _failure("change", cell, error) from error

    def read_limits(self, cell: CellName) -> CellLimits:
        self._check_exists(cell)
        return self._holder.limits(cell)

    def effective_limits(self, cell: CellName) -> CellLimits:
        self._check_exists(cell)
        return translation.tightest(self._holder.limits(each) for each in names.upwards(cell))

    def add_leaf(self, cell: CellName, leaf: str) -> None:
        try:
            self._membership.make(_place(cell, leaf))
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise _missing(cell) from None

    def remove_leaf(self, cell: CellName, leaf: str) -> None:
        place = _place(cell, leaf)
        self._holder.remove(place + _RUNTIME_GROUP)
        self._tree.remove(place + _RUNTIME_GROUP)
        self._tree.remove(place)

    def leaves(self, cell: CellName) -> list[str]:
        names = (each.rpartition("/")[2] for each in self._tree.below(cell) if is_leaf(each))
        return sorted({name.removesuffix(_RUNTIME_GROUP) for name in names})

    def runtime_group(self, cell: CellName, leaf: str) -> str:
        return self._tree.within_mount(_place(cell, leaf) + _RUNTIME_GROUP)

    @property
    def has_way_out(self) -> bool:
        return self._holder.has_way_out

    def entrance(
        self, cell: CellName, leaf: str, *, from_within: bool = False, outside_quota: bool = False
    ) -> CgroupEntryFds:
        place = _place(cell, leaf)
        try:
            clone_into, procs = self._membership.enter(place)
        except FileNotFoundError:
            raise errors.NotFound(f"there is no group {place}") from None
        try:
            if not from_within:
                return self._whole_way(cell, clone_into, procs, outside_quota=outside_quota)
            if outside_quota and (way := self._holder.way_out(cell)) is not None:
                outside, cpu = way
                return CgroupEntryFds(clone_into, procs, cpu=cpu, outside=outside)
        except BaseException:
            CgroupEntryFds(clone_into, procs).close()
            raise
        return CgroupEntryFds(clone_into, procs)

    def spare_entrance(self) -> CgroupEntryFds | None:
        # From group to group of v2 the kernel moves a process only with a lock on every fork and every cgroup
        # of the machine, held for some 20 ms. In v1 a process of one thread moves itself at once.
        if self.limits_in_v2:
            return None
        with contextlib.suppress(FileExistsError):
            self._membership.make(_SPARES)
        return CgroupEntryFds(*self._membership.enter(_SPARES))

    def spare_way(self, cell: CellName, *, outside_quota: bool = False) -> CgroupEntryFds:
        return self._whole_way(cell, None, (), outside_quota=outside_quota)

    def _whole_way(
        self, cell: CellName, clone_into: int | None, procs: tuple[int, ...], *, outside_quota: bool
    ) -> CgroupEntryFds:
        held = self._holder.enter(cell)
        if outside_quota and self.has_way_out:
            return CgroupEntryFds(clone_into, (*held[:-1], *procs), cpu=held[-1])
        return CgroupEntryFds(clone_into, (*held, *procs))

    def pids(self, cell: CellName, leaf: str | None = None) -> list[int]:
        inside = [pid for place in _places(cell, leaf) for pid in self._tree.pids(place)]
        return [*inside, *self._outside(cell, leaf)]

    def kill(self, cell: CellName, leaf: str | None = None) -> None:
        for place in _places(cell, leaf):
            self._membership.kill(place)
        killing.kill_all(lambda: self._outside(cell, leaf))

    async def emptied(self, cell: CellName, leaf: str | None = None, *, within_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        for place in _places(cell, leaf):
            if not await self._membership.emptied(place, within_s=deadline - loop.time()):
                return False
        left_s = deadline - loop.time()
        return await waiting.until(lambda: not self._outside(cell, leaf), None, within_s=left_s)

    def _outside(self, cell: CellName, leaf: str | None) -> list[int]:
        """Inits that came from among the spares: held to the cell's limits, not in its membership tree."""
        if leaf not in (None, INIT_LEAF):
            return []
        held = self._holder.pids(cell, below=leaf is None)
        inside = set(self._tree.pids(cell)) if held else set()
        if outside := set(held) - inside:
            # One that ended before the second look is in neither tree: only who is still held is outside.
            outside &= set(self._holder.pids(cell, below=leaf is None))
        return [pid for pid in held if pid in outside]

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
        self._holder.remove(cell)
        self._tree.remove(cell)

    def exists(self, cell: CellName) -> bool:
        return self._tree.exists(cell) and self._holder.exists(cell)

    def cells(self) -> list[CellName]:
        return [CellName(place) for place in sorted({*self._tree.cells(), *self._holder.cells()})]

    def usage(self, cell: CellName) -> CellUsage:
        self._check_exists(cell)
        return self._holder.usage(cell)

    def oom_kills(self, cell: CellName, leaf: str) -> int:
        self._check_exists(cell)
        return self._holder.oom_kills(cell, leaf) + self._holder.oom_kills(
            _place(cell, leaf) + _RUNTIME_GROUP, ""
        )

    def dispose(self) -> None:
        self._holder.dispose()
        with contextlib.suppress(errors.FailedPrecondition):
            self._tree.remove(_SPARES)
        self._tree.dispose()

    def _check_exists(self, cell: CellName) -> None:
        if not self._tree.exists(cell):
            raise _missing(cell)


def _place(cell: CellName, leaf: str | None) -> str:
    if leaf is None:
        return cell
    if not _LEAF.fullmatch(leaf):
        raise errors.Internal(f"a leaf's name must begin with '_', unlike {leaf!r}")
    return f"{cell}/{leaf}"


def _places(cell: CellName, leaf: str | None) -> tuple[str, ...]:
    """The groups that make up a leaf, or the cell's one."""
    place = _place(cell, leaf)
    return (place,) if leaf is None else (place, place + _RUNTIME_GROUP)


def _missing(cell: CellName) -> errors.NotFound:
    return errors.NotFound(f"cell {cell} has no cgroup on this host")


def _failure(verb: str, cell: CellName, error: OSError) -> errors.SkerryError:
    return errors.Internal(
        f"cannot {verb} the cgroups of cell {cell}: {os.strerror(error.errno or 0)}", detail=str(error)
    )
