"""What an agent that starts makes of the containers that an earlier one left: the decision, and the doing.

The earlier agent may have been killed between any two steps, or the machine may have gone down, so records,
cells, mounts, addresses and the runtime need not agree. `plan` compares them and touches nothing; `adopt`
looks, plans, and does what the plan says. The rules:

- A container is there if its record is; one whose removal was begun, or that has no record, is removed.
- It runs if its cell, which is exactly the one of its record, has its main process and that has not ended.
  One that should have an address and has none cannot go on: it is killed.
- What does not run holds nothing: its mount, its address and what the runtime knows of it are given back.
  The same goes for whatever belongs to no container.
- How a run ended is the cell's word, else what was written down, else nobody's: the cell went with the boot
  of the machine, or somebody freed it.
- Commands that were run in a container end: whoever read their output is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.cells import CellOwner, ExecutableState
from skerry.model.containers import NetworkMode
from skerry.node.cells.state import CellView
from skerry.node.containers.execs import ExecManager
from skerry.node.containers.records import ContainerRecord, RunRecord, StoredContainer
from skerry.node.containers.removal import ContainerRemoval
from skerry.node.containers.run_teardown import RunTeardown, ended_run
from skerry.node.containers.runtimes import OciRuntime
from skerry.node.containers.state import (
    MAIN,
    ContainerDeps,
    ContainerEntry,
    make_container,
    shared_disk,
    users_of,
)
from skerry.node.containers.writable_layers import DiskLimitKind

log = structlog.get_logger(__name__)

REBOOTED = "the machine was restarted while it ran"
UNCONFINED_GUEST = (
    "an earlier Skerry had started it without a user namespace or a file system of its own, which nothing "
    "may run without for others, so it was killed"
)
NETWORK_LOST = "its network was gone when Skerry started, so it was killed"


@dataclass(frozen=True, slots=True)
class AdoptedContainer:
    """A container that stays, and what it is now."""

    record: ContainerRecord
    run: RunRecord | None  # the last one, as it is to be written down
    main: ExecutableState | None = None  # of its cell; None if that knows of none
    has_leftovers: bool = False  # nothing of it runs, and something is held for it
    must_end: str = ""  # why its run cannot go on, though it does

    @property
    def name(self) -> str:
        return self.record.spec.name

    @property
    def is_running(self) -> bool:
        return self.main is not None and self.main.exit is None


@dataclass(frozen=True, slots=True)
class ContainerAdoptionPlan:
    """What to do, in this order."""

    kept: tuple[AdoptedContainer, ...]
    removed: tuple[StoredContainer, ...]  # removal was begun
    strays: tuple[str, ...]  # of no container: everything under that name goes


def plan(
    found: Sequence[StoredContainer],
    cells: Mapping[str, CellView],
    held: Set[str],
    attached: Set[str],
    boot: str,
) -> ContainerAdoptionPlan:
    """`held`: names under which something is mounted, attached or known to the runtime; `attached`: those of
    them that have an address."""
    recorded = {each.name: each for each in found if each.record is not None}
    return ContainerAdoptionPlan(
        kept=tuple(
            _keep(each.record, each.run, cells.get(each.record.cell.name), held, attached, boot)
            for each in found
            if each.record is not None and not each.is_removing
        ),
        removed=tuple(each for each in recorded.values() if each.is_removing),
        strays=tuple(sorted((held | {each.name for each in found}) - recorded.keys())),
    )


def _keep(
    record: ContainerRecord,
    run: RunRecord | None,
    cell: CellView | None,
    held: Set[str],
    attached: Set[str],
    boot: str,
) -> AdoptedContainer:
    name, main = record.spec.name, _main(record, cell)
    if main is None:
        return AdoptedContainer(record, _over(run, boot), has_leftovers=name in held)
    if run is None or (run.boot, run.started_at) != (boot, main.started_at):
        run = RunRecord(boot, main.started_at)  # the agent died as it was about to write this down
    if main.exit is not None:
        run = run if run.has_ended else ended_run(run, main.exit)
        return AdoptedContainer(record, run, main, has_leftovers=name in held)
    is_cut_off = record.spec.network is NetworkMode.BRIDGE and name not in attached
    run = RunRecord(boot, main.started_at, reason=run.reason)  # whatever was written down, it has not ended
    return AdoptedContainer(record, run, main, must_end=NETWORK_LOST if is_cut_off else "")


def _main(record: ContainerRecord, cell: CellView | None) -> ExecutableState | None:
    if cell is None or cell.cell != record.cell:
        return None
    return next((each for each in cell.executables if each.name == MAIN), None)


def _over(run: RunRecord | None, boot: str) -> RunRecord | None:
    """The last run of a container that has no process any more."""
    if run is None or run.has_ended:
        return run
    return ended_run(run, None, REBOOTED if run.boot != boot else "")


class ContainerAdoption:
    """Does what `plan` says. `keep` gets every container that is there."""

    def __init__(
        self,
        deps: ContainerDeps,
        teardown: RunTeardown,
        removal: ContainerRemoval,
        execs: ExecManager,
        keep: Callable[[ContainerEntry], None],
    ) -> None:
        self._deps = deps
        self._teardown = teardown
        self._removal = removal
        self._execs = execs
        self._keep = keep

    async def adopt(self) -> None:
        deps = self._deps
        trash = deps.records.trash()
        found = [self._own(each) for each in deps.records.scan()]
        cells: dict[str, CellView] = {view.cell.name: view for view in deps.cells.list()}
        attached = set(deps.network.attachments())
        known = set(_known_to(deps.runtime))
        decision = plan(found, cells, self._mounted() | attached | known, attached, deps.boot)
        # Before anything goes: what stays is safe from whoever collects images.
        for kept in decision.kept:
            self._claim(kept.record)
        await asyncio.gather(
            *(self._take_over(kept) for kept in decision.kept),
            *(self._remove(each) for each in decision.removed),
            *(self._drop(name, is_ours=name in known) for name in decision.strays),
        )
        await self._attempt("network.not_tidied", self._keep_only(decision.kept))
        await self._attempt("disks.not_tidied", self._keep_disks(found))
        await asyncio.gather(*(self._attempt("container.not_removed", self._empty(path)) for path in trash))
        if found or decision.strays:
            log.info("containers.adopted", kept=len(decision.kept), removed=len(decision.removed))

    def _own(self, found: StoredContainer) -> StoredContainer:
        """With the cell as a container's own, which a version that knew no owners did not say."""
        if found.record is None or found.record.cell.owner is not None:
            return found
        deps, record = self._deps, found.record
        owned = replace(record, cell=replace(record.cell, owner=CellOwner.CONTAINER))
        try:
            deps.cells.claim(record.cell, CellOwner.CONTAINER)
            deps.records.replace(owned)
        except OSError as error:  # it is anybody's until an agent that finds the disk well
            log.warning("container.not_owned", container=found.name, error=str(error))
            return found
        return replace(found, record=owned)

    async def _attempt(self, complaint: str, work: Coroutine[Any, Any, None], **fields: str) -> bool:
        """Do `work`; what fails of it keeps no agent from starting, and is tried again later."""
        try:
            await work
        except (errors.SkerryError, OSError) as error:
            log.warning(complaint, error=str(error), **fields)
            return False
        return True

    async def _keep_only(self, kept: Sequence[AdoptedContainer]) -> None:
        running = {each.name for each in kept if each.is_running}
        await self._deps.network.keep_only(running)
        if self._deps.users is not None:
            await asyncio.to_thread(self._deps.users.keep_only, running)

    async def _keep_disks(self, found: Sequence[StoredContainer]) -> None:
        shared = (shared_disk(each.record.spec) for each in found if each.record is not None)
        names = {each.name for each in shared if each is not None}
        await asyncio.to_thread(self._deps.disks.keep_only, names)

    async def _empty(self, folder: Path) -> None:
        await asyncio.to_thread(self._removal.empty, folder)

    def _mounted(self) -> set[str]:
        return {name for mount in self._deps.overlays.mounted() if (name := self._deps.records.owner(mount))}

    def _claim(self, record: ContainerRecord) -> None:
        try:
            self._deps.images.claim(record.spec.name, record.image)
        except errors.NotFound as error:
            log.warning("container.without_image", container=record.spec.name, error=error.message)

    async def _take_over(self, kept: AdoptedContainer) -> None:
        container = make_container(self._deps, kept.record, kept.run)
        if not await self._attempt(
            "container.not_adopted", self._put_right(container, kept), container=kept.name
        ):
            container.has_leftovers = not container.is_running
        self._keep(container)

    async def _put_right(self, container: ContainerEntry, kept: AdoptedContainer) -> None:
        if kept.is_running:
            container.ended = asyncio.get_running_loop().create_future()
        if kept.run is not None:
            self._deps.records.set_run(container.name, kept.run)
        await self._execs.end_all(container, kept.main)
        if kept.is_running:
            await self._go_on(container, kept)
        elif kept.has_leftovers:
            await self._teardown.tidy(container)

    async def _go_on(self, container: ContainerEntry, kept: AdoptedContainer) -> None:
        deps, main = self._deps, kept.main
        assert main is not None
        container.pid = main.pid
        container.disk_limit_kind = await asyncio.to_thread(
            deps.disks.limit, container.place.layer, container.disk_limit
        )
        attachment = deps.network.attachments().get(container.name)
        container.users = users_of(deps, container, attachment)
        if reason := kept.must_end or _why_no_guest(container):
            container.reason = reason
            await self._teardown.finish(container)
        elif attachment is not None:
            container.address = attachment.address

    async def _remove(self, found: StoredContainer) -> None:
        assert found.record is not None
        container = make_container(self._deps, found.record, found.run)
        container.is_removing = True
        if not await self._attempt(
            "container.not_removed", self._removal.remove(container), container=found.name
        ):
            self._claim(found.record)
            self._keep(container)  # it stays listed, and can be removed again

    async def _drop(self, name: str, *, is_ours: bool) -> None:
        """Everything under this name goes; the cell only if it `is_ours`, since people have cells too."""
        log.warning("container.stray", container=name)
        cell = None
        with contextlib.suppress(errors.NotFound):
            if is_ours:
                cell = self._deps.cells.get(self._deps.cells.own(name)).cell
        await self._attempt("container.not_removed", self._removal.drop(name, cell), container=name)


def _why_no_guest(container: ContainerEntry) -> str:
    """Why what runs for somebody else cannot go on, as it would not be started today; or nothing."""
    is_confined = container.users is not None and container.disk_limit_kind is DiskLimitKind.FILE_SYSTEM
    return "" if is_confined or not container.record.spec.is_apart else UNCONFINED_GUEST


def _known_to(runtime: OciRuntime) -> list[str]:
    """What the runtime has written down, of this boot or an earlier one."""
    try:
        return [entry.name for entry in os.scandir(runtime.folder) if entry.is_dir()]
    except FileNotFoundError:
        return []
