"""Adopts the containers that an earlier agent left: a pure decision, and its execution.

The earlier agent may have been killed between any two steps, or the machine may have crashed, so records,
cells, mounts, addresses and the runtime's state may disagree. `plan` compares them and has no effects;
`adopt` observes, plans, and carries out the plan. The rules:

- A container exists if it has a record; one that is being removed, or has no record, is removed.
- It is running if its cell, which must equal the one of its record, has its main process and that has not
  ended. One that has lost its address is killed.
- A stopped container holds no resources: its mount, its address and the runtime's state of it are released.
  So are those of no container.
- The exit of a run comes from the cell, else from the record; else it is unknown: the cell was lost in a
  reboot, or somebody freed it.
- Execs end: the clients that read their output are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec
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
    "an earlier Skerry had started it without a user namespace or a file system of its own, which leased "
    "cells require, so it was killed"
)
NETWORK_LOST = "its network was gone when Skerry started, so it was killed"


class AdoptedContainer(msgspec.Struct, frozen=True):
    """An adopted container and its state."""

    record: ContainerRecord
    run: RunRecord | None  # the last one, as it is to be stored
    main: ExecutableState | None = None  # of its cell; None if there is none
    has_leftovers: bool = False  # it is not running, and resources are still held for it
    must_end: str = ""  # why it must be killed, though it is running

    @property
    def name(self) -> str:
        return self.record.spec.name

    @property
    def is_running(self) -> bool:
        return self.main is not None and self.main.exit is None


class ContainerAdoptionPlan(msgspec.Struct, frozen=True):
    """What to do, in this order."""

    adopted: tuple[AdoptedContainer, ...]
    removed: tuple[StoredContainer, ...]  # removal was begun
    orphans: tuple[str, ...]  # of no container: everything under that name is removed


def plan(
    found: Sequence[StoredContainer],
    cells: Mapping[str, CellView],
    in_use: Set[str],
    attached: Set[str],
    boot: str,
) -> ContainerAdoptionPlan:
    """`in_use`: names with a mount, an address, a bundle or state of the runtime; `attached`: those of them
    that have an address."""
    recorded = {each.name: each for each in found if each.record is not None}
    return ContainerAdoptionPlan(
        adopted=tuple(
            _adopted(each.record, each.run, cells.get(each.record.cell.name), in_use, attached, boot)
            for each in found
            if each.record is not None and not each.is_removing
        ),
        removed=tuple(each for each in recorded.values() if each.is_removing),
        orphans=tuple(sorted((in_use | {each.name for each in found}) - recorded.keys())),
    )


def _adopted(
    record: ContainerRecord,
    run: RunRecord | None,
    cell: CellView | None,
    in_use: Set[str],
    attached: Set[str],
    boot: str,
) -> AdoptedContainer:
    name, main = record.spec.name, _main(record, cell)
    if main is None:
        return AdoptedContainer(record, _over(run, boot), has_leftovers=name in in_use)
    if run is None or (run.boot, run.started_at) != (boot, main.started_at):
        run = RunRecord(boot, main.started_at)  # the agent died before it stored this
    if main.exit is not None:
        run = run if run.has_ended else ended_run(run, main.exit)
        return AdoptedContainer(record, run, main, has_leftovers=name in in_use)
    is_cut_off = record.spec.network is NetworkMode.BRIDGE and name not in attached
    run = RunRecord(boot, main.started_at, reason=run.reason)  # it has not ended, whatever the record says
    return AdoptedContainer(record, run, main, must_end=NETWORK_LOST if is_cut_off else "")


def _main(record: ContainerRecord, cell: CellView | None) -> ExecutableState | None:
    if cell is None or cell.cell != record.cell:
        return None
    return next((each for each in cell.executables if each.name == MAIN), None)


def _over(run: RunRecord | None, boot: str) -> RunRecord | None:
    """The last run of a container without processes."""
    if run is None or run.has_ended:
        return run
    return ended_run(run, None, REBOOTED if run.boot != boot else "")


class ContainerAdoption:
    """Carries out `plan`. `add` gets every container that exists."""

    def __init__(
        self,
        deps: ContainerDeps,
        teardown: RunTeardown,
        removal: ContainerRemoval,
        execs: ExecManager,
        add: Callable[[ContainerEntry], None],
    ) -> None:
        self._deps = deps
        self._teardown = teardown
        self._removal = removal
        self._execs = execs
        self._adopted = add

    async def adopt(self) -> None:
        deps = self._deps
        trash = deps.records.trash()
        found = [self._own(each) for each in deps.records.scan()]
        cells: dict[str, CellView] = {view.cell.name: view for view in deps.cells.list()}
        attached = set(deps.networks.attachments())
        in_runtime = set(_containers_in(deps.runtime))
        in_use = self._mounted() | attached | in_runtime | deps.records.bundled()
        decision = plan(found, cells, in_use, attached, deps.boot)
        # Before anything is removed: the images of adopted containers are safe from garbage collection.
        for adopted in decision.adopted:
            self._claim(adopted.record)
        await asyncio.gather(
            *(self._take_over(adopted) for adopted in decision.adopted),
            *(self._remove(each) for each in decision.removed),
            *(self._drop(name, is_in_runtime=name in in_runtime) for name in decision.orphans),
        )
        await self._attempt("network.not_tidied", self._remove_unused_networks(decision.adopted))
        await self._attempt("disks.not_tidied", self._remove_unused_disks(found))
        await asyncio.gather(*(self._attempt("container.not_removed", self._empty(path)) for path in trash))
        if found or decision.orphans:
            log.info("containers.adopted", kept=len(decision.adopted), removed=len(decision.removed))

    def _own(self, found: StoredContainer) -> StoredContainer:
        """`found` with the owner of its cell, which versions without owners did not store."""
        if found.record is None or found.record.cell.owner is not None:
            return found
        deps, record = self._deps, found.record
        owned = replace(record, cell=replace(record.cell, owner=CellOwner.CONTAINER))
        try:
            deps.cells.claim(record.cell, CellOwner.CONTAINER)
            deps.records.replace(owned)
        except OSError as error:  # it stays without an owner until the record can be stored
            log.warning("container.not_owned", container=found.name, error=str(error))
            return found
        return replace(found, record=owned)

    async def _attempt(self, event: str, work: Coroutine[Any, Any, None], **fields: str) -> bool:
        """Run `work`; a failure is logged and retried later, and does not keep the agent from starting."""
        try:
            await work
        except (errors.SkerryError, OSError) as error:
            log.warning(event, error=str(error), **fields)
            return False
        return True

    async def _remove_unused_networks(self, adopted: Sequence[AdoptedContainer]) -> None:
        running = {each.name for each in adopted if each.is_running}
        await self._deps.networks.keep_only(running)
        if self._deps.users is not None:
            await asyncio.to_thread(self._deps.users.keep_only, running)
        if self._deps.secrets is not None:
            await asyncio.to_thread(self._deps.secrets.files.keep_only, running)

    async def _remove_unused_disks(self, found: Sequence[StoredContainer]) -> None:
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

    async def _take_over(self, adopted: AdoptedContainer) -> None:
        container = make_container(self._deps, adopted.record, adopted.run)
        if not await self._attempt(
            "container.not_adopted", self._repair(container, adopted), container=adopted.name
        ):
            container.has_leftovers = not container.is_running
        self._adopted(container)

    async def _repair(self, container: ContainerEntry, adopted: AdoptedContainer) -> None:
        if adopted.is_running:
            container.ended = asyncio.get_running_loop().create_future()
        if adopted.run is not None:
            self._deps.records.set_run(container.name, adopted.run)
        await self._execs.end_all(container, adopted.main)
        if adopted.is_running:
            await self._resume(container, adopted)
        elif adopted.has_leftovers:
            await self._teardown.tidy(container)

    async def _resume(self, container: ContainerEntry, adopted: AdoptedContainer) -> None:
        deps, main = self._deps, adopted.main
        assert main is not None
        container.pid = main.pid
        container.disk_limit_kind = await asyncio.to_thread(
            deps.disks.limit, container.paths.layer, container.disk_limit
        )
        attachment = deps.networks.attachments().get(container.name)
        container.users = users_of(deps, container, attachment)
        if reason := adopted.must_end or _guest_violation(container):
            container.reason = reason
            await self._teardown.finish(container)
        elif attachment is not None:
            container.address, container.address6 = attachment.address, attachment.address6

    async def _remove(self, found: StoredContainer) -> None:
        assert found.record is not None
        container = make_container(self._deps, found.record, found.run)
        container.is_removing = True
        if not await self._attempt(
            "container.not_removed", self._removal.remove(container), container=found.name
        ):
            self._claim(found.record)
            self._adopted(container)  # it stays listed, and can be removed again

    async def _drop(self, name: str, *, is_in_runtime: bool) -> None:
        """Remove everything under this name; the cell only if it `is_in_runtime`, since users have cells
        too."""
        log.warning("container.stray", container=name)
        cell = None
        with contextlib.suppress(errors.NotFound):
            if is_in_runtime:
                cell = self._deps.cells.get(self._deps.cells.own_cell_name(name)).cell
        await self._attempt("container.not_removed", self._removal.drop(name, cell), container=name)


def _guest_violation(container: ContainerEntry) -> str:
    """Why a running guest container must be killed: it would not be started so today; empty: it need not
    be."""
    is_confined = container.users is not None and container.disk_limit_kind is DiskLimitKind.FILE_SYSTEM
    return "" if is_confined or not container.record.spec.is_isolated else UNCONFINED_GUEST


def _containers_in(runtime: OciRuntime) -> list[str]:
    """Containers that the runtime has state of, of this boot or an earlier one."""
    try:
        return [entry.name for entry in os.scandir(runtime.folder) if entry.is_dir()]
    except FileNotFoundError:
        return []
