"""The containers of this node: create, start, stop, remove, exec, and what is known of each.

What `skerry.wire` calls, and the only door: it finds the container, takes its lock, and has the work done to
its end even if the caller goes away meanwhile. A container is a cell of ours (`skerry.node.cells`) with an
image's files, an address and an OCI runtime's process in it. Containers outlive the agent: `open` takes
over what an earlier one left, `close` leaves everything running.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import structlog

from skerry.kit import tasks
from skerry.model import errors
from skerry.model.cells import Cell, CellOwner, CellUsage, ExitStatus, OutputChannel
from skerry.model.containers import ContainerSpec, ContainerStats, ContainerView
from skerry.model.ids import CellName
from skerry.model.images import Image, ImageAccess, ImageId, PullProgress
from skerry.model.network import Egress
from skerry.node.cells.locks import PathLocks
from skerry.node.containers import oci_config
from skerry.node.containers.adoption import ContainerAdoption
from skerry.node.containers.execs import ExecManager, ExecSession
from skerry.node.containers.maintenance import ContainerMaintenance
from skerry.node.containers.records import ContainerRecord, RunRecord
from skerry.node.containers.removal import ContainerRemoval
from skerry.node.containers.run_teardown import RunTeardown
from skerry.node.containers.startup import ContainerStartup
from skerry.node.containers.state import (
    MAIN,
    ContainerDeps,
    ContainerEntry,
    cell_for,
    cell_name,
    check_disk,
    check_guests,
    make_container,
    takes_disk_limits,
)
from skerry.node.containers.writable_layers import DiskLimitKind
from skerry.node.logs.readers import RingReader

log = structlog.get_logger(__name__)

T = TypeVar("T")

_CLOSE_S = 3.0
_AGAIN_S = 5.0  # until an end that could not be finished is tried again


class Containers:
    """Every container of this node."""

    def __init__(self, deps: ContainerDeps) -> None:
        self._deps = deps
        self._containers: dict[str, ContainerEntry] = {}
        self._locks = PathLocks("containers")
        self._teardown = RunTeardown(deps)
        self._startup = ContainerStartup(deps, self._teardown)
        self._removal = ContainerRemoval(deps, self._teardown)
        self._execs = ExecManager(deps)
        self._maintenance = ContainerMaintenance(deps, self._teardown, self._locks, self._containers.values)

    async def open(self) -> Containers:
        """Take over what is in the folder: finish or undo what an earlier agent left half done."""
        try:
            await ContainerAdoption(
                self._deps, self._teardown, self._removal, self._execs, self._keep
            ).adopt()
        except BaseException:
            await self.close()
            raise
        return self

    async def create(
        self,
        spec: ContainerSpec,
        *,
        image: ImageId | None = None,
        egress: Egress = Egress.ALL,
        access: ImageAccess = ImageAccess.REGISTRIES,
        starts: bool = False,
        on_progress: Callable[[PullProgress], None] = lambda progress: None,
    ) -> ContainerView:
        """Make a container, with its image pulled if it is not here; durable when this returns. With `image`
        it is made of that one, which is here, whatever its spec means now; `access` is that of who gave the
        spec. With `starts` it runs, too, and what must be on disk gets there while it starts; if it does not
        start, or the caller goes away, nothing is left. Raises AlreadyExists, Invalid, ResourcesExhausted,
        what pulling raises and, with `starts`, what `start` does."""
        self._check_new(spec)
        turn = await self._locks.hold([], spec.name)
        try:
            self._check_new(spec)
            claimed = await self._claim(spec, image, access, on_progress)
        except BaseException:
            turn.release()
            raise
        is_wanted = True

        async def create() -> ContainerView:
            container = await self._create(spec, claimed, egress, starts=starts)
            if starts and not is_wanted:
                await self._remove(container)
            return container.view()

        try:
            return await turn.finish(create())
        except asyncio.CancelledError:
            is_wanted = False
            raise

    async def _claim(
        self,
        spec: ContainerSpec,
        id: ImageId | None,
        access: ImageAccess,
        on_progress: Callable[[PullProgress], None],
    ) -> Image:
        """The image, which will not go away. Until here a caller that goes away ends it all."""
        images = self._deps.images
        try:
            if id is not None:
                image = images.get(id)
                images.claim(spec.name, id)
            else:
                # What a stranger's spec means is asked for as a stranger would.
                source = images.for_guests() if spec.is_apart else images
                image = await source.ensure(
                    spec.image, access=access, owner=spec.name, on_progress=on_progress
                )
            oci_config.command(spec, image.config)  # what can be known to be wrong is better told now
            oci_config.stop_signal(spec, image.config)
        except BaseException:
            images.release(spec.name)
            raise
        return image

    async def _create(
        self, spec: ContainerSpec, image: Image, egress: Egress, *, starts: bool
    ) -> ContainerEntry:
        deps, name = self._deps, spec.name
        record = ContainerRecord(spec, image.id, image.config, cell_for(deps, spec), deps.clock.now(), egress)
        container = make_container(deps, record)
        cell: Cell | None = record.cell
        syncing: asyncio.Task[None] | None = None

        def sync() -> None:
            nonlocal syncing
            syncing = asyncio.create_task(asyncio.to_thread(deps.records.sync, name))

        try:
            # The record comes before the cell, so that a cell of ours can always be found by its record.
            deps.records.add(record)
            deps.reached("create.recorded")
            if not starts:
                sync()
            try:
                try:
                    # Its layer is made by the start, if there is one, of what is ready.
                    await (self._allocate(container) if starts else self._make_layer_and_cell(container))
                except errors.AlreadyExists:
                    cell = None  # it is somebody's, and not to be touched
                    raise
                if starts:
                    # Whoever makes a file while the disk is waited for waits along, so not before the
                    # runtime works, which makes few.
                    await self._startup.start(container, when_begun=sync)
            finally:
                if syncing is not None:
                    await syncing
        except BaseException:
            with contextlib.suppress(errors.Unavailable):  # why it failed matters more
                await self._removal.drop(name, cell, container.shared_disk)
            raise
        deps.reached("create.synced")
        self._containers[name] = container
        log.info("container.created", container=name, image=image.id)
        if starts:
            self._see_to(container)
        return container

    async def _make_layer_and_cell(self, container: ContainerEntry) -> None:
        arguments = container.place.layer, container.disk_limit, container.shared_disk
        making = asyncio.create_task(asyncio.to_thread(self._deps.disks.make, *arguments))
        try:
            await self._allocate(container)
        finally:
            await making

    async def _allocate(self, container: ContainerEntry) -> None:
        await self._deps.cells.allocate(container.record.cell)
        self._deps.reached("create.allocated")

    def _check_new(self, spec: ContainerSpec) -> None:
        check_disk(self._deps, spec)
        name, cell = spec.name, cell_name(self._deps.cells, spec)
        if name in self._containers:
            raise errors.AlreadyExists(
                f"container {name!r} exists already; remove it, or choose another name"
            )
        if any(view.cell.name == cell for view in self._deps.cells.list()):
            raise errors.AlreadyExists(
                f"there is a cell {cell!r} of another container already; choose another name"
            )

    async def start(self, name: str) -> ContainerView:
        """Run it, from created or exited; it runs when this returns. Raises NotFound, FailedPrecondition (it
        runs, is being removed, or the runtime cannot), AlreadyExists (a port), ResourcesExhausted."""
        return await self._work(name, self._start)

    async def _start(self, container: ContainerEntry) -> ContainerView:
        self._check_stays(container)
        if container.is_running:
            raise errors.FailedPrecondition(f"container {container.name!r} runs already")
        await self._startup.start(container)
        self._see_to(container)
        return container.view()

    def _see_to(self, container: ContainerEntry) -> None:
        """It has just been started."""
        self._watch(container)
        if container.disk_limit_kind is DiskLimitKind.FILE_SYSTEM and container.shared_disk is None:
            self._maintenance.disk_opened()
        log.info("container.started", container=container.name, pid=container.pid, address=container.address)

    async def restrict(self, name: str, egress: Egress) -> None:
        """What it may reach from now on, whether it runs or not; durable when this returns. Raises NotFound,
        Unavailable."""

        async def restrict(container: ContainerEntry) -> None:
            record = msgspec.structs.replace(container.record, egress=egress)
            # First what holds, then what is known: whoever finds the old record does it again.
            await self._deps.network.restrict(name, record.policy)
            self._deps.reached("restrict.ruled")
            self._deps.records.replace(record)
            await asyncio.to_thread(self._deps.records.sync, name)
            container.record = record
            log.info("container.restricted", container=name, egress=egress)

        await self._work(name, restrict)

    async def stop(self, name: str, *, grace_s: float | None = None) -> ContainerView:
        """The stop signal to its main process, and after `grace_s` the end of all; it stays listed with its
        exit and its output. Nothing if it does not run. Raises NotFound, Unavailable."""
        grace_s = self._grace(self._container(name)) if grace_s is None else max(0.0, grace_s)
        self._teardown.hurry(self._container(name), grace_s)  # before waiting for who stops it now

        async def stop(container: ContainerEntry) -> ContainerView:
            if container.is_running:
                await self._teardown.stop(container, grace_s)
            return container.view()

        return await self._work(name, stop)

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Everything of it goes; with `force` it is stopped first if it runs. Raises NotFound,
        FailedPrecondition (it runs), Unavailable."""

        async def remove(container: ContainerEntry) -> None:
            if container.is_running and not force:
                raise errors.FailedPrecondition(
                    f"container {name!r} runs; stop it first, or force the removal"
                )
            await self._remove(container)

        await self._work(name, remove)

    async def _remove(self, container: ContainerEntry) -> None:
        self._removal.mark(container)
        if container.is_running:
            await self._teardown.stop(container, self._grace(container))
        await self._removal.remove(container)
        del self._containers[container.name]
        log.info("container.removed", container=container.name)

    async def exec(
        self,
        name: str,
        arguments: tuple[str, ...],
        *,
        environment: tuple[str, ...] = (),
        user: str = "",
        folder: str = "",
        tty: bool = False,
        stdio: tuple[int, int, int],
    ) -> ExecSession:
        """Run a command in it, with `stdio` as its three streams: ends of pipes, or three times the slave of
        a terminal with `tty`. They stay the caller's to close, which it may do as soon as this returns.
        Raises NotFound, FailedPrecondition (it does not run), Invalid."""
        container = self._container(name)
        self._check_stays(container)
        if not container.is_running:
            raise errors.FailedPrecondition(f"container {name!r} does not run; start it first")
        return await self._execs.begin(
            container,
            arguments,
            environment=environment,
            user=user,
            folder=folder,
            tty=tty,
            stdio=stdio,
        )

    def open_socket(self, name: str) -> Awaitable[socket.socket]:
        """A TCP socket in its network namespace, not connected, which does not block. Raises NotFound,
        FailedPrecondition (it has no network now), OSError."""
        return self._deps.network.open_socket(self._container(name).name)

    def logs(self, name: str, stream: OutputChannel) -> RingReader:
        """What the last run has written to `stream`, and writes; nothing if there was none in this boot.
        Raises NotFound."""
        container = self._container(name)
        try:
            return self._deps.cells.logs(container.cell, MAIN, stream, owner=CellOwner.CONTAINER)
        except errors.NotFound:
            return RingReader(container.place.folder, stream.value, ended=lambda: True)

    def usage(self, name: str) -> CellUsage:
        """What its processes use. Raises NotFound."""
        container = self._container(name)
        try:
            return self._deps.cells.usage(container.cell)
        except errors.NotFound:  # it has no cell before the first start in this boot
            return CellUsage()

    async def stats(self, name: str) -> ContainerStats:
        """What it uses, its disk too. Raises NotFound."""
        container = self._container(name)
        return ContainerStats(
            usage=self.usage(name),
            disk_bytes=await asyncio.to_thread(self._deps.disks.used, container.place.layer),
            disk_limit_bytes=container.disk_limit,
            disk_limit_kind=container.disk_limit_kind.value,
        )

    @property
    def takes_disk_limits(self) -> bool:
        """Whether containers with a disk limit can run here."""
        return takes_disk_limits(self._deps)

    def lacking(self) -> tuple[str, ...]:
        """What cannot be done here, and why, in plain sentences; best empty."""
        disks = self._deps.disks
        found = []
        if disks.kind is DiskLimitKind.MEASURED:
            what = "are only measured" if self.takes_disk_limits else "cannot be held, and are refused"
            found.append(f"disk limits of containers {what}, since {disks.why_measured}")
        if not disks.can_share:
            found.append(f"nothing can run for buyers, since {disks.why_measured}")
        return tuple(found)

    def check_guests(self) -> None:
        """Raises FailedPrecondition if no stranger's container can run here."""
        check_guests(self._deps)

    def used_together(self, cell: str) -> int:
        """Bytes of disk that all strangers' containers in a cell have written, and have not given back yet.
        Blocks, shortly."""
        return self._deps.disks.used_together(cell)

    async def wait(self, name: str) -> ExitStatus:
        """How its last run ended, once it has and its address and ports are free again. Raises NotFound,
        FailedPrecondition (it was never started, or nobody knows how it ended)."""
        container = self._container(name)
        run = container.run
        if container.ended is not None:
            run = await asyncio.shield(container.ended)
        if run is None:
            raise errors.FailedPrecondition(f"container {name!r} was never started")
        if run.exit is None:
            raise errors.FailedPrecondition(f"container {name!r} has ended, but not by itself: {run.reason}")
        return run.exit

    def list(self) -> list[ContainerView]:
        """Every container, by name."""
        return [self._containers[name].view() for name in sorted(self._containers)]

    def cell(self, name: str) -> CellName:
        """What its cell is called. Raises NotFound."""
        return self._container(name).cell

    def get(self, name: str) -> ContainerView:
        """Raises NotFound."""
        return self._container(name).view()

    async def run(self) -> None:
        """Watch the disk of containers where no quota does, and try again what could not be given back. For
        ever."""
        await self._maintenance.run()

    async def close(self) -> None:
        """The agent ends; the containers go on. What is being done is given a moment, and else is left half
        done: the next agent finishes or undoes it."""
        await self._execs.close()
        await self._locks.close(_CLOSE_S)
        watchers = [each.watcher for each in self._containers.values() if each.watcher is not None]
        await tasks.cancel_and_wait(watchers)
        await self._locks.close(_CLOSE_S)  # what they had begun
        await asyncio.to_thread(self._deps.disks.close)

    def _keep(self, container: ContainerEntry) -> None:
        self._containers[container.name] = container
        if container.is_running:
            self._watch(container)

    def _watch(self, container: ContainerEntry) -> None:
        """See to the end of a run, whoever or whatever ends it."""
        assert container.ended is not None
        container.watcher = asyncio.create_task(
            self._see_end(container, container.ended), name=f"watcher of {container.name}"
        )

    async def _see_end(self, container: ContainerEntry, ended: asyncio.Future[RunRecord]) -> None:
        how = await self._deps.cells.wait(container.cell, MAIN)

        async def finish() -> None:
            if container.ended is ended:  # else whoever had the turn before has seen to it
                await self._teardown.finish(container, how)

        while container.ended is ended:
            try:
                await self._locks.do(container.name, finish)
            except errors.SkerryError as error:
                log.warning("container.not_ended", container=container.name, error=error.message)
                await asyncio.sleep(_AGAIN_S)

    async def _work(self, name: str, work: Callable[[ContainerEntry], Coroutine[Any, Any, T]]) -> T:
        """Find the container and work on it, alone."""
        self._container(name)

        async def find_and_work() -> T:
            return await work(self._container(name))

        return await self._locks.do(name, find_and_work)

    def _container(self, name: str) -> ContainerEntry:
        container = self._containers.get(name)
        if container is None:
            raise errors.NotFound(f"there is no container {name!r}")
        return container

    def _check_stays(self, container: ContainerEntry) -> None:
        if container.is_removing:
            raise errors.FailedPrecondition(
                f"container {container.name!r} was to be removed and could not be; remove it again"
            )

    def _grace(self, container: ContainerEntry) -> float:
        grace_s = container.record.spec.stop_grace_s
        return self._deps.settings.stop_grace_s if grace_s is None else grace_s
