"""`cgroups.protocol.Cgroups` where this user has no cgroups: folders for groups, tags for membership.

    BOOT/a/b/limits.json       the limits of cell a/b
    BOOT/a/b/_x1/tag           of the processes of its first executable
    BOOT/a/b/_x1/ooms          how many of them were killed because of their memory
    BOOT/a/b/_init/init.json   the init of the cell

What runs in a cell are the descendants of its init, which adopts orphans; to which executable they belong is
told by the tag that they inherit (`process_table`). An init whose record is missing is found by its tag, and
so is what is left of an init that shared the pids of the machine and was killed. The folders are in the data
folder, so the next agent finds them; those of one cell may be in memory, which is faster. `watcher` holds the
limits.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from skerry.kit import files
from skerry.model import cells as names
from skerry.model import errors
from skerry.model.cells import CellLimits, CellUsage
from skerry.model.ids import CellName
from skerry.node.cgroups import killing, limit_writes, waiting
from skerry.node.cgroups import limits as translation
from skerry.node.cgroups.hierarchies import check_leaf
from skerry.node.cgroups.protocol import INIT_LEAF, CgroupEntryFds
from skerry.node.kernel.process_marks import TAG_LIMIT, ProcessMarks
from skerry.node.watched import decisions, process_table
from skerry.node.watched.process_table import ProcessStatus

_LIMITS: Final = "limits.json"
_INIT: Final = "init.json"
_TAG: Final = "tag"
_OOMS: Final = "ooms"
_LEAF_MARK: Final = "_"
# A tag can only be lowered: that of the pool is the highest, and those of inits are above those of others.
# In quarters of what this process may have itself, which is a tag if it is in a cell of another Skerry.
_POOL_TAGS: Final = 3
_INIT_TAGS: Final = 2
_LEAF_TAGS: Final = 1
_HIGHEST_TAG: Final = 1 << 62
_ROUNDS: Final = 100
_MOST_PIDS: Final = 4_194_304  # of Linux
_NODES: Final = Path("/sys/devices/system/node/online")


class InitRecord(msgspec.Struct, frozen=True):
    """The init of a cell."""

    pid: int
    start_time: int
    has_own_pids: bool  # when it ends, all that runs in its cell does


class WatchedGroups:
    """Groups below the folder `folder`, which is for the boot `boot` alone; those of others are removed.

    `limits_users`: each cell has a user of its own, so that the kernel counts its processes. `volatile`: a
    cell at the top with its folder, which may be gone when nothing is left in that cell."""

    kind = "watched"
    limits_in_v2 = False
    can_leave_cpu_quota = False

    def __init__(
        self, folder: Path, boot: str, *, limits_users: bool, volatile: tuple[CellName, Path] | None = None
    ) -> None:
        self._folder = folder / boot
        self._volatile = None if volatile is None else (volatile[0], volatile[1] / boot)
        self._limits_users = limits_users
        self._pool_tag = _new_tag(_POOL_TAGS)
        self._peaks: dict[CellName, int] = {}
        self._inits: dict[CellName, InitRecord] = {}
        self.changed: Callable[[CellName], None] = lambda cell: None  # its limits, or what it has
        for each in (folder, *(() if volatile is None else (volatile[1],))):
            files.private_folder(each)
            for former in each.iterdir():
                if former.name != boot:
                    shutil.rmtree(former)
            (each / boot).mkdir(exist_ok=True)

    def create(self, cell: CellName, limits: CellLimits) -> None:
        parent = names.parent_of(names.parse_any_name(cell))
        if parent is not None and not self.exists(parent):
            raise errors.NotFound(f"there is no parent cell {parent} for {cell}: allocate that first")
        self._check(limits, parent)
        self._base(cell).mkdir(mode=0o700, exist_ok=True)  # somebody removed it while it was empty
        try:
            self._path(cell).mkdir()
        except FileExistsError:
            raise errors.AlreadyExists(f"cell {cell} already exists") from None
        try:
            self._write_limits(cell, limits)
        except BaseException:
            shutil.rmtree(self._path(cell), ignore_errors=True)
            raise

    def change_limits(self, cell: CellName, limits: CellLimits) -> None:
        self._check(limits, names.parent_of(cell))
        changes = {key: value for key, value in asdict(limits).items() if value not in (None, "")}
        self._write_limits(cell, replace(self.read_limits(cell), **changes))
        niceness, cpus = decisions.niceness(limits), translation.numbers(limits.cpus)
        if niceness or cpus:
            for pid in self.members(cell):
                _apply_to_threads(pid, niceness, cpus)

    def _check(self, limits: CellLimits, parent: CellName | None) -> None:
        """Raise Invalid for what cannot be held here at all."""
        above = CellLimits() if parent is None else self.effective_limits(parent)
        limit_writes.check_lists(limits, lambda: above.cpus or _own_cpus(), _memory_nodes)
        if limits.mems and translation.numbers(limits.mems) != translation.numbers(_memory_nodes()):
            raise errors.Invalid(
                f"mems {limits.mems}: memory nodes need cgroups, which this user does not have", field="mems"
            )
        if limits.pids is not None and limits.pids > _MOST_PIDS:
            raise errors.Invalid(f"pids must be at most {_MOST_PIDS}, not {limits.pids}", field="pids")

    def lift_cpu_quota(self, cell: CellName) -> None:
        """There is none."""

    def read_limits(self, cell: CellName) -> CellLimits:
        try:
            return msgspec.json.decode((self._path(cell) / _LIMITS).read_bytes(), type=CellLimits)
        except FileNotFoundError:
            raise errors.NotFound(f"cell {cell} has no group on this host") from None

    def effective_limits(self, cell: CellName) -> CellLimits:
        return translation.tightest(self.read_limits(each) for each in names.upwards(cell))

    def _write_limits(self, cell: CellName, limits: CellLimits) -> None:
        self._write(cell, _LIMITS, msgspec.json.encode(limits))
        self.changed(cell)

    def _write(self, cell: CellName, name: str, content: bytes) -> None:
        """Atomically. Not synced: after a power cut another boot has no use for it."""
        path = self._path(cell) / name
        unfinished = path.with_name(f".{name}")
        unfinished.write_bytes(content)
        unfinished.replace(path)

    def add_leaf(self, cell: CellName, leaf: str) -> None:
        folder = self._path(cell, leaf)
        try:
            folder.mkdir()
        except FileExistsError:
            if self._tag(cell, leaf):
                return
        except FileNotFoundError:
            raise errors.NotFound(f"cell {cell} has no group on this host") from None
        tags = _INIT_TAGS if leaf == INIT_LEAF else _LEAF_TAGS
        (folder / _TAG).write_text(str(_new_tag(tags)))

    def remove_leaf(self, cell: CellName, leaf: str) -> None:
        if pids := self.pids(cell, leaf):
            raise errors.FailedPrecondition(
                f"processes are still in {cell}/{leaf}: kill them and wait until they are gone",
                detail=str(pids),
            )
        self._forget(cell, leaf)

    def _forget(self, cell: CellName, leaf: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._path(cell, leaf))
        if leaf == INIT_LEAF:
            self._inits.pop(cell, None)

    def leaves(self, cell: CellName) -> list[str]:
        return sorted(name for name in self._names(cell) if name.startswith(_LEAF_MARK))

    def runtime_group(self, cell: CellName, leaf: str) -> str:
        """A runtime is to make no group: what it runs inherits the tag."""
        return ""

    def entry(
        self, cell: CellName, leaf: str, *, from_within: bool = False, outside_quota: bool = False
    ) -> CgroupEntryFds:
        tag = self._tag(cell, leaf)
        if not tag:
            raise errors.NotFound(f"there is no group {cell}/{leaf}")
        if leaf == INIT_LEAF:
            return CgroupEntryFds(None, (), marks=ProcessMarks(tag), began=lambda pid: self._began(cell, pid))
        limits = self.effective_limits(cell)
        counted = limits.pids is not None and self._limits_users
        return CgroupEntryFds(
            None,
            (),
            marks=ProcessMarks(
                tag,
                # The init is one of them, and another user's.
                processes=max((limits.pids or 0) - 1, 1) if counted else 0,
                niceness=decisions.niceness(limits),
                cpus=tuple(sorted(translation.numbers(limits.cpus))),
            ),
        )

    def pool_entry(self) -> CgroupEntryFds:
        return CgroupEntryFds(None, (), marks=ProcessMarks(self._pool_tag))

    def entry_from_pool(self, cell: CellName, *, outside_quota: bool = False) -> CgroupEntryFds:
        self.add_leaf(cell, INIT_LEAF)
        return self.entry(cell, INIT_LEAF)

    def _began(self, cell: CellName, pid: int) -> None:
        found = process_table.status(pid)
        if found is None:
            return
        record = InitRecord(pid, found.start_time, process_table.has_own_pids(pid))
        with contextlib.suppress(FileNotFoundError):  # it is being removed
            (self._path(cell, INIT_LEAF) / _INIT).write_bytes(msgspec.json.encode(record))
            self._inits[cell] = record
        self.changed(cell)

    def pids(self, cell: CellName, leaf: str | None = None) -> list[int]:
        if leaf is None:
            return [pid for each in self._within(cell) for pid in self._pids_of(each)]
        wanted = self._tag(cell, leaf)
        if not wanted:
            return []
        init = self._init(cell)
        if init is not None and self._is_alive(init):
            if leaf == INIT_LEAF:
                return [init.pid]
            return [pid for pid, each in self._leaves_of(cell, init).items() if each == leaf]
        return [] if init is not None and init.has_own_pids else process_table.tagged((wanted,))

    def _leaves_of(self, cell: CellName, init: InitRecord) -> dict[int, str]:
        """The leaf of each process of the cell alone that has not ended, without its init."""
        inside = process_table.below(init.pid)
        leaves = {tag: leaf for leaf in self.leaves(cell) if (tag := self._tag(cell, leaf))}
        tagged = ((each.pid, each.parent, process_table.tag(each.pid)) for each in inside)
        ended = {each.pid for each in inside if each.has_ended}
        return {pid: leaf for pid, leaf in decisions.leaves_of(tagged, leaves).items() if pid not in ended}

    def _pids_of(self, cell: CellName) -> list[int]:
        """Of the cell alone."""
        init = self._init(cell)
        if init is not None and self._is_alive(init):
            return [init.pid, *(each.pid for each in process_table.below(init.pid) if not each.has_ended)]
        if init is not None and init.has_own_pids:
            return []
        return process_table.tagged(filter(None, (self._tag(cell, leaf) for leaf in self.leaves(cell))))

    def members(self, cell: CellName) -> list[int]:
        """The processes of the cell and below it, without inits."""
        return [each.pid for name in self._within(cell) for each in self.processes(name)[1]]

    def processes(self, cell: CellName) -> tuple[ProcessStatus | None, list[ProcessStatus]]:
        """The init of the cell, and the other processes of this cell alone that have not ended."""
        record = self._init(cell)
        init = None if record is None else self._alive(record)
        if init is not None:
            inside = process_table.below(init.pid)
        else:
            inside = [each for pid in self._pids_of(cell) if (each := process_table.status(pid))]
        return init, [each for each in inside if not each.has_ended]

    def count_oom(self, cell: CellName, pid: int) -> None:
        """A process of the cell or below it is about to be killed because of its memory."""
        for each in self._within(cell):
            init = self._init(each)
            leaf = None if init is None else self._leaves_of(each, init).get(pid)
            if leaf is None:  # its init is gone, or not known yet
                tag = process_table.tag(pid)
                leaf = next((name for name in self.leaves(each) if self._tag(each, name) == tag), None)
            if leaf is not None:
                with contextlib.suppress(OSError):  # a full disk must not keep it alive
                    (self._path(each, leaf) / _OOMS).write_text(str(self.oom_kills(each, leaf) + 1))
                return

    def kill(self, cell: CellName, leaf: str | None = None) -> None:
        killing.kill_all(lambda: self.pids(cell, leaf))

    def kill_members(self, cell: CellName) -> None:
        """Kill everything in the cell and below but the inits."""
        killing.kill_all(lambda: self.members(cell))

    async def emptied(self, cell: CellName, leaf: str | None = None, *, within_s: float) -> bool:
        return await waiting.until(lambda: not self.pids(cell, leaf), None, within_s=within_s)

    def freeze(self, cell: CellName) -> None:
        """By SIGSTOP: a process of the same user may continue them."""
        self.read_limits(cell)
        stopped: set[int] = set()
        for _ in range(_ROUNDS):
            fresh = set(self.members(cell)) - stopped
            if not fresh:
                return
            _signal(fresh, signal.SIGSTOP)
            stopped |= fresh

    def thaw(self, cell: CellName) -> None:
        self.read_limits(cell)
        _signal(self.members(cell), signal.SIGCONT)

    def remove(self, cell: CellName) -> None:
        below = [name for name in self._names(cell) if not name.startswith(_LEAF_MARK)]
        if below:
            raise errors.FailedPrecondition(
                f"cell {cell} has the child cell {cell}/{below[0]}: free that first"
            )
        if pids := self.pids(cell):
            raise errors.FailedPrecondition(
                f"processes are still in {cell}: kill them and wait until they are gone", detail=str(pids)
            )
        self._forget(cell, INIT_LEAF)
        self._peaks.pop(cell, None)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._path(cell))
        self.changed(cell)

    def exists(self, cell: CellName) -> bool:
        return (self._path(cell) / _LIMITS).exists()

    def cells(self) -> list[CellName]:
        return sorted(self._below(""))

    def usage(self, cell: CellName) -> CellUsage:
        self.read_limits(cell)
        inits = [init for each in self._within(cell) if (init := self._init(each)) is not None]
        found: list[ProcessStatus] = []
        for init in inits:
            if (own := process_table.status(init.pid)) is not None and self._is_alive(init):
                found += [own, *process_table.below(init.pid)]
        living = [each for each in found if not each.has_ended]
        used = sum(process_table.memory(each.pid) for each in living)
        traffic = [process_table.disk_bytes(each.pid) for each in living]
        self.note_memory(cell, used)
        return CellUsage(
            cpu_ns=sum(each.cpu_ns for each in found),
            throttled_ns=0,
            memory_bytes=used,
            memory_peak_bytes=self._peaks[cell],
            pids=sum(each.threads for each in living),
            read_bytes=sum(read for read, _ in traffic),
            written_bytes=sum(written for _, written in traffic),
            oom_kills=sum(
                self.oom_kills(each, leaf) for each in self._within(cell) for leaf in self.leaves(each)
            ),
        )

    def note_memory(self, cell: CellName, used: int) -> None:
        """For the peak, which is the highest that was seen."""
        self._peaks[cell] = max(used, self._peaks.get(cell, 0))

    def oom_kills(self, cell: CellName, leaf: str) -> int:
        try:
            return int((self._path(cell, leaf) / _OOMS).read_text() or 0)
        except FileNotFoundError:
            return 0

    def dispose(self) -> None:
        if not self.cells():
            for base in self._bases():
                shutil.rmtree(base, ignore_errors=True)

    def _bases(self) -> list[Path]:
        return [self._folder, *(() if self._volatile is None else (self._volatile[1],))]

    def _base(self, cell: str) -> Path:
        if self._volatile is not None and names.is_within(CellName(cell), self._volatile[0]):
            return self._volatile[1]
        return self._folder

    def _path(self, cell: str, leaf: str | None = None) -> Path:
        if leaf is None:
            return self._base(cell) / cell
        check_leaf(leaf)
        return Path(f"{self._base(cell)}/{cell}/{leaf}")

    def _names(self, cell: str) -> list[str]:
        """Folders in that of the cell, or of the cells at the top."""
        found: list[str] = []
        for folder in [self._path(cell)] if cell else self._bases():
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                found += [each.name for each in entries if each.is_dir()]
        return found

    def _below(self, cell: str) -> Iterator[CellName]:
        for name in self._names(cell):
            if not name.startswith(_LEAF_MARK):
                each = f"{cell}/{name}" if cell else name
                yield CellName(each)
                yield from self._below(each)

    def _within(self, cell: CellName) -> list[CellName]:
        return [cell, *self._below(cell)]

    def _tag(self, cell: CellName, leaf: str) -> int:
        """0 if there is no such leaf, or the agent was killed before it had one."""
        try:
            return int((self._path(cell, leaf) / _TAG).read_text() or 0)
        except FileNotFoundError:
            return 0

    def _init(self, cell: CellName) -> InitRecord | None:
        """The last one; None if there is none, or its start was not finished."""
        if cell not in self._inits:
            with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
                text = (self._path(cell, INIT_LEAF) / _INIT).read_bytes()
                self._inits[cell] = msgspec.json.decode(text, type=InitRecord)
        return self._inits.get(cell)

    def _is_alive(self, init: InitRecord) -> bool:
        return self._alive(init) is not None

    def _alive(self, init: InitRecord) -> ProcessStatus | None:
        found = process_table.status(init.pid)
        if found is None or found.has_ended or found.start_time != init.start_time:
            return None
        return found


def _new_tag(part: int) -> int:
    own = resource.getrlimit(TAG_LIMIT)[1]
    quarter = (_HIGHEST_TAG if own == resource.RLIM_INFINITY else min(own, _HIGHEST_TAG)) // 4
    return part * quarter + secrets.randbelow(quarter)


def _own_cpus() -> str:
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def _memory_nodes() -> str:
    try:
        return _NODES.read_text().strip()
    except OSError:
        return "0"


def _apply_to_threads(pid: int, niceness: int, cpus: Iterable[int]) -> None:
    with contextlib.suppress(OSError):
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            if niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
            if cpus:
                os.sched_setaffinity(thread, cpus)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def limit_of(limits: CellLimits) -> int | None:
    """Of the memory, in bytes."""
    return None if limits.memory is None else limits.memory * translation.MEGABYTE
